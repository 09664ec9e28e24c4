"""What holds for every neuron, whatever its physics: drawn at random, the same cases at every run."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spinwave import SpinWaveParameters, effective, effective_weights, neuron
from spinwave.bessel import clifford
from spinwave.effective import MODELS
from spinwave.ladder import RUNGS

repeatable = settings(derandomize=True, deadline=None, database=None, max_examples=15)


def amplitudes(*shape):
    """Tensors of that shape with entries from -1 to 1, zero and the ends among them, in steps of 1/1024."""
    entries = st.integers(-1024, 1024)
    return st.lists(entries, min_size=math.prod(shape), max_size=math.prod(shape)).map(
        lambda values: torch.tensor(values, dtype=torch.float64).view(shape) / 1024
    )


@st.composite
def neurons(draw, most_modes=6, strongest=5.0, **fixed):
    """Weights ``(neurons, modes)`` and the physics; couplings per mode from 1e-4 of the strongest up to it."""
    count, modes = draw(st.integers(1, 3)), draw(st.integers(1, most_modes))
    w = draw(amplitudes(count, modes))
    coupling = strongest * 10 ** draw(st.floats(-4, 0))
    physics = {
        "coupling_total": coupling * modes,
        "readout_coupling": 10 ** draw(st.floats(-1, 1)),
        "points": draw(st.integers(2, 12)),
        "steepness": draw(st.sampled_from([5.0, 50.0, math.inf])),
        "detuning": draw(st.floats(-20_000, 20_000)),
    }
    return w, SpinWaveParameters(**physics | fixed)


@st.composite
def layers(draw):
    """A batch, the weights of a layer and the physics, small enough for every rung."""
    w, physics = draw(neurons(most_modes=4))
    return draw(amplitudes(draw(st.integers(1, 3)), w.shape[1])), w, physics


def assert_close(found, expected, limit, scale):
    """``limit`` is relative to ``scale``, a tensor's largest entry; where that is zero both must vanish."""
    assert (found - expected).abs().max() <= limit * scale.abs().max()


def undisturbed(w, physics):
    """Largest effective weight without Stark phases and partial read-outs: its precision is kept where it cancels."""
    readout = physics.readout_coupling
    kept = (1 - clifford(0, torch.tensor(readout**2, dtype=torch.float64))) / readout
    return (w.abs().max() * physics.mode_coupling(w.shape[-1]) * kept).view(1)


every_rung = pytest.mark.parametrize("rung", RUNGS.values(), ids=RUNGS)
both_models = pytest.mark.parametrize("model", MODELS)


# ---- every rung of the ladder


@every_rung
@given(layers(), st.floats(-3, 3))
@repeatable
def test_output_is_linear_in_the_probe(rung, layer, factor):
    x, w, physics = layer
    other = x.flip(0, 1)
    # outputs cancel, the effective weights that they are made of do not
    scale = (1 + abs(factor)) * rung(torch.eye(x.shape[1], dtype=x.dtype), w, physics)
    combined = rung(x, w, physics) + factor * rung(other, w, physics)
    assert_close(rung(x + factor * other, w, physics), combined, 1e-12, scale)


@every_rung
@given(layers())
@repeatable
def test_output_is_odd_in_the_control(rung, layer):
    x, w, physics = layer
    assert torch.equal(rung(x, -w, physics), -rung(x, w, physics))


@every_rung
@given(layers(), st.randoms(use_true_random=False))
@repeatable
def test_neurons_and_digits_may_come_in_any_order(rung, layer, random):
    x, w, physics = layer
    y = rung(x, w, physics)
    digits, rows = (random.sample(range(size), size) for size in y.shape)
    assert_close(rung(x[digits], w[rows], physics), y[digits][:, rows], 1e-13, y)


@every_rung
@given(layers())
@repeatable
def test_a_digit_and_a_neuron_alone_give_what_they_give_in_company(rung, layer):
    """The strongest neuron chooses how all are evaluated: alone, the weak ones take other ways."""
    x, w, physics = layer
    alone = torch.cat([torch.cat([rung(x_s[None], w_k[None], physics) for w_k in w], 1) for x_s in x])
    H = rung(torch.eye(x.shape[1], dtype=x.dtype), w, physics)
    assert_close(rung(x, w, physics), alone, 1e-11, H)


