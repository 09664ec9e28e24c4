"""Training in two processes under torchrun: the same result, written once, and an end for all when one ends.

Run by torchrun, this file is the program of the processes that `pair` starts.
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

import spinwave.__main__ as cli
from spinwave import Diverged, SpinWaveMLP, fit, load_checkpoint, load_mnist, training

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_available(), reason="this PyTorch has no torch.distributed"),
]

CHECKPOINT = "checkpoint.safetensors"
WRITTEN = [".lock", CHECKPOINT, "confusion.png", "learning_curves.png", "metrics.json"]
LONGEST = 300  # seconds; only so that nothing hangs for ever


def small(out, *more, epochs=3):
    """A training whose last batch is a single image, so that one process has no share in it."""
    options = ["--limit", "401", "--hidden", "8", "--batch-size", "100", "--device", "cpu"]
    return ["train", *options, "--epochs", str(epochs), "--out", str(out), *map(str, more)]


def torchrun(*program):
    """Start a program in two processes, at a free port."""
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *map(str, program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def end(process):
    """Wait for torchrun; returns exit code, stdout and stderr."""
    try:
        out, err = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun ends its processes, which hold the pipes
        pytest.fail(f"torchrun did not end: {process.communicate(timeout=LONGEST)}")
    return process.returncode, out, err.replace("\r", "\n")


def without_bar(err):
    return [line for line in err.splitlines() if line and "step" not in line]


def losses(history, name):
    return [entry[name] for entry in history]


def metrics_of(run):
    return json.loads((run / "metrics.json").read_text())


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Folder of a run in one process; tests that write into it take a copy."""
    folder = tmp_path_factory.mktemp("runs") / "alone"
    assert cli.main(small(folder)) == 0
    return folder


def assert_equal_to_rounding(run, reference):
    for name in ("train_loss", "test_loss"):
        expected = losses(metrics_of(reference)["history"], name)
        assert losses(metrics_of(run)["history"], name) == pytest.approx(expected, rel=1e-5)
    tensors = load_file(reference / CHECKPOINT)
    for name, tensor in load_file(run / CHECKPOINT).items():
        torch.testing.assert_close(tensor, tensors[name], rtol=1e-3, atol=1e-4)


# ---- the command


def test_two_processes_train_as_one(alone, tmp_path):
    run = tmp_path / "run"
    code, out, err = end(torchrun("-m", "spinwave", *small(run)))
    assert (code, without_bar(err)) == (0, [])
    assert err.count("| 0/15 [") == 1  # one bar
    assert out.count("test accuracy") == 1
    assert_equal_to_rounding(run, alone)
    assert sorted(path.name for path in run.iterdir()) == WRITTEN
    assert metrics_of(run)["environment"]["processes"] == 2
    assert metrics_of(run)["settings"] == metrics_of(alone)["settings"]


def test_two_processes_resume_what_one_began(alone, tmp_path, monkeypatch):
    def save_and_stop(*arguments, original=training.save_checkpoint):
        original(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, "save_checkpoint", save_and_stop)
        assert cli.main(small(tmp_path)) == 130
    assert metrics_of(tmp_path)["epochs"] == 1
    arguments = ["train", "--resume", "--out", tmp_path, "--device", "cpu", "--download"]  # nothing is missing
    code, _, err = end(torchrun("-m", "spinwave", *arguments))
    assert (code, without_bar(err)) == (0, [])
    assert_equal_to_rounding(tmp_path, alone)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--batch-size", 1], "spinwave: batch_size must be at least the number of processes, 2, got 1"),
        (["--device", "abacus"], "spinwave: device must be cpu or cuda, where each process takes its own GPU"),
        (["--colour", "red"], "python -m spinwave: error: unrecognized arguments: --colour red"),
        ([], "already holds a run: resume it, or choose another folder"),
    ],
)
def test_bad_input_is_named_once(alone, tmp_path, options, message):
    run = shutil.copytree(alone, tmp_path / "run")
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    code, out, err = end(torchrun("-m", "spinwave", *small(run, *options)))
    assert (code, out) == (1, "")  # of torchrun
    assert err.count(message) == 1
    assert "exitcode  : 2" in err
    assert str(Path(cli.__file__).parent) not in err  # no traceback through the package
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


# ---- the end of one is the end of all


@pytest.fixture
def running(tmp_path):
    """A training of two processes that has saved an epoch and is far from done: (torchrun, pids by rank, folder)."""
    run = tmp_path / "run"
    process = torchrun("-m", "spinwave", *small(run, epochs=150))
    while not (run / CHECKPOINT).exists() and process.poll() is None:
        time.sleep(0.05)
    pids = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"PPid:\t{process.pid}\n" in (folder / "status").read_text():
                variables = (folder / "environ").read_text().split("\0")
                pids |= {int(text[5:]): int(folder.name) for text in variables if text.startswith("RANK=")}
        except OSError:  # a process that has just ended
            continue
    assert pids.keys() == {0, 1}
    yield process, pids, run
    process.terminate()
    process.communicate(timeout=LONGEST)


