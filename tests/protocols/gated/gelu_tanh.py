"""GELU by tanh, at the sites of GELU."""

from __future__ import annotations

import math

import numpy as np

from tests.protocols.gated import Function
from tests.protocols.operands import Array, sigmoid
from tfe_bench.protocols.nn import gelu_tanh

_ROOT = math.sqrt(2 / math.pi)


def rising(v: Array) -> Array:
    """(1 + tanh z) / 2, 1e3 being as far as floats take its cube."""
    v = np.clip(v, -1e3, 1e3)
    return sigmoid(2 * _ROOT * (v + 0.044715 * v**3))


def slope(v: Array) -> Array:
    s = rising(v)
    return np.asarray(s + v * 2 * s * (1 - s) * _ROOT * (1 + 3 * 0.044715 * v * v))


FUNCTION = Function(
    gelu_tanh,
    rest=lambda v: np.abs(v) * rising(-np.abs(v)),
    slope=slope,
    ulps=3,
    edges=lambda f: [gelu_tanh.bump(f).step, 2 * gelu_tanh.bump(f).step],
    slope_edge=5,
    widths=(2, 19, 20, 47, 62),
)
