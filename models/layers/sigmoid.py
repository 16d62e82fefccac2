"""Sigmoid."""

from __future__ import annotations

import numpy as np

from tfe_bench.models.kinds.kind import Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node
from tfe_bench.models.kinds.passes import Pass
from tfe_bench.models.layers.smooth import Bounded, Sloped
from tfe_bench.protocols.nn import activations
from tfe_bench.protocols.session.sharing import Shared


class Sigmoid(Sloped, Bounded):
    """1 / (1 + e^-x)."""

    op = "sigmoid"
    functions = ("sigmoid",)
    protocol = staticmethod(activations.sigmoid)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return np.asarray(np.exp(-np.logaddexp(0, -values[0])))

    def slope(self, p: Pass, node: Node, y: Shared) -> Shared:
        """y - y^2."""
        ops, f = p.ops, node.numbers.fraction
        return ops.truncate(ops.sub(ops.shifted(y, 2 * f), ops.mul(y, y)), f)
