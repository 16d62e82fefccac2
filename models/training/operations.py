"""What layers, losses and optimizers are written in: private operations that run, or are priced.

The same code goes over a step twice: with `Running` it computes, with pricing.Pricing it adds up
bits and rounds.  So what a step is said to cost cannot drift from what it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tfe_bench.errors import UsageError
from tfe_bench.models.layers import shifted as more_bits
from tfe_bench.protocols.functions import piecewise, roots
from tfe_bench.protocols.nn import (
    activations,
    adaptive,
    batch_norm,
    cross_entropy,
    linear,
    pool_gradient,
    relu,
)
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import (
    arithmetic,
    backward,
    compare,
    convert,
    products,
    relational,
    truncation,
)
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

Shape = tuple[int, ...]
# A value that is private (Shared) or priced; bits of comparisons alike.
Value = Any
Bits = Any
Choice = Any
Normalised = Any


@dataclass(frozen=True)
class Setting:
    """What a step's protocols depend on besides the recipe.

    Attributes:
        profile: which network they plan for: "local", "lan" or "wan".
        round_bits: sent by all three, that take as long as one more round; 0: as the
            profile has it.
        thirds: whether each party deals for a third of an adaptive optimizer's directions: where a
            dealer's line is what is waited for.
    """

    profile: str = "local"
    round_bits: int = 0
    thirds: bool = False

    def __post_init__(self) -> None:
        if self.profile not in ("local", "lan", "wan"):
            raise UsageError(f"Profiles are local, lan and wan. Received: {self.profile!r}.")
        if not self.round_bits:
            object.__setattr__(self, "round_bits", int(extremes.ROUND_BITS[self.profile]))

    @property
    def direction(self) -> str:
        """The profile for directions."""
        return "wan" if self.thirds else "lan"

    def openings(self, n: int, bits: int) -> int:
        """Of n comparisons: more take fewer bits and more rounds."""

        def price(count: int) -> int:
            return compare.msb_cost(n, bits, count).total + count * self.round_bits

        return min((1, 2, 3), key=price)


@dataclass(frozen=True, eq=False)
class Bilinear:
    """A bilinear map of two private values.

    Attributes:
        two: the sum of the map over paired operands (products.Product).
        shape: of the result, from those of the operands.
    """

    two: products.Two
    shape: Callable[[Shape, Shape], Shape]


def compared(ring_bits: int) -> int:
    """Bits of a ReLU's comparison: all of a small ring, those of layers over Z_2^64."""
    return ring_bits if ring_bits < 64 else compare.LAYER_BITS


