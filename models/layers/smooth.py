"""What functions of one value have in common: roots and logarithms, sigmoid, GELU, softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds.checks import check_options, check_single_input
from tfe_bench.models.kinds.kind import Kind, Observer, check_fractional_bits
from tfe_bench.models.kinds.layer import (
    Array,
    FixedPointFormat,
    LayerSpec,
    Options,
    PlacedLayer,
    Shape,
    Shapes,
)
from tfe_bench.models.kinds.passes import ForwardContext, Gradients, convert_scale
from tfe_bench.models.kinds.planning import Planner
from tfe_bench.protocols.nn import gated
from tfe_bench.protocols.session.sharing import Shared


class Function(Kind):
    """A function of one value, whose protocol has a range of scales.

    Attributes:
        protocol: (party, x, bits of x or of its comparisons) -> value, at the scale of x.
        fractions: the fewest and the most fractional bits of its values.
        more: bits of its comparisons beyond those of x.
    """

    is_memory_heavy = True
    uses_wide_words = True
    protocol: ClassVar[Callable[..., Shared]]
    fractions: ClassVar[tuple[int, int]] = (8, 24)
    more: ClassVar[int] = 0

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        check_options(options)
        return check_single_input(input_shapes, weights)

    def plan_format(self, planner: Planner, x: LayerSpec) -> FixedPointFormat:
        f, m = planner.get_input_format(x)
        min_scale, max_scale = self.fractions
        f = min(max(f, min_scale), max_scale)
        return FixedPointFormat(f, 0, planner.choose_comparison_bits(x, f, m + self.more))

    def check_format(self, node: PlacedLayer) -> None:
        min_scale, max_scale = self.fractions
        if not min_scale <= node.numbers.fraction <= max_scale:
            raise UsageError(
                f"has {node.numbers.fraction} fractional bits, not {min_scale} to {max_scale}."
            )

    def forward(self, p: ForwardContext, node: PlacedLayer, *values: Shared) -> Shared:
        x = convert_scale(p.ops, values[0], node.numbers.fraction)
        return p.ops.run_protocol(self.protocol, x, node.numbers.bits)


class Smooth(Function):
    """An activation whose protocol compares values."""

    is_pointwise = True
    fractions = (8, 20)
    more = 1

    def check_format(self, node: PlacedLayer) -> None:
        check_fractional_bits(node)
        super().check_format(node)


class TrainableSmooth(Smooth):
    """Such an activation that is trained."""

    def compute_slope(self, p: ForwardContext, node: PlacedLayer, y: Shared) -> Shared:
        """Its derivative where its value is y, at the scale of y."""
        raise NotImplementedError

    def forward_training(self, p: ForwardContext, node: PlacedLayer, *values: Shared) -> Shared:
        """Its slope is ready when the backward pass asks for it."""
        y = self.forward(p, node, *values)
        if p.is_training:
            p.saved[node.output] = self.compute_slope(p, node, y)
        return y

    def backward(
        self, p: ForwardContext, node: PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> Gradients:
        return [p.multiply_slope(node, g)]


@dataclass(frozen=True)
class Curve:
    """A function of x, and what computes it.

    Attributes:
        value, slope: (party, x, bits of its comparisons) -> it, and its derivative.
        exact: of float64.
    """

    value: Callable[..., Shared]
    slope: Callable[..., Shared]
    exact: Callable[[Array], Array]


class GatedActivation(TrainableSmooth):
    """x times a function of x between 0 and 1: its slope is computed from x, beside the value."""

    curve: ClassVar[Curve]
    fractions = (gated.MIN_BITS, gated.MAX_BITS)

    def compute_plaintext(self, x: LayerSpec, values: list[Array], observe: Observer) -> Array:
        return np.asarray(self.curve.exact(values[0]))

    def check_format(self, node: PlacedLayer) -> None:
        Function.check_format(self, node)  # what comes with more bits loses some

    def bound_output(self, node: PlacedLayer, input_limits: list[int]) -> int | None:
        return node.align_limits(input_limits)[0] + 2

    def forward(self, p: ForwardContext, node: PlacedLayer, *values: Shared) -> Shared:
        x = convert_scale(p.ops, values[0], node.numbers.fraction)
        return p.ops.run_protocol(self.curve.value, x, node.numbers.bits)

    def forward_training(self, p: ForwardContext, node: PlacedLayer, *values: Shared) -> Shared:
        if p.is_training:
            (x,) = values
            p.saved[node.output] = p.ops.run_protocol(self.curve.slope, x, node.numbers.bits)
        return self.forward(p, node, *values)


class JointlySloped(TrainableSmooth):
    """Such an activation whose protocol gives its slope beside the value, of the same parts."""

    fractions = (gated.MIN_BITS, gated.MAX_BITS)

    def compute_with_slope(
        self, p: ForwardContext, node: PlacedLayer, x: Shared
    ) -> tuple[Shared, Shared]:
        """The value, and what the slope comes from."""
        raise NotImplementedError

    def finish_slope(self, p: ForwardContext, node: PlacedLayer, part: Shared) -> Shared:
        """The slope."""
        return part

    def forward(self, p: ForwardContext, node: PlacedLayer, *values: Shared) -> Shared:
        return self.compute_with_slope(
            p, node, convert_scale(p.ops, values[0], node.numbers.fraction)
        )[0]

    def forward_training(self, p: ForwardContext, node: PlacedLayer, *values: Shared) -> Shared:
        y, part = self.compute_with_slope(p, node, values[0])
        if p.is_training:
            p.saved[node.output] = self.finish_slope(p, node, part)
        return y


class BoundedSmooth(Smooth):
    """Such an activation with values from -1 to 1."""

    is_bounded = True

    def bound_output(self, node: PlacedLayer, input_limits: list[int]) -> int | None:
        return (1 << node.numbers.fraction) + 2
