"""What a training step costs beside one of ``nn.Linear`` layers, and how it grows.

A step is what training does: forward, cross entropy, backward, fused Adam. Steps of the spin-wave network take turns
with those of a network of ordinary layers of the same shape, in one process; their ratio compares two numbers that met
the same machine in the same state. In the last rows both networks are compiled.

An ensemble that :func:`spinwave.fit_ensemble` trains takes turns with the same networks trained one after another.
"""

import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .bench import in_seconds
from .ensemble import fit_ensemble
from .layers import SpinWaveMLP
from .parameters import SpinWaveParameters, whole
from .training import _write, choose_device, environment, fit

# Widths of n-n-10 networks: from a thousand to ten million weights.
WIDTHS = (28, 100, 312, 996, 3158)
POINTS = (25, 50, 100, 200, 400)
NETWORKS, BATCH = 16, 256  # of the ensemble


def run(
    file: Path,
    *,
    device: str | torch.device | None = None,
    repeat: int | None = None,
    report: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measure steps row by row and write ``file`` after each, whole or not at all.

    Arguments:
        file: results file, JSON, replaced when the first row is finished.
        device: by default a GPU if there is one.
        repeat: pairs of steps timed for each row, an integer >= 1; by default what fits into 3 s, 10 to 200.
        report: called with one line a row.

    Returns:
        The results, as in the file: ``environment``, ``rows``, ``slopes``: the powers of the number of weights and
        of grid points by which a step grows, fitted on logarithmic axes; and ``ensemble``: ``networks``, ``batch``, and
        the seconds that their steps take ``together`` and one after another (``alone``).

    Raises:
        ValueError: no such device, a repeat out of range.
    """
    repeat = None if repeat is None else whole("repeat", repeat)
    chosen = choose_device(device)
    question = SpinWaveParameters()
    strong = SpinWaveParameters(coupling_total=30.0)
    plan: list[dict[str, Any]] = [
        *({"batch": batch} for batch in (256, 1024, 4096)),
        {"sizes": (784, 1000, 1000, 10), "batch": 1024},
        {"parameters": strong, "batch": 1024},
        {"model": "discretized", "batch": 1024},
        {"model": "discretized", "batch": 1024, "dtype": torch.float64},
        *({"sizes": (width, width, 10), "batch": 256, "series": "weights"} for width in WIDTHS),
        *(
            {"parameters": SpinWaveParameters(points=points), "model": "discretized", "batch": 256, "series": "points"}
            for points in POINTS
        ),
        # last, since the compiler stays in the process
        *({"batch": batch, "compiled": True} for batch in (256, 1024, 4096)),
        {"sizes": (784, 1000, 1000, 10), "batch": 1024, "compiled": True},
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"environment": environment(chosen), "rows": [], "slopes": {}, "ensemble": None}
    for wanted in plan:
        row: dict[str, Any] = {"sizes": (100, 100, 10), "model": "continuum", "parameters": question}
        row |= {"dtype": torch.float32, "compiled": False, **wanted}
        series = row.pop("series", None)
        try:
            seconds, floor = step_seconds(**row, device=chosen, repeat=repeat)
        except RuntimeError as error:
            if not row["compiled"]:
                raise
            report(f"skipped, torch.compile failed: {str(error).strip().splitlines()[0]}")
            continue
        physics = row.pop("parameters")
        row |= {
            "sizes": list(row["sizes"]),
            "weights": sum(n_in * n_out for n_in, n_out in pairwise(row["sizes"])),
            "dtype": str(row["dtype"]).removeprefix("torch."),
            "coupling_total": physics.coupling_total,
            "points": physics.points,
            "series": series,
            "seconds": seconds,
            "floor": floor,
        }
        results["rows"].append(row)
        results["slopes"] = slopes(results["rows"])
        _write(file, json.dumps(results, indent=1).encode())
        report(describe(row))
    together, alone = ensemble_seconds(chosen, 5 if repeat is None else repeat)
    results["ensemble"] = {"networks": NETWORKS, "batch": BATCH, "together": together, "alone": alone}
    _write(file, json.dumps(results, indent=1).encode())
    report(f"{NETWORKS} networks at once train {gain(results['ensemble']):.1f} times as fast as one after another")
    for name, slope in results["slopes"].items():
        report(f"a step grows as the power {slope:.2f} of the {name}")
    return results


def step_seconds(
    sizes: Sequence[int],
    batch: int,
    parameters: SpinWaveParameters,
    model: str,
    dtype: torch.dtype,
    compiled: bool,
    device: torch.device,
    repeat: int | None = None,
) -> tuple[list[float], list[float]]:
    """Seconds of training steps of a spin-wave network and of ordinary layers, taking turns.

    Returns:
        Two lists of as many seconds as there were pairs.
    """
    torch.manual_seed(0)
    x = torch.rand(batch, sizes[0], device=device, dtype=dtype)
    y = torch.randint(sizes[-1], (batch,), device=device)
    ordinary = nn.Sequential()
    for n_in, n_out in pairwise(sizes):
        if len(ordinary):
            ordinary.append(nn.ReLU())
        ordinary.append(nn.Linear(n_in, n_out, bias=False, device=device, dtype=dtype))
    networks: list[Any] = [SpinWaveMLP(sizes, parameters, model, device, dtype), ordinary]
    if compiled:
        networks = [torch.compile(network, dynamic=False) for network in networks]
    steps = [_step(network, x, y) for network in networks]

    def timed(step: Callable[[], None]) -> float:
        begin = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begin

    for _ in range(3):
        once = sum(timed(step) for step in steps)
    times = [[timed(step) for step in steps] for _ in range(repeat or min(200, max(10, int(3 / once))))]
    return [pair[0] for pair in times], [pair[1] for pair in times]


def _step(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    # A rate this small leaves the weights, and with them the physics, as they are.
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-9, fused=True)

    def step() -> None:
        loss = F.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def ensemble_seconds(device: torch.device, repeat: int) -> tuple[list[float], list[float]]:
    """Seconds in which 100 steps of all networks are made, at once and one after another, taking turns."""
    torch.manual_seed(0)
    train = torch.rand(100 * BATCH, 100), torch.randint(10, (100 * BATCH,))
    test = train[0][:BATCH], train[1][:BATCH]
    options: dict[str, Any] = {"epochs": 1, "batch_size": BATCH, "device": device, "progress": False}
    together, alone = [], []
    for _ in range(repeat + 1):
        _, metrics = fit_ensemble(train, test, seeds=range(NETWORKS), **options)
        together.append(metrics[0]["seconds"])
        alone.append(sum(fit(SpinWaveMLP(), train, test, seed=seed, **options)["seconds"] for seed in range(NETWORKS)))
    return together[1:], alone[1:]  # without the one to warm up


def gain(ensemble: dict[str, Any]) -> float:
    """How many times as fast an ensemble is as its networks one after another: the ratio of the medians."""
    ratio: float = statistics.median(ensemble["alone"]) / statistics.median(ensemble["together"])
    return ratio


def price(row: dict[str, Any]) -> float:
    """What a step costs beside one of ordinary layers: the ratio of the medians."""
    ratio: float = statistics.median(row["seconds"]) / statistics.median(row["floor"])
    return ratio


def slopes(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Powers by which the median step of a series grows: for weights where they, not overhead, take the time."""
    found = {}
    for name, least in (("weights", 90_000), ("points", 0)):
        part = [row for row in rows if row["series"] == name and row[name] >= least]
        if len(part) > 2:
            size, seconds = np.log([[row[name], statistics.median(row["seconds"])] for row in part]).T
            found[name] = float(np.polyfit(size, seconds, 1)[0])
    return found


def describe(row: dict[str, Any]) -> str:
    """One line about a row."""
    network = "-".join(map(str, row["sizes"]))
    physics = f"C = {row['coupling_total']:g}" + (f", N = {row['points']}" if row["model"] == "discretized" else "")
    physics += ", compiled" if row["compiled"] else ""
    seconds, floor = (in_seconds(statistics.median(row[key])) for key in ("seconds", "floor"))
    return (
        f"{row['model']:<11} {network:<18} batch {row['batch']:<5} {row['dtype']:<8} {physics:<18} "
        f"step {seconds:>7}, nn.Linear {floor:>7}: {price(row):.2f} times"
    )


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a file that :func:`run` wrote.

    Raises:
        ValueError: it is not there or not one of these files.
    """
    try:
        results = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"expected results of `python -m spinwave bench --scaling` in {path}: {error}") from None
    if not isinstance(results, dict) or not {"environment", "rows", "slopes", "ensemble"} <= set(results):
        raise ValueError(f"expected results of `python -m spinwave bench --scaling` in {path}, got something else")
    return results
