"""What sigmoid, tanh, GELU, SiLU and softmax have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds.checks import alone, only
from tfe_bench.models.kinds.kind import Kind, check_room
from tfe_bench.models.kinds.layer import Layer, Node, Numbers, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Gradients, Pass, brought
from tfe_bench.models.kinds.planning import Planner
from tfe_bench.protocols.nn import gated
from tfe_bench.protocols.session.sharing import Shared


class Smooth(Kind):
    """An activation whose protocol compares values and has a range of scales.

    Attributes:
        protocol: (party, x, bits of its comparisons) -> value, at the scale of x.
        fractions: the fewest and the most fractional bits of its values.
    """

    heavy = True
    wide = True
    pointwise = True
    protocol: ClassVar[Callable[..., Shared]]
    fractions: ClassVar[tuple[int, int]] = (8, 20)

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        only(options)
        return alone(given, weights)

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        f, m = planner.most(x)
        least, most = self.fractions
        f = min(max(f, least), most)
        return Numbers(f, 0, planner.width(x, f, m + 1))

    def check(self, node: Node) -> None:
        check_room(node)
        self.check_fractions(node)

    def check_fractions(self, node: Node) -> None:
        """Refuses other numbers of fractional bits than the protocol has.

        Raises:
            UsageError: these.
        """
        least, most = self.fractions
        if not least <= node.numbers.fraction <= most:
            raise UsageError(f"has {node.numbers.fraction} fractional bits, not {least} to {most}.")

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        x = brought(p.ops, values[0], node.numbers.fraction)
        return p.ops.call(self.protocol, x, node.numbers.bits)


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


class Gated(Sloped):
    """x times a function of x between 0 and 1: its slope is computed from x, beside the value.

    Attributes:
        derivative: (party, x, bits of its comparisons) -> slope.
    """

    derivative: ClassVar[Callable[..., Shared]]
    fractions = (gated.FEWEST_BITS, gated.MOST_BITS)

    def check(self, node: Node) -> None:
        self.check_fractions(node)  # what comes with more bits loses some

    def limit(self, node: Node, given: list[int]) -> int | None:
        return node.moved(given)[0] + 2

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        if p.learning:
            (x,) = values
            p.kept[node.output] = p.ops.call(self.derivative, x, node.numbers.bits)
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
