"""What functions of one value have in common: roots and logarithms, sigmoid, GELU, softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds.checks import alone, only
from tfe_bench.models.kinds.kind import Kind, Watch, check_room
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Gradients, Pass, brought
from tfe_bench.models.kinds.planning import Planner
from tfe_bench.protocols.nn import gated
from tfe_bench.protocols.session.sharing import Shared


class Function(Kind):
    """A function of one value, whose protocol has a range of scales.

    Attributes:
        protocol: (party, x, bits of x or of its comparisons) -> value, at the scale of x.
        fractions: the fewest and the most fractional bits of its values.
        more: bits of its comparisons beyond those of x.
    """

    heavy = True
    wide = True
    protocol: ClassVar[Callable[..., Shared]]
    fractions: ClassVar[tuple[int, int]] = (8, 24)
    more: ClassVar[int] = 0

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        only(options)
        return alone(given, weights)

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        f, m = planner.most(x)
        least, most = self.fractions
        f = min(max(f, least), most)
        return Numbers(f, 0, planner.width(x, f, m + self.more))

    def check(self, node: Node) -> None:
        least, most = self.fractions
        if not least <= node.numbers.fraction <= most:
            raise UsageError(f"has {node.numbers.fraction} fractional bits, not {least} to {most}.")

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        x = brought(p.ops, values[0], node.numbers.fraction)
        return p.ops.call(self.protocol, x, node.numbers.bits)


class Smooth(Function):
    """An activation whose protocol compares values."""

    pointwise = True
    fractions = (8, 20)
    more = 1

    def check(self, node: Node) -> None:
        check_room(node)
        super().check(node)


class Sloped(Smooth):
    """Such an activation that is trained."""

    def slope(self, p: Pass, node: Node, y: Shared) -> Shared:
        """Its derivative where its value is y, at the scale of y."""
        raise NotImplementedError

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        """Its slope is ready when the backward pass asks for it."""
        y = self.forward(p, node, *values)
        if p.learning:
            p.kept[node.output] = self.slope(p, node, y)
        return y

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        return [p.times_slope(node, g)]


@dataclass(frozen=True)
class Curve:
    """A function of x, and what computes it.

    Attributes:
        value, slope: (party, x, bits of its comparisons) -> it, and its derivative.
        exact: of float64.
    """

    value: Callable[..., Shared]
    slope: Callable[..., Shared]
    exact: Callable[[Array], Array]


class Gated(Sloped):
    """x times a function of x between 0 and 1: its slope is computed from x, beside the value."""

    curve: ClassVar[Curve]
    fractions = (gated.FEWEST_BITS, gated.MOST_BITS)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return np.asarray(self.curve.exact(values[0]))

    def check(self, node: Node) -> None:
        Function.check(self, node)  # what comes with more bits loses some

    def limit(self, node: Node, given: list[int]) -> int | None:
        return node.moved(given)[0] + 2

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        x = brought(p.ops, values[0], node.numbers.fraction)
        return p.ops.call(self.curve.value, x, node.numbers.bits)

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        if p.learning:
            (x,) = values
            p.kept[node.output] = p.ops.call(self.curve.slope, x, node.numbers.bits)
        return self.forward(p, node, *values)


class Beside(Sloped):
    """Such an activation whose protocol gives its slope beside the value, of the same parts."""

    fractions = (gated.FEWEST_BITS, gated.MOST_BITS)

    def both(self, p: Pass, node: Node, x: Shared) -> tuple[Shared, Shared]:
        """The value, and what the slope comes from."""
        raise NotImplementedError

    def steepness(self, p: Pass, node: Node, part: Shared) -> Shared:
        """The slope."""
        return part

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        return self.both(p, node, brought(p.ops, values[0], node.numbers.fraction))[0]

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        y, part = self.both(p, node, values[0])
        if p.learning:
            p.kept[node.output] = self.steepness(p, node, part)
        return y


class Bounded(Smooth):
    """Such an activation with values from -1 to 1."""

    bounded = True

    def limit(self, node: Node, given: list[int]) -> int | None:
        return (1 << node.numbers.fraction) + 2
