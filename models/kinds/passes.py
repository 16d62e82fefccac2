"""One pass through a model, and the small moves that its layers share.

Gradients of values travel at any scale: at `gradient` bits behind a truncation, with those of a
weight more behind a product.  Who multiplies one by something brings it back first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from tfe_bench.models.kinds.layer import LayerSpec, PlacedLayer, Shape
from tfe_bench.models.kinds.operations import Operations
from tfe_bench.protocols.nn import linear
from tfe_bench.protocols.ring import reductions, shapes
from tfe_bench.protocols.ring.products import Product, exchange_truncated_sum
from tfe_bench.protocols.ring.range_check import RING, RangeMonitor
from tfe_bench.protocols.session.sharing import Shared

Gradients = Sequence[Shared | None]
# Of a public factor that is no power of two.
FACTOR_BITS = 16
# A gradient below 2^12 in magnitude stays below 2^62 with so many fractional bits.
MOST_BITS = 50


@dataclass(frozen=True)
class Precision:
    """The fixed point of a training, over Z_2^64.

    Attributes:
        activation: fractional bits of features and of values between layers.
        weight: of weights, and of SGD's velocities.
        gradient: of labels, probabilities and gradients of values.
        ring: bits of what a ReLU compares: |z| < 2^(ring - 1 - activation).
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
        """As JSON holds it."""
        return [self.activation, self.weight, self.gradient, self.ring]


@dataclass(eq=False)
class ForwardContext:
    """One pass through a model.

    Attributes:
        ops: that compute or count it.
        weights: by key ("layer/weight").
        precision: of a training; predictions have their own numbers for each layer.
        frozen: keys of weights that are not trained.
        public: a step's public values, by name.
        learning: whether this is a training step, not an evaluation or a prediction.
        small: whether the model's output may be of a small ring: its loss is made of comparisons.
        kept: by a node's output, what its backward pass wants.
        found: gradients of weights by key.
        renewed: new values by key of what is not trained but changes (running statistics).
        watches: of places where a value could leave its range, by their names; None where nothing
            is watched.
        steep: whether gradients and their squares are watched as well.
    """

    ops: Operations
    weights: Mapping[str, Shared]
    precision: Precision = Precision()
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
        """A layer's weights."""
        return self.weights[f"{layer.name}/{name}"]

    def get_optional_weight(self, layer: LayerSpec, name: str) -> Shared | None:
        """A layer's weights, None if it has none of the name."""
        return self.get_weight(layer, name) if name in layer.weights else None

    def is_trained(self, layer: LayerSpec, name: str) -> bool:
        """Whether a layer has weights of the name, and they are trained."""
        key = f"{layer.name}/{name}"
        return self.is_training and name in layer.weights and key not in self.frozen

    def truncate_to_small_ring(
        self, node: PlacedLayer, products: Sequence[Product], addend: Shared | None, drop: int
    ) -> Shared:
        """A node's products and an addend over 2^drop in the small ring that is compared.

        Watched, the ring has a bit more: values below 2^(bits - 2) in ring units are inside, and
        all that is inside is right.  Rounds: 1.
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
        """Watches, where that is done, whether |x| < 2^bits in ring units, over Z_2^64.

        x below 3 2^bits may count as inside.  Rounds: none.
        """
        if self.range_checks is not None:
            self.ops.run_protocol(linear.monitor_range, self.get_range_check(name, x), x, bits)

    def get_range_check(self, name: str, x: Shared) -> RangeMonitor:
        """The watch of a place, which has one sample: all of it."""
        assert self.range_checks is not None
        if name not in self.range_checks:
            self.range_checks[name] = RangeMonitor(self.ops.party, 1, x.dealer)
        return self.range_checks[name]

    def rescale_gradient(self, g: Shared, room: int = 0) -> Shared:
        """A gradient at the gradients' scale, if it leaves no room for so many bits more."""
        f = self.precision.gradient
        if g.fractional_bits <= f or (room and g.fractional_bits + room <= MOST_BITS):
            return g
        return self.ops.truncate(g, g.fractional_bits - f)

    def rescale_activation(self, x: Shared) -> Shared:
        """A value of a training at the scale of values again."""
        drop = x.fractional_bits - self.precision.activation
        return self.ops.truncate(x, drop) if drop else x

    def add_batch_axis(self, shape: Shape, like: Shared) -> Shape:
        """A shape with the batch of a value."""
        return (self.ops.get_shape(like)[0], *shape)

    def align_scales(self, xs: Sequence[Shared], node: PlacedLayer) -> list[Shared]:
        """Values with the fractional bits of a node's value."""
        return [self.ops.add_fractional_bits(x, node.numbers.fraction) for x in xs]

    def select_positive(self, node: PlacedLayer, g: Shared) -> Shared:
        """g where what the node compared is not negative, at the gradients' scale or below."""
        drop = max(0, g.fractional_bits - self.precision.gradient)
        return self.ops.inject_truncated(self.saved[node.output], g, drop, negated=True)

    def multiply_slope(self, node: PlacedLayer, g: Shared) -> Shared:
        """A gradient times the slope that the node has kept."""
        return self.ops.mul(self.rescale_gradient(g), self.saved[node.output])


def reshape_value(ops: Operations, x: Shared, shape: Shape) -> Shared:
    """The elements of x in another shape."""
    return ops.apply_local(lambda v: shapes.reshape(v, shape), x, shape)


def sum_axes(ops: Operations, x: Shared, axes: list[int], keepdims: bool = False) -> Shared:
    """The sum over some axes."""
    old = ops.get_shape(x)
    kept = [1 if i in axes else n for i, n in enumerate(old)]
    shape = tuple(kept) if keepdims else tuple(n for i, n in enumerate(old) if i not in axes)
    return ops.apply_local(lambda v: reductions.reduce_sum(v, axes, keepdims), x, shape)


def sum_to_shape(ops: Operations, g: Shared, wanted: Shape) -> Shared:
    """g, summed over the axes along which a value of that shape was broadcast."""
    axes = [i for i, (a, b) in enumerate(zip(wanted, ops.get_shape(g), strict=True)) if a != b]
    return sum_axes(ops, g, axes, keepdims=True) if axes else g


def add_aligned(ops: Operations, a: Shared, b: Shared) -> Shared:
    """a + b at the larger of their scales."""
    fraction = max(a.fractional_bits, b.fractional_bits)
    return ops.add(ops.add_fractional_bits(a, fraction), ops.add_fractional_bits(b, fraction))


def convert_scale(ops: Operations, x: Shared, fraction: int) -> Shared:
    """x with so many fractional bits: shifted, or truncated."""
    if x.fractional_bits <= fraction:
        return ops.add_fractional_bits(x, fraction)
    return ops.truncate(x, x.fractional_bits - fraction)


def find_negative_log2(factor: Fraction) -> int | None:
    """k with factor = 2^-k, None if there is none of at least 0."""
    one = factor.numerator == 1 and factor.denominator.bit_count() == 1
    return factor.denominator.bit_length() - 1 if one else None


def multiply_public(ops: Operations, x: Shared, factors: Any) -> Shared:
    """x times public reals, with more fractional bits.  Local.

    Args:
        factors: a Fraction, or an array of reals that broadcasts to x.
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
