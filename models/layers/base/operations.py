"""Private operations at one party, the vocabulary of layers, losses and optimizers.

A model runs twice through the same code: with a computing party, and with a CostParty
(protocols/session/counting.py). So the declared cost of a prediction or a step always matches its
execution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.layers.base import renamed
from tfe_bench.models.layers.base.layer import Shape
from tfe_bench.protocols.nn import pool_gradient, relu
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import arithmetic, backward, compare, convert, shapes, truncation
from tfe_bench.protocols.ring.products import (
    BilinearShareProduct,
    exchange_sum,
    exchange_truncated_sum,
)
from tfe_bench.protocols.ring.range_check import RangeMonitor
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class ProtocolSetting:
    """Settings of a model's protocols besides the model.

    Attributes:
        profile: the network profile for planning: "local", "lan" or "wan".
        round_bits: bits sent by all three workers that take as long as one more round; None: the
            profile's value.
        dealt_by_thirds: whether each party deals a third of an adaptive optimizer's directions,
            where the dealer's link is the bottleneck.
        is_third: whether this is one third of a batch, with a dealer of its own.
    """

    profile: str = "local"
    round_bits: int | None = None
    dealt_by_thirds: bool = False
    is_third: bool = False

    def __post_init__(self) -> None:
        if self.profile not in ("local", "lan", "wan"):
            raise UsageError(
                f"Expected a profile local, lan or wan. Received: {self.profile!r}.",
                code="unknown-name",
                operation="profile",
                received=self.profile,
            )
        if self.round_bits is None:
            object.__setattr__(self, "round_bits", int(extremes.ROUND_BITS[self.profile]))

    @property
    def update_profile(self) -> str:
        """Network profile for weight updates."""
        return "wan" if self.dealt_by_thirds else "lan"

    @property
    def pooling_profile(self) -> str:
        """Network profile for maxima, which would otherwise split a third again on a wan."""
        return "lan" if self.is_third and self.profile == "wan" else self.profile

    def choose_exchanges(self, n: int, bits: int) -> int:
        """Choose the exchanges for n comparisons: more of them send fewer bits in more rounds."""
        round_bits = self.round_bits or 0

        def cost_of(count: int) -> int:
            return compare.msb_cost(n, bits, count).total + count * round_bits

        return min(range(compare.min_comparison_exchanges(bits), 4), key=cost_of)


def relu_comparison_bits(ring_bits: int) -> int:
    """Return the bits of a ReLU's comparison: all of a small ring, LAYER_BITS over Z_2^64."""
    return ring_bits if ring_bits < 64 else compare.LAYER_BITS


def add_fractional_bits(x: Shared, fraction: int) -> Shared:
    """Increase the fractional bits of x. Local.

    Raises:
        UsageError: x already has more.
    """
    more = fraction - x.fractional_bits
    if more < 0:
        raise UsageError(
            f"Expected at most {fraction} fractional bits. Received: {x.fractional_bits}.",
            code="invalid-fixed-point-format",
        )
    if more == 0:
        return x
    return replace(x.map(lambda a: tensor_ops.left_shift(a, more)), fractional_bits=fraction)


