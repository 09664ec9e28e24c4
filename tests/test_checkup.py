"""The check-up: what it says of neurons whose faults are known, and that it says nothing of sound ones."""

import _thread
import copy
import json
import math
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
import time
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.special import bessel_j0, bessel_j1

import spinwave.__main__ as cli
from spinwave import CheckupReport, Finding, SpinWaveParameters, checkup, neuron
from spinwave.checkup import CURES, TOPICS, _answer, _exponent, _jump, _slope
from spinwave.watch import Meter, Trace, within

ROOT = Path(__file__).parent.parent
UNTIMED = [topic for topic in TOPICS if topic != "cost"]  # what does not depend on how busy the machine is
IC = 1e-9 * math.sqrt(3.14 / (8 * math.log(2))) * 2 * 3.14 * 3e6
NP = (8 * math.log(2) / ((1e-9 * 2 * 3.14 * 3e6) ** 2 * math.pi)) ** (1 / 4)


@pytest.fixture(autouse=True)
def patience():
    """What hangs ends the run, with a traceback."""
    timer = threading.Timer(150, _thread.interrupt_main)
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()


def question(x, w, coupling_total=0.1, points=16):
    """The loop as the question wrote it: complex spin wave, torch's own Bessel functions, default dtype and device."""
    z = torch.linspace(1e-10, 1 - 1e-10, points)
    q = torch.full((points,), 1 / (points - 1))
    q[0] /= 2
    q[-1] /= 2
    distance = z[:, None] - z
    root = torch.sqrt(torch.clamp(distance, min=1e-10))
    B = torch.zeros(points) + 0j
    for i in range(len(w)):
        a = w[i] * coupling_total / len(w)
        phase = torch.exp(-0.6j * a**2 * z)
        g = math.sqrt(IC) * NP * ((a * bessel_j0(2 * a * torch.sqrt(torch.outer(z, 1 - z))) * phase) @ (q + 0j))
        M = a * torch.sigmoid(50 * distance) * bessel_j1(2 * a * root) / root * q
        B = B + x[i] * g - M.to(B.dtype) @ B
    R = 1 / coupling_total
    row = q * (R * bessel_j0(2 * R * torch.sqrt(torch.outer(1 - z, z))) @ q)
    return row @ B.real


def tanh_of_dot(x, w):
    return torch.tanh((x * w).sum() / len(x) ** 0.5)


def oscillators(x, w):
    u, v = torch.zeros_like(x), torch.zeros_like(x)
    for step in range(30):
        neighbours = F.pad(u[1:], (0, 1)) + F.pad(u[:-1], (1, 0))
        v = v + 0.1 * (neighbours - 2 * u - w.exp() * u - 0.2 * v + x * math.sin(0.15 * step))
        u = u + 0.1 * v
    return u[-1]


def mesh(x, w):
    light, k = list((x + 0j).unbind()), 0
    for column in range(len(x)):
        for top in range(column % 2, len(x) - 1, 2):
            theta, phi = w[k % len(w)], w[(k + 1) % len(w)]
            k += 2
            s, c = (theta / 2).sin(), (theta / 2).cos()
            common, turned = 1j * torch.exp(0.5j * theta), torch.exp(1j * phi) * light[top]
            light[top], light[top + 1] = (
                common * (s * turned + c * light[top + 1]),
                common * (c * turned - s * light[top + 1]),
            )
    return light[0].abs().square()


def spikes(x, w):
    v, count = x.new_zeros(()), x.new_zeros(())
    for x_i, w_i in zip(x, w, strict=True):
        v = 0.9 * v + x_i * w_i
        spike = (v > 0.5).to(v)
        v = v * (1 - spike)
        count = count + spike
    return count


def potential(x, w):
    v = x.new_zeros(())
    for x_i, w_i in zip(x, w, strict=True):
        v = 0.9 * v + x_i * w_i
        v = torch.where(v > 0.5, torch.zeros_like(v), v)
    return v


class Surrogate(torch.autograd.Function):
    @staticmethod
    def forward(v):
        return (v > 0).to(v)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad):
        return grad / (1 + ctx.saved_tensors[0].abs()) ** 2


def surrogate(x, w):
    return Surrogate.apply(torch.tanh(x * w) - 0.2).sum()


class HandWritten(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return v.sin()

    @staticmethod
    def backward(ctx, grad):
        return 0.9 * grad * ctx.saved_tensors[0].cos()


def slightly_wrong(x, w):
    return HandWritten.apply(x * w).sum()


def kuramoto(x, w):
    phase = torch.zeros_like(x)
    for _ in range(30):
        phase = phase + 0.05 * (x + w * (phase - phase[:, None]).sin().mean(1))
    return torch.hypot(phase.sin().mean(), phase.cos().mean())


def convolution(x, w):
    filtered = torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(w), n=len(x))
    return torch.tanh(filtered / len(x) ** 0.5).square().mean()


def reads_item(x, w):
    return torch.tanh((x * w).sum() / w.norm().item())


def numpy_inside(x, w):
    return torch.as_tensor(np.tanh(x.detach().numpy() @ w.detach().numpy() / len(x) ** 0.5))


def numpy_of_leaf(x, w):
    return torch.as_tensor(np.tanh(x.numpy() @ w.numpy() / len(x) ** 0.5))


def detaches(x, w):
    return (x * w.cos().detach() * w).sum() / len(x) ** 0.5


def switched_off(x, w):
    with torch.no_grad():
        kernel = w.sin()
    return (x * kernel * w).sum() / len(x) ** 0.5


def mutates_x(x, w):
    x -= x.mean()
    return tanh_of_dot(x, w)


def mutates_w(x, w):
    w.div_(w.norm())
    return (x * w).sum().tanh()


def noisy(x, w):
    return tanh_of_dot(x + 0.3 * torch.randn_like(x), w)


def overwrites(x, w):
    y = (x * w / len(x)).exp()
    z = y.square()
    y.add_(1)
    return z.sum().tanh()


def roots(x, w):
    return (x * w).abs().sqrt().sum() / len(x)


def branches(x, w):
    s = (x * w).sum() / len(x) ** 0.5
    return s if s > 0 else 0.1 * s


def single_inside(x, w):
    kernel = torch.linspace(0.0, 1.0, len(x), dtype=torch.float32).cos()
    return (x * w * kernel).sum().tanh()


