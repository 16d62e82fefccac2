"""Sigmoid."""

from __future__ import annotations

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array
from tfe_bench.models.layers.smooth import BoundedSmoothActivation, TrainableSmoothActivation
from tfe_bench.protocols.nn import activations
from tfe_bench.protocols.session.sharing import Shared


class Sigmoid(TrainableSmoothActivation, BoundedSmoothActivation):
    """1 / (1 + e^-x)."""

    op = "sigmoid"
    keras_functions = ("sigmoid",)
    protocol = staticmethod(activations.sigmoid)

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return np.asarray(np.exp(-np.logaddexp(0, -values[0])))

    def compute_slope(self, p: L.ForwardContext, node: L.PlacedLayer, y: Shared) -> Shared:
        """Return y - y^2."""
        ops, f = p.ops, node.numbers.fraction
        return ops.truncate(ops.sub(ops.add_fractional_bits(y, 2 * f), ops.mul(y, y)), f)
