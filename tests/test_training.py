"""Training as a Python function: reproducible, resumable, and safe for what is on disk."""

import errno
import io
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load, load_file, save, save_file
from torch import nn

from spinwave import (
    Diverged,
    SpinWaveLinear,
    SpinWaveMLP,
    SpinWaveParameters,
    evaluate,
    fit,
    load_checkpoint,
    load_mnist,
    training,
)
from spinwave.figures import confusion_matrix, learning_curves

CHECKPOINT = "checkpoint.safetensors"


@pytest.fixture(scope="module")
def digits():
    """The first 400 training and 200 test images."""
    (images, labels), (test_images, test_labels) = load_mnist("train"), load_mnist("test")
    return (images[:400], labels[:400]), (test_images[:200], test_labels[:200])


def network(sizes=(100, 8, 10), seed=0, **options):
    torch.manual_seed(seed)
    return SpinWaveMLP(sizes, **options)


def train(digits, model=None, **options):
    """Three short epochs on the CPU; returns model and metrics."""
    model = network() if model is None else model
    options = {"epochs": 3, "batch_size": 100, "device": "cpu", "progress": False} | options
    return model, fit(model, *digits, **options)


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def stop_after(monkeypatch, epochs, error=KeyboardInterrupt):
    """Make the training stop right after it has saved that many epochs."""
    original = training.save_checkpoint

    def save_and_stop(folder, model, optimizer, settings, history):
        original(folder, model, optimizer, settings, history)
        if len(history) == epochs:
            raise error

    monkeypatch.setattr(training, "save_checkpoint", save_and_stop)


@pytest.fixture
def stopped(digits, tmp_path, monkeypatch):
    """Folder of a run that was stopped after the first of three epochs."""
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            train(digits, out=tmp_path / "run")
    return tmp_path / "run"


# ---- results


def test_training_learns(digits):
    model = network((100, 30, 10))
    before = evaluate(model, *digits[1])["accuracy"]
    _, metrics = train(digits, model, epochs=8, batch_size=50)
    assert before < 0.3
    assert metrics["test_accuracy"] > 0.75
    assert metrics["history"][-1]["train_loss"] < metrics["history"][0]["train_loss"] / 3


def test_metrics_describe_the_run(digits, tmp_path):
    model, metrics = train(digits, out=tmp_path, notes={"data": "some digits"})
    assert metrics == json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["epochs"] == 3
    assert [entry["epoch"] for entry in metrics["history"]] == [1, 2, 3]
    assert metrics["seconds"] == sum(entry["seconds"] for entry in metrics["history"])
    assert SpinWaveParameters(**metrics["parameters"]) == model.physics
    assert metrics["environment"]["torch"] == torch.__version__
    expected = {"epochs": 3, "batch_size": 100, "seed": 0, "train_images": 400, "sizes": [100, 8, 10]}
    assert metrics["settings"].items() >= (expected | {"data": "some digits"}).items()
    score = evaluate(model, *digits[1])
    assert (metrics["test_accuracy"], metrics["test_loss"]) == (score["accuracy"], score["loss"])
    assert metrics["confusion"] == score["confusion"].tolist()


def test_evaluate_counts_by_hand():
    logits = torch.tensor([[3.0, 1.0], [0.0, 2.0], [5.0, 4.0]])
    score = evaluate(nn.Identity(), logits, torch.tensor([0, 1, 1]), batch_size=2)
    assert score["confusion"].tolist() == [[1, 0], [1, 1]]
    assert score["accuracy"] == 2 / 3
    by_hand = (math.log1p(math.exp(-2)) * 2 + math.log1p(math.exp(1))) / 3
    assert score["loss"] == pytest.approx(by_hand, rel=1e-6)


def test_evaluation_is_without_dropout_and_leaves_every_module_in_its_mode():
    network = nn.Sequential(nn.Dropout(0.5), nn.Identity(), nn.BatchNorm1d(5))
    network[2].eval()
    digits, labels = torch.randn(40, 5), torch.randint(5, (40,))
    score = evaluate(network, digits, labels)
    assert score["loss"] == pytest.approx(nn.functional.cross_entropy(digits, labels).item(), rel=1e-4)
    assert [module.training for module in network.modules()] == [True, True, True, False]
    with pytest.raises(ValueError, match="evaluation labels must be from 0 to 4"):
        evaluate(network, digits, labels + 5)
    assert network.training


