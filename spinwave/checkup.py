"""A check-up of any neuron f(x, w): what a training would not tell you about it.

Everything is found from outside, by calling f on chosen inputs, by watching the operators that it calls, and by
comparing. Six parts: gradients against central differences, scale of outputs and gradients against the optimiser,
structure in x and w, precision, cost, and portability. A test of structure on drawn inputs is evidence, not proof; each
states what it measured and the tolerance it was held against.

What cannot be seen from outside is not reported: constants that cancel, a formula that is wrong but smooth, anything
computed before f is called.
"""

import contextlib
import importlib
import importlib.util
import json
import logging
import math
import numbers
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from .bench import in_bytes, in_seconds
from .bessel import clifford
from .parameters import MOST_SEED, whole
from .report import CheckupReport, Finding
from .training import _write, choose_device
from .watch import (
    BESSEL,
    Meter,
    NotANumber,
    Patient,
    Trace,
    as_number,
    default_dtype,
    described,
    location,
    restored,
    shortened,
    within,
)

TOPICS = ("gradient", "scale", "structure", "precision", "cost", "portability")

# Where the book cures what is found: file and section.
CURES = {
    "gradient": ("chapters/02_is_it_right", "A function without a gradient"),
    "difference": ("chapters/02_is_it_right", "Finite differences"),
    "zero": ("chapters/02_is_it_right", "The way out: functions without roots"),
    "constant": ("chapters/02_is_it_right", "A grid without ends"),
    "quiet": ("chapters/02_is_it_right", "Too quiet to learn"),
    "checklist": ("chapters/02_is_it_right", "A checklist"),
    "float64": ("chapters/05_precision", "A float64 that is not"),
    "levels": ("chapters/05_precision", "Three levels"),
    "real": ("chapters/05_precision", 'Why the answer is "real numbers"'),
    "linear": ("chapters/07_structure", "Linear in the pixels"),
    "series": ("chapters/07_structure", "A few fixed matrices"),
    "quadratic": ("chapters/12_your_own_neuron", "A mesh of interferometers"),
    "spiking": ("chapters/12_your_own_neuron", "When it is not linear"),
    "loop": ("chapters/03_vectorizing_neurons", "Overhead and work"),
    "vmap": ("chapters/03_vectorizing_neurons", "Let the machine do it"),
    "device": ("chapters/03_vectorizing_neurons", "On a GPU"),
    "memory": ("chapters/04_batches_and_memory", "Forget and recompute"),
    "hours": ("chapters/01_looped_code", "What training would cost"),
    "compile": ("chapters/06_profiling", "What a compiler can do"),
}

ADAM_EPSILON = 1e-8
CALLS = 300  # of a slow f in a check-up, roughly, all topics together; three times as many where it may jump
# A test of structure passes below its tolerance, which leaves room for rounding; below NEARLY it nearly does.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
NEARLY = 1e-2
# Standard output, default dtype and random states belong to the process. Reentrant, as f may call checkup itself.
_ONE_AT_A_TIME = threading.RLock()
# Disagreement of autograd and central differences that is called an error.
GRADIENT_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2}


def checkup(
    f: Callable[[Tensor, Tensor], Tensor],
    x: Tensor | Callable[[int], Tensor] | int,
    w: Tensor | Callable[[int], Tensor] | int,
    *,
    modes: int = 100,
    seed: int = 0,
    device: str | torch.device | None = None,
    network: Sequence[int] = (100, 100, 10),
    samples: int = 60_000,
    topics: Sequence[str] = TOPICS,
    time_limit: float = 60.0,
    progress: Callable[[CheckupReport], None] | None = None,
) -> CheckupReport:
    """Run f on drawn inputs and report what is wrong with it, what it costs, and what it could be.

    Arguments:
        f: neuron ``f(x, w)`` that returns one number as a tensor. It is called several hundred times, on copies.
        x: input ``(modes,)``, real floating point; or a function that makes one for a number of modes; or that
            number, for standard normal entries. More inputs are drawn like the given one, and of other lengths where
            x and w are equally long.
        w: weights, likewise. Their number may differ from that of x.
        modes: what functions for x and w are called with.
        seed: of all draws, an integer from 0 to 2^31 - 1. f sees the same random numbers in every call.
        device: where f is checked; by default that of the given tensors, or the CPU.
        network: sizes, input first, of the network whose cost is projected; its last one is the number of classes.
        samples: of the data set whose epochs are projected.
        topics: parts of the check-up, among ``"gradient"``, ``"scale"``, ``"structure"``, ``"precision"``, ``"cost"``
            and ``"portability"``; all by default.
        time_limit: seconds for everything, > 0. Whatever is not finished by then is said to be missing.
        progress: called with the report so far after every part.

    Returns:
        The report. An f that raises, hangs, returns no number or NaN gets one that says so.

    Raises:
        ValueError: arguments other than described.

    The time limit interrupts Python code, in the main thread by a signal where the system has it, elsewhere from a
    second thread. A single call into compiled code that never returns is beyond its reach, and so is an f that catches
    ``BaseException``; ``python -m spinwave checkup`` works in a process of its own that it can end. Settings of
    PyTorch that the check-up changes (default dtype, random state) are put back; what ``torch.compile`` has cached is
    lost to the topic ``"portability"``. They belong to the whole process, as the output that f is not to write to does:
    check-ups in several threads queue, and the time limit of each begins with its turn.
    """
    if not callable(f):
        raise ValueError(f"f must be a function f(x, w), got {type(f).__name__}")
    plain = _plain_settings(modes, seed, network, samples, topics, time_limit)
    given = [value for value in (x, w) if isinstance(value, Tensor)]
    chosen = choose_device(device if device is not None else given[0].device if given else "cpu")

    with _ONE_AT_A_TIME, torch.inference_mode(False), torch.enable_grad():
        work = _Checkup(f, x, w, device=chosen, progress=progress, **plain)
        begin = time.perf_counter()
        if not within(time_limit, work.run):
            work.out_of_time(time_limit)
    work.report.settings["seconds"] = round(time.perf_counter() - begin, 3)
    return work.report


def _plain_settings(
    modes: int, seed: int, network: Sequence[int], samples: int, topics: Sequence[str], time_limit: float
) -> dict[str, Any]:
    """All but the last as data that JSON can hold; a ValueError unless they are of their kinds and in range."""
    seed = whole("seed", seed, 0, MOST_SEED)
    if isinstance(network, str) or not isinstance(network, Collection) or len(network) < 2:
        raise ValueError(f"network must be at least two sizes, got {network!r}")
    if isinstance(topics, str) or not isinstance(topics, Collection):
        raise ValueError(f"topics must be a list of some among {', '.join(TOPICS)}, got {topics!r}")
    modes, samples = whole("modes", modes), whole("samples", samples)
    network = [whole("network", size) for size in network]
    unknown = [topic for topic in topics if topic not in TOPICS]
    if unknown or not topics:
        raise ValueError(f"topics must be among {', '.join(TOPICS)}, got {', '.join(map(str, unknown)) or 'none'}")
    if not isinstance(time_limit, numbers.Real) or not time_limit > 0:
        raise ValueError(f"time_limit must be positive, a number of seconds, got {time_limit!r}")
    return {"modes": modes, "seed": seed, "network": network, "samples": samples, "topics": list(topics)}


# ---- numbers


class _Slope(NamedTuple):
    """Derivative of a function of one number at 0, by central differences."""

    value: float
    error: float  # estimated
    converged: bool  # the differences settle; in chaos, or where the derivative is beyond the steps, they do not
    flat: bool  # the function does not move at all under the smallest steps


def _slope(phi: Callable[[float], float], epsilon: float) -> _Slope:
    """Derivative of phi at 0; ``epsilon`` is the relative rounding of phi.

    Steps shrink fourfold; two neighbours give an estimate whose error is of fourth order (Richardson), and the one
    that agrees best with both of its own neighbours wins, so that the truncation of large steps, the rounding of
    small ones and the noise of an inaccurate phi all count as error.
    """
    steps = [0.1 * 4.0**-k for k in range(8)]
    values = [(phi(h), phi(-h)) for h in steps]
    while values and not all(map(math.isfinite, values[0])):  # large steps may leave the domain of phi
        steps, values = steps[1:], values[1:]
    if len(values) < 4 or not all(math.isfinite(v) for pair in values for v in pair):
        return _Slope(math.nan, math.inf, False, False)
    central = [(up - down) / (2 * h) for h, (up, down) in zip(steps, values, strict=True)]
    refined = [fine + (fine - coarse) / 15 for coarse, fine in pairwise(central)]
    # What an inaccurate phi scatters by: under the smallest steps the estimates of a smooth one no longer change.
    noise = max(abs(fine - coarse) * h for (coarse, fine), h in zip(pairwise(refined[-3:]), steps[-2:], strict=True))
    found = []
    for k in range(1, len(refined) - 1):
        rounding = epsilon * max(map(abs, values[k + 1])) / steps[k + 1]
        scatter = max(abs(refined[k] - refined[k - 1]), abs(refined[k] - refined[k + 1]))
        error = scatter + max(rounding, noise / steps[k + 1])
        found.append((error, refined[k], scatter <= max(10 * rounding, 0.1 * abs(refined[k]))))
    error, slope, converged = min(found)
    # Equal values under small steps are flat only if larger steps say that rounding would not hide a slope.
    size = max(abs(v) for pair in values for v in pair)
    expected = max(map(abs, central)) * steps[-1]
    still = len({v for pair in values[-2:] for v in pair}) == 1
    return _Slope(slope, error, converged, still and (expected == 0 or expected > 4 * epsilon * size))


