"""Spin-wave networks: neurons that are simulated atomic quantum memories, at the price of a dot product."""

from . import bessel, ladder
from .data import load_mnist
from .effective import effective_weights, neuron
from .ensemble import fit_ensemble
from .layers import SpinWaveLinear, SpinWaveMLP
from .parameters import SpinWaveParameters
from .training import Diverged, evaluate, fit, load_checkpoint

__all__ = [
    "Diverged",
    "SpinWaveLinear",
    "SpinWaveMLP",
    "SpinWaveParameters",
    "bessel",
    "effective_weights",
    "evaluate",
    "fit",
    "fit_ensemble",
    "ladder",
    "load_checkpoint",
    "load_mnist",
    "neuron",
]
