"""The benchmark of the ladder. Nothing here asserts a time."""

import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from spinwave import bench, figures
from spinwave.__main__ import main
from spinwave.ladder import RUNGS
from spinwave.training import environment

RESULTS = sorted((Path(__file__).parent.parent / "benchmarks" / "results").glob("*.json"))


def made_up(contender, seconds, batch=1, **more):
    """A row as if measured, with a few per cent of spread."""
    timings = {"forward": [0.3 * seconds] * 3, "step": [seconds, 0.98 * seconds, 1.05 * seconds]}
    return {
        "contender": contender,
        "network": "100-100-10",
        "batch": batch,
        "device": "cpu",
        "dtype": "float32",
        "estimated_bytes": 10**9,
        "measured": None,
        "factor": 1.0,
        "seconds": timings,
        "floor": {"forward": [1e-5] * 3, "step": [1e-4] * 3},
        "memory": {"forward": 2e6, "step": 3e9},
        "error": 2e-7,
        "gradient_error": 4e-7,
        "first_call": 1.0,
        **more,
    }


@pytest.fixture
def results():
    cut = {"digits": 1, "neurons": 1, "modes": 50}
    rows = [
        made_up("looped", 0.25, measured=cut, factor=220.0),
        made_up("neurons", 2.5, measured={"digits": 1, "neurons": 100, "modes": 4}, factor=27.5),
        made_up("separable", 0.05),
        made_up("continuum", 0.0005, error=0.09),
        made_up("linear", 0.0001, error=None, gradient_error=None, memory={"forward": 0, "step": 12288}),
        {**made_up("compiled", 1.0), "skipped": "no compiler"},
        made_up("looped", 0.25, batch=64, measured=cut, factor=64 * 220.0),
        made_up("continuum", 0.002, batch=64),
        made_up("linear", 0.0006, batch=64),
    ]
    return {
        "environment": environment(torch.device("cpu")),
        "settings": {"repeat": 3, "limit": 0.5, "quick": False},
        "parameters": {},
        "rows": rows,
    }


@pytest.fixture
def no_process(monkeypatch):
    """Rows without a process behind them; a list of what was asked for."""
    asked = []

    def measured(task):
        asked.append(task)
        row = made_up(task["contender"], 1e-3)
        return {key: row[key] for key in bench.MEASURED_KEYS}

    monkeypatch.setattr(bench, "_in_a_process", measured)
    return asked


# ---- extrapolation


def test_factor_is_the_cost_of_the_whole_over_that_of_the_part():
    # 11 000 pairs of neuron and mode in 100-100-10, for every digit
    assert bench._factor("100-100-10", 1, bench.Cut(1, 100, 4)) == 11000 / 400
    assert bench._factor("100-100-10", 64, bench.Cut(64, 100, 4)) == 11000 / 400
    assert bench._factor("100-100-10", 64, bench.Cut(1, 1, 50)) == 64 * 11000 / 50
    assert bench._factor("784-784-10", 1, bench.Cut(1, 784, 784)) == (784 + 10) / 784


def test_seconds_per_digit_multiply_by_the_factor_and_divide_by_the_batch(results):
    row = results["rows"][6]  # looped, batch 64, the factor counts all 64 digits
    assert bench.seconds_per_digit(row) == pytest.approx([0.25 * 220, 0.98 * 0.25 * 220, 1.05 * 0.25 * 220])
    assert bench.seconds_per_digit(row, "forward") == pytest.approx([0.3 * 0.25 * 220] * 3)
    assert bench.price(row) == pytest.approx(0.25 * 64 * 220 / 1e-4)


@pytest.mark.parametrize(
    ("seconds", "limit", "expected"),
    [
        (0.02, 1.0, None),  # 27.5 times 0.02 s is within the limit
        (0.1, 1.0, bench.Cut(1, 100, 40)),
        (0.1, 0.01, bench.Cut(1, 100, 4)),  # never below the least part
        (0.1, 2.7, bench.Cut(1, 100, 100)),  # all modes of the first layer are still not the network
    ],
)
def test_cuts_grow_to_the_time_limit(seconds, limit, expected):
    least = bench.Cut(1, 100, 4)
    assert bench._largest("real", "100-100-10", 1, least, seconds, limit, available=10**12) == expected


