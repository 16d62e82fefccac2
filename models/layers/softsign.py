"""Softsign."""

from __future__ import annotations

import numpy as np

from tfe_bench.models.kinds.kind import Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node
from tfe_bench.models.kinds.passes import Pass
from tfe_bench.models.layers.smooth import Beside, Bounded
from tfe_bench.protocols.nn import softsign
from tfe_bench.protocols.session.sharing import Shared


class Softsign(Beside, Bounded):
    """x / (1 + |x|)."""

    op = "softsign"
    functions = ("softsign",)
    fractions = (8, 20)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        (v,) = values
        return np.asarray(v / (1 + np.abs(v)))

    def both(self, p: Pass, node: Node, x: Shared) -> tuple[Shared, Shared]:
        return p.ops.call(softsign.softsign_and_rest, x, node.numbers.bits)

    def steepness(self, p: Pass, node: Node, part: Shared) -> Shared:
        """1 / (1 + |x|)^2."""
        return p.ops.truncate(p.ops.mul(part, part), node.numbers.fraction)
