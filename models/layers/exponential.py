"""The exponential, of what is small enough for it."""

from __future__ import annotations

import math

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds.checks import alone, only
from tfe_bench.models.kinds.kind import Kind, Watch, check_room
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Gradients, Pass, brought
from tfe_bench.models.kinds.planning import PRODUCT_BITS, Planner
from tfe_bench.protocols.functions import exponential
from tfe_bench.protocols.session.sharing import Shared

_FRACTIONS = (8, 20)


def _most(f: int) -> float:
    """The largest x, of which e^x still fits what comes behind."""
    own = exponential.form("one-round", 64, f)
    return min(own.high, -own.low, (PRODUCT_BITS - f - 1) * math.log(2))


class Exponential(Kind):
    """e^x."""

    op = "exponential"
    functions = ("exponential",)
    heavy = True
    pointwise = True

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        only(options)
        return alone(given, weights)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(values[0]))

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        f = min(max(planner.most(x)[0], _FRACTIONS[0]), _FRACTIONS[1])
        bound = max(planner.bounds[i] for i in x.inputs)
        if bound > _most(f):
            planner.lost(x, f"takes the exponential of values up to {bound:g}, not {_most(f):g}")
        return Numbers(f)

    def check(self, node: Node) -> None:
        check_room(node)
        if not _FRACTIONS[0] <= node.numbers.fraction <= _FRACTIONS[1]:
            raise UsageError(f"has {node.numbers.fraction} fractional bits, not 8 to 20.")

    def limit(self, node: Node, given: list[int]) -> int | None:
        one = 2.0**node.numbers.fraction
        largest = min(node.moved(given)[0] / one, _most(node.numbers.fraction))
        return int(math.exp(largest) * one * 1.01) + 3

    def watchable(self, node: Node, given: list[int] | None) -> bool:
        f = node.numbers.fraction
        return given is None or node.moved(given)[0] <= _most(f) * 2**f

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        return p.ops.call(exponential.exp, brought(p.ops, values[0], node.numbers.fraction))

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        """Values of a training are below 2^14, and so is e^x of what may come; of less it is 0."""
        y = p.kept[node.output] = p.ops.call(exponential.exp, values[0], clamp="low")
        return y

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """g e^x."""
        return [p.times_slope(node, g)]