def cancels(x, w):
    return ((x + 1e8) * w).sum() / 4 - (1e8 * w).sum() / 4


def chaos(x, w):
    v = torch.sigmoid((x * w).sum())
    for _ in range(60):
        v = 3.9 * v * (1 - v)
    return v


def affine(x, w):
    return (x * w.sin()).sum() / len(x) ** 0.5 + w.square().mean()


def rectified(x, w):
    return (torch.relu(x) * w).sum() / len(x) ** 0.5


def forgets_x(x, w):
    return w.square().mean()


def numpy_threshold(x, w):
    return torch.as_tensor(float(x.detach().numpy() @ w.detach().numpy() > 0.1))


def saturated(x, w):
    return torch.tanh(1e6 * (x * w).sum())


def clamped(x, w):
    return (x * w).sum().clamp(-1, 1)


def at_rest(x, w):
    return torch.relu((x * w).sum() / len(x) ** 0.5 - 1)  # 0 at most inputs


def bad_margin(x, w):
    return ((x * (1 - 1e-12)).sin() * w).sum() / len(x) ** 0.5


# Every severe finding and warning that a neuron deserves, and no other; then notes it must have, by their beginning.
NO_GRADIENT = {"severe: no gradient reaches w", "severe: no gradient reaches x"}
STEPS = {"severe: piecewise constant in w", "severe: piecewise constant in x"}
RAISES = {"severe: no gradient of w: f raises", "severe: no gradient of x: f raises"}
NEURONS = {
    tanh_of_dot: (set(), ["invariant under permutation of x and w together"]),
    oscillators: (set(), ["linear in x"]),
    mesh: (set(), ["quadratic in x"]),
    spikes: (STEPS, []),
    potential: ({"warning: jumps in w", "warning: jumps in x"}, []),
    surrogate: (
        {f"warning: piecewise constant in {name}, trained by a surrogate gradient" for name in "xw"},
        [],
    ),
    slightly_wrong: (
        {"severe: gradient of w is wrong", "severe: gradient of x is wrong"},
        ["separable over modes", "does not work under torch.func.vmap over x and w"],
    ),
    kuramoto: (set(), ["invariant under permutation of x and w together"]),
    convolution: (set(), []),
    reads_item: (
        {"severe: gradient of w is wrong"},
        ["does not work under torch.func.vmap over w", "torch.compile breaks the graph", "undecided on"],
    ),
    numpy_inside: (NO_GRADIENT, ["does not work under torch.func.vmap over x and w"]),
    numpy_of_leaf: (RAISES, ["does not work under torch.func.vmap over x and w"]),
    detaches: ({"severe: gradient of w is wrong"}, ["linear in x", "separable over modes"]),
    switched_off: ({"severe: gradient of w is wrong"}, ["linear in x", "separable over modes"]),
    mutates_x: ({"severe: f changes its argument x"}, []),
    mutates_w: (
        {"severe: f changes its argument w", "severe: no gradient of w: an in-place operator breaks it"},
        [],
    ),
    noisy: (set(), ["f is stochastic"]),
    overwrites: ({f"severe: no gradient of {name}: an in-place operator breaks it" for name in "xw"}, []),
    roots: (
        {
            "severe: NaN or infinite where every other entry of x is 0",
            "warning: NaN or infinite where x is 0",
            "warning: NaN or infinite where every other entry of w is 0",
        },
        ["separable over modes"],
    ),
    branches: (set(), ["does not work under torch.func.vmap", "torch.compile breaks the graph"]),
    single_inside: ({"warning: float64 in, single precision inside", "warning: does not run on cuda"}, []),
    cancels: ({"warning: float32 is not enough", "warning: silent"}, []),
    chaos: ({"warning: float32 is not enough"}, ["gradient of w undecided", "gradient of x undecided"]),
    affine: (set(), ["affine in x"]),
    rectified: (set(), ["linear in w", "separable over modes"]),
    forgets_x: ({"warning: output does not depend on x"}, ["quadratic in w"]),
    numpy_threshold: (STEPS, []),
    saturated: ({f"severe: flat in {name} wherever it was tested" for name in "xw"}, []),
    clamped: (set(), []),
    at_rest: (set(), []),
    bad_margin: ({"warning: constants lost in float32"}, ["linear in w", "separable over modes"]),
}


def titles(report, *severities):
    return [finding.title for finding in report.of(*severities)]


def found(report, title):
    """The finding whose title begins like that."""
    (finding,) = [finding for finding in report.findings if finding.title.startswith(title)]
    return finding


def alarms(report):
    wrong = report.of("severe", "warning")
    return {f"{finding.severity}: {finding.title}".removesuffix(" (simulated)") for finding in wrong}


# The others take a minute together.
QUICK = {convolution, detaches, mutates_w, reads_item, roots, single_inside}


@pytest.mark.parametrize(
    "f", [f if f in QUICK else pytest.param(f, marks=pytest.mark.slow) for f in NEURONS], ids=lambda f: f.__name__
)
def test_neurons_get_the_findings_they_deserve_and_no_other(f):
    expected, notes = NEURONS[f]
    report = checkup(f, 12, 12, topics=UNTIMED)
    assert alarms(report) == expected
    for note in notes:
        assert any(title.startswith(note) for title in titles(report, "note")), note
    assert not [title for title in titles(report, "note") if "not measured to the end" in title]
    structure = [title for title in titles(report, "note") if title.startswith(("linear", "affine", "quadratic"))]
    assert set(structure) <= set(notes) | {"linear in w"}  # and w is linear only where it is said
    assert ("linear in w" in structure) == ("linear in w" in notes)


# ---- the question's loop, and the package's neuron


@pytest.fixture(scope="module")
def asked():
    return checkup(question, 12, 12)


