"""What the package does on a GPU, seen on a virtual one. Started by test_gpu.py, in a process of its own."""

import copy
import itertools
import sys
import warnings

import pytest
import torch
from torch import nn
from virtual_gpu import DEVICE, Stream, gpu

from spinwave import (
    SpinWaveLinear,
    SpinWaveMLP,
    SpinWaveParameters,
    effective,
    effective_weights,
    fit,
    fit_ensemble,
    load_mnist,
    scaling,
    training,
)
from spinwave.__main__ import main

SIZES = (36, 12, 10)
STRONG = SpinWaveParameters(coupling_total=10.0)
TURNING = SpinWaveParameters(100.0, 3.0, detuning=-2e4)  # a Stark phase of -2
GRID = SpinWaveParameters(points=12)
EPOCHS = 3  # of four batches of 64 and one of 20: each size is taken as it is, recorded and replayed


@pytest.fixture
def device():
    with gpu() as device:
        yield device


@pytest.fixture
def with_kernels():
    pytest.importorskip("triton")
    with gpu(kernels=True) as device:
        yield device


def digits(dtype=torch.float32, count=276):
    """The middle of the images, six by six."""
    parts = (count, load_mnist("train")), (200, load_mnist("test"))
    return tuple((x.view(-1, 10, 10)[:n, 2:8, 2:8].flatten(1).to(dtype), y[:n]) for n, (x, y) in parts)


def train(device, physics=None, model="continuum", dtype=torch.float32, data=None, network=None, **options):
    if network is None:
        torch.manual_seed(1)
        network = SpinWaveMLP(SIZES, physics, model, dtype=dtype)
    options = {"epochs": EPOCHS, "batch_size": 64, "device": device, "progress": False} | options
    metrics = fit(network, *(data or digits(dtype)), **options)
    return network, metrics


def largest_difference(network, other):
    pairs = zip(network.parameters(), other.parameters(), strict=True)
    return max((one.detach().cpu() - two.detach().cpu()).abs().max().item() for one, two in pairs)


def test_the_device_does_what_it_is_for(device):
    x = torch.arange(3.0).to(DEVICE)
    assert not x.is_cpu
    assert (x + 1).tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(RuntimeError, match="two devices"):
        x + torch.ones(3)
    graph, total = torch.cuda.CUDAGraph(), torch.zeros(3, device=DEVICE)
    with torch.cuda.graph(graph):
        total.add_(2 * x)
    assert total.tolist() == [0.0, 0.0, 0.0]
    graph.replay()
    x.fill_(1.0)
    graph.replay()
    assert total.tolist() == [2.0, 4.0, 6.0]
    with pytest.raises(RuntimeError, match="previous error"), torch.cuda.graph(graph):
        x.sum().item()


@pytest.mark.parametrize(
    ("physics", "model", "dtype", "tolerance"),
    [
        (None, "continuum", torch.float32, 1e-4),
        (STRONG, "continuum", torch.float32, 1e-4),
        (STRONG, "continuum", torch.float64, 1e-9),
        (GRID, "discretized", torch.float32, 1e-3),
        (GRID, "discretized", torch.float64, 1e-9),
    ],
)
def test_a_training_is_that_of_a_cpu_and_its_steps_look_at_nothing(device, physics, model, dtype, tolerance):
    network, metrics = train("vgpu", physics, model, dtype)
    whole = dict(device.counts)
    assert network.layers[0].weight.device == DEVICE
    other, expected = train("cpu", physics, model, dtype)
    assert largest_difference(network, other) < tolerance
    assert metrics["test_loss"] == pytest.approx(expected["test_loss"], rel=tolerance)

    device.counts.clear()
    train("vgpu", physics, model, dtype, digits(dtype, 64))  # a step an epoch instead of five
    for kind in ("look", "from the host", "to the host"):
        assert device.counts[kind] <= whole[kind] <= device.counts[kind] + 3  # tables, made once


