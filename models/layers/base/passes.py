"""One pass through a model, and the small local operations that its layers share.

Gradients of values have any scale: `gradient` fractional bits after a truncation, those of a weight
more after a product. A layer that multiplies a gradient first rescales it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from tfe_bench.models.layers.base import renamed
from tfe_bench.models.layers.base.layer import LayerSpec, PlacedLayer, Shape
from tfe_bench.models.layers.base.operations import Operations
from tfe_bench.protocols.nn import linear
from tfe_bench.protocols.ring import reductions, shapes
from tfe_bench.protocols.ring.products import BilinearShareProduct, exchange_truncated_sum
from tfe_bench.protocols.ring.range_check import RING, RangeMonitor
from tfe_bench.protocols.session.sharing import Shared

Gradients = Sequence[Shared | None]
# Fractional bits of a public factor that is not a power of two.
FACTOR_BITS = 16
# A gradient below 2^12 in magnitude stays below 2^62 with this many fractional bits.
MOST_BITS = 50


@dataclass(frozen=True)
class TrainingPrecision:
    """The fixed-point format of a training, over Z_2^64.

    Attributes:
        activation: fractional bits of features and of values between layers.
        weight: those of weights, and of SGD's velocities.
        gradient: those of labels, probabilities and gradients of values.
        ring: bits of the values that a ReLU compares: |z| < 2^(ring - 1 - activation).
    """

    activation: int = 16
    weight: int = 24
    gradient: int = 20
    ring: int = 30

    @property
    def product_bits(self) -> int:
        """Fractional bits of a value times a weight."""
        return self.activation + self.weight

    def to_header(self) -> list[int]:
        """Return the fields as a JSON list."""
        return [self.activation, self.weight, self.gradient, self.ring]


@dataclass(eq=False)
class ForwardContext:
    """The state of one pass through a model.

    Attributes:
        ops: the operations that compute the pass or count its cost.
        weights: by key ("layer/weight").
        precision: fixed-point format of a training; predictions have a format for each layer.
        frozen: keys of weights that are not trained.
        public: the public values of a step, by name.
        is_training: whether this is a training step, not an evaluation or a prediction.
        accepts_small_ring: whether the model's output may be over a small ring: its loss consists
            of comparisons.
        saved: values for the backward pass, by a node's output.
        weight_gradients: gradients of weights by key.
        new_statistics: new values by key of weights that change without training (running
            statistics).
        range_checks: the range checks by place; None disables them.
        checks_gradients: whether gradients and their squares are checked as well.
    """

    ops: Operations
    weights: Mapping[str, Shared]
    precision: TrainingPrecision = TrainingPrecision()
    frozen: frozenset[str] = frozenset()
    public: Mapping[str, Any] = field(default_factory=dict)
    is_training: bool = False
    accepts_small_ring: bool = False
    saved: dict[str, Any] = field(default_factory=dict)
    weight_gradients: dict[str, Shared] = field(default_factory=dict)
    new_statistics: dict[str, Shared] = field(default_factory=dict)
    range_checks: dict[str, RangeMonitor] | None = None
    checks_gradients: bool = False

    def get_weight(self, layer: LayerSpec, name: str) -> Shared:
        """Return a layer's weights."""
        return self.weights[f"{layer.name}/{name}"]

    def get_optional_weight(self, layer: LayerSpec, name: str) -> Shared | None:
        """Return a layer's weights, None if it has none of this name."""
        return self.get_weight(layer, name) if name in layer.weights else None

    def is_trained(self, layer: LayerSpec, name: str) -> bool:
        """Return whether a layer has weights of this name that are trained."""
        key = f"{layer.name}/{name}"
        return self.is_training and name in layer.weights and key not in self.frozen

    def truncate_to_small_ring(
        self,
        node: PlacedLayer,
        products: Sequence[BilinearShareProduct],
        addend: Shared | None,
        drop: int,
    ) -> Shared:
        """Truncate a node's products and an addend by 2^drop to the small ring of its comparison.

        With range checks, the ring has one bit more: values below 2^(bits - 2) in ring units are in
        range, and every value in range is right. Rounds: 1.
        """
        ops, bits = self.ops, self.precision.ring
        if self.range_checks is None:
            return ops.sum_truncated_products(products, addend, drop, bits)
        small, own_shares = ops.run_protocol(
            exchange_truncated_sum, "truncated_sum", products, addend, drop, bits + 1, RING
        )
        watch = self.get_range_check(node.output, small)
        ops.run_protocol(
            linear.monitored_lift, watch, small, own_shares, RING - drop, bits + 1, bits
        )
        return small

    def check_magnitude(self, name: str, x: Shared, bits: int) -> None:
        """Check |x| < 2^bits in ring units, over Z_2^64, if ranges are checked.

        x below 3 2^bits may count as in range. Rounds: none.
        """
        if self.range_checks is not None:
            self.ops.run_protocol(linear.monitor_range, self.get_range_check(name, x), x, bits)

    def get_range_check(self, name: str, x: Shared) -> RangeMonitor:
        """Return the range check of a place, which treats the whole batch as one sample."""
        assert self.range_checks is not None
        if name not in self.range_checks:
            self.range_checks[name] = RangeMonitor(self.ops.party, 1, x.dealer)
        return self.range_checks[name]

    def rescale_gradient(self, g: Shared, room: int = 0) -> Shared:
        """Truncate a gradient to the gradients' scale, unless it has room for more bits."""
        f = self.precision.gradient
        if g.fractional_bits <= f or (room and g.fractional_bits + room <= MOST_BITS):
            return g
        return self.ops.truncate(g, g.fractional_bits - f)

    def rescale_activation(self, x: Shared) -> Shared:
        """Truncate a value of a training to the scale of values."""
        drop = x.fractional_bits - self.precision.activation
        return self.ops.truncate(x, drop) if drop else x

    def add_batch_axis(self, shape: Shape, like: Shared) -> Shape:
        """Prepend the batch size of a value to a shape."""
        return (self.ops.get_shape(like)[0], *shape)

    def align_scales(self, xs: Sequence[Shared], node: PlacedLayer) -> list[Shared]:
        """Convert values to the fractional bits of a node's output."""
        return [self.ops.add_fractional_bits(x, node.numbers.fraction) for x in xs]

    def select_positive(self, node: PlacedLayer, g: Shared) -> Shared:
        """Return g where the node's compared value is non-negative, at most at gradient scale."""
        drop = max(0, g.fractional_bits - self.precision.gradient)
        return self.ops.inject_truncated(self.saved[node.output], g, drop, negated=True)

    def multiply_slope(self, node: PlacedLayer, g: Shared) -> Shared:
        """Multiply a gradient by the slope that the node has saved."""
        return self.ops.mul(self.rescale_gradient(g), self.saved[node.output])


