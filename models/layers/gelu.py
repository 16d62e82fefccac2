"""GELU, in its exact form; Keras' approximation by tanh is another function, and is refused."""

from __future__ import annotations

import math

import numpy as np

from tfe_bench.models.kinds.kind import Watch
from tfe_bench.models.kinds.layer import Array, Layer
from tfe_bench.models.layers.smooth import Gated
from tfe_bench.protocols.nn import gelu

_ERF = np.vectorize(math.erf, [np.float64])


class Gelu(Gated):
    """x Phi(x)."""

    op = "gelu"
    functions = ("gelu",)
    protocol = staticmethod(gelu.gelu)
    derivative = staticmethod(gelu.slope)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        (v,) = values
        return np.asarray(v * (1 + _ERF(v / math.sqrt(2))) / 2)
