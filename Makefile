# `make` lists the targets.

PYTHON ?= python3
PORT ?= 0
FAST ?=

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SITE := _build/html
CACHE := _build/.jupyter_cache

# Notebooks start `python` by name, so the environment comes first on the path.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYDEVD_DISABLE_FILE_VALIDATION := 1
unexport PYTHONHOME

# PyTorch's threads spin while they wait for each other, and when another program holds a core they spin for long: a
# training of 3 s was seen to take 100 s. Sleeping instead costs nothing measurable on a quiet machine.
export OMP_WAIT_POLICY ?= PASSIVE

# The stamp holds the folder it was written in: an environment that was moved, or whose Python has
# gone, is made again.
ifneq ($(shell cat $(STAMP) 2>/dev/null && $(BIN)/python -c "" 2>/dev/null || echo broken),$(CURDIR))
.PHONY: $(STAMP)
endif

# What the outputs of the chapters depend on besides the chapters themselves.
RESULTS := $(shell find spinwave benchmarks -type f ! -path "*/__pycache__/*" 2>/dev/null | sed "s/ /\\\\ /g")

.PHONY: help book pdf test lint serve lab clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' Makefile

book: $(STAMP) $(CACHE)/.package  ## execute the chapters and build the site in _build/html
	@rm -rf $(SITE)
	@$(BIN)/jupyter-book build . --all -W -n --keep-going
	@echo
	@echo "The book: $(CURDIR)/$(SITE)/index.html"
	@echo "\`make serve\` serves it; its interactive figures need that."

test: $(if $(FAST),$(STAMP),book)  ## build the book, then run every test (FAST=1: neither the book nor the slow tests)
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(if $(FAST),-m "not slow")

lint: $(STAMP)  ## check the code and the chapters with ruff, the types of the package with mypy
	@$(BIN)/ruff check .
	@$(BIN)/mypy

pdf: book  ## print the book into _build/book.pdf (needs Chromium)
	@$(BIN)/python chapters/make_pdf.py $(SITE) _build/book.pdf
	@echo "The book: $(CURDIR)/_build/book.pdf"

serve:  ## serve the built book on this machine (PORT=8000 chooses the port)
	@test -f $(SITE)/index.html || { echo "No book yet. Build it with: make book" >&2; exit 1; }
	@$(BIN)/python -u -m http.server $(PORT) --bind 127.0.0.1 --directory $(SITE)

lab: $(STAMP)  ## open the chapters in JupyterLab
	@$(BIN)/jupyter lab chapters

clean:  ## remove the built book, the environment and the caches
	rm -rf _build $(VENV) *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find chapters spinwave tests -depth -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) -exec rm -rf {} +

# An installation that was cut short leaves .venv/.incomplete and starts afresh.
$(STAMP): pyproject.toml
	@if ! command -v "$(PYTHON)" > /dev/null; then \
	  echo "$(PYTHON) was not found. Choose a Python with: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; exit 1; fi
	@"$(PYTHON)" -c 'import sys; v = sys.version_info[:2]; ok = (3, 11) <= v < (3, 14); ok or sys.exit("$(PYTHON) is Python %d.%d; this project needs 3.11, 3.12 or 3.13. Choose one with: make $(MAKECMDGOALS) PYTHON=python3.12" % v)'
	@if [ -e $(VENV)/.incomplete ] || ! $(BIN)/python -m pip --version > /dev/null 2>&1 || \
	    { [ -e $@ ] && [ "$$(cat $@)" != "$(CURDIR)" ]; }; then \
	  rm -rf $(VENV); mkdir $(VENV); touch $(VENV)/.incomplete; \
	  echo "Creating $(VENV) with $$("$(PYTHON)" --version)"; \
	  "$(PYTHON)" -m venv $(VENV) || { \
	    echo "Python's venv module failed. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }; \
	fi
	@touch $(VENV)/.incomplete
	@echo "Installing the package, Jupyter Book and the test tools (a few minutes the first time)"
	@$(BIN)/python -m pip install --progress-bar off -e ".[book,test]" | awk '\
	  /^ *Downloading .* MB\)$$/ { print "  " $$2 " " $$3 " " $$4 } \
	  /^Installing collected packages/ { print "  installing " split($$0, names, ",") " packages" } \
	  { fflush() }'
	@echo "$(CURDIR)" > $@
	@rm $(VENV)/.incomplete

# The cache of executed chapters knows their source only. A change of the package, of the benchmark
# results or of the environment empties it.
$(CACHE)/.package: $(RESULTS) $(STAMP)
	@rm -rf $(CACHE)
	@mkdir -p $(CACHE)
	@touch $@
