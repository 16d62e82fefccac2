"""Constant weights, added or concatenated: position embeddings, a class token."""

from __future__ import annotations

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.layers.base.checks import check_options, check_value, check_weights
from tfe_bench.models.layers.base.kind import Kind, Observer
from tfe_bench.models.layers.base.layer import (
    Array,
    FixedPointFormat,
    LayerSpec,
    Options,
    PlacedLayer,
    Shape,
    Shapes,
)
from tfe_bench.models.layers.base.passes import ForwardContext
from tfe_bench.models.layers.base.planning import MOST_COMPARED, LayerFormatPlanner
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.session.sharing import Shared


class ConstantWeights(Kind):
    """Weights, the same for each sample and any input. Local."""

    op = "constant"
    is_bounded = True

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        check_value(len(input_shapes) == 1, "one input", len(input_shapes))
        check_options(options)
        check_weights(weights, "bias")
        check_value(len(weights["bias"]) > 0, "an axis besides the batch", weights["bias"])
        return weights["bias"]

    def compute_plaintext(self, x: LayerSpec, values: list[Array], observe: Observer) -> Array:
        bias = np.asarray(x.weights["bias"], np.float64)
        return np.broadcast_to(bias, (len(values[0]), *bias.shape))

    def plan_format(self, planner: LayerFormatPlanner, x: LayerSpec) -> FixedPointFormat:
        f, m = planner.choose_fractional_bits(x.name), planner.get_magnitude(x.name)
        largest = float(np.abs(x.weights["bias"]).max(initial=0.0))
        if f + 1 + m > MOST_COMPARED or largest > planner.bounds[x.name]:
            planner.report_unfit(x, f"reaches {max(largest, 2.0**m):g}")
        return FixedPointFormat(f, f, max(1, min(f + 1 + m, MOST_COMPARED)))

    def check_format(self, node: PlacedLayer) -> None:
        numbers = node.numbers
        if numbers.scale != numbers.fraction or not 1 <= numbers.bits <= MOST_COMPARED:
            raise UsageError(
                f"does not support {numbers.scale} fractional bits with {numbers.bits} bits.",
                code="invalid-fixed-point-format",
            )

    def bound_output(self, node: PlacedLayer, input_limits: list[int]) -> int | None:
        return 1 << node.numbers.bits  # (the model owner's weights, as planned)

    def bound_comparison_bits(self, node: PlacedLayer, input_limits: list[int]) -> int:
        return node.numbers.bits

    def forward(self, p: ForwardContext, node: PlacedLayer, *values: Shared) -> Shared:
        shape = p.add_batch_axis(node.shape, values[0])
        bias = p.get_weight(node.layer, "bias")
        return p.ops.apply_local(lambda v: shapes.broadcast_to(v, shape), bias, shape)