@pytest.mark.slow
def test_question_every_fault_that_is_visible_from_outside(asked):
    wrong = found(asked, "gradient of w is wrong")
    assert wrong.severity == "severe"
    assert "torch.special.bessel_j0 (test_checkup.py:" in wrong.measured
    assert "torch.special.bessel_j1 (test_checkup.py:" in wrong.measured
    assert re.search(r"\d% at 100 w", wrong.measured)  # harmless here, and not at strong coupling
    assert "A function without a gradient" in wrong.cure

    assert "0.9999999999 becomes 1.0 in torch.linspace" in found(asked, "constants lost").measured
    accuracy = found(asked, "torch.special.bessel_j0 is no float64 function")
    error = float(re.search(r"wrong by up to (\S+)", accuracy.measured)[1])
    assert 1e-8 < error < 1e-6
    assert "first step" in found(asked, "too quiet to learn").measured
    assert "gain 1/rms" in found(asked, "too quiet to learn").measured
    assert found(asked, "linear in x").severity == "note"
    assert found(asked, "nearly linear in w (residual").severity == "note"
    real = found(asked, "only the real part of the state reaches the output")
    assert real.severity == "note"
    loop = found(asked, "a Python loop over modes")
    assert 0.8 < float(re.search(r"modes\^(\S+):", loop.measured)[1]) < 1.1
    assert "60,000 samples" in next(f for f in asked.findings if "one epoch of" in f.measured).measured
    device = found(asked, "does not run on")
    assert "torch.linspace" in device.measured
    assert asked.severe


@pytest.mark.slow
def test_question_nothing_else_is_alarming(asked):
    assert {title.split(" ")[0] for title in titles(asked, "severe")} == {"gradient"}
    untimed = {f.title for f in asked.of("warning") if f.topic != "cost"}
    assert {title.removesuffix(" (simulated)") for title in untimed} == {
        "too quiet to learn without a gain",
        "constants lost in float32",
        "torch.special.bessel_j0 is no float64 function",
        "does not run on cuda",
    }


def test_missing_derivative_is_found_where_it_is_large():
    report = checkup(lambda x, w: question(x, w, 10.0), 8, 8, topics=["gradient"])
    off = float(re.search(r"directions: (\S+) off", found(report, "gradient of w is wrong").measured)[1])
    assert off > 0.01
    assert found(report, "gradient of x is right")


@pytest.mark.slow
def test_package_neuron_has_no_fault_but_that_it_is_quiet_and_linear():
    report = checkup(neuron, 100, 100, topics=UNTIMED)
    assert alarms(report) == {"warning: too quiet to learn without a gain"}
    quiet = found(report, "too quiet")
    steps = re.search(r"a first step is (\d+)% and (\d+)%", quiet.measured)
    assert int(steps[1]) < 50  # Adam's eps swallows what reaches the hidden layer
    assert "eps swallows" in quiet.meaning
    gain = float(re.search(r"1/rms = (\S+)", quiet.measured)[1])
    notes = titles(report, "note")
    assert notes[0] == "linear in x"
    assert all(title.startswith("nearly ") for title in notes[1:])
    residual = float(re.search(r"nearly linear in w \(residual (\S+)", notes[1])[1])
    assert 1e-6 < residual < 1e-3

    loud = checkup(lambda x, w: gain * neuron(x, w), 100, 100, topics=UNTIMED)
    assert alarms(loud) == set()
    assert titles(loud, "note") == notes


def test_strong_coupling_is_not_nearly_linear_in_w():
    report = checkup(lambda x, w: question(x, w, 100.0), 8, 8, topics=["structure"])
    assert titles(report, "note") == ["linear in x", "only the real part of the state reaches the output"]
    strong = SpinWaveParameters(coupling_total=100.0)
    report = checkup(lambda x, w: neuron(x, w, strong), 8, 8, topics=["structure"])
    assert titles(report, "note") == ["linear in x"]


@pytest.mark.parametrize("seed", range(4))
def test_a_count_of_spikes_is_not_called_invariant_because_counts_coincide(seed):
    report = checkup(spikes, 12, 12, seed=seed, topics=["structure"])
    assert not [title for title in titles(report, "note") if title.startswith(("invariant", "separable"))]


@pytest.mark.parametrize("seed", range(4))
def test_a_gradient_is_not_called_wrong_because_f_is_noisy(seed):
    report = checkup(cancels, 12, 12, seed=seed, topics=["gradient"])
    assert titles(report, "severe", "warning") == []


def test_a_gradient_is_not_called_wrong_because_steps_agree_by_luck():
    """Far down its tail this is good to six digits, and the differences of three steps once agreed to seven."""
    report = checkup(lambda x, w: torch.nn.functional.gelu((x * w).sum()), 20, 20, seed=7, topics=["gradient"])
    assert titles(report, "severe") == []


def masked_twice(x, w):
    return (torch.relu(x) * w * w.sin().detach()).sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_kink_at_data_that_are_exactly_zero_is_no_wrong_gradient(dtype):
    torch.manual_seed(0)
    image, w = torch.rand(60, dtype=dtype), torch.randn(60, dtype=dtype)
    image[::3] = 0
    report = checkup(lambda x, w: (x.to(dtype).relu() * w).sum(), image, w, topics=["gradient"])
    assert titles(report, "severe", "warning") == []
    assert found(report, "kink in x at the given inputs").severity == "note"
    assert found(report, "gradient of x is right")
    wrong = checkup(masked_twice, image, w, topics=["gradient"])
    assert titles(wrong, "severe") == ["gradient of w is wrong"]
    pruned = checkup(lambda x, w: (x * w.to(dtype).clamp(min=0)).sum(), torch.ones(60), image, topics=["gradient"])
    assert titles(pruned, "severe", "warning") == []


def branch_on_item(x, w):
    s = (x * w).sum()
    return s + 1 if s.item() > 0.1 else s


def branch_on_float(x, w):
    s = (x * w).sum()
    return s - 1 if float(s) < 0.5 else s


def branch_on_numpy(x, w):
    s = (x * w).sum()
    return s + float(s.detach().numpy() > 0.1)


def branch_without_gradients(x, w):
    with torch.no_grad():
        fired = (x * w).sum() > 0.1
    return (x * w).sum() + fired


@pytest.mark.parametrize(
    "f",
    [
        branch_on_item,
        branch_on_float,
        branch_on_numpy,
        branch_without_gradients,
        lambda x, w: (x * w).sum() % (2 * math.pi),
        lambda x, w: torch.remainder((x * w).sum(), 1.0),
        lambda x, w: torch.frac((x * w).sum()),
        lambda x, w: torch.atan2((x * w).sum(), -torch.ones_like(x[0])),
        lambda x, w: torch.angle(-1 + 1j * (x * w).sum()),
    ],
)
def test_jumps_are_found_however_they_come_about(f):
    report = checkup(f, 6, 6, topics=["gradient"])
    assert titles(report, "severe", "warning") == ["jumps in w", "jumps in x"]


