"""Bessel-Clifford functions, the language of every kernel in this package.

``C_n(c) = sum_k (-c)^k / (k! (n + k)!)`` is entire, and ``J_n(2 sqrt(c)) = c^(n/2) C_n(c)``: the kernels
``J0(2a sqrt(d))`` and ``J1(2a sqrt(d)) / sqrt(d)`` become ``C_0(a^2 d)`` and ``a C_1(a^2 d)``, with no square root,
no 0/0 and derivatives of every order, ``dC_n/dc = -C_{n+1}``.

Identities: NIST Digital Library of Mathematical Functions, 10.2.2 (series), 10.6.1 (recurrence) and
10.17.3 (Hankel's form for large arguments).
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .parameters import whole

# Below the switch the power series loses at most three digits to cancellation (its largest term is near 120),
# above it Hankel's form is smooth.
_SWITCH = 16.0

# P and Q of Hankel's form J_n(x) = sqrt(2 / (pi x)) (P cos(chi) - (8 / x) Q sin(chi)), chi = x - n pi/2 - pi/4,
# as polynomials in t = 64 / x^2 = 16 / c on [0, 1], lowest power first. Chebyshev interpolation with 60-digit
# arithmetic, twelve terms, error below 1e-15; the tests compute the functions anew.
_HANKEL = {
    0: (
        (
            1.0, -0.0010986328124940497, 2.7380883396213333e-05, -2.18391370916552e-06,
            3.619796847019117e-07, -1.020738967079073e-07, 4.259621569036549e-08, -2.229296496119801e-08,
            1.1847433676494211e-08, -5.175933954877116e-09, 1.5085549601351533e-09, -2.0995666028197915e-10,
        ),
        (
            -0.01562499999999998, 0.00014305114745475928, -6.930785875070624e-06, 8.238385038932825e-07,
            -1.8158445456937552e-07, 6.377275619769075e-08, -3.147768253253297e-08, 1.84995056569585e-08,
            -1.0553433517664698e-08, 4.803649188850482e-09, -1.4342744370738477e-09, 2.0262953094329415e-10,
        ),
    ),
    1: (
        (
            1.0, 0.0018310546874936876, -3.520399300493312e-05, 2.580989644711851e-06,
            -4.102481413356521e-07, 1.1283619641156013e-07, -4.6345375285662205e-08, 2.4020357187056722e-08,
            -1.2695697232698128e-08, 5.529994111163271e-09, -1.6090449520262866e-09, 2.2371765561506739e-10,
        ),
        (
            0.04687499999999998, -0.00020027160643877278, 8.47096056476612e-06, -9.505834798450298e-07,
            2.029512036377805e-07, -6.986195499472577e-08, 3.40364081156448e-08, -1.9844412607264603e-08,
            1.1269929518036778e-08, -5.117095005671213e-09, 1.5256994461932332e-09, -2.1535963284658179e-10,
        ),
    ),
}


def clifford(n: int, c: Tensor) -> Tensor:
    """Bessel-Clifford function ``C_n(c)``, elementwise, differentiable to any order in reverse mode.

    Arguments:
        n: order, an integer >= 0. The accuracy below is tested for n = 0 to 4.
        c: real floating-point tensor of any shape, dimensionless, ``0 <= c <= 1e4``. Down to -16 the series serves,
            with a relative error of the same size.

    Returns:
        Tensor of the shape, dtype and device of ``c``. Absolute error at most 1e-13 in float64 and 1e-6 in
        float32 (for the float32 argument as given). The arithmetic is float64 throughout: near c = 1e4 a
        float32 square root alone would cost 1e-6.

    Raises:
        ValueError: n is not an integer >= 0, c is not a real floating-point tensor, or is below -16 (on the CPU).

    Source: NIST Digital Library of Mathematical Functions, 10.2.2, 10.6.1, 10.17.3.
    """
    n = whole("clifford: the order n", n, 0)
    if not isinstance(c, Tensor):
        raise ValueError(f"clifford: c must be a tensor, got {type(c).__name__}")
    if not c.is_floating_point():
        raise ValueError(f"clifford: c must be a real floating-point tensor, got dtype {c.dtype}")
    value: Tensor = _Clifford.apply(n, c)
    return value


class _Clifford(torch.autograd.Function):
    # No jvp: torch.compile does not trace a Function that has one, and PyTorch 2.14 takes a jvp of a jvp for zero.
    @staticmethod
    def forward(n: int, c: Tensor) -> Tensor:
        return _evaluate(n, c.double()).to(c.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[int, Tensor], output: Tensor) -> None:
        ctx.n, c = inputs
        ctx.save_for_backward(c)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        (c,) = ctx.saved_tensors
        return None, -grad * _Clifford.apply(ctx.n + 1, c)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[None, int], n: int, c: Tensor) -> tuple[Tensor, int]:
        return _Clifford.apply(n, c), in_dims[1]  # of all elements at once, for a look at their values


def horner(coefficients: Sequence[float], t: Tensor) -> Tensor:
    """Polynomial with the given coefficients, lowest power first, at every element of ``t``."""
    value = torch.full_like(t, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * t + coefficient
    return value


def seen(value: Tensor) -> float | None:
    """The one value of a tensor, or None where a tensor has no values to look at, traced or vmapped.

    On a GPU this waits for the device.
    """
    if torch.compiler.is_compiling():
        return None
    try:
        return value.item()
    except RuntimeError:
        return None


def _evaluate(n: int, c: Tensor) -> Tensor:
    # On the CPU a look at the arguments is cheap, and small ones need a few terms of the series and no more.
    largest = None
    if c.device.type == "cpu" and c.numel():
        low, high = map(seen, c.aminmax())  # one pass through c
        if low is not None and high is not None:
            if low < -_SWITCH:
                raise ValueError(f"clifford: c must be at least -{_SWITCH:g}, got {low:g}")
            largest = max(-low, high)
    if largest is not None and largest <= _SWITCH:
        return horner(_series(n, largest), c)
    series = horner(_series(n, _SWITCH), c.clamp(max=_SWITCH))
    # The clamp keeps the branch not taken finite.
    large = c.clamp(min=_SWITCH)
    previous, current = _hankel(0, large), _hankel(1, large)
    if n == 0:
        return torch.where(c < _SWITCH, series, previous)
    for order in range(1, n):  # C_{m+1} = (m C_m - C_{m-1}) / c loses nothing while m < sqrt(c)
        previous, current = current, (order * current - previous) / large
    return torch.where(c < _SWITCH, series, current)


def _series(n: int, largest: float) -> list[float]:
    """Coefficients ``(-1)^k / (k! (n + k)!)``, lowest power first, until a term at ``largest`` is below 1e-18."""
    coefficients = [1 / math.factorial(n)]
    k, size = 0, 1.0
    while size > 1e-18:
        k += 1
        coefficients.append(-coefficients[-1] / (k * (n + k)))
        size *= largest / k**2
    return coefficients


def _hankel(n: int, c: Tensor) -> Tensor:
    t = _SWITCH / c
    root = c.sqrt()
    p, q = _HANKEL[n]
    chi = 2 * root - (n / 2 + 0.25) * math.pi
    wave = horner(p, t) * chi.cos() - 4 / root * horner(q, t) * chi.sin()
    return wave / (math.pi * root).sqrt() / root**n