def test_one_cycle_is_that_of_pytorch():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=101, final_div_factor=1e12)
    peak = 0.3 * 101 - 1  # PyTorch puts the peak one step early
    for step in range(101):
        progress = 0.3 * step / peak if step < peak else 0.3 + 0.7 * (step - peak) / (100 - peak)
        assert training.one_cycle(progress) == pytest.approx(schedule.get_last_lr()[0], abs=1e-9)
        optimizer.step()
        if step < 100:
            schedule.step()


def test_learning_rate_follows_one_cycle(digits, monkeypatch):
    rates = []
    original = torch.optim.Adam.step
    monkeypatch.setattr(
        torch.optim.Adam, "step", lambda self: (rates.append(self.param_groups[0]["lr"]), original(self))
    )
    train(digits, epochs=3, learning_rate=0.1)
    assert rates == [0.1 * training.one_cycle(step / 12) for step in range(12)]


def test_the_last_small_batch_counts(digits):
    """400 images in batches of 300: a mean of batch means would weigh the last hundred three times."""
    images, labels = digits[0]
    model = network()
    model.calibrate(images)
    expected = evaluate(model, images, labels)["loss"]
    _, metrics = train(digits, epochs=1, batch_size=300, learning_rate=1e-30)
    assert metrics["history"][0]["train_loss"] == pytest.approx(expected, rel=1e-5)


# ---- the same again


def test_same_seed_same_weights(digits):
    assert same(weights(train(digits)[0]), weights(train(digits)[0]))


def test_every_epoch_has_an_order_of_its_own(digits, monkeypatch):
    orders = []
    original = torch.randperm
    monkeypatch.setattr(torch, "randperm", lambda *a, **k: orders.append(original(*a, **k)) or orders[-1])
    train(digits)
    assert len({tuple(order.tolist()) for order in orders}) == 3
    assert all(order.sort().values.equal(torch.arange(400)) for order in orders)


def test_seed_changes_the_shuffling(digits):
    assert not same(weights(train(digits)[0]), weights(train(digits, seed=1)[0]))


