"""Tanh."""

from __future__ import annotations

import numpy as np

from tfe_bench.models.kinds.kind import Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node
from tfe_bench.models.kinds.passes import Pass
from tfe_bench.models.layers.smooth import Bounded, Sloped
from tfe_bench.protocols.nn import activations
from tfe_bench.protocols.session.sharing import Shared


class Tanh(Sloped, Bounded):
    """tanh(x)."""

    op = "tanh"
    functions = ("tanh",)
    protocol = staticmethod(activations.tanh)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return np.asarray(np.tanh(values[0]))

    def slope(self, p: Pass, node: Node, y: Shared) -> Shared:
        """1 - y^2."""
        ops, f = p.ops, node.numbers.fraction
        return ops.add_public(ops.neg(ops.truncate(ops.mul(y, y), f)), 1 << f)
