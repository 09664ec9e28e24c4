import dataclasses
import math

import numpy as np
import pytest
import torch

from spinwave import SpinWaveParameters


def test_defaults_are_the_question():
    p = SpinWaveParameters()
    assert dataclasses.astuple(p) == (0.1, 10.0, 100, 50.0, 6000.0, 10000.0)
    assert p.stark_phase == 0.6
    assert p.mode_coupling(100) == pytest.approx(1e-3)


def test_equal_values_are_equal_and_hash_alike():
    numpy_made = SpinWaveParameters(coupling_total=np.float64(3), points=np.int64(20))
    assert numpy_made == SpinWaveParameters(coupling_total=3, points=20)
    assert hash(numpy_made) == hash(SpinWaveParameters(coupling_total=3, points=20))


def test_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SpinWaveParameters().points = 3


def test_a_sharp_step_is_allowed():
    assert SpinWaveParameters(steepness=math.inf).steepness == math.inf


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("coupling_total", -0.1, "coupling_total must be positive and finite, got -0.1"),
        ("coupling_total", 0, "positive and finite, got 0.0"),
        ("coupling_total", math.nan, "got nan"),
        ("readout_coupling", math.inf, "readout_coupling must be positive and finite, got inf"),
        ("optical_depth", 0, "optical_depth must be positive"),
        ("steepness", -1, "steepness must be positive, got -1"),
        ("steepness", math.nan, "steepness must be positive, got nan"),
        ("detuning", math.inf, "detuning must be finite"),
        ("detuning", "far", "detuning must be a number, got 'far'"),
        ("points", 1, "points must be an integer >= 2, got 1"),
        ("points", 20.0, "points must be an integer >= 2, got 20.0"),
        ("points", True, "points must be an integer >= 2, got True"),
        ("points", 2**63, "points must be an integer of 64 bits, got 9223372036854775808"),
        ("points", torch.ones((), dtype=torch.int64, device="meta"), "points must be an integer >= 2"),
        ("coupling_total", None, "coupling_total must be a number, got None"),
        ("coupling_total", "0.1", "coupling_total must be a number, got '0.1'"),
        ("coupling_total", 10**400, "coupling_total must be a number, got 1000"),
        ("coupling_total", 1e-200, "coupling_total must be from 1e-100 to 1e100, got 1e-200"),
        ("readout_coupling", 1e200, "readout_coupling must be from 1e-100 to 1e100"),
        ("detuning", 1e90, "detuning over optical_depth must be at most 1e60, got 1e"),
        ("coupling_total", torch.nn.Parameter(torch.ones(())), "cannot be learned: scale the weights"),
        ("coupling_total", torch.ones((), device="meta"), "coupling_total must be a number"),
    ],
)
def test_values_outside_their_range_are_named(field, value, message):
    with pytest.raises(ValueError, match=message):
        SpinWaveParameters(**{field: value})