def test_global_generator_is_left_alone(digits, tmp_path):
    train(digits, out=tmp_path)
    torch.manual_seed(5)
    model, state = SpinWaveMLP((100, 8, 10)), torch.get_rng_state()
    train(digits, model)
    load_checkpoint(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("epochs", [1, 2])
def test_resumed_run_equals_one_never_stopped(digits, tmp_path, monkeypatch, epochs):
    straight, reference = train(digits, out=tmp_path / "straight")
    with monkeypatch.context() as patch:
        stop_after(patch, epochs)
        with pytest.raises(KeyboardInterrupt):
            train(digits, out=tmp_path / "stopped")
    resumed, metrics = train(digits, network(seed=9), out=tmp_path / "stopped", resume=True)
    assert same(weights(resumed), weights(straight))
    # optimiser state included
    assert same(load_file(tmp_path / "stopped" / CHECKPOINT), load_file(tmp_path / "straight" / CHECKPOINT))

    def untimed(history):
        return [{name: value for name, value in entry.items() if name != "seconds"} for entry in history]

    assert untimed(metrics["history"]) == untimed(reference["history"])
    assert metrics == json.loads((tmp_path / "stopped" / "metrics.json").read_text())


def test_resumed_double_precision_run_equals_one_never_stopped(digits, tmp_path, monkeypatch):
    double = tuple((images.double(), labels) for images, labels in digits)
    straight, _ = train(double, network(dtype=torch.float64))
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            train(double, network(dtype=torch.float64), out=tmp_path)
    resumed, _ = train(double, network(dtype=torch.float64), out=tmp_path, resume=True)
    assert same(weights(resumed), weights(straight))


def test_resumed_run_on_distorted_digits_equals_one_never_stopped(digits, tmp_path, monkeypatch):
    straight, metrics = train(digits, augment=True)
    plain, _ = train(digits)
    assert not same(weights(straight), weights(plain))
    assert metrics["settings"]["augment"] is True
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            train(digits, augment=True, out=tmp_path)
    with pytest.raises(ValueError, match="augment expected True, got False"):
        train(digits, network(seed=9), out=tmp_path, resume=True)
    resumed, _ = train(digits, network(seed=9), augment=True, out=tmp_path, resume=True)
    assert same(weights(resumed), weights(straight))


def test_distorting_needs_square_images_and_says_so_at_once(digits):
    cut = tuple((images[:, :99], labels) for images, labels in digits)
    with pytest.raises(ValueError, match="distort expects square images"):
        train(cut, SpinWaveMLP((99, 10)), augment=True)


def test_augmenting_needs_grey_values_from_zero(digits):
    below = tuple((images - 0.1, labels) for images, labels in digits)
    with pytest.raises(ValueError, match=r"augment expects grey values from 0, the background, got -0\.1"):
        train(below, augment=True)


def test_a_network_in_evaluation_mode_is_trained_in_training_mode(digits):
    model = network().eval()
    train(digits, model)
    assert model.training


def with_other_physics(model):
    model.layers[2].physics = SpinWaveParameters(coupling_total=3.0)


def with_another_activation(model):
    model.layers[1] = nn.Tanh()


def with_bias(model):
    model.layers[2] = SpinWaveLinear(8, 10, bias=True)


def with_a_tie(model):
    model.layers[2].weight = model.layers[0].weight


def with_weight_norm(model):
    nn.utils.parametrizations.weight_norm(model.layers[0])


@pytest.mark.parametrize(
    "change", [with_other_physics, with_another_activation, with_bias, with_a_tie, with_weight_norm]
)
def test_a_run_refuses_a_network_that_its_checkpoint_would_not_bring_back(change, digits, tmp_path):
    model = SpinWaveMLP((100, 8, 10))
    change(model)
    with pytest.raises(ValueError, match="must train a SpinWaveMLP as it was built"):
        train(digits, model, out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_run_is_not_resumed_in_another_dtype(digits, tmp_path):
    train(digits, out=tmp_path, epochs=1)
    double = tuple((images.double(), labels) for images, labels in digits)
    with pytest.raises(ValueError, match=r"in another dtype: has torch.float32, got torch.float64"):
        train(double, network().double(), out=tmp_path, epochs=1, resume=True)


def test_train_and_test_images_of_two_dtypes_are_refused(digits):
    (images, labels), test = digits
    with pytest.raises(ValueError, match=r"the same dtype, got shapes .* torch.float64 and torch.float32"):
        train(((images.double(), labels), test))


def test_resuming_a_finished_run_changes_nothing(digits, tmp_path):
    model, metrics = train(digits, out=tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again, repeated = train(digits, network(seed=9), out=tmp_path, resume=True)
    assert same(weights(again), weights(model))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files
    for name in ("test_accuracy", "test_loss", "epochs", "history", "confusion", "settings"):
        assert repeated[name] == metrics[name]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"epochs": 4}, "epochs expected 3, got 4"),
        ({"batch_size": 50}, "batch_size expected 100, got 50"),
        ({"learning_rate": 0.1}, "learning_rate expected 0.2, got 0.1"),
        ({"seed": 1}, "seed expected 0, got 1"),
        ({"notes": {"data": "kmnist"}}, "data expected None, got kmnist"),
    ],
)
def test_resume_refuses_other_settings(digits, stopped, options, name):
    before = (stopped / CHECKPOINT).read_bytes()
    with pytest.raises(ValueError, match=name):
        train(digits, out=stopped, resume=True, **options)
    assert (stopped / CHECKPOINT).read_bytes() == before


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ({"sizes": (100, 9, 10)}, r"sizes expected \[100, 8, 10\], got \[100, 9, 10\]"),
        ({"model": "discretized"}, "model expected continuum, got discretized"),
        ({"parameters": SpinWaveParameters(detuning=0)}, "parameters expected .*'detuning': 6000.0.*'detuning': 0.0"),
    ],
)
def test_resume_refuses_another_network(digits, stopped, model, name):
    with pytest.raises(ValueError, match=name):
        train(digits, network(**model), out=stopped, resume=True)


