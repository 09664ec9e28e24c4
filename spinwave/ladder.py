"""The ladder: the same layer of neurons, each rung the previous one with one idea added.

Every rung takes probe amplitudes x ``(batch, modes)``, control amplitudes w ``(neurons, modes)`` and the parameters,
and returns the outputs ``(batch, neurons)`` in the dtype and on the device of x. ``RUNGS`` holds them in order. Rungs
1 to 7 compute the same grid model and agree to rounding; rung 8 is its limit of many points and a sharp step.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .bessel import clifford
from .effective import GRID_EDGE, causal_step, effective_weights, grid
from .parameters import MODE_NORMALISATION, SpinWaveParameters


def looped(x: Tensor, w: Tensor, parameters: SpinWaveParameters) -> Tensor:
    """Rung 1: samples, neurons and modes in Python loops, complex spin wave, full N x N kernels.

    The question's algorithm, written afresh from its equations, with gradients that are right. It is the plain
    reference that every other implementation is compared with.
    """
    z, q = (t.to(x) for t in grid(parameters.points))
    row = final_readout(z, q, parameters)
    outputs = []
    for x_s in x:
        for w_k in w:
            B = torch.zeros_like(z, dtype=x.dtype.to_complex())  # spin wave, (points,)
            for x_i, a in zip(x_s, w_k * parameters.mode_coupling(len(w_k)), strict=True):
                g = read_in(a, z, q, parameters)  # (points,)
                M = partial_readout(a, z, q, parameters)  # (points, points)
                B = B + x_i * g - M.to(B.dtype) @ B
            outputs.append(row @ B.real)
    return torch.stack(outputs).view(len(x), len(w))


def neurons(x: Tensor, w: Tensor, parameters: SpinWaveParameters) -> Tensor:
    """Rung 2: all neurons at once. Kernels and spin waves get a leading neuron dimension."""
    z, q = (t.to(x) for t in grid(parameters.points))
    row = final_readout(z, q, parameters)
    a = w * parameters.mode_coupling(w.shape[1])  # (neurons, modes)
    outputs = []
    for x_s in x:
        B = torch.zeros(len(w), len(z), dtype=x.dtype.to_complex(), device=x.device)
        for x_i, a_i in zip(x_s, a.T, strict=True):
            g = read_in(a_i, z, q, parameters)  # (neurons, points)
            M = partial_readout(a_i, z, q, parameters)  # (neurons, points, points)
            B = B + x_i * g - torch.einsum("kzy,ky->kz", M.to(B.dtype), B)
        outputs.append(B.real @ row)  # (neurons,)
    return torch.stack(outputs)


def batched(x: Tensor, w: Tensor, parameters: SpinWaveParameters) -> Tensor:
    """Rung 3: all samples at once. The kernels do not depend on x, so they have no batch dimension."""
    z, q = (t.to(x) for t in grid(parameters.points))
    row = final_readout(z, q, parameters)
    a = w * parameters.mode_coupling(w.shape[1])
    B = torch.zeros(len(x), len(w), len(z), dtype=x.dtype.to_complex(), device=x.device)
    for x_i, a_i in zip(x.T, a.T, strict=True):
        g = read_in(a_i, z, q, parameters)  # (neurons, points)
        M = partial_readout(a_i, z, q, parameters)  # (neurons, points, points)
        B = B + x_i[:, None, None] * g - torch.einsum("kzy,bky->bkz", M.to(B.dtype), B)
    return B.real @ row


def real(x: Tensor, w: Tensor, parameters: SpinWaveParameters) -> Tensor:
    """Rung 4: no complex numbers. M is real and only Re B is read, so only Re g can matter."""
    z, q = (t.to(x) for t in grid(parameters.points))
    row = final_readout(z, q, parameters)
    a = w * parameters.mode_coupling(w.shape[1])
    B = x.new_zeros(len(x), len(w), len(z))
    for x_i, a_i in zip(x.T, a.T, strict=True):
        g = real_read_in(a_i, z, q, parameters)
        M = partial_readout(a_i, z, q, parameters)
        B = B + x_i[:, None, None] * g - torch.einsum("kzy,bky->bkz", M, B)
    return B @ row


def toeplitz(x: Tensor, w: Tensor, parameters: SpinWaveParameters) -> Tensor:
    """Rung 5: M depends on z - z' only, so its N x N entries are 2N - 1 Bessel values."""
    z, q = (t.to(x) for t in grid(parameters.points))
    row = final_readout(z, q, parameters)
    a = w * parameters.mode_coupling(w.shape[1])
    B = x.new_zeros(len(x), len(w), len(z))
    for x_i, a_i in zip(x.T, a.T, strict=True):
        g = real_read_in(a_i, z, q, parameters)
        M = toeplitz_readout(a_i, z, q, parameters)
        B = B + x_i[:, None, None] * g - torch.einsum("kzy,bky->bkz", M, B)
    return B @ row


