"""Run every chapter by itself and record how long it takes: python benchmarks/chapters.py

Writes benchmarks/results/chapters.json, one entry for each kind of device, which the cards of the chapters read.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from spinwave.training import choose_device, environment

ROOT = Path(__file__).parents[1]
FILE = ROOT / "benchmarks" / "results" / "chapters.json"


def main() -> None:
    surroundings = environment(choose_device())
    runs = json.loads(FILE.read_text()) if FILE.exists() else []
    seconds = {}
    for path in sorted((ROOT / "chapters").glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:  # an empty one, as a reader who downloaded the notebook has
            begin = time.perf_counter()
            NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()
            seconds[path.stem] = round(time.perf_counter() - begin, 1)
        print(f"{path.stem}: {seconds[path.stem]} s", flush=True)
    others = [run for run in runs if run["environment"]["device"] != surroundings["device"]]
    FILE.write_text(json.dumps([*others, {"environment": surroundings, "seconds": seconds}], indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
