"""Layers of spin-wave neurons: ordinary linear layers whose matrix is a function of their weights."""

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as modules

from .effective import check_physics, compute, is_plain, project
from .parameters import SpinWaveParameters, whole

# Hooks that watch every module there is.
_HOOKS_OF_ALL = (
    modules._global_forward_hooks,
    modules._global_forward_pre_hooks,
    modules._global_backward_hooks,
    modules._global_backward_pre_hooks,
)


class SpinWaveLinear(nn.Module):
    """A layer of spin-wave neurons: ``y = gain * x @ H(weight).T + bias``.

    Every output is one atomic memory that stores the ``in_features`` probe amplitudes of x under its own control
    amplitudes, a row of ``weight``, and is then read out. The output is linear in x at any coupling.

    Arguments:
        in_features: number of modes, an integer >= 1.
        out_features: number of neurons, an integer >= 1.
        parameters: the physics; the question's by default.
        model: ``"continuum"`` or ``"discretized"``, see :func:`spinwave.effective_weights`.
        bias: add a learned bias, ``(out_features,)``; off by default.
        device: of weights, bias and gain; PyTorch's default where none is given.
        dtype: of weights, bias and gain, real floating point; PyTorch's default where none is given.

    Attributes:
        physics: the parameters (``parameters`` is taken by :class:`torch.nn.Module`).
        weight: control amplitudes, ``(out_features, in_features)``, drawn from N(0, 1).
        gain: scalar buffer, the fixed gain of the detector. It is set at initialisation such that independent
            inputs of unit mean square give outputs of unit mean square. Without it the question's logits start
            near 1e-7 and its gradients below the epsilon of Adam.

    Shapes: ``(..., in_features)`` to ``(..., out_features)``.

    Raises:
        ValueError: sizes below 1, an unknown model, an input whose last dimension is not ``in_features``. On
            the CPU also weights that are NaN or infinite; on a GPU these pass through, since looking would stall it,
            and a coupling ``|a| > 5`` of a mode gives NaN.
    """

    gain: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        parameters: SpinWaveParameters | None = None,
        model: str = "continuum",
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = whole("in_features", in_features)
        self.out_features = whole("out_features", out_features)
        check_physics(parameters, model)
        if dtype is not None and not dtype.is_floating_point:
            raise ValueError(f"dtype must be real floating point, got {dtype}")
        self.physics = SpinWaveParameters() if parameters is None else parameters
        self.model = model
        self.weight = nn.Parameter(torch.empty(self.out_features, self.in_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(self.out_features, device=device, dtype=dtype)) if bias else None
        self.register_buffer("gain", torch.ones((), device=device, dtype=dtype))
        # Weight and gain (which moving and converting a module replaces), their state, the matrix that belongs to it,
        # and their memory, for nothing else to take its place.
        self._kept: tuple[Tensor, Tensor, tuple[object, ...], Tensor, tuple[Tensor, Tensor]] | None = None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new control amplitudes, zero the bias and set the gain to match."""
        self.weight.normal_()
        if self.bias is not None:
            self.bias.zero_()
        weight = self.weight if self.weight.element_size() > 2 else self.weight.float()
        h = compute(weight, self.physics, self.model, look=True)
        largest = h.abs().amax()  # squares of weak couplings underflow
        self.gain.copy_((h / largest).square().sum(-1).mean().rsqrt() / largest)
        if not self.gain.is_meta and not self.gain.isfinite():
            raise ValueError(f"outputs this weak need a gain that {self.gain.dtype} does not hold: {self.physics}")

    def effective_weight(self) -> Tensor:
        """The matrix of the layer, gain included: ``(out_features, in_features)``, differentiable.

        While gradients are not recorded it is worked out once and kept until the weights, the gain or the physics
        change, or the layer is used with gradients. PyTorch does not count changes inside ``weight.data`` and by fused
        optimisers: after one of these and before the next pass with gradients call :meth:`train` or ``eval``.
        Compiled code does not keep it: for evaluation compile what :meth:`fold` returns.
        """
        recorded = torch.is_grad_enabled() or torch.compiler.is_compiling()
        if not recorded and self._kept is not None:
            # A module looks for its attributes longer than all the rest of this takes.
            weight, gain = self._parameters.get("weight"), self._buffers.get("gain")
            kept_weight, kept_gain, state, h, _ = self._kept
            if weight is kept_weight and gain is kept_gain and state == self._state(kept_weight, kept_gain, h):
                return h
        weight, gain = self.weight, self.gain
        h = compute(weight, self.physics, self.model, weight.device.type == "cpu", gain)
        if not recorded and is_plain(weight) and not weight.is_inference() and not h.is_inference():
            self._kept = weight, gain, self._state(weight, gain, h), h, (weight.detach(), gain.detach())
        return h

    def _state(self, weight: Tensor, gain: Tensor, h: Tensor) -> tuple[object, ...]:
        places = weight.data_ptr(), gain.data_ptr()
        return *places, weight._version, gain._version, h._version, self.physics, self.model

    def train(self, mode: bool = True) -> "SpinWaveLinear":
        """As :meth:`torch.nn.Module.train`; the matrix kept for evaluation is worked out anew."""
        self._kept = None
        return super().train(mode)

    @torch.no_grad()
    def fold(self) -> nn.Linear:
        """An ordinary linear layer with the same outputs: the physics of the present weights, worked out and fixed.

        Raises:
            ValueError: a subclass has a ``forward`` of its own.
        """
        if type(self).forward is not SpinWaveLinear.forward:
            raise ValueError(f"only the forward of SpinWaveLinear can be folded, got that of {type(self).__name__}")
        weight = self.effective_weight()
        linear: nn.Linear = nn.utils.skip_init(
            nn.Linear,
            self.in_features,
            self.out_features,
            bias=self.bias is not None,
            device=weight.device,
            dtype=weight.dtype,
        )
        linear.weight.copy_(weight)
        if self.bias is not None:
            linear.bias.copy_(self.bias)
        return linear

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1:] != (self.in_features,):
            raise ValueError(f"expected an input of shape (..., {self.in_features}), got {tuple(x.shape)}")
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            y = _at_once(x, (self,))
            if y is not None:
                return y
        return F.linear(x, self.effective_weight(), self.bias)

    def extra_repr(self) -> str:
        bias = self.bias is not None
        return f"{self.in_features}, {self.out_features}, {self.physics}, model={self.model!r}, bias={bias}"


def _at_once(x: Tensor, layers: Sequence[SpinWaveLinear]) -> Tensor | None:
    """Outputs of layers with ReLU between them in one step for autograd, or None where each has to be taken for itself.

    The short way knows the physics of this class; a subclass may have another ``effective_weight``.
    """
    features = x.shape[-1] if type(x) is Tensor and x.dim() else None
    for layer in layers:
        if layer._kept is not None:
            layer._kept = None
        own = type(layer).effective_weight is SpinWaveLinear.effective_weight
        if not own or layer.model != "continuum" or layer.bias is not None or features != layer.in_features:
            return None
        features = layer.out_features
    weights, physics, gains = zip(*((layer.weight, layer.physics, layer.gain) for layer in layers), strict=True)
    return project(x, weights, physics, gains)


def _is_changed(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether calling a module is not known to be what its class makes of it: somebody watches or replaced it."""
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return type(module) is not kind or "forward" in vars(module) or any((*hooks, *_HOOKS_OF_ALL))


class SpinWaveMLP(nn.Module):
    """Spin-wave layers with ReLU between them, as in the question: 100 pixels, 100 hidden neurons, 10 classes.

    While gradients are recorded on the CPU, all layers of the continuum model together are one step for autograd. Where
    ``layers`` was changed, or somebody watches one of them with a hook, and in the discretized model, they are called
    one by one.

    Arguments:
        sizes: features of input, hidden layers and output; at least two integers >= 1.
        parameters: the physics of every layer; the question's by default.
        model: ``"continuum"`` or ``"discretized"``.
        device: of all weights and gains; PyTorch's default where none is given.
        dtype: of all weights and gains, real floating point; PyTorch's default where none is given.

    Attributes:
        layers: the spin-wave layers and the ReLU between them, in order.
        sizes, physics, model: as given.

    Shapes: ``(..., sizes[0])`` to ``(..., sizes[-1])``.

    Raises:
        ValueError: fewer than two sizes, or as :class:`SpinWaveLinear`.
    """

    def __init__(
        self,
        sizes: Sequence[int] = (100, 100, 10),
        parameters: SpinWaveParameters | None = None,
        model: str = "continuum",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.sizes = tuple(whole("every size", size) for size in sizes)
        if len(self.sizes) < 2:
            raise ValueError(f"sizes must name at least an input and an output, got {self.sizes}")
        self.physics = SpinWaveParameters() if parameters is None else parameters
        self.model = model
        self.layers = nn.Sequential()
        for n_in, n_out in itertools.pairwise(self.sizes):
            if len(self.layers):
                self.layers.append(nn.ReLU())
            self.layers.append(SpinWaveLinear(n_in, n_out, self.physics, model, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            parts: list[Any] = list(self.layers)
            if len(parts) % 2 and not any(map(_is_changed, parts, itertools.cycle((SpinWaveLinear, nn.ReLU)))):
                y = _at_once(x, parts[::2])
                if y is not None:
                    return y
        for layer in self.layers:
            x = layer(x)
        return x

    def fold(self) -> nn.Sequential:
        """The same network in ordinary linear layers, for use where this package is not: equal outputs, no physics.

        Other layers that were put into ``layers`` are copied.

        Export this one: a program that torch.export makes of the network itself calls an operator of this package.
        """
        return nn.Sequential(
            *(layer.fold() if isinstance(layer, SpinWaveLinear) else copy.deepcopy(layer) for layer in self.layers)
        )

    @torch.no_grad()
    def calibrate(self, x: Tensor) -> None:
        """Set the detector gains such that every layer puts out unit mean square on the sample ``x``.

        Initialisation assumes independent inputs of unit mean square; images are neither.

        Arguments:
            x: a sample of inputs, ``(samples, sizes[0])``.

        Raises:
            ValueError: a layer puts out nothing but zeros (or not a number) on the sample, or has a bias. No gain is
                changed then.
        """
        scales = {}
        for layer in self.layers:
            y = layer(x)
            if isinstance(layer, SpinWaveLinear):
                if layer.bias is not None:
                    raise ValueError("a layer with a bias cannot be calibrated: its gain scales a part of the output")
                scales[layer] = y.square().mean().rsqrt()
                if not scales[layer].isfinite():
                    raise ValueError("the sample must excite every layer, got outputs that are all zero or not finite")
                y = y * scales[layer]
            x = y
        for layer, scale in scales.items():
            layer.gain *= scale
