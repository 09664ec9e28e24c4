"""Effective weights: the matrix H(w) that turns a spin-wave neuron into a dot product.

The output of a neuron is linear in its probe amplitudes x, so ``f(x, w) = x . H(w)``: all physics is in H, which does
not depend on the batch. Two models of H, both in terms of ``a_i = w_i C_total / n`` and ``b_i = a_i^2``:

discretized
    The question's grid. Spin wave B(z) on N points, read-in g, read-out M, final read-out row r:
    ``B <- B + x_i g(a_i) - M(a_i) B`` for i = 1..n and ``f = r Re B``. Swept backwards, ``h_i = r Re g(a_i)`` and
    ``r <- r - r M(a_i)`` for i = n..1, one sweep serves every x.

continuum
    The limit of many points and a sharp step. In the Laplace domain of z a read-out multiplies by
    ``exp(-a^2/s)``, so read-outs compose by adding squares. With ``A_i = sum_{j>i} b_j`` and
    ``F(c) = C_0(c) - C_0(c + R^2)``::

        H_i = eta a_i / R int_0^1 F(A_i + b_i u) cos(phi b_i (1 - u)) du

    where eta is the mode normalisation, R the read-out coupling, phi the Stark phase and C_n a Bessel-Clifford
    function.

The kernels are those of Nunn et al., Phys. Rev. A 75, 011401(R) (2007).
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from . import compiled
from .bessel import clifford, horner, seen
from .compiled import Series
from .parameters import MODE_NORMALISATION, SpinWaveParameters

MODELS = ("continuum", "discretized")

# The distance that the question's grid keeps from the ends of the ensemble, and its least z - z'.
GRID_EDGE = 1e-10

# Where the weights cannot be looked at, the tables serve couplings up to |a| = 5, rounded.
_UNSEEN_SQUARED_COUPLING = 25.0 * (1 + 1e-6)

# Largest sum of squares for which F is summed as a series: beyond, it is long.
_SERIES_REACH = 4096.0

# Largest b, and phase times b, for which it is: beyond, making the table takes longer than it saves.
_LARGEST_TURN = 64.0

# Largest sum of squares for the Taylor series at the middle, where terms cancel.
_TAYLOR_REACH = {torch.float32: 64.0, torch.float64: 256.0}

# Sums of squares up to 2^this keep the row of the grid model in few dimensions.
_MOST_REDUCED = 6

# More terms than this means couplings (or Stark phases) no float64 sum resolves in reasonable time.
_MOST_TERMS = 1024

# Cells of the table for a unit of sqrt(1 + c): the cubic in each is good to 1e-9.
_CELLS = 128

# Longest table, in powers of two, and largest turn of the phase in a cell.
_LONGEST_TABLE = 22
_LARGEST_PIECE = 30.0

# Squared couplings below which a difference of two values of the table, divided by it, is worse than their mean.
_NEARLY_EQUAL = 1e-5

# Devices that kernels are made for.
_KERNELS_FOR = ("cuda",)

# Tensors of these types, and of no subclass, have values to look at.
_PLAIN = (Tensor, torch.nn.Parameter)

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
        Stronger couplings are served too, except where the values of ``w`` are out of reach: inside torch.func.vmap of
        the discretized model and of second derivatives, where torch.compile finds a torch.func inside, and on a GPU
        inside either of the two. There such a coupling gives NaN, and so does its gradient. Derivatives are of any
        order in reverse mode; forward mode is that of torch.func's jvp, jacfwd and hessian, and only where no coupling
        is strong.

    Raises:
        ValueError: ``w`` is not a real floating-point tensor, is empty, has no mode axis or is not finite; the
            model is unknown; the couplings are too strong to be resolved.

    Source: the formulas of :mod:`spinwave.effective`.
    """
    check_amplitudes("w", w)
    check_physics(parameters, model)
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


def check_physics(parameters: SpinWaveParameters | None, model: str) -> None:
    """Raise a ValueError unless these are parameters, or None, and one of ``MODELS``."""
    if parameters is not None and not isinstance(parameters, SpinWaveParameters):
        raise ValueError(f"parameters must be SpinWaveParameters, got {parameters!r}")
    if model not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {model!r}")


def compute(w: Tensor, parameters: SpinWaveParameters, model: str, look: bool, gain: Tensor | None = None) -> Tensor:
    """:func:`effective_weights` of checked arguments, times a detector gain, a scalar.

    ``look=False`` reads no value of ``w`` back from its device: nothing synchronises, NaN passes through, and the
    tables are made for ``|a| <= 5``: beyond, H and its gradient are NaN.
    """
    if gain is not None and gain.requires_grad:
        return (gain * compute(w, parameters, model, look)).to(w.dtype)
    kind = w.device.type
    working = w.float() if w.dtype in (torch.float16, torch.bfloat16) else w
    has_loops = look and kind == "cpu" and model == "continuum" and _has_loops(working)
    # Tensors on "meta" have no autocast; asking torch.amp whether a device has breaks the graph of PyTorch 2.6.
    if not has_loops and kind != "meta" and torch.is_autocast_enabled(kind):
        with torch.autocast(kind, enabled=False):
            return compute(w, parameters, model, look, gain)
    rows = working.flatten(0, -2) if w.dim() > 1 else working[None]
    h: Tensor
    if has_loops:
        # inside torch.func every neuron may have its own gain
        inside, gain = (None, gain) if torch._C._are_functorch_transforms_active() else (gain, None)
        h = _closed(rows, inside, parameters.coupling_total, parameters.readout_coupling, parameters.stark_phase)
    elif model == "discretized":
        h = _discretized(rows, parameters, look)
    elif not look and is_plain(working) and _has_table(working, parameters):
        h, gain = _Tabled.apply(rows, gain, parameters), None
    else:
        # the largest sum of squared couplings of a neuron
        norm = seen(torch.linalg.vector_norm(rows.detach(), dim=-1).amax()) if look else None
        total = None if norm is None else (norm * parameters.mode_coupling(w.shape[-1])) ** 2
        if total is not None:
            _check_finite(total)
        h = _continuum(rows, parameters, total)
    h = h.reshape(w.shape)
    return (h if gain is None else gain * h).to(w.dtype)


