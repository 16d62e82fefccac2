"""GELU."""

from __future__ import annotations

import math

import numpy as np

from tests.protocols.gated import Function
from tests.protocols.operands import Array, normal
from tests.protocols.seeded import bare, merged
from tfe_bench.protocols.nn import gelu


def slope(v: Array) -> Array:
    return np.asarray(normal(v) + v * np.exp(-v * v / 2) / math.sqrt(2 * math.pi))


FUNCTION = Function(
    gelu,
    rest=lambda v: np.abs(v) * normal(-np.abs(v)),
    slope=slope,
    ulps=3,
    edges=lambda f: [gelu.bump(f).step, 2 * gelu.bump(f).step],
    slope_edge=5,
    widths=(2, 19, 20, 47, 62),
    sites=("gelu_parts", "gelu"),
    faults={
        "its parts are exchanged under a dealt mask": merged("gelu_parts", {9: 0}),
        "it is exchanged under a dealt mask": merged("gelu", {4: 0}),
        "E1 says its share as it is": bare("gelu", "is_e1"),
    },
)