def test_what_cannot_be_differentiated_but_is_smooth_is_not_searched_for_jumps():
    calls = []

    def smooth(x, w):
        calls.append(1)
        return (x * bessel_j0(w)).sum()

    checkup(smooth, 6, 6, topics=["gradient"])
    assert len(calls) < 500  # a search takes more


def test_a_slope_that_rounding_hides_is_not_called_flat():
    report = checkup(lambda x, w: 1 - 1e-4 * (x.float() * w.float()).sum() / 12, 12, 12, topics=["gradient"])
    assert titles(report, "severe") == []
    assert not [finding.title for finding in report.findings if "constant" in finding.title]


def large_offset(x, w):
    return 1e14 + tanh_of_dot(x, w)


def raises_below_zero(x, w):
    if (x < 0).any():
        raise ArithmeticError("below zero")
    return (x * w).sum()


@pytest.mark.parametrize("f", [lambda x, w: (x.sqrt() * w).sum(), raises_below_zero])
def test_structure_is_undecided_where_f_gives_no_number(f):
    report = checkup(f, torch.rand(8), 8, topics=["structure"])  # all draws are positive, their differences are not
    assert titles(report, "note")[0] == "dependence on x undecided"
    calls = []

    def first_positive(modes):
        calls.append(1)
        return torch.rand(modes) if len(calls) == 1 else torch.randn(modes)

    report = checkup(f, first_positive, lambda modes: torch.randn(modes), modes=8, topics=["structure"])
    for what in ("dependence on x", "order of the modes", "separability"):
        assert found(report, f"{what} undecided").severity == "note"


def test_structure_is_undecided_where_an_offset_hides_it():
    report = checkup(large_offset, 8, 8, topics=["structure"])
    assert titles(report, "note") == [
        f"{what} undecided" for what in ("dependence on x", "dependence on w", "order of the modes", "separability")
    ]


def test_an_offset_does_not_hide_that_the_order_matters():
    report = checkup(lambda x, w: 1e10 + x[0] * w[1], 8, 8, topics=["structure"])
    assert found(report, "order of the modes matters")


def test_a_steep_exponential_is_measured_to_the_end():
    report = checkup(lambda x, w: torch.exp(60 * (x * w).sum()), 8, 8, topics=["structure"])
    assert not [title for title in titles(report, "note") if "not measured to the end" in title]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_inside_is_no_wrong_gradient(dtype):
    for f in (
        lambda x, w: (x.to(dtype) * w.to(dtype)).sum().tanh(),
        lambda x, w: (x.to(dtype) * w.to(dtype)).sum().tanh().to(x),
    ):
        report = checkup(f, 12, 12, topics=["gradient", "structure", "precision"])
        assert titles(report, "severe", "warning") == ["half precision inside"]
        assert titles(report, "note") == ["gradient undecided", "structure undecided"]
        assert str(dtype).removeprefix("torch.") in found(report, "half precision inside").measured
    exact = checkup(lambda x, w: (x * w * (x > 0).to(dtype)).sum(), 12, 12, topics=["precision"])
    assert titles(exact, "warning", "note") == []


def test_a_draw_of_dropout_that_drops_the_output_is_not_taken_for_f():
    dropped = lambda x, w: F.dropout((x * w).sum().tanh() / len(x) ** 0.5, 0.8)  # noqa: E731
    for seed in range(4):
        report = checkup(dropped, 6, 6, seed=seed, topics=["gradient", "scale"])
        assert titles(report, "severe", "warning") == []
        assert "f is stochastic" in titles(report, "note")


def test_negative_outputs_are_not_called_saturated():
    report = checkup(lambda x, w: -F.softplus((x * w).sum()), 12, 12, topics=["scale"])
    assert titles(report, "warning", "note") == ["ReLU passes none of its outputs"]


def test_a_single_class_has_gradients():
    report = checkup(lambda x, w: (x * w).sum() / len(x) ** 0.5, 12, 12, network=(12, 1), topics=["scale"])
    assert titles(report, "severe", "warning", "note") == []


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_callers_gradient_mode_does_not_matter(mode):
    with mode():
        report = checkup(tanh_of_dot, torch.randn(6), torch.randn(6), topics=["gradient", "structure", "cost"])
        assert not torch.is_grad_enabled()
    assert titles(report, "severe") == []
    assert found(report, "gradient of w is right")


def test_operators_inside_a_derivative_by_hand_are_not_blamed():
    report = checkup(slightly_wrong, 8, 8, topics=["gradient"])
    wrong = found(report, "gradient of w is wrong")
    assert "by hand: HandWritten" in wrong.measured
    assert "sin" not in wrong.measured


# ---- functions that are no neurons


@pytest.mark.parametrize(
    ("f", "title", "measured"),
    [
        (lambda x, w: x @ w[:-1], "f raises", r"RuntimeError: .*\(test_checkup.py:\d+\)"),
        (lambda x, w: sys.exit(3), "f raises", "SystemExit: 3"),
        (lambda x, w: x * w, "f does not return one number", r"a tensor of shape \(6,\)"),
        (lambda x, w: (x * w).sum() * 1j, "f does not return one number", "a complex number"),
        (lambda x, w: None, "f does not return one number", "a NoneType"),
        (lambda x, w: x.numpy() * w.numpy(), "f does not return one number", "a ndarray of shape"),
        (lambda x, w: (x * w).sum() / 0 * 0, "output is NaN", "nan"),
        (lambda x, w: (x * w).square().sum() / 0, "output is infinite", "inf"),
        (torch.mul, "f does not return one number", "a tensor of shape"),
    ],
)
def test_what_is_no_neuron_gets_a_report_that_says_so(f, title, measured):
    report = checkup(f, 6, 6)
    assert titles(report, "severe") == [title]
    assert re.search(measured, report.findings[0].measured)
    assert len(report.findings) == 1


def test_a_number_instead_of_a_tensor_is_checked_on():
    report = checkup(lambda x, w: math.tanh(float(x @ w)), 6, 6, topics=["gradient", "structure"])
    assert set(titles(report, "severe")) == {"f returns no tensor", "no gradient reaches w", "no gradient reaches x"}
    assert "torch.Tensor.__float__" in found(report, "f returns no tensor").measured
    assert "not linear" in found(report, "dependence on x").measured


