"""LeakyReLU."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from tfe_bench.models.kinds.checks import alone, need, only, real
from tfe_bench.models.kinds.kind import Kind, Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Gradients, Pass, joined
from tfe_bench.models.kinds.planning import MOST_FACTOR_BITS, Planner
from tfe_bench.models.kinds.reading import Call, Reader
from tfe_bench.models.layers.relu import rectified
from tfe_bench.protocols.session.sharing import Shared

# Fractional bits of a slope in training.
SLOPE_BITS = 12


class LeakyRelu(Kind):
    """x where it is not negative, alpha x where it is."""

    op = "leaky_relu"
    pointwise = True
    keras = ("LeakyReLU",)
    functions = ("leaky_relu",)

    def read(self, r: Reader, call: Call) -> str:
        alpha = float(call.layer.negative_slope)
        return r.emit(call.name, self.op, call.inputs, None, alpha=alpha)

    def function(self, name: str, rank: int, given: Options) -> Options:
        return {"alpha": given["negative_slope"]}

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        only(options, "alpha")
        alpha = options["alpha"]
        need(real(alpha) and abs(alpha) <= 64, "alpha", alpha)
        return alone(given, weights)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        (v,) = values
        return np.where(v >= 0, v, x.options["alpha"] * v)

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        return planner.factor(x, x.options["alpha"], MOST_FACTOR_BITS)

    def limit(self, node: Node, given: list[int]) -> int | None:
        alpha = float(node.layer.options["alpha"])
        return node.moved(given)[0] * max(1, math.ceil(abs(alpha))) + 1

    def compared(self, node: Node, given: list[int]) -> int:
        return node.moved(given)[0].bit_length() + 1

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        (x,) = values
        return self._bent(p, node, x, rectified(p, node, x), node.numbers.scale)

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        positive, p.kept[node.output] = p.ops.relu_with_derivative(values[0])
        return self._bent(p, node, values[0], positive, SLOPE_BITS)

    def _bent(self, p: Pass, node: Node, x: Shared, positive: Shared, scale: int) -> Shared:
        """positive + alpha (x - positive), of which the second part alone is rounded."""
        slope = round(Fraction(node.layer.options["alpha"]) * (1 << scale))
        low = p.ops.times(p.ops.sub(x, positive), slope, scale)
        return p.ops.add(positive, p.ops.truncate(low, scale))

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """g, times alpha where x is negative."""
        ops, positive = p.ops, p.where_positive(node, g)
        slope = round(Fraction(node.layer.options["alpha"]) * (1 << SLOPE_BITS))
        low = ops.times(p.settled(g), slope, SLOPE_BITS)
        return [joined(ops, low, ops.times(positive, (1 << SLOPE_BITS) - slope, SLOPE_BITS))]
