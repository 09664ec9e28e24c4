import functools
import json
import shutil
import signal
import threading
import warnings
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from playwright.sync_api import sync_playwright

from spinwave import SpinWaveParameters

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
)

# The tensors of tests are small, and threads that wait for each other on a busy machine cost a hundredfold.
torch.set_num_threads(1)

# A shell starts background jobs with SIGINT ignored, and with it everything that they start: Ctrl-C tests would hang.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Case:
    """One oracle case: inputs and what the question's code, exact arithmetic and the continuum make of them."""

    def __init__(self, facts):
        self.facts = facts
        self.physics = SpinWaveParameters(
            coupling_total=facts["coupling_total"],
            readout_coupling=facts["readout_coupling"],
            points=facts["points"],
        )

    def __getattr__(self, name):
        value = self.facts[name]
        return torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value


CASES = [Case(facts) for facts in json.loads((Path(__file__).parent / "oracle.json").read_text())["cases"]]


@pytest.fixture(params=CASES, ids=lambda case: f"{case.modes}-modes-{case.points}-points-C{case.coupling_total}")
def case(request):
    return request.param


@pytest.fixture
def compile_whole():
    """torch.compile that fails on a graph break, with the warnings of torch's own compiler left out."""
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield lambda function: torch.compile(function, fullgraph=True)


def serve(folder):
    """A server of the folder's files, in a thread."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture(scope="module")
def browser():
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.fail("this is tested in Chromium, and this machine has none: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()