def test_a_function_with_a_state_is_not_judged_by_differences():
    calls = []

    def counts(x, w):
        calls.append(1)
        return (x * w).sum() + len(calls)

    report = checkup(counts, 6, 6, topics=["gradient", "structure"])
    assert titles(report, "warning") == ["f is not repeatable"]
    assert titles(report, "note") == ["gradient undecided", "structure undecided"]


def test_an_integer_and_a_vector_of_one():
    report = checkup(lambda x, w: (x * w > 0.3).sum(), 8, 8, topics=["gradient"])
    assert "f returns an integer" in titles(report, "warning")
    assert "piecewise constant in w" in titles(report, "severe")
    report = checkup(lambda x, w: (x * w).sum(0, keepdim=True).tanh(), 8, 8, topics=["gradient"])
    assert titles(report, "severe", "warning", "note") == ["shape (1,) instead of ()"]


def test_f_that_prints_and_warns(capfd):
    def talks(x, w):
        print("hello")
        print("hello", file=sys.stderr)
        import warnings

        warnings.warn("look out", stacklevel=1)
        return tanh_of_dot(x, w)

    report = checkup(talks, 6, 6, topics=["gradient"])
    assert "look out" in found(report, "f warns").measured
    assert capfd.readouterr() == ("", "")


def force(x, w):
    x = x.detach().requires_grad_()
    energy = (x * w).sin().sum()
    energy.backward()
    return x.grad.sum()


def test_f_that_differentiates_itself_gets_a_report():
    report = checkup(force, 6, 6)
    assert titles(report, "warning")[0] == "f fails where gradients are switched off"
    assert set(titles(report, "severe")) == {"no gradient reaches w", "no gradient reaches x"}
    assert not [title for title in titles(report, "note") if "not measured to the end" in title]
    assert found(report, "cost of a call")


def test_f_that_raises_on_a_later_call_gets_a_report():
    calls = []

    def once(x, w):
        calls.append(1)
        return (x * w).sum() if len(calls) == 1 else x @ w[1:]

    report = checkup(once, 6, 6)
    assert titles(report, "severe") == ["f raises on a later call"]
    assert "test_checkup.py:" in found(report, "f raises").measured


# ---- time limit


def forever(x, w):
    end = time.monotonic() + 20  # the test fails then, instead of hanging
    while time.monotonic() < end:
        try:
            while time.monotonic() < end:
                pass
        except Exception:
            pass
    return x @ w


def test_time_limit_stops_a_function_that_hangs():
    report = checkup(forever, 4, 4, time_limit=0.3)
    assert titles(report, "severe") == ["no answer within 300 ms"]
    assert report.settings["seconds"] < 5


def test_a_slow_function_is_not_said_to_hang():
    def slow(x, w):
        time.sleep(0.2)
        return tanh_of_dot(x, w)

    report = checkup(slow, 4, 4, time_limit=0.5)
    assert not report.severe
    cut = found(report, "one call takes 2")
    assert cut.title.endswith("ms: cut short before any topic")
    assert re.search(r"one epoch of 60,000 samples through 100-100-10 neurons, .*: \d+ days$", cut.measured)
    assert "a time_limit of about" in cut.meaning


def test_time_limit_in_another_thread_puts_everything_back():
    reports = []
    worker = threading.Thread(target=lambda: reports.append(checkup(forever, 4, 4, time_limit=0.3)), daemon=True)
    worker.start()
    worker.join(10)
    assert titles(reports[0], "severe") == ["no answer within 300 ms"]
    assert torch.get_default_dtype() == torch.float32


def test_a_thread_that_does_not_stop_no_longer_writes_into_the_report():
    if sys.gettrace():
        pytest.skip("Python 3.11 under a tracer does not go on while another thread has an exception pending")
    release, written, reports = threading.Event(), [], []

    def stubborn(x, w):
        try:
            release.wait(20)
        except BaseException:  # of the time limit
            written.append("swallowed")
        return tanh_of_dot(x, w)

    def work():
        reports.append(checkup(stubborn, 4, 4, topics=["structure"], time_limit=0.2, progress=written.append))

    before = set(threading.enumerate())
    caller = threading.Thread(target=work, daemon=True)
    caller.start()
    caller.join(20)
    (left,) = set(threading.enumerate()) - before
    findings = list(reports[0].findings)
    release.set()
    left.join(20)
    assert not left.is_alive()
    assert written == ["swallowed"]
    assert reports[0].findings == findings
    assert titles(reports[0], "severe") == ["no answer within 200 ms"]


def test_time_limit_says_what_is_missing():
    calls = []

    def slow_later(x, w):
        calls.append(1)
        return forever(x, w) if len(calls) > 30 else tanh_of_dot(x, w)

    report = checkup(slow_later, 4, 4, time_limit=1.0)
    cut = found(report, "cut short by the time limit")
    assert cut.topic == "gradient"
    assert "not begun: scale, structure, precision, cost, portability" in cut.measured
    assert torch.get_default_dtype() == torch.float32


# ---- the caller's world


def test_nothing_of_the_caller_changes():
    x, w = torch.rand(8, dtype=torch.float64), torch.randn(8, requires_grad=True)
    before = x.clone(), w.detach().clone()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)  # noqa: NPY002
    expected = torch.rand(1).item(), random.random(), np.random.rand()  # noqa: NPY002
    torch.manual_seed(1), random.seed(1), np.random.seed(1)  # noqa: NPY002
    checkup(mutates_x, x, w)
    assert torch.equal(x, before[0])
    assert torch.equal(w, before[1])
    assert w.grad is None
    assert (torch.rand(1).item(), random.random(), np.random.rand()) == expected  # noqa: NPY002
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers of signals")
def test_the_callers_timer_goes_on():
    fired = []
    before = signal.signal(signal.SIGALRM, lambda *_: fired.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 100, 7)
        assert within(50, lambda: None)
        left, every = signal.setitimer(signal.ITIMER_REAL, 0.01)
        assert 90 < left <= 100
        assert every == 7
        assert within(50, lambda: time.sleep(0.05))  # it falls due in here
        end = time.monotonic() + 10
        while not fired and time.monotonic() < end:
            time.sleep(0.01)
        assert fired == [1]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_numbers_of_numpy_are_numbers():
    settings = {"modes": np.int64(4), "seed": np.int8(3), "network": np.array([4, 3]), "samples": np.int64(9)}
    numpy, plain = (
        checkup(tanh_of_dot, torch.randn, torch.randn, topics=["gradient"], **chosen).settings
        for chosen in (settings, {"modes": 4, "seed": 3, "network": [4, 3], "samples": 9})
    )
    assert json.dumps({**numpy, "seconds": 0}) == json.dumps({**plain, "seconds": 0})


