"""Tanh."""

from __future__ import annotations

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array
from tfe_bench.models.layers.smooth import BoundedSmoothActivation, TrainableSmoothActivation
from tfe_bench.protocols.nn import activations
from tfe_bench.protocols.session.sharing import Shared


class Tanh(TrainableSmoothActivation, BoundedSmoothActivation):
    """tanh(x)."""

    op = "tanh"
    keras_functions = ("tanh",)
    protocol = staticmethod(activations.tanh)

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return np.asarray(np.tanh(values[0]))

    def compute_slope(self, p: L.ForwardContext, node: L.PlacedLayer, y: Shared) -> Shared:
        """Return 1 - y^2."""
        ops, f = p.ops, node.numbers.fraction
        return ops.add_public(ops.neg(ops.truncate(ops.mul(y, y), f)), 1 << f)
