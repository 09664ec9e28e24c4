"""The closed form as kernels that Triton compiles for a GPU: one for H, one for its gradient.

With operators these are fifty, and a GPU is told of each and walks through all weights for it. Here a program takes a
neuron and walks through its modes, a block at a time, carrying the sum of squares along; to memory goes what the
gradient needs and no more. Triton comes with PyTorch, on Linux.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Modes at a time, one to a thread: with more a thread runs out of registers.
_LARGEST_BLOCK = 128


@triton.jit
def _cubic(entry, x):
    return tl.load(entry) + x * (tl.load(entry + 4) + x * (tl.load(entry + 8) + x * tl.load(entry + 12)))


@triton.jit
def _entry(table, cells, per_unit: tl.float64, c):
    """Re T, Im T, F and F' at the sums of squares c: NaN beyond the table."""
    place = tl.sqrt(c + 1.0) * per_unit - per_unit
    cell = tl.where(place < cells - 1, place, cells - 1).to(tl.int32)
    x = tl.where(place <= cells, place - cell, float("nan"))
    entry = table + 16 * cell  # four powers of four functions
    return _cubic(entry, x), _cubic(entry + 1, x), _cubic(entry + 2, x), _cubic(entry + 3, x)


@triton.jit
def _look_up(
    w,
    gain,
    table,
    h,
    of_later,
    itself,
    modes,
    cells,
    coupling: tl.float64,
    scale: tl.float64,
    phase: tl.float64,
    per_unit: tl.float64,
    least: tl.float64,
    most: tl.float64,
    block: tl.constexpr,
):
    factor = scale + tl.full((), 0.0, tl.float64)  # a gain makes up for it where it is huge
    if gain is not None:
        factor *= tl.load(gain)
    first = tl.program_id(0).to(tl.int64) * modes
    behind = tl.full((), 0.0, tl.float64)
    for start in range(0, modes, block):
        mode = modes - 1 - start - tl.arange(0, block)  # the last first
        is_there = mode >= 0
        at = first + mode
        a = tl.load(w + at, is_there, 0.0).to(tl.float64) * coupling
        b = a * a
        end = behind + tl.cumsum(b, 0)  # A + b
        behind += tl.sum(b, 0)
        begin = tl.maximum(end - b, 0.0)  # A
        b = end - begin  # what the table is asked for, which rounding has moved
        re, im, f, slope = _entry(table, cells, per_unit, begin)
        re_end, im_end, f_end, slope_end = _entry(table, cells, per_unit, end)

        cosine, sine = tl.cos(phase * b), tl.sin(phase * b)
        drift = f_end - phase * (sine * re + cosine * im - im_end)
        is_small = b < least
        divisor = tl.where(b <= most, tl.maximum(b, least), float("nan"))
        integral = tl.where(is_small, (f + f_end) / 2, (cosine * re - sine * im - re_end) / divisor)
        later = tl.where(is_small, (slope + slope_end) / 2, (drift - cosine * f) / divisor)
        tl.store(h + at, factor * a * integral, is_there)
        tl.store(of_later + at, factor * later, is_there)
        tl.store(itself + at, factor * (2 * drift - integral), is_there)


@triton.jit
def _collect(
    grad,
    down,
    along,
    w,
    of_later,
    itself,
    of_w,
    modes,
    coupling: tl.float64,
    block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    before = tl.full((), 0.0, tl.float64)
    for start in range(0, modes, block):
        mode = start + tl.arange(0, block)
        is_there = mode < modes
        at = row * modes + mode
        g = tl.load(grad + row * down + mode.to(tl.int64) * along, is_there, 0.0).to(tl.float64)
        a = tl.load(w + at, is_there, 0.0).to(tl.float64) * coupling
        share = g * a * tl.load(of_later + at, is_there, 0.0)
        earlier = before + tl.cumsum(share, 0) - share
        before += tl.sum(share, 0)
        found = g * tl.load(itself + at, is_there, 0.0) + 2 * a * earlier
        tl.store(of_w + at, coupling * found, is_there)


def look_up(
    w: Tensor, gain: Tensor | None, table: Tensor, numbers: tuple[float, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """``gain H`` of rows of w, and of the same factor times I: the derivative in A, and ``I + 2 b dI/db``.

    Each is ``(neurons, modes)`` float32.

    Arguments:
        w: ``(neurons, modes)`` float32.
        gain: a scalar, 1 by default.
        table: ``(cells, powers, functions)`` float64: cubics in sqrt(1 + c) of Re T, Im T, F and F'.
        numbers: ``a / w``, ``eta / R``, the Stark phase, the cells for a unit of sqrt(1 + c), and the squared couplings
            below which I is a mean of F and above which it is NaN.
    """
    w = w.resolve_neg().contiguous()  # a kernel sees memory, and PyTorch may only have noted a sign
    gain = None if gain is None else gain.float()
    neurons, modes = w.shape
    h, of_later, itself = (torch.empty_like(w) for _ in range(3))
    with torch.cuda.device_of(w):
        _look_up[(neurons,)](w, gain, table, h, of_later, itself, modes, len(table), *numbers, block=_block(modes))
    return h, of_later, itself


def collect(grad: Tensor, w: Tensor, of_later: Tensor, itself: Tensor, coupling: float) -> Tensor:
    """The gradient in w, from that in ``gain H``, ``(neurons, modes)`` in any layout, and what `look_up` found."""
    grad, w = grad.resolve_neg(), w.resolve_neg().contiguous()
    neurons, modes = w.shape
    of_w = torch.empty_like(w)
    with torch.cuda.device_of(w):
        _collect[(neurons,)](
            grad, *grad.stride(), w, of_later, itself, of_w, modes, coupling, block=_block(modes)
        )
    return of_w


def _block(modes: int) -> int:
    block: int = min(triton.next_power_of_2(modes), _LARGEST_BLOCK)
    return block
