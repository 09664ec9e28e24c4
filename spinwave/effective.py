"""Effective weights: the matrix H(w) that turns a spin-wave neuron into a dot product.

The output of a neuron is linear in its probe amplitudes x, so ``f(x, w) = x . H(w)``: all physics is in H, which does
not depend on the batch. Two models of H, both in terms of ``a_i = w_i C_total / n`` and ``b_i = a_i^2``:

discretized
    The question's grid. Spin wave B(z) on N points, read-in g, read-out M, final read-out row r:
    ``B <- B + x_i g(a_i) - M(a_i) B`` for i = 1..n and ``f = r B``. Swept backwards, ``h_i = r g(a_i)`` and
    ``r <- r - r M(a_i)`` for i = n..1, one sweep serves every x.

continuum
    The limit of many points and a sharp step. In the Laplace domain of z a read-out multiplies by
    ``exp(-a^2/s)``, so read-outs compose by adding squares. With ``A_i = sum_{j>i} b_j`` and
    ``F(c) = C_0(c) - C_0(c + R^2)``,

        H_i = eta a_i / R int_0^1 F(A_i + b_i u) cos(phi b_i (1 - u)) du

    where eta is the mode normalisation, R the read-out coupling, phi the Stark phase and C_n a Bessel-Clifford
    function.

The kernels are those of Nunn et al., Phys. Rev. A 75, 011401(R) (2007).
"""

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .bessel import clifford, horner, seen
from .parameters import MODE_NORMALISATION, SpinWaveParameters

MODELS = ("continuum", "discretized")

# The distance that the question's grid keeps from the ends of the ensemble, and its least z - z'.
GRID_EDGE = 1e-10

# Where the weights cannot be looked at, the tables serve couplings up to |a| = 5.
_UNSEEN_SQUARED_COUPLING = 25.0

# Largest sum of squares for which F is summed as a Taylor series: beyond, cancellation costs the promised digits.
_SERIES_REACH = {torch.float32: 64.0, torch.float64: 256.0}

# More terms than this means couplings (or Stark phases) no float64 sum resolves in reasonable time.
_MOST_TERMS = 1024


_Function = TypeVar("_Function", bound=Callable[..., Any])


