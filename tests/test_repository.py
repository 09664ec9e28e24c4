"""What the repository promises apart from the package: clean notebooks, two commands, a self-contained site."""

import ast
import inspect
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
import pytest
import yaml
from pypdf import PdfReader

from spinwave import ladder, pages

ROOT = Path(__file__).parent.parent
SITE = ROOT / "_build" / "html"
NOTEBOOKS = sorted((ROOT / "chapters").glob("*.ipynb"))
TOP_LEVEL = {
    *("README.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "MANIFEST.in", "pyproject.toml"),
    *("_config.yml", "_toc.yml", ".gitignore", ".github", ".ci"),
    *("chapters", "spinwave", "tests", "benchmarks"),
}
INSTALL_CELL = """\
# Installs spinwave where it is missing, as on Colab.
import importlib.util

if importlib.util.find_spec("spinwave") is None:
    %pip install -q git+{url}"""


def config() -> dict:
    return yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_without_outputs(path):
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code), (
        f"run: nbstripout chapters/{path.name}"
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_first_cell_installs_from_the_configured_repository(path):
    first = nbformat.read(path, as_version=4).cells[0]
    assert first.source == INSTALL_CELL.format(url=config()["repository"]["url"])
    assert "remove-cell" in first.metadata.get("tags", [])


def test_every_cell_is_executed_and_must_succeed():
    execute = config()["execute"]
    assert execute["execute_notebooks"] == "cache"
    assert 60 <= execute["timeout"] <= 600
    assert not {"allow_errors", "exclude_patterns"} & execute.keys()
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        assert notebook.metadata.keys() == {"kernelspec", "language_info"}  # "mystnb" could turn execution off
        for cell in notebook.cells:
            assert not {"skip-execution", "raises-exception"} & set(cell.metadata.get("tags", [])), path.stem


@pytest.mark.skipif(not SITE.is_dir(), reason="the book is not built (make book)")
def test_every_chapter_was_executed_by_the_build():
    page = (SITE / "chapters" / "execution.html").read_text(encoding="utf-8")
    rows = re.findall(r"<tr.*?</tr>", page, re.S)
    executed = {name for row in rows if "✅" in row for name in re.findall(r">chapters/(\w+)<", row)}
    assert executed >= {path.stem for path in NOTEBOOKS}


def test_recorded_runs_cover_every_chapter_in_little_memory():
    for run in pages.chapter_runs():
        assert run["seconds"].keys() == run["memory"].keys() == {path.stem for path in NOTEBOOKS}
        assert max(run["memory"].values()) < 4e9


def without_annotations(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
    return ast.dump(tree)


def test_code_of_a_rung_in_a_chapter_is_the_packages_code():
    shown = set()
    for path in NOTEBOOKS:
        for cell in nbformat.read(path, as_version=4).cells:
            for name in cell.metadata.get("tags", []):
                if hasattr(ladder, name):
                    source = inspect.getsource(getattr(ladder, name))
                    assert without_annotations(cell.source) == without_annotations(source), f"{path.stem}: {name}"
                    shown.add(name)
    assert shown >= set(ladder.RUNGS)


def test_package_executes_nothing_that_it_reads():
    """Neither pickles, which loading can turn into code, nor code in text."""
    for path in (ROOT / "spinwave").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ast.unparse(node)
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert not re.search(r"\b(pickle|marshal|shelve|dill|joblib|yaml)\b", text), (path.name, text)
            elif isinstance(node, ast.Call):
                assert not re.match(r"(eval|exec|__import__|torch\.load|os\.system)\(", text), (path.name, text)
                assert not re.match(r"np\.load\(", text) or "allow_pickle=False" in text, (path.name, text)
                assert "shell=True" not in text, (path.name, text)


def test_every_chapter_is_in_the_table_of_contents():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    listed = {chapter["file"] for part in toc["parts"] for chapter in part["chapters"]}
    pages = [*NOTEBOOKS, *(ROOT / "chapters").glob("*.md")]
    stored = {path.relative_to(ROOT).with_suffix("").as_posix() for path in pages}
    assert listed | {toc["root"]} == stored


def test_top_level_holds_nothing_else():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        pytest.skip("not a git clone")
    assert {path.split("/")[0] for path in result.stdout.splitlines()} <= TOP_LEVEL


def test_readme_opens_with_the_two_commands():
    commands = re.findall(r"^    make (\w+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.M)
    assert commands == ["book", "test"]


def test_readme_quotes_the_measured_headline():
    found = re.search(r"a test compares it -->\n(.*?)<!-- end", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    assert " ".join(found[1].split()) == pages.headline(pages.measured()).data


class Requests(HTMLParser):
    """Addresses a browser fetches on its own when it opens a page; links to click are not among them."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        fetched = ("src", "href", "poster", "data") if tag != "a" else ()
        if tag == "link" and not {"stylesheet", "icon", "preload", "modulepreload", "prefetch"} & set(
            (attrs.get("rel") or "").split()
        ):
            return
        self.found += [attrs[name] for name in fetched if attrs.get(name)]

    def handle_data(self, data):
        if self.lasttag == "style":
            self.found += re.findall(r"url\([\"']?([^\"')]+)", data)
        elif self.lasttag == "script":
            self.found += re.findall(r"\b(?:import|from)\s*\(?\s*[\"']([^\"']+)", data)


@pytest.mark.skipif(not SITE.is_dir(), reason="the book is not built (make book)")
def test_site_requests_nothing_from_another_host():
    elsewhere = set()
    for page in SITE.rglob("*.html"):
        parser = Requests()
        parser.feed(page.read_text(encoding="utf-8"))
        elsewhere |= {(page.name, address) for address in parser.found if urlsplit(address).netloc}
    for sheet in SITE.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        addresses = re.findall(r"(?:url\(|@import\s+)[\"']?([^\"');\s]+)", text)
        elsewhere |= {(sheet.name, address) for address in addresses if urlsplit(address).netloc}
    assert not elsewhere


@pytest.mark.slow
def test_printed_site_keeps_figures_links_and_solutions(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "chapters")
    from make_pdf import print_site

    picture = (ROOT / "benchmarks" / "results" / "cpu-2-cores.png").read_bytes()
    (tmp_path / "picture.png").write_bytes(picture)
    (tmp_path / "one.html").write_text(
        "<title>1</title><h1>First</h1><a href=two.html#answer>over</a> <a href=https://example.org>out</a>"
        "<div class='toggle-hidden'><button class='toggle-button'></button><img src=picture.png alt=''></div>"
        "<style>.toggle-hidden { height: 0; overflow: hidden } .toggle-hidden.open { height: auto }</style>"
        "<script>for (const b of document.querySelectorAll('button'))"
        "b.onclick = () => b.parentElement.classList.add('open')</script>"
    )
    (tmp_path / "two.html").write_text(
        "<title>2</title><h1>Second</h1><a href=#answer>down</a><p style='height: 3000px'></p><p id=answer>42</p>"
    )
    print_site(tmp_path, ["one", "two"], tmp_path / "book.pdf")
    book = PdfReader(tmp_path / "book.pdf")
    assert [entry["/Title"] for entry in book.outline if not isinstance(entry, list)] == ["First", "Second"]
    assert len(book.pages[0].images) == 1
    links = [a.get_object() for page in book.pages for a in page.get("/Annots", ())]
    targets = [
        link["/A"]["/URI"] if "/A" in link else book.get_page_number(link["/Dest"][0].get_object()) for link in links
    ]
    last = len(book.pages) - 1
    assert last >= 2
    assert targets == [last, "https://example.org/", last]
    assert "42" in book.pages[last].extract_text()
