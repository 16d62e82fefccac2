"""Softsign."""

from __future__ import annotations

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array
from tfe_bench.models.layers.smooth import BoundedSmoothActivation, JointSlopeActivation
from tfe_bench.protocols.nn import softsign
from tfe_bench.protocols.session.sharing import Shared


class Softsign(JointSlopeActivation, BoundedSmoothActivation):
    """x / (1 + |x|)."""

    op = "softsign"
    keras_functions = ("softsign",)
    fractions = (8, 20)

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        (v,) = values
        return np.asarray(v / (1 + np.abs(v)))

    def compute_with_slope(
        self, p: L.ForwardContext, node: L.PlacedLayer, x: Shared
    ) -> tuple[Shared, Shared]:
        return p.ops.run_protocol(softsign.softsign_with_reciprocal, x, node.numbers.bits)

    def finish_slope(self, p: L.ForwardContext, node: L.PlacedLayer, part: Shared) -> Shared:
        """Return 1 / (1 + |x|)^2."""
        return p.ops.truncate(p.ops.mul(part, part), node.numbers.fraction)
