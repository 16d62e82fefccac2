"""The index of the largest logit as a one-hot row, the next token: greedy or sampled."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.models.layers.remembered import DecodingKind
from tfe_bench.models.layers.sum import SumOfProducts
from tfe_bench.protocols.nn import linear
from tfe_bench.protocols.order import gumbel, winner
from tfe_bench.protocols.ring.products import BilinearShareProduct, exchange_truncated_sum
from tfe_bench.protocols.session.sharing import Shared

# Key in ForwardContext.public: the dealer's noise for logits, [rows or more, channels], at their
# scale.
NOISE: Final = "noise"
# Fractional bits of logits up to 2^_USUAL, and of noise at temperature 1; smaller logits get more,
# up to the bits that are compared at once.
_FRACTION: Final = 12
_USUAL: Final = 4
_MOST_BITS: Final = 40
_MOST_DROPPED: Final = 48


class GreedyToken(SumOfProducts, DecodingKind):
    """A sum that is opened in a small ring Z_2^k, and the index of its largest channel.

    Its format: `fraction` is that of the row, `scale` that of the sum, `bits` is k. Its options are
    those of the sum, `fraction`, the fractional bits of the logits, and `noisy`: whether the dealer
    adds noise.
    """

    op = "greedy"

    @classmethod
    def from_sum(
        cls, x: L.LayerSpec, numbers: L.FixedPointFormat, fraction: int, noise: float = 0.0
    ) -> tuple[L.LayerSpec, L.FixedPointFormat]:
        """Return the choice among the values of a sum, and its fixed-point format.

        Args:
            numbers: format of the sum, |v| < 2^(bits - 1) ring units.
            fraction: fractional bits of the row.
            noise: the largest noise that the dealer adds to a logit; 0 for none.

        Raises:
            UsageError: the sum leaves no room to compare its values.
        """
        magnitude = numbers.bits - 1 - numbers.fraction
        fine = _FRACTION + max(0, _USUAL - magnitude)
        if noise:
            magnitude = math.ceil(math.log2(2.0**magnitude + noise))
            fine = max(fine, _FRACTION + math.ceil(math.log2(gumbel.MAX_MAGNITUDE / noise)))
        # (differences fit, and so do the extended values of the range check)
        logit_bits = min(fine, numbers.scale - 1, _MOST_BITS - 2 - magnitude)
        bits = logit_bits + magnitude + 2
        drop = numbers.scale - logit_bits
        if not numbers.bits or logit_bits < 1 or drop > _MOST_DROPPED or drop + bits > 64:
            raise UsageError(
                f"The logits of {x.name!r} do not fit a comparison. Received: values up to "
                f"2^{magnitude} with {numbers.scale} fractional bits. Convert the model again, "
                "with "
                "samples.",
                code="invalid-fixed-point-format",
                operation=x.name,
            )
        options = {**x.options, "fraction": logit_bits, "noisy": noise > 0}
        layer = replace(x, op=cls.op, options=options)
        reach = numbers.reach
        if reach and noise:
            noise_units = math.ceil(noise * 2.0**numbers.scale)
            reach = ((1 << (reach - 1)) + noise_units).bit_length() + 1
        return layer, L.FixedPointFormat(fraction, numbers.scale, max(bits, 3), reach=reach)

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        rest = {k: v for k, v in options.items() if k not in ("fraction", "noisy")}
        L.check_value(
            type(options.get("noisy")) is bool, "true or false for noisy", options.get("noisy")
        )
        L.check_value(
            L.is_whole(options.get("fraction")),
            "fractional bits of logits",
            options.get("fraction"),
        )
        L.check_value(
            options.get("activation") == "none", "no activation", options.get("activation")
        )
        return super().infer_shape(input_shapes, rest, weights)

    def describe_layer(self, x: L.LayerSpec) -> str:
        return "largest of " + super().describe_layer(x)

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        logits = super().compute_plaintext(x, values, observe)
        return np.asarray(np.eye(logits.shape[-1])[logits.argmax(-1)])

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        return 1 << node.numbers.fraction

    def can_check_range(self, node: L.PlacedLayer, input_limits: list[int] | None) -> bool:
        return True

    def count_dropped_bits(self, node: L.PlacedLayer) -> int:
        return node.numbers.scale - int(node.layer.options["fraction"])

    def count_input_bits(self, node: L.PlacedLayer, input_index: int) -> int:
        least = self.count_dropped_bits(node) + node.numbers.bits
        return self.count_checked_bits(node, least) if node.is_range_checked else least

    def _compute_sum(
        self,
        p: L.ForwardContext,
        node: L.PlacedLayer,
        products: list[BilinearShareProduct],
        addend: Shared | None,
    ) -> Shared:
        ops, numbers = p.ops, node.numbers
        drop = self.count_dropped_bits(node)
        least, noise = drop + numbers.bits, None
        checked_bits = (
            self.count_checked_bits(node, least) if ops.range_check is not None else least
        )
        if node.layer.options["noisy"] and ops.party.index == products[0].x.dealer:
            rows = ops.get_shape(products[0].x)[0]
            noise = p.public[NOISE][:rows]
        small, shares = ops.run_protocol(
            exchange_truncated_sum,
            "truncated_sum",
            products,
            addend,
            drop,
            numbers.bits,
            checked_bits,
            noise,
        )
        if ops.range_check is not None:  # (the choice does not wait for the check)
            remaining_bits = numbers.bits
            ops.run_protocol(
                linear.monitored_lift,
                ops.range_check,
                small,
                shares,
                checked_bits - drop,
                remaining_bits,
            )
        row = ops.run_protocol(winner.argmax_one_hot, small, ops.setting.pooling_profile)
        return ops.add_fractional_bits(replace(row, fractional_bits=0), numbers.fraction)