@pytest.mark.slow
def test_the_same_seed_gives_the_same_findings():
    first, again, other = (checkup(kuramoto, 6, 6, seed=seed, topics=["gradient", "structure"]) for seed in (0, 0, 1))
    assert first.findings == again.findings
    assert first.findings != other.findings


def test_inputs_like_the_given_ones():
    seen = []

    def positive(x, w):
        seen.append((x.min().item(), w.min().item()))
        return (x.log() * w.sqrt()).sum() / len(x)

    x, w = torch.rand(9) + 0.5, torch.rand(9) + 1
    report = checkup(positive, x, w, topics=["precision"])
    assert min(map(min, seen)) > 0.3
    assert alarms(report) == set()
    report = checkup(positive, x, w, topics=["scale"])
    assert titles(report, "severe", "warning", "note") == ["a second layer is not finite"]  # log 0 behind a ReLU


def test_checkups_in_threads_take_turns():
    inside, most = [], []

    def watched(x, w):
        inside.append(1)
        time.sleep(0.001)
        most.append(len(inside))
        inside.pop()
        return tanh_of_dot(x, w)

    stdout = sys.stdout
    threads = [
        threading.Thread(target=checkup, args=(watched, 4, 4), kwargs={"topics": ["scale"]}, daemon=True)
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert max(most) == 1
    assert sys.stdout is stdout
    assert torch.get_default_dtype() == torch.float32


def test_functions_make_inputs_of_any_length():
    made = []

    def phases(modes):
        made.append(modes)
        return torch.rand(modes * (modes - 1))

    report = checkup(mesh, lambda modes: torch.randn(modes), phases, modes=8, topics=["cost"])
    assert set(made) == {8, 4, 2}
    assert report.settings["weights"] == 56
    assert "growth with modes, fitted to 2, 4, 8" in found(report, "cost of a call").measured


def test_growth_is_not_measured_where_lengths_do_not_follow():
    f = lambda x, w: (x * w[: len(x)]).sum().tanh() + w[len(x) :].sum()  # noqa: E731
    report = checkup(f, torch.randn(8), torch.randn(12), topics=["cost", "structure"])
    assert "growth not measured" in found(report, "cost of a call").measured
    fixed = torch.randn(8)
    report = checkup(lambda x, w: (x * w * fixed).sum().tanh(), torch.randn(8), torch.randn(8), topics=["cost"])
    assert "f does not take other numbers of modes" in found(report, "cost of a call").measured


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ((1, 4, 4), {}, "f must be a function"),
        ((tanh_of_dot, "x", 4), {}, "x must be a tensor, a function of the number of modes, or that number, got 'x'"),
        ((tanh_of_dot, 4, 0), {}, "w must be a tensor"),
        ((tanh_of_dot, 4, torch.rand(2, 2)), {}, r"w must be .* shape \(modes,\), got torch.float32 of shape \(2, 2\)"),
        ((tanh_of_dot, torch.tensor([1.0, math.nan]), 2), {}, "x must be finite"),
        ((tanh_of_dot, torch.arange(3), 3), {}, "x must be a real floating-point tensor"),
        ((tanh_of_dot, lambda n: n, 3), {}, r"x\(100\) must be a real floating-point tensor"),
        ((tanh_of_dot, 4, 4), {"seed": -1}, "seed"),
        ((tanh_of_dot, 4, 4), {"modes": 0}, "modes must be an integer >= 1"),
        ((tanh_of_dot, 4, 4), {"network": (3,)}, "at least two sizes"),
        ((tanh_of_dot, 4, 4), {"topics": ["speed"]}, "topics must be among gradient.*got speed"),
        ((tanh_of_dot, 4, 4), {"time_limit": 0}, "time_limit must be positive"),
        ((tanh_of_dot, 4, 4), {"time_limit": "5"}, "time_limit must be positive, a number of seconds, got '5'"),
        ((tanh_of_dot, 4, 4), {"topics": "gradient"}, "topics must be a list of some among .*, got 'gradient'"),
        ((tanh_of_dot, 4, 4), {"topics": 5}, "topics must be a list"),
        ((tanh_of_dot, 4, 4), {"topics": [5]}, "topics must be among gradient.*got 5"),
        ((tanh_of_dot, 4, 4), {"network": 5}, "at least two sizes, got 5"),
        ((tanh_of_dot, lambda n: 1 / 0, 4), {}, r"x\(100\) must return a tensor .*, got ZeroDivisionError"),
        ((tanh_of_dot, 4, 4), {"device": "abacus"}, "device must be one of"),
    ],
)
def test_bad_arguments(arguments, settings, message):
    with pytest.raises(ValueError, match=message):
        checkup(*arguments, **settings)


# ---- effective weights