def test_cuts_stop_at_the_memory_available():
    least = bench.Cut(1, 100, 4)
    available = bench.memory_estimate("real", "100-100-10", 1, bench.Cut(1, 100, 12))
    cut = bench._largest("real", "100-100-10", 1, least, 1e-6, 1.0, available)
    assert 4 < cut.modes <= 12


def test_least_parts():
    assert bench._least("looped", "784-300-10", 16, 10**13) == bench.Cut(1, 1, 4)
    assert bench._least("neurons", "784-300-10", 16, 10**13) == bench.Cut(1, 300, 4)
    assert bench._least("toeplitz", "3-300-10", 16, 10**13) == bench.Cut(16, 300, 3)
    assert bench._least("continuum", "784-300-10", 16, 10**13) is None
    # With all 784 modes, more than a machine has: half as many neurons at once, or a quarter.
    whole = bench.memory_estimate("real", "784-300-10", 1, bench.Cut(1, 300, 784))
    assert 50e9 < whole < 500e9
    assert bench._least("real", "784-300-10", 1, whole) == bench.Cut(1, 300, 4)
    assert bench._least("real", "784-300-10", 1, whole - 1) == bench.Cut(1, 150, 4)
    assert bench._least("real", "784-300-10", 1, whole // 3) == bench.Cut(1, 75, 4)


def test_a_cut_keeps_the_couplings_of_the_network(monkeypatch):
    seen = []
    monkeypatch.setitem(
        RUNGS, "real", lambda x, w, physics: seen.append((x, w, physics)) or x @ w.T * physics.coupling_total
    )
    resident = iter([500, 600, 1600])  # bytes before, after the forward pass, after the backward pass
    monkeypatch.setattr(bench, "_resident", lambda device, peak: next(resident))
    row = bench._measure(
        {"contender": "real", "network": "40-20-10", "batch": 2, "device": "cpu", "repeat": 1, "limit": 0.0}
    )
    assert row["measured"] == {"digits": 2, "neurons": 20, "modes": 4}
    assert row["factor"] == (40 * 20 + 20 * 10) / (20 * 4)
    assert row["memory"] == {"forward": 100, "step": 100 + 1000 * row["factor"]}
    x, w, physics = seen[0]
    assert x.shape == (2, 4)
    assert w.shape == (20, 4)
    assert physics.mode_coupling(4) == pytest.approx(0.1 / 40)


# ---- contenders


@pytest.mark.parametrize("name", [*RUNGS, "vmap"])
def test_contenders_compute_the_ladder(name):
    error, gradient_error = bench._errors(name, torch.device("cpu"))
    if name == "continuum":  # the error of the question's grid
        assert 0.05 < error < 0.2
        assert 0.05 < gradient_error < 0.2
    else:
        assert 0 < error < 2e-6
        assert 0 < gradient_error < 5e-6


@pytest.mark.slow
def test_jax_computes_the_ladder():
    pytest.importorskip("jax")
    assert max(bench._errors("jax", torch.device("cpu"))) < 5e-6


@pytest.mark.parametrize("name", ["separable", "vmap"])
def test_a_pass_is_layer_gain_relu_layer(name):
    torch.manual_seed(0)
    physics = bench.SpinWaveParameters()
    x = torch.rand(3, 6)
    weights = [torch.randn(5, 6).requires_grad_(), torch.randn(2, 5).requires_grad_()]
    forward, step = bench._passes(name, x, weights, [2.0, 3.0], physics)
    hidden = 2 * RUNGS["real"](x, weights[0], physics)
    expected = 3 * RUNGS["real"](hidden.relu(), weights[1], physics)
    torch.testing.assert_close(forward(), expected, rtol=1e-4, atol=1e-7)
    assert not forward().requires_grad
    gradients = torch.autograd.grad(expected.sum(), weights)
    torch.testing.assert_close(step(), gradients, rtol=1e-4, atol=1e-7)


# ---- memory


@pytest.mark.parametrize("name", bench.CONTENDERS)
def test_memory_estimate_grows_with_everything(name):
    def estimate(*arguments):
        return bench.memory_estimate(name, *arguments)

    assert 0 < estimate("100-100-10", 1) < estimate("100-100-10", 64) < estimate("100-200-10", 64)
    assert estimate("100-200-10", 64) < estimate("100-200-200-10", 64)
    least = bench._least(name, "100-100-10", 64, 10**12)
    if least is not None:
        assert estimate("100-100-10", 64, least) < estimate("100-100-10", 64, bench.Cut(64, 100, 80))


def test_resident_memory_and_its_peak():
    before = bench._resident(torch.device("cpu"), peak=False)
    torch.ones(50_000_000)  # 200 MB, freed at once
    assert bench._resident(torch.device("cpu"), peak=True) > before + 150e6
    assert bench._resident(torch.device("cpu"), peak=False) < before + 100e6


def test_memory_estimate_is_that_of_the_question():
    """Recording gradients took 11.7 GB for one digit in the question's own code."""
    assert 3e9 < bench.memory_estimate("looped", "100-100-10", 1) < 30e9


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere nothing is forgotten")
def test_memory_that_was_freed_before_counts_when_it_is_used_again():
    def kept():  # blocks of this size are not given back to the system one by one
        return [torch.ones(10_000) for _ in range(1000)]

    blocks, last = kept(), torch.ones(10)  # which holds the end of the heap
    del blocks
    bench._forget(torch.device("cpu"))
    before = bench._resident(torch.device("cpu"), peak=False)
    again = kept()
    assert bench._resident(torch.device("cpu"), peak=True) - before == pytest.approx(40e6, rel=0.2)
    assert len(again) == 1000
    assert len(last) == 10


@pytest.mark.slow
def test_memory_estimate_is_near_the_measured_peak():
    task = {"contender": "real", "network": "20-30-10", "batch": 1, "device": "cpu", "repeat": 1, "limit": 60.0}
    row = bench._in_a_process(task)
    assert row["measured"] is None
    ratio = row["memory"]["step"] / bench.memory_estimate("real", "20-30-10", 1)
    assert 1 / 3 < ratio < 3


def test_what_does_not_fit_is_skipped_with_both_numbers(tmp_path, no_process):
    file = tmp_path / "big.json"
    results = bench.run(file, contenders=["linear", "continuum"], batches=[1, 10**11], networks=["6-5-3"], device="cpu")
    assert [("skipped" in row) for row in results["rows"]] == [False, False, True, True]
    assert len(no_process) == 2
    reason = results["rows"][2]["skipped"]
    assert "needs about 22 TB" in reason  # 4 x 1e11 digits x (6 + 5 + 3) numbers of 4 bytes
    assert "GB are available" in reason
    assert bench.load_results(file)["rows"] == results["rows"]
    assert reason in bench.table(results, batch=10**11)


# ---- results files


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "expected JSON"),
        (lambda text: "", "0 bytes"),
        (lambda text: "[1, 2]", "the keys environment, settings, parameters, rows, got list"),
        (lambda text: '{"rows": []}', "the keys environment, settings, parameters, got rows"),
        (lambda text: text.replace('"factor"', '"faktor"'), "expected in row 0 factor, got contender"),
        (lambda text: text.replace('"network"', '"net"'), "expected in row 0 network, got contender"),
        (lambda text: text.replace('"rows": [', '"rows": [7, '), "in row 0 contender, .*, got int"),
    ],
)
def test_damaged_results_are_refused(results, tmp_path, damage, message):
    file = tmp_path / "results.json"
    file.write_text(json.dumps(results))
    assert bench.load_results(file) == results
    file.write_text(damage(json.dumps(results)))
    with pytest.raises(ValueError, match=message):
        bench.load_results(file)


