"""The closed form as a compiled loop over neurons and modes: each weight is read once and no operator is started.

As in the question's program there is one neuron after another and one mode after another, and numba makes machine code
of it. For rows of w, ``(neurons, modes)``, with ``b_i = w_i^2`` and ``A_i = sum_{j>i} b_j``,

    H_i = scale w_i I(A_i, b_i)

where I is a :class:`Series`. All arithmetic is in float64, whatever the type of w.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from numba import njit, prange

try:  # With OpenMP, numba runs on the threads of PyTorch; any others would have to wait for these, which spin.
    import numba.np.ufunc.omppool

    _SHARES_THREADS = True
except ImportError:
    _SHARES_THREADS = False

# Weights from which on a second thread is worth waking.
_LARGE = 2**16

# Neurons side by side: a sum along the modes waits for its last addition, four sums wait no longer.
_SIDE_BY_SIDE = 4

# Elements at a time for a long series, whose Chebyshev polynomials then stay in the fastest cache.
_CHUNK = 128

Array = np.ndarray[Any, Any]


def _compiled(function: Callable[..., Any]) -> Any:
    return _compile(function, fastmath={"contract", "nsz"})


def _in_parallel(function: Callable[..., Any]) -> Any:
    return _compile(function, parallel=True)


def _compile(function: Callable[..., Any], **options: Any) -> Any:
    try:
        return njit(function, nogil=True, cache=True, **options)
    except RuntimeError:  # no folder to keep machine code in: make it anew in every process
        return njit(function, nogil=True, **options)


class Series(NamedTuple):
    """I(A, b), its derivative in A, and ``d(w I) / dw = I + 2 b dI/db``: q = 0, 1, 2.

    Long ones are ``sum_kl table[q, k, l] T_k(2 b / top_b - 1) T_l(2 A / top_later - 1)``. Where the tops are 0 they are
    polynomials, ``table[q, 0] @ (1, A, A^2, A b, b, b^2)``.
    """

    table: Array  # (3, terms in b, terms in A), these a multiple of four; (3, 1, 6)
    top_b: float
    top_later: float


def evaluate(w: Array, h: Array, scale: float, series: Series) -> float:
    """Write H of the rows of w into h, both ``(neurons, modes)`` and contiguous.

    Returns:
        The largest sum of squares of a row; NaN if one is not finite.
    """
    if _is_for_one_thread(w):
        total: float = _evaluate(w, h, scale, *series)
        return total
    with _threads() as parts:
        total = _evaluate_blocks(w, h, scale, *series, parts)
    return total


def pull_back(w: Array, g: Array, scale: float, series: Series) -> None:
    """Turn g, the gradient in H, into the gradient in w, both ``(neurons, modes)`` and contiguous."""
    if _is_for_one_thread(w):
        _pull_back(w, g, scale, *series)
        return
    with _threads() as parts:
        _pull_back_blocks(w, g, scale, *series, parts)


def _is_for_one_thread(w: Array) -> bool:
    # A forked process, such as a worker of a data loader, has one thread, and OpenMP would end it for asking for more.
    return w.size < _LARGE or not _SHARES_THREADS or torch.get_num_threads() == 1


@contextmanager
def _threads() -> Iterator[int]:
    """As many threads as PyTorch uses, for the time being."""
    before = numba.get_num_threads()
    allowed = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    numba.set_num_threads(allowed)
    try:
        yield allowed
    finally:
        numba.set_num_threads(before)


@_in_parallel
def _evaluate_blocks(
    w: Array, h: Array, scale: float, table: Array, top_b: float, top_later: float, parts: int
) -> float:
    totals = np.empty(parts)
    for part in prange(parts):
        begin, end = len(w) * part // parts, len(w) * (part + 1) // parts
        totals[part] = _evaluate(w[begin:end], h[begin:end], scale, table, top_b, top_later)
    largest: float = totals.max() + 0.0 * totals.sum()
    return largest


@_in_parallel
def _pull_back_blocks(
    w: Array, g: Array, scale: float, table: Array, top_b: float, top_later: float, parts: int
) -> None:
    for part in prange(parts):
        begin, end = len(w) * part // parts, len(w) * (part + 1) // parts
        _pull_back(w[begin:end], g[begin:end], scale, table, top_b, top_later)


@_compiled
def largest_square(w: Array) -> float:
    """The largest square in w, ``(neurons, modes)``, all finite."""
    largest = 0.0
    for k in range(len(w)):
        for a in w[k]:
            largest = max(largest, np.float64(a) * np.float64(a))
    return largest


@_compiled
def _evaluate(
    w: Array, h: Array, scale: float, table: Array, top_b: float, top_later: float
) -> float:
    neurons, modes = w.shape
    later = np.empty((_SIDE_BY_SIDE, modes))
    largest, check = 0.0, 0.0
    for first in range(0, neurons, _SIDE_BY_SIDE):
        _sum_later(w, first, later)
        rows, out = w[first : first + _SIDE_BY_SIDE], h[first : first + _SIDE_BY_SIDE]
        for k in range(len(rows)):
            total = later[k, 0] + np.float64(rows[k, 0]) * np.float64(rows[k, 0])
            largest = max(largest, total)
            check += total
        if top_b == 0.0:
            _evaluate_short(table, rows.reshape(-1), later.reshape(-1), scale, out.reshape(-1))
        else:
            _evaluate_long(table, top_b, top_later, rows.reshape(-1), later.reshape(-1), scale, out.reshape(-1))
    return largest + 0.0 * check


@_compiled
def _evaluate_short(table: Array, row: Array, later: Array, scale: float, out: Array) -> None:
    c = _six(table[0, 0])
    for j in range(len(row)):
        a = np.float64(row[j])
        out[j] = scale * a * _polynomial(c, later[j], a * a)


@_compiled
def _evaluate_long(
    table: Array, top_b: float, top_later: float, row: Array, later: Array, scale: float, out: Array
) -> None:
    sums = np.empty((1, len(row)))
    _sum_chebyshev(table, top_b, top_later, row, later, sums)
    value = sums[0]
    for j in range(len(row)):
        out[j] = scale * row[j] * value[j]


@_compiled
def _pull_back(
    w: Array, g: Array, scale: float, table: Array, top_b: float, top_later: float
) -> None:
    """The squares of all later modes are in ``A_i``, so ``w_k`` collects a share from every earlier one."""
    neurons, modes = w.shape
    later = np.empty((_SIDE_BY_SIDE, modes))
    along = np.empty((_SIDE_BY_SIDE, modes))
    own = np.empty((_SIDE_BY_SIDE, modes))
    for first in range(0, neurons, _SIDE_BY_SIDE):
        _sum_later(w, first, later)
        rows = w[first : first + _SIDE_BY_SIDE].reshape(-1)
        upstream = g[first : first + _SIDE_BY_SIDE].reshape(-1)
        if top_b == 0.0:
            _share_short(table, rows, later.reshape(-1), upstream, along.reshape(-1), own.reshape(-1))
        else:
            _share_long(table, top_b, top_later, rows, later.reshape(-1), upstream, along.reshape(-1), own.reshape(-1))
        _sum_earlier(along, later)
        _collect(rows, later.reshape(-1), own.reshape(-1), scale, upstream)


@_compiled
def _share_short(
    table: Array, row: Array, later: Array, upstream: Array, along: Array, own: Array
) -> None:
    of_later, itself = _six(table[1, 0]), _six(table[2, 0])
    for j in range(len(row)):
        a = np.float64(row[j])
        along[j] = upstream[j] * a * (of_later[0] + of_later[1] * later[j] + of_later[4] * a * a)
        own[j] = upstream[j] * _polynomial(itself, later[j], a * a)


@_compiled
def _share_long(
    table: Array, top_b: float, top_later: float, row: Array, later: Array, upstream: Array, along: Array, own: Array
) -> None:
    sums = np.empty((2, len(row)))
    _sum_chebyshev(table[1:], top_b, top_later, row, later, sums)
    of_later, itself = sums[0], sums[1]
    for j in range(len(row)):
        along[j] = upstream[j] * row[j] * of_later[j]
        own[j] = upstream[j] * itself[j]


@_compiled
def _collect(row: Array, before: Array, own: Array, scale: float, out: Array) -> None:
    for j in range(len(row)):
        out[j] = scale * (own[j] + 2 * row[j] * before[j])


@_compiled
def _six(c: Array) -> tuple[float, ...]:
    return c[0], c[1], c[2], c[3], c[4], c[5]


@_compiled
def _polynomial(c: tuple[float, ...], A: float, b: float) -> float:
    return c[0] + A * (c[1] + c[2] * A + c[3] * b) + b * (c[4] + c[5] * b)


@_compiled
def _sum_later(w: Array, first: int, later: Array) -> None:
    """A of the rows from ``first`` on, ``(4, modes)``; beyond the last row, of that row again."""
    last = len(w) - 1
    w0, w1, w2, w3 = w[first], w[min(first + 1, last)], w[min(first + 2, last)], w[min(first + 3, last)]
    out0, out1, out2, out3 = later[0], later[1], later[2], later[3]
    sum0 = sum1 = sum2 = sum3 = 0.0
    for j in range(len(w0) - 1, -1, -1):
        out0[j], out1[j], out2[j], out3[j] = sum0, sum1, sum2, sum3
        sum0 += np.float64(w0[j]) * np.float64(w0[j])
        sum1 += np.float64(w1[j]) * np.float64(w1[j])
        sum2 += np.float64(w2[j]) * np.float64(w2[j])
        sum3 += np.float64(w3[j]) * np.float64(w3[j])


@_compiled
def _sum_earlier(terms: Array, earlier: Array) -> None:
    """Sums over the earlier modes, ``(4, modes)``."""
    in0, in1, in2, in3 = terms[0], terms[1], terms[2], terms[3]
    out0, out1, out2, out3 = earlier[0], earlier[1], earlier[2], earlier[3]
    sum0 = sum1 = sum2 = sum3 = 0.0
    for j in range(len(in0)):
        out0[j], out1[j], out2[j], out3[j] = sum0, sum1, sum2, sum3
        sum0 += in0[j]
        sum1 += in1[j]
        sum2 += in2[j]
        sum3 += in3[j]


@_compiled
def _sum_chebyshev(
    table: Array, top_b: float, top_later: float, row: Array, later: Array, sums: Array
) -> None:
    """The sums of the first tables for every element: ``(sums, elements)``."""
    of_b = np.empty((max(2, table.shape[1]), _CHUNK))
    of_later = np.empty((table.shape[2], _CHUNK))
    inner = np.empty(_CHUNK)
    for start in range(0, len(row), _CHUNK):
        size = min(_CHUNK, len(row) - start)
        for e in range(size):
            of_b[1, e] = 2 / top_b * np.float64(row[start + e]) * np.float64(row[start + e]) - 1
            of_later[1, e] = 2 / top_later * later[start + e] - 1
        _chebyshev(of_b)
        _chebyshev(of_later)
        for q in range(len(sums)):
            out = sums[q, start : start + size]
            out[:] = 0.0
            for k in range(table.shape[1]):
                inner[:] = 0.0
                for i in range(0, table.shape[2], 4):  # four terms for one pass through ``inner``
                    c0, c1, c2, c3 = table[q, k, i], table[q, k, i + 1], table[q, k, i + 2], table[q, k, i + 3]
                    if c0 == c1 == c2 == c3 == 0.0:
                        break
                    t0, t1, t2, t3 = of_later[i], of_later[i + 1], of_later[i + 2], of_later[i + 3]
                    for e in range(size):
                        inner[e] += c0 * t0[e] + c1 * t1[e] + c2 * t2[e] + c3 * t3[e]
                factor = of_b[k]
                for e in range(size):
                    out[e] += factor[e] * inner[e]


@_compiled
def _chebyshev(polynomials: Array) -> None:
    """Fill in the polynomials of degree 0 and from 2 on, ``(terms, elements)``."""
    for e in range(polynomials.shape[1]):
        polynomials[0, e] = 1.0
    for k in range(2, len(polynomials)):
        for e in range(polynomials.shape[1]):
            polynomials[k, e] = 2 * polynomials[1, e] * polynomials[k - 1, e] - polynomials[k - 2, e]
