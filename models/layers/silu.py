"""SiLU, which is also called swish."""

from __future__ import annotations

import numpy as np

from tfe_bench.models.kinds.kind import Watch
from tfe_bench.models.kinds.layer import Array, Layer
from tfe_bench.models.layers.smooth import Gated
from tfe_bench.protocols.nn import silu


class Silu(Gated):
    """x / (1 + e^-x)."""

    op = "silu"
    functions = ("silu",)
    protocol = staticmethod(silu.silu)
    derivative = staticmethod(silu.slope)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        (v,) = values
        return np.asarray(v * np.exp(-np.logaddexp(0, -v)))