@pytest.mark.parametrize(
    ("physics", "model", "dtype", "options"),
    [
        (None, "continuum", torch.float32, {}),
        (None, "continuum", torch.float32, {"augment": True}),
        (STRONG, "continuum", torch.float32, {}),
        (None, "continuum", torch.float64, {}),
        (GRID, "discretized", torch.float32, {}),
    ],
)
def test_a_recorded_training_is_the_ordinary_one(device, physics, model, dtype, options):
    network, metrics = train("vgpu", physics, model, dtype, graph=True, **options)
    assert device.counts["replay"] == 5 * EPOCHS - 2  # the first of each size is not
    other, expected = train("vgpu", physics, model, dtype, **options)
    assert largest_difference(network, other) < 1e-5
    for one, two in zip(metrics["history"], expected["history"], strict=True):
        for name in ("train_loss", "test_loss", "test_accuracy"):
            assert one[name] == pytest.approx(two[name], rel=1e-5)


def launches_of_a_step(device, network=None, **options):
    counts = []
    for steps in (1, 2, 7):  # the first makes what is made once, the second records
        device.counts.clear()
        train("vgpu", network=copy.deepcopy(network), data=digits(count=64 * steps), epochs=1, **options)
        counts.append(device.counts["launch"])
    return (counts[2] - counts[1]) / 5


def test_a_step_is_one_launch_and_a_few_to_feed_it(device):
    assert launches_of_a_step(device, graph=True) <= 6


def test_a_step_of_float32_is_few_launches(device):
    assert 100 < launches_of_a_step(device) < 170  # chapter 11: more than a hundred


@pytest.mark.parametrize("options", [{}, {"graph": True}])
@pytest.mark.parametrize("physics", [None, STRONG])
def test_kernels_train_as_a_cpu_does(with_kernels, physics, options):
    data = digits(count=84)
    network, _ = train("vgpu", physics, data=data, **options)
    other, _ = train("cpu", physics, data=data)
    assert largest_difference(network, other) < 1e-4


def test_with_kernels_a_step_is_hardly_more_than_that_of_ordinary_layers(with_kernels):
    ordinary = nn.Sequential(nn.Linear(36, 12, bias=False), nn.ReLU(), nn.Linear(12, 10, bias=False))
    ours, theirs = launches_of_a_step(with_kernels), launches_of_a_step(with_kernels, ordinary)
    assert theirs < 20  # chapter 11: about fifteen
    assert theirs < ours <= theirs + 4  # for each layer H and its gradient


def test_an_ensemble_takes_kernels(with_kernels):
    options = {"seeds": [3, 4], "sizes": SIZES, "epochs": 1, "batch_size": 64, "progress": False}
    options |= {"coupling_totals": [0.1, 10.0]}
    networks, _ = fit_ensemble(*digits(count=84), device="vgpu", **options)
    others, _ = fit_ensemble(*digits(count=84), device="cpu", **options)
    for one, two in zip(networks, others, strict=True):
        assert largest_difference(one, two) < 1e-4


@pytest.mark.parametrize("parameters", [SpinWaveParameters(), STRONG, TURNING])
@pytest.mark.parametrize("shape", [(10, 100), (3, 129), (2, 784), (1, 1), (4, 3)])
def test_kernels_find_what_the_formula_finds(with_kernels, parameters, shape):
    torch.manual_seed(0)
    w = torch.randn(shape)
    w[0, 1:2] = 0
    w *= min(1.0, 4.9 / parameters.mode_coupling(shape[1]) / w.abs().max().item())
    w, grad = w.t().contiguous().t(), torch.randn(shape).t().contiguous().t()  # in another layout
    results = []
    for x, of_h in ((w.to(DEVICE), grad.to(DEVICE)), (w.double(), grad.double())):
        x.requires_grad_()
        h = effective.compute(x, parameters, "continuum", look=False, gain=torch.tensor(7.0, device=x.device))
        h.backward(of_h)
        results.append((h.detach().cpu(), x.grad.cpu()))
    for ours, exact in zip(*results, strict=True):
        assert (ours - exact).abs().max() < 1e-6 * exact.abs().max()


