"""Softsign."""

from __future__ import annotations

import numpy as np

from tfe_bench.models.layers.base.kind import Observer
from tfe_bench.models.layers.base.layer import Array, LayerSpec, PlacedLayer
from tfe_bench.models.layers.base.passes import ForwardContext
from tfe_bench.models.layers.smooth import BoundedSmoothActivation, JointSlopeActivation
from tfe_bench.protocols.nn import softsign
from tfe_bench.protocols.session.sharing import Shared


class Softsign(JointSlopeActivation, BoundedSmoothActivation):
    """x / (1 + |x|)."""

    op = "softsign"
    keras_functions = ("softsign",)
    fractions = (8, 20)

    def compute_plaintext(self, x: LayerSpec, values: list[Array], observe: Observer) -> Array:
        (v,) = values
        return np.asarray(v / (1 + np.abs(v)))

    def compute_with_slope(
        self, p: ForwardContext, node: PlacedLayer, x: Shared
    ) -> tuple[Shared, Shared]:
        return p.ops.run_protocol(softsign.softsign_with_reciprocal, x, node.numbers.bits)

    def finish_slope(self, p: ForwardContext, node: PlacedLayer, part: Shared) -> Shared:
        """Return 1 / (1 + |x|)^2."""
        return p.ops.truncate(p.ops.mul(part, part), node.numbers.fraction)
