"""What layers, losses and optimizers are written in: private operations that run, or are priced.

The same code goes over a model twice: with `Running` it computes, with pricing.Pricing it adds up
bits and rounds.  So what a prediction or a step is said to cost cannot drift from what it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds.layer import Shape
from tfe_bench.protocols.nn import batch_norm, cross_entropy, linear, pool_gradient, relu
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import arithmetic, backward, compare, convert, shapes, truncation
from tfe_bench.protocols.ring.range_check import Watch
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

# A value that is private (Shared) or priced; bits of comparisons alike.
Value = Any
Bits = Any
Choice = Any
Normalised = Any


@dataclass(frozen=True)
class Setting:
    """What a model's protocols depend on besides the model.

    Attributes:
        profile: which network they plan for: "local", "lan" or "wan".
        round_bits: sent by all three, that take as long as one more round; None: as the
            profile has it.
        thirds: whether each party deals for a third of an adaptive optimizer's directions: where a
            dealer's line is what is waited for.
        turn: whether this is one third of a batch, with a dealer of its own.
    """

    profile: str = "local"
    round_bits: int | None = None
    thirds: bool = False
    turn: bool = False

    def __post_init__(self) -> None:
        if self.profile not in ("local", "lan", "wan"):
            raise UsageError(f"Profiles are local, lan and wan. Received: {self.profile!r}.")
        if self.round_bits is None:
            object.__setattr__(self, "round_bits", int(extremes.ROUND_BITS[self.profile]))

    @property
    def direction(self) -> str:
        """The profile for directions."""
        return "wan" if self.thirds else "lan"

    @property
    def pooling(self) -> str:
        """The profile for maxima, which would otherwise cut a third in three again on a wan."""
        return "lan" if self.turn and self.profile == "wan" else self.profile

    def openings(self, n: int, bits: int) -> int:
        """Of n comparisons: more take fewer bits and more rounds."""
        round_bits = self.round_bits or 0

        def price(count: int) -> int:
            return compare.msb_cost(n, bits, count).total + count * round_bits

        return min((1, 2, 3), key=price)


@dataclass(frozen=True, eq=False)
class Bilinear:
    """A bilinear map of two private values.

    Attributes:
        two: the sum of the map over paired operands (linear.Product).
        shape: of the result, from those of the operands.
    """

    two: linear.Two
    shape: Callable[[Shape, Shape], Shape]


ELEMENTWISE = Bilinear(linear.elementwise, lambda x, w: x)


@dataclass(frozen=True, eq=False)
class Factors:
    """x . w, to be summed up with others.

    Attributes:
        x, w: private, over Z_2^64.
    """

    x: Value
    w: Value
    by: Bilinear


@dataclass(frozen=True, eq=False)
class Watched:
    """A sum in a small ring, and what a watch compares it with.

    Attributes:
        small: the sum.
        whole: the evaluators' shares of all of it.
        drop: bits that were dropped of it.
    """

    small: Value
    whole: Any
    drop: int


def compared(ring_bits: int) -> int:
    """Bits of a ReLU's comparison: all of a small ring, those of layers over Z_2^64."""
    return ring_bits if ring_bits < 64 else compare.LAYER_BITS


def shifted(x: Shared, fraction: int) -> Shared:
    """x with more fractional bits.  Local.

    Raises:
        UsageError: it has more already.
    """
    import tensorflow as tf

    more = added_bits(x.fractional_bits, fraction)
    if more == 0:
        return x
    bits = tf.constant(more, tf.int64)
    return replace(x.map(lambda a: tf.bitwise.left_shift(a, bits)), fractional_bits=fraction)


def added_bits(held: int, fraction: int) -> int:
    """How many fractional bits a value gets.

    Raises:
        UsageError: it has more already.
    """
    if fraction < held:
        raise UsageError(f"A value has {held} fractional bits, not {fraction}.")
    return fraction - held