def _jump(phi: Callable[[float], float]) -> float:
    """Share of phi's range on [-1, 1] that it jumps by in one place, 0 if it is continuous as far as one sees."""
    points = torch.linspace(-1, 1, 33, dtype=torch.float64).tolist()
    values = [phi(t) for t in points]
    extent = max(values) - min(values)
    if not (math.isfinite(extent) and extent > 0):
        return 0.0
    # Where it moves most, a jump stays when the interval shrinks.
    for k in sorted(range(32), key=lambda k: -abs(values[k + 1] - values[k]))[:8]:
        left, right, low, high = points[k], points[k + 1], values[k], values[k + 1]
        for _ in range(32):
            middle = (left + right) / 2
            value = phi(middle)
            if abs(value - low) > abs(high - value):
                right, high = middle, value
            else:
                left, low = middle, value
        share = abs(high - low) / extent
        if share > 1e-3:
            return share
    return 0.0


def _largest(values: Iterable[float]) -> float:
    """Infinity where a value is not finite: ``max`` passes over NaN."""
    values = list(values)
    return max(values) if all(map(math.isfinite, values)) else math.inf


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(statistics.fmean(v * v for v in values)) if values else math.nan


def _exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """p of the power law size^p that fits best."""
    logs = [math.log(n) for n in sizes]
    return statistics.linear_regression(logs, [math.log(max(v, 1e-12)) for v in values]).slope


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    """Median of up to five runs, fewer when they are long, after one to warm up."""

    def once() -> float:
        begin = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begin

    first = once()
    return statistics.median([once() for _ in range(5 if first < 0.05 else 2 if first < 1 else 1)])


# ---- the check-up


