"""Sigmoid."""

from __future__ import annotations

import numpy as np

from tfe_bench.models.kinds.kind import Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node
from tfe_bench.models.kinds.passes import Gradients, Pass
from tfe_bench.models.layers.smooth import Bounded
from tfe_bench.protocols.nn import activations
from tfe_bench.protocols.session.sharing import Shared


class Sigmoid(Bounded):
    """1 / (1 + e^-x)."""

    op = "sigmoid"
    functions = ("sigmoid",)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return np.asarray(np.exp(-np.logaddexp(0, -values[0])))

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        f, bits = node.numbers.fraction, node.numbers.bits
        x = p.ops.shifted(values[0], f)
        return p.ops.call(activations.sigmoid, x, bits)

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        """Its slope y - y^2 is ready when the backward pass asks for it."""
        y, ops, f = self.forward(p, node, *values), p.ops, node.numbers.fraction
        if p.learning:
            slope = ops.sub(ops.shifted(y, 2 * f), ops.mul(y, y))
            p.kept[node.output] = ops.truncate(slope, f)
        return y

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        return [p.times_slope(node, g)]
