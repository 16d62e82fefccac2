"""What layers, losses and optimizers are written in: private operations at one party.

The same code goes over a model twice: with a party that computes, and with one that counts
(protocols/session/counting.py).  So what a prediction or a step is said to cost cannot drift from
what it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds.layer import Shape
from tfe_bench.protocols.nn import pool_gradient, relu
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import arithmetic, backward, compare, convert, shapes, truncation
from tfe_bench.protocols.ring.products import Product, exchange_sum, exchange_truncated_sum
from tfe_bench.protocols.ring.range_check import RangeMonitor
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

P = ParamSpec("P")
T = TypeVar("T")


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
    dealt_by_thirds: bool = False
    is_third: bool = False

    def __post_init__(self) -> None:
        if self.profile not in ("local", "lan", "wan"):
            raise UsageError(f"Profiles are local, lan and wan. Received: {self.profile!r}.")
        if self.round_bits is None:
            object.__setattr__(self, "round_bits", int(extremes.ROUND_BITS[self.profile]))

    @property
    def update_profile(self) -> str:
        """The profile for updates."""
        return "wan" if self.dealt_by_thirds else "lan"

    @property
    def pooling_profile(self) -> str:
        """The profile for maxima, which would otherwise cut a third in three again on a wan."""
        return "lan" if self.is_third and self.profile == "wan" else self.profile

    def choose_exchanges(self, n: int, bits: int) -> int:
        """Of n comparisons: more take fewer bits and more rounds."""
        round_bits = self.round_bits or 0

        def cost_of(count: int) -> int:
            return compare.msb_cost(n, bits, count).total + count * round_bits

        return min(range(compare.min_exchanges(bits), 4), key=cost_of)


def relu_comparison_bits(ring_bits: int) -> int:
    """Bits of a ReLU's comparison: all of a small ring, those of layers over Z_2^64."""
    return ring_bits if ring_bits < 64 else compare.LAYER_BITS


def add_fractional_bits(x: Shared, fraction: int) -> Shared:
    """x with more fractional bits.  Local.

    Raises:
        UsageError: it has more already.
    """
    more = fraction - x.fractional_bits
    if more < 0:
        raise UsageError(f"A value has {x.fractional_bits} fractional bits, not {fraction}.")
    if more == 0:
        return x
    return replace(x.map(lambda a: tensor_ops.left_shift(a, more)), fractional_bits=fraction)


