"""GELU, in its exact form; Keras' approximation by tanh is another function, and is refused."""

from __future__ import annotations

import math

import numpy as np

from tfe_bench.models.kinds.kind import Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node
from tfe_bench.models.kinds.passes import Pass
from tfe_bench.models.layers.smooth import Sloped
from tfe_bench.protocols.nn import gelu
from tfe_bench.protocols.session.sharing import Shared

_ERF = np.vectorize(math.erf, [np.float64])


class Gelu(Sloped):
    """x Phi(x)."""

    op = "gelu"
    functions = ("gelu",)
    protocol = staticmethod(gelu.gelu)
    fractions = (gelu.FEWEST_BITS, gelu.MOST_BITS)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        (v,) = values
        return np.asarray(v * (1 + _ERF(v / math.sqrt(2))) / 2)

    def check(self, node: Node) -> None:
        self.check_fractions(node)  # what comes with more bits loses some

    def limit(self, node: Node, given: list[int]) -> int | None:
        return node.moved(given)[0] + 2

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        """Its slope is computed from x, beside the value."""
        (x,), bits = values, node.numbers.bits
        if p.learning:
            p.kept[node.output] = p.ops.call(gelu.slope, x, bits)
        return self.forward(p, node, x)
