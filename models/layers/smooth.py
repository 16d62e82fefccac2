"""What sigmoid, tanh and softmax have in common."""

from __future__ import annotations

from typing import ClassVar

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds.checks import alone, only
from tfe_bench.models.kinds.kind import Kind, check_room
from tfe_bench.models.kinds.layer import Layer, Node, Numbers, Options, Shape, Shapes
from tfe_bench.models.kinds.planning import Planner


class Smooth(Kind):
    """An activation whose protocol compares values and has a range of scales.

    Attributes:
        fractions: the fewest and the most fractional bits of its values.
    """

    heavy = True
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


class Bounded(Smooth):
    """Such an activation with values from -1 to 1."""

    bounded = True

    def limit(self, node: Node, given: list[int]) -> int | None:
        return (1 << node.numbers.fraction) + 2