class Operations(Protocol):
    """Values have `fractional_bits`; scales add up in products, and truncations take from them."""

    setting: Setting

    def shape(self, x: Value) -> Shape:
        """Static, with the batch."""

    def map(self, function: Callable[[Shared], Shared], x: Value, shape: Shape) -> Value:
        """A local linear map of a value, to a known shape."""

    def call(
        self,
        protocol: Callable[..., Shared],
        *given: Any,
        cost: Cost,
        shape: Shape | None = None,
        fraction: int | None = None,
        **options: Any,
    ) -> Value:
        """protocol(party, *given, **options), which costs so much and gives a value of Z_2^64.

        Args:
            shape, fraction: of the result; None: those of the first value given.
        """

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

    def product(self, products: Sequence[Factors], addend: Value | None = None) -> Value:
        """The sum of products and an addend over Z_2^64.  1 round."""

    def truncated_product(
        self, products: Sequence[Factors], addend: Value | None, drop: int, bits: int
    ) -> Value:
        """The same over 2^drop in Z_2^bits.  1 round."""

    def watched_product(
        self, products: Sequence[Factors], addend: Value | None, drop: int, bits: int
    ) -> Watched:
        """`truncated_product`, with what tells whether it is the whole sum.  1 round."""

    def watched_relu(self, x: Watched, most: int | None, openings: int) -> Value:
        """max(x, 0), and at most `most` if given, over Z_2^64; the watch is told."""

    def watched_lift(self, x: Watched) -> Value:
        """x over Z_2^64; the watch is told."""

    def truncate(self, x: Value, drop: int) -> Value:
        """x / 2^drop.  1 round."""

    def mul(self, x: Value, y: Value) -> Value:
        """x * y elementwise.  1 round."""

    def relu_with_derivative(self, x: Value) -> tuple[Value, Bits]:
        """max(x, 0) over Z_2^64 of an x there or of a small ring, and [x < 0]."""

    def inject_truncated(self, bits: Bits, x: Value, drop: int, negated: bool = False) -> Value:
        """b x / 2^drop, or (1 - b) x / 2^drop."""

    def softmax_and_loss(self, logits: Value, y: Value) -> tuple[Value, Value]:
        """Probabilities along the last axis, and the sum of -ln p_label over all rows, []."""

    def max_pool(self, x: Value, options: Mapping[str, Any], relu: bool) -> tuple[Value, Choice]:
        """The largest of each window over Z_2^64 (and 0, with relu), and where it is."""

    def route(self, choice: Choice, g: Value, fraction: int) -> Value:
        """Each window's g at its largest cell, with fewer fractional bits."""

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


def _products(several: Sequence[Factors]) -> list[linear.Product]:
    return [linear.Product(p.x, p.w, p.by.two) for p in several]


class Running:
    """The operations at one party, inside party.function.

    Args:
        watch: is told of what could leave its range.
    """

    def __init__(self, party: Party, setting: Setting, watch: Watch | None = None) -> None:
        self.party = party
        self.setting = setting
        self._watch = watch

    def shape(self, x: Shared) -> Shape:
        return tuple(int(n) for n in x.shape)

    def map(self, function: Callable[[Shared], Shared], x: Shared, shape: Shape) -> Shared:
        import tensorflow as tf

        return function(x).map(lambda a: tf.ensure_shape(a, shape))

    def call(
        self,
        protocol: Callable[..., Shared],
        *given: Any,
        cost: Cost,
        shape: Shape | None = None,
        fraction: int | None = None,
        **options: Any,
    ) -> Shared:
        return protocol(self.party, *given, **options)

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
        return shapes.concat(list(xs), axis)

    def shifted(self, x: Shared, fraction: int) -> Shared:
        return shifted(x, fraction)

    def product(self, products: Sequence[Factors], addend: Shared | None = None) -> Shared:
        return linear.product_sum(self.party, _products(products), addend)

    def truncated_product(
        self, products: Sequence[Factors], addend: Shared | None, drop: int, bits: int
    ) -> Shared:
        return linear.truncated_sum(self.party, _products(products), addend, drop, bits)

    def watched_product(
        self, products: Sequence[Factors], addend: Shared | None, drop: int, bits: int
    ) -> Watched:
        found = linear.watched_sum(self.party, _products(products), addend, drop, bits)
        return Watched(*found, drop)

    def watched_relu(self, x: Watched, most: int | None, openings: int) -> Shared:
        assert self._watch is not None
        return linear.watched_relu(
            self.party, self._watch, x.small, x.whole, x.drop, most, openings
        )

    def watched_lift(self, x: Watched) -> Shared:
        assert self._watch is not None
        return linear.watched_lift(self.party, self._watch, x.small, x.whole, x.drop)

    def truncate(self, x: Shared, drop: int) -> Shared:
        return truncation.truncate(self.party, x, drop)

    def mul(self, x: Shared, y: Shared) -> Shared:
        return arithmetic.mul(self.party, x, y)

    def relu_with_derivative(self, x: Shared) -> tuple[Shared, MaskedBits]:
        bits = compared(x.ring_bits)
        count = self.setting.openings(x.shape.num_elements(), bits)
        return relu.relu_with_derivative(self.party, x, bits, count)

    def inject_truncated(
        self, bits: MaskedBits, x: Shared, drop: int, negated: bool = False
    ) -> Shared:
        if not drop:
            return convert.inject(self.party, bits, x, negated=negated)
        return backward.inject_truncated(self.party, bits, x, drop, negated=negated)

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