def test_missing_results_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"expected benchmark results at .*none\.json: No such file"):
        bench.load_results(tmp_path / "none.json")


def test_select_takes_the_first_network_and_batch(results):
    assert list(bench.select(results)) == ["looped", "neurons", "separable", "continuum", "linear", "compiled"]
    assert list(bench.select(results, batch=64)) == ["looped", "continuum", "linear"]
    with pytest.raises(ValueError, match="100-100-10 at batch 64"):
        bench.select(results, "784-784-10")
    with pytest.raises(ValueError, match="no rows"):
        bench.select({**results, "rows": []})


# Of the ladder: the others are steps, trainings, accuracies and chapters.
LADDERS = [file for file in RESULTS if not re.search(r"-scaling$|-training$|^accuracy$|^chapters$", file.stem)]


@pytest.mark.parametrize("file", LADDERS, ids=lambda file: file.stem)
def test_stored_results_are_whole(file):
    results = bench.load_results(file)
    for network, batch in {(row["network"], row["batch"]) for row in results["rows"]}:
        rows = bench.select(results, network, batch)
        assert set(rows) >= ({*RUNGS, "linear"} if file.stem == "cpu-2-cores" else {"continuum", "linear"})
        assert bench.table(results, network, batch).count("\n") == len(rows) + 3
    figure = figures.ladder(results)
    (axes,) = figure.axes
    figure.draw_without_rendering()
    low, high = axes.get_xlim()
    shown = [text for x, text in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True) if low < x < high]
    assert all(a.get_window_extent().x1 < b.get_window_extent().x0 for a, b in itertools.pairwise(shown))


