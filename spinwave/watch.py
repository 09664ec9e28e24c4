"""Calling a function that is not ours, and watching what it calls."""

import contextlib
import ctypes
import io
import math
import numbers
import os
import random
import re
import signal
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Values that leave PyTorch: the gradient cannot follow.
_READS = re.compile(r"\.(item|tolist|numpy|__array__|__float__|__int__|__complex__|__index__|data\.__get__)$")
_COARSE = (torch.float32, torch.complex64, torch.float16, torch.bfloat16)
# Made in the image of a tensor, from its shape and not its values.
_SHAPED = re.compile(r"\.(new_\w+|\w+_like)$")
# They jump, and the derivative does not show it.
_STEPS = re.compile(
    r"\.(sign|sgn|round|floor|ceil|trunc|fix|heaviside|floor_divide|__floordiv__"
    r"|remainder|fmod|frac|__r?mod__|angle|a(?:rc)?tan2)_?$"
)
_RANDOM = re.compile(r"rand|normal|bernoulli|dropout|poisson|multinomial|uniform_|exponential_")
BESSEL = {"torch.special.bessel_j0": 0, "torch.special.bessel_j1": 1}


# ---- calling a function that is not ours


class TimeUp(BaseException):
    """Not an Exception, so that an f with ``except Exception`` does not keep it."""


def within(seconds: float, work: Callable[[], None]) -> bool:
    """Do the work and return True, or stop it after so many seconds and return False."""
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):

        def stop(*_: object) -> None:
            raise TimeUp

        begin = time.monotonic()
        before = signal.signal(signal.SIGALRM, stop)
        # Again every half second: a destructor or a bare except may have swallowed the first.
        left, every = signal.setitimer(signal.ITIMER_REAL, min(seconds, threading.TIMEOUT_MAX), 0.5)
        try:
            work()
        except TimeUp:
            return False
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            if left:  # the caller's own timer; what fell due meanwhile comes now
                signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - begin), 1e-3), every)
        return True

    raised: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except TimeUp:
            pass
        except BaseException as error:
            raised.append(error)

    worker = threading.Thread(target=guarded, daemon=True)
    worker.start()
    worker.join(min(seconds, threading.TIMEOUT_MAX))
    finished = not worker.is_alive()
    if not finished:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.ident or 0), ctypes.py_object(TimeUp))
        worker.join(1.0)
    if raised:
        raise raised[0]
    return finished


class NotANumber(Exception):
    """What f returned is no real number."""


class Patient:
    """f as the probes call it: on copies, with the same random numbers, silent, its result one number."""

    def __init__(self, f: Callable[..., Any], seed: int):
        self.f = f
        self.seed = seed
        self.warned: dict[str, None] = {}
        self.recording = False  # whether f needs gradients switched on for its value

    def raw(self, x: Tensor, w: Tensor, seed: int | None = None) -> Any:
        seed = self.seed if seed is None else seed
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        with self.silenced():
            return self.f(x, w)

    @contextlib.contextmanager
    def silenced(self) -> Iterator[None]:
        sink = io.StringIO()
        with (
            warnings.catch_warnings(record=True) as caught,
            contextlib.redirect_stdout(sink),
            contextlib.redirect_stderr(sink),
        ):
            warnings.simplefilter("always")
            yield
        for warning in caught:
            self.warned.setdefault(shortened(str(warning.message)))

    def __call__(self, x: Tensor, w: Tensor, seed: int | None = None) -> Tensor:
        return as_number(self.raw(x.clone(), w.clone(), seed))

    def value(self, x: Tensor, w: Tensor, seed: int | None = None) -> float:
        with torch.set_grad_enabled(self.recording):
            return self(x, w, seed).item()

    def attempt(self, x: Tensor, w: Tensor, seed: int | None = None) -> float:
        """The value, NaN where f raises."""
        try:
            return self.value(x, w, seed)
        except (Exception, SystemExit):
            return math.nan


