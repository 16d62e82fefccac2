"""The base classes of functions of one value: roots and logarithms, sigmoid, GELU, softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.protocols.nn import gated, series
from tfe_bench.protocols.session.sharing import Shared


class Function(L.Kind):
    """A function of one value, whose protocol supports a range of scales.

    Attributes:
        protocol: (party, x, bits of x or of its comparisons) -> value, at the scale of x.
        fractions: the smallest and the largest number of fractional bits of its values.
        more: bits of its comparisons beyond those of x.
    """

    is_memory_heavy = True
    uses_wide_words = True
    protocol: ClassVar[Callable[..., Shared]]
    fractions: ClassVar[tuple[int, int]] = (8, 24)
    more: ClassVar[int] = 0

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_options(options)
        return L.check_single_input(input_shapes, weights)

    def plan_format(self, planner: L.LayerFormatPlanner, x: L.LayerSpec) -> L.FixedPointFormat:
        f, m = planner.get_input_format(x)
        min_scale, max_scale = self.fractions
        f = min(max(f, min_scale), max_scale)
        return L.FixedPointFormat(f, 0, planner.choose_comparison_bits(x, f, m + self.more))

    def check_format(self, node: L.PlacedLayer) -> None:
        min_scale, max_scale = self.fractions
        if not min_scale <= node.numbers.fraction <= max_scale:
            raise UsageError(
                f"supports {min_scale} to {max_scale} fractional bits. Received: "
                f"{node.numbers.fraction}.",
                code="invalid-fixed-point-format",
            )

    def use_series(self, x: L.LayerSpec) -> L.LayerSpec:
        if x.op not in series.ACTIVATIONS or x.options:
            return x
        return replace(x, op="series", options={"function": x.op})

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        x = L.convert_scale(p.ops, values[0], node.numbers.fraction)
        return p.ops.run_protocol(self.protocol, x, node.numbers.bits)


class SmoothActivation(Function):
    """An activation whose protocol compares values."""

    is_pointwise = True
    fractions = (8, 20)
    more = 1

    def check_format(self, node: L.PlacedLayer) -> None:
        L.check_fractional_bits(node)
        super().check_format(node)


class TrainableSmoothActivation(SmoothActivation):
    """A smooth activation that can be trained."""

    def compute_slope(self, p: L.ForwardContext, node: L.PlacedLayer, y: Shared) -> Shared:
        """Return its derivative where its value is y, at the scale of y."""
        raise NotImplementedError

    def forward_training(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        """Compute the value, and prepare the slope for the backward pass."""
        y = self.forward(p, node, *values)
        if p.is_training:
            p.saved[node.output] = self.compute_slope(p, node, y)
        return y

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        return [p.multiply_slope(node, g)]


@dataclass(frozen=True)
class Curve:
    """A function of x, and the protocols that compute it.

    Attributes:
        value, slope: (party, x, bits of its comparisons) -> the value, and the derivative.
        exact: the function in float64.
    """

    value: Callable[..., Shared]
    slope: Callable[..., Shared]
    exact: Callable[[Array], Array]


class GatedActivation(TrainableSmoothActivation):
    """x times a function of x between 0 and 1; its slope is computed from x, next to the value."""

    curve: ClassVar[Curve]
    fractions = (gated.MIN_BITS, gated.MAX_BITS)

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return np.asarray(self.curve.exact(values[0]))

    def check_format(self, node: L.PlacedLayer) -> None:
        Function.check_format(self, node)  # inputs with more bits lose some

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        return node.align_limits(input_limits)[0] + 2

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        x = L.convert_scale(p.ops, values[0], node.numbers.fraction)
        return p.ops.run_protocol(self.curve.value, x, node.numbers.bits)

    def forward_training(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        if p.is_training:
            (x,) = values
            p.saved[node.output] = p.ops.run_protocol(self.curve.slope, x, node.numbers.bits)
        return self.forward(p, node, *values)


class JointSlopeActivation(TrainableSmoothActivation):
    """An activation whose protocol returns its slope with the value, from the same parts."""

    fractions = (gated.MIN_BITS, gated.MAX_BITS)

    def compute_with_slope(
        self, p: L.ForwardContext, node: L.PlacedLayer, x: Shared
    ) -> tuple[Shared, Shared]:
        """Return the value, and the part that the slope is computed from."""
        raise NotImplementedError

    def finish_slope(self, p: L.ForwardContext, node: L.PlacedLayer, part: Shared) -> Shared:
        """Return the slope."""
        return part

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        return self.compute_with_slope(
            p, node, L.convert_scale(p.ops, values[0], node.numbers.fraction)
        )[0]

    def forward_training(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        y, part = self.compute_with_slope(p, node, values[0])
        if p.is_training:
            p.saved[node.output] = self.finish_slope(p, node, part)
        return y


class BoundedSmoothActivation(SmoothActivation):
    """A smooth activation with values from -1 to 1."""

    is_bounded = True

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        return (1 << node.numbers.fraction) + 2