def test_notes_with_tuples_can_be_resumed(digits, tmp_path):
    train(digits, out=tmp_path, epochs=1, notes={"shape": (10, 10)})
    train(digits, out=tmp_path, epochs=1, notes={"shape": (10, 10)}, resume=True)


def test_notes_cannot_replace_settings(digits):
    settings = train(digits, epochs=1, notes={"seed": 7, "augment": True})[1]["settings"]
    assert (settings["seed"], settings["augment"]) == (0, False)


def test_numbers_of_other_libraries_are_numbers(digits, tmp_path):
    steps = {"epochs": np.int64(2), "batch_size": torch.tensor(100)}
    _, metrics = train(digits, out=tmp_path, learning_rate=np.float32(0.25), seed=np.int8(3), **steps)
    plain = train(digits, epochs=2, batch_size=100, learning_rate=0.25, seed=3)[1]
    assert metrics["settings"] == plain["settings"]
    assert metrics["test_loss"] == plain["test_loss"]


# ---- bad arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be an integer >= 1, got 0"),
        ({"epochs": 1.5}, "epochs .* got 1.5"),
        ({"epochs": True}, "epochs .* got True"),
        ({"batch_size": -1}, "batch_size must be an integer >= 1, got -1"),
        ({"learning_rate": 0.0}, "learning_rate must be positive and finite, got 0.0"),
        ({"learning_rate": -0.1}, "learning_rate"),
        ({"learning_rate": "fast"}, "learning_rate must be a number, got 'fast'"),
        ({"learning_rate": math.nan}, "learning_rate .* got nan"),
        ({"learning_rate": math.inf}, "learning_rate .* got inf"),
        ({"seed": -1}, "seed must be an integer from 0 to 2147483647, got -1"),
        ({"seed": 2**31}, "seed"),
        ({"device": "abacus"}, "device must be one of cpu.* got 'abacus'"),
        ({"device": 3.5}, "device must be one of cpu.* got 3.5"),
        ({"device": "meta"}, "device must be one of cpu.* got 'meta'"),
        ({"device": "cuda:77"}, "device must be one of cpu.* got 'cuda:77'"),
        ({"graph": True, "device": "cpu"}, "graph expects one process on an NVIDIA GPU, got 1 on cpu"),
        ({"resume": True}, "resume needs out"),
        ({"notes": {"x": object()}}, "notes must be a dict that JSON can hold"),
        ({"notes": {"x": math.nan}}, "notes must be a dict that JSON can hold"),
        ({"notes": ["mnist"]}, "notes must be a dict that JSON can hold"),
    ],
)
def test_bad_argument_is_named(digits, options, message):
    with pytest.raises(ValueError, match=message):
        train(digits, **options)


@pytest.mark.parametrize("which", [0, 1], ids=["train", "test"])
@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(0, 100), torch.zeros(0, dtype=torch.int64), r"got torch.float32 of shape \(0, 100\)"),
        (torch.zeros(4, 10, 10), torch.zeros(4, dtype=torch.int64), r"\(N, features\).* got .*\(4, 10, 10\)"),
        (torch.zeros(100), torch.zeros(1, dtype=torch.int64), r"shape \(100,\)"),
        (torch.zeros(4, 100, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64), "got torch.uint8"),
        (torch.ones(4, 100), torch.zeros(3, dtype=torch.int64), r"int64 of shape \(4,\), got .*\(3,\)"),
        (torch.ones(4, 100), torch.zeros(4), "labels must be int64 .* got torch.float32"),
        (torch.ones(4, 100), torch.full((4,), 10), "labels must be from 0 to 9.* got 10 to 10"),
        (torch.ones(4, 100), torch.full((4,), -1), "labels must be from 0 to 9.* got -1 to -1"),
        (torch.ones(4, 99), torch.zeros(4, dtype=torch.int64), "must have the same number of features"),
        ([[0.0] * 100], [1], "must be tensors, got list and list"),
    ],
)
def test_bad_data_are_named(digits, tmp_path, which, images, labels, message):
    data = list(digits)
    data[which] = images, labels
    with pytest.raises(ValueError, match=message):
        train(data, out=tmp_path)
    assert not (tmp_path / CHECKPOINT).exists()