class Operations(Protocol):
    """Values have `fractional_bits`; scales add up in products, and truncations take from them."""

    setting: Setting

    def shape(self, x: Value) -> Shape:
        """Static, with the batch."""

    def local(self, x: Value, function: Callable[[Any], Any], shape: Shape) -> Value:
        """A linear map of ring elements on each part of a value, to a known shape."""

    def add(self, x: Value, y: Value) -> Value:
        """x + y of one scale, broadcast."""

    def sub(self, x: Value, y: Value) -> Value:
        """x - y of one scale, broadcast."""

    def neg(self, x: Value) -> Value:
        """-x."""

    def add_public(self, x: Value, ring: Any) -> Value:
        """x + c at x's scale, for public ring elements that broadcast to x."""

    def times(self, x: Value, factor: Any, fraction: int = 0) -> Value:
        """x times public ring elements: an integer, or int64 that broadcast to x."""

    def concat(self, xs: Sequence[Value], axis: int) -> Value:
        """Values of one scale behind each other."""

    def shifted(self, x: Value, fraction: int) -> Value:
        """x with more fractional bits."""

    def product(self, x: Value, w: Value, two: Bilinear) -> Value:
        """x . w over Z_2^64.  1 round."""

    def truncated_product(
        self, x: Value, w: Value, two: Bilinear, addend: Value | None, drop: int, bits: int
    ) -> Value:
        """(x . w + addend) / 2^drop in Z_2^bits.  1 round."""

    def truncate(self, x: Value, drop: int) -> Value:
        """x / 2^drop.  1 round."""

    def mul(self, x: Value, y: Value) -> Value:
        """x * y elementwise.  1 round."""

    def relu(self, x: Value) -> tuple[Value, Bits]:
        """max(x, 0) over Z_2^64 of an x there or of a small ring, and [x < 0]."""

    def inject_truncated(self, bits: Bits, x: Value, drop: int, negated: bool = False) -> Value:
        """b x / 2^drop, or (1 - b) x / 2^drop."""

    def softmax(self, logits: Value) -> Value:
        """Probabilities along the last axis with 20 bits, of logits with 16 to 40."""

    def softmax_and_loss(self, logits: Value, y: Value) -> tuple[Value, Value]:
        """`softmax`, and the sum of -ln p_label over all rows, []."""

    def max_pool(self, x: Value, options: Mapping[str, Any], relu: bool) -> tuple[Value, Choice]:
        """The largest of each window over Z_2^64 (and 0, with relu), and where it is."""

    def route(self, choice: Choice, g: Value, fraction: int) -> Value:
        """Each window's g at its largest cell, with fewer fractional bits."""

    def logistic(self, z: Value) -> Value:
        """1 / (1 + e^-z) with 20 bits, of logits over Z_2^64 or of a small ring."""

    def sigmoid(self, x: Value) -> Value:
        """1 / (1 + e^-x) at x's scale."""

    def rsqrt(self, x: Value, bits: int, precision: int) -> Value:
        """1 / sqrt(x) for 0 < x < 2^bits ring units, at x's scale."""

    def normalise(self, x: Value, gamma: Value, epsilon: float) -> Normalised:
        """Statistics of a batch (protocols/nn/batch_norm.py)."""

    def centred(self, normalised: Normalised) -> tuple[Value, Value]:
        """x - mean, and the factor for it."""

    def normalise_back(self, normalised: Normalised, g: Value) -> tuple[Value, Value, Value]:
        """Gradients of x, gamma and beta."""

    def running(
        self, normalised: Normalised, mean: Value, variance: Value, momentum: float
    ) -> tuple[Value, Value]:
        """The running statistics after a batch."""

    def maximum(self, x: Value, y: Value, bits: int) -> Value:
        """max(x, y) for |x - y| < 2^(bits-1) ring units."""

    def direction(self, m: Value, v: Value) -> Value:
        """m / sqrt(v), with more fractional bits than m."""

    def tanh(self, x: Value) -> Value:
        """tanh(x) at x's scale."""


