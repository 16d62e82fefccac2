"""ReLUs from several knots, with a largest value, and a lift that watches what is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.nn import relu
from tfe_bench.protocols.ring import compare, small_ring
from tfe_bench.protocols.ring.checks import check_ring
from tfe_bench.protocols.ring.range_check import RangeMonitor
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

RING = 64


def relu_at_knots(
    party: Party, x: Shared, knots: Sequence[int], bits: int, exchanges: int | None = None
) -> tuple[Shared, MaskedBits]:
    """max(x - k, 0) for each of some public knots k, [len(knots), *shape], and where x < k.

    What is piecewise linear, or bends between two knots, is made of them without a message more.

    Args:
        x: over Z_2^64, |x| < 2^(bits-1) ring units.
        knots: in ring units.
        exchanges: of the comparisons; None takes 1 for few elements, 2 for many.

    Rounds: those of relu.relu.  Bits sent: those of len(knots) times the elements.
    Raises:
        UsageError: another ring, or bits that leave no room for the knots.
    """
    check_ring("above", x, known=True)
    width = compare.bits_with_constant(bits, max(map(abs, knots)))
    n = x.shape.num_elements() * len(knots)
    count = compare.default_exchanges(n, width, exchanges)
    return relu.relu_with_derivative(party, subtract_knots(x, knots), width, count)


def capped_relu(
    party: Party, x: Shared, cap: int, bits: int, exchanges: int | None, to: int | None = None
) -> Shared:
    """min(max(x, 0), most) = relu(x) - relu(x - most), both compared at once.

    Args:
        x: of Z_2^64 or of a small ring; |x| + most < 2^(bits-1) ring units.
        most: public, in ring units.
        to: the result's ring, of x of a ring of `bits` or more, as for relu.relu_in.

    Rounds: those of relu.relu.  Bits sent: those of twice the elements.
    Raises:
        UsageError: the comparison has no room for most.
    """
    width = bits if to or x.ring_bits == 64 else x.ring_bits
    if cap >> (width - 1):
        raise UsageError(
            f"A ReLU capped at {cap} ring units wants {cap.bit_length() + 2} bits or more. "
            f"Received: {width}."
        )
    shifted = subtract_knots(x, (0, cap))
    if to:
        rectified = relu.relu_in(party, shifted, bits, exchanges, to)
    else:
        rectified = relu.relu(party, shifted, bits, exchanges)
    return rectified.map(lambda a: a[0] - a[1])


def subtract_knots(x: Shared, knots: Sequence[int]) -> Shared:
    """x - k for each k."""
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
    """x over Z_2^to; `watch` is told where |x| < 2^(bits-2) does not hold.

    It may hear nothing where |x| < 3 2^(bits-2): what is lifted is right then, and so is an x that
    stays in its ring, if that has more than `bits`.

    Args:
        x, u: of products.truncated, u right modulo 2^width.
        width: with no more than `bits`, x is all that there is: nothing is lost, nor noted.
        to: x's ring or less: x is left as it is.
        bits: of x's ring at most; 0: all of them.

    Rounds: those of small_ring.lift, none where x stays.  Bits sent: those of
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
    """Notes where |x| < 2^bits does not hold, for x over Z_2^64; a multiple below 3 may pass.

    The evaluators' shares of x are compared with those of its lowest bits + 2 bits.

    Rounds: 0 (1 with dealing).  Bits sent: D 2 (62 - bits) per element.
    """
    value_share: Any = None
    if isinstance(party, CostParty):
        value_share = party.count_dealt(x.shape, x)
    elif x.m is not None:
        value_share = tensor_ops.neg(x.l2) if x.l1 is None else tensor_ops.sub(x.m, x.l1)
    monitored_lift(party, monitor, x, value_share, RING, RING, bits + 2)
