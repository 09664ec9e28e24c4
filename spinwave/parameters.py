"""The physics of one neuron, as numbers."""

import math
import operator
from dataclasses import dataclass, fields
from typing import Any

# Normalisation of a stored mode. The question multiplies sqrt(ic) by Np, thirteen symbols that cancel
# but for its 3.14 in place of pi.
MODE_NORMALISATION = (3.14 / math.pi) ** 0.25

# Seeds that PyTorch takes everywhere and the shuffling of epochs can multiply.
MOST_SEED = 2**31 - 1


def whole(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """``value`` as an int, be it Python's, NumPy's or PyTorch's; a ValueError unless it is one from least to most."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except (TypeError, RuntimeError):  # of a tensor without values
        number = None
    if number is None or number < least or (most is not None and number > most):
        span = f">= {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be an integer {span}, got {value!r}")
    if number >= 2**63:
        raise ValueError(f"{name} must be an integer of 64 bits, got {value!r}")
    return number


def real(name: str, value: Any) -> float:
    """``value`` as a float, be it a number of Python's, NumPy's or PyTorch's; a ValueError unless it is one."""
    try:
        if isinstance(value, (bool, str, bytes)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise ValueError(f"{name} must be a number, got {value!r}") from None


@dataclass(frozen=True)
class SpinWaveParameters:
    """Couplings, grid and detuning shared by all neurons of a layer.

    Arguments:
        coupling_total: total control coupling C_total of a neuron, dimensionless, > 0. Mode i couples with
            ``a_i = w_i * coupling_total / modes``.
        readout_coupling: coupling R of the final read-out pulse, dimensionless, > 0.
        points: grid points N per axis of the discretized model, an integer >= 2.
        steepness: slope of the sigmoid that stands for the causal step in the discretized model, per unit
            length of the ensemble, > 0; ``math.inf`` is the exact step.
        detuning: one-photon detuning in linewidths, any finite number.
        optical_depth: optical depth of the ensemble, dimensionless, > 0.

    The defaults are those of the question. ``points`` and ``steepness`` exist only in the discretized model;
    the continuum model is the limit of many points and a sharp step. No value is learned: for a coupling that is,
    scale the weights, since only their product enters. Positive values are served from 1e-100 to 1e100, detunings up to
    1e60 times the optical depth.

    Raises:
        ValueError: a value outside its range; the message names the field, the range and the value.

    Source: far-detuned Raman memory, Nunn et al., Phys. Rev. A 75, 011401(R) (2007); Gorshkov et al.,
    Phys. Rev. A 76, 033805 (2007).
    """

    coupling_total: float = 0.1
    readout_coupling: float = 10.0
    points: int = 100
    steepness: float = 50.0
    detuning: float = 6000.0
    optical_depth: float = 10000.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if getattr(value, "requires_grad", False):
                raise ValueError(f"{field.name} cannot be learned: scale the weights instead, got {value!r}")
            value = whole("points", value, 2) if field.name == "points" else real(field.name, value)
            object.__setattr__(self, field.name, value)
        for name in ("coupling_total", "readout_coupling", "optical_depth"):
            if not (0 < getattr(self, name) < math.inf):
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}")
            if not 1e-100 <= getattr(self, name) <= 1e100:
                raise ValueError(f"{name} must be from 1e-100 to 1e100, got {getattr(self, name)}")
        if not self.steepness > 0:
            raise ValueError(f"steepness must be positive, got {self.steepness}")
        if not math.isfinite(self.detuning):
            raise ValueError(f"detuning must be finite, got {self.detuning}")
        if not abs(self.stark_phase) <= 1e60:
            raise ValueError(f"detuning over optical_depth must be at most 1e60, got {self.stark_phase}")

    @property
    def stark_phase(self) -> float:
        """Dynamic Stark phase in radians per unit of squared coupling, detuning over optical depth."""
        return self.detuning / self.optical_depth

    def mode_coupling(self, modes: int) -> float:
        """Coupling per unit weight when the total is shared by ``modes`` modes, ``coupling_total / modes``."""
        return self.coupling_total / modes