# ---- table and figure


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_table(results):
    lines = bench.table(results).splitlines()
    rows = {row[0]: row for row in map(cells, lines[2:8])}
    assert all(len(row) == len(cells(lines[0])) == 10 for row in rows.values())
    looped = rows["1 looped"]
    assert looped[1:5] == ["≈ 16 s", "≈ 55 s", "54 s to 58 s", "–"]
    assert looped[7:] == ["≈ 3.0 GB", "2e-07", "1 digit, 1 neuron, 50 modes; × 220"]
    assert rows["2 neurons"][4:6] == ["0.8×", "0.8× (slower)"]
    assert rows["7 separable"][4:7] == ["1100×", "1400×", "500"]
    assert rows["8 continuum"][1:] == [
        "150 µs", "500 µs", "490 µs to 530 µs", "110000×", "100×", "5.0", "3.0 GB", "9e-02", "whole",
    ]  # fmt: skip
    assert rows["nn.Linear"][5:9] == ["–", "1", "< 1 MB", "–"]
    results["rows"][3]["floor"]["step"] = [2e-4] * 3
    assert "nn.Linear differed by 2.0× between" in bench.table(results)
    assert rows["vmap, compiled"][-1] == "skipped: no compiler"
    facts = ("nn.Linear differed by 1.0× between", results["environment"]["cpu"], "threads", "float32")
    for fact in (*facts, f"torch {torch.__version__}"):
        assert fact in lines[-1]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(51.2, "51 s"), (9.96, "10 s"), (1234, "1200 s"), (1.0, "1.0 s"), (0.9999, "1.0 s"), (0.0552, "55 ms"),
     (0.00996, "10 ms"), (0.000934, "930 µs"), (4.26e-6, "4.3 µs"), (3.3e-7, "0.33 µs")],
)  # fmt: skip
def test_seconds_in_words(seconds, text):
    assert bench.in_seconds(seconds) == text


@pytest.mark.parametrize(("number", "text"), [(4.43e9, "4.4 GB"), (12e6, "12 MB"), (999e6, "1.0 GB"), (5e5, "< 1 MB")])
def test_bytes_in_words(number, text):
    assert bench.in_bytes(number) == text


def test_figure(results, tmp_path):
    figure = figures.ladder(results)
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "looped", "neurons", "separable", "continuum", "vmap, compiled",
    ]  # fmt: skip
    points = [(bar.lines[0].get_xdata()[0], bar.lines[0].get_markerfacecolor()) for bar in axes.containers]
    rows = [row for row in results["rows"] if row["contender"] != "linear" and "skipped" not in row]
    assert [x for x, _ in points] == pytest.approx([statistics.median(bench.seconds_per_digit(row)) for row in rows])
    assert [color == "white" for _, color in points] == [row["measured"] is not None for row in rows]
    floors = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--" and len(line.get_xdata())]
    assert floors == pytest.approx([0.0001, 0.0006 / 64])
    # At 390 pixels for the width of the figure, text must stay 10 pixels high.
    texts = [*axes.get_xticklabels(), *axes.get_yticklabels(), *axes.texts, axes.xaxis.label]
    assert min(text.get_size() for text in texts) / 72 * 390 / figure.get_figwidth() > 10
    figure.savefig(tmp_path / "ladder.png")

    (axes,) = figures.ladder(results, batches=[64], quantity="forward").axes
    assert len(axes.containers) == 2
    with pytest.raises(ValueError, match="no rows for 100-100-10 at batch 3"):
        figures.ladder(results, batches=[3])


