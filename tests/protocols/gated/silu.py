"""SiLU."""

from __future__ import annotations

import numpy as np

from tests.protocols.gated import Function
from tests.protocols.operands import Array, sigmoid
from tests.protocols.seeded import merge_masks
from tfe_bench.protocols.nn import activations, silu


def slope(v: Array) -> Array:
    s = sigmoid(v)
    return np.asarray(s * (1 + v * (1 - s)))


FUNCTION = Function(
    silu,
    rest=lambda v: np.abs(v) * sigmoid(-np.abs(v)),
    slope=slope,
    ulps=2,
    edges=lambda f: [activations.saturation_units(f)],
    slope_edge=10,
    widths=(2, 20, 21, 49, 62),
    sites=("silu",),
    exact_beyond=True,
    faults={"it is exchanged under a dealt mask": merge_masks("silu", {3: 0})},
)
