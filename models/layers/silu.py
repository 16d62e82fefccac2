"""SiLU, which is also called swish."""

from __future__ import annotations

import numpy as np

from tfe_bench.models.kinds.kind import Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node
from tfe_bench.models.kinds.passes import Pass
from tfe_bench.models.layers.smooth import Sloped
from tfe_bench.protocols.nn import silu
from tfe_bench.protocols.session.sharing import Shared


class Silu(Sloped):
    """x / (1 + e^-x)."""

    op = "silu"
    functions = ("silu",)
    protocol = staticmethod(silu.silu)
    fractions = (silu.FEWEST_BITS, silu.MOST_BITS)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        (v,) = values
        return np.asarray(v * np.exp(-np.logaddexp(0, -v)))

    def check(self, node: Node) -> None:
        self.check_fractions(node)  # what comes with more bits loses some

    def limit(self, node: Node, given: list[int]) -> int | None:
        return node.moved(given)[0] + 2

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        """Its slope is computed from x, beside the value."""
        (x,), bits = values, node.numbers.bits
        if p.learning:
            p.kept[node.output] = p.ops.call(silu.slope, x, bits)
        return self.forward(p, node, x)