@pytest.mark.parametrize(
    "f", [pytest.param(oscillators, marks=pytest.mark.slow), affine, detaches, neuron], ids=lambda f: f.__name__
)
def test_batched_is_f_for_many(f):
    x, w = torch.randn(7, 10, dtype=torch.float64), torch.randn(3, 10, dtype=torch.float64)
    report = checkup(f, x[0], w[0], topics=["gradient", "structure"])
    expected = torch.stack([torch.stack([f(a, b) for b in w]) for a in x])
    torch.testing.assert_close(report.batched(x, w), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(report.batched(x, w[1]), expected[:, 1], rtol=1e-10, atol=1e-12)
    origin = f(torch.zeros_like(x[0]), w[0])
    torch.testing.assert_close(x @ report.effective_weights + origin, expected[:, 0], rtol=1e-10, atol=1e-12)
    with pytest.raises(ValueError, match=r"batched expects x of shape \(batch, modes\)"):
        report.batched(x[0], w)


def test_batched_trains_like_f():
    x, w = torch.randn(4, 6, dtype=torch.float64), torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    report = checkup(oscillators, x[0], w[0], topics=["gradient", "structure"])
    assert "one gradient of f in x per neuron" in found(report, "batched version").measured
    (mine,) = torch.autograd.grad(report.batched(x, w).square().sum(), w)
    outputs = torch.stack([torch.stack([oscillators(a, b) for b in w]) for a in x])
    torch.testing.assert_close(mine, torch.autograd.grad(outputs.square().sum(), w)[0])


def test_batched_where_x_has_no_gradient():
    def cut(x, w):
        return torch.as_tensor(x.detach().numpy() @ w.detach().sin().numpy())

    report = checkup(cut, 6, 6, topics=["gradient", "structure"])
    assert "no gradient reaches x" in titles(report, "severe")
    assert "6 calls with unit vectors" in found(report, "batched version").measured
    x, w = torch.randn(3, 6), torch.randn(6)
    torch.testing.assert_close(report.batched(x, w), x @ w.sin())


def test_batched_leaves_random_states_alone():
    report = checkup(affine, 6, 6, topics=["structure"])
    torch.manual_seed(1), random.seed(1), np.random.seed(1)  # noqa: NPY002
    expected = torch.rand(1).item(), random.random(), np.random.rand()  # noqa: NPY002
    torch.manual_seed(1), random.seed(1), np.random.seed(1)  # noqa: NPY002
    report.batched(torch.ones(2, 6), torch.ones(6))
    assert (torch.rand(1).item(), random.random(), np.random.rand()) == expected  # noqa: NPY002


def test_nonlinear_has_no_batched():
    report = checkup(tanh_of_dot, 6, 6, topics=["structure"])
    assert report.batched is None
    assert report.effective_weights is None


# ---- instruments


def test_slope_is_as_good_as_it_says():
    for phi, slope in ((math.sin, 1.0), (lambda t: math.exp(40 * t), 40.0), (lambda t: 3.0, 0.0)):
        found = _slope(phi, 2e-16)
        assert abs(found.value - slope) <= 10 * found.error
        assert found.error < 1e-8 * max(slope, 1)
        assert found.converged
        assert found.flat == (slope == 0)
    rng = random.Random(0)
    found = _slope(lambda t: math.sin(t) + 5e-7 * rng.random(), 2e-16)
    assert 1e-9 < found.error < 1e-3  # noise is seen
    assert abs(found.value - 1) <= 10 * found.error
    assert found.converged


def test_slope_does_not_settle_where_steps_are_too_long():
    assert not _slope(lambda t: math.sin(1e9 * t + 1), 2e-16).converged
    assert not _slope(lambda t: math.nan, 2e-16).converged
    half = _slope(lambda t: math.sqrt(t + 0.01) if t > -0.01 else math.nan, 2e-16)
    assert abs(half.value - 5) < 1e-6


def test_jump_is_told_from_a_steep_slope():
    assert _jump(lambda t: float(t > 0.123)) == pytest.approx(1)
    assert _jump(lambda t: t + 0.5 * (t > 0.123)) == pytest.approx(0.2, rel=1e-3)
    assert _jump(lambda t: math.tanh(1e4 * (t - 0.123))) == 0
    assert _jump(lambda t: 3.0) == 0


def test_meter_counts_operators_and_bytes():
    x = torch.randn(1000)
    with Meter(x) as meter:
        y = x * 2
        y = y + 1  # the first y is gone
        z = x.view(10, 100)  # no bytes of its own
    assert (meter.operators, meter.live, meter.peak) == (3, 4000, 8000)
    del y, z
    assert meter.live == 0


def test_what_waits_for_the_backward_pass_is_measured():
    n = 300_000
    report = checkup(lambda x, w: (x * w).sin().sum(), n, n, topics=["cost"])
    # sin keeps its argument, the product keeps x, which was there before
    kept = re.search(r"of which (\S+) MB wait", found(report, "cost of a call").measured)[1]
    assert float(kept) == pytest.approx(4 * n / 1e6, rel=0.1)


def test_trace_names_what_cuts_the_gradient():
    w = torch.randn(4, requires_grad=True) * 1
    with Trace(w) as trace:
        bessel_j0(w)
        w.detach().sum()
        (w > 0).float()
        w.sum().item()
        w.mul_(2)
        torch.linspace(0, 1 - 1e-10, 3)
        torch.zeros(3, device="cpu")
        w.new_zeros(3)
    assert trace.cuts.keys() == {"torch.special.bessel_j0", "torch.Tensor.detach", "torch.Tensor.item"}
    assert trace.steps.keys() == {"torch.Tensor.gt"}
    assert trace.written.keys() == {"torch.Tensor.mul_"}
    assert trace.unplaced.keys() == {"torch.linspace"}
    assert trace.lost.keys() == {"0.9999999999"}


def test_exponent():
    assert _exponent([2, 4, 8], [3 * n**1.5 for n in (2, 4, 8)]) == pytest.approx(1.5)


def test_growth_of_the_operators():
    loop = found(checkup(potential, 16, 16, topics=["cost"]), "a Python loop over modes")
    assert "modes^0.9" in loop.measured
    assert "test_checkup.py:" in loop.measured  # the busiest line
    vectorised = checkup(tanh_of_dot, 16, 16, topics=["cost"])
    assert not [title for title in titles(vectorised, "warning", "note") if "loop" in title]


# ---- the report


@pytest.fixture
def report():
    findings = [
        Finding("note", "structure", "<b>linear</b>", "1 < 2 & 3", "means", "chapters/07_structure – Linear", "none"),
        Finding("severe", "gradient", "<script>alert(1)</script>", "</details>"),
        Finding("ok", "scale", "fine", "rms 1"),
    ]
    settings = {"modes": 4, "dtype": "float32", "device": "cpu", "seed": 0, "torch": "2", "seconds": 1.0}
    return CheckupReport("<f>", settings, findings, torch.tensor([1.0, 2.0], dtype=torch.float64))


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("whole", [False, True])
def test_html_is_escaped_and_asks_for_nothing(report, whole):
    source = report.page() if whole else report._repr_html_()
    page = Tags(source)
    assert set(page.tags) <= {
        *("div", "b", "code", "details", "summary", "span"),
        *("html", "head", "meta", "title", "style", "body"),
    }
    names = {name for name, _ in page.attributes}
    assert not names & {"src", "href", "data", "srcset"}
    assert not [name for name in names if name.startswith("on")]
    assert "url(" not in source
    for text in ("<script>alert(1)</script>", "<b>linear</b>", "1 < 2 & 3", "</details>", "<f>"):
        assert text in page.text
    # Text and ground follow the page, so that it is read in the light and in the dark.
    grounds = {value for name, value in page.attributes if name == "style" and "background" in value}
    assert all("color:#fff" in style for style in grounds)


def test_text_has_the_worst_first(report):
    text = str(report)
    assert text.index("SEVERE") < text.index("NOTE") < text.index("In order:")
    assert "1 severe, 0 warnings, 1 note, 1 ok" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_report_is_pickled_and_copied_without_batched():
    report = checkup(affine, 4, 4, topics=["structure"])
    assert report.batched is not None
    for again in (pickle.loads(pickle.dumps(report)), copy.deepcopy(report)):
        assert again.as_dict() == report.as_dict()
        assert again.batched is None


def test_json_round_trip(report):
    said = json.loads(report.to_json())
    assert said["severe"]
    again = CheckupReport.from_dict(said)
    assert again.as_dict() == report.as_dict()
    assert str(again) == str(report)


def test_every_cure_is_a_section_of_the_book():
    for file, section in CURES.values():
        cells = nbformat.read(ROOT / f"{file}.ipynb", as_version=4).cells
        headings = re.findall(r"^#+ (.*)$", "\n".join(c.source for c in cells if c.cell_type == "markdown"), re.M)
        assert section in headings, (file, section)


# ---- the command


@pytest.fixture
def file(tmp_path):
    source = f"""
import os, torch
from pathlib import Path

def good(x, w):
    return torch.tanh((x * w).sum() / len(x) ** 0.5)

def cut(x, w):
    return (x * w.detach()).sum()

def crashes(x, w):
    os._exit(7)

def other():
    Path({str(tmp_path / "ran")!r}).touch()

if __name__ == "__main__":
    other()
"""
    path = tmp_path / "mine.py"
    path.write_text(source)
    return path


@pytest.mark.slow
def test_command_reports_and_ends_with_0_or_1(file, tmp_path, capsys):
    arguments = ["--modes", "6", "--topics", "gradient", "structure"]
    assert cli.main(["checkup", f"{file}:good", *arguments]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Check-up of mine.py:good\n6 modes, float32 on cpu, seed 0")
    assert [line.split(":")[0] for line in err.splitlines()] == ["output", "gradient", "structure"]
    page, data = tmp_path / "report.html", tmp_path / "report.json"
    written = ["--html", str(page), "--json", str(data)]
    assert cli.main(["checkup", f"{file}:cut", *arguments, *written, "--seed", "3"]) == 1
    assert "SEVERE  [gradient] no gradient reaches w" in capsys.readouterr().out
    assert "no gradient reaches w" in page.read_text()
    said = json.loads(data.read_text())
    assert said["severe"]
    assert said["settings"]["seed"] == 3
    assert len(said["effective_weights"]) == 6
    assert not (tmp_path / "ran").exists()  # nothing but the function was called


def test_what_the_command_runs_in_a_process_of_its_own(file, tmp_path, monkeypatch):
    answer = tmp_path / "report.json"
    asked = {"file": str(file), "name": "cut", "answer": str(answer), "seconds": 60, "modes": 4, "topics": ["scale"]}
    monkeypatch.setattr(sys, "argv", ["", json.dumps(asked)])
    monkeypatch.setattr(sys, "path", list(sys.path))
    _answer()
    said = json.loads(answer.read_text())
    assert said["name"] == "cut"
    assert {finding["topic"] for finding in said["findings"]} == {"output", "scale"}


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_command_that_is_interrupted_ends_its_process_and_prints_what_it_found(number, tmp_path):
    started, going = tmp_path / "pid", tmp_path / "going"
    (tmp_path / "late.py").write_text(
        "import os, time\n"
        "from pathlib import Path\n"
        "calls = []\n"
        "def late(x, w):\n"
        f"    Path({str(started)!r}).write_text(str(os.getpid()))\n"
        "    calls.append(1)\n"
        "    if len(calls) > 60:\n"
        f"        Path({str(going)!r}).touch()\n"
        "        time.sleep(50)\n"
        "    return (x * w).sum().tanh()\n"
    )
    command = [sys.executable, "-m", "spinwave", "checkup", f"{tmp_path / 'late.py'}:late", "--modes", "4"]
    command += ["--topics", "scale", "structure"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    while not going.exists() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(1)  # the parts are read a few times a second
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
    assert [line for line in err.splitlines() if "checked after" in line][-1].startswith("scale:")
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "scale suits" in out
    else:
        assert process.returncode == 143


@pytest.mark.slow
def test_command_prints_json_alone(file, capsys):
    assert cli.main(["checkup", f"{file}:good", "--modes", "4", "--topics", "scale", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "mine.py:good"


@pytest.mark.slow
def test_command_survives_a_crash(file, capsys):
    assert cli.main(["checkup", f"{file}:crashes", "--modes", "4"]) == 1
    out, err = capsys.readouterr()
    assert "its process ended with code 7" in out
    assert err == ""


@pytest.mark.slow
def test_command_loads_a_module_of_a_package(capsys):
    target = f"{ROOT / 'spinwave' / 'effective.py'}:neuron"
    assert cli.main(["checkup", target, "--modes", "8", "--topics", "structure"]) == 0
    assert "linear in x" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "more", "message"),
    [
        ("mine.py", [], "expected path/to/file.py:function"),
        ("nowhere.py:f", [], "expected a Python file at"),
        pytest.param("mine.py:bad", [], "has no function bad; it has", marks=pytest.mark.slow),
        pytest.param(
            *("broken.py:f", [], "fails when it is loaded: ZeroDivisionError: division by zero (broken.py:1)"),
            marks=pytest.mark.slow,
        ),
        ("mine.py:good", ["--modes", "0"], "modes must be an integer >= 1"),
        ("mine.py:good", ["--time-limit", "0"], "time_limit must be positive"),
        ("mine.py:good", ["--topics", "speed"], "topics must be among"),
        ("mine.py:good", ["--device", "abacus"], "device must be one of"),
    ],
)
def test_command_refuses(file, target, more, message, capsys):
    (file.parent / "broken.py").write_text("1 / 0\n")
    assert cli.main(["checkup", str(file.parent / target), *more]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_help_says_that_the_file_is_executed():
    command = [sys.executable, "-m", "spinwave", "checkup", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "executes its top level" in " ".join(text.split())
