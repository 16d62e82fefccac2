"""Squareplus."""

from __future__ import annotations

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.models.layers.smooth import Function, TrainableSmoothActivation
from tfe_bench.protocols.functions import reciprocal
from tfe_bench.protocols.nn import squareplus
from tfe_bench.protocols.session.sharing import Shared


class Squareplus(TrainableSmoothActivation):
    """(x + sqrt(x^2 + b)) / 2."""

    op = "squareplus"
    keras_functions = ("squareplus",)
    fractions = (8, 16)

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_options(options, "b")
        b = options["b"]
        L.check_value(
            L.is_real(b) and 2.0**-8 <= b <= squareplus.MAX_OFFSET, "b from 2^-8 to 64", b
        )
        return L.check_single_input(input_shapes, weights)

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        (v,) = values
        return np.asarray((v + np.sqrt(v * v + x.options["b"])) / 2)

    def plan_format(self, planner: L.LayerFormatPlanner, x: L.LayerSpec) -> L.FixedPointFormat:
        f, m = planner.get_input_format(x)
        f = min(max(f, self.fractions[0]), self.fractions[1])
        bits = planner.choose_comparison_bits(x, f, m)
        if bits > squareplus.max_squareplus_bits(f):
            planner.report_unfit(x, f"squares values up to {2.0**m:g}")
        return L.FixedPointFormat(f, 0, bits)

    def check_format(self, node: L.PlacedLayer) -> None:
        Function.check_format(self, node)

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        return node.align_limits(input_limits)[0] + (8 << node.numbers.fraction)

    def bound_comparison_bits(self, node: L.PlacedLayer, input_limits: list[int]) -> int:
        return node.align_limits(input_limits)[0].bit_length() + 1

    def can_check_range(self, node: L.PlacedLayer, input_limits: list[int] | None) -> bool:
        max_bits = squareplus.max_squareplus_bits(node.numbers.fraction)
        return input_limits is None or self.bound_comparison_bits(node, input_limits) <= max_bits

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        x = L.convert_scale(p.ops, values[0], node.numbers.fraction)
        return p.ops.run_protocol(
            squareplus.squareplus, x, node.layer.options["b"], node.numbers.bits
        )

    def forward_training(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        """Compute the value, and the slope, which is y over the root."""
        (x,), ops, bits = values, p.ops, node.numbers.bits
        y = self.forward(p, node, x)
        if p.is_training:
            root, wide = ops.sub(ops.mul_public(y, 2), x), bits + 1
            p.saved[node.output] = ops.run_protocol(
                reciprocal.divide, y, root, wide, numerator_bits=wide
            )
        return y