def project(
    x: Tensor, weights: Sequence[Tensor], physics: Sequence[SpinWaveParameters], gains: Sequence[Tensor]
) -> Tensor | None:
    """``x @ (gain H(w)).T`` of the closed form, layer after layer with ReLU between them, in one step for autograd.

    Arguments:
        x: ``(samples, modes of the first layer)``.
        weights: of every layer, ``(neurons, modes)`` with as many modes as the layer before has neurons.
        physics, gains: of every layer; a gain is a scalar.

    Returns:
        ``(samples, neurons of the last layer)``, or None where that has to be done in several steps.
    """
    if type(x) is not Tensor or x.dim() != 2 or torch.is_autocast_enabled("cpu"):
        return None
    dtype = x.dtype
    if dtype is not torch.float32 and dtype is not torch.float64:
        return None
    for w, gain in zip(weights, gains, strict=True):
        if not is_plain(w) or not w.is_cpu or w.dtype is not dtype or gain.requires_grad:
            return None
    try:
        y: Tensor = _Project.apply(x, physics, [gain.item() for gain in gains], *weights)
    except _TooStrong:
        return None
    return y


# ---- continuum


class Unresolved(ValueError):
    """Amplitudes that are not finite, or couplings too strong for any sum in float64."""


class _TooStrong(Exception):
    """No series serves these couplings."""


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor has values to look at: it is not traced, vmapped or of a kind of its own."""
    return (
        not torch.compiler.is_compiling()
        and type(tensor) in _PLAIN
        and not tensor.is_meta
        and not torch._C._are_functorch_transforms_active()
        and torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is None  # make_fx
    )


def _closed(w: Tensor, *rest: Any) -> Tensor:
    """H of rows by compiled loops, with as little around them as may be."""
    if is_plain(w):
        with suppress(_TooStrong):
            return _Closed.apply(w, *rest)  # type: ignore[no-any-return]
    # the compiler fails on a Function with a setup_context where nothing is to be recorded
    is_recorded = torch.is_grad_enabled() and w.requires_grad
    bare = torch.compiler.is_compiling() and not is_recorded
    return (_ClosedForm.forward if bare else _ClosedForm.apply)(w, *rest)[0]


def _number(gain: Tensor | None) -> float:
    return 1.0 if gain is None else gain.item()


def _has_loops(w: Tensor) -> bool:
    """Whether compiled loops serve w: not in forward mode, nor where the compiler has to look into torch.func."""
    transformed = torch._C._are_functorch_transforms_active()
    if torch.compiler.is_compiling():
        return not transformed
    if type(w) not in _PLAIN or w.is_meta:
        return False
    return not transformed or all(
        level.key() in (TransformType.Grad, TransformType.Vmap)
        for level in torch._C._functorch.get_interpreter_stack() or ()
    )


def _has_series(total: Any, largest: Any, parameters: SpinWaveParameters) -> Any:
    """Whether a series serves these sums of squared couplings and largest ones: numbers or tensors."""
    return (total <= _SERIES_REACH) & (largest * max(1.0, abs(parameters.stark_phase)) <= _LARGEST_TURN)


@lru_cache(maxsize=256)
def _near_zero(parameters: SpinWaveParameters, modes: int, dtype: torch.dtype) -> tuple[float, float, Series]:
    """The factor of w in H, the largest sum of squares of w that a short series serves, and that series.

    I to second order; what the orders left out add is bounded by the derivatives of F, none above F(0), and the cosine.
    """
    coupling, phase, readout = parameters.mode_coupling(modes), parameters.stark_phase, parameters.readout_coupling
    zero = torch.zeros(1, dtype=torch.float64, device="cpu")
    value, first, second = ((-1) ** n * _difference(n, zero, readout).item() for n in range(3))
    spread = second / 6 - value * phase**2 / 6
    six = np.array(  # of 1, A, A^2, A b, b, b^2
        [
            [value, first, second / 2, second / 2, first / 2, spread],
            [first, second, 0, 0, second / 2, 0],
            [value, first, second / 2, 3 * second / 2, 3 * first / 2, 5 * spread],
        ]
    )
    unit = coupling**2
    six *= unit ** np.array([0, 1, 2, 2, 1, 2]) * unit ** np.array([[0], [1], [0]])
    reach, promised = 1.0, 1e-11 if dtype == torch.float64 else 2e-6
    while reach**3 * (0.25 + phase**2 / 6 + reach * phase**4 / 120) > promised:
        reach /= 1.1
    return MODE_NORMALISATION / readout * coupling, reach / unit, Series(six[:, None], 0.0, 0.0)


class _Closed(torch.autograd.Function):
    """``gain H`` of rows of w, ``(neurons, modes)``. On the CPU.

    A network of ordinary size spends more time on starting operators than in them, a large one on moving weights from
    memory. So the formula and its derivative are compiled loops, with as little Python around them as can be.
    """

    @staticmethod
    def forward(ctx: Any, w: Tensor, gain: Tensor | None, *physics: float) -> Tensor:
        h, ctx.total, ctx.series = _evaluate(w, _physics(*physics), _number(gain))
        ctx.save_for_backward(w, gain)
        ctx.physics = physics
        return h

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        w, gain = ctx.saved_tensors  # asked for in any case: PyTorch then refuses weights that were changed since
        if _is_final(grad):
            return _pull_back(grad.clone(memory_format=torch.contiguous_format), ctx.series), *[None] * 4
        return _pull_back_by_formula(grad, w, _physics(*ctx.physics), _number(gain), ctx.total), *[None] * 4


class _ClosedForm(torch.autograd.Function):
    """:class:`_Closed` and the largest sum of squares, for torch.func and torch.compile, which has it call operators.

    What autograd has to know is in Functions: telling it with torch.library costs twice more in every call of compiled
    code.
    """

    @staticmethod
    def forward(w: Tensor, gain: Tensor | None, *physics: float) -> tuple[Tensor, Tensor]:
        pair: tuple[Tensor, Tensor] = torch.ops.spinwave.closed_form(w, gain, *physics)
        return pair

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        w, gain, *ctx.physics = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(w, output[1], gain)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        if torch.compiler.is_compiling() or _is_final(grad):
            of_w = _PullBack.forward(grad, *ctx.saved_tensors, *ctx.physics)
        elif torch._C._are_functorch_transforms_active():
            of_w = _PullBack.apply(grad, *ctx.saved_tensors, *ctx.physics)
        else:
            w, total, gain = ctx.saved_tensors
            of_w = _pull_back_by_formula(grad, w, _physics(*ctx.physics), _number(gain), total.item())
        return of_w, *[None] * 4

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], w: Tensor, *rest: Any
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, None]]:
        w = w.movedim(in_dims[0], 0)  # (batch, neurons, modes)
        h, total = _ClosedForm.apply(w.flatten(0, 1), *rest)
        return (h.view(w.shape), total), (0, None)


class _PullBack(torch.autograd.Function):
    """The gradient in H turned into the gradient in w, both ``(neurons, modes)``."""

    @staticmethod
    def forward(grad: Tensor, w: Tensor, total: Tensor, gain: Tensor | None, *physics: float) -> Tensor:
        of_w: Tensor = torch.ops.spinwave.closed_form_backward(grad, w, total, gain, *physics)
        return of_w

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        grad, w, total, gain, *ctx.physics = inputs
        ctx.save_for_backward(grad, w, total, gain)

    @staticmethod
    def backward(ctx: Any, direction: Tensor) -> tuple[Tensor | None, ...]:
        grad, w, total, gain = ctx.saved_tensors
        parameters, number = _physics(*ctx.physics), _number(gain)

        def pulled(grad: Tensor, w: Tensor) -> Tensor:
            return torch.func.vjp(lambda w: _formula(w, parameters, number, total.item()), w)[1](grad)[0]  # type: ignore

        return *torch.func.vjp(pulled, grad, w)[1](direction), *[None] * 5

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], grad: Tensor, w: Tensor, *rest: Any) -> tuple[Tensor, int]:
        grad, w = (
            tensor.expand(info.batch_size, *tensor.shape) if batched is None else tensor.movedim(batched, 0)
            for tensor, batched in zip((grad, w), in_dims[:2], strict=True)
        )  # (batch, neurons, modes)
        return _PullBack.apply(grad.flatten(0, 1), w.flatten(0, 1), *rest).view(w.shape), 0


class _Project(torch.autograd.Function):
    """Layers of spin-wave neurons with ReLU between them: see :func:`project`.

    One step for autograd where ordinary layers take several each, and ReLU without copies, earn back a good part of
    what the physics costs.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, physics: Sequence[SpinWaveParameters], gains: Sequence[float], *weights: Tensor
    ) -> Tensor:
        matrices: list[Tensor] = []
        inputs: list[Tensor] = []
        ctx.totals, ctx.series = [], []
        for w, parameters, gain in zip(weights, physics, gains, strict=True):
            inputs.append(x if not inputs else x.relu_())
            h, total, series = _evaluate(w, parameters, gain)
            x = x.mm(h.t())
            matrices.append(h)
            ctx.totals.append(total)
            ctx.series.append(series)
        ctx.save_for_backward(*weights, *inputs, *matrices)
        ctx.physics, ctx.gains = physics, gains
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        layers = len(ctx.series)
        saved = ctx.saved_tensors
        weights, inputs, matrices = saved[:layers], saved[layers : 2 * layers], saved[2 * layers :]
        of_x, _, _, *wanted = ctx.needs_input_grad
        found: list[Tensor | None] = [None] * layers
        if _is_final(grad):
            for k in reversed(range(layers)):
                if wanted[k]:
                    found[k] = _pull_back(grad.t().mm(inputs[k]), ctx.series[k])
                if not (of_x or any(wanted[:k])):
                    break
                grad = grad.mm(matrices[k])
                if k:
                    torch.ops.aten.threshold_backward.grad_input(grad, inputs[k], 0, grad_input=grad)
            return grad if of_x else None, None, None, *found
        with torch.enable_grad():
            y = inputs[0]
            for k, w in enumerate(weights):
                y = (y if k == 0 else y.relu()).mm(_formula(w, ctx.physics[k], ctx.gains[k], ctx.totals[k]).t())
        asked = [tensor for tensor, needed in zip((inputs[0], *weights), (of_x, *wanted), strict=True) if needed]
        grads = iter(torch.autograd.grad(y, asked, grad, create_graph=True))
        return next(grads) if of_x else None, None, None, *(next(grads) if needed else None for needed in wanted)


