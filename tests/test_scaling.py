"""Training steps beside nn.Linear: what is measured, fitted and written."""

import json

import pytest
import torch

from spinwave import SpinWaveParameters, scaling
from spinwave.__main__ import main
from spinwave.pages import RESULTS


@pytest.mark.parametrize(
    ("model", "compiled"),
    [("continuum", False), ("discretized", False), pytest.param("continuum", True, marks=pytest.mark.slow)],
)
@pytest.mark.filterwarnings("ignore")  # of torch's own compiler
def test_steps_take_turns_and_come_in_pairs(model, compiled):
    physics = SpinWaveParameters(points=8)
    ours, theirs = scaling.step_seconds((6, 5, 3), 4, physics, model, torch.float64, compiled, torch.device("cpu"), 7)
    assert len(ours) == len(theirs) == 7
    assert min(ours + theirs) > 0


def test_an_ensemble_takes_turns_with_its_networks(monkeypatch):
    trained = []

    def fit_ensemble(train, test, *, seeds, **_):
        trained.append(len(seeds))
        return [], [{"seconds": 2.0}] * len(seeds)

    def fit(network, train, test, *, seed, **_):
        trained.append(seed)
        return {"seconds": 0.5}

    monkeypatch.setattr(scaling, "fit_ensemble", fit_ensemble)
    monkeypatch.setattr(scaling, "fit", fit)
    together, alone = scaling.ensemble_seconds(torch.device("cpu"), 2)
    assert together == [2.0, 2.0]
    assert alone == [8.0, 8.0]
    assert trained == 3 * [16, *range(16)]
    assert scaling.gain({"together": together, "alone": alone}) == 4


def test_slopes_are_powers_of_the_weights_that_take_the_time():
    def row(series, weights, points, seconds):
        return {"series": series, "weights": weights, "points": points, "seconds": [seconds, seconds, 99.0]}

    rows = [row("weights", 10**k, 100, 10.0 ** (k / 2)) for k in (5, 6, 7)]
    rows += [row("weights", 10**3, 100, 50.0)]  # all overhead
    rows += [row("points", 10**4, points, 3.0) for points in (25, 50, 100)]
    assert scaling.slopes(rows) == pytest.approx({"weights": 0.5, "points": 0.0})
    assert scaling.slopes(rows[:2]) == {}


def test_results_are_written_after_every_row_and_read_back(tmp_path, monkeypatch):
    def measure(sizes, batch, parameters, model, dtype, compiled, device, repeat):
        if sizes[0] > 1000:
            raise KeyboardInterrupt
        return [2e-3, 3e-3, 4e-3], [1e-3, 2e-3, 1.5e-3]

    monkeypatch.setattr(scaling, "step_seconds", measure)
    lines = []
    with pytest.raises(KeyboardInterrupt):
        scaling.run(tmp_path / "r.json", device="cpu", report=lines.append)
    results = scaling.load(tmp_path / "r.json")
    assert len(results["rows"]) == len(lines) > 8
    assert scaling.price(results["rows"][0]) == 2
    assert "100-100-10" in lines[0]
    assert "2.00 times" in lines[0]
    assert results["environment"]["device"] == "cpu"


def test_compiled_rows_are_skipped_where_nothing_compiles(tmp_path, monkeypatch):
    def measure(compiled, **_):
        if compiled:
            raise RuntimeError("No working C++ compiler found\nand more")
        return [2e-3], [1e-3]

    monkeypatch.setattr(scaling, "step_seconds", measure)
    monkeypatch.setattr(scaling, "ensemble_seconds", lambda device, repeat: ([2.0, 3.0, 1.0], [5.0, 6.0, 6.0]))
    lines = []
    results = scaling.run(tmp_path / "r.json", device="cpu", report=lines.append)
    assert scaling.load(tmp_path / "r.json") == results
    assert results["ensemble"] == {"networks": 16, "batch": 256, "together": [2, 3, 1], "alone": [5, 6, 6]}
    assert "16 networks at once train 3.0 times as fast as one after another" in lines
    assert not any(row["compiled"] for row in results["rows"])
    assert lines.count("skipped, torch.compile failed: No working C++ compiler found") == 4


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*-scaling.json")), ids=lambda file: file.stem)
def test_stored_results_are_whole(file):
    results = scaling.load(file)
    assert len(results["rows"]) == 21 or not any(row["compiled"] for row in results["rows"])  # nothing to compile with
    assert all(scaling.price(row) > 0 and scaling.describe(row) for row in results["rows"])
    assert set(results["slopes"]) == {"weights", "points"}
    assert scaling.gain(results["ensemble"]) > 0


@pytest.mark.parametrize("content", [None, "{", "[]", json.dumps({"rows": []})])
def test_other_files_are_refused(tmp_path, content):
    file = tmp_path / "r.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError, match="expected results of `python -m spinwave bench --scaling`"):
        scaling.load(file)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--quick"], "--scaling has a plan of its own"),
        (["--rungs", "continuum"], "--scaling has a plan of its own"),
        (["--repeat", "0"], "repeat must be an integer >= 1, got 0"),
        (["--device", "abacus"], "device must be one of"),
    ],
)
def test_bad_options_are_named(capsys, tmp_path, options, message):
    assert main(["bench", "--scaling", "--out", str(tmp_path), *options]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
