"""Tanh."""

from __future__ import annotations

import numpy as np

from tfe_bench.models.kinds.kind import Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node
from tfe_bench.models.kinds.passes import Gradients, Pass
from tfe_bench.models.layers.smooth import Bounded
from tfe_bench.protocols.nn import activations
from tfe_bench.protocols.session.sharing import Shared


class Tanh(Bounded):
    """tanh(x)."""

    op = "tanh"
    functions = ("tanh",)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return np.asarray(np.tanh(values[0]))

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        f, bits = node.numbers.fraction, node.numbers.bits
        x = p.ops.shifted(values[0], f)
        return p.ops.call(activations.tanh, x, bits)

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        """Its slope is 1 - y^2."""
        y, ops, f = self.forward(p, node, *values), p.ops, node.numbers.fraction
        if p.learning:
            square = ops.truncate(ops.mul(y, y), f)
            p.kept[node.output] = ops.add_public(ops.neg(square), 1 << f)
        return y

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        return [p.times_slope(node, g)]