def _is_final(grad: Tensor) -> bool:
    """Whether nobody will ask for a derivative of this one, and it is not many at once.

    torch.func has one way of batching gradients, torch.autograd.functional another.
    """
    return not (
        torch.is_grad_enabled()
        or torch._C._are_functorch_transforms_active()
        or torch._C._functorch.is_legacy_batchedtensor(grad)
    )


def _pull_back(g: Tensor, series: tuple[compiled.Array, float, Series]) -> Tensor:
    """Turn g, the gradient in H, into the gradient in w, in place."""
    rows, scale, terms = series
    compiled.pull_back(rows, g.numpy(), scale, terms)
    return g


def _formula(w: Tensor, parameters: SpinWaveParameters, gain: float | Tensor, total: float | None) -> Tensor:
    """``gain H`` for a derivative of the derivative, or many at once: autograd does the formula as it stands."""
    squared = parameters.mode_coupling(w.shape[1]) ** 2
    return gain * _continuum(w, parameters, None if total is None else total * squared)


def _pull_back_by_formula(
    grad: Tensor, w: Tensor, parameters: SpinWaveParameters, gain: float | Tensor, total: float | None
) -> Tensor:
    with torch.enable_grad():
        h = _formula(w, parameters, gain, total)
    return torch.autograd.grad(h, w, grad, create_graph=True)[0]


