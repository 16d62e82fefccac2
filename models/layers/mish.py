"""Mish."""

from __future__ import annotations

import numpy as np

from tfe_bench.models.kinds.kind import Watch
from tfe_bench.models.kinds.layer import Array, Layer
from tfe_bench.models.layers.smooth import Gated
from tfe_bench.protocols.nn import mish


class Mish(Gated):
    """x tanh(log(1 + e^x))."""

    op = "mish"
    functions = ("mish",)
    protocol = staticmethod(mish.mish)
    derivative = staticmethod(mish.slope)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        (v,) = values
        return np.asarray(v * np.tanh(np.logaddexp(0, v)))
