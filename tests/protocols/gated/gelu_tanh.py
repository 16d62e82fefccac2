"""GELU with tanh, at the sites of GELU."""

from __future__ import annotations

import math

import numpy as np

from tests.protocols.gated.gelu import residual_function
from tests.protocols.operands import Array, sigmoid
from tfe_bench.protocols.nn import gelu_tanh

_ROOT = math.sqrt(2 / math.pi)


def rising_factor(v: Array) -> Array:
    """Return (1 + tanh z) / 2; 1e3 is the largest argument whose cube fits."""
    v = np.clip(v, -1e3, 1e3)
    return sigmoid(2 * _ROOT * (v + 0.044715 * v**3))


def slope(v: Array) -> Array:
    s = rising_factor(v)
    return np.asarray(s + v * 2 * s * (1 - s) * _ROOT * (1 + 3 * 0.044715 * v * v))


FUNCTION = residual_function(gelu_tanh, rising_factor, slope)
