"""Private numbers that are added to each element, such as a table of positions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.protocols.session.sharing import Shared


class PrivateOffset(L.Kind):
    """x + bias, of x's shape.  Local."""

    op = "offset"
    is_pointwise = True
    has_positional_weights = True

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_options(options)
        L.check_weights(weights, "bias")
        L.check_value(
            len(input_shapes) == 1 and weights["bias"] == input_shapes[0],
            "a bias of its input's shape",
            input_shapes,
        )
        return input_shapes[0]

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return values[0] + np.asarray(x.weights["bias"], np.float64)

    def plan_format(self, planner: L.LayerFormatPlanner, x: L.LayerSpec) -> L.FixedPointFormat:
        f, _ = planner.get_input_format(x)
        f = max(f, planner.fraction)  # a number has bits that its input may lack
        largest = float(np.abs(x.weights["bias"]).max(initial=0.0))
        planner.check_added(x, largest)
        bits = f + max(math.ceil(math.log2(largest + 2.0**-f)), 1 - f)
        if max(bits, f + planner.get_magnitude(x.name)) > L.PRODUCT_BITS:
            planner.report_unfit(x, f"adds numbers up to {largest:g}")
        return L.FixedPointFormat(f, f, min(bits, L.PRODUCT_BITS))

    def check_format(self, node: L.PlacedLayer) -> None:
        L.check_fractional_bits(node)
        if node.numbers.scale != node.numbers.fraction:
            raise UsageError(
                "adds numbers with another scale than its own.", code="invalid-fixed-point-format"
            )

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        """Bound the output; the model owner declares the size of the numbers."""
        return node.align_limits(input_limits)[0] + (1 << node.numbers.bits)

    def can_check_range(self, node: L.PlacedLayer, input_limits: list[int] | None) -> bool:
        return True

    def count_input_bits(self, node: L.PlacedLayer, input_index: int) -> int:
        return node.used_bits

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        (x,) = p.align_scales(values, node)
        x = replace(x, bits=0)  # (as many bits as are read are right)
        return p.ops.add(x, p.get_weight(node.layer, "bias"))