def assert_run_can_go_on(run):
    history = load_checkpoint(run)[1]["history"]
    assert 0 < len(history) < 150
    assert cli.main(["train", "--resume", "--out", str(run), "--device", "cpu"]) == 0
    assert load_checkpoint(run)[1]["history"][: len(history)] == history
    assert metrics_of(run)["epochs"] == 150


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("rank", [0, 1])
def test_killed_process_ends_the_training(running, rank):
    process, pids, run = running
    os.kill(pids[rank], signal.SIGKILL)
    code, out, err = end(process)
    assert (code, out) == (1, "")
    assert err.count("spinwave: another process of this training has ended") == 1
    advice = "The last saved epoch is kept. Continue with: torchrun --nproc-per-node 2 -m spinwave train --resume"
    assert err.count(f"{advice} --out {run} --device cpu") == 1
    assert str(Path(cli.__file__).parent) not in err  # no traceback through the package
    assert not Path("/proc", str(pids[1 - rank])).exists()
    assert_run_can_go_on(run)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_ctrl_c_ends_the_training(running):
    process, pids, run = running
    process.send_signal(signal.SIGINT)
    code, out, err = end(process)
    assert (code, out) == (1, "")
    assert err.count("The last saved epoch is kept. Continue with: torchrun --nproc-per-node 2") == 1
    assert err.count("\nspinwave: ") == 1
    assert str(Path(cli.__file__).parent) not in err
    assert not any(Path("/proc", str(pid)).exists() for pid in pids.values())
    assert not list(run.glob(".*.tmp"))
    assert_run_can_go_on(run)


# ---- fit in a process group


def train(epochs=3, **options):
    """The training of `small` in float64, where rounding leaves no doubt; returns network and metrics."""
    (images, labels), (test_images, test_labels) = load_mnist("train"), load_mnist("test")
    train, test = (images[:401].double(), labels[:401]), (test_images[:500].double(), test_labels[:500])
    torch.manual_seed(0)
    model = SpinWaveMLP((100, 8, 10), dtype=torch.float64)
    shares = []

    def count(_, inputs):
        if torch.is_grad_enabled():  # not while testing
            shares.append(len(inputs[0]))

    model.register_forward_pre_hook(count)
    options = {"epochs": epochs, "batch_size": 100, "device": "cpu", "progress": True} | options
    return model, fit(model, train, test, **options), shares


def program(folder):
    """What each of two processes does."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model, metrics, shares = train(out=folder / "run")
    raised = {}

    def note(name, **options):
        try:
            train(**options)
        except (Diverged, OSError, ValueError) as error:
            raised[name] = f"{type(error).__name__}: {error}"

    note("small batch", batch_size=1)
    note("folder", out=folder / "run")
    note("diverged", learning_rate=1e30)
    original = training.F.cross_entropy
    if rank == 1:
        training.F.cross_entropy = lambda *arguments, **options: original(*arguments, **options) * math.nan
    note("NaN in one process", epochs=1)
    training.F.cross_entropy = original
    if rank == 0:
        os.fsync = lambda _: os.open(folder / "missing" / "file", os.O_RDONLY)
    note("disk", out=folder / "full")
    result = {"raised": raised, "history": metrics["history"], "shares": shares, "weights": model.state_dict()}
    torch.save(result, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Folder and results of the two processes."""
    folder = tmp_path_factory.mktemp("pair")
    code, out, err = end(torchrun(__file__, folder))
    assert (code, out, without_bar(err)) == (0, "", [])
    return folder, [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


def test_double_precision_loss_curve_is_that_of_one_process(pair):
    model, metrics, _ = train(progress=False)
    for result in pair[1]:
        for name, error in (("train_loss", 1e-6), ("test_loss", 1e-12)):  # the former is summed in float32
            expected = losses(metrics["history"], name)
            assert losses(result["history"], name) == pytest.approx(expected, rel=error)
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(result["weights"][name], tensor, rtol=1e-9, atol=1e-9)


def test_processes_hold_the_same_weights(pair):
    one, other = (result["weights"] for result in pair[1])
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_each_process_computes_its_share(pair):
    assert [result["shares"] for result in pair[1]] == [[50, 50, 50, 50, 1] * 3, [50, 50, 50, 50, 0] * 3]


def test_one_folder_is_written(pair):
    folder, _ = pair
    assert sorted(path.name for path in (folder / "run").iterdir()) == [".lock", CHECKPOINT, "metrics.json"]
    assert len(load_checkpoint(folder / "run")[1]["history"]) == 3


def test_errors_are_raised_in_every_process(pair):
    folder, results = pair
    one, other = (result["raised"] for result in results)
    assert one == other
    assert one["small batch"] == "ValueError: batch_size must be at least the number of processes, 2, got 1"
    assert one["folder"].startswith(f"ValueError: {folder / 'run'} already holds a run")
    assert one["diverged"].startswith("Diverged: training diverged in epoch 1")
    assert one["NaN in one process"].startswith("Diverged: training diverged in epoch 1")
    assert "OSError: " in one["disk"]
    assert "could not be written, what was there is kept" in one["disk"]


if __name__ == "__main__":
    program(Path(sys.argv[1]))
