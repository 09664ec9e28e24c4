"""Run every chapter by itself, from an empty folder.

python benchmarks/chapters.py            times all and writes benchmarks/results/chapters.json, which the pages read
python benchmarks/chapters.py NAME ...   the chapters of those names only, and writes nothing
... --wheel                              with the package from a wheel instead of the checkout, and writes nothing

Results have one entry for each kind of device.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import venv
from pathlib import Path

import nbformat
import psutil
from nbclient import NotebookClient

import spinwave
from spinwave.training import choose_device, environment

ROOT = Path(__file__).parents[1]
FILE = ROOT / "benchmarks" / "results" / "chapters.json"
CELL_LIMIT = 600  # seconds, as in the book's build


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="file names of chapters without their ending (all)")
    parser.add_argument("--wheel", action="store_true", help="build and install a wheel first")
    options = parser.parse_args()
    every = sorted(path.stem for path in (ROOT / "chapters").glob("*.ipynb"))
    unknown = set(options.names) - set(every)
    if unknown:
        parser.error(f"no such chapter: {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    names = options.names or every
    if options.wheel:
        with tempfile.TemporaryDirectory() as folder:
            python = install_wheel(Path(folder))
            elsewhere = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            subprocess.run([python, __file__, *names], check=True, cwd=folder, env=elsewhere)
        return

    surroundings = environment(choose_device())
    print(f"spinwave from {Path(spinwave.__file__).parent}, Python {surroundings['python']}, {surroundings['torch']}")
    seconds, memory = {}, {}
    for name in names:
        seconds[name], memory[name] = run(ROOT / "chapters" / f"{name}.ipynb")
        print(f"{name}: {seconds[name]} s, {memory[name] / 1e9:.2f} GB", flush=True)
    if not options.names:
        runs = json.loads(FILE.read_text()) if FILE.exists() else []
        others = [run for run in runs if run["environment"]["device"] != surroundings["device"]]
        entry = {"environment": surroundings, "seconds": seconds, "memory": memory}
        FILE.write_text(json.dumps([*others, entry], indent=1) + "\n")


def run(path: Path) -> tuple[float, int]:
    """Seconds, and resident bytes of the kernel with all that it starts, at most, looked at twenty times a second."""
    notebook = nbformat.read(path, as_version=4)
    done, peak = threading.Event(), 0

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.05):
            used = 0
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    used += process.memory_info().rss
            peak = max(peak, used)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            NotebookClient(notebook, timeout=CELL_LIMIT, resources={"metadata": {"path": folder}}).execute()
            seconds = time.perf_counter() - begin
    finally:
        done.set()
        watcher.join()
    return round(seconds, 1), peak


def install_wheel(folder: Path) -> Path:
    """A new environment with the package from a wheel, and with this environment's other packages; its Python."""
    source = folder / "source"  # a build leaves files beside what it builds
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "_build", "build", "runs", "*.egg-info"))
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, source], check=True)
    (wheel,) = folder.glob("spinwave-*.whl")
    venv.create(folder / "venv", symlinks=os.name != "nt")
    places = sysconfig.get_paths(vars={"base": str(folder / "venv"), "platbase": str(folder / "venv")})
    site = Path(places["purelib"])
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    # Only a path: what the .pth files of that folder do, an editable installation among them, does not happen here.
    (site / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return Path(places["scripts"]) / ("python.exe" if os.name == "nt" else "python")


if __name__ == "__main__":
    sys.exit(main())