def reshape_value(ops: Operations, x: Shared, shape: Shape) -> Shared:
    """Return the elements of x in another shape."""
    return ops.apply_local(lambda v: shapes.reshape(v, shape), x, shape)


def sum_axes(ops: Operations, x: Shared, axes: list[int], keepdims: bool = False) -> Shared:
    """Sum over some axes."""
    old = ops.get_shape(x)
    kept_shape = [1 if i in axes else n for i, n in enumerate(old)]
    shape = tuple(kept_shape) if keepdims else tuple(n for i, n in enumerate(old) if i not in axes)
    return ops.apply_local(lambda v: reductions.reduce_sum(v, axes, keepdims), x, shape)


def sum_to_shape(ops: Operations, g: Shared, target_shape: Shape) -> Shared:
    """Sum g over the axes along which a value of that shape was broadcast."""
    axes = [
        i for i, (a, b) in enumerate(zip(target_shape, ops.get_shape(g), strict=True)) if a != b
    ]
    return sum_axes(ops, g, axes, keepdims=True) if axes else g


def add_aligned(ops: Operations, a: Shared, b: Shared) -> Shared:
    """Return a + b at the larger of their scales."""
    fraction = max(a.fractional_bits, b.fractional_bits)
    return ops.add(ops.add_fractional_bits(a, fraction), ops.add_fractional_bits(b, fraction))


def convert_scale(ops: Operations, x: Shared, fraction: int) -> Shared:
    """Convert x to this many fractional bits: shift, or truncate."""
    if x.fractional_bits <= fraction:
        return ops.add_fractional_bits(x, fraction)
    return ops.truncate(x, x.fractional_bits - fraction)


def find_negative_log2(factor: Fraction) -> int | None:
    """Return k >= 0 with factor = 2^-k, None if there is no such k."""
    one = factor.numerator == 1 and factor.denominator.bit_count() == 1
    return factor.denominator.bit_length() - 1 if one else None


def multiply_public(ops: Operations, x: Shared, factors: Any) -> Shared:
    """Multiply x by public real numbers, with more fractional bits. Local.

    Args:
        factors: a Fraction, or an array of real numbers that broadcasts to x.
    """
    several = np.asarray(factors, object).reshape(-1)
    first = Fraction(several[0])
    if all(f == first for f in several):
        k = find_negative_log2(first)
        if k is not None:
            return ops.mul_public(x, 1, k)
        if first.denominator == 1:
            return ops.mul_public(x, first.numerator)
        return ops.mul_public(x, round(first * (1 << FACTOR_BITS)), FACTOR_BITS)
    rounded = [round(Fraction(f) * (1 << FACTOR_BITS)) for f in several]
    ring = np.asarray(rounded, np.int64).reshape(np.shape(factors))
    return ops.mul_public(x, ring, FACTOR_BITS)


renamed.accept_deprecated_attributes(ForwardContext, renamed.CONTEXT)

if not TYPE_CHECKING:  # (type checkers accept the new names alone)
    __getattr__ = renamed.find_deprecated_names(
        __name__,
        globals(),
        Pass="ForwardContext",
        reshaped="reshape_value",
        summed="sum_axes",
        spread="sum_to_shape",
        joined="add_aligned",
        brought="convert_scale",
        log2="find_negative_log2",
        factored="multiply_public",
    )
