"""Hard SiLU (also called hard swish) and sparse plus."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array
from tfe_bench.models.layers.smooth import JointSlopeActivation
from tfe_bench.protocols.nn import ramped
from tfe_bench.protocols.session.sharing import Shared


class HardSilu(JointSlopeActivation):
    """x min(max(x + 3, 0), 6) / 6."""

    op = "hard_silu"
    keras_functions = ("hard_silu",)
    fractions = (8, 20)
    uses_wide_words = False
    ramp: ClassVar[ramped.Ramp] = ramped.HARD_SILU

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        (v,) = values
        return np.asarray(v * np.clip(v + 3, 0, 6) / 6)

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        return node.align_limits(input_limits)[0] + (1 << node.numbers.fraction) + 2

    def compute_with_slope(
        self, p: L.ForwardContext, node: L.PlacedLayer, x: Shared
    ) -> tuple[Shared, Shared]:
        return p.ops.run_protocol(ramped.ramp_with_slope, x, self.ramp, node.numbers.bits)


class SparsePlus(HardSilu):
    """0 up to -1, x from 1 on, (x + 1)^2 / 4 between."""

    op = "sparse_plus"
    keras_functions = ("sparse_plus",)
    ramp = ramped.SPARSE_PLUS

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        (v,) = values
        return np.asarray(np.maximum(v - 1, 0) + np.clip(v + 1, 0, 2) ** 2 / 4)
