"""The ladder benchmark: what each rung costs, measured the same way for all of them.

A row is one contender on one network at one batch size. It runs in a process of its own, so that its peak memory is
its own, and reports seconds and bytes for a pass over the whole network (layer, detector gain, ReLU, layer), forward
alone and forward with the gradients of all control amplitudes.

Timing: first calls warm up, calls that are short are looped to last 20 ms, a GPU is synchronised around every
measurement, and every repeat is kept. The repeats take turns with those of ``nn.Linear`` layers of the same shape in
the same process: the price over this floor compares two numbers that met the same machine in the same state. Ratios
between rungs compare processes; the floors that each row carries show how much the machine drifted between them, and
the table says it. Far from 1, other programs were using the machine.

Cut rows: the first six rungs need minutes and gigabytes. Their cost is proportional to digits, neurons and modes
(each mode, and in the first rungs each neuron or digit, is one more turn of the same Python loop), so that a part of
the first layer is measured and the row says which part, and by what factor seconds and memory grow. The couplings per
mode are those of the whole network. The first mode of a cut starts from an empty spin wave and does a little less than
the others. Of a wide layer a cut takes the neurons that memory would hold at once, with all modes.

Errors are against rung 1 in float64, on a small random case.
"""

import contextlib
import ctypes
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .bessel import _series
from .effective import GRID_EDGE, causal_step, grid
from .ladder import RUNGS, final_readout
from .layers import SpinWaveLinear
from .parameters import MODE_NORMALISATION, SpinWaveParameters, whole
from .training import _write, choose_device, environment

# What is measured besides the rungs, and how tables and figures call it.
OTHERS = {
    "linear": "nn.Linear",
    "vmap": "torch.func.vmap",
    "compiled": "vmap, compiled",
    "jax": "JAX",
}
CONTENDERS = (*RUNGS, *OTHERS)

Layer = Callable[[Tensor, Tensor], Tensor]  # (batch, modes), (neurons, modes) -> (batch, neurons)
Passes = tuple[Callable[[], Any], Callable[[], Any]]  # forward, and forward with gradients

# N x N kernels, and vectors of N numbers a digit, that a neuron and mode keep for the backward pass (of the first rungs
# and vmap counted with torch.autograd.graph.saved_tensors_hooks, of the others fitted to measured peaks).
SAVED = {
    "looped": (10, 0),
    "neurons": (7, 0),
    "batched": (7, 2),
    "real": (6, 1),
    "toeplitz": (3.2, 1),
    "effective": (3.2, 0),
    "separable": (0.025, 0),
    "continuum": (0, 0),
    "linear": (0, 0),
    "vmap": (11, 1),
    "compiled": (2, 1),
    "jax": (0, 1),
}
# Kernels in flight while one is computed, for each neuron that is worked on at once.
TRANSIENT = 14
# Resident memory over bytes in tensors: freed float64 temporaries leave holes between tensors that stay.
HOLES = 2

WHOLE = ("separable", "continuum", "linear")  # never cut
DIGIT_BY_DIGIT = ("looped", "neurons")  # the kernels are computed anew for every digit
LEAST_MODES = 4
SHORTEST = 0.02  # seconds of one timing
LIMIT, QUICK_LIMIT = 0.4, 0.1  # seconds that a cut's forward and backward may take

RESULT_KEYS = ("environment", "settings", "parameters", "rows")
ROW_KEYS = ("contender", "network", "batch", "device", "dtype", "estimated_bytes")
MEASURED_KEYS = ("measured", "factor", "seconds", "floor", "memory", "error", "gradient_error", "first_call")


@dataclass(frozen=True)
class Cut:
    """The part of a network that a row measures: digits of the batch, neurons and modes of the first layer."""

    digits: int
    neurons: int
    modes: int