class Operations:
    """The operations at one party, inside party.function.

    Values have `fractional_bits`; scales add up in products, and truncations take from them.

    Attributes:
        watch: is told of what could leave its range, None where nothing is checked.
    """

    def __init__(self, party: Party, setting: Setting, watch: RangeMonitor | None = None) -> None:
        self.party = party
        self.setting = setting
        self.range_check = watch

    def get_shape(self, x: Shared) -> Shape:
        """Static, with the batch."""
        return tuple(int(n) for n in x.shape)

    def apply_local(self, function: Callable[[Shared], Shared], x: Shared, shape: Shape) -> Shared:
        """A local linear map of a value, to a known shape."""
        return function(x).map(lambda a: tensor_ops.ensure_shape(a, shape))

    def run_protocol(
        self, protocol: Callable[Concatenate[Party, P], T], *arguments: P.args, **options: P.kwargs
    ) -> T:
        """protocol(party, *given, **options)."""
        return protocol(self.party, *arguments, **options)

    def reshape_value(self, x: Shared, shape: Shape) -> Shared:
        """The same elements, in order, in another shape with the batch."""
        return x.map(lambda a: tensor_ops.reshape(a, shape))

    def check_range(self, x: Shared, low: int, high: int) -> None:
        """Tells the watch, if there is one, where low <= x <= high does not hold.

        Args:
            x: with the batch first, over Z_2^64.
            low, high: in ring units, from 0 to below 2^62.
        """
        if self.range_check is not None:
            self.range_check.record_range(x, low, high)

    def add(self, x: Shared, y: Shared) -> Shared:
        """x + y of one scale, broadcast."""
        return arithmetic.add(x, y)

    def sub(self, x: Shared, y: Shared) -> Shared:
        """x - y of one scale, broadcast."""
        return arithmetic.sub(x, y)

    def neg(self, x: Shared) -> Shared:
        """-x."""
        return arithmetic.neg(x)

    def add_public(self, x: Shared, ring: Any) -> Shared:
        """x + c at x's scale, for public ring elements that broadcast to x."""
        ring = ring if tensor_ops.is_tensor(ring) else np.asarray(ring, np.int64)
        return arithmetic.add_public(x, ring)

    def mul_public(self, x: Shared, factor: Any, fraction: int = 0) -> Shared:
        """x times public ring elements: an integer, or int64 that broadcast to x."""
        if isinstance(factor, int) and factor == 1:
            return replace(x, fractional_bits=x.fractional_bits + fraction)
        if not tensor_ops.is_tensor(factor):
            factor = np.asarray(factor, np.int64)
        return arithmetic.mul_public(x, factor, fraction)

    def concat(self, xs: Sequence[Shared], axis: int) -> Shared:
        """Values of one scale behind each other."""
        return shapes.concat(list(xs), axis)

    def add_fractional_bits(self, x: Shared, fraction: int) -> Shared:
        """x with more fractional bits."""
        return add_fractional_bits(x, fraction)

    def sum_products(self, products: Sequence[Product], addend: Shared | None = None) -> Shared:
        """The sum of products and an addend over Z_2^64.  1 round."""
        z = exchange_sum(self.party, "product_sum", products)
        return z if addend is None else arithmetic.add(z, addend)

    def sum_truncated_products(
        self, products: Sequence[Product], addend: Shared | None, drop: int, bits: int
    ) -> Shared:
        """The same over 2^drop in Z_2^bits.  1 round."""
        return exchange_truncated_sum(self.party, "truncated_sum", products, addend, drop, bits)[0]

    def truncate(self, x: Shared, drop: int) -> Shared:
        """x / 2^drop.  1 round."""
        return truncation.truncate(self.party, x, drop)

    def mul(self, x: Shared, y: Shared) -> Shared:
        """x * y elementwise.  1 round."""
        return arithmetic.mul(self.party, x, y)

    def relu_with_derivative(self, x: Shared) -> tuple[Shared, MaskedBits]:
        """max(x, 0) over Z_2^64 of an x there or of a small ring, and [x < 0]."""
        bits = relu_comparison_bits(x.ring_bits)
        count = self.setting.choose_exchanges(x.shape.num_elements(), bits)
        return relu.relu_with_derivative(self.party, x, bits, count)

    def inject_truncated(
        self, bits: MaskedBits, x: Shared, drop: int, negated: bool = False
    ) -> Shared:
        """b x / 2^drop, or (1 - b) x / 2^drop."""
        if not drop:
            return convert.inject(self.party, bits, x, negated=negated)
        return backward.inject_truncated(self.party, bits, x, drop, negated=negated)

    def max_pool(
        self, x: Shared, options: Mapping[str, Any], relu: bool
    ) -> tuple[Shared, pool_gradient.PoolChoice]:
        """The largest of each window over Z_2^64 (and 0, with relu), and where it is."""
        windows = (options["ksize"], options["strides"], options["padding"])
        bits = relu_comparison_bits(x.ring_bits)
        n = pool_gradient.window_geometry("max_pool2d", x.shape, *windows).window_count
        return pool_gradient.max_pool2d_with_choice(
            self.party,
            x,
            *windows,
            relu=relu,
            bits=bits,
            profile=self.setting.profile,
            exchanges=self.setting.choose_exchanges(n, bits),
        )

    def unpool(self, choice: pool_gradient.PoolChoice, g: Shared, fraction: int) -> Shared:
        """Each window's g at its largest cell, with fewer fractional bits."""
        return pool_gradient.unpool_gradient(self.party, choice, g, g.fractional_bits - fraction)
