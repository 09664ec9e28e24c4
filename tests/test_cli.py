"""The command line: what it writes, what it refuses, and how it ends."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import spinwave.__main__ as cli
from spinwave import load_checkpoint, training

CHECKPOINT = "checkpoint.safetensors"
WRITTEN = [".lock", CHECKPOINT, "confusion.png", "learning_curves.png", "metrics.json"]
SMALL = ["--limit", "400", "--hidden", "8", "--batch-size", "100", "--device", "cpu"]


def small(out, *more, epochs=3):
    """Arguments of a training that takes a tenth of a second."""
    return ["train", *SMALL, "--epochs", str(epochs), "--out", str(out), *map(str, more)]


def metrics_of(run):
    return json.loads((run / "metrics.json").read_text())


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folder of a finished run; tests that write into it take a copy."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    assert cli.main(small(folder)) == 0
    return folder


@pytest.fixture
def refused(capsys):
    """Run a command that must end with exit code 2 and one message; returns the message."""

    def run(arguments):
        try:
            code = cli.main(list(map(str, arguments)))
        except SystemExit as exit:  # argparse
            code = exit.code
        out, err = capsys.readouterr()
        assert (code, out) == (2, "")
        assert "Traceback" not in err
        return err

    return run


# ---- train and evaluate


def test_train_writes_the_run(tmp_path, capsys):
    assert cli.main(small(tmp_path / "new" / "run")) == 0
    out, err = capsys.readouterr()
    run = tmp_path / "new" / "run"
    assert sorted(path.name for path in run.iterdir()) == WRITTEN
    metrics = metrics_of(run)
    assert metrics.keys() >= {
        *("test_accuracy", "test_loss", "epochs", "seconds", "parameters", "environment", "history")
    }
    assert metrics["epochs"] == len(metrics["history"]) == 3
    assert f"test accuracy {metrics['test_accuracy']:.2%}" in out
    assert str(run) in out
    assert "12/12" in err  # the progress bar
    for name in ("confusion.png", "learning_curves.png"):
        assert (run / name).read_bytes().startswith(b"\x89PNG")


def test_evaluate_reproduces_the_accuracy(finished, capsys):
    assert cli.main(["evaluate", str(finished)]) == 0
    metrics = metrics_of(finished)
    expected = f"test accuracy {metrics['test_accuracy']:.2%}, loss {metrics['test_loss']:.4f} on 10000 images\n"
    assert capsys.readouterr().out == expected


def test_every_option_reaches_the_run(tmp_path):
    physics = {
        "coupling_total": 0.5,
        "readout_coupling": 3.0,
        "detuning": -20.0,
        "optical_depth": 50.0,
        "points": 7,
        "steepness": 40.0,
    }
    options = [f"--{name.replace('_', '-')}={value}" for name, value in physics.items()]
    arguments = small(tmp_path, "--seed", 3, "--lr", 0.1, "--model", "discretized", *options)
    assert cli.main(arguments) == 0
    metrics = metrics_of(tmp_path)
    assert metrics["parameters"] == physics
    assert metrics["settings"] == {
        "data": "mnist",
        "size": 10,
        "limit": 400,
        "augment": False,
        "deskew": False,
        "epochs": 3,
        "batch_size": 100,
        "learning_rate": 0.1,
        "seed": 3,
        "train_images": 400,
        "sizes": [100, 8, 10],
        "model": "discretized",
    }


def test_defaults_are_the_recipe(monkeypatch, tmp_path):
    """Those of `fit`, of the physics and of the question."""
    asked = {}

    def record(model, train, test, **options):
        asked.update(options, sizes=model.sizes, physics=model.physics, images=len(train[0]))
        raise ValueError("seen enough")

    monkeypatch.setattr(cli, "fit", record)
    cli.main(["train", "--out", str(tmp_path)])
    assert asked["sizes"] == (100, 100, 10)
    assert asked["physics"] == cli.SpinWaveParameters()
    assert asked["images"] == 60_000
    for name in ("epochs", "batch_size", "learning_rate", "seed", "resume", "compile"):
        assert asked[name] == training.fit.__kwdefaults__[name]


@pytest.mark.parametrize(("hidden", "sizes"), [([], [100, 10]), (["6", "5"], [100, 6, 5, 10])])
def test_hidden_layers(tmp_path, hidden, sizes):
    assert cli.main(["train", "--limit", "200", "--epochs", "1", "--out", str(tmp_path), "--hidden", *hidden]) == 0
    assert metrics_of(tmp_path)["settings"]["sizes"] == sizes
    assert load_checkpoint(tmp_path)[0].sizes == tuple(sizes)


def test_out_defaults_to_a_new_folder_below_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *SMALL, "--epochs", "1"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert sorted(path.name for path in run.iterdir()) == WRITTEN


@pytest.mark.slow
def test_discretized_model_trains(tmp_path):
    arguments = ["--model", "discretized", "--limit", "500", "--epochs", "1", "--out", str(tmp_path)]
    assert cli.main(["train", *arguments]) == 0
    assert metrics_of(tmp_path)["test_accuracy"] > 0.2


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
def test_compiled_training_agrees_with_the_ordinary_one(tmp_path):
    """In a process of its own: torch.compile starts others and may warn."""
    arguments = ["--compile", "--hidden"]
    result = python("-m", "spinwave", *small(tmp_path / "compiled", *arguments))
    assert (result.returncode, "Traceback" in result.stderr) == (0, False), result.stderr
    assert cli.main(small(tmp_path / "ordinary", *arguments[1:])) == 0
    compiled, ordinary = metrics_of(tmp_path / "compiled"), metrics_of(tmp_path / "ordinary")
    assert compiled["test_loss"] == pytest.approx(ordinary["test_loss"], rel=0.02)


@pytest.mark.slow
def test_compiling_without_a_compiler_is_explained(tmp_path):
    result = python("-m", "spinwave", *small(tmp_path, "--compile"), PATH="/nowhere", CXX="/nowhere/g++")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "No working C++ compiler" in result.stderr.splitlines()[-1]


def test_exhausted_memory_is_explained(monkeypatch, refused, tmp_path):
    def exhausted(*_arguments, **_options):
        raise MemoryError

    monkeypatch.setattr(cli, "fit", exhausted)
    assert "spinwave: not enough memory" in refused(small(tmp_path))


@pytest.mark.slow
def test_default_recipe_reaches_its_accuracy(tmp_path):
    assert cli.main(["train", "--out", str(tmp_path), "--device", "cpu"]) == 0
    assert metrics_of(tmp_path)["test_accuracy"] > 0.975


# ---- the same again


def test_same_seed_same_result(finished, tmp_path):
    assert cli.main(small(tmp_path / "again")) == 0
    again, first = load_file(tmp_path / "again" / CHECKPOINT), load_file(finished / CHECKPOINT)
    assert all(torch.equal(again[name], first[name]) for name in first)
    assert cli.main(small(tmp_path / "other", "--seed", 1)) == 0
    other = load_file(tmp_path / "other" / CHECKPOINT)
    assert not torch.equal(other["model.layers.0.weight"], first["model.layers.0.weight"])


@pytest.fixture
def stopped(tmp_path, monkeypatch, capsys):
    """Folder of a run with the options of `finished` that Ctrl-C stopped after its first epoch."""
    interrupt_at(monkeypatch, training, "save_checkpoint", call=1, after=True)
    assert cli.main(small(tmp_path / "run")) == 130
    monkeypatch.undo()
    capsys.readouterr()
    return tmp_path / "run"


def interrupt_at(monkeypatch, module, name, call, after=False):
    """Send this process a SIGINT just before (or after) the given call of a function."""
    original, calls = getattr(module, name), []

    def interrupted(*args, **kwargs):
        calls.append(name)
        if len(calls) == call and not after:
            signal.raise_signal(signal.SIGINT)
        result = original(*args, **kwargs)
        if len(calls) == call and after:
            signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(module, name, interrupted)


@pytest.mark.parametrize("repeated", [False, True], ids=["out only", "all options repeated"])
def test_resumed_run_equals_one_never_stopped(finished, stopped, repeated):
    arguments = small(stopped, "--resume") if repeated else ["train", "--resume", "--out", str(stopped)]
    assert cli.main(arguments) == 0
    resumed, straight = load_file(stopped / CHECKPOINT), load_file(finished / CHECKPOINT)
    assert resumed.keys() == straight.keys()
    assert all(torch.equal(resumed[name], straight[name]) for name in straight)
    assert metrics_of(stopped)["confusion"] == metrics_of(finished)["confusion"]
    assert sorted(path.name for path in stopped.iterdir()) == WRITTEN


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--epochs", "5"], "epochs expected 3, got 5"),
        (["--lr", "0.1"], "learning_rate expected 0.2, got 0.1"),
        (["--hidden", "9"], "sizes expected [100, 8, 10], got [100, 9, 10]"),
        (["--seed", "4"], "seed expected 0, got 4"),
        (["--limit", "300"], "limit expected 400, got 300"),
        (["--model", "discretized"], "model expected continuum, got discretized"),
        (["--detuning", "0"], "'detuning': 0.0"),
    ],
)
def test_resume_refuses_other_settings(stopped, refused, option, message):
    before = contents(stopped)
    assert message in refused(["train", "--resume", "--out", stopped, *option])
    assert contents(stopped) == before


def test_resuming_a_finished_run_is_harmless(finished, tmp_path):
    run = shutil.copytree(finished, tmp_path / "run")
    assert cli.main(["train", "--resume", "--out", str(run)]) == 0
    assert contents(run).keys() == contents(finished).keys()
    for name in (CHECKPOINT, "metrics.json"):
        assert (run / name).read_bytes() == (finished / name).read_bytes()


def test_a_run_on_deskewed_digits_remembers_it(finished, tmp_path, capsys, refused):
    run = tmp_path / "run"
    assert cli.main(small(run, "--deskew")) == 0
    assert metrics_of(run)["settings"]["deskew"] is True
    assert metrics_of(run)["history"] != metrics_of(finished)["history"]
    capsys.readouterr()
    assert cli.main(["evaluate", str(run)]) == 0
    metrics = metrics_of(run)
    score = f"test accuracy {metrics['test_accuracy']:.2%}, loss {metrics['test_loss']:.4f}"
    assert score in capsys.readouterr().out
    assert cli.main(["train", "--resume", "--out", str(run)]) == 0
    capsys.readouterr()
    assert "deskew expected False, got True" in refused(["train", "--resume", "--out", finished, "--deskew"])


# ---- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epochs", "0"], "epochs must be an integer >= 1, got 0"),
        (["--epochs", "many"], "argument --epochs: invalid int value: 'many'"),
        (["--hidden", "0"], "must be an integer >= 1, got 0"),
        (["--hidden", "-3"], "must be an integer >= 1, got -3"),
        (["--hidden", "99999999999"], "memory"),
        (["--hidden", "999999999999999999"], "overflow"),
        (["--hidden", str(10**19)], "every size must be an integer of 64 bits, got 10000000000000000000"),
        (["--batch-size", "0"], "batch_size must be an integer >= 1, got 0"),
        (["--lr", "-1"], "learning_rate must be positive and finite, got -1.0"),
        (["--lr", "nan"], "learning_rate must be positive and finite, got nan"),
        (["--seed", "-1"], "seed must be an integer from 0 to 2147483647, got -1"),
        (["--seed", str(2**70)], "seed must be an integer from 0 to 2147483647"),
        (["--device", "abacus"], "device must be one of cpu"),
        (["--model", "psychic"], "model must be one of continuum, discretized, got 'psychic'"),
        (["--coupling-total", "-1"], "coupling_total must be positive and finite, got -1.0"),
        (["--readout-coupling", "-1"], "readout_coupling must be positive and finite, got -1.0"),
        (["--optical-depth", "0"], "optical_depth must be positive and finite, got 0.0"),
        (["--detuning", "inf"], "detuning must be finite, got inf"),
        (["--points", "1"], "points must be an integer >= 2, got 1"),
        (["--steepness", "0"], "steepness must be positive, got 0.0"),
        (["--data", "cats"], "dataset must be one of mnist, fashion-mnist, kmnist, emnist-digits, got 'cats'"),
        (["--size", "1"], "size must be an integer from 2 to 28, got 1"),
        (["--limit", "0"], "--limit must be at least 1, got 0"),
        (["--root", "/no/such/folder"], "root must be an existing folder, got /no/such/folder"),
        (["--root", "~nobody-of-this-name/data"], "root must be the path of a folder, got '~nobody-of-this-name/data'"),
        (["--colour", "red"], "unrecognized arguments: --colour red"),
    ],
)
def test_bad_option_is_named(tmp_path, refused, options, message):
    assert message in refused(["train", "--out", tmp_path / "run", *options])
    assert not (tmp_path / "run").exists() or not (tmp_path / "run" / CHECKPOINT).exists()


def test_missing_data_set_is_explained(tmp_path, refused):
    message = refused(["train", "--data", "fashion-mnist", "--root", tmp_path, "--out", tmp_path / "run"])
    assert "fashion-mnist train data not found" in message
    assert "--download" in message


@pytest.mark.parametrize("command", [[], ["sing"], ["evaluate"]])
def test_bad_command_shows_the_usage(refused, command):
    assert "usage: python -m spinwave" in refused(command)


def test_resume_needs_a_run(tmp_path, refused):
    assert "--resume expects --out" in refused(["train", "--resume"])
    assert "expected a checkpoint at" in refused(["train", "--resume", "--out", tmp_path / "nowhere"])
    assert not (tmp_path / "nowhere").exists()


def test_run_is_not_overwritten(finished, refused):
    before = contents(finished)
    assert "already holds a run: resume it, or choose another folder" in refused(small(finished))
    assert contents(finished) == before


def test_folder_that_cannot_be_written_is_named(tmp_path, refused):
    (tmp_path / "file").write_text("mine")
    assert "file/run cannot be written: Not a directory" in refused(small(tmp_path / "file" / "run"))
    assert (tmp_path / "file").read_text() == "mine"


def test_figure_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "confusion.png").mkdir()
    assert cli.main(small(tmp_path)) == 2
    assert "spinwave: [Errno 21] Is a directory" in capsys.readouterr().err
    assert cli.main(["evaluate", str(tmp_path)]) == 0


@pytest.mark.parametrize("command", [["evaluate"], ["train", "--resume", "--out"]], ids=["evaluate", "resume"])
def test_damaged_checkpoint_is_refused(finished, tmp_path, refused, command):
    file = shutil.copytree(finished, tmp_path / "run") / CHECKPOINT
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    before = contents(file.parent)
    assert f"({len(content) - 1} bytes) is not a whole checkpoint" in refused([*command, file.parent])
    save_file({"weight": torch.ones(3)}, file)
    assert "is not a whole checkpoint of a spin-wave network" in refused([*command, file.parent])
    del before[CHECKPOINT]
    assert contents(file.parent).items() >= before.items()


@pytest.mark.parametrize("command", [["evaluate"], ["train", "--resume", "--out"]], ids=["evaluate", "resume"])
def test_run_without_a_data_set_is_refused(tmp_path, refused, command):
    data = torch.rand(20, 4), torch.arange(20) % 3
    training.fit(cli.SpinWaveMLP((4, 3)), data, data, epochs=1, device="cpu", out=tmp_path, progress=False)
    assert "does not say its data, size, limit" in refused([*command, tmp_path])


def test_full_disk_is_reported(stopped, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    before = contents(stopped)
    monkeypatch.setattr(os, "fsync", full)
    assert cli.main(["train", "--resume", "--out", str(stopped)]) == 2
    err = capsys.readouterr().err
    assert "could not be written, what was there is kept" in err
    assert "Traceback" not in err
    assert contents(stopped) == before


@pytest.fixture
def read_only(finished):
    """A copy of `finished` in a folder that this process may not write to."""
    base = Path(tempfile.mkdtemp())  # pytest's own is closed to other users
    base.chmod(0o755)
    run = shutil.copytree(finished, base / "run")
    (run / ".lock").chmod(0o444)
    run.chmod(0o555)
    root = os.geteuid() == 0
    if root:  # may write everywhere
        os.seteuid(65534)
    yield run
    if root:
        os.seteuid(0)
    run.chmod(0o755)
    shutil.rmtree(base)


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX permissions")
def test_read_only_run_is_evaluated_but_not_resumed(read_only, refused, capsys):
    before = contents(read_only)
    assert cli.main(["evaluate", str(read_only)]) == 0
    assert "on 10000 images" in capsys.readouterr().out
    assert "cannot be written: Permission denied" in refused(["train", "--resume", "--out", read_only])
    assert "cannot be written: Permission denied" in refused(small(read_only / "below"))
    assert contents(read_only) == before


@pytest.mark.parametrize(("message", "code"), [("not enough memory: 9 GB\nhint", 2), ("shapes differ", None)])
def test_only_a_lack_of_memory_is_bad_input(finished, monkeypatch, capsys, message, code):
    def fail(*args):
        raise RuntimeError(message)

    monkeypatch.setattr(cli, "evaluate", fail)
    if code is None:  # a fault of the program keeps its traceback
        with pytest.raises(RuntimeError, match=message):
            cli.main(["evaluate", str(finished)])
    else:
        assert cli.main(["evaluate", str(finished)]) == code
        assert capsys.readouterr().err == "spinwave: not enough memory: 9 GB\n"


# ---- divergence


def test_divergence_ends_with_exit_code_1(tmp_path, capsys):
    assert cli.main(small(tmp_path, "--lr", "1e30")) == 1
    err = capsys.readouterr().err
    assert "spinwave: training diverged in epoch 1" in err
    assert "smaller learning rate" in err
    assert "Traceback" not in err
    assert not (tmp_path / CHECKPOINT).exists()


def test_images_that_are_not_finite_end_with_exit_code_1(stopped, monkeypatch, capsys):
    def spoiled(*args, original=cli.load_mnist):
        images, labels = original(*args)
        images[5, 50] = float("nan")
        return images, labels

    before = contents(stopped)
    monkeypatch.setattr(cli, "load_mnist", spoiled)
    assert cli.main(["train", "--resume", "--out", str(stopped)]) == 1
    assert "images hold NaN or infinity" in capsys.readouterr().err
    assert contents(stopped) == before


# ---- Ctrl-C and kill


@pytest.mark.parametrize(
    ("module", "name", "call", "epochs"),
    [
        pytest.param(cli, "load_mnist", 2, 0, id="while loading"),
        pytest.param(torch.Tensor, "backward", 2, 0, id="in the first epoch"),
        pytest.param(torch.Tensor, "backward", 6, 1, id="in the second epoch"),
        pytest.param(training, "evaluate", 3, 1, id="while testing"),
        pytest.param(os, "fsync", 4, 1, id="while writing the second checkpoint"),
        pytest.param(os, "replace", 4, 1, id="before renaming the second checkpoint"),
    ],
)
def test_ctrl_c_ends_cleanly(finished, tmp_path, monkeypatch, capsys, module, name, call, epochs):
    run = tmp_path / "my run"
    interrupt_at(monkeypatch, module, name, call)
    assert cli.main(small(run)) == 130
    monkeypatch.undo()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.rstrip().endswith("spinwave: interrupted")
    assert "Traceback" not in err
    assert not list(tmp_path.rglob("*.tmp"))
    if epochs:
        assert len(load_checkpoint(run)[1]["history"]) == epochs
        _, _, advice = err.partition("Continue with: python -m spinwave ")
        assert cli.main(shlex.split(advice.splitlines()[0])) == 0
    else:
        assert "Nothing was saved yet. Start again with the same command." in err
        assert cli.main(small(run)) == 0
    assert metrics_of(run)["confusion"] == metrics_of(finished)["confusion"]


def python(*arguments, **surroundings):
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | surroundings
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)


@pytest.fixture
def running(tmp_path):
    """A training in a process of its own that has saved an epoch and is far from done; returns (process, folder)."""
    run = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "spinwave", *small(run, epochs=100_000)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    while not (run / CHECKPOINT).exists() and process.poll() is None:
        time.sleep(0.05)
    assert process.poll() is None, process.communicate()
    yield process, run
    process.kill()
    process.communicate()


def test_advice_after_ctrl_c_repeats_what_the_run_does_not_remember(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch, "compile", lambda model: model)
    interrupt_at(monkeypatch, training, "save_checkpoint", call=1, after=True)
    assert cli.main(small(tmp_path, "--compile", "--device", "cpu")) == 130
    advice = capsys.readouterr().err.partition("Continue with: python -m spinwave ")[2].splitlines()[0]
    assert shlex.split(advice) == ["train", "--resume", "--out", str(tmp_path), "--device", "cpu", "--compile"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_sigint_ends_the_process_with_130(running):
    process, run = running
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert f"Continue with: python -m spinwave train --resume --out {run}" in err
    assert err.endswith("spinwave: interrupted\n")
    assert load_checkpoint(run)[1]["history"]
    assert not list(run.glob(".*.tmp"))


@pytest.mark.slow
@pytest.mark.skipif(training.fcntl is None, reason="no file locks")
def test_second_training_in_a_folder_is_refused_until_the_first_is_killed(running, refused):
    process, run = running
    for arguments in (small(run), ["train", "--resume", "--out", run]):
        assert f"{run} is in use by another training" in refused(arguments)
    assert process.poll() is None
    process.kill()
    process.communicate()
    assert load_checkpoint(run)[1]["history"]
    assert "cannot be resumed with other settings: epochs expected 100000, got 3" in refused(small(run, "--resume"))


DIES = """
import os, signal, sys
import spinwave.__main__ as cli

calls = []

def die(*arguments, original=os.{name}):
    calls.append(arguments)
    if len(calls) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments)

os.{name} = die
cli.main(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_process_killed_while_it_writes_the_second_checkpoint_keeps_the_first(finished, tmp_path, name):
    assert python("-c", DIES.format(name=name), *small(tmp_path)).returncode == -signal.SIGKILL
    assert (tmp_path / f".{CHECKPOINT}.tmp").exists()
    assert len(load_checkpoint(tmp_path)[1]["history"]) == 1
    assert cli.main(["train", "--resume", "--out", str(tmp_path)]) == 0
    resumed, straight = load_file(tmp_path / CHECKPOINT), load_file(finished / CHECKPOINT)
    assert all(torch.equal(resumed[name], straight[name]) for name in straight)
    assert sorted(path.name for path in tmp_path.iterdir()) == WRITTEN


def test_exit_code_reaches_the_shell():
    result = python("-m", "spinwave", "train", "--points", "1")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