def _constant(function: _Function) -> _Function:
    """``torch.compiler.assume_constant_result`` without its import of the compiler, a second for every program."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def effective_weights(
    w: Tensor, parameters: SpinWaveParameters | None = None, model: str = "continuum"
) -> Tensor:
    """Effective weights H(w), with ``neuron(x, w) = (x * H(w)).sum(-1)``.

    Arguments:
        w: control amplitudes, ``(..., modes)``, real floating point, dimensionless.
        parameters: the physics; the question's by default.
        model: ``"continuum"`` (closed form) or ``"discretized"`` (the question's grid).

    Returns:
        H of the shape, dtype and device of ``w``. Error at most 1e-10 (float64) or 1e-5 (float32) of the largest
        ``|H|`` for couplings ``|a| <= 5`` per mode; where read-outs and Stark phases leave next to nothing of any H,
        of ``max |a| (1 - C_0(R^2)) / R``, which it is without them. 16-bit types are computed in float32 and rounded.
        Stronger couplings are served too, except inside torch.compile and torch.func.vmap, where the values of ``w``
        cannot be looked at and such a coupling gives NaN.

    Raises:
        ValueError: ``w`` is not a real floating-point tensor, is empty, has no mode axis or is not finite; the
            model is unknown; the couplings are too strong to be resolved.

    Source: the module's docstring.
    """
    check_amplitudes("w", w)
    check_model(model)
    return compute(w, SpinWaveParameters() if parameters is None else parameters, model, look=True)


def neuron(
    x: Tensor, w: Tensor, parameters: SpinWaveParameters | None = None, model: str = "continuum"
) -> Tensor:
    """Output f(x, w) of spin-wave neurons: the read-out amplitude after all modes were stored.

    Arguments:
        x: probe amplitudes, ``(..., modes)``, real floating point.
        w: control amplitudes, ``(..., modes)``; leading dimensions broadcast against those of ``x``.
        parameters: the physics; the question's by default.
        model: ``"continuum"`` or ``"discretized"``.

    Returns:
        ``(...)``, the broadcast leading dimensions.

    Raises:
        ValueError: as :func:`effective_weights`, for ``x`` as well; mode counts that differ; leading dimensions
            that do not broadcast.
    """
    check_amplitudes("x", x)
    check_amplitudes("w", w)
    if x.shape[-1] != w.shape[-1]:
        raise ValueError(
            f"x and w must have the same number of modes in their last dimension, got shapes "
            f"{tuple(x.shape)} and {tuple(w.shape)}"
        )
    try:
        torch.broadcast_shapes(x.shape, w.shape)
    except RuntimeError:
        raise ValueError(
            f"the leading dimensions of x and w must broadcast, got shapes {tuple(x.shape)} and {tuple(w.shape)}"
        ) from None
    largest = seen(x.detach().abs().amax())
    if largest is not None and not math.isfinite(largest):
        raise ValueError("x must be finite, got NaN or infinity")
    return (x * effective_weights(w, parameters, model)).sum(-1)


def check_amplitudes(name: str, amplitudes: Tensor) -> None:
    """Raise a ValueError unless ``amplitudes`` is a real floating-point tensor with modes in its last dimension."""
    if not isinstance(amplitudes, Tensor):
        raise ValueError(f"{name} must be a tensor, got {type(amplitudes).__name__}")
    if not amplitudes.is_floating_point():
        raise ValueError(f"{name} must be real floating point, got dtype {amplitudes.dtype}")
    if amplitudes.dim() == 0 or amplitudes.numel() == 0:
        raise ValueError(
            f"{name} must have shape (..., modes) with at least one element, got shape {tuple(amplitudes.shape)}"
        )


def check_model(model: str) -> None:
    """Raise a ValueError unless ``model`` is one of ``MODELS``."""
    if model not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {model!r}")


def compute(w: Tensor, parameters: SpinWaveParameters, model: str, look: bool, gain: Tensor | None = None) -> Tensor:
    """:func:`effective_weights` of checked arguments, times a detector gain, a scalar.

    ``look=False`` reads no value of ``w`` back from its device: nothing synchronises, NaN passes through, and the
    tables are made for ``|a| <= 5``.
    """
    kind = w.device.type
    # Tensors on "meta" have no autocast; asking torch.amp whether a device has breaks the graph of PyTorch 2.6.
    if kind != "meta" and torch.is_autocast_enabled(kind):
        with torch.autocast(kind, enabled=False):
            return compute(w, parameters, model, look, gain)
    working = w.float() if w.dtype in (torch.float16, torch.bfloat16) else w
    if model == "discretized":
        h = _discretized(working, parameters, look)
    else:
        # the largest sum of squared couplings of a neuron
        norm = seen(torch.linalg.vector_norm(working.detach(), dim=-1).amax()) if look else None
        total = None if norm is None else (norm * parameters.mode_coupling(w.shape[-1])) ** 2
        if total is not None:
            _check_finite(total)
            if _is_weak(total, parameters, working.dtype):
                return _weak_continuum(working, parameters, 1.0 if gain is None else gain.item()).to(w.dtype)
        h = _continuum(working, parameters, total)
    return (h if gain is None else gain * h).to(w.dtype)


# ---- continuum


def _is_weak(total: float, parameters: SpinWaveParameters, dtype: torch.dtype) -> bool:
    """Whether F may be taken as linear in c and the integral at its midpoint.

    What that leaves out is below ``total^2 (1 + phi^2 / 8)`` of H, from ``|F''| <= F(0)`` and the cosine.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return total**2 * (1 + parameters.stark_phase**2 / 8) < (1e-11 if dtype == torch.float64 else 1e-6)


def _weak_continuum(w: Tensor, parameters: SpinWaveParameters, gain: float) -> Tensor:
    """``gain * eta a_i / R (F(0) + F'(0) (A_i + b_i / 2))``: the closed form of weak couplings."""
    coupling = parameters.mode_coupling(w.shape[-1])
    scale = gain * MODE_NORMALISATION / parameters.readout_coupling * coupling
    value, derivative = _difference_at_zero(parameters.readout_coupling)
    rows = w if w.dim() == 2 else w.reshape(-1, w.shape[-1])
    h: Tensor = _Weak.apply(rows, scale * value, scale * coupling**2 * derivative)
    return h if w.dim() == 2 else h.view(w.shape)


@lru_cache(maxsize=256)
def _difference_at_zero(readout: float) -> tuple[float, float]:
    """F(0) and F'(0)."""
    zero = torch.zeros(1, dtype=torch.float64)
    return _difference(0, zero, readout).item(), -_difference(1, zero, readout).item()


class _Weak(torch.autograd.Function):
    """``w_i (constant + slope (sum_{j>i} w_j^2 + w_i^2 / 2))`` of every row, derivative written out.

    A network of ordinary size spends more time on starting operators than in them, a large one on moving weights from
    memory. So there are five operators each way, in place where possible, on blocks of rows that stay in the cache.
    """

    @staticmethod
    def forward(ctx: Any, w: Tensor, constant: float, slope: float) -> Tensor:
        h, strength = torch.empty_like(w), torch.empty_like(w)
        for row, out, u in _blocks(w, h, strength):
            square = row * row
            prefix = square.cumsum(-1)
            base = prefix[:, -1:] * slope + constant
            # sum_{j>i} w_j^2 + w_i^2 / 2 = total - (prefix - square / 2)
            torch.add(base, prefix.sub_(square, alpha=0.5), alpha=-slope, out=u)
            torch.mul(row, u, out=out)
        ctx.save_for_backward(w, strength)
        ctx.constant, ctx.slope = constant, slope
        return h

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        w, strength = ctx.saved_tensors
        if torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
            # a derivative of the derivative, or many at once: let autograd do the formula as it stands
            with torch.enable_grad():
                square = w * w
                prefix = square.cumsum(-1)
                h = w * (ctx.constant + ctx.slope * (prefix[:, -1:] - prefix + square / 2))
            return torch.autograd.grad(h, w, grad, create_graph=True)[0], None, None
        parts = []  # joined at the end: a batched gradient could not be written into a plain tensor
        for row, g, u in _blocks(w, grad, strength):
            share = g * row
            prefix = share.cumsum(-1).sub_(share, alpha=0.5)
            parts.append((g * u).addcmul_(row, prefix, value=2 * ctx.slope))
        return parts[0] if len(parts) == 1 else torch.cat(parts), None, None


def _blocks(*tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """The tensors' rows side by side, about 65 000 elements at a time."""
    neurons, modes = tensors[0].shape
    rows = max(1, 2**16 // modes)
    if neurons <= rows:
        return (tensors,)
    return zip(*(tensor.split(rows) for tensor in tensors), strict=True)


def _continuum(w: Tensor, parameters: SpinWaveParameters, total: float | None) -> Tensor:
    tolerance = _tolerance(w.dtype)
    a = w * parameters.mode_coupling(w.shape[-1])  # (..., modes)
    b = a.square()
    inclusive = b.flip(-1).cumsum(-1).flip(-1)  # sum of b_j over j >= i
    later = F.pad(inclusive[..., 1:], (0, 1))  # A_i
    largest = None if total is None else seen(b.detach().amax())
    limit = _UNSEEN_SQUARED_COUPLING if largest is None else largest

    readout = parameters.readout_coupling
    phase = parameters.stark_phase
    nodes, weights = _quadrature(_exponent(limit), phase, tolerance, w.dtype, w.device)
    u = nodes.view(-1, *[1] * w.dim())
    c = later + u * b  # (nodes, ..., modes)
    if total is None or total > _SERIES_REACH[torch.float64]:
        values = _difference(0, c, readout)
    else:
        exponent = _exponent(total)
        series = _difference_series(exponent, readout, tolerance)
        working = w.dtype if total <= _SERIES_REACH[w.dtype] else torch.float64
        values = horner(series, c.to(working) - 2.0 ** (exponent - 1)).to(w.dtype)
    if (phase * limit) ** 2 > tolerance:
        values = values * torch.cos(phase * (1 - u) * b)
    integral = torch.tensordot(weights, values, 1)
    h = MODE_NORMALISATION / readout * a * integral
    return h if total is not None else torch.where(b > limit, math.nan, h)


def _difference(n: int, c: Tensor, readout: float) -> Tensor:
    """``C_n(c) - C_n(c + R^2)``, without cancellation for small R."""
    square = readout**2
    if square > 1:
        return clifford(n, c) - clifford(n, c + square)
    # The mean of C_{n+1} over [c, c + R^2]; four nodes leave 2e-15 at R = 1.
    terms = [clifford(n + 1, c + node * square) * weight for node, weight in zip(*_gauss(4), strict=True)]
    return sum(terms[1:], terms[0]) * square


@lru_cache(maxsize=256)
@_constant
def _difference_series(exponent: int, readout: float, tolerance: float) -> tuple[float, ...]:
    """Taylor coefficients of F(c) = C_0(c) - C_0(c + R^2) at the centre of 0 <= c <= 2^exponent.

    With r half the length, the k-th term is at most ``r^k C_k(r) / k!``, and ``|C_k(r)| <= min(1/k!, r^(-k/2))``.
    """
    centre = torch.tensor([2.0 ** (exponent - 1)], dtype=torch.float64)
    log_radius = (exponent - 1) * math.log(2)
    coefficients: list[float] = []
    log_size = 0.0
    while log_size > math.log(tolerance) or len(coefficients) < 2:
        k = len(coefficients)
        coefficients.append((-1) ** k * _difference(k, centre, readout).item() / math.factorial(k))
        log_size = (k + 1) * log_radius - math.lgamma(k + 2)
        log_size -= max(math.lgamma(k + 2), (k + 1) / 2 * log_radius)
    return tuple(coefficients)


@lru_cache(maxsize=256)
@_constant
def _quadrature(
    exponent: int, phase: float, tolerance: float, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the Gauss-Legendre rule on [0, 1] that meets ``tolerance`` for all b up to 2^exponent.

    The error of m nodes is the 2m-th derivative of ``C_0(b u + A) cos(phase b (1 - u))`` times
    ``m!^4 / ((2m + 1) (2m)!^3)`` (NIST DLMF 3.5.19), and ``|d^k C_0(b u + A)/du^k| <= b^k / k!``.
    """
    b, turn = 2.0**exponent, 2.0**exponent * abs(phase)
    for m in range(1, _MOST_TERMS):
        order = 2 * m
        scale = 4 * math.lgamma(m + 1) - math.log(order + 1) - 3 * math.lgamma(order + 1)
        logs = [
            scale + _log_binomial(order, k) + k * math.log(b) - math.lgamma(k + 1) + _log_power(turn, order - k)
            for k in range(order + 1)
        ]
        if max(logs) + math.log(order + 1) < math.log(tolerance):
            with torch.inference_mode(False):  # kept for later calls, which may record gradients
                return tuple(torch.tensor(part, dtype=dtype, device=device) for part in _gauss(m))  # type: ignore
    raise ValueError(
        f"the control field is too strong: a squared coupling of up to {b:.3g} per mode at a Stark phase of "
        f"{phase:.3g} needs more than {_MOST_TERMS} quadrature nodes"
    )


def _log_binomial(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _log_power(base: float, exponent: int) -> float:
    if exponent == 0:
        return 0.0
    return exponent * math.log(base) if base > 0 else -math.inf


@lru_cache(maxsize=64)
@_constant
def _gauss(m: int) -> tuple[list[float], list[float]]:
    """Nodes and weights of the m-point Gauss-Legendre rule on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(m)
    return ((nodes + 1) / 2).tolist(), (weights / 2).tolist()


# ---- discretized


def _discretized(w: Tensor, parameters: SpinWaveParameters, look: bool) -> Tensor:
    modes, points = w.shape[-1], parameters.points
    a = (w * parameters.mode_coupling(modes)).reshape(-1, modes)  # (neurons, modes)
    b = a.square()
    limit = seen(b.detach().amax()) if look else None
    if limit is not None:
        _check_finite(limit)
    exponent = _exponent(_UNSEEN_SQUARED_COUPLING if limit is None else limit)
    row, partial, read_in = _grid_tables(
        exponent, points, parameters.readout_coupling, parameters.steepness, parameters.stark_phase, w.dtype, w.device
    )

    terms = partial.shape[1] // points
    # M(a) = b sum_m T_m(b) S_m, one GEMM a mode for all terms of all neurons
    strengths = b.unsqueeze(-1) * _chebyshev(b, exponent, terms)  # (neurons, modes, terms)
    r = row.expand(len(a), points)  # (neurons, points)
    rows = []
    for i in reversed(range(modes)):
        rows.append(r)
        if i:
            products = (r @ partial).view(-1, terms, points)
            r = r - (strengths[:, i, None] @ products).squeeze(1)
    overlaps = torch.stack(rows[::-1], 1) @ read_in  # (neurons, modes, terms of the read-in)
    h = a * (overlaps * _chebyshev(b, exponent, read_in.shape[1])).sum(-1)
    if limit is None:
        h = torch.where(b.amax(-1, keepdim=True) > _UNSEEN_SQUARED_COUPLING, math.nan, h)
    return h.view_as(w)


def _chebyshev(b: Tensor, exponent: int, terms: int) -> Tensor:
    """T_0..T_{terms-1} at b, mapped from [0, 2^exponent] to [-1, 1]: ``(..., terms)``."""
    t = b * 2.0 ** (1 - exponent) - 1
    values = [torch.ones_like(t), t]
    while len(values) < terms:
        values.append(2 * t * values[-1] - values[-2])
    return torch.stack(values[:terms], -1)


@lru_cache(maxsize=32)
@_constant
def _grid_tables(
    exponent: int,
    points: int,
    readout: float,
    steepness: float,
    phase: float,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor]:
    """Kernels of the grid model for squared couplings b <= 2^exponent, as Chebyshev series in b.

    Returns the read-out row ``(points,)``, the partial read-outs S_m side by side ``(points, terms * points)`` with
    ``M(a) = b sum_m T_m S_m``, and the read-in vectors G_m ``(points, terms)`` with ``Re g(a) = a sum_m T_m G_m``.
    """
    with torch.inference_mode(False):  # kept for later calls, which may record gradients
        tables = _make_grid_tables(exponent, points, readout, steepness, phase, _tolerance(dtype))
        return tuple(table.to(device, dtype) for table in tables)  # type: ignore[return-value]


def _make_grid_tables(
    exponent: int, points: int, readout: float, steepness: float, phase: float, tolerance: float
) -> tuple[Tensor, Tensor, Tensor]:
    z, q = grid(points)
    row = q * (readout * clifford(0, readout**2 * torch.outer(1 - z, z)) @ q)
    spacing = z[1] - z[0]
    difference = spacing * torch.arange(1 - points, points, dtype=torch.float64)  # z - z', 2N - 1 values
    step = causal_step(difference, steepness)
    distance = difference.clamp(min=GRID_EDGE)

    def partial(b: float) -> Tensor:  # of one argument z - z'
        return step * clifford(1, b * distance)

    def read_in(b: float) -> Tensor:
        kernel = clifford(0, b * torch.outer(z, 1 - z)) * torch.cos(b * phase * z)
        row: Tensor = MODE_NORMALISATION * kernel @ q
        return row

    index = torch.arange(points)
    toeplitz = index[:, None] - index + points - 1
    partial_terms = _interpolate(partial, exponent, tolerance)[:, toeplitz] * q  # (terms, points, points)
    read_in_terms = _interpolate(read_in, exponent, tolerance)
    return row, partial_terms.transpose(0, 1).reshape(points, -1), read_in_terms.T


def _interpolate(function: Callable[[float], Tensor], exponent: int, tolerance: float) -> Tensor:
    """Chebyshev coefficients ``(terms, ...)`` of a function of b on [0, 2^exponent], cut at ``tolerance``."""
    terms = 8
    while terms <= _MOST_TERMS:
        # Not as a tensor: inside torch.func.grad PyTorch 2.6 does not give its values away.
        angles = [(k + 0.5) * math.pi / terms for k in range(terms)]
        samples = torch.stack([function((math.cos(angle) + 1) * 2.0 ** (exponent - 1)) for angle in angles])
        orders = torch.arange(terms, dtype=torch.float64)
        cosines = torch.cos(torch.outer(orders, orders.new_tensor(angles))) * (2 / terms)
        cosines[0] /= 2
        coefficients: Tensor = torch.tensordot(cosines, samples, 1)
        sizes = coefficients.flatten(1).abs().amax(1)
        needed = int((sizes > tolerance * sizes.max()).nonzero().max()) + 1
        if needed <= terms - 2:  # the tail was seen to be empty
            return coefficients[:needed]
        terms *= 2
    raise ValueError(
        f"the control field is too strong: a squared coupling of up to {2.0**exponent:.3g} per mode needs more than "
        f"{_MOST_TERMS} Chebyshev terms"
    )


def grid(points: int) -> tuple[Tensor, Tensor]:
    """The question's grid and its trapezoid weights, both ``(points,)`` in float64."""
    z = torch.linspace(GRID_EDGE, 1 - GRID_EDGE, points, dtype=torch.float64)
    q = (z[1] - z[0]).repeat(points)
    q[0] /= 2
    q[-1] /= 2
    return z, q


def causal_step(difference: Tensor, steepness: float) -> Tensor:
    """Smoothed causal step S(z - z'): a sigmoid, or for infinite steepness the step with S(0) = 1/2."""
    if math.isinf(steepness):
        return torch.heaviside(difference, difference.new_tensor(0.5))
    return torch.sigmoid(steepness * difference)


# ---- shared


def _tolerance(dtype: torch.dtype) -> float:
    return 1e-13 if dtype == torch.float64 else 1e-7


def _exponent(bound: float) -> int:
    """Least e with bound <= 2^e: tables are made for powers of two, so that training does not remake them."""
    return max(-50, math.ceil(math.log2(bound))) if bound > 0 else -50


def _check_finite(bound: float) -> None:
    if not math.isfinite(bound):
        raise ValueError("w must be finite, got NaN, infinity or values whose squares overflow")