def _vector(name: str, value: Any) -> Tensor:
    """A copy of it, if it is one."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() != 1 or not len(value):
        got = f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(type(value))
        raise ValueError(f"{name} must be a real floating-point tensor of shape (modes,), got {got}")
    return value.detach().clone()


def _source(name: str, given: Any, device: torch.device) -> Callable[[int, torch.Generator], Tensor]:
    """Draws of x or w: of so many entries, from a generator for the entries of our own."""
    if isinstance(given, Tensor):
        kept = _vector(name, given).to(device)
        if not kept.isfinite().all():
            raise ValueError(f"{name} must be finite, got NaN or infinity")

        def like(n: int, generator: torch.Generator) -> Tensor:
            # Entries of the given one, so that zeros, signs and spread stay, with a tenth of jitter.
            noise = torch.randn(n, generator=generator, dtype=torch.float64).to(kept)
            if kept.min() == kept.max():
                return kept[0] * (1 + 0.1 * noise) if kept[0] != 0 else noise
            chosen = torch.randint(len(kept), (n,), generator=generator).to(device)
            return kept[chosen] * (1 + 0.1 * noise)

        return like
    if isinstance(given, int) and not isinstance(given, bool) and given >= 1:
        return lambda n, generator: torch.randn(n, generator=generator).to(device, torch.get_default_dtype())
    if callable(given):

        def made(n: int, generator: torch.Generator) -> Tensor:
            torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
            try:
                vector = given(n)
            except (Exception, SystemExit) as error:
                raise ValueError(f"{name}({n}) must return a tensor (modes,), got {described(error)}") from error
            return _vector(f"{name}({n})", vector).to(device)

        return made
    raise ValueError(f"{name} must be a tensor, a function of the number of modes, or that number, got {given!r}")


class _Checkup:
    """One check-up: the parts are methods, findings go to the report."""

    def __init__(
        self,
        f: Callable[[Tensor, Tensor], Tensor],
        x: Any,
        w: Any,
        modes: int,
        seed: int,
        device: torch.device,
        network: Sequence[int],
        samples: int,
        topics: Sequence[str],
        progress: Callable[[CheckupReport], None] | None,
    ):
        self.f = Patient(f, seed)
        self.device, self.network, self.samples = device, network, samples
        self.topics, self.progress = topics, progress
        self.generator = torch.Generator().manual_seed(seed)
        self.sources = {"x": _source("x", x, device), "w": _source("w", w, device)}
        # What a source is called with: the length, or the number of modes where a function makes of it what it wants.
        self.numbers = {
            name: len(given) if isinstance(given, Tensor) else given if isinstance(given, int) else modes
            for name, given in (("x", x), ("w", w))
        }
        with restored(device):
            self.x, self.w = (
                given.detach().clone().to(device)
                if isinstance(given, Tensor)
                else self.sources[name](self.numbers[name], self.generator)
                for name, given in (("x", x), ("w", w))
            )
        # Another number of modes means something only if it means the same for both.
        self.elastic = self.numbers["x"] == self.numbers["w"]
        self.modes = self.numbers["x"]
        self.report = CheckupReport(
            getattr(f, "__qualname__", None) or type(f).__qualname__,
            {
                "modes": self.modes, "weights": len(self.w), "dtype": str(self.x.dtype).removeprefix("torch."),
                "device": str(device), "seed": seed, "network": list(network), "samples": samples,
                "topics": list(topics), "torch": torch.__version__, "seconds": 0.0,
            },
        )
        self.closed = False
        self.topic = "output"
        self.first_call: float | None = None  # seconds, once f has answered
        self.begin = time.perf_counter()
        self.differentiable: list[str] = []  # arguments whose gradient can be had
        self.verified: list[str] = []  # arguments whose gradient agrees with differences
        self.affine: bool | None = None  # in x; False if f is linear, None if it is neither
        self.coincident = False  # f takes so few values that equal ones mean nothing

    # -- plumbing

    def add(self, severity: str, title: str, measured: str, meaning: str = "", cure: str = "", cost: str = "") -> None:
        if not self.closed:
            section = " – ".join(CURES[cure]) if cure else ""
            self.report.findings.append(Finding(severity, self.topic, title, measured, meaning, section, cost))

    def run(self) -> None:
        with restored(self.device):
            if not self.output():
                return
            for topic in filter(self.topics.__contains__, TOPICS):
                self.topic = topic
                if topic in ("gradient", "structure") and (self.half or not self.frozen):
                    reason = f"f rounds to {self.half}" if self.frozen else "f does not repeat itself"
                    self.add("note", f"{topic} undecided", f"{reason}, so that differences mean nothing")
                    continue
                try:
                    getattr(self, topic)()
                except (Exception, SystemExit) as error:
                    self.add("note", "not measured to the end", f"stopped by {described(error)}")
                self.report.settings["seconds"] = round(time.perf_counter() - self.begin, 3)
                if self.progress is not None and not self.closed:
                    self.progress(self.report)

    def out_of_time(self, limit: float) -> None:
        """Say what the time limit kept from being measured."""
        if self.topic == "output" and self.first_call is not None:
            one = in_seconds(self.first_call)
            pairs = pairwise(self.network)
            epoch = self.samples * sum(n_out for _, n_out in pairs) * self.first_call
            self.add(
                "warning", f"one call takes {one}: cut short before any topic",
                f"{in_seconds(limit)} were over when f had answered at {self.modes} modes; one epoch of "
                f"{self.samples:,} samples through {'-'.join(map(str, self.network))} neurons, called one by one, "
                f"forward only and as if cost did not depend on the modes: {_span(epoch)}",
                f"the check-up needs a time_limit of about {_span(CALLS * self.first_call)}, or fewer modes", "hours",
                "none, to see whether fewer modes answer sooner",
            )
        elif self.topic == "output":
            self.add(
                "severe", f"no answer within {in_seconds(limit)}",
                f"one call at {self.modes} modes did not return within the time limit",
                "it hangs, or it needs more time than the check-up was given (time_limit)", "hours",
                "none, to see whether fewer modes answer",
            )
        else:
            later = [topic for topic in self.topics if TOPICS.index(topic) > TOPICS.index(self.topic)]
            rest = f"; not begun: {', '.join(later)}" if later else ""
            self.add(
                "note", "cut short by the time limit", f"{in_seconds(limit)} were over during this part{rest}",
                "what is missing was not measured; a longer time_limit or fewer modes get there",
            )
        self.closed = True

    def draw(self, name: str, n: int | None = None) -> Tensor:
        """Another x or w in the dtype of exact work, of as many modes if that is not said."""
        return self.sources[name](self.numbers[name] if n is None else n, self.generator).to(self.exact)

    def normal(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.generator, dtype=torch.float64).to(like)

    def exactly(self) -> contextlib.AbstractContextManager[None]:
        return default_dtype(self.exact_default)

    def trace(self, x: Tensor, w: Tensor, record: bool = True) -> tuple[Trace, Tensor | None, str]:
        """f under a trace: what it called, what it returned, and the error if it raised."""
        x, w = (t.detach().clone().requires_grad_(record).clone() for t in (x, w))
        trace = Trace(x, w)
        try:
            with trace:
                out = self.f.raw(x, w)
            return trace, as_number(out), ""
        except (Exception, SystemExit) as error:
            return trace, None, described(error)

    # -- parts

    def output(self) -> bool:
        """What one call returns; False if there is nothing to go on with."""
        x, w = self.x.clone(), self.w.clone()
        expected = "expected one real number as a tensor of shape ()"
        begin = time.perf_counter()
        try:
            out = self.f.raw(x, w)
            self.first_call = time.perf_counter() - begin
        except (Exception, SystemExit) as error:
            self.add("severe", "f raises", described(error), "there is nothing to train", "checklist", "a repair of f")
            return False
        if self.f.warned:
            self.add("note", "f warns", "; ".join(self.f.warned), "PyTorch and others warn about what they half undo")
        for name, used, given in (("x", x, self.x), ("w", w, self.w)):
            if not torch.equal(used, given):
                trace, _, _ = self.trace(self.x, self.w, record=False)
                changed = (used != given).sum().item()
                self.add(
                    "severe", f"f changes its argument {name}",
                    f"after one call {changed} of {len(given)} entries differ"
                    + (f"; written by {', '.join(trace.written.values())}" if trace.written else ""),
                    "the next call sees other data; a leaf that requires gradients makes PyTorch raise"
                    if name == "w"
                    else "the data set, or the layer before, is overwritten while it is in use",
                    "checklist", f"a copy of {name} at the start of f",
                )
        try:
            value = as_number(out)
        except NotANumber as error:
            self.add(
                "severe", "f does not return one number", f"{expected}, got {error}",
                "a neuron has one output; everything else about f was left unchecked", "checklist",
                "one line: reduce the result to a scalar",
            )
            return False
        if not isinstance(out, Tensor):
            trace, _, _ = self.trace(self.x, self.w)
            self.add(
                "severe", "f returns no tensor",
                f"{expected}, got a {type(out).__name__}" + _list(trace.cuts, "; values leave PyTorch at "),
                "autograd has nothing to begin with: no gradient at all; the rest was checked on the number",
                "gradient", "the same arithmetic with torch functions",
            )
        elif not out.is_floating_point():
            self.add(
                "warning", "f returns an integer", f"{expected}, got {out.dtype}", "integers carry no gradient",
                "spiking", "a smooth read-out",
            )
        elif out.dim():
            self.add(
                "note", f"shape {tuple(out.shape)} instead of ()", expected,
                "harmless for one neuron, a surprise when results are stacked", "vmap", "one .squeeze()",
            )
        if not math.isfinite(value.item()):
            self.add(
                "severe", "output is " + ("NaN" if math.isnan(value.item()) else "infinite"),
                f"f(x, w) = {value.item()} at the given x and w, all finite; the rest was left unchecked",
                "one such value makes every weight NaN in one step", "zero",
                "a formula without 0/0, or smaller arguments",
            )
            return False
        self.choose_exact()
        try:
            self.repeatable(value.item())
        except (Exception, SystemExit) as error:
            self.add(
                "severe", "f raises on a later call", described(error),
                "the first call gave a number; the rest was left unchecked", "checklist", "a repair of f",
            )
            return False
        return True

    def choose_exact(self) -> None:
        """The most precise dtype that f takes, and what it makes of a default dtype."""
        self.exact, self.exact_default, refused = self.x.dtype, None, ""
        for default in (torch.float64, None):
            try:
                with default_dtype(default):
                    out = self.f.raw(self.x.double(), self.w.double())
                    if not isinstance(out, Tensor) or out.dtype == torch.float64 or not out.is_floating_point():
                        self.exact, self.exact_default = torch.float64, default
                        break
                    refused = f"it returns {out.dtype} for float64 arguments"
            except (Exception, SystemExit) as error:
                refused = refused or described(error)
        self.refused = refused if self.exact != torch.float64 else ""
        self.given = self.x.to(self.exact), self.w.to(self.exact)
        with self.exactly():
            self.seen, _, raised = self.trace(*self.given)
            if raised:
                self.seen, _, _ = self.trace(*self.given, record=False)
        # Of float64 the trace knows what was rounded; f may also use half precision for numbers that survive it.
        names = (str(dtype).removeprefix("torch.") for dtype in self.seen.dtypes & {torch.float16, torch.bfloat16})
        self.half = ", ".join(sorted(n for n in names if n in self.seen.coarse or self.exact != torch.float64))
        self.working = torch.float32 if self.seen.coarse or self.exact != torch.float64 else torch.float64

    def repeatable(self, value: float) -> None:
        """Whether equal inputs give equal outputs; f is seeded from here on."""
        begin = time.perf_counter()
        try:
            again = self.f.value(self.x, self.w)
        except (Exception, SystemExit) as error:
            self.f.recording = True
            begin = time.perf_counter()
            again = self.f.value(self.x, self.w)
            self.add(
                "warning", "f fails where gradients are switched off", described(error),
                "f needs gradients for its value: evaluation under torch.no_grad() stops", "checklist",
                "torch.enable_grad() around what f differentiates itself",
            )
        self.call_seconds = time.perf_counter() - begin  # the first call may have loaded a library
        seeds = range(101, 105)
        other = [self.f.value(self.x, self.w, s) for s in seeds]
        scale = max(map(abs, (value, again, *other))) or 1.0
        eps = 100 * torch.finfo(self.x.dtype).eps
        self.stochastic = max(abs(v - value) for v in other) > eps * scale
        self.frozen = abs(again - value) <= eps * scale
        names = _list(self.seen.random, "; random numbers from ")
        if not self.frozen:
            self.stochastic = True
            self.add(
                "warning", "f is not repeatable",
                f"equal inputs and equal seeds gave {value:.6g} and {again:.6g}{names}",
                "it keeps a state, or draws from a generator that no seed reaches; gradients and structure cannot be "
                "tested on it",
                "checklist", "an argument for the state or the generator",
            )
        elif self.stochastic:
            with self.exactly():  # a draw that drops the output shows nothing of f
                drawn = self.draw("x"), self.draw("w")
                for seed in (self.f.seed, *seeds):
                    if self.f.attempt(*self.given, seed) != self.f.attempt(*drawn, seed):
                        self.f.seed = seed
                        break
            self.add(
                "note", "f is stochastic",
                f"equal inputs under four seeds scatter by {statistics.stdev(other):.2g} around "
                f"{statistics.fmean(other):.3g}{names}",
                "everything below is for one fixed draw of its random numbers", "checklist", "none if it is meant",
            )
        else:
            self.add("ok", "one finite number, repeatable", f"f(x, w) = {value:.6g}")

    # -- gradient

    def gradient(self) -> None:
        with self.exactly():
            for name in ("w", "x"):
                self.gradient_of(name, *self.given)
            self.at_zeros(*self.given)

    def autograd(self, name: str, x: Tensor, w: Tensor) -> Tensor | None:
        """Gradient of f in one argument, None where autograd has none."""
        leaf = (w if name == "w" else x).clone().requires_grad_()
        out = self.f(x, leaf) if name == "w" else self.f(leaf, w)
        if not out.requires_grad:
            return None
        with self.f.silenced():
            return torch.autograd.grad(out, leaf, allow_unused=True)[0]

    def of(self, name: str, x: Tensor, w: Tensor) -> tuple[Callable[[Tensor], float], Tensor]:
        """f as a function of one argument, and that argument."""
        return (lambda v: self.f.attempt(v, w), x) if name == "x" else (lambda v: self.f.attempt(x, v), w)

    def along(self, name: str, x: Tensor, w: Tensor, direction: Tensor) -> Callable[[float], float]:
        """f on a line through x or w."""
        g, at = self.of(name, x, w)
        return lambda t: g(at + t * direction)

    def gradient_of(self, name: str, x: Tensor, w: Tensor) -> None:
        at = w if name == "w" else x
        try:
            gradient = self.autograd(name, x, w)
        except (Exception, SystemExit) as error:
            in_place = "modified by an inplace operation" in str(error) or "in-place" in str(error)
            self.add(
                "severe", f"no gradient of {name}: " + ("an in-place operator breaks it" if in_place else "f raises"),
                f"f works on numbers and fails when gradients of {name} are recorded: {described(error)}",
                "training stops at the first step", "checklist",
                "a new tensor where f writes into an old one" if in_place else "torch functions where it leaves torch",
            )
            return
        if gradient is not None and not gradient.isfinite().all():
            bad = (~gradient.isfinite()).sum().item()
            self.add(
                "severe", f"gradient of {name} is NaN or infinite",
                f"{bad} of {len(at)} entries at the given inputs, where the output is finite",
                "one step makes the weights NaN", "zero", "a formula without roots, 0/0 or log 0 at these inputs",
            )
            return

        self.differentiable.append(name)
        found = self.compare(name, x, w, gradient)
        reach = 1.0
        if found["wrong"]:
            # At a kink, where data are exactly 0, every slope between the two sides is right. Farther from it than the
            # steps reach, to either side, only a wrong gradient is wrong.
            aside = self.normal(at)
            beside = at + 0.1 * self.spread(at) * (aside + aside.sign())
            near = (x, beside) if name == "w" else (beside, w)
            with contextlib.suppress(Exception):
                there_gradient = self.autograd(name, *near)
                there = self.compare(name, *near, there_gradient, reach=0.1)
                right = there["worst"] <= GRADIENT_TOLERANCE[self.working]
                if right and not (there["undecided"] or there["flat"]):
                    self.add(
                        "note", f"kink in {name} at the given inputs",
                        f"autograd is {found['worst']:.2g} off central differences there, and right beside them to "
                        f"{_small(there['worst'])}",
                        "the output has one slope on either side, and autograd takes one of them or one between",
                    )
                    (x, w), gradient, found, reach = near, there_gradient, there, 0.1
        jump = self.jump_along(name, x, w) if self.seen.steps or self.seen.reads or found["flat"] else 0.0
        if found["flat"] and not jump:
            # At rest or saturated perhaps: look elsewhere before a gradient of zero is called right.
            for factor in (1, -1, 10, -10, 0.1, -0.1) * 2:
                if factor == 1:
                    drawn = self.draw("x"), self.draw("w")
                x, w = factor * drawn[0], abs(factor) * drawn[1]
                with contextlib.suppress(Exception):
                    gradient = self.autograd(name, x, w)
                    found = self.compare(name, x, w, gradient)
                if not found["flat"]:
                    break
            else:
                jump = self.jump_along(name, x, w)
        steps = _list(self.seen.steps, "; thresholds at ")
        cuts = _list(self.seen.cuts)
        if not self.depends_on(name):
            self.add(
                "warning", f"output does not depend on {name}",
                f"changing {name} did not change the number, at sixteen drawn inputs",
                "nothing to learn from it" if name == "w" else "the data cannot reach the output", "checklist",
                "a look at where it should enter",
            )
            return
        if found["flat"]:
            surrogate = gradient is not None and gradient.abs().max() > 0
            title = f"piecewise constant in {name}" if jump else f"flat in {name} wherever it was tested"
            self.add(
                "warning" if surrogate else "severe",
                title + (", trained by a surrogate gradient" if surrogate else ""),
                "central differences are 0 in every direction, and the output "
                + (f"jumps by {jump:.2g} of its range" if jump else "changes only between distant inputs")
                + steps,
                "autograd returns a gradient that is not the derivative, as surrogates do; make sure that it is meant"
                if surrogate
                else "its gradient is zero wherever there is one: no step is ever taken",
                "spiking",
                "a smooth substitute for the threshold's derivative"
                if jump
                else "smaller arguments, if it is saturated",
            )
            return
        wrong, worst, undecided = found["wrong"], found["worst"], found["undecided"]
        scaled = ""
        if cuts and ((wrong and worst < 0.1) or not (wrong or undecided)):
            # A missing derivative may be invisible where a kernel is nearly constant.
            for factor in (10.0, 100.0):
                strong = (x, w * factor) if name == "w" else (x * factor, w)
                with contextlib.suppress(Exception):
                    there = self.compare(name, *strong, self.autograd(name, *strong), reach)
                    if there["wrong"]:
                        scaled += f", {there['worst']:.1%} at {factor:.0f} {name}"
        if gradient is None:
            self.add(
                "severe", f"no gradient reaches {name}",
                f"autograd has none, and central differences say that the output changes by up to {found['size']:.2g} "
                f"per unit along drawn directions" + (f"; cut at {cuts}" if cuts else ""),
                f"{name} would never be trained and nothing would say so"
                if name == "w"
                else "layers before this one would never be trained and nothing would say so",
                "gradient", "a function with a derivative in place of the one named",
            )
        elif wrong or scaled:
            where = f"{worst:.2g} off at the given inputs" if wrong else "right at the given inputs to " + _small(worst)
            custom = self.custom_functions(x, w)
            self.add(
                "severe", f"gradient of {name} is wrong",
                f"autograd against central differences along {found['directions']} directions: {where}{scaled} "
                f"(differences good to {_small(found['error'])})"
                + (f"; gradients end at {cuts}" if cuts else "")
                + (f"; derivatives written by hand: {custom}" if custom else "")
                + (steps if jump else ""),
                "autograd takes what it cannot differentiate for a constant and says nothing"
                if cuts
                else "no operator was seen that drops it: a hand-written derivative, perhaps a surrogate that is meant"
                if custom
                else "part of the dependence is not differentiated",
                "gradient", "a function with a derivative in place of the one named",
            )
        elif undecided:
            self.add(
                "note", f"gradient of {name} undecided",
                f"central differences along {found['directions']} directions do not settle"
                + (f", or only to {found['error']:.1g}" if found["error"] else ""),
                "f is too rough, or too imprecise, for the comparison" + (f"; {self.refused}" if self.refused else ""),
                "difference",
            )
        else:
            self.verified.append(name)
            self.add(
                "ok", f"gradient of {name} is right",
                f"within {_small(worst)} of central differences along {found['directions']} directions "
                f"(tolerance {GRADIENT_TOLERANCE[self.working]:.0e}, differences good to {_small(found['error'])})",
            )
        if jump:
            self.add(
                "warning", f"jumps in {name}",
                f"on a line through {name} the output jumps by {jump:.2g} of its range{steps}",
                "the gradient is blind to the jumps and describes only what lies between them", "spiking",
                "a smooth substitute for the threshold's derivative",
            )

    def jump_along(self, name: str, x: Tensor, w: Tensor) -> float:
        """Largest jump on a short and a long line through x or w, as a share of the range of f."""
        at = w if name == "w" else x
        return max(_jump(self.along(name, x, w, length * self.spread(at) * self.normal(at))) for length in (1, 4))

    def depends_on(self, name: str) -> bool:
        """Whether f moves with an argument, somewhere."""
        for factor in (1, 10) * 8:
            g, at = self.of(name, factor * self.draw("x"), factor * self.draw("w"))
            if g(at) != g(factor * self.draw(name)):
                return True
        return False

    def spread(self, at: Tensor) -> float:
        return at.square().mean().sqrt().item() or 1.0

    def compare(
        self, name: str, x: Tensor, w: Tensor, gradient: Tensor | None, reach: float = 1.0
    ) -> dict[str, Any]:
        """Autograd's slope against central differences along drawn directions, reach times as long as the inputs."""
        at = w if name == "w" else x
        tolerance = GRADIENT_TOLERANCE[self.working]
        epsilon = torch.finfo(self.working).eps
        found: dict[str, Any] = {"worst": 0.0, "error": 0.0, "size": 0.0}
        found |= {"wrong": False, "undecided": False, "flat": True, "directions": 3 if self.call_seconds < 0.02 else 1}
        for _ in range(found["directions"]):
            direction = self.normal(at)
            step = reach * self.spread(at)
            measured = _slope(self.along(name, x, w, step * direction), epsilon)
            slope, error = measured.value / step, measured.error / step
            found["flat"] = found["flat"] and measured.flat
            claimed = 0.0 if gradient is None else (gradient * direction).sum().item()
            # Along an unlucky direction the slope is small by cancellation: measured by the whole gradient's size.
            scale = max(abs(slope), abs(claimed), 0.0 if gradient is None else 0.1 * gradient.norm().item())
            if not scale:
                continue
            off = abs(slope - claimed)
            if not (measured.converged and math.isfinite(off)):
                found["undecided"] = True
                continue
            wrong = off > 10 * error and off > tolerance * scale
            if wrong:  # neighbours may agree by luck; steps of another length have other errors
                again = _slope(self.along(name, x, w, 0.7 * step * direction), epsilon)
                error = max(error, abs(slope - again.value / (0.7 * step)))
                wrong = off > 10 * error
            found["size"] = max(found["size"], abs(slope))
            found["worst"] = max(found["worst"], off / scale)
            found["error"] = max(found["error"], error / scale)
            if wrong:
                found["wrong"] = True
            elif error > 1e3 * tolerance * scale:
                found["undecided"] = True
        return found

    def custom_functions(self, x: Tensor, w: Tensor) -> str:
        """Names of the torch.autograd.Function classes in the graph of f."""
        with contextlib.suppress(Exception):
            out = self.f(x.clone().requires_grad_(), w.clone().requires_grad_())
            todo, done, names = [out.grad_fn], set(), set[str]()
            while todo:
                node = todo.pop()
                if node is None or node in done:
                    continue
                done.add(node)
                if isinstance(node, torch.autograd.function.BackwardCFunction):
                    names.add(type(node).__name__.removesuffix("Backward"))
                todo += [next_node for next_node, _ in node.next_functions]
            return ", ".join(sorted(names))
        return ""

    def at_zeros(self, x: Tensor, w: Tensor) -> None:
        """Pixels are often exactly zero, and roots, norms and quotients are not differentiable there."""
        half = torch.arange(max(len(x), len(w)), device=self.device) % 2
        cases = {
            "every other entry of x is 0": (x * half[: len(x)], w),
            "x is 0": (x * 0, w),
            "every other entry of w is 0": (x, w * half[: len(w)]),
        }
        fine = []
        for case, (x0, w0) in cases.items():
            try:
                value = self.f.value(x0, w0)
                gradients = {name: self.autograd(name, x0, w0) for name in self.differentiable}
            except (Exception, SystemExit) as error:
                self.add(
                    "warning", f"f fails where {case}", described(error), "images have black pixels", "zero",
                    "a case of its own",
                )
                continue
            bad = [f"gradient of {name}" for name, g in gradients.items() if g is not None and not g.isfinite().all()]
            if not math.isfinite(value):
                bad = ["output"]
            if not bad:
                fine.append(case)
                continue
            self.add(
                "severe" if case == "every other entry of x is 0" else "warning",
                f"NaN or infinite where {case}", f"{' and '.join(bad)}; finite at the given inputs",
                "images have black pixels, dead layers and pruned weights are zero, and one NaN makes every weight NaN",
                "zero", "a formula without roots, 0/0 or log 0 there",
            )
        if len(fine) == len(cases):
            what = "output and gradients are" if self.differentiable else "the output is"
            self.add("ok", "zeros do no harm", f"{what} finite where {', or '.join(cases)}")

    # -- scale

    def scale(self) -> None:
        number = 8 if self.call_seconds < 0.05 else 3
        classes = self.network[-1]

        def drawn(n: int) -> list[tuple[Tensor, Tensor]]:
            return [(self.draw("x").to(self.x), self.draw("w").to(self.w)) for _ in range(n)]

        draws = drawn(number)
        outputs, in_w, _ = self.sizes([(self.x, self.w), *draws])
        size = _rms(outputs)
        if not all(map(math.isfinite, outputs)):
            self.add(
                "warning", "NaN, infinite or an error at some drawn inputs",
                f"{sum(not math.isfinite(v) for v in outputs)} of {len(outputs)} draws in {self.x.dtype}",
                "f leaves its domain on inputs like the given ones", "zero", "a bound on its arguments",
            )
            return
        if size == 0:  # a ReLU may be at rest a few times
            outputs += self.sizes(drawn(3 * number))[0]
            size = _rms(outputs)
        if size == 0:
            self.add(
                "warning", "silent", f"the output was 0 on all {len(outputs)} draws",
                "nothing reaches the next layer", "quiet", "stronger inputs or a lower threshold",
            )
            return
        if max(outputs) <= 0:
            self.add(
                "note", "ReLU passes none of its outputs",
                f"all of {len(outputs)} draws gave 0 or less, down to {min(outputs):.2g}",
                "a second layer behind a ReLU sees only zeros, and no gradient comes back", "quiet",
                "an offset, or the other sign",
            )
            return
        # A second layer, fed with ReLU of outputs of the first.
        passed = torch.tensor(outputs, dtype=torch.float64).relu().to(self.x)

        def like_outputs() -> Tensor:
            chosen = torch.randint(len(passed), (len(self.x),), generator=self.generator)
            return passed[chosen.to(self.device)]

        hidden = [(like_outputs(), w) for _, w in draws[: max(3, number // 2)]]
        logits, in_output, in_hidden = self.sizes(hidden)
        measured = f"outputs have rms {size:.2g} over {len(outputs)} draws, logits of a second layer {_rms(logits):.2g}"
        steps = {}
        if in_w and in_output and in_hidden:
            # Cross entropy at equal probabilities: rms of p - y over the classes.
            error = math.sqrt(classes - 1) / classes if classes > 1 else 0.5  # a single class has a sigmoid
            gradients = {
                "output": error * _rms(in_output),
                "hidden": error * math.sqrt(classes / 2) * _rms(in_hidden) * _rms(in_w),
            }
            steps = {layer: g / (g + ADAM_EPSILON) for layer, g in gradients.items()}
            measured += (
                f"; gradients of cross entropy {gradients['hidden']:.2g} in the hidden and {gradients['output']:.2g} "
                f"in the output layer, estimated for two layers of {len(self.x)} and {classes} neurons. With Adam's "
                f"eps of {ADAM_EPSILON:.0e} a first step is {steps['hidden']:.0%} and {steps['output']:.0%} of the "
                "learning rate"
            )
        suggestion = f"; suggested gain 1/rms = {1 / size:.3g} behind every layer"
        loud = _rms(logits)
        if not (math.isfinite(loud) and loud > 0):
            silent = loud == 0
            self.add(
                "note", "a second layer is " + ("silent" if silent else "not finite"),
                f"outputs have rms {size:.2g}; fed with ReLU of such numbers, f gives "
                + ("0" if silent else f"NaN, infinity or an error{suggestion}"),
                "nothing comes through two layers of it" if silent else "a ReLU makes zeros, and f may not take them",
                "quiet" if silent else "zero",
                "another nonlinearity between layers, or a " + ("lower threshold" if silent else "bound on arguments"),
            )
            return
        swallowed = min(steps.values(), default=1.0) < 0.5
        if loud < 1e-4 or (swallowed and loud < 1e-2):
            self.add(
                "warning", "too quiet to learn without a gain", measured + suggestion,
                "softmax sees equal logits, and "
                + ("the optimiser's eps swallows the gradients" if swallowed else "weights have far to grow")
                + ": the loss stands still",
                "quiet", "one fixed factor per layer, nothing to learn",
            )
        elif swallowed:
            self.add(
                "note", "gradients vanish in a second layer", measured + suggestion,
                "fed with its own outputs, f is saturated: nothing comes back through it", "quiet",
                "one fixed factor per layer",
            )
        elif loud < 1e-2 or loud > 30:
            self.add(
                "note", "logits are " + ("small" if loud < 1 else "large"), measured + suggestion,
                "softmax starts nearly " + ("uniform" if loud < 1 else "decided, where its gradients vanish"),
                "quiet", "one fixed factor per layer",
            )
        else:
            self.add("ok", "scale suits softmax and optimiser", measured)

    def sizes(self, inputs: list[tuple[Tensor, Tensor]]) -> tuple[list[float], list[float], list[float]]:
        """Outputs, and rms gradients in w and x where there are any, at some inputs."""
        outputs: list[float] = []
        sizes: dict[str, list[float]] = {"w": [], "x": []}
        for x, w in inputs:
            outputs.append(self.f.attempt(x, w))
            for name, kept in sizes.items():
                with contextlib.suppress(Exception):
                    gradient = self.autograd(name, x, w)
                    if gradient is not None and gradient.isfinite().all():
                        kept.append(_rms(gradient.double().tolist()))
        return outputs, sizes["w"], sizes["x"]

    # -- structure

    def structure(self) -> None:
        self.tolerance = TOLERANCE[self.working]
        with self.exactly():
            x, w = self.given
            for name in ("x", "w"):
                self.additivity(name, x, w)
            self.symmetry(x)
            self.separability(x, w)
            self.real_state()
            if self.affine is not None:
                self.make_batched(x, w)

    def additivity(self, name: str, x: Tensor, w: Tensor) -> None:
        """Linear, affine, homogeneous, quadratic, even or odd in one argument."""
        g, at = self.of(name, x, w)
        origin = g(torch.zeros_like(at))
        residuals, offsets, parallelograms, parities = {}, [], [], {1: 0.0, -1: 0.0}
        constant = True
        for scale in (0.01, 1.0, 100.0) * (2 if self.call_seconds < 0.02 else 1):
            a, b = scale * self.draw(name), scale * self.draw(name)
            ga, gb, both, difference, minus = g(a), g(b), g(a + b), g(a - b), g(-a)
            values = (ga, gb, both, difference, minus)
            moved = _largest(abs(v - origin) for v in values)
            size = max(map(abs, (origin, *values)))
            if moved == 0:
                continue
            constant = False
            if not math.isfinite(moved):
                residuals[scale] = math.inf
                parallelograms.append(math.inf)
                parities = dict.fromkeys(parities, math.inf)
                continue
            # Rounding of a large offset would pass for curvature.
            if 100 * torch.finfo(self.working).eps * size > self.tolerance * moved:
                continue
            off = (both - ga - gb + origin, difference - ga + gb - origin, minus + ga - 2 * origin)
            residuals[scale] = max(residuals.get(scale, 0.0), *(abs(v) / moved for v in off))
            offsets.append(abs(origin) / size)
            parallelograms.append(abs(both + difference - 2 * ga - 2 * gb + 2 * origin) / moved)
            for sign in parities:
                parities[sign] = max(parities[sign], abs(minus - sign * ga) / size)
        if constant:
            return
        worst = max(residuals.values(), default=math.inf)
        if math.isinf(min(residuals.values(), default=math.inf)):
            self.add(
                "note", f"dependence on {name} undecided",
                "f gave no finite number, or raised, at the sums and differences of drawn inputs that show it"
                if residuals
                else f"f(0) = {origin:.3g} is so large that rounding hides the change",
            )
            return
        shown = ", ".join(f"{r:.1g} at {scale:g} {name}" for scale, r in residuals.items())
        tested = (
            f"f(a ± b) - f(a) ∓ f(b) ± f(0) and f(a) + f(-a) - 2 f(0), relative to f: {shown} "
            f"(tolerance {self.tolerance:.0e})"
        )
        if worst <= self.tolerance:
            offset = max(offsets, default=0.0) > self.tolerance
            if name == "x":
                self.affine = offset
            self.add(
                "note", f"{'affine' if offset else 'linear'} in {name}",
                tested + (f"; f(0) = {origin:.3g}" if offset else "; f(0) = 0"),
                "f(x, w) = x · H(w)" + (" + c(w)" if offset else "") + ": the effective weights H do not depend on x, "
                "so that a batch is one matrix product; without a nonlinearity between them, layers collapse into one"
                if name == "x"
                else "the weights enter like those of a dot product: f is no richer in w than an ordinary neuron",
                "linear", "one gradient of f per neuron instead of one call per sample" if name == "x" else "none",
            )
            return
        if residuals.get(1.0, math.inf) <= NEARLY:
            self.add(
                "note",
                f"nearly {'linear' if max(offsets) <= NEARLY else 'affine'} in {name} "
                f"(residual {residuals[1.0]:.1g} on the tested inputs)",
                tested,
                "at this size a dot product does nearly the same; a short series is accurate"
                if name == "w"
                else "at this size of the inputs a matrix product does nearly the same",
                "series", "a series of two or three terms, or stronger inputs if nonlinearity is wanted",
            )
        small_origin = abs(origin) <= self.tolerance * abs(g(at))
        if small_origin and max(parallelograms, default=math.inf) <= self.tolerance:
            self.add(
                "note", f"quadratic in {name}",
                f"f(a + b) + f(a - b) = 2 f(a) + 2 f(b) to {max(parallelograms):.1g} (tolerance {self.tolerance:.0e}) "
                "at 0.01, 1 and 100 times the inputs",
                f"f = {name}ᵀ Q {name} with a matrix Q that does not depend on {name}"
                + (", a short list of dot products if its rank is low" if name == "x" else ""),
                "quadratic", "one polarisation per neuron instead of one call per sample" if name == "x" else "none",
            )
            return
        facts = [f"not linear: {tested}"]
        degree = self.homogeneity(name, g)
        if degree:
            facts.append(degree)
        for sign, word in ((1, "even"), (-1, "odd")):
            if parities[sign] <= self.tolerance and offsets:
                facts.append(f"{word}: f(-{name}) = {'-' if sign < 0 else ''}f({name}) to {parities[sign]:.1g}")
        self.add("ok", f"dependence on {name}", "; ".join(facts))

    def homogeneity(self, name: str, g: Callable[[Tensor], float]) -> str:
        """``"homogeneous of degree d"`` if f(c a) = c^d f(a) for positive c."""
        degrees, residuals = [], []
        for _ in range(2):
            a = self.draw(name)
            one, two = g(a), g(2 * a)
            if not (math.isfinite(one) and math.isfinite(two) and one * two > 0):
                return ""
            degrees.append(math.log2(two / one))
            if not abs(degrees[0]) < 100:  # no power law anyone wrote, and its numbers overflow
                return ""
            for factor in (0.01, 0.5, 3.0):
                expected = factor ** degrees[0] * one
                residuals.append(abs(g(factor * a) - expected) / abs(expected) if expected else math.inf)
        if not _largest(residuals) <= 10 * self.tolerance or abs(degrees[1] - degrees[0]) > 10 * self.tolerance:
            return ""
        degree = round(degrees[0], 6) or 0.0
        return f"homogeneous of degree {degree:g} in {name}, to {max(residuals):.1g}"

    def symmetry(self, x: Tensor) -> None:
        if len(x) < 2:
            return
        values = [self.f.attempt(self.draw("x"), self.draw("w")) for _ in range(8)]
        if not all(map(math.isfinite, values)):
            self.add(
                "note", "order of the modes undecided", "f gave no finite number, or raised, at some drawn inputs"
            )
            return
        if len(set(values)) < len(values):
            self.coincident = True
            self.add("ok", "order of the modes not tested", "f takes few values, which coincide by chance")
            return
        tests = {"x and w together": True, "x alone": False} if len(x) == len(self.w) else {"x alone": False}
        spread = statistics.pstdev(values)
        rounding = 100 * torch.finfo(self.working).eps * max(map(abs, values)) / spread
        shown, holds, hidden = [], "", False
        for name, move_w in tests.items():
            worst = 0.0
            for _ in range(3):
                order = torch.randperm(len(x), generator=self.generator).to(self.device)
                a, b = self.draw("x"), self.draw("w")
                value, moved = self.f.attempt(a, b), self.f.attempt(a[order], b[order] if move_w else b)
                worst = _largest((worst, abs(value - moved) / spread))
            shown.append(f"{name} {worst:.1g}")
            if worst <= max(self.tolerance, rounding):
                hidden = hidden or rounding > self.tolerance
                holds = holds or name
        measured = f"change under permutation of {', of '.join(shown)} (tolerance {self.tolerance:.0e})"
        if hidden:
            self.add("note", "order of the modes undecided", f"{measured}; rounding alone may make {rounding:.1g}")
        elif holds:
            self.add(
                "note", f"invariant under permutation of {holds}", measured,
                "the order of the modes carries no information: only sums over modes enter", "series", "none",
            )
        else:
            self.add("ok", "order of the modes matters", measured)

    def separability(self, x: Tensor, w: Tensor) -> None:
        """Whether f is a sum over modes: mixed differences of two groups of modes vanish."""
        if len(x) < 2 or len(x) != len(w) or self.coincident:
            return
        measured_at, worst = 0, 0.0
        for _ in range(3):
            group = torch.rand(len(x), generator=self.generator).to(self.device) < 0.5
            group[0], group[1] = True, False
            xs, ws = [self.draw("x"), self.draw("x")], [self.draw("w"), self.draw("w")]
            v = [
                self.f.attempt(torch.where(group, xs[i], xs[j]), torch.where(group, ws[i], ws[j]))
                for i, j in ((0, 0), (0, 1), (1, 0), (1, 1))
            ]
            moved = _largest(abs(a - v[3]) for a in v[:3])
            if not math.isfinite(moved):
                self.add(
                    "note", "separability undecided", "f gave no finite number, or raised, at some drawn inputs"
                )
                return
            if moved and 100 * torch.finfo(self.working).eps * max(map(abs, v)) <= self.tolerance * moved:
                measured_at += 1
                worst = max(worst, abs(v[0] - v[1] - v[2] + v[3]) / moved)
        if not measured_at:
            self.add("note", "separability undecided", "rounding hides how f changes")
            return
        measured = f"mixed difference of two groups of modes {worst:.1g} of f (tolerance {self.tolerance:.0e})"
        if worst <= self.tolerance:
            self.add(
                "note", "separable over modes", measured,
                "f is a sum of functions of one mode each: all modes at once, in any order", "loop",
                "one elementwise function and a sum",
            )
        elif worst <= NEARLY:
            self.add(
                "note", f"nearly separable over modes (residual {worst:.1g} on the tested inputs)", measured,
                "at this size the modes hardly see each other", "series",
                "a short series in the coupling of the modes",
            )
        else:
            self.add("ok", "modes act on each other", measured)

    def real_state(self) -> None:
        """Whether complex intermediate results need their imaginary parts."""
        if not any(dtype.is_complex for dtype in self.seen.dtypes):
            return
        x, w = self.at_modes(min(4, self.modes)) or self.given
        trace, out, error = self.trace(x, w)
        if error or out is None or not out.requires_grad:
            return
        with self.f.silenced():
            out.backward()
        known = [(z, s) for z, s in trace.complexes if s.get("all")]
        if not known:
            return
        idle = [s["imag"] <= 1e-9 * s["all"] for _, s in known]
        empty = [not z.imag.any() for z, _ in known]
        unread = sum(i and not e for i, e in zip(idle, empty, strict=True))
        measured = (
            f"of {len(known)} complex results in a call with {len(x)} modes, the output does not depend on the "
            f"imaginary part of {sum(idle)}, and that part is exactly 0 in {sum(empty)}"
        )
        if idle[-1] and 2 * (unread + sum(empty)) >= len(known) and (unread or all(empty)):
            self.add(
                "note", "only the real part of the state reaches the output", measured + ", the last one among them",
                "complex numbers are carried along and thrown away: twice the memory, up to four times the arithmetic, "
                "and compilers that leave complex code alone",
                "real", "the real part taken where it is first made",
            )
        else:
            self.add("ok", "complex numbers are needed", measured)

    def at_modes(self, n: int) -> tuple[Tensor, Tensor] | None:
        """Inputs of n modes in the exact dtype, None where f does not take them."""
        if n == self.modes:
            return self.given
        if not self.elastic:
            return None
        try:
            x, w = self.draw("x", n), self.draw("w", n)
            with self.exactly():
                return (x, w) if math.isfinite(self.f.value(x, w)) else None
        except (Exception, SystemExit):
            return None

    def make_batched(self, x: Tensor, w: Tensor) -> None:
        """Effective weights and the batched f of an f that is linear or affine in x, compared with f."""
        xs = torch.stack([self.draw("x") for _ in range(5)])
        ws = torch.stack([w, self.draw("w")])
        expected = torch.tensor([[self.f.value(a, b) for b in ws] for a in xs], dtype=torch.float64)
        for by_gradient in (True, False):
            batched = _batched(self.f, bool(self.affine), by_gradient)
            try:
                with torch.set_grad_enabled(self.f.recording):
                    found = batched(xs, ws).detach().double().cpu()
                off = ((found - expected).abs().max() / expected.abs().max()).item()
                if not off <= 100 * self.tolerance:
                    continue
                note = ""
                if "w" in self.verified:
                    leaf = w.clone().requires_grad_()
                    (mine,) = torch.autograd.grad(batched(xs, leaf).sum(), leaf)
                    (reference,) = torch.autograd.grad(torch.stack([self.f(a, leaf) for a in xs]).sum(), leaf)
                    slip = ((mine - reference).norm() / reference.norm()).item()
                    if not slip <= 1e4 * self.tolerance:
                        continue
                    note = f", its gradient in w to {_small(slip)}"
            except (Exception, SystemExit):
                continue
            self.report.batched = batched
            with torch.set_grad_enabled(self.f.recording):
                slope, _ = _effective(self.f, w, torch.zeros_like(x), by_gradient)
            self.report.effective_weights = slope.detach()
            way = "one gradient of f in x" if by_gradient else f"{len(x)} calls with unit vectors"
            self.add(
                "ok", "batched version in report.batched",
                f"{way} per neuron; agrees with f on {len(xs)} inputs and {len(ws)} sets of weights to "
                f"{_small(off)}{note}",
            )
            return
        self.add("note", "no batched version", "neither a gradient nor unit vectors reproduced f")

    # -- precision

    def precision(self) -> None:
        if self.half:
            self.add(
                "warning", "half precision inside",
                f"with {self.exact} arguments f makes {_list(self.seen.coarse) or self.half}",
                "three digits or fewer: its gradients and its structure cannot be tested, and small ones round to 0",
                "levels", "float32 inside, or dtypes taken from the arguments",
            )
        elif self.exact != torch.float64:
            self.add(
                "warning", "float64 is not accepted", self.refused,
                "nothing can be checked to more than seven digits, gradients neither", "levels",
                "dtypes taken from the arguments",
            )
        else:
            if self.seen.coarse:
                self.add(
                    "warning", "float64 in, single precision inside",
                    f"with float64 arguments f makes {_list(self.seen.coarse)}",
                    "the digits look there and are not", "levels", "dtypes taken from the arguments",
                )
            self.single_against_double()
        with default_dtype(torch.float32):
            trace, _, _ = self.trace(self.x.float(), self.w.float())
        if trace.lost:
            self.add(
                "warning", "constants lost in float32", _list(trace.lost),
                "a margin, an offset or an epsilon that is not there in the precision that training uses",
                "constant", "a formula that needs no margin, or float64",
            )
        else:
            self.add("ok", "constants survive float32", "no number in f's calls becomes whole, 0 or infinite")
        for name, largest in self.seen.bessel.items():
            with default_dtype(torch.float64), torch.no_grad():
                t = torch.linspace(0, min(largest, 200.0), 4001, dtype=torch.float64)
                n = BESSEL[name]
                exact = clifford(n, (t / 2) ** 2) * (t / 2) ** n
                function = torch.special.bessel_j0 if n == 0 else torch.special.bessel_j1
                off = (function(t) - exact).abs().max().item()
            if off > 1e-11:
                self.add(
                    "warning", f"{name} is no float64 function",
                    f"wrong by up to {off:.1g} on the CPU for arguments up to {largest:.3g}, as f uses it",
                    "float64 results have seven digits", "float64",
                    "spinwave.bessel.clifford, which has every derivative too",
                )
            else:
                self.add("ok", f"{name} is accurate here", f"to {off:.1g} for arguments up to {largest:.3g}")

    def single_against_double(self) -> None:
        if not self.frozen or self.stochastic:
            return  # other dtypes draw other random numbers
        off, doubles = [], []
        for x, w in [(self.x, self.w), *((self.draw("x"), self.draw("w")) for _ in range(5))]:
            x, w = x.float(), w.float()
            with self.exactly():
                double = self.f.value(x.double(), w.double())
            try:
                with default_dtype(torch.float32):
                    single = self.f.value(x, w)
            except (Exception, SystemExit) as error:
                self.add(
                    "warning", "float32 is not accepted", described(error),
                    "training in float32 is twice as fast or more", "levels", "dtypes taken from the arguments",
                )
                return
            off.append(single - double)
            doubles.append(double)
        scale = _rms(doubles)
        if not scale or not math.isfinite(scale):
            return
        share = _rms(off) / scale if all(map(math.isfinite, off)) else math.inf
        measured = f"float32 differs from float64 by {share:.1g} of the output's rms over {len(off)} inputs"
        if share > 1e-2:
            self.add(
                "warning", "float32 is not enough", measured,
                "rounding grows on the way through f: cancellation, or an unstable recursion", "levels",
                "float64 at its price, or a formula that does not cancel",
            )
        else:
            self.add("ok", "float32 will do", measured)

    # -- cost

    def cost(self) -> None:
        full = self.modes
        wanted = (full, 2 * full, 4 * full) if full < 8 else (full // 4, full // 2, full)
        rows: list[dict[str, float]] = []
        sizes: list[int] = []
        for n in wanted if self.elastic else (full,):
            if inputs := self.at_modes(n):
                sizes.append(n)
                rows.append(self.costs(inputs[0].to(self.x), inputs[1].to(self.w)))
        here = rows[sizes.index(full)]
        step = here.get("step", here["forward"])
        measured = (
            f"{here['operators']:,.0f} operators a call; forward {in_seconds(here['forward'])}, peak of tensors "
            f"{in_bytes(here['forward_bytes'])}"
        )
        if "step" in here:
            measured += (
                f"; forward and backward {in_seconds(step)}, peak {in_bytes(here['step_bytes'])}, of which "
                f"{in_bytes(here['kept'])} wait for the backward pass"
            )
        powers = {}
        if len(sizes) > 1:
            powers = {
                key: _exponent(sizes, [row[key] for row in rows])
                for key in ("operators", "forward", "step", "step_bytes", "forward_bytes")
                if all(key in row for row in rows)
            }
            growth = ", ".join(f"{_WORDS[key]} ^{power:.1f}" for key, power in powers.items())
            self.add(
                "ok", f"cost of a call at {full} modes",
                f"{measured}; growth with modes, fitted to {', '.join(map(str, sizes))}: {growth}",
            )
        else:
            reason = "x and w differ in length: functions for x and w would say how they grow"
            if self.elastic:
                reason = "f does not take other numbers of modes"
            self.add("ok", f"cost of a call at {full} modes", f"{measured}; growth not measured: {reason}")

        lines = self.seen.lines.most_common(1)
        busiest = f"; busiest line {lines[0][0]}, {lines[0][1]} operators" if lines else ""
        power = powers.get("operators", 0.0)
        if power > 0.5:
            counts = ", ".join(f"{row['operators']:,.0f} at {n}" for n, row in zip(sizes, rows, strict=True))
            self.add(
                "warning" if here["operators"] > 1000 else "note", "a Python loop over modes",
                f"operators grow as modes^{power:.1f}: {counts}{busiest}",
                "every operator costs microseconds of Python and dispatch, whatever its size", "loop",
                "one more dimension instead of a loop, if the modes do not wait for each other",
            )
        elif here["operators"] > 300:
            self.add(
                "note", "many small operators",
                f"{here['operators']:,.0f} a call{', independent of the number of modes' if powers else ''}{busiest}",
                "a loop over time steps or pairs: every operator costs microseconds, whatever its size",
                "compile", "a compiled step, or all neurons and samples in each",
            )

        time_power = min(max(powers.get("step", powers.get("forward", 0.0)), 0.0), 3.0)
        calls = list(pairwise(self.network))
        epoch = self.samples * sum(n_out * step * (n_in / full) ** time_power for n_in, n_out in calls)
        name = "-".join(map(str, self.network))
        hours = _span(epoch)
        memory = here.get("kept", 0.0) * sum(n_out for _, n_out in calls)
        projected = (
            f"one epoch of {self.samples:,} samples through {name} neurons, called one by one as f is here: {hours}"
            f", {in_bytes(memory)} kept for the backward pass of one sample"
            + ("" if powers or set(self.network[:-1]) == {full} else ", as if cost did not depend on the modes")
        )
        batch = "; with report.batched all samples share one set of effective weights" if self.report.batched else ""
        if epoch > 3600:
            self.add(
                "warning", f"{hours} an epoch", projected + batch,
                "no training gets through that one call at a time", "hours",
                "batches and structure first, hardware last",
            )
        else:
            self.add("ok", "projected training time", projected + batch)

    def costs(self, x: Tensor, w: Tensor) -> dict[str, float]:
        """Seconds, operators and bytes of a call, and of one with its backward pass."""
        leaf = w.clone().requires_grad_()

        def forward() -> None:
            self.f.f(x.clone(), w.clone())

        def step() -> None:
            out = as_number(self.f.f(x.clone(), leaf.clone()))
            torch.autograd.grad(out, leaf, allow_unused=True)

        mine = x.clone(), w.clone()  # f may write into them, and they are none of its memory
        with torch.set_grad_enabled(self.f.recording), Meter(*mine) as meter:
            self.f.raw(*mine)
        found: dict[str, float] = {"operators": meter.operators, "forward_bytes": meter.peak}
        with self.f.silenced(), torch.set_grad_enabled(self.f.recording):
            found["forward"] = _seconds(forward, self.device)
        with contextlib.suppress(Exception):  # no backward pass: the gradient's part of the report says why
            mine = x.clone(), leaf.clone()
            with Meter(*mine, leaf) as meter:
                out = as_number(self.f.raw(*mine))
                kept = meter.live
                with self.f.silenced():
                    torch.autograd.grad(out, leaf, allow_unused=True)
            with self.f.silenced():
                found |= {"step_bytes": meter.peak, "kept": kept, "step": _seconds(step, self.device)}
        return found

    # -- portability

    def portability(self) -> None:
        with self.exactly():
            self.batches()
        self.compiles()
        self.other_device()

    def batches(self) -> None:
        """Leading dimensions, and torch.func.vmap."""
        x, w = self.given
        xs = torch.stack([self.draw("x") for _ in range(3)])
        ws = torch.stack([self.draw("w") for _ in range(3)])
        expected = {"x": [self.f.value(a, w) for a in xs], "w": [self.f.value(x, b) for b in ws]}

        def same(out: Any, name: str) -> bool:
            if not isinstance(out, Tensor) or out.numel() != 3:
                return False
            reference = torch.tensor(expected[name], dtype=torch.float64)
            off = (out.detach().double().cpu().reshape(3) - reference).abs().max()
            return bool(off <= 100 * TOLERANCE[self.working] * reference.abs().max())

        plain = []
        for name, a, b in (("x", xs, w), ("w", x, ws)):
            with contextlib.suppress(Exception), torch.set_grad_enabled(self.f.recording):
                out = self.f.raw(a.clone(), b.clone())
                if isinstance(out, Tensor) and out.shape == (3,) and same(out, name) and not self.stochastic:
                    plain.append(name)
        if plain:
            self.add(
                "ok", f"takes batches of {' and of '.join(plain)} as it is",
                f"leading dimensions of {' and of '.join(plain)}: the same numbers as one by one",
            )
        failures: dict[str, list[str]] = {}
        wrong = []
        for name, dims, a, b in (("x", (0, None), xs, w), ("w", (None, 0), x, ws)):
            randomness = "different" if self.stochastic else "error"
            try:
                with torch.set_grad_enabled(self.f.recording), self.f.silenced():
                    out = torch.func.vmap(self.f.f, in_dims=dims, randomness=randomness)(a.clone(), b.clone())
                if not self.stochastic and not same(out, name):
                    wrong.append(name)
            except (Exception, SystemExit) as error:
                failures.setdefault(described(error), []).append(name)
        if wrong:
            self.add(
                "warning", "torch.func.vmap gives other numbers",
                f"mapped over {' and '.join(wrong)}, three inputs at once and one by one differ",
                "f looks at more than its arguments, or treats a batch as one input", "vmap",
                "a look at what f shares",
            )
        for message, names in failures.items():
            self.add(
                "note", f"does not work under torch.func.vmap over {' and '.join(names)}", message,
                "no automatic batch: values are looked at, written in place, or leave PyTorch", "vmap",
                "tensor operations without .item(), branches on values and in-place writes",
            )
        if not failures and not wrong:
            self.add(
                "ok", "works under torch.func.vmap",
                "over x and over w"
                + (", with randomness='different'" if self.stochastic else ", the same numbers as one by one"),
            )

    def compiles(self) -> None:
        """Graph breaks, on few modes: a loop is unrolled by the compiler."""
        x, w = self.at_modes(min(4, self.modes)) or self.given
        with self.exactly():
            with torch.set_grad_enabled(self.f.recording), Meter(x, w) as meter:
                self.f(x, w)
            if meter.operators > 3000:
                self.add(
                    "note", "torch.compile not tried",
                    f"{meter.operators:,} operators at {len(x)} modes would be unrolled",
                    "compiling takes minutes; compile one step of the loop instead", "compile",
                    "a function for the step",
                )
                return
            from torch import _dynamo

            f = self.f.f
            before = logging.root.manager.disable
            logging.disable(logging.CRITICAL)
            try:
                with self.f.silenced():
                    found = _dynamo.explain(lambda x, w: f(x, w))(x.clone(), w.clone())
            except (Exception, SystemExit) as error:
                self.add(
                    "note", "torch.compile fails", described(error), "no compiled version", "compile",
                    "tensor operations only",
                )
                return
            finally:
                logging.disable(before)
        breaks = [
            shortened(r.reason.split("\n")[0], 120)
            + (f" ({location(r.user_stack[-1].filename, r.user_stack[-1].lineno)})" if r.user_stack else "")
            for r in found.break_reasons
            if r.graph_break
        ]
        number = max(found.graph_break_count, len(breaks))
        where = f"graphs at {len(x)} modes: {found.graph_count}, graph breaks: {number}"
        slow = "; complex numbers are left to eager code" if any(d.is_complex for d in self.seen.dtypes) else ""
        if number:
            self.add(
                "note", "torch.compile breaks the graph",
                f"{where}: {_list({reason: reason for reason in breaks})}{slow}",
                "Python runs between the pieces, and nothing is fused across them", "compile",
                "tensor operations without .item() and branches on values",
            )
        elif found.graph_count == 0:
            self.add("note", "torch.compile finds nothing to compile", where, "", "compile")
        else:
            self.add("ok", "torch.compile takes it whole", where + slow)

    def other_device(self) -> None:
        """Tensors made on the wrong device: a real other device where there is one, else a simulated GPU."""
        other = torch.device("cuda" if self.device.type == "cpu" else "cpu")
        real = other.type == "cpu" or torch.cuda.is_available()
        unplaced = _list(self.seen.unplaced, "; made without a device: ")
        place = f"on {other.type}" + ("" if real else " (simulated)")
        try:
            with torch.set_grad_enabled(self.f.recording), self.f.silenced():
                if real:
                    out = self.f.f(self.x.to(other), self.w.to(other))
                else:
                    from torch._subclasses.fake_tensor import FakeTensorMode

                    with FakeTensorMode(allow_non_fake_inputs=True):
                        x, w = (torch.empty(len(t), dtype=t.dtype, device=other) for t in (self.x, self.w))
                        out = self.f.f(x, w)
        except (Exception, SystemExit) as error:
            text, looks = str(error), "DataDependent" in type(error).__name__
            if "device" in text and ("cpu" in text or "same" in text) and not looks:
                self.add(
                    "warning", f"does not run {place}", f"{described(error)}{unplaced}",
                    "tensors that f makes stay on the CPU, whatever its arguments are on", "device",
                    "device=x.device where f makes a tensor, or x.new_zeros and its like",
                )
            else:
                self.add(
                    "note", f"undecided {place}",
                    ("f looks at a tensor's value, which a simulation does not have" if looks else described(error))
                    + unplaced,
                    "on a GPU such a look waits for the device" if looks else "", "device",
                )
            return
        if isinstance(out, Tensor) and out.device.type != other.type and out.dim():
            self.add("note", f"result leaves its device {place}", f"it is on {out.device}", "", "device")
        else:
            self.add("ok", f"runs {place}", "no tensor on the wrong device")


def _list(named: dict[str, str], head: str = "", most: int = 4) -> str:
    """The first few of what a trace named."""
    values = list(named.values())
    if not values:
        return ""
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return head + ", ".join(values[:most]) + more


def _span(seconds: float) -> str:
    if seconds < 3600:
        return in_seconds(seconds)
    if seconds > 1e6:
        return f"{seconds / 86400:,.0f} days"
    return f"{seconds / 3600:,.{0 if seconds > 36000 else 2}f} hours"


def _small(value: float) -> str:
    return "rounding" if value == 0 else f"{value:.1g}"


# ---- effective weights


def _effective(f: Patient, w: Tensor, at: Tensor, by_gradient: bool) -> tuple[Tensor, Tensor]:
    """Slope in x ``(modes,)`` and value at x = 0 of an f that is affine in x, both differentiable in w."""
    if by_gradient:
        recorded = torch.is_grad_enabled() and w.requires_grad
        with torch.enable_grad():
            x = at.detach().clone().requires_grad_()
            out = f(x, w)
            (slope,) = torch.autograd.grad(out, x, create_graph=recorded)
        return slope, out - (slope * x.detach()).sum()
    origin = f(torch.zeros_like(at), w)
    unit = torch.eye(len(at), dtype=at.dtype, device=at.device)
    return torch.stack([f(e, w) for e in unit]) - origin, origin


def _batched(f: Patient, affine: bool, by_gradient: bool) -> Callable[[Tensor, Tensor], Tensor]:
    def batched(x: Tensor, w: Tensor) -> Tensor:
        """f for many x: ``(batch, modes)`` and w ``(modes,)`` or ``(neurons, modes)`` to ``(batch[, neurons])``."""
        if x.dim() != 2 or w.dim() not in (1, 2) or not len(x):
            raise ValueError(
                f"batched expects x of shape (batch, modes) and w of shape (modes,) or (neurons, modes), got "
                f"{tuple(x.shape)} and {tuple(w.shape)}"
            )
        with restored(x.device):
            rows = [_effective(f, row, x[0], by_gradient) for row in (w if w.dim() == 2 else w[None])]
        out = x @ torch.stack([slope for slope, _ in rows]).T.to(x)  # (batch, neurons)
        if affine:
            out = out + torch.stack([origin for _, origin in rows]).to(x)
        return out if w.dim() == 2 else out[:, 0]

    return batched


_WORDS = {
    "operators": "operators",
    "forward": "forward time",
    "step": "forward and backward time",
    "forward_bytes": "forward memory",
    "step_bytes": "forward and backward memory",
}


# ---- the command line's process


def check_file(
    target: str, seconds: float, progress: Callable[[CheckupReport], None] | None = None, **settings: Any
) -> CheckupReport:
    """:func:`checkup` of ``path/to/file.py:function`` in a process of its own, which is ended when it takes too long.

    Arguments:
        target: file and name of the function. The file's top level is executed, as by an import; nothing else but the
            function is called.
        seconds: time limit of the check-up; the process gets half a minute more to start.
        progress: called with the report so far when parts have been finished.
        settings: other keywords of :func:`checkup` that are plain data. x and w are standard normal.

    Returns:
        The report, without ``batched``. If the process had to be ended, or ended itself, the parts that were finished.

    Raises:
        ValueError: no such file or function, a file that raises when it is loaded, or settings out of range.
    """
    device = settings.pop("device", None)
    settings = _plain_settings(time_limit=seconds, **settings)
    device = choose_device(device or "cpu")
    file, separator, name = target.rpartition(":")
    if not (separator and file and name.isidentifier()):
        raise ValueError(f"expected path/to/file.py:function, got {target!r}")
    if not Path(file).is_file():
        raise ValueError(f"expected a Python file at {file}")
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "report.json")
        asked = {"file": file, "name": name, "answer": str(answer), "seconds": seconds, **settings}
        asked["device"] = str(device)
        command = [sys.executable, "-c", "from spinwave.checkup import _answer; _answer()", json.dumps(asked)]
        paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        surroundings = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        begin = time.perf_counter()
        said: dict[str, Any] = {}
        with open(Path(folder, "errors"), "w+b") as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, env=surroundings
            )
            try:
                running = True
                while running and time.perf_counter() - begin < seconds + 30:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(0.1)
                    running = process.poll() is None
                    before, said = said, json.loads(answer.read_text()) if answer.exists() else {}
                    if progress is not None and said != before and "refused" not in said:
                        progress(CheckupReport.from_dict(said | {"name": f"{Path(file).name}:{name}"}))
            finally:
                process.kill()
                process.wait()
            ended = f"its process ended with code {process.returncode}" if process.returncode else ""
            if running:
                ended = f"its process was ended after {in_seconds(seconds + 30)}"
            errors.seek(0)
            last = shortened((errors.read().decode(errors="replace").strip().splitlines() or [""])[-1])
    if "refused" in said:
        raise ValueError(said["refused"])
    if not said:
        took = round(time.perf_counter() - begin, 3)
        known = {"dtype": "float32", "torch": torch.__version__, "seconds": took, **settings, "device": str(device)}
        said = {"settings": known, "findings": [], "effective_weights": None}
    report = CheckupReport.from_dict(said | {"name": f"{Path(file).name}:{name}"})
    if ended:
        report.findings.append(
            Finding(
                "severe",
                "output",
                "f does not come back",
                ended + (f"; its last words: {last}" if last else ""),
                "a call into compiled code that hangs or crashes, or a file that hangs when it is loaded",
            )
        )
    return report


def _answer() -> None:
    """In the process of :func:`check_file`: load, check, and write after every part."""
    asked = json.loads(sys.argv[1])
    file, name, answer, seconds = (asked.pop(key) for key in ("file", "name", "answer", "seconds"))

    def write(content: dict[str, Any]) -> None:
        _write(Path(answer), json.dumps(content).encode())

    try:
        f = _load(file, name)
        n = asked["modes"]
        report = checkup(f, n, n, time_limit=seconds, progress=lambda report: write(report.as_dict()), **asked)
        write(report.as_dict())
    except ValueError as error:
        write({"refused": str(error)})


def _load(file: str, name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The function, from a file that is imported as a script is, or as a module if it is part of a package."""
    path = Path(file).resolve()
    folder, parts = path.parent, [path.stem]
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    sys.path.insert(0, str(folder))
    try:
        if len(parts) > 1:
            module = importlib.import_module(".".join(parts))
        else:
            spec = importlib.util.spec_from_file_location(f"checked_{path.stem}", path)
            if spec is None or spec.loader is None:
                raise ValueError(f"expected a Python file, got {file}")
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{file} fails when it is loaded: {described(error)}") from None
    f = getattr(module, name, None)
    if not callable(f):
        there = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ValueError(f"{file} has no function {name}; it has {', '.join(there) or 'none'}")
    return cast(Callable[[Tensor, Tensor], Tensor], f)
