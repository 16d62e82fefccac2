"""Constant weights, added or concatenated: position embeddings, a class token."""

from __future__ import annotations

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.session.sharing import Shared


class ConstantWeights(L.Kind):
    """Weights, the same for each sample and any input. Local."""

    op = "constant"
    is_bounded = True

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_value(len(input_shapes) == 1, "one input", len(input_shapes))
        L.check_options(options)
        L.check_weights(weights, "bias")
        L.check_value(len(weights["bias"]) > 0, "an axis besides the batch", weights["bias"])
        return weights["bias"]

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        bias = np.asarray(x.weights["bias"], np.float64)
        return np.broadcast_to(bias, (len(values[0]), *bias.shape))

    def plan_format(self, planner: L.LayerFormatPlanner, x: L.LayerSpec) -> L.FixedPointFormat:
        f, m = planner.choose_fractional_bits(x.name), planner.get_magnitude(x.name)
        largest = float(np.abs(x.weights["bias"]).max(initial=0.0))
        if f + 1 + m > L.MOST_COMPARED or largest > planner.bounds[x.name]:
            planner.report_unfit(x, f"reaches {max(largest, 2.0**m):g}")
        return L.FixedPointFormat(f, f, max(1, min(f + 1 + m, L.MOST_COMPARED)))

    def check_format(self, node: L.PlacedLayer) -> None:
        numbers = node.numbers
        if numbers.scale != numbers.fraction or not 1 <= numbers.bits <= L.MOST_COMPARED:
            raise UsageError(
                f"does not support {numbers.scale} fractional bits with {numbers.bits} bits.",
                code="invalid-fixed-point-format",
            )

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        return 1 << node.numbers.bits  # (the model owner's weights, as planned)

    def bound_comparison_bits(self, node: L.PlacedLayer, input_limits: list[int]) -> int:
        return node.numbers.bits

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        shape = p.add_batch_axis(node.shape, values[0])
        bias = p.get_weight(node.layer, "bias")
        return p.ops.apply_local(lambda v: shapes.broadcast_to(v, shape), bias, shape)
