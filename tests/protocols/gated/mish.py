"""Mish, which consists of ReLUs, exponentials, polynomials and products."""

from __future__ import annotations

import numpy as np

from tests.protocols.gated import Function
from tests.protocols.operands import Array, sigmoid
from tfe_bench.protocols.nn import mish


def tanh_softplus(v: Array) -> Array:
    return np.asarray(np.tanh(np.logaddexp(0, v)))


def mish_rest(v: Array) -> Array:
    """Return max(v, 0) - mish(v) without a difference of large numbers.

    Above 0, 1 - tanh(softplus) has the order of t^2.
    """
    t = np.exp(-np.abs(v))
    left = 2 * t * t / (1 + 2 * t + 2 * t * t)
    return np.asarray(np.where(v > 0, v * left, -v * (t * t + 2 * t) / (t * t + 2 * t + 2)))


def slope(v: Array) -> Array:
    return np.asarray(tanh_softplus(v) + v * (1 - tanh_softplus(v) ** 2) * sigmoid(v))


FUNCTION = Function(
    mish,
    rest=mish_rest,
    slope=slope,
    ulps=3,
    edges=lambda f: [mish.mish_cutoff_units(f)],
    slope_edge=11,
    widths=(2, 20, 21, 49, 62),
)
