"""Comparisons with 0: 1 if true, else 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.protocols.ring import convert, logic, relational
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared


def _compare_activation_to_zero(
    party: Party, x: Shared, bits: int, compare: Callable[..., MaskedBits], inverted: bool
) -> Shared:
    """Return the result of a comparison as 0 and 1 without fractional bits."""
    masked_bits = compare(party, x, bits)
    return convert.b2a(party, logic.invert_bits(masked_bits) if inverted else masked_bits, x.shape)


class IsNegative(L.Kind):
    """[x < 0], or with `inverted` [x >= 0]."""

    op = "negative"
    is_bounded = True
    compare: ClassVar[Callable[..., MaskedBits]] = staticmethod(relational.is_negative)

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_options(options, "inverted")
        L.check_value(isinstance(options["inverted"], bool), "inverted", options["inverted"])
        return L.check_single_input(input_shapes, weights)

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return np.asarray(self.compare_plaintext(values[0]) != x.options["inverted"], np.float64)

    def compare_plaintext(self, x: Array) -> Array:
        """Compare plaintext values."""
        return np.asarray(x < 0)

    def plan_format(self, planner: L.LayerFormatPlanner, x: L.LayerSpec) -> L.FixedPointFormat:
        f, m = planner.get_input_format(x)
        return L.FixedPointFormat(0, 0, planner.choose_comparison_bits(x, f, m))

    def check_format(self, node: L.PlacedLayer) -> None:
        """Refuse a format with fractional bits, whatever the input has."""
        L.check_value(node.numbers.fraction == 0, "no fractional bits", node.numbers.fraction)

    def bound_comparison_bits(self, node: L.PlacedLayer, input_limits: list[int]) -> int:
        return input_limits[0].bit_length() + 1

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        return 1

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        inverted = node.layer.options["inverted"]
        return p.ops.run_protocol(
            _compare_activation_to_zero, values[0], node.numbers.bits, type(self).compare, inverted
        )


class IsZero(IsNegative):
    """[x = 0], or with `inverted` [x != 0]."""

    op = "zero"
    compare = staticmethod(relational.is_zero)

    def compare_plaintext(self, x: Array) -> Array:
        return np.asarray(x == 0)
