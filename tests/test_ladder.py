import inspect
import math

import pytest
import torch

from spinwave import SpinWaveParameters, effective_weights
from spinwave.ladder import RUNGS

GRID_RUNGS = [name for name in RUNGS if name != "continuum"]


def test_the_rungs_in_order():
    assert list(RUNGS) == [
        "looped", "neurons", "batched", "real", "toeplitz", "effective", "separable", "continuum",
    ]  # fmt: skip
    for rung in RUNGS.values():
        assert list(inspect.signature(rung).parameters) == ["x", "w", "parameters"]


@pytest.mark.parametrize("rung", GRID_RUNGS)
def test_grid_rungs_give_the_oracles_outputs_and_gradients(rung, case):
    if rung in ("looped", "neurons") and case.modes > 30:
        pytest.skip("too slow for every run; the other rungs take this case")
    x, w = case.x[None].requires_grad_(), case.w[None].requires_grad_()
    output = RUNGS[rung](x, w, case.physics)
    output.backward()
    h = effective_weights(case.w, case.physics, "discretized")
    assert output.shape == (1, 1)
    assert abs(output.item() - case.output) < 1e-10 * h.abs().max()
    assert (w.grad[0] - case.gradient_w).abs().max() < 1e-9 * case.gradient_w.abs().max()
    assert (x.grad[0] - h).abs().max() < 1e-9 * h.abs().max()


def test_last_rung_gives_the_oracles_limit(case):
    h = effective_weights(case.w, case.physics)
    output = RUNGS["continuum"](case.x[None], case.w[None], case.physics)
    assert abs(output.item() - case.continuum_output) < 1e-10 * h.abs().max()


@pytest.mark.parametrize("rung", GRID_RUNGS)
@pytest.mark.parametrize(("batch", "neurons", "modes", "coupling"), [(1, 1, 1, 5.0), (1, 3, 4, 0.1), (3, 2, 5, 12.0)])
def test_grid_rungs_agree_on_random_shapes(rung, batch, neurons, modes, coupling):
    generator = torch.Generator().manual_seed(batch + 10 * neurons + 100 * modes)
    physics = SpinWaveParameters(coupling_total=coupling, readout_coupling=2.0, points=16, detuning=-9000.0)
    x = torch.randn(batch, modes, generator=generator, dtype=torch.float64).requires_grad_()
    w = torch.randn(neurons, modes, generator=generator, dtype=torch.float64).requires_grad_()
    results = []
    for name in (rung, "looped"):
        output = RUNGS[name](x, w, physics)
        assert output.shape == (batch, neurons)
        results.append((output.detach(), *torch.autograd.grad(output.sin().sum(), (x, w))))
    for found, expected, limit in zip(*results, (1e-10, 1e-9, 1e-9), strict=True):
        assert (found - expected).abs().max() < limit * expected.abs().max()


@pytest.mark.parametrize("rung", RUNGS.values(), ids=RUNGS)
@pytest.mark.parametrize("modes", [3, 5])
def test_no_rung_takes_more_or_fewer_probe_amplitudes_than_controls(rung, modes):
    with pytest.raises((ValueError, RuntimeError), match=r"zip\(\) argument|cannot be multiplied"):
        rung(torch.ones(2, modes), torch.ones(3, 4), SpinWaveParameters(points=6))


def test_last_two_rungs_meet_at_second_order_for_a_sharp_step():
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(4, 10, generator=generator, dtype=torch.float64) for _ in range(2))
    errors = []
    for points in (40, 80, 160):
        physics = SpinWaveParameters(coupling_total=8, readout_coupling=1.5, points=points, steepness=math.inf)
        difference = RUNGS["separable"](x, w, physics) - RUNGS["continuum"](x, w, physics)
        errors.append(difference.abs().max().item())
    assert 1.9 < math.log2(errors[0] / errors[1]) < 2.1
    assert 1.9 < math.log2(errors[1] / errors[2]) < 2.1


@pytest.mark.parametrize("rung", RUNGS)
def test_float32_stays_float32_and_close(rung):
    generator = torch.Generator().manual_seed(0)
    physics = SpinWaveParameters(coupling_total=3, points=20)
    x, w = (torch.randn(2, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    exact = RUNGS[rung](x, w, physics)
    single = RUNGS[rung](x.float(), w.float(), physics)
    assert single.dtype == torch.float32
    assert (single - exact).abs().max() < 1e-5 * exact.abs().max()