def as_number(out: Any) -> Tensor:
    """A scalar tensor, from what f returned."""
    if isinstance(out, np.ndarray) and out.size == 1:
        out = out.item()
    if isinstance(out, numbers.Real):
        return torch.tensor(float(out), dtype=torch.float64)
    if not isinstance(out, Tensor):
        raise NotANumber(f"a {type(out).__name__}" + (f" of shape {out.shape}" if isinstance(out, np.ndarray) else ""))
    if out.numel() != 1:
        raise NotANumber(f"a tensor of shape {tuple(out.shape)}")
    if out.is_complex():
        raise NotANumber(f"a complex number ({out.dtype})")
    return out.reshape(()) if out.is_floating_point() else out.reshape(()).double()


def shortened(text: str, most: int = 200) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 3] + "..."


def described(error: BaseException) -> str:
    """Type, message and the line of f's code that raised it."""
    text = f"{type(error).__name__}: {shortened(str(error))}".rstrip(": ")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_users(frame.filename):
            return f"{text} ({location(frame.filename, frame.lineno)})"
    return text


_TORCH_FOLDER, _NUMPY_FOLDER = (os.path.dirname(str(module.__file__)) for module in (torch, np))
_OURS = (__file__, str(Path(__file__).with_name("checkup.py")))
_STANDARD_LIBRARY = os.path.dirname(os.__file__)


def _is_users(file: str) -> bool:
    if file in _OURS or file.startswith(("<", _TORCH_FOLDER, _NUMPY_FOLDER)):
        return False
    return "site-packages" in file or not file.startswith(_STANDARD_LIBRARY)


def location(file: str, number: int | None) -> str:
    return f"cell line {number}" if "ipykernel" in file else f"{Path(file).name}:{number}"


def _where() -> str:
    """The line of f that is running, empty where f is not written in Python."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == __file__ and frame.f_code.co_name == "raw":
            return ""
        if _is_users(frame.f_code.co_filename):
            return location(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""


def _in_custom_function() -> bool:
    """Whether the operator runs inside the forward of a torch.autograd.Function, which needs no derivative there."""
    if torch.is_grad_enabled():
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "raw":
        if frame.f_code.co_name == "forward" and "self" not in frame.f_code.co_varnames[:1]:
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """What f makes without naming a dtype; None leaves it."""
    before = torch.get_default_dtype()
    if dtype is not None:
        torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def restored(device: torch.device) -> Iterator[None]:
    """Random states as they were."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


# ---- watching operators