def test_model_and_data_of_different_size_are_named(digits):
    with pytest.raises(ValueError, match=r"shape \(..., 90\), got \(400, 100\)"):
        train(digits, network((90, 10)))


def test_evaluate_checks_its_data():
    with pytest.raises(ValueError, match="evaluation images"):
        evaluate(nn.Identity(), torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"evaluation labels must be from 0 to 2.* got 0 to 3"):
        evaluate(nn.Identity(), torch.zeros(2, 3), torch.tensor([0, 3]))


def test_a_folder_needs_a_network_it_can_describe(digits, tmp_path):
    with pytest.raises(ValueError, match="must train a SpinWaveMLP, got Sequential"):
        train(digits, nn.Sequential(nn.Linear(100, 10)), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---- as notebooks use it


def test_plain_linear_network_trains_without_a_folder(digits):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 20), nn.ReLU(), nn.Linear(20, 10))
    _, metrics = train(digits, model, epochs=8, batch_size=50, learning_rate=0.02)
    assert metrics["test_accuracy"] > 0.7
    assert metrics["parameters"] is None


def test_nothing_is_printed_without_progress(digits, capfd):
    train(digits)
    assert capfd.readouterr() == ("", "")


def test_progress_bar_shows_the_accuracy(digits, capfd):
    _, metrics = train(digits, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "12/12" in err
    assert f"test accuracy {metrics['test_accuracy']:.2%}" in err


def test_data_move_to_the_device_once(digits, monkeypatch):
    moved = []
    original = torch.Tensor.to

    def count(self, *args, **kwargs):
        moved.append(self.data_ptr())
        return original(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", count)
    train(digits)
    for split in digits:
        for tensor in split:
            assert moved.count(tensor.data_ptr()) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_training_on_a_gpu(digits, tmp_path):
    model, _ = train(digits, device="cuda", out=tmp_path)
    assert model.layers[0].weight.is_cuda
    loaded, _, _ = load_checkpoint(tmp_path)
    assert same(weights(loaded), weights(model.cpu()))
    with pytest.raises(Diverged, match="diverged"):
        train(digits, device="cuda", learning_rate=1e30)


# ---- divergence


@pytest.mark.parametrize(
    "learning_rate",
    [*(pytest.param(rate, marks=pytest.mark.slow) for rate in (1e4, 1e12)), 1e30, 1e200],
    ids=str,
)
@pytest.mark.parametrize("model", ["continuum", "discretized"])
def test_huge_learning_rate_diverges(digits, tmp_path, model, learning_rate):
    physics = SpinWaveParameters(points=10)
    with pytest.raises(Diverged, match=r"diverged in epoch 1: .*smaller learning rate.*nothing was saved"):
        train(digits, network(parameters=physics, model=model), learning_rate=learning_rate, out=tmp_path)
    assert not (tmp_path / CHECKPOINT).exists()


def test_an_error_of_the_model_is_not_told_as_divergence(digits):
    """BatchNorm refuses a batch of one image, here the last of each epoch."""
    model = nn.Sequential(nn.BatchNorm1d(100), nn.Linear(100, 10))
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        train(digits, model, batch_size=len(digits[0][0]) - 1)


def test_loss_that_is_not_finite_stops_at_once_on_the_cpu(digits, monkeypatch):
    losses = [math.nan]
    monkeypatch.setattr(training.F, "cross_entropy", lambda logits, *_, **__: logits.sum() * losses.pop())
    monkeypatch.setattr(training, "evaluate", lambda *_: {"loss": 2.3, "accuracy": 0.1, "confusion": range(10)})
    with pytest.raises(Diverged, match="diverged in epoch 1: the loss became nan"):
        train(digits)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", [0, 1], ids=["train", "test"])
def test_images_that_are_not_finite_count_as_divergence(digits, stopped, which, bad):
    data = [(images.clone(), labels) for images, labels in digits]
    data[which][0][7, 50] = bad
    before = (stopped / CHECKPOINT).read_bytes()
    with pytest.raises(Diverged, match="images hold NaN or infinity"):
        train(data)
    with pytest.raises(Diverged):
        train(data, out=stopped, resume=True)
    assert (stopped / CHECKPOINT).read_bytes() == before


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["loss", "weights", "test loss"])
def test_divergence_keeps_the_last_good_checkpoint(digits, tmp_path, monkeypatch, where, bad):
    """Spoil the second epoch; what the first one saved stays and can be resumed to the regular end."""
    straight, _ = train(digits)
    model = network()

    def spoil(folder, *rest, original=training.save_checkpoint):
        original(folder, *rest)
        if where == "weights":
            model.layers[0].weight.data[0, 0] = bad
        elif where == "loss":
            patch.setattr(training.F, "cross_entropy", lambda logits, *_, **__: logits.sum() * bad)
        else:
            patch.setattr(training, "evaluate", lambda *_: {"loss": bad, "accuracy": 0.1})

    with monkeypatch.context() as patch:
        patch.setattr(training, "save_checkpoint", spoil)
        with pytest.raises(Diverged, match=r"diverged in epoch 2: .* \(epoch 1 is kept in "):
            train(digits, model, out=tmp_path)
    assert len(load_checkpoint(tmp_path)[1]["history"]) == 1
    assert json.loads((tmp_path / "metrics.json").read_text())["epochs"] == 1
    resumed, _ = train(digits, out=tmp_path, resume=True)
    assert same(weights(resumed), weights(straight))


# ---- the folder


def test_folder_with_a_run_is_not_overwritten(digits, stopped):
    before = {path.name: path.read_bytes() for path in stopped.iterdir()}
    with pytest.raises(ValueError, match="already holds a run: resume it, or choose another folder"):
        train(digits, out=stopped)
    assert {path.name: path.read_bytes() for path in stopped.iterdir()} == before


def test_resume_needs_a_checkpoint(digits, tmp_path):
    with pytest.raises(ValueError, match=r"resume expects a checkpoint at .*there is none"):
        train(digits, out=tmp_path / "nowhere", resume=True)
    assert not (tmp_path / "nowhere").exists()


def test_folder_below_a_file_is_refused(digits, tmp_path):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ValueError, match=r"output folder .* cannot be written"):
            train(digits, out=out)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_folder_in_proc_is_refused(digits):
    with pytest.raises(ValueError, match="output folder /proc/run cannot be written"):
        train(digits, out="/proc/run")


