"""Spin-wave networks: neurons that are simulated atomic quantum memories, at the price of a dot product."""

from . import bessel, ladder
from .checkup import checkup
from .data import load_mnist
from .effective import effective_weights, neuron
from .ensemble import fit_ensemble
from .layers import SpinWaveLinear, SpinWaveMLP
from .parameters import SpinWaveParameters
from .report import CheckupReport, Finding
from .training import Diverged, evaluate, fit, load_checkpoint

__all__ = [
    "CheckupReport",
    "Diverged",
    "Finding",
    "SpinWaveLinear",
    "SpinWaveMLP",
    "SpinWaveParameters",
    "bessel",
    "checkup",
    "effective_weights",
    "evaluate",
    "fit",
    "fit_ensemble",
    "ladder",
    "load_checkpoint",
    "load_mnist",
    "neuron",
]