class Running:
    """The operations at one party, inside party.function."""

    def __init__(self, party: Party, setting: Setting) -> None:
        self.party = party
        self.setting = setting

    def shape(self, x: Shared) -> Shape:
        return tuple(int(n) for n in x.shape)

    def local(self, x: Shared, function: Callable[[Any], Any], shape: Shape) -> Shared:
        import tensorflow as tf

        return x.map(lambda a: tf.ensure_shape(function(a), shape))

    def add(self, x: Shared, y: Shared) -> Shared:
        return arithmetic.add(x, y)

    def sub(self, x: Shared, y: Shared) -> Shared:
        return arithmetic.sub(x, y)

    def neg(self, x: Shared) -> Shared:
        return arithmetic.neg(x)

    def add_public(self, x: Shared, ring: Any) -> Shared:
        import tensorflow as tf

        return arithmetic.add_public(x, tf.constant(ring, tf.int64))

    def times(self, x: Shared, factor: Any, fraction: int = 0) -> Shared:
        import tensorflow as tf

        if isinstance(factor, int) and factor == 1:
            return replace(x, fractional_bits=x.fractional_bits + fraction)
        if not tf.is_tensor(factor):
            factor = tf.constant(factor, tf.int64)
        return arithmetic.mul_public(x, factor, fraction)

    def concat(self, xs: Sequence[Shared], axis: int) -> Shared:
        from tfe_bench.protocols.ring import shapes

        return shapes.concat(list(xs), axis)

    def shifted(self, x: Shared, fraction: int) -> Shared:
        return more_bits(x, fraction)

    def product(self, x: Shared, w: Shared, two: Bilinear) -> Shared:
        return linear.product_sum(self.party, [products.Product(x, w, two.two)])

    def truncated_product(
        self, x: Shared, w: Shared, two: Bilinear, addend: Shared | None, drop: int, bits: int
    ) -> Shared:
        product = products.Product(x, w, two.two)
        return linear.truncated_sum(self.party, [product], addend, drop, bits)

    def truncate(self, x: Shared, drop: int) -> Shared:
        return truncation.truncate(self.party, x, drop)

    def mul(self, x: Shared, y: Shared) -> Shared:
        return arithmetic.mul(self.party, x, y)

    def relu(self, x: Shared) -> tuple[Shared, MaskedBits]:
        bits = compared(x.ring_bits)
        count = self.setting.openings(x.shape.num_elements(), bits)
        return relu.relu_with_derivative(self.party, x, bits, count)

    def inject_truncated(
        self, bits: MaskedBits, x: Shared, drop: int, negated: bool = False
    ) -> Shared:
        if not drop:
            return convert.inject(self.party, bits, x, negated=negated)
        return backward.inject_truncated(self.party, bits, x, drop, negated=negated)

    def softmax(self, logits: Shared) -> Shared:
        return cross_entropy.softmax_for_gradient(self.party, logits, profile=self.setting.profile)

    def softmax_and_loss(self, logits: Shared, y: Shared) -> tuple[Shared, Shared]:
        return cross_entropy.softmax_and_loss(self.party, logits, y)

    def max_pool(
        self, x: Shared, options: Mapping[str, Any], relu: bool
    ) -> tuple[Shared, pool_gradient.Choice]:
        windows = (options["ksize"], options["strides"], options["padding"])
        bits = compared(x.ring_bits)
        n = pool_gradient.geometry("max_pool2d", x.shape, *windows).windows
        return pool_gradient.max_pool2d_with_choice(
            self.party,
            x,
            *windows,
            relu=relu,
            bits=bits,
            profile=self.setting.profile,
            openings=self.setting.openings(n, bits),
        )

    def route(self, choice: pool_gradient.Choice, g: Shared, fraction: int) -> Shared:
        return pool_gradient.route(self.party, choice, g, g.fractional_bits - fraction)

    def logistic(self, z: Shared) -> Shared:
        return piecewise.logistic(self.party, z)

    def sigmoid(self, x: Shared) -> Shared:
        return activations.sigmoid(self.party, x)

    def rsqrt(self, x: Shared, bits: int, precision: int) -> Shared:
        return roots.rsqrt(self.party, x, bits, precision)

    def normalise(self, x: Shared, gamma: Shared, epsilon: float) -> batch_norm.Normalised:
        return batch_norm.normalise(self.party, x, gamma, epsilon=epsilon)

    def centred(self, normalised: batch_norm.Normalised) -> tuple[Shared, Shared]:
        return normalised.centred, normalised.factor

    def normalise_back(
        self, normalised: batch_norm.Normalised, g: Shared
    ) -> tuple[Shared, Shared, Shared]:
        found = batch_norm.backward(self.party, normalised, g)
        return found.x, found.gamma, found.beta

    def running(
        self, normalised: batch_norm.Normalised, mean: Shared, variance: Shared, momentum: float
    ) -> tuple[Shared, Shared]:
        return batch_norm.running(self.party, normalised, mean, variance, momentum)

    def maximum(self, x: Shared, y: Shared, bits: int) -> Shared:
        openings = self.setting.openings(x.shape.num_elements(), bits)
        return relational.maximum(self.party, x, y, bits, openings)

    def direction(self, m: Shared, v: Shared) -> Shared:
        return adaptive.direction(self.party, m, v, profile=self.setting.direction)

    def tanh(self, x: Shared) -> Shared:
        return activations.tanh(self.party, x)