def run(
    file: Path,
    *,
    contenders: Sequence[str] | None = None,
    batches: Sequence[int] | None = None,
    networks: Sequence[str] | None = None,
    device: str | torch.device | None = None,
    repeat: int | None = None,
    quick: bool = False,
    report: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measure row after row and write ``file`` after each, whole or not at all: stopping keeps the finished rows.

    Arguments:
        file: results file, JSON; one that is there is replaced when the first row is finished.
        contenders: rungs and others of ``CONTENDERS``; by default all (JAX only if it is installed).
        batches: digits a pass, integers >= 1; by default 1, 16, 256.
        networks: sizes as in ``"100-100-10"``; by default the question's and 784-1000-10, for 28 x 28 images.
        device: by default a GPU if there is one.
        repeat: timings of each pass, an integer >= 1; by default 5. Passes of several seconds get three at most.
        quick: the rungs and ``nn.Linear`` on the question's network with one digit and three repeats, in smaller
            parts, for less than a minute in all. Other arguments take precedence.
        report: called with one line a row.

    Returns:
        The results, as in the file: ``environment``, ``settings``, ``parameters`` (the physics) and ``rows``.

    Raises:
        ValueError: an unknown contender or device, numbers out of range, or one contender asked for that does not
            fit in memory (of several, the row is skipped and says why).
    """
    chosen = choose_device(device)
    if contenders is None:
        contenders = (*RUNGS, "linear") if quick else CONTENDERS if _has_jax() else CONTENDERS[:-1]
    unknown = [name for name in contenders if name not in CONTENDERS]
    if unknown or not contenders:
        raise ValueError(f"rungs must be among {', '.join(CONTENDERS)}, got {', '.join(unknown) or 'none'}")
    if "jax" in contenders and not _has_jax():
        raise ValueError("rung jax needs JAX, which is not installed: pip install 'spinwave[bench]'")
    batches = ((1,) if quick else (1, 16, 256)) if batches is None else batches
    repeat = (3 if quick else 5) if repeat is None else repeat
    batches, repeat = [whole("batch", batch) for batch in batches], whole("repeat", repeat)
    networks = (("100-100-10",) if quick else ("100-100-10", "784-1000-10")) if networks is None else networks
    for network in networks:
        _sizes(network)

    physics = SpinWaveParameters()
    results: dict[str, Any] = {
        "environment": environment(chosen) | ({"jax": version("jax")} if "jax" in contenders else {}),
        "settings": {"repeat": repeat, "limit": QUICK_LIMIT if quick else LIMIT, "quick": quick},
        "parameters": asdict(physics),
        "rows": [],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = results["rows"]
    try:
        for network in networks:
            for batch in batches:
                for name in contenders:
                    rows.append(_row(name, network, batch, chosen, results["settings"], alone=len(contenders) == 1))
                    _write(file, json.dumps(results, indent=1).encode())
                    report(f"{network}, batch {batch}, {name}: {_summary(rows[-1])}")
    except KeyboardInterrupt:
        report(f"\n{len(rows)} finished rows are in {file}." if rows else "\nNo row was finished, nothing was written.")
        raise
    return results


def memory_estimate(name: str, network: str, batch: int, cut: Cut | None = None) -> int:
    """Bytes that forward and backward of a contender need, by arithmetic, in float32 on the question's grid.

    Arguments:
        name: one of ``CONTENDERS``.
        network: sizes, as in ``"100-100-10"``.
        batch: digits a pass.
        cut: the part that is computed; the whole network by default.
    """
    points = SpinWaveParameters().points
    sizes = _sizes(network)
    weights = sum(n_in * n_out for n_in, n_out in pairwise(sizes))
    digits, pairs, width = batch, weights, max(sizes[1:])  # pairs of neuron and mode
    if cut is not None:
        digits, pairs, width = cut.digits, cut.neurons * cut.modes, cut.neurons
    kernels, vectors = SAVED[name]
    graph = pairs * (kernels * points**2 * (digits if name in DIGIT_BY_DIGIT else 1) + vectors * points * digits)
    transient = 0 if name in WHOLE else TRANSIENT * points**2 * (1 if name == "looped" else width)
    # x, the layers' outputs, their gradients and the floor's; weights, effective weights, gradients of both
    plain = 4 * batch * sum(sizes) + 8 * weights
    return int(4 * (HOLES * (graph + transient) + plain))


def load_results(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a results file.

    Raises:
        ValueError: the file cannot be read, is not JSON (cut short, perhaps) or lacks what a results file holds.
    """
    file = Path(path)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ValueError(f"expected benchmark results at {file}: {error.strerror}") from None
    expected = f"{file} ({len(content)} bytes) is not a whole file of benchmark results: expected"
    try:
        results: dict[str, Any] = json.loads(content)
    except ValueError as error:
        raise ValueError(f"{expected} JSON, got {error}") from None
    _check_keys(results, RESULT_KEYS, f"{expected} the keys")
    if not isinstance(results["rows"], list):
        raise ValueError(f"{expected} a list of rows, got {type(results['rows']).__name__}")
    for index, row in enumerate(results["rows"]):
        _check_keys(row, ROW_KEYS, f"{expected} in row {index}")
        if "skipped" not in row:
            _check_keys(row, MEASURED_KEYS, f"{expected} in row {index}")
    return results


def _check_keys(part: Any, wanted: Sequence[str], expected: str) -> None:
    if not isinstance(part, dict):
        raise ValueError(f"{expected} {', '.join(wanted)}, got {type(part).__name__}")
    missing = [key for key in wanted if key not in part]
    if missing:
        raise ValueError(f"{expected} {', '.join(missing)}, got {', '.join(part) or 'none'}")


def select(results: dict[str, Any], network: str | None = None, batch: int | None = None) -> dict[str, dict[str, Any]]:
    """Rows of one network and batch by contender, in the order of the ladder; by default of the first row.

    Raises:
        ValueError: there are none.
    """
    rows = results["rows"]
    network = rows[0]["network"] if rows and network is None else network
    batches = [row["batch"] for row in rows if row["network"] == network]
    batch = batches[0] if batches and batch is None else batch
    found = {row["contender"]: row for row in rows if (row["network"], row["batch"]) == (network, batch)}
    if not found:
        there = sorted({f"{row['network']} at batch {row['batch']}" for row in rows})
        raise ValueError(f"no rows for {network} at batch {batch}; the results hold {', '.join(there) or 'no rows'}")
    return {name: found[name] for name in CONTENDERS if name in found}


def seconds_per_digit(row: dict[str, Any], quantity: str = "step") -> list[float]:
    """Every repeat of a row: seconds for one digit through the whole network, extrapolated where the row was cut.

    Arguments:
        row: a row that was measured.
        quantity: ``"forward"``, or ``"step"`` for forward and backward.
    """
    return [seconds * row["factor"] / row["batch"] for seconds in row["seconds"][quantity]]


def price(row: dict[str, Any], quantity: str = "step") -> float:
    """Seconds over those of ``nn.Linear`` layers of the same shape, timed in the same process."""
    seconds, floor = (statistics.median(row[part][quantity]) for part in ("seconds", "floor"))
    return float(seconds * row["factor"] / floor)


def table(results: dict[str, Any], network: str | None = None, batch: int | None = None) -> str:
    """One network and batch as a Markdown table, with the machine below it; by default those of the first row.

    Raises:
        ValueError: no such rows.
    """
    rows = select(results, network, batch)
    first = next(iter(rows.values()))
    medians = {name: statistics.median(seconds_per_digit(row)) for name, row in rows.items() if "skipped" not in row}
    lines = [
        f"| {first['network']}, batch {first['batch']} | forward | forward + backward | range | speed-up "
        "| over the rung before | times nn.Linear | memory | error | measured |",
        "|:--|--:|--:|--:|--:|--:|--:|--:|--:|:--|",
    ]
    before = None
    for name, row in rows.items():
        title = f"{list(RUNGS).index(name) + 1} {name}" if name in RUNGS else OTHERS[name]
        if "skipped" in row:
            lines.append(f"| {title} |" + " – |" * 8 + f" skipped: {row['skipped']} |")
            continue
        mark = "" if row["measured"] is None else "≈ "
        step = seconds_per_digit(row)
        speedup = gain = "–"
        if "looped" in medians and name != "looped":
            speedup = f"{_digits(medians['looped'] / medians[name])}×"
        if name in RUNGS:
            if before is not None:
                ratio = medians[before] / medians[name]
                gain = f"{_digits(ratio)}×" + (" (slower)" if ratio < 1 else "")
            before = name
        memory = row["memory"]["step"]
        cells = [
            mark + in_seconds(statistics.median(seconds_per_digit(row, "forward"))),
            mark + in_seconds(medians[name]),
            f"{in_seconds(min(step))} to {in_seconds(max(step))}",
            speedup,
            gain,
            "1" if name == "linear" else _digits(price(row)),
            "–" if memory is None else mark + in_bytes(memory),
            "–" if row["error"] is None else f"{row['error']:.0e}",
            _part(row),
        ]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    surroundings, repeat = results["environment"], results["settings"]["repeat"]
    floors = [statistics.median(row["floor"]["step"]) for row in rows.values() if "skipped" not in row]
    drift = f"nn.Linear differed by {_digits(max(floors) / min(floors))}× between processes. " if floors else ""
    where = surroundings["cpu"] if first["device"] == "cpu" else surroundings["device"]
    lines += [
        "",
        f"Time for one digit, median of {repeat} repeats with their range (three, if a pass takes seconds); ≈ is "
        "extrapolated from the part in the last column. Memory: peak of forward + backward, – where a compiler shares "
        "the process. Error: against rung 1 in float64; for continuum it is the error of the grid. "
        f"{drift}{where}, {surroundings['threads']} threads, torch {surroundings['torch']}, {first['dtype']}, "
        f"{surroundings['date'][:10]}, revision {surroundings['revision']}.",
    ]
    return "\n".join(lines)


def in_seconds(seconds: float) -> str:
    """Two digits and a unit: ``"51 s"``, ``"5.5 ms"``."""
    for unit, size in (("s", 1), ("ms", 1e-3)):
        if seconds >= 0.995 * size:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds / 1e-6)} µs"