def _evaluate(
    w: Tensor, parameters: SpinWaveParameters, gain: float
) -> tuple[Tensor, float, tuple[compiled.Array, float, Series]]:
    """``gain H``, the largest sum of squares of a row, and what the derivative needs: w, scale and series."""
    scale, limit, series = _near_zero(parameters, w.shape[1], w.dtype)
    scale *= gain
    rows, h = w.contiguous().numpy(force=True), torch.empty_like(w, memory_format=torch.contiguous_format)
    total = compiled.evaluate(rows, h.numpy(), scale, series)
    if not total <= limit:
        series = _far_series(rows, total, parameters, w.dtype)
        compiled.evaluate(rows, h.numpy(), scale, series)
    return h, total, (rows, scale, series)


_PHYSICS = "Tensor? gain, float coupling_total, float readout_coupling, float stark_phase"
torch.library.define("spinwave::closed_form", f"(Tensor w, {_PHYSICS}) -> (Tensor, Tensor)")
torch.library.define("spinwave::closed_form_backward", f"(Tensor grad, Tensor w, Tensor total, {_PHYSICS}) -> Tensor")


@torch.library.impl("spinwave::closed_form", "cpu")
def _closed_form(w: Tensor, gain: Tensor | None, *physics: float) -> tuple[Tensor, Tensor]:
    parameters, number = _physics(*physics), _number(gain)
    try:
        h, total, _ = _evaluate(w, parameters, number)
    except _TooStrong:
        h, (served, total) = w.new_empty(w.shape), _sort_out(w, parameters)
        a, integral, _, _ = _by_quadrature(w[~served], parameters)
        h[~served] = (number * MODE_NORMALISATION / parameters.readout_coupling * a * integral).to(w.dtype)
        if served.any():
            h[served] = _evaluate(w[served], parameters, number)[0]
    return h, torch.tensor(total, dtype=torch.float64)


@torch.library.impl("spinwave::closed_form_backward", "cpu")
def _closed_form_backward(grad: Tensor, w: Tensor, total: Tensor, gain: Tensor | None, *physics: float) -> Tensor:
    parameters, number = _physics(*physics), _number(gain)
    rows, reach = w.contiguous().numpy(force=True), total.item()
    scale, limit, series = _near_zero(parameters, w.shape[1], w.dtype)
    if not reach <= limit:
        try:
            series = _far_series(rows, reach, parameters, w.dtype)
        except _TooStrong:
            of_w, (served, _) = w.new_empty(w.shape), _sort_out(w, parameters)
            _, _, of_later, itself = _by_quadrature(w[~served], parameters)
            coupling = parameters.mode_coupling(w.shape[1])
            of_aI = number * MODE_NORMALISATION / parameters.readout_coupling * grad[~served].double()
            of_w[~served] = _collect(of_aI, w[~served], of_later, itself, coupling)
            if served.any():
                weak = w[served]
                total = weak.double().square().sum(1).amax()
                of_w[served] = torch.ops.spinwave.closed_form_backward(grad[served], weak, total, gain, *physics)
            return of_w
    return _pull_back(grad.clone(memory_format=torch.contiguous_format), (rows, scale * number, series))


def _sort_out(w: Tensor, parameters: SpinWaveParameters) -> tuple[Tensor, float]:
    """Which rows a series serves, ``(neurons,)``, and the largest sum of squares of them all."""
    squares = w.detach().double().square()
    b = squares * parameters.mode_coupling(w.shape[1]) ** 2
    _check_finite(b.sum(1).amax().to(w.dtype).item())
    # a little less than what the loop serves, since its sums round differently
    return _has_series(1.001 * b.sum(1), 1.001 * b.amax(1), parameters), squares.sum(1).amax().item()