@pytest.mark.parametrize("readout", [1e-30, 1e-5, 1e4])
def test_kernels_find_gradients_of_any_size(with_kernels, readout):
    w = torch.randn(2, 30)
    physics, slopes = SpinWaveParameters(1.0, readout), []
    for x in (w.to(DEVICE).requires_grad_(), w.double().requires_grad_()):
        gain = torch.tensor(min(1e30, 1 / readout), dtype=x.dtype, device=x.device)
        effective.compute(x, physics, "continuum", look=False, gain=gain).sum().backward()
        slopes.append(x.grad.cpu())
    ours, exact = slopes
    assert (ours - exact).abs().max() < 1e-6 * exact.abs().max()


def test_kernels_know_numbers_that_are_to_be_negated():
    fused = pytest.importorskip("spinwave.fused")
    torch.manual_seed(0)
    w, table = torch.randn(2, 20), effective._table(10, 1.0, 0.6, torch.device("cpu"))
    numbers = effective._numbers(1.0, 1.0, 0.6)
    h, *kept = fused.look_up(w, None, table, numbers)
    assert (fused.look_up(torch._neg_view(w), None, table, numbers)[0] + h).abs().max() == 0
    slope = fused.collect(w, w, *kept, 1.0)
    assert (fused.collect(torch._neg_view(w), w, *kept, 1.0) + slope).abs().max() == 0


def test_kernels_give_nan_where_they_have_no_table(with_kernels):
    w = torch.full((3, 7), 3.0)
    w[0, 4] = 5.1
    w[1, 2] = torch.nan
    w[2, 6] = 40.0
    there = w.to(DEVICE).requires_grad_()
    h = effective.compute(there, SpinWaveParameters(coupling_total=7.0), "continuum", look=False)
    h.sum().backward()
    assert h.isnan().tolist() == [[False] * 4 + [True] + 2 * [False], 3 * [True] + 4 * [False], 7 * [True]]
    assert there.grad.isnan().any(1).all().item()


def test_kernels_that_fail_leave_the_operators(with_kernels, monkeypatch):
    fused = pytest.importorskip("spinwave.fused")
    look_up = fused.look_up
    operators = effective._look_up, effective._collect

    def means():
        effective._means.cache_clear()
        return effective._means(DEVICE)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert means() == (look_up, fused.collect)
        torch.set_default_dtype(torch.bfloat16)
        try:
            assert means() == (look_up, fused.collect)
        finally:
            torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(fused, "look_up", lambda *args: [1.01 * found for found in look_up(*args)])
    with pytest.warns(UserWarning, match=r"kernels do not work on vgpu:0, .* \(they are off by 1e-02\)"):
        assert means() == operators

    def broken(*_):
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(fused, "look_up", broken)
    with pytest.warns(UserWarning, match=r"\(RuntimeError: no C compiler\)"):
        assert means() == operators
    monkeypatch.setitem(sys.modules, "spinwave.fused", None)
    assert means() == operators  # without a word where there is no Triton


def train_until(call, name, **options):
    """Train with a recorded step and stop at that call of a function of the module, counted from 1."""
    function, calls = getattr(training, name), itertools.count(1)

    def stopped(*arguments):
        if next(calls) == call:
            raise KeyboardInterrupt
        return function(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, name, stopped)
        with pytest.raises(KeyboardInterrupt):
            train("vgpu", graph=True, **options)


def test_a_recorded_training_goes_on_after_a_stop(device, tmp_path):
    whole, _ = train("vgpu", graph=True)
    train_until(3, "evaluate", out=tmp_path)  # before the first epoch, after it, after the second
    resumed, metrics = train("vgpu", graph=True, out=tmp_path, resume=True)
    assert metrics["epochs"] == EPOCHS
    assert largest_difference(whole, resumed) < 1e-5


def test_what_a_recorded_training_leaves_is_not_the_matrix_of_before(device):
    network, metrics = train("vgpu", graph=True)
    images, labels = digits()[1]
    on_cpu = SpinWaveMLP(SIZES)
    on_cpu.load_state_dict({name: tensor.cpu() for name, tensor in network.state_dict().items()})
    for there in (network, network.eval()):
        with torch.no_grad():
            assert torch.allclose(there(images.to(DEVICE)).cpu(), on_cpu(images), rtol=1e-4, atol=1e-5)
    assert metrics["test_loss"] == pytest.approx(training.evaluate(on_cpu, images, labels)["loss"], rel=1e-5)