# ---- command line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rungs", "loopd"], "rungs must be among looped, .*, got loopd"),
        (["--device", "tpu"], "device must be one of cpu.*, got 'tpu'"),
        (["--batch", "0"], "batch must be an integer >= 1, got 0"),
        (["--repeat", "-1"], "repeat must be an integer >= 1, got -1"),
        (["--networks", "100"], "as in 100-100-10, got '100'"),
        (["--networks", "100-x-10"], "as in 100-100-10, got '100-x-10'"),
        (["--name", "../away"], "a file name without folders, got '../away'"),
        (
            ["--rungs", "continuum", "--batch", "100000000000"],
            "continuum on 100-100-10 at batch 100000000000 needs about .* TB of memory, .* are available",
        ),
    ],
)
def test_bad_input_exits_with_two(tmp_path, capsys, no_process, arguments, message):
    device = [] if "--device" in arguments else ["--device", "cpu"]
    assert main(["bench", "--out", str(tmp_path), *device, *arguments]) == 2
    assert re.fullmatch(f"spinwave: .*{message}.*\n", capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_jax_that_is_not_installed(tmp_path, no_process, monkeypatch):
    monkeypatch.setattr(bench, "_has_jax", lambda: False)
    with pytest.raises(ValueError, match=r"pip install 'spinwave\[bench\]'"):
        bench.run(tmp_path / "a.json", contenders=["jax"], device="cpu")
    results = bench.run(tmp_path / "a.json", device="cpu", batches=[1], networks=["6-5-3"])
    assert [row["contender"] for row in results["rows"]] == [name for name in bench.CONTENDERS if name != "jax"]


def test_an_interrupted_bench_keeps_its_rows(tmp_path, capsys, no_process, monkeypatch):
    measured = bench._in_a_process

    def stop_at_third(task):
        if len(no_process) == 2:
            raise KeyboardInterrupt
        return measured(task)

    monkeypatch.setattr(bench, "_in_a_process", stop_at_third)
    assert main(["bench", "--out", str(tmp_path), "--name", "cut", "--device", "cpu", "--quick"]) == 130
    shown = capsys.readouterr()
    assert "2 finished rows are in" in shown.out
    assert "interrupted" in shown.err
    assert "Traceback" not in shown.err
    assert [row["contender"] for row in bench.load_results(tmp_path / "cut.json")["rows"]] == ["looped", "neurons"]
    assert [file.name for file in tmp_path.iterdir()] == ["cut.json"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [("kill -9 $$", "ended by signal 9"), ("echo a >&2; echo 'ValueError: b' >&2; exit 1", "ValueError: b"),
     ("exit 3", "exit code 3"),
     ("printf 'a.b.InductorError: no compiler\\n\\nSet X=1 for more\\n' >&2; exit 1", "InductorError: no compiler")],
)  # fmt: skip
def test_a_row_that_fails_says_why(tmp_path, monkeypatch, results, script, reason):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert reason in bench._in_a_process({"device": "cpu"})["skipped"]


@pytest.mark.slow
def test_bench_from_end_to_end(tmp_path, capsys):
    names = ["effective", "continuum", "linear"]
    command = ["bench", "--networks", "6-5-3", "--batch", "2", "--repeat", "2", "--device", "cpu", "--quick"]
    assert main([*command, "--rungs", *names, "--out", str(tmp_path / "new"), "--name", "tiny"]) == 0
    shown = capsys.readouterr().out
    results = bench.load_results(tmp_path / "new" / "tiny.json")
    assert bench.table(results) in shown
    assert (tmp_path / "new" / "tiny.png").read_bytes().startswith(b"\x89PNG")
    assert set(results["environment"]) >= {"device", "cpu", "threads", "torch", "date", "revision"}
    rows = bench.select(results, "6-5-3", 2)
    assert list(rows) == names
    for row in rows.values():
        assert (row["device"], row["dtype"]) == ("cpu", "float32")
        for timings in (row["seconds"], row["floor"]):
            assert set(timings) == {"forward", "step"}
            assert all(len(values) == 2 and min(values) > 0 for values in timings.values())
        assert row["memory"]["step"] >= row["memory"]["forward"] >= 0
    assert rows["effective"]["error"] < 1e-5 < rows["continuum"]["error"]
    assert rows["linear"]["error"] is None
    assert rows["continuum"]["measured"] is None


@pytest.mark.slow
def test_interrupting_the_command(tmp_path):
    file = tmp_path / "cut.json"
    command = [sys.executable, "-m", "spinwave", "bench", "--networks", "6-5-3", "--batch", "1", "2", "3", "4"]
    command += ["--rungs", "separable", "--device", "cpu", "--out", str(tmp_path), "--name", "cut"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        out, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in error
    assert "finished rows are in" in out
    assert 1 <= len(bench.load_results(file)["rows"]) < 4
