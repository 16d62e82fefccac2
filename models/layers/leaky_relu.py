"""LeakyReLU."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.models.layers.relu import rectify_value
from tfe_bench.protocols.session.sharing import Shared

# Fractional bits of a slope in training.
SLOPE_BITS = 12


class LeakyRelu(L.Kind):
    """x where it is non-negative, alpha x elsewhere."""

    op = "leaky_relu"
    is_pointwise = True
    keras_layers = ("LeakyReLU",)
    keras_functions = ("leaky_relu",)

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        alpha = float(call.layer.negative_slope)
        return r.add_layer(call.name, self.op, call.inputs, None, alpha=alpha)

    def map_activation_options(self, name: str, rank: int, arguments: Options) -> Options:
        return {"alpha": arguments["negative_slope"]}

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_options(options, "alpha")
        alpha = options["alpha"]
        L.check_value(L.is_real(alpha) and abs(alpha) <= 64, "alpha", alpha)
        return L.check_single_input(input_shapes, weights)

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        (v,) = values
        return np.where(v >= 0, v, x.options["alpha"] * v)

    def plan_format(self, planner: L.LayerFormatPlanner, x: L.LayerSpec) -> L.FixedPointFormat:
        return planner.plan_factor(x, x.options["alpha"], L.MOST_FACTOR_BITS)

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        alpha = float(node.layer.options["alpha"])
        return node.align_limits(input_limits)[0] * max(1, math.ceil(abs(alpha))) + 1

    def bound_comparison_bits(self, node: L.PlacedLayer, input_limits: list[int]) -> int:
        return node.align_limits(input_limits)[0].bit_length() + 1

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        (x,) = values
        return self._apply_slope(p, node, x, rectify_value(p, node, x), node.numbers.scale)

    def forward_training(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        positive, p.saved[node.output] = p.ops.relu_with_derivative(values[0])
        return self._apply_slope(p, node, values[0], positive, SLOPE_BITS)

    def _apply_slope(
        self, p: L.ForwardContext, node: L.PlacedLayer, x: Shared, positive: Shared, scale: int
    ) -> Shared:
        """Return positive + alpha (x - positive); only the second term is rounded."""
        slope = round(Fraction(node.layer.options["alpha"]) * (1 << scale))
        low = p.ops.mul_public(p.ops.sub(x, positive), slope, scale)
        return p.ops.add(positive, p.ops.truncate(low, scale))

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        """Return g, times alpha where x is negative."""
        ops, positive = p.ops, p.select_positive(node, g)
        slope = round(Fraction(node.layer.options["alpha"]) * (1 << SLOPE_BITS))
        low = ops.mul_public(p.rescale_gradient(g), slope, SLOPE_BITS)
        return [
            L.add_aligned(ops, low, ops.mul_public(positive, (1 << SLOPE_BITS) - slope, SLOPE_BITS))
        ]