def test_what_a_stopped_recorded_training_leaves_is_not_the_matrix_of_before(device):
    network = SpinWaveMLP(SIZES)
    train_until(8, "one_cycle", network=network)  # in the second epoch, which replays
    images, _ = digits()[1]
    with torch.no_grad():
        there = network(images.to(DEVICE)).cpu()
        assert torch.allclose(there, network.cpu()(images), rtol=1e-4, atol=1e-5)


class Looks(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(36, 10)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else self.layer(2 * x)


def test_a_step_that_looks_at_a_value_cannot_be_recorded(device):
    network = Looks()
    with pytest.raises(ValueError, match=r"graph cannot record a step of this model: .*capturing"):
        train("vgpu", network=network, graph=True)
    assert Stream.current is None
    train("vgpu", network=network)
    network, _ = train("vgpu", network=nn.Linear(36, 10), graph=True, learning_rate=0.01)
    other, _ = train("vgpu", network=copy.deepcopy(network), learning_rate=0.01)
    assert largest_difference(network, other) > 0


@pytest.mark.parametrize("graph", [False, True])
def test_couplings_beyond_the_table_are_a_divergence(device, graph):
    with pytest.raises(training.Diverged, match=r"diverged in epoch 1: the loss became nan"):
        train("vgpu", STRONG, learning_rate=1e4, graph=graph)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("more", [{}, {"coupling_totals": [0.1, 10.0], "learning_rates": [0.1, 0.3]}])
def test_an_ensemble_is_that_of_a_cpu(device, more, graph):
    options = {"seeds": [3, 4], "sizes": SIZES, "epochs": EPOCHS, "batch_size": 64, "progress": False} | more
    networks, metrics = fit_ensemble(*digits(), device="vgpu", graph=graph, **options)
    assert device.counts["replay"] == graph * (5 * EPOCHS - 2)
    others, expected = fit_ensemble(*digits(), device="cpu", **options)
    for one, two in zip(networks, others, strict=True):
        assert largest_difference(one, two) < 1e-4
    for one, two in zip(metrics, expected, strict=True):
        assert one["test_loss"] == pytest.approx(two["test_loss"], rel=1e-4)


def test_evaluation_keeps_its_matrix(device):
    layer = SpinWaveLinear(30, 4, device=DEVICE).eval()
    x = torch.ones(2, 30).to(DEVICE)
    with torch.no_grad():
        y = layer(x)
        device.counts.clear()
        layer(x)
        assert device.counts.total() <= 2  # a transposed matrix and a product
        layer.weight.mul_(2)
        assert (layer(x) - y).abs().max().item() > 1e-3


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12), (torch.bfloat16, 1e-2)]
)
def test_effective_weights_are_those_of_a_cpu(device, dtype, tolerance):
    w = torch.randn(3, 40).to(dtype)
    there = effective_weights(w.to(DEVICE), STRONG)
    assert there.device == DEVICE
    here = effective_weights(w, STRONG)
    assert (there.cpu() - here).abs().max() < tolerance * here.abs().max()
    with pytest.raises(ValueError, match="finite"):
        effective_weights(w.to(DEVICE) * torch.nan, STRONG)


def test_steps_are_timed(device):
    ours, theirs = scaling.step_seconds((9, 8, 7), 4, STRONG, "continuum", torch.float32, False, DEVICE, 3)
    assert len(ours) == len(theirs) == 3


def test_the_command_line(device, tmp_path, capsys):
    run = str(tmp_path / "run")
    short = ["--limit", "300", "--epochs", "2", "--hidden", "20"]
    assert main(["train", "--device", "vgpu", "--graph", "--out", run, *short]) == 0
    assert device.counts["replay"] > 0
    assert main(["evaluate", run, "--device", "vgpu"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert " after 2 epochs in " in told[0]
    assert told[0].split(" after")[0] == told[1].split(" on")[0]