class Trace(TorchFunctionMode):
    """What f calls, by the names that its author used, with the line."""

    def __init__(self, *inputs: Tensor):
        super().__init__()
        self.double = inputs[0].dtype == torch.float64
        self.coarse: dict[str, str] = {}  # lower precision than that of the inputs
        self.inputs = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        self.cuts: dict[str, str] = {}  # gradients end here: name -> how and where
        self.steps: dict[str, str] = {}  # comparisons, roundings and remainders
        self.reads = False  # whether values go where a comparison is not seen
        self.unplaced: dict[str, str] = {}  # tensors made without a device
        self.lost: dict[str, str] = {}  # constants that float32 changes
        self.written: dict[str, str] = {}  # in-place operators on x or w
        self.random: dict[str, str] = {}
        self.bessel: dict[str, float] = {}  # largest argument
        self.lines: Counter[str] = Counter()
        self.dtypes: set[torch.dtype] = set()
        self.complexes: list[tuple[Tensor, dict[str, float]]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = resolve_name(func) or getattr(func, "__name__", "an operator")
        if not name.endswith((".__get__", ".size", ".dim", ".numel", "is_complex", "is_floating_point")) or (
            name.endswith(("data.__get__", "real.__get__", "imag.__get__"))
        ):
            self.see(name, func, args, kwargs, out)
        return out

    def see(
        self, name: str, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], out: Any
    ) -> None:
        where = _where()
        at = name + (f" ({where})" if where else "")
        if where:
            self.lines[where] += 1
        leaves = tree_leaves((args, kwargs))
        inputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        outputs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.dtypes |= {t.dtype for t in outputs if t.is_floating_point() or t.is_complex()}
        if self.double:
            for t in outputs:
                if t.dtype in _COARSE and not self.inherits(t, inputs):
                    self.coarse.setdefault(str(t.dtype).removeprefix("torch."), f"{t.dtype} in {at}")

        recorded = not _SHAPED.search(name) and any(
            t.requires_grad and (t.is_floating_point() or t.is_complex()) for t in inputs
        )
        if recorded:
            smooth = [t for t in outputs if t.is_floating_point() or t.is_complex()]
            if _READS.search(name) or name.endswith(".detach"):
                self.reads = True
                self.cuts.setdefault(name, at)
            elif smooth and not any(t.requires_grad for t in smooth) and not _in_custom_function():
                note = "" if torch.is_grad_enabled() else ", where gradients are switched off"
                self.reads = self.reads or bool(note)
                self.cuts.setdefault(name, at + note)
            if (outputs and not smooth) or _STEPS.search(name):
                self.steps.setdefault(name, at)
        if func in _device_constructors() and kwargs.get("device") is None and outputs:
            self.unplaced.setdefault(name, at)
        if _RANDOM.search(name):
            self.random.setdefault(name, at)
        in_place = (name.endswith("_") and not name.endswith("__")) or name.endswith("__setitem__") or ".__i" in name
        if in_place and inputs and inputs[0].untyped_storage().data_ptr() in self.inputs:
            self.written.setdefault(name, at)
        if name in BESSEL and inputs and inputs[0].numel():
            self.bessel[name] = max(self.bessel.get(name, 0.0), inputs[0].detach().abs().max().item())
        self.see_constants(at, leaves, inputs, outputs)
        for tensor in outputs:
            if tensor.is_complex() and tensor.requires_grad:
                sensitivity: dict[str, float] = {}

                def keep(gradient: Tensor, sensitivity: dict[str, float] = sensitivity) -> None:
                    sensitivity["imag"] = gradient.imag.abs().max().item()
                    sensitivity["all"] = gradient.abs().max().item()

                tensor.register_hook(keep)
                self.complexes.append((tensor.detach(), sensitivity))

    def inherits(self, coarse: Tensor, inputs: list[Tensor]) -> bool:
        """Whether a result of low precision lost nothing here: it is whole numbers, or a part of what was reported."""
        if any(t.dtype == coarse.dtype for t in inputs):
            return True
        value = coarse.detach()
        return bool((value == value.real.round()).all()) if value.is_complex() else bool((value == value.round()).all())

    def see_constants(self, at: str, leaves: list[Any], inputs: list[Tensor], outputs: list[Tensor]) -> None:
        single = [t for t in outputs if t.dtype in (torch.float32, torch.complex64)]
        if not single:
            return
        for value in leaves:
            if type(value) is float and _lost(value):
                self.lost.setdefault(repr(value), f"{value!r} becomes {float(np.float32(value))!r} in {at}")
        for double in inputs:
            if double.dtype == torch.float64 and single[0].shape == double.shape and double.numel():
                exact, rounded = double.detach(), single[0].detach().double()
                collapsed = (exact != exact.round()) & (rounded == rounded.round()) & (rounded != 0)
                if collapsed.any():
                    value = exact[collapsed][0].item()
                    self.lost.setdefault(repr(value), f"{value!r} becomes {float(np.float32(value))!r} in {at}")


def _lost(value: float) -> bool:
    """Whether float32 turns the number into another kind of number: a whole one, zero or infinity."""
    if not math.isfinite(value) or value == 0:
        return False
    with np.errstate(over="ignore", under="ignore"):
        rounded = float(np.float32(value))
    if rounded == 0 or math.isinf(rounded):
        return True
    return abs(value) < 2**23 and value != round(value) and rounded == round(rounded)


class Meter(TorchDispatchMode):
    """Counts operators, and bytes of the tensors that are alive."""

    def __init__(self, *inputs: Tensor):
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch's is not annotated
        self.operators = self.live = self.peak = 0
        self.alive: dict[int, Any] = {t.untyped_storage()._cdata: None for t in inputs}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operators += 1
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self.keep(tensor.untyped_storage())
        return out

    def keep(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.alive:
            return
        self.live += size
        self.peak = max(self.peak, self.live)

        def gone(_: object) -> None:
            self.live -= size
            del self.alive[key]

        self.alive[key] = weakref.ref(storage, gone)