def _by_quadrature(w: Tensor, parameters: SpinWaveParameters) -> tuple[Tensor, ...]:
    """Couplings a of rows that no series serves, I, its derivative in A, and ``I + 2 b dI/db``: float64."""
    a = w.double() * parameters.mode_coupling(w.shape[1])
    b = a.square()
    later, phase = _sums_later(b), parameters.stark_phase
    rule = _quadrature(_exponent(b.amax().item()), phase, _tolerance(w.dtype), torch.float64, w.device)
    at_once = max(1, 10**6 // (len(rule[0]) * w.shape[1]))  # rows, so that memory does not grow with them
    parts = zip(b.split(at_once), later.split(at_once), strict=True)
    return a, *torch.cat([_integrals(*part, parameters.readout_coupling, phase, rule) for part in parts], 1)


def _integrals(
    b: Tensor, later: Tensor, readout: float, phase: float, rule: tuple[Tensor, Tensor]
) -> Tensor:
    """I, its derivative in A, and ``I + 2 b dI/db``, ``(3, ...)``, of ``I(A, b) = int_0^1 F(A + b u) cos(..) du``."""
    u, weights = (part[:, None, None] for part in rule)
    c, turn = later + u * b, phase * (1 - u)
    value, derivative = _difference(0, c, readout), -_difference(1, c, readout)
    cosine = torch.cos(turn * b)
    itself = (value + 2 * b * u * derivative) * cosine - 2 * b * value * turn * torch.sin(turn * b)
    return (weights * torch.stack([value * cosine, derivative * cosine, itself])).sum(1)


def _collect(grad: Tensor, w: Tensor, of_later: Tensor, itself: Tensor, coupling: float) -> Tensor:
    """The gradient in w, from that in ``a I``: every mode has a share in the A of all earlier ones."""
    a = w.double() * coupling
    earlier = F.pad((grad * a * of_later).cumsum(-1)[..., :-1], (1, 0))
    return (coupling * (grad * itself + 2 * a * earlier)).to(w.dtype)


torch.library.register_fake(
    "spinwave::closed_form", lambda w, *_: (w.new_empty(w.shape), w.new_empty((), dtype=torch.float64))
)
torch.library.register_fake("spinwave::closed_form_backward", lambda _, w, *__: w.new_empty(w.shape))


@lru_cache(maxsize=256)
def _physics(coupling_total: float, readout_coupling: float, stark_phase: float) -> SpinWaveParameters:
    return SpinWaveParameters(coupling_total, readout_coupling, detuning=stark_phase, optical_depth=1.0)


def _far_series(rows: compiled.Array, total: float, parameters: SpinWaveParameters, dtype: torch.dtype) -> Series:
    """The series for rows whose squares sum up to ``total`` at most."""
    _check_finite(total)
    coupling = parameters.mode_coupling(rows.shape[1])
    reach, largest = total * coupling**2, compiled.largest_square(rows) * coupling**2
    if not _has_series(reach, largest, parameters):
        raise _TooStrong
    tolerance = 1e-13 if dtype == torch.float64 else 3e-7
    readout, phase = parameters.readout_coupling, parameters.stark_phase
    return _long_series(_exponent(reach), _exponent(largest), coupling, readout, phase, tolerance)


@lru_cache(maxsize=256)
def _long_series(
    exponent_total: int, exponent_b: int, coupling: float, readout: float, phase: float, tolerance: float
) -> Series:
    """``I(A, b) = int_0^1 F(A + b u) cos(..) du`` for couplings up to powers of two, in units of w^2."""
    with torch.device("cpu"):
        table = _integral_table(exponent_total, exponent_b, readout, phase, tolerance)  # (3, terms in b, terms in A)
    counted = (table.abs() > tolerance / 10 * table.abs().amax((1, 2), keepdim=True)).flip(2).cumsum(2).flip(2) > 0
    table = F.pad(table * counted, (0, -table.shape[2] % 4))  # zeros end a sum
    table[1] *= coupling**2
    top_b, top_later = (2.0**exponent / coupling**2 for exponent in (exponent_b, exponent_total))
    return Series(table.numpy(), top_b, top_later)


def _integral_table(exponent_total: int, exponent_b: int, readout: float, phase: float, tolerance: float) -> Tensor:
    """Chebyshev coefficients ``(3, terms in b, terms in A)`` of ``I(A, b) = int_0^1 F(A + b u) cos(..) du``.

    For A and b up to powers of two; of I, of its derivative in A, and of ``I + 2 b dI/db``.
    """
    rule = _quadrature(exponent_b, phase, 1e-15, torch.float64, torch.device("cpu"))
    sizes = [8, 8]  # terms in b, in A
    while True:
        angles = [(torch.arange(size, dtype=torch.float64) + 0.5) * (math.pi / size) for size in sizes]
        b, later = (
            (angle.cos() + 1) * 2.0 ** (exponent - 1)
            for angle, exponent in zip(angles, (exponent_b, exponent_total), strict=True)
        )
        table = _integrals(b[:, None], later, readout, phase, rule)
        for angle in angles:
            cosines = torch.cos(torch.arange(len(angle), dtype=torch.float64)[:, None] * angle) * (2 / len(angle))
            cosines[0] /= 2
            table = torch.tensordot(table, cosines, ([1], [1]))  # the new axis is the last: b, then A
        parts = table.abs() / table.abs().amax((1, 2), keepdim=True)
        needed = [int((parts.amax(rest) > tolerance).nonzero().max()) + 1 for rest in ((0, 2), (0, 1))]
        if all(n <= size - 2 for n, size in zip(needed, sizes, strict=True)):  # the tails were seen to be empty
            break
        sizes = [2 * size if n > size - 2 else size for n, size in zip(needed, sizes, strict=True)]
    return table[:, : needed[0], : needed[1]].contiguous()


def _continuum(w: Tensor, parameters: SpinWaveParameters, total: float | None) -> Tensor:
    tolerance = _tolerance(w.dtype)
    a = w * parameters.mode_coupling(w.shape[-1])  # (..., modes)
    b = a.square()
    later = _sums_later(b)
    largest = None if total is None else seen(b.detach().amax())
    # in derivatives inside vmap only the sum is known
    limit = min(_UNSEEN_SQUARED_COUPLING, math.inf if total is None else total) if largest is None else largest

    readout = parameters.readout_coupling
    phase = parameters.stark_phase
    nodes, weights = _quadrature(_exponent(limit), phase, tolerance, w.dtype, w.device)
    u = nodes.view(-1, *[1] * w.dim())
    c = later + u * b  # (nodes, ..., modes)
    if total is None or total > _TAYLOR_REACH[torch.float64]:
        values = _difference(0, c, readout)
    else:
        exponent = _exponent(total)
        series = _difference_series(exponent, readout, tolerance)
        working = w.dtype if total <= _TAYLOR_REACH[w.dtype] else torch.float64
        values = horner(series, c.to(working) - 2.0 ** (exponent - 1)).to(w.dtype)
    if (phase * limit) ** 2 > tolerance:
        values = values * torch.cos(phase * (1 - u) * b)
    integral = (weights.view_as(u) * values).sum(0)  # a product of matrices would be autocast's
    h = MODE_NORMALISATION / readout * a * integral
    return h if largest is not None else _unless(b > _UNSEEN_SQUARED_COUPLING, h)


def _sums_later(b: Tensor) -> Tensor:
    """A_i, the sum of b_j over j > i: ``(..., modes)``."""
    inclusive = b.flip(-1).cumsum(-1).flip(-1)
    return F.pad(inclusive[..., 1:], (0, 1))


def _table_exponent(modes: int) -> int:
    return max(10, _exponent(_UNSEEN_SQUARED_COUPLING * modes))


def _has_table(w: Tensor, parameters: SpinWaveParameters) -> bool:
    exponent = _table_exponent(w.shape[-1])
    longest_cell = 2.0 ** (exponent / 2 + 1) / _CELLS
    turn = abs(parameters.stark_phase) * longest_cell
    return w.dtype == torch.float32 and exponent <= _LONGEST_TABLE and turn <= _LARGEST_PIECE


class _Tabled(torch.autograd.Function):
    """``gain H`` of rows of w, ``(neurons, modes)``, kept unseen.

    With ``T' = i phi T - F`` the integral over u is a difference of one function at two sums of squares::

        b I(A, b) = Re[exp(i phi b) T(A) - T(A + b)]

    so that a table of T serves all modes and couplings with one look-up each.
    """

    @staticmethod
    def forward(ctx: Any, w: Tensor, gain: Tensor | None, parameters: SpinWaveParameters) -> Tensor:
        phase, readout, modes = parameters.stark_phase, parameters.readout_coupling, w.shape[-1]
        table = _table(_table_exponent(modes), readout, phase, w.device)
        ctx.coupling = parameters.mode_coupling(modes)
        look_up, ctx.collect = _means(w.device)
        h, *kept = look_up(w, gain, table, _numbers(ctx.coupling, readout, phase))
        ctx.save_for_backward(w, gain, *kept)
        ctx.parameters = parameters
        return h  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        w, gain, *kept = ctx.saved_tensors
        if not _is_final(grad):
            return _pull_back_by_formula(grad, w, ctx.parameters, 1.0 if gain is None else gain, None), None, None
        return ctx.collect(grad, w, *kept, ctx.coupling), None, None


def _numbers(coupling: float, readout: float, phase: float) -> tuple[float, ...]:
    """What to look up with, as :func:`spinwave.fused.look_up` takes it."""
    least = _NEARLY_EQUAL / max(1.0, abs(phase))
    return coupling, MODE_NORMALISATION / readout, phase, float(_CELLS), least, _UNSEEN_SQUARED_COUPLING


def _look_up(
    w: Tensor, gain: Tensor | None, table: Tensor, numbers: tuple[float, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """What :func:`spinwave.fused.look_up` does, in few operators: each costs a GPU more than its work."""
    coupling, scale, phase, per_unit, least, most = numbers
    a = w.double() * coupling  # differences of T are small
    sums = F.pad(a.square().flip(-1).cumsum(-1), (1, 0)).flip(-1)  # (neurons, modes + 1): A_i + b_i, at the end 0
    place = (sums + 1).sqrt() * per_unit - per_unit
    cell = place.nan_to_num(len(table)).clamp(max=len(table) - 1).long()
    x = torch.where(place > len(table), math.nan, place - cell).unsqueeze(-1)
    value, first, second, third = table[cell].unbind(-2)  # (neurons, modes + 1, functions)
    value = torch.addcmul(value, x, torch.addcmul(first, x, torch.addcmul(second, x, third)))
    transform, known = torch.view_as_complex(value.unflatten(-1, (2, 2))).unbind(-1)
    f, slope = known.real, known.imag

    b = sums[..., :-1] - sums[..., 1:]  # what the table was asked for, which rounding has moved
    turn = torch.exp(1j * phase * b)
    part = turn * transform[..., 1:] - transform[..., :-1]
    is_small, divisor = b < least, torch.where(b > most, math.nan, b.clamp(min=least))
    integral = torch.where(is_small, torch.lerp(f[..., 1:], f[..., :-1], 0.5), part.real / divisor)
    drift = f[..., :-1] - phase * part.imag
    of_later = torch.where(
        is_small, torch.lerp(slope[..., 1:], slope[..., :-1], 0.5), (drift - turn.real * f[..., 1:]) / divisor
    )
    factor = scale if gain is None else scale * gain.double()
    return (factor * a * integral).to(w.dtype), factor * of_later, factor * (2 * drift - integral)


@lru_cache(maxsize=64)
def _means(device: torch.device) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """How to look up and to collect on a device: by kernels where they compile and, tried once, do as the operators."""
    operators = _look_up, _collect
    if device.type not in _KERNELS_FOR:
        return operators
    try:
        from .fused import collect, look_up
    except ImportError:  # PyTorch came without Triton
        return operators
    try:
        error = _largest_error(look_up, collect, device)
        if error < 1e-6:
            return look_up, collect
        problem = f"they are off by {error:.0e}"
    except torch.OutOfMemoryError:  # says nothing of the kernels
        raise
    except Exception as failure:  # a compiler may fail in any way
        problem = f"{type(failure).__name__}: {failure}"
    warnings.warn(f"kernels do not work on {device}, slower operators take their place ({problem})", stacklevel=2)
    return operators


def _largest_error(look_up: Callable[..., Any], collect: Callable[..., Any], device: torch.device) -> float:
    """By how much two small layers and their gradients differ from those of the operators, of the largest."""
    with _lasting():
        w = torch.linspace(-1.0, 1.2, 300, dtype=torch.float32).view(2, 150).to(device)
        table, numbers, errors = _table(10, 1.0, 0.6, device), _numbers(1.0, 1.0, 0.6), []
        for rows, gain in ((w, w[1, 9]), (w.view(30, 10), None)):  # two blocks and a part of one
            results, grad = [], rows.t().contiguous().t()
            for find, pull_back in ((_look_up, _collect), (look_up, collect)):
                h, of_later, itself = find(rows, gain, table, numbers)
                results.append(torch.stack([h, pull_back(grad, rows, of_later, itself, 1.0)]))
            wanted, found = results
            errors.append((found - wanted).abs().amax((1, 2)) / wanted.abs().amax((1, 2)))
        return torch.cat(errors).amax().item()


@lru_cache(maxsize=64)
def _table(exponent: int, readout: float, phase: float, device: torch.device) -> Tensor:
    """Cubics in sqrt(1 + c) for 0 <= c <= 2^exponent: ``(cells, powers, functions)`` of Re T, Im T, F and F'.

    ``T(c) = int_0^inf F(c + s) exp(-i phase s) ds``: the solution of ``T' = i phase T - F`` that varies as slowly as F.
    Any other differs by a multiple of exp(i phase c), which drops out of H and matters for interpolation only.
    """
    with _lasting():
        end = math.sqrt(1 + 2.0**exponent)
        t = 1 + torch.arange(math.ceil((end - 1) * _CELLS) + 1, dtype=torch.float64) / _CELLS
        c = t**2 - 1
        length = c.diff()
        nodes, weights = _gauss(6 + int(abs(phase) * length[-1].item()))
        pieces = sum(
            weight * length * _difference(0, c[:-1] + u * length, readout) * torch.exp(-1j * phase * u * length)
            for u, weight in zip(nodes, weights, strict=True)
        )  # integrals over a cell
        rest = torch.zeros(1, dtype=torch.complex128)
        if abs(phase) * end > 4:  # else exp(i phase c) is slow enough
            for k in range(math.ceil(36 / math.log(abs(phase) * end))):  # by parts, to 1e-16
                rest += (-1) ** k * _difference(k, c[-1:], readout) / (1j * phase) ** (k + 1)
        turned = torch.exp(-1j * phase * c)
        transform = torch.cat([pieces * turned[:-1], rest * turned[-1]]).flip(0).cumsum(0).flip(0) / turned
        f, first, second = ((-1) ** n * _difference(n, c, readout) for n in range(3))
        slope = 1j * phase * transform - f
        values = torch.stack([transform.real, transform.imag, f, first], 1)  # (cells + 1, functions)
        slopes = torch.stack([slope.real, slope.imag, first, second], 1) * (2 / _CELLS * t[:, None])
        step, begin, end_slopes = values.diff(dim=0), slopes[:-1], slopes[1:]
        cubics = values[:-1], begin, 3 * step - 2 * begin - end_slopes, begin + end_slopes - 2 * step
        return torch.stack(cubics, 1).to(device)


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
    centre = torch.tensor([2.0 ** (exponent - 1)], dtype=torch.float64, device="cpu")
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

    def is_enough(m: int) -> bool:
        order = 2 * m
        scale = 4 * math.lgamma(m + 1) - math.log(order + 1) - 3 * math.lgamma(order + 1)
        logs = [
            scale + _log_binomial(order, k) + k * math.log(b) - math.lgamma(k + 1) + _log_power(turn, order - k)
            for k in range(order + 1)
        ]
        return max(logs) + math.log(order + 1) < math.log(tolerance)

    if is_enough(_MOST_TERMS):
        m = next(m for m in range(1, _MOST_TERMS + 1) if is_enough(m))
        with _lasting():
            return tuple(torch.tensor(part, dtype=dtype, device=device) for part in _gauss(m))  # type: ignore
    raise Unresolved(
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
    modes = w.shape[-1]
    a = w * parameters.mode_coupling(modes)  # (neurons, modes)
    b = a.square()
    limit = seen(b.detach().amax()) if look else None
    exponent_total = None
    if limit is not None:
        _check_finite(limit)
        exponent_total = _exponent(b.detach().sum(-1).amax().item())
    exponent = _exponent(_UNSEEN_SQUARED_COUPLING if limit is None else limit)
    # the tables do not depend on the total coupling, so that networks of several share them
    grid_model = parameters.points, parameters.readout_coupling, parameters.steepness, parameters.stark_phase
    row, partial, read_in = _grid_tables(exponent, exponent_total, *grid_model, w.dtype, w.device)

    # M(a) = b sum_m T_m(b) S_m, one GEMM a mode for all terms of all neurons
    terms = len(partial) // len(row)
    strengths = (b * _chebyshev(b, exponent, terms)).movedim(0, -1).unsqueeze(-1).unbind(1)  # (neurons, terms, 1) each
    r = row.expand(len(a), -1)  # (neurons, size)
    rows = []
    for i in reversed(range(modes)):
        rows.append(r)
        if i:
            r = torch.addmm(r, (strengths[i] * r.unsqueeze(1)).flatten(1), partial, alpha=-1)
    overlaps = torch.stack(rows[::-1], 1) @ read_in  # (neurons, modes, terms of the read-in)
    h = a * (overlaps * _chebyshev(b, exponent, read_in.shape[1]).movedim(0, -1)).sum(-1)
    if limit is None:
        h = _unless(b.amax(-1, keepdim=True) > _UNSEEN_SQUARED_COUPLING, h)
    return h


def _chebyshev(b: Tensor, exponent: int, terms: int) -> Tensor:
    """T_0..T_{terms-1} at b, mapped from [0, 2^exponent] to [-1, 1]: ``(terms, ...)``."""
    t = b * 2.0 ** (1 - exponent) - 1
    values, twice = [torch.ones_like(t), t], 2 * t
    while len(values) < terms:
        values.append((twice * values[-1]).sub_(values[-2]))
    return torch.stack(values[:terms])


@lru_cache(maxsize=32)
@_constant
def _grid_tables(
    exponent: int,
    exponent_total: int | None,
    points: int,
    readout: float,
    steepness: float,
    phase: float,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor]:
    """Kernels of the grid model for squared couplings b <= 2^exponent, as Chebyshev series in b.

    Returns the read-out row ``(size,)``, the partial read-outs S_m one below the other ``(terms * size, size)`` with
    ``M(a) = b sum_m T_m S_m``, and the read-in vectors G_m ``(size, terms)`` with ``Re g(a) = a sum_m T_m G_m``. Where
    the squares of a neuron are known to sum up to 2^exponent_total at most, these are coordinates in the few
    dimensions that the row then visits; otherwise, size is the number of grid points.
    """
    with _lasting():
        tolerance = _tolerance(dtype)
        row, partial, read_in = _make_grid_tables(exponent, points, readout, steepness, phase, tolerance)
        if exponent_total is not None and exponent_total <= _MOST_REDUCED:
            basis = _visited(row, partial, 2.0**exponent_total, tolerance / 10)  # (size, points)
            row, partial, read_in = basis @ row, basis @ partial @ basis.T, basis @ read_in
        return tuple(table.to(device, dtype) for table in (row, partial.flatten(0, 1), read_in))  # type: ignore


def _visited(row: Tensor, partial: Tensor, total: float, tolerance: float) -> Tensor:
    """Orthonormal rows that span what ``row (I - M_n) .. (I - M_i)`` can become, for squares that sum up to total.

    A product of p partial read-outs enters with a sum over ordered p-tuples of modes, at most ``total^p / p!``.
    """

    def compress(rows: Tensor) -> Tensor:
        _, sizes, directions = torch.linalg.svd(rows, full_matrices=False)
        kept = sizes > tolerance * torch.linalg.vector_norm(row)
        principal: Tensor = sizes[kept, None] * directions[kept]
        return principal

    level, levels = row[None], [row[None]]
    while len(level):
        level = compress((level @ partial).flatten(0, 1) * (total / len(levels)))
        levels.append(level)
    return torch.nn.functional.normalize(compress(torch.cat(levels)), eps=0.0)


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
    return row, partial_terms, read_in_terms.T


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
    raise Unresolved(
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


@contextmanager
def _lasting() -> Iterator[None]:
    """For tables that are kept: later calls may record gradients, be batched, or have another default device."""
    with torch.inference_mode(False), temporarily_clear_interpreter_stack(), torch.device("cpu"):
        yield


def _unless(is_beyond: Tensor, h: Tensor) -> Tensor:
    """NaN in place of h, and of its gradient."""
    return h * torch.where(is_beyond, math.nan, 1.0)


def _tolerance(dtype: torch.dtype) -> float:
    return 1e-13 if dtype == torch.float64 else 1e-7


def _exponent(bound: float) -> int:
    """Least e with bound <= 2^e: tables are made for powers of two, so that training does not remake them."""
    return max(-50, math.ceil(math.log2(bound))) if bound > 0 else -50


def _check_finite(bound: float) -> None:
    if not math.isfinite(bound):
        raise Unresolved("w must be finite, got NaN, infinity or values whose squares overflow")
