"""ReLUs with several knots, capped ReLUs, and a lift with a range monitor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.nn import relu
from tfe_bench.protocols.ring import compare, small_ring
from tfe_bench.protocols.ring.checks import check_private_64bit_tensor
from tfe_bench.protocols.ring.range_check import RangeMonitor
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

RING = 64


def relu_at_knots(
    party: Party, x: Shared, knots: Sequence[int], bits: int, exchanges: int | None = None
) -> tuple[Shared, MaskedBits]:
    """Compute max(x - k, 0) for some public knots k, [len(knots), *shape], and the bits of x < k.

    Functions that are piecewise linear, or curved between two knots, follow from these without
    another message.

    Args:
        x: over Z_2^64, |x| < 2^(bits-1) ring units.
        knots: in ring units.
        exchanges: of the comparisons; None: 1 for few elements, 2 for many.

    Rounds: those of relu.relu. Bits sent: those of len(knots) times the elements.
    Raises:
        UsageError: another ring, or bits that leave no room for the knots.
    """
    check_private_64bit_tensor("above", x, known=True)
    width = compare.comparison_bits_with_constant(bits, max(map(abs, knots)))
    n = x.shape.num_elements() * len(knots)
    count = compare.default_exchanges(n, width, exchanges)
    return relu.relu_with_derivative(party, subtract_knots(x, knots), width, count)


def capped_relu(
    party: Party, x: Shared, cap: int, bits: int, exchanges: int | None, to: int | None = None
) -> Shared:
    """Compute min(max(x, 0), cap) = relu(x) - relu(x - cap), with both comparisons at once.

    Args:
        x: of Z_2^64 or of a small ring; |x| + cap < 2^(bits-1) ring units.
        cap: public, in ring units.
        to: ring of the result, for x in a ring of `bits` or more, as for relu.relu_in.

    Rounds: those of relu.relu. Bits sent: those of twice the elements.
    Raises:
        UsageError: the comparison has no room for the cap.
    """
    width = bits if to or x.ring_bits == 64 else x.ring_bits
    if cap >> (width - 1):
        raise UsageError(
            f"A ReLU capped at {cap} ring units requires at least {cap.bit_length() + 2} "
            f"bits. Received: {width}.",
            code="number-out-of-range",
            operation="capped_relu",
            received=width,
            expected=f"at least {cap.bit_length() + 2}",
        )
    shifted = subtract_knots(x, (0, cap))
    if to:
        rectified = relu.relu_in(party, shifted, bits, exchanges, to)
    else:
        rectified = relu.relu(party, shifted, bits, exchanges)
    return rectified.map(lambda a: a[0] - a[1])


def subtract_knots(x: Shared, knots: Sequence[int]) -> Shared:
    """Return x - k for each knot k."""
    repeated = x.map(lambda a: tensor_ops.stack([a] * len(knots)))
    if repeated.m is None:
        return repeated
    shift = np.array(knots, np.int64).reshape([-1, *([1] * len(x.shape))])
    return replace(repeated, m=tensor_ops.low_bits(repeated.m - shift, x.ring_bits))


def monitored_lift(
    party: Party,
    monitor: RangeMonitor,
    x: Shared,
    u: Any,
    width: int,
    to: int = RING,
    bits: int = 0,
) -> Shared:
    """Lift x to Z_2^to, and record in `monitor` where |x| < 2^(bits-2) does not hold.

    Where |x| < 3 2^(bits-2) the monitor may record nothing: the lifted value is right then, and so
    is an x that stays in its ring, if that has more than `bits`.

    Args:
        x, u: of products.exchange_truncated_sum, u right modulo 2^width.
        width: if at most `bits`, x has no further bits: nothing is lost or recorded.
        to: x's ring or less: x stays as it is.
        bits: at most x's ring; 0: all of its bits.

    Rounds: those of small_ring.lift_signed, none where x stays. Bits sent: those of
    small_ring.lift_with_shares of `bits` bits.
    """
    bits = bits or x.ring_bits
    reduced, keeps_ring = small_ring.reduce_ring(x, bits), x.ring_bits >= to
    if width <= bits:
        return x if keeps_ring else small_ring.lift_signed(party, reduced, to)
    y, share = small_ring.lift_with_shares(party, reduced, bits if keeps_ring else to, width)
    if isinstance(party, CostParty):
        monitor.record_zero(tensor_ops.symbolic_result(u.shape, u, share), width, bits)
    else:
        monitor.record_zero(None if u is None else u - share, width, bits)
    return x if keeps_ring else y


def monitor_range(party: Party, monitor: RangeMonitor, x: Shared, bits: int) -> None:
    """Record where |x| < 2^bits does not hold, for x over Z_2^64; a multiple below 3 may pass.

    The evaluators' shares of x are compared with those of its lowest bits + 2 bits.

    Rounds: 0 online, 1 in total. Bits sent: D 2 (62 - bits) per element.
    """
    value_share: Any = None
    if isinstance(party, CostParty):
        value_share = party.count_dealt(x.shape, x)
    elif x.m is not None:
        value_share = tensor_ops.neg(x.l2) if x.l1 is None else tensor_ops.sub(x.m, x.l1)
    monitored_lift(party, monitor, x, value_share, RING, RING, bits + 2)