class Operations:
    """The private operations at one party, inside party.function.

    Values have `fractional_bits`; scales add up in products, and truncations reduce them.

    Attributes:
        range_check: records values outside their range; None disables the checks.
    """

    def __init__(
        self, party: Party, setting: ProtocolSetting, watch: RangeMonitor | None = None
    ) -> None:
        self.party = party
        self.setting = setting
        self.range_check = watch

    def get_shape(self, x: Shared) -> Shape:
        """Return the static shape, with the batch."""
        return tuple(int(n) for n in x.shape)

    def apply_local(self, function: Callable[[Shared], Shared], x: Shared, shape: Shape) -> Shared:
        """Apply a local linear map to a value; the result has a known shape."""
        return function(x).map(lambda a: tensor_ops.ensure_shape(a, shape))

    def run_protocol(
        self, protocol: Callable[Concatenate[Party, P], T], *arguments: P.args, **options: P.kwargs
    ) -> T:
        """Run protocol(party, *arguments, **options)."""
        return protocol(self.party, *arguments, **options)

    def reshape_value(self, x: Shared, shape: Shape) -> Shared:
        """Return the same elements, in order, in another shape with the batch."""
        return x.map(lambda a: tensor_ops.reshape(a, shape))

    def check_range(self, x: Shared, low: int, high: int) -> None:
        """Record where low <= x <= high does not hold, if ranges are checked.

        Args:
            x: value with the batch first, over Z_2^64.
            low, high: in ring units, from 0 to below 2^62.
        """
        if self.range_check is not None:
            self.range_check.record_range(x, low, high)

    def add(self, x: Shared, y: Shared) -> Shared:
        """Return x + y at one scale, broadcast."""
        return arithmetic.add(x, y)

    def sub(self, x: Shared, y: Shared) -> Shared:
        """Return x - y at one scale, broadcast."""
        return arithmetic.sub(x, y)

    def neg(self, x: Shared) -> Shared:
        """Return -x."""
        return arithmetic.neg(x)

    def add_public(self, x: Shared, ring: Any) -> Shared:
        """Return x + c at x's scale, for public ring elements that broadcast to x."""
        ring = ring if tensor_ops.is_tensor(ring) else np.asarray(ring, np.int64)
        return arithmetic.add_public(x, ring)

    def mul_public(self, x: Shared, factor: Any, fraction: int = 0) -> Shared:
        """Return x times public ring elements: an integer, or int64 values that broadcast to x."""
        if isinstance(factor, int) and factor == 1:
            return replace(x, fractional_bits=x.fractional_bits + fraction)
        if not tensor_ops.is_tensor(factor):
            factor = np.asarray(factor, np.int64)
        return arithmetic.mul_public(x, factor, fraction)

    def concat(self, xs: Sequence[Shared], axis: int) -> Shared:
        """Concatenate values of one scale."""
        return shapes.concat(list(xs), axis)

    def add_fractional_bits(self, x: Shared, fraction: int) -> Shared:
        """Increase the fractional bits of x. Local."""
        return add_fractional_bits(x, fraction)

    def sum_products(
        self, products: Sequence[BilinearShareProduct], addend: Shared | None = None
    ) -> Shared:
        """Return the sum of products and an addend over Z_2^64. 1 round."""
        z = exchange_sum(self.party, "product_sum", products)
        return z if addend is None else arithmetic.add(z, addend)

    def sum_truncated_products(
        self, products: Sequence[BilinearShareProduct], addend: Shared | None, drop: int, bits: int
    ) -> Shared:
        """Return the sum of products and an addend over 2^drop in Z_2^bits. 1 round."""
        return exchange_truncated_sum(self.party, "truncated_sum", products, addend, drop, bits)[0]

    def truncate(self, x: Shared, drop: int) -> Shared:
        """Return x / 2^drop. 1 round."""
        return truncation.truncate(self.party, x, drop)

    def mul(self, x: Shared, y: Shared) -> Shared:
        """Return x * y elementwise. 1 round."""
        return arithmetic.mul(self.party, x, y)

    def relu_with_derivative(self, x: Shared) -> tuple[Shared, MaskedBits]:
        """Return max(x, 0) over Z_2^64, for x over Z_2^64 or a small ring, and [x < 0]."""
        bits = relu_comparison_bits(x.ring_bits)
        count = self.setting.choose_exchanges(x.shape.num_elements(), bits)
        return relu.relu_with_derivative(self.party, x, bits, count)

    def inject_truncated(
        self, bits: MaskedBits, x: Shared, drop: int, negated: bool = False
    ) -> Shared:
        """Return b x / 2^drop, or (1 - b) x / 2^drop."""
        if not drop:
            return convert.inject(self.party, bits, x, negated=negated)
        return backward.inject_truncated(self.party, bits, x, drop, negated=negated)

    def max_pool(
        self, x: Shared, options: Mapping[str, Any], relu: bool
    ) -> tuple[Shared, pool_gradient.PoolChoice]:
        """Return the maximum of each window over Z_2^64 (and 0, with relu), and its position."""
        windows = (options["ksize"], options["strides"], options["padding"])
        bits = relu_comparison_bits(x.ring_bits)
        n = pool_gradient.pooling_window_geometry("max_pool2d", x.shape, *windows).window_count
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
        """Place each window's g at the cell of its maximum, with fewer fractional bits."""
        return pool_gradient.unpool_gradient(self.party, choice, g, g.fractional_bits - fraction)


renamed.accept_deprecated_attributes(Operations, renamed.OPERATIONS)