def effective(x: Tensor, w: Tensor, parameters: SpinWaveParameters) -> Tensor:
    """Rung 6: f is linear in x. Sweep the read-out row backwards through the modes; the batch is one product."""
    z, q = (t.to(x) for t in grid(parameters.points))
    r = final_readout(z, q, parameters).expand(len(w), len(z))  # (neurons, points)
    a = w * parameters.mode_coupling(w.shape[1])
    H = []
    for i in reversed(range(w.shape[1])):
        g = real_read_in(a[:, i], z, q, parameters)
        M = toeplitz_readout(a[:, i], z, q, parameters)
        H.append((r * g).sum(-1))
        r = r - torch.einsum("kz,kzy->ky", r, M)
    return x @ torch.stack(H[::-1])  # (batch, modes) @ (modes, neurons)


def separable(x: Tensor, w: Tensor, parameters: SpinWaveParameters) -> Tensor:
    """Rung 7: M is a sum of fixed matrices times polynomials in a^2, so a step of the sweep is one matrix product."""
    return x @ effective_weights(w, parameters, model="discretized").T


def continuum(x: Tensor, w: Tensor, parameters: SpinWaveParameters) -> Tensor:
    """Rung 8: the closed form. One suffix sum and one integral take the place of the recursion and its grid."""
    return x @ effective_weights(w, parameters, model="continuum").T


RUNGS: dict[str, Callable[[Tensor, Tensor, SpinWaveParameters], Tensor]] = {
    rung.__name__: rung
    for rung in (looped, neurons, batched, real, toeplitz, effective, separable, continuum)
}


# ---- kernels of the grid model; a is one coupling per neuron, (...); PyTorch gives @ no type


def read_in(a: Tensor, z: Tensor, q: Tensor, parameters: SpinWaveParameters) -> Tensor:
    """Read-in g(a) of one probe pulse, with its Stark phase: ``(..., points)``, complex."""
    b = a.square()[..., None, None]
    phase = torch.exp(-1j * parameters.stark_phase * b * z)
    kernel = clifford(0, b * torch.outer(z, 1 - z)) * phase  # J0(2a sqrt(z(1 - w))) at (z, w)
    return MODE_NORMALISATION * a[..., None] * (kernel @ q.to(kernel.dtype))  # type: ignore[no-any-return]


def real_read_in(a: Tensor, z: Tensor, q: Tensor, parameters: SpinWaveParameters) -> Tensor:
    """Real part of the read-in: ``(..., points)``."""
    b = a.square()[..., None, None]
    kernel = clifford(0, b * torch.outer(z, 1 - z)) * torch.cos(parameters.stark_phase * b * z)
    return MODE_NORMALISATION * a[..., None] * (kernel @ q)  # type: ignore[no-any-return]


def partial_readout(a: Tensor, z: Tensor, q: Tensor, parameters: SpinWaveParameters) -> Tensor:
    """Partial read-out M(a): what a control pulse takes from the spin wave stored before: ``(..., points, points)``."""
    difference = z[:, None] - z  # z - z'
    step = causal_step(difference, parameters.steepness)
    b = a.square()[..., None, None]
    return b * step * clifford(1, b * difference.clamp(min=GRID_EDGE)) * q


def toeplitz_readout(a: Tensor, z: Tensor, q: Tensor, parameters: SpinWaveParameters) -> Tensor:
    """:func:`partial_readout` from its 2N - 1 different values."""
    points = len(z)
    difference = (z[1] - z[0]) * torch.arange(1 - points, points, device=z.device)
    b = a.square()[..., None]
    values = b * causal_step(difference, parameters.steepness) * clifford(1, b * difference.clamp(min=GRID_EDGE))
    index = torch.arange(points, device=z.device)
    return values[..., index[:, None] - index + points - 1] * q


def final_readout(z: Tensor, q: Tensor, parameters: SpinWaveParameters) -> Tensor:
    """Row r of the last read-out, ``f = r Re B``: ``(points,)``."""
    R = parameters.readout_coupling
    return q * (R * clifford(0, R**2 * torch.outer(1 - z, z)) @ q)
