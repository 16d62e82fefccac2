"""GELU."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from tests.protocols.gated import Function
from tests.protocols.operands import Array, normal_cdf
from tests.protocols.seeded import drop_mask, merge_masks
from tfe_bench.protocols.nn import gelu


def slope(v: Array) -> Array:
    return np.asarray(normal_cdf(v) + v * np.exp(-v * v / 2) / math.sqrt(2 * math.pi))


def residual_function(
    gelu: ModuleType, part: Callable[[Array], Array], slope: Callable[[Array], Array], **more: Any
) -> Function:
    """Return a GELU in one of its forms: x times a factor that rises from 0 to 1."""
    return Function(
        gelu,
        rest=lambda v: np.abs(v) * part(-np.abs(v)),
        slope=slope,
        ulps=3,
        edges=lambda f: [gelu.residual_for_scale(f).step, 2 * gelu.residual_for_scale(f).step],
        slope_edge=5,
        widths=(2, 19, 20, 47, 62),
        **more,
    )


FUNCTION = residual_function(
    gelu,
    normal_cdf,
    slope,
    sites=("gelu_parts", "gelu"),
    faults={
        "its parts are exchanged under a dealt mask": merge_masks("gelu_parts", {9: 0}),
        "it is exchanged under a dealt mask": merge_masks("gelu", {4: 0}),
        "E1 says its share as it is": drop_mask("gelu", "is_e1"),
    },
)
