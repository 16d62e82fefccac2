"""Softplus, which consists of ReLUs, an exponential and a polynomial."""

from __future__ import annotations

import numpy as np

from tests.protocols.gated import Function
from tests.protocols.operands import sigmoid
from tfe_bench.protocols.nn import activations, softplus

FUNCTION = Function(
    softplus,
    rest=lambda v: -np.log1p(np.exp(-np.abs(v))),
    slope=sigmoid,
    ulps=2,
    edges=lambda f: [activations.saturation_units(f)],
    slope_edge=8,
    widths=(2, 20, 21, 49, 62),
    slope_fitted=False,
)