@pytest.mark.skipif(training.fcntl is None, reason="no file locks")
def test_folder_in_use_is_refused(digits, tmp_path):
    in_use = pytest.raises(ValueError, match="in use by another training")
    with training.open_folder(tmp_path, resume=False), in_use:
        train(digits, out=tmp_path)
    train(digits, out=tmp_path)


def test_package_needs_no_locks(digits, tmp_path, monkeypatch):
    """As on Windows, where there is no fcntl."""
    monkeypatch.setattr(training, "fcntl", None)
    train(digits, out=tmp_path, epochs=1)


# ---- checkpoints


def test_checkpoint_gives_the_network_back(digits, tmp_path):
    physics = SpinWaveParameters(coupling_total=3.0, points=20)
    model, metrics = train(digits, network(parameters=physics, model="discretized"), out=tmp_path)
    for place in (tmp_path, tmp_path / CHECKPOINT, str(tmp_path)):
        loaded, described, _ = load_checkpoint(place)
        assert same(weights(loaded), weights(model))
        assert (loaded.sizes, loaded.model, loaded.physics) == ((100, 8, 10), "discretized", physics)
        assert described["history"] == metrics["history"]
    assert evaluate(loaded, *digits[1])["accuracy"] == metrics["test_accuracy"]


def test_checkpoint_holds_the_optimiser(digits, tmp_path):
    train(digits, out=tmp_path)
    _, _, tensors = load_checkpoint(tmp_path)
    assert {name.split(".")[-1] for name in tensors} == {"step", "exp_avg", "exp_avg_sq"}
    assert tensors["optimizer.0.step"] == 12


