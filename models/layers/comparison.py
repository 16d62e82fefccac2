"""Comparisons with 0: 1 where one holds, else 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from tfe_bench.models.kinds.checks import alone, need, only
from tfe_bench.models.kinds.kind import Kind, Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Pass
from tfe_bench.models.kinds.planning import Planner
from tfe_bench.protocols.ring import convert, logic, relational
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared


def _truth(
    party: Party, x: Shared, bits: int, compare: Callable[..., MaskedBits], inverted: bool
) -> Shared:
    """What a comparison says, as 0 and 1 without fractional bits."""
    found = compare(party, x, bits)
    return convert.b2a(party, logic.invert(found) if inverted else found, x.shape)


class Negative(Kind):
    """Whether x < 0, or with `inverted` x >= 0."""

    op = "negative"
    bounded = True
    compare: ClassVar[Callable[..., MaskedBits]] = staticmethod(relational.negative)

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        only(options, "inverted")
        need(isinstance(options["inverted"], bool), "inverted", options["inverted"])
        return alone(given, weights)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return np.asarray(self.holds(values[0]) != x.options["inverted"], np.float64)

    def holds(self, x: Array) -> Array:
        """In the clear."""
        return np.asarray(x < 0)

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        f, m = planner.most(x)
        return Numbers(0, 0, planner.width(x, f, m))

    def check(self, node: Node) -> None:
        """Its value has no fractional bits, whatever came."""
        need(node.numbers.fraction == 0, "no fractional bits", node.numbers.fraction)

    def compared(self, node: Node, given: list[int]) -> int:
        return given[0].bit_length() + 1

    def limit(self, node: Node, given: list[int]) -> int | None:
        return 1

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        inverted = node.layer.options["inverted"]
        return p.ops.call(_truth, values[0], node.numbers.bits, type(self).compare, inverted)


class Zero(Negative):
    """Whether x = 0, or with `inverted` whether it is not."""

    op = "zero"
    compare = staticmethod(relational.zero)

    def holds(self, x: Array) -> Array:
        return np.asarray(x == 0)