# ---- effective weights


@both_models
@given(neurons())
@repeatable
def test_a_mode_sees_later_modes_only(model, case):
    """Without its first mode a neuron keeps the effective weights of the others."""
    w, physics = case
    w = torch.cat([w[:, :1], w], 1)
    modes = w.shape[1]
    shorter = replace(physics, coupling_total=physics.mode_coupling(modes) * (modes - 1))
    h = effective_weights(w, physics, model)
    assert_close(effective_weights(w[:, 1:], shorter, model), h[:, 1:], 1e-11, h)


@given(neurons(), st.data())
@repeatable
def test_later_modes_count_by_the_sum_of_their_squares(case, data):
    """Closed form: one mode of the same energy can stand for all that come after."""
    w, physics = case
    modes = w.shape[1]
    i = data.draw(st.integers(0, modes - 1))
    merged = torch.stack([w[:, i], w[:, i + 1 :].square().sum(-1).sqrt()], 1)
    two = replace(physics, coupling_total=physics.mode_coupling(modes) * 2)
    h = effective_weights(w, physics)
    assert_close(effective_weights(merged, two)[:, 0], h[:, i], 1e-10, h)


@both_models
@given(neurons(), st.integers(-12, 12))
@repeatable
def test_total_coupling_and_scale_of_the_weights_are_one_parameter(model, case, power):
    w, physics = case
    scaled = replace(physics, coupling_total=physics.coupling_total * 2.0**-power)
    h = effective_weights(w, physics, model)
    assert_close(effective_weights(w * 2.0**power, scaled, model), h, 1e-13, h)


@both_models
@given(neurons())
@repeatable
def test_the_sign_of_the_detuning_never_reaches_the_output(model, case):
    w, physics = case
    mirrored = replace(physics, detuning=-physics.detuning)
    h = effective_weights(w, physics, model)
    assert_close(effective_weights(w, mirrored, model), h, 1e-14, h)


@both_models
@given(neurons(), amplitudes(6))
@repeatable
def test_a_neuron_is_the_dot_product_with_its_effective_weights(model, case, probe):
    w, physics = case
    x = probe[: w.shape[1]]
    h = effective_weights(w, physics, model)
    assert_close(neuron(x, w, physics, model), h @ x, 1e-13, h)


# ---- ways of evaluation


def assert_is_as_without_a_look(w, physics, model):
    """Without a look there are no short ways for weak couplings: H and slopes must be the same."""
    limit, slope_limit = (1e-5, 1e-4) if w.dtype == torch.float32 else (1e-10, 1e-9)
    exact = w.double()
    h = effective_weights(w.requires_grad_(), physics, model)
    h_exact = effective.compute(exact.requires_grad_(), physics, model, look=False)
    assert_close(h, h_exact, limit, torch.cat([h_exact.flatten(), undisturbed(exact.detach(), physics)]))
    (slope,) = torch.autograd.grad(h.sum(), w)
    (slope_exact,) = torch.autograd.grad(h_exact.sum(), exact)
    assert_close(slope, slope_exact, slope_limit, slope_exact)


@both_models
@given(neurons(), st.sampled_from([torch.float32, torch.float64]))
@repeatable
def test_weights_give_the_same_unseen(model, case, dtype):
    w, physics = case
    assert_is_as_without_a_look(w.to(dtype), physics, model)


# Sums of squared couplings at which the closed form is evaluated another way, or where the tables are others. Just
# below, just above and further up.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("switch", ["short series", 64.0, 256.0])
@given(amplitudes(1, 48), st.floats(0.1, 10), st.floats(-20_000, 20_000), st.sampled_from([1 - 1e-6, 1 + 1e-6, 2]))
@repeatable
def test_closed_form_is_as_good_on_either_side_of_a_switch(switch, dtype, w, readout, detuning, factor):
    physics = SpinWaveParameters(48, readout, detuning=detuning)  # a = w
    if switch == "short series":
        _, switch, _ = effective._near_zero(physics, 48, dtype)
    w = 1 + w / 2
    w[:, ::3] *= -1
    w *= (factor * switch / w.square().sum()).sqrt()
    assert_is_as_without_a_look(w.to(dtype), physics, "continuum")