@pytest.mark.parametrize("failing", ["replace", "fsync", "write"])
def test_failed_write_keeps_the_old_checkpoint(digits, stopped, monkeypatch, failing):
    before = {path.name: path.read_bytes() for path in stopped.iterdir()}

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Full(io.FileIO):
        """A file that takes a little and then finds the disk full."""

        def write(self, content):
            super().write(content[:1000])
            full()

    with monkeypatch.context() as patch:
        if failing == "write":
            patch.setattr(
                training, "open", lambda file, mode: (Full if mode == "wb" else open)(file, mode), raising=False
            )
        else:
            patch.setattr(os, failing, full)
        with pytest.raises(OSError, match=r"could not be written, what was there is kept: .*No space left"):
            train(digits, out=stopped, resume=True)
    assert {path.name: path.read_bytes() for path in stopped.iterdir()} == before
    straight, _ = train(digits)
    assert same(weights(train(digits, out=stopped, resume=True)[0]), weights(straight))


@pytest.mark.parametrize("when", ["before the checkpoint", "after the checkpoint"])
def test_run_killed_between_its_two_files_heals(digits, tmp_path, monkeypatch, when):
    """The last epoch writes one of metrics and checkpoint and dies; resuming makes both agree."""
    _, reference = train(digits)
    replaced = []

    def die(source, target, original=os.replace):
        if when == "after the checkpoint":
            original(source, target)
        replaced.append(target)
        if len(replaced) == 6:
            raise KeyboardInterrupt
        if when == "before the checkpoint":
            original(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            train(digits, out=tmp_path)
    train(digits, out=tmp_path, resume=True)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["epochs"] == len(load_checkpoint(tmp_path)[1]["history"]) == 3
    assert metrics["test_loss"] == reference["test_loss"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", CHECKPOINT, "metrics.json"]


def test_stale_temporary_files_do_no_harm(digits, tmp_path):
    for name in (CHECKPOINT, "metrics.json"):
        (tmp_path / f".{name}.tmp").write_bytes(b"half a fi")
    (tmp_path / ".lock").touch()
    train(digits, out=tmp_path)
    load_checkpoint(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", CHECKPOINT, "metrics.json"]


def header_of(content):
    return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]


def flip(content, position):
    return content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]


def altered_tensor(content):
    tensors = load(content)
    tensors["model.layers.0.weight"] *= 2
    return save(tensors, header_of(content))


def altered_header(content, **changes):
    return save(load(content), header_of(content) | changes)


DAMAGES = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "last byte missing": lambda content: content[:-1],
    "longer": lambda content: content + b"\0",
    "not safetensors": lambda content: b"PK\x03\x04" + b"pickle" * 100,
    "flipped bit in the weights": lambda content: flip(content, len(content) - 100),
    "flipped bit in the header": lambda content: flip(content, 40),
    "other weights": altered_tensor,
    "wrong JSON": lambda content: altered_header(content, spinwave="{not json"),
    "JSON of another kind": lambda content: altered_header(content, spinwave="[1, 2]"),
    "other settings": lambda content: altered_header(
        content, spinwave=header_of(content)["spinwave"].replace("continuum", "discretized")
    ),
    "no header": lambda content: save(load(content)),
    "header of another program": lambda content: save(load(content), {"format": "pt"}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint_is_refused_and_kept(digits, stopped, damage):
    file = stopped / CHECKPOINT
    damaged = DAMAGES[damage](file.read_bytes())
    file.write_bytes(damaged)
    with pytest.raises(ValueError, match=rf"{CHECKPOINT} \({len(damaged)} bytes\) is not a whole checkpoint"):
        load_checkpoint(stopped)
    with pytest.raises(ValueError, match="is not a whole checkpoint"):
        train(digits, out=stopped, resume=True)
    assert file.read_bytes() == damaged


@pytest.mark.parametrize(
    "described",
    [
        "{not json",
        "[1, 2]",
        "{}",
        '{"settings": {"sizes": [100, 10], "model": "continuum"}, "parameters": {"colour": 1}, "history": []}',
        '{"settings": {"sizes": [100, 10], "model": "psychic"}, "parameters": {}, "history": []}',
        '{"settings": {"sizes": [100, 10], "model": "continuum"}, "parameters": {"points": 1}, "history": []}',
        '{"settings": {"sizes": [100, 8, 10], "model": "continuum"}, "parameters": {}, "history": []}',
        '{"settings": {"sizes": [99, 10], "model": "continuum"}, "parameters": {}, "history": []}',
        '{"settings": {"sizes": [], "model": "continuum"}, "parameters": {}, "history": []}',
    ],
)
def test_header_that_does_not_describe_the_tensors_is_refused(tmp_path, described):
    """With a valid checksum, as another version of the program might write."""
    tensors = {f"model.{name}": tensor for name, tensor in network((100, 10)).state_dict().items()}
    header = {"spinwave": described, "sha256": training._digest(described, tensors)}
    save_file(tensors, tmp_path / CHECKPOINT, header)
    with pytest.raises(ValueError, match="is not a whole checkpoint of a spin-wave network"):
        load_checkpoint(tmp_path)


def test_checkpoint_of_an_ordinary_network_is_refused(tmp_path):
    save_file(nn.Linear(100, 10).state_dict(), tmp_path / CHECKPOINT)
    with pytest.raises(ValueError, match="not a whole checkpoint of a spin-wave network"):
        load_checkpoint(tmp_path)


def test_pickle_in_place_of_a_checkpoint_is_not_executed(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (tmp_path / "exploded").touch, ()

    torch.save(Bomb(), tmp_path / CHECKPOINT)
    with pytest.raises(ValueError, match="not a whole checkpoint"):
        load_checkpoint(tmp_path)
    assert not (tmp_path / "exploded").exists()


def test_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(ValueError, match=f"expected a checkpoint at .*{CHECKPOINT}: No such file"):
        load_checkpoint(tmp_path)
    with pytest.raises(ValueError, match=r"expected a checkpoint at .*nowhere: No such file"):
        load_checkpoint(tmp_path / "nowhere")


# ---- what a run says of itself


@pytest.mark.parametrize("error", [FileNotFoundError("git"), subprocess.TimeoutExpired("git", 10)], ids=repr)
def test_environment_of_a_machine_without_git_or_proc(monkeypatch, error):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(subprocess, "run", fail)
    monkeypatch.setattr(training.Path, "read_text", lambda self: (_ for _ in ()).throw(OSError()))
    found = training.environment(torch.device("cpu"))
    assert found["revision"] is None
    assert found["cpu"]


def test_installed_package_has_no_revision(tmp_path, monkeypatch):
    """Not even inside somebody else's repository."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    monkeypatch.setattr(training, "__file__", str(tmp_path / "lib" / "spinwave" / "training.py"))
    assert training.environment(torch.device("cpu"))["revision"] is None


# ---- figures


def test_a_notebook_shows_figures_as_png():
    assert confusion_matrix([[5, 1], [0, 7]])._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("accuracy", [0.5, 1.0])
def test_learning_curves_show_every_run(tmp_path, accuracy):
    """A run without a single mistake has no logarithm of its error."""
    entry = {"epoch": 1, "train_loss": 0.3, "test_loss": 0.2, "test_accuracy": accuracy, "seconds": 1.0}
    figure = learning_curves({"one": [entry], "two": [entry]})
    figure.savefig(tmp_path / "curves.png")
    loss, error = figure.axes
    assert [text.get_text() for text in error.get_legend().get_texts()] == ["one", "two"]
    assert error.lines[0].get_ydata() == [100 * (1 - accuracy)]
    assert loss.lines[0].get_ydata() == [0.3]


def test_learning_curves_label_their_axes_with_plain_numbers(tmp_path):
    rows = enumerate([(0.6, 0.92), (0.2, 0.96), (0.03, 0.98)])
    history = [{"epoch": e, "train_loss": loss, "test_loss": loss, "test_accuracy": a} for e, (loss, a) in rows]
    figure = learning_curves({"one": history})
    figure.savefig(tmp_path / "curves.png")
    loss, error = ({text.get_text() for text in a.yaxis.get_ticklabels(which="both")} for a in figure.axes)
    assert {"0.1", "0.2"} <= loss
    assert {"2", "4", "6"} <= error
    assert not any("$" in text for text in loss | error)  # no powers of ten


def test_confusion_matrix_shows_the_counts(tmp_path):
    figure = confusion_matrix([[5, 1], [0, 7]])
    figure.savefig(tmp_path / "confusion.png")
    assert [text.get_text() for text in figure.axes[0].texts] == ["5", "1", "0", "7"]
    assert figure.axes[0].images[0].get_array().tolist() == [[0, 1], [0, 0]]
