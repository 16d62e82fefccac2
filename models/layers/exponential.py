"""The exponential of bounded values."""

from __future__ import annotations

import math

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.protocols.functions import exponential
from tfe_bench.protocols.session.sharing import Shared

_FRACTIONS = (8, 20)


def _largest_exponential_input(f: int) -> float:
    """Return the largest x whose e^x fits the format."""
    exp_form = exponential.choose_exp_form("one-round", 64, f)
    return min(
        exp_form.highest_input, -exp_form.lowest_input, (L.PRODUCT_BITS - f - 1) * math.log(2)
    )


class Exponential(L.Kind):
    """e^x."""

    op = "exponential"
    keras_functions = ("exponential",)
    is_memory_heavy = True
    is_pointwise = True

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_options(options)
        return L.check_single_input(input_shapes, weights)

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(values[0]))

    def plan_format(self, planner: L.LayerFormatPlanner, x: L.LayerSpec) -> L.FixedPointFormat:
        f = min(max(planner.get_input_format(x)[0], _FRACTIONS[0]), _FRACTIONS[1])
        bound = max(planner.bounds[i] for i in x.inputs)
        if bound > _largest_exponential_input(f):
            planner.report_unfit(
                x,
                f"takes the exponential of values up to {bound:g}, not "
                f"{_largest_exponential_input(f):g}",
            )
        return L.FixedPointFormat(f)

    def check_format(self, node: L.PlacedLayer) -> None:
        L.check_fractional_bits(node)
        if not _FRACTIONS[0] <= node.numbers.fraction <= _FRACTIONS[1]:
            raise UsageError(
                f"supports 8 to 20 fractional bits. Received: {node.numbers.fraction}.",
                code="invalid-fixed-point-format",
            )

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        one = 2.0**node.numbers.fraction
        largest = min(
            node.align_limits(input_limits)[0] / one,
            _largest_exponential_input(node.numbers.fraction),
        )
        return int(math.exp(largest) * one * 1.01) + 3

    def can_check_range(self, node: L.PlacedLayer, input_limits: list[int] | None) -> bool:
        f = node.numbers.fraction
        return (
            input_limits is None
            or node.align_limits(input_limits)[0] <= _largest_exponential_input(f) * 2**f
        )

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        return p.ops.run_protocol(
            exponential.exp, L.convert_scale(p.ops, values[0], node.numbers.fraction)
        )

    def forward_training(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        """Compute e^x; it is 0 below the range.

        Values of a training are below 2^14, and so is e^x of valid inputs.
        """
        y = p.saved[node.output] = p.ops.run_protocol(exponential.exp, values[0], clamp="low")
        return y

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        """Return g e^x."""
        return [p.multiply_slope(node, g)]
