"""What is installed where there is no checkout: the files of wheel and source distribution, and chapters that run."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.slow


def build(kind, source, out):
    hook = f"from setuptools import build_meta; build_meta.build_{kind}({str(out)!r})"
    subprocess.run([sys.executable, "-c", hook], cwd=source, check=True, capture_output=True)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """Names of all files in a source distribution and in the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("distributions")
    left_out = shutil.ignore_patterns(".*", "_build", "build", "runs", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, folder / "source", ignore=left_out)
    build("sdist", folder / "source", folder)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as sdist:
        names = {member.name.partition("/")[2] for member in sdist if member.isfile()}
        sdist.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    build("wheel", unpacked, folder)
    (archive,) = folder.glob("*.whl")
    with zipfile.ZipFile(archive) as wheel:
        return names, {name for name in wheel.namelist() if not name.endswith("/")}


def package():
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "spinwave").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def results():
    return {path.name for path in (ROOT / "benchmarks" / "results").glob("*.json")}


def test_wheel_holds_package_results_and_licences_and_nothing_else(distributions):
    _, wheel = distributions
    described = {name for name in wheel if ".dist-info/" in name}
    assert wheel - described == package() | {f"spinwave/results/{name}" for name in results()}
    assert {"spinwave/digits/mnist10.npz", "spinwave/static/physics.js", "spinwave/py.typed"} <= wheel
    assert {name.partition("/")[2] for name in described} == {
        *("METADATA", "WHEEL", "RECORD", "top_level.txt"),
        *("licenses/LICENSE", "licenses/spinwave/digits/LICENSE"),
    }


def test_source_distribution_holds_what_the_wheel_is_made_of_and_nothing_else(distributions):
    sdist, _ = distributions
    made = {name for name in sdist if name in ("PKG-INFO", "setup.cfg") or name.startswith("spinwave.egg-info/")}
    kept = {"LICENSE", "MANIFEST.in", "README.md", "pyproject.toml"}
    assert sdist - made == package() | kept | {f"benchmarks/results/{name}" for name in results()}


def test_chapters_run_with_the_wheel_from_an_empty_folder():
    """Two quick ones, one with interactive figures; `python benchmarks/chapters.py --wheel` takes all."""
    script = ROOT / "benchmarks" / "chapters.py"
    done = subprocess.run(
        [sys.executable, script, "--wheel", "08_closed_form", "10_physics_playground"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    place, *lines = done.stdout.splitlines()
    assert place.startswith("spinwave from ")
    assert str(ROOT) not in place
    assert [line.partition(":")[0] for line in lines] == ["08_closed_form", "10_physics_playground"]
