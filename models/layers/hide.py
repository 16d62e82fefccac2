"""Masking before a softmax: a mask moves some places of a value far below all others."""

from __future__ import annotations

import math

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.protocols.session.sharing import Shared

# e^-32 of the largest term of a softmax is below 2^-46, less than its last fractional bit.
GAP = 32.0


class SoftmaxMask(L.Kind):
    """x - c (1 - m) of a value and a mask m of 0 and 1, before a softmax.

    Local. c is the model's own number `least`, or less: a value that lies twice the range of x plus
    GAP below x changes no softmax with at least one visible place. So the range stays small for any
    number of the model. With `inverted` the mask is 1 at hidden places.
    """

    op = "hide"
    is_local = True
    is_pointwise = True

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_weights(weights)
        L.check_value(len(input_shapes) == 2, "a value and a mask", len(input_shapes))
        L.check_options(options, "least", "inverted")
        least, inverted = options["least"], options["inverted"]
        L.check_value(L.is_real(least) and least > 0, "a positive number for least", least)
        L.check_value(isinstance(inverted, bool), "true or false for inverted", inverted)
        L.check_value(
            L.broadcast_shapes(input_shapes) == input_shapes[0],
            "a mask that broadcasts to its value",
            input_shapes,
        )
        return input_shapes[0]

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        value, mask = values
        enough = 2 * float(np.abs(value).max(initial=0.0)) + GAP
        hidden = mask if x.options["inverted"] else 1 - mask
        return np.asarray(value - min(x.options["least"], enough) * hidden)

    def plan_format(self, planner: L.LayerFormatPlanner, x: L.LayerSpec) -> L.FixedPointFormat:
        value, base = x.inputs[0], f"{x.inputs[0]}:seen"
        f, _ = planner.get_input_format(x)
        # (places that are already hidden only move further away)
        visible_bound = planner.bounds[base] if base in planner.bounds else planner.bounds[value]
        power = max(0, math.ceil(math.log2(2 * visible_bound + GAP)))
        planner.bounds[f"{x.name}:seen"] = visible_bound
        planner.bounds[x.name] = planner.bounds[value] + min(x.options["least"], 2.0**power)
        if f + 1 + planner.get_magnitude(x.name) > L.PRODUCT_BITS:
            planner.report_unfit(x, f"hides values up to {visible_bound:g}")
        return L.FixedPointFormat(f, power)

    def check_format(self, node: L.PlacedLayer) -> None:
        L.check_fractional_bits(node)
        if node.numbers.fraction + node.numbers.scale > L.PRODUCT_BITS:
            raise UsageError(
                f"subtracts 2^{node.numbers.scale}, which exceeds the range of its value.",
                code="invalid-fixed-point-format",
            )

    def _mask_offset(self, node: L.PlacedLayer) -> int:
        return math.ceil(min(float(node.layer.options["least"]), 2.0**node.numbers.scale))

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        value, mask = node.align_limits(input_limits)
        return value + self._mask_offset(node) * max(mask, 1 << node.numbers.fraction)

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        value, mask = p.align_scales(values, node)
        masked_offset, amount = (
            p.ops.mul_public(mask, self._mask_offset(node)),
            self._mask_offset(node),
        )
        if node.layer.options["inverted"]:
            return p.ops.sub(value, masked_offset)
        return p.ops.add_public(p.ops.add(value, masked_offset), -amount << node.numbers.fraction)