def in_bytes(number: float) -> str:
    """Two digits and a unit: ``"4.4 GB"``; below the resolution of resident memory, ``"< 1 MB"``."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if number >= 0.995 * size:
            return f"{_digits(number / size)} {unit}"
    return "< 1 MB"


def _digits(number: float) -> str:
    """Two significant digits, without an exponent."""
    if number >= 100:
        return f"{float(f'{number:.2g}'):.0f}"
    return f"{number:.1f}" if number >= 0.995 and number < 9.95 else f"{float(f'{number:.2g}'):g}"


def _summary(row: dict[str, Any]) -> str:
    if "skipped" in row:
        return f"skipped, {row['skipped']}"
    forward, step = (statistics.median(seconds_per_digit(row, quantity)) for quantity in ("forward", "step"))
    return f"{in_seconds(forward)} forward, {in_seconds(step)} forward + backward a digit; measured {_part(row)}"


def _part(row: dict[str, Any]) -> str:
    if row["measured"] is None:
        return "whole"
    parts = (f"{n} {what if n != 1 else what[:-1]}" for what, n in row["measured"].items())
    compiled = f"; first call {in_seconds(row['first_call'])}" if row["contender"] in ("compiled", "jax") else ""
    return f"{', '.join(parts)}; × {_digits(row['factor'])}{compiled}"


def _sizes(network: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(size) for size in network.split("-"))
    except ValueError:
        sizes = ()
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"a network is given by its sizes, as in 100-100-10, got {network!r}")
    return sizes


def _has_jax() -> bool:
    return importlib.util.find_spec("jax") is not None


def _available(device: torch.device) -> int:
    """Bytes of memory that are free for a row."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _least(name: str, network: str, batch: int, available: int) -> Cut | None:
    """Smallest part that stands for the whole, None for the whole itself.

    The speed of a rung depends on the size of its tensors. So all neurons are kept that it can work on at once, those
    that fit in memory with all modes of the first layer; of a wider layer, one group after the other.
    """
    if name in WHOLE:
        return None
    modes, neurons = _sizes(network)[:2]
    cut = Cut(1 if name in DIGIT_BY_DIGIT else batch, 1 if name == "looped" else neurons, modes)
    while cut.neurons > 1 and memory_estimate(name, network, batch, cut) > available:
        cut = replace(cut, neurons=cut.neurons // 2)
    return replace(cut, modes=min(modes, LEAST_MODES))


def _factor(network: str, batch: int, cut: Cut) -> float:
    """Cost of a pass of the batch through the whole network over that of its part."""
    sizes = _sizes(network)
    pairs = sum(n_in * n_out for n_in, n_out in pairwise(sizes))
    return batch * pairs / (cut.digits * cut.neurons * cut.modes)


def _row(
    name: str, network: str, batch: int, device: torch.device, settings: dict[str, Any], alone: bool
) -> dict[str, Any]:
    """One row, measured or skipped for lack of memory; a ValueError if it is the only one asked for."""
    row: dict[str, Any] = {
        "contender": name,
        "network": network,
        "batch": batch,
        "device": str(device),
        "dtype": "float32",
        "estimated_bytes": memory_estimate(name, network, batch),
    }
    available = _available(device)
    least = memory_estimate(name, network, batch, _least(name, network, batch, available))
    if least <= available:
        return row | _in_a_process({**row, **settings})
    reason = (
        f"{name} on {network} at batch {batch} needs about {in_bytes(least)} of memory, "
        f"{in_bytes(available)} are available"
    )
    if alone:
        raise ValueError(reason)
    return row | {"skipped": reason}


def _in_a_process(task: dict[str, Any]) -> dict[str, Any]:
    """The measured part of a row, or the reason why there is none."""
    surroundings = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if task["device"] == "cpu":
        surroundings["JAX_PLATFORMS"] = "cpu"
    done = subprocess.run(
        [sys.executable, "-m", "spinwave.bench", json.dumps(task)], capture_output=True, text=True, env=surroundings
    )
    if done.returncode == 0:
        measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return measured
    if done.returncode < 0:
        return {"skipped": f"ended by signal {-done.returncode}; the system ends processes that exhaust the memory"}
    lines = done.stderr.strip().splitlines()
    errors = [line for line in lines if re.match(r"[\w.]*Error\b", line)]  # PyTorch's have hints below them
    return {"skipped": (errors or lines or [f"exit code {done.returncode}"])[-1]}


# ---- in the process of a row


def _measure(task: dict[str, Any]) -> dict[str, Any]:
    """Time and memory of one row."""
    name, network, batch, repeat = (task[key] for key in ("contender", "network", "batch", "repeat"))
    device, sizes, physics = torch.device(task["device"]), _sizes(network), SpinWaveParameters()
    torch.manual_seed(0)
    layers = [SpinWaveLinear(n_in, n_out, physics, device=device) for n_in, n_out in pairwise(sizes)]
    weights: list[Tensor] = [layer.weight for layer in layers]
    gains = [layer.gain.item() for layer in layers]
    x = torch.rand(batch, sizes[0], device=device)

    def passes(cut: Cut | None) -> Passes:
        if cut is None:
            return _passes(name, x, weights, gains, physics)
        part = weights[0].detach()[: cut.neurons, : cut.modes].clone().requires_grad_()
        same_couplings = replace(physics, coupling_total=physics.coupling_total * cut.modes / sizes[0])
        return _passes(name, x[: cut.digits, : cut.modes], [part], gains[:1], same_couplings)

    def seconds(call: Callable[[], Any], loops: int = 1) -> float:
        synchronise()
        begin = time.perf_counter()
        for _ in range(loops):
            call()
        synchronise()
        return (time.perf_counter() - begin) / loops

    def synchronise() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    # The floor goes first: what the libraries allocate once is not counted as the contender's memory.
    floor = dict(zip(("forward", "step"), _passes("linear", x, weights, gains, physics), strict=True))
    for call in floor.values():
        call()
    _forget(device)
    before = _resident(device, peak=False)
    cut = _least(name, network, batch, _available(device))
    forward, step = passes(cut)
    first_call = seconds(forward)
    if cut is not None and name != "compiled":  # a compiler unrolls the modes, for minutes if there are many
        if name == "jax":
            step()
            needed = seconds(step)
        else:  # a backward pass first would hide the peak of the forward pass
            needed = 4 * seconds(forward)
        cut = _largest(name, network, batch, cut, needed, task["limit"], _available(device) // 2)
        forward, step = passes(cut)
        forward()
    inference = _resident(device, peak=True) - before
    step()
    training = _resident(device, peak=True) - before

    calls = {("seconds", "forward"): forward, ("seconds", "step"): step}
    calls |= {("floor", quantity): call for quantity, call in floor.items()}
    loops = {}
    for key, call in calls.items():
        loops[key] = 1
        while (once := seconds(call, loops[key])) * loops[key] < SHORTEST:
            loops[key] *= 2
        if key == ("seconds", "step") and once > 4 * LIMIT:
            repeat = min(repeat, 3)
    timings: dict[str, dict[str, list[float]]] = {"seconds": {}, "floor": {}}
    for _ in range(repeat):
        for (part, quantity), call in calls.items():
            timings[part].setdefault(quantity, []).append(seconds(call, loops[part, quantity]))

    memory: dict[str, int | None]
    factor = 1.0 if cut is None else _factor(network, batch, cut)
    if name == "jax":
        # Resident memory is the compiler's; XLA knows the need of the whole network without running it.
        memory = dict(zip(("forward", "step"), _jax_memory(x, weights, gains, physics), strict=True))
    elif name == "compiled" and device.type == "cpu":
        memory = {"forward": None, "step": None}  # resident memory is the compiler's
    else:
        # What is in flight does not grow with the number of modes, what is kept for the backward pass does.
        memory = {"forward": inference, "step": int(inference + (training - inference) * factor)}
    error, gradient_error = (None, None) if name == "linear" else _errors(name, device)
    return {
        "measured": None if cut is None else asdict(cut),
        "factor": factor,
        **timings,
        "memory": memory,
        "error": error,
        "gradient_error": gradient_error,
        "first_call": first_call,
    }


def _largest(name: str, network: str, batch: int, cut: Cut, seconds: float, limit: float, available: int) -> Cut | None:
    """Extend a cut that takes so many seconds to as many modes as fit in time and memory; None if all fits."""
    if seconds * _factor(network, batch, cut) <= limit and memory_estimate(name, network, batch) <= available:
        return None
    modes = min(_sizes(network)[0], int(cut.modes * limit / seconds))
    while modes > cut.modes and memory_estimate(name, network, batch, replace(cut, modes=modes)) > available:
        modes //= 2
    return replace(cut, modes=max(modes, cut.modes))


def _passes(
    name: str, x: Tensor, weights: list[Tensor], gains: list[float], physics: SpinWaveParameters
) -> Passes:
    """Forward pass of a network, and forward with the gradients of the summed outputs for all weights, as calls.

    Arguments:
        x: probe amplitudes, ``(digits, modes)``.
        weights: control amplitudes of each layer, ``(neurons, modes)``, leaves that require gradients.
        gains: of each layer's detector.
    """
    functions: list[Callable[[Tensor], Tensor]]
    if name == "jax":
        return _jax_passes(x, weights, gains, physics)[0]
    if name == "linear":
        layers = [nn.Linear(w.shape[1], w.shape[0], bias=False, device=x.device, dtype=x.dtype) for w in weights]
        weights, gains = [layer.weight for layer in layers], [1.0] * len(weights)
        functions = [*layers]
    elif name in RUNGS:
        functions = [lambda y, w=w: RUNGS[name](y, w, physics) for w in weights]  # type: ignore[misc]
    else:  # mypy infers no type of a lambda with a default
        layer = _vmapped(x, weights, physics, name == "compiled")
        functions = [lambda y, w=w: layer(y, w) for w in weights]  # type: ignore[misc]

    def network() -> Tensor:
        y = x
        for index, (function, gain) in enumerate(zip(functions, gains, strict=True)):
            y = function(y.relu() if index else y)
            y = y if name == "linear" else gain * y
        return y

    ones = x.new_ones(len(x), len(weights[-1]))

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(network(), weights, ones)

    return torch.no_grad()(network), step


def _kernels(x: Tensor, weights: list[Tensor], physics: SpinWaveParameters) -> tuple[Any, ...]:
    """What `_vmapped` and JAX share: constants of the grid, and series long enough for these weights.

    Under vmap and jit nobody can look at the couplings, and a function that serves them all is many times as slow.
    """
    z, q = (t.to(x) for t in grid(physics.points))
    difference = z[:, None] - z
    step = causal_step(difference, physics.steepness) * q
    largest = max((w.detach() * physics.mode_coupling(w.shape[1])).square().max().item() for w in weights)
    constants = z, q, final_readout(z, q, physics), step, difference.clamp(min=GRID_EDGE), torch.outer(z, 1 - z)
    return constants, _series(0, largest), _series(1, largest)


def _polynomial(coefficients: list[float], t: Any) -> Any:
    return reduce(lambda value, coefficient: value * t + coefficient, reversed(coefficients))


def _vmapped(x: Tensor, weights: list[Tensor], physics: SpinWaveParameters, compile: bool) -> Layer:
    """A layer by torch.func.vmap, from a function of one digit and one neuron with a loop over the modes.

    This is what comes for free once the neuron is a function, here without complex numbers (rung 4), since
    torch.compile has none.
    """
    (z, q, row, step, distance, area), series_0, series_1 = _kernels(x, weights, physics)

    def neuron(x: Tensor, w: Tensor) -> Tensor:
        B = torch.zeros_like(z)
        for x_i, a in zip(x.unbind(), (w * physics.mode_coupling(len(w))).unbind(), strict=True):
            b = a * a
            phase = torch.cos(physics.stark_phase * b * z)
            g = MODE_NORMALISATION * a * phase * (_polynomial(series_0, b * area) @ q)
            B = B + x_i * g - (b * step * _polynomial(series_1, b * distance)) @ B
        f: Tensor = row @ B
        return f

    # Digits inside: the other way round every digit gets its own copy of the kernels.
    layer: Layer = torch.func.vmap(torch.func.vmap(neuron, (0, None)), (None, 0), out_dims=1)
    return torch.compile(layer, dynamic=False) if compile else layer


def _jax_passes(
    x: Tensor, weights: list[Tensor], gains: list[float], physics: SpinWaveParameters
) -> tuple[Passes, Any]:
    """`_passes` in JAX: the modes in a scan, digits and neurons by vmap, all in one jit. Also the jitted functions
    with their arguments.

    Without jax.checkpoint the scan would keep all kernels of all modes for the backward pass.
    """
    import jax
    import jax.numpy as jnp

    constants, series_0, series_1 = _kernels(x, weights, physics)
    z, q, row, step, distance, area = (jnp.asarray(t.cpu().numpy()) for t in constants)

    def mode(B: Any, amplitudes: tuple[Any, Any]) -> tuple[Any, None]:
        x_i, a = amplitudes
        b = a * a
        phase = jnp.cos(physics.stark_phase * b * z)
        g = MODE_NORMALISATION * a * phase * (_polynomial(series_0, b * area) @ q)
        return B + x_i * g - (b * step * _polynomial(series_1, b * distance)) @ B, None

    def neuron(x: Any, w: Any) -> Any:
        B, _ = jax.lax.scan(jax.checkpoint(mode), jnp.zeros_like(z), (x, w * physics.mode_coupling(len(w))))
        return row @ B

    layer = jax.vmap(jax.vmap(neuron, (0, None)), (None, 0), out_axes=1)

    def network(weights: Any, x: Any) -> Any:
        for index, (w, gain) in enumerate(zip(weights, gains, strict=True)):
            x = gain * layer(jax.nn.relu(x) if index else x, w)
        return x

    platform = "gpu" if x.device.type == "cuda" else x.device.type
    device = jax.devices(platform)[0]
    arguments = jax.device_put(([w.detach().cpu().numpy() for w in weights], x.cpu().numpy()), device)
    jitted = jax.jit(network), jax.jit(jax.grad(lambda weights, x: network(weights, x).sum()))

    def call(function: Callable[..., Any]) -> Callable[[], Any]:
        return lambda: jax.block_until_ready(function(*arguments))

    return (call(jitted[0]), call(jitted[1])), (jitted, arguments)


def _jax_memory(x: Tensor, weights: list[Tensor], gains: list[float], physics: SpinWaveParameters) -> list[int]:
    jitted, arguments = _jax_passes(x, weights, gains, physics)[1]
    needs = [function.lower(*arguments).compile().memory_analysis() for function in jitted]
    return [need.temp_size_in_bytes + need.output_size_in_bytes for need in needs]


def _errors(name: str, device: torch.device) -> tuple[float, float]:
    """Largest error of outputs and of gradients over the largest value, against rung 1 in float64."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(3, LEAST_MODES, generator=generator, dtype=torch.float64)
    w = torch.randn(2, LEAST_MODES, generator=generator, dtype=torch.float64)
    results = []
    for contender, dtype, place in ((name, torch.float32, device), ("looped", torch.float64, torch.device("cpu"))):
        leaf = w.to(place, dtype).requires_grad_()
        forward, step = _passes(contender, x.to(place, dtype), [leaf], [1.0], SpinWaveParameters())
        results.append([_as_float64(forward()), _as_float64(step()[0])])
    return tuple(
        ((found - exact).abs().max() / exact.abs().max()).item() for found, exact in zip(*results, strict=True)
    )


def _as_float64(values: Any) -> Tensor:
    return values.double().cpu() if isinstance(values, Tensor) else torch.tensor(values.tolist(), dtype=torch.float64)


def _forget(device: torch.device) -> None:
    """Leave out of account what was freed, which would be used again uncounted, and the peak so far."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError, AttributeError, TypeError):  # Linux with glibc
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")


def _resident(device: torch.device, peak: bool) -> int:
    """Bytes in use now, or at most so far: the allocator's on a GPU, resident memory on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) if peak else torch.cuda.memory_allocated(device)
    with contextlib.suppress(OSError):
        # Not getrusage: on Linux its maximum begins with that of the process that started this one.
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM" if peak else "VmRSS"):
                return int(line.split()[1]) * 1024
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


if __name__ == "__main__":
    # A cache of compiled code would hide what a first call costs.
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        print(json.dumps(_measure(json.loads(sys.argv[1]))))
