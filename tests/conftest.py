import json
import signal
import warnings
from pathlib import Path

import pytest
import torch

from spinwave import SpinWaveParameters

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
