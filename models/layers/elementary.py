"""Functions of values that operations on Keras' tensors have, and layers have not: roots, 1/x, |x|.

Where one has no value (a root or logarithm below 0, 1/0) it is what its protocol gives.
"""

from __future__ import annotations

import math

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds.checks import need
from tfe_bench.models.kinds.kind import Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Gradients, Pass, brought
from tfe_bench.models.kinds.planning import Planner
from tfe_bench.models.layers.add import Broadcast
from tfe_bench.models.layers.smooth import Function
from tfe_bench.protocols.functions import logarithm, reciprocal, roots
from tfe_bench.protocols.ring import relational
from tfe_bench.protocols.session.sharing import Shared

# Fewer fractional bits than these are worth nothing; with more the constants do not fit.
_FEWEST, _MOST = Function.fractions
# f + the bits of a numerator stay below this (reciprocal.divide).
_DIVISION_BITS = 54


class Abs(Function):
    """|x|."""

    op = "abs"
    heavy = False
    wide = False

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return np.abs(values[0])

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        x = brought(p.ops, values[0], node.numbers.fraction)
        return p.ops.call(relational.maximum, x, p.ops.neg(x), node.numbers.bits + 1)

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        """2 max(x, 0) - x."""
        positive, p.kept[node.output] = p.ops.relu_with_derivative(values[0])
        return p.ops.sub(p.ops.times(positive, 2), values[0])

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """g or -g."""
        return [p.ops.sub(p.ops.times(p.where_positive(node, g), 2), p.settled(g))]


class Sqrt(Function):
    """sqrt(x), and 0 for x < 0."""

    op = "sqrt"
    protocol = staticmethod(roots.sqrt)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return np.asarray(np.sqrt(np.maximum(values[0], 0)))

    def limit(self, node: Node, given: list[int]) -> int | None:
        return math.isqrt(node.moved(given)[0] << node.numbers.fraction) + 3


def _inverse(x: Array) -> Array:
    return np.divide(1.0, x, out=np.zeros_like(x), where=x != 0)


class _Inverse(Function):
    """A function that is largest for one ulp."""

    def limit(self, node: Node, given: list[int]) -> int | None:
        return (1 << (2 * node.numbers.fraction)) + 2


class Rsqrt(_Inverse):
    """1 / sqrt(x), and 0 for x <= 0."""

    op = "rsqrt"
    protocol = staticmethod(roots.rsqrt)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return _inverse(np.sqrt(np.maximum(values[0], 0)))


class Reciprocal(_Inverse):
    """1 / x, and 0 for x = 0."""

    op = "reciprocal"

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return _inverse(values[0])

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        x = brought(p.ops, values[0], node.numbers.fraction)
        return p.ops.call(reciprocal.reciprocal, x, node.numbers.bits, signed=True)


class Log(Function):
    """ln(x); for x <= 0 that of the smallest number there is."""

    op = "log"
    protocol = staticmethod(logarithm.log)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return np.asarray(np.log(np.maximum(values[0], 2.0**-16)))

    def limit(self, node: Node, given: list[int]) -> int | None:
        return 64 << node.numbers.fraction


class Divide(Broadcast):
    """x / y, and 0 for y = 0."""

    op = "divide"
    heavy = True
    wide = True
    most = 2

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        found = super().shape(given, options, weights)
        need(given[0] == given[1], "inputs of one shape", given)
        return found

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return values[0] * _inverse(values[1])

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        f = max(planner.of(i) for i in x.inputs)
        above, below = (planner.magnitude(i) for i in x.inputs)
        f = min(f, (_DIVISION_BITS - 1 - above) // 2)
        if f < _FEWEST:
            planner.lost(x, f"divides values up to {2.0**above:g}")
            f = _FEWEST
        return Numbers(f, f + max(above, 0) + 1, planner.width(x, f, below))

    def check(self, node: Node) -> None:
        f, bits = node.numbers.fraction, node.numbers.scale
        if not _FEWEST <= f <= _MOST or not f < bits <= _DIVISION_BITS - f:
            raise UsageError(f"divides {bits} bits at {f} fractional bits.")

    def limit(self, node: Node, given: list[int]) -> int | None:
        return None  # the quotient's own protocol wraps

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        numbers = node.numbers
        x, y = (brought(p.ops, v, numbers.fraction) for v in values)
        return p.ops.call(
            reciprocal.divide, x, y, numbers.bits, signed=True, numerator_bits=numbers.scale
        )
