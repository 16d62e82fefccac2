"""Values of a small ring Z_2^k: a selection that sends k bits, and the extension to Z_2^64.

A value known to be small needs no 64-bit words while it is only compared and selected: x of Z_2^64
with |x| < 2^(k-2) is, read mod 2^k, a value of Z_2^k, whose differences fit k bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.ring import checks, convert, masked
from tfe_bench.protocols.ring.products import RING, BilinearShareProduct, exchange_truncated_sum
from tfe_bench.protocols.session import ops, sizes, slots, tensor_ops
from tfe_bench.protocols.session.cost import Cost, packed_bits
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import K1, K2, Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

FRESH = 2  # number of the mask of an exchanged value


def select(party: Party, bits: MaskedBits, x: Shared | None, y: Shared) -> Shared:
    """Return x where the bit is 1, else y, both of one ring Z_2^k, k <= 64; None is zero.

    y + b (x - y) = y + o d + (1 - 2o) beta d with d = x - y = m - lam, b = o ^ beta: D deals beta
    and beta lam mod 2^k, and the evaluators exchange the sum of their shares mod 2^k.

    Rounds: 1 online (2 total). Bits sent: D 2k, E1, E2 k per element; at k = 64 it equals
        convert.select.
    Security: both messages are padded mod 2^k by masks of their own, which E2
        (K1) and the other evaluator (K1 or K2) cannot generate.
    Raises:
        UsageError: values of other shapes, rings or dealers, or another number of bits.
    """
    for value in (y,) if x is None else (x, y):
        convert.check_inject("select", bits, value)
        checks.check_private_pair("select", value, y)
    if y.limbs != 1 or not (x is None or x.shape.is_compatible_with(y.shape)):
        raise UsageError(
            f"select expects values of one shape and of one word. Received: {x!r} and {y!r}.",
            code="shape-mismatch" if y.limbs == 1 else "unsupported-ring",
            operation="select",
            received=f"{x!r}, {y!r}",
        )
    k = y.ring_bits
    scale, n = y.fractional_bits, sizes.tensor_size(y.any)
    if isinstance(party, CostParty):
        return party.count_exchange(
            y.shape, 2 * packed_bits(n, k), bits, x, y, scale=scale, width=k
        )
    s = party.site(
        "select",
        k,
        x is None,
        dealer=y.dealer,
        slots={0: slots.declare_dealt(k, times=2), 1: slots.declare_exchanged(k)},
    )
    kernels, named = ops.module(), {**s.kernel_attributes(), "bits": k}
    nothing, share = tensor_ops.constant([]), None
    if s.is_dealer:
        message = kernels.tfe_bench_small_select_deal(
            beta=bits.beta,
            even_l1=y.l1,
            even_l2=y.l2,
            odd_l1=nothing if x is None else x.l1,
            odd_l2=nothing if x is None else x.l2,
            **named,
        )
        s.send(message, s.e2, 0, run_ahead=True)
    else:
        even_part, odd_part = (
            nothing if value is None else value.l1 if s.is_e1 else value.l2 for value in (y, x)
        )
        share = kernels.tfe_bench_small_select_share(
            masked_bits=bits.masked,
            even_m=y.m,
            even_part=even_part,
            odd_m=nothing if x is None else x.m,
            odd_part=odd_part,
            dealt=s.receive_dealt(n),
            **named,
        )
    shape = tensor_ops.dynamic_shape(y.any)
    return masked.exchange_masked(s, share, shape, 2, 1, scale=scale, is_masked=True)


def pick_one_hot(party: Party, hot: MaskedBits, x: Shared) -> Shared:
    """Return sum_j hot_j x_j over the first axis of x [width, ...], modulo x's ring Z_2^k.

    As extremes.pick with k bits instead of 64: D deals beta and beta lam modulo 2^k.
    Rounds: 1 online (2 total). Bits sent: D 2k per element of x, each row in whole bytes, E1, E2 k
        per element of the result.
    """
    convert.check_inject("pick", hot, x)
    k, scale, rows = x.ring_bits, x.fractional_bits, x.shape[0]
    if isinstance(party, CostParty):
        dealt = 2 * rows * packed_bits(math.prod(x.shape[1:]), k)
        return party.count_exchange(x.shape[1:], dealt, hot, x, scale=scale, width=k)
    s = party.site(
        "pick_small",
        k,
        dealer=x.dealer,
        slots={0: slots.declare_dealt(k, times=2 * rows), 1: slots.declare_exchanged(k)},
    )
    kernels, named = ops.module(), {**s.kernel_attributes(), "bits": k, "rows": rows}
    share = None
    if s.is_dealer:
        message = kernels.tfe_bench_small_pick_deal(beta=hot.beta, l1=x.l1, l2=x.l2, **named)
        s.send(message, s.e2, 0, run_ahead=True)
    else:
        share = kernels.tfe_bench_small_pick_share(
            masked_bits=hot.masked,
            m=x.m,
            part=x.l1 if s.is_e1 else x.l2,
            dealt=s.receive_dealt(sizes.tensor_size(x.m) // rows),
            output_mask=FRESH,
            **named,
        )
    shape = tensor_ops.dynamic_shape(x.any)[1:]
    return masked.exchange_masked(s, share, shape, FRESH, 1, scale=scale, is_masked=True)


def reduce_ring(x: Shared, k: int) -> Shared:
    """Return x of Z_2^64 as a value of Z_2^k, right for |x| < 2^(k-1). Local."""
    if x.limbs != 1 or not 2 <= k <= x.ring_bits:
        raise UsageError(
            f"Expected a ring of fewer bits than the value has. Received: {k} for {x!r}.",
            code="unsupported-ring",
            operation="reduced",
            received=k,
        )
    return replace(x, bits=0 if k == 64 else k)


def extend_nonnegative(party: Party, x: Shared, to_bits: int = 64, offset: int = 0) -> Shared:
    """Return x of Z_2^k with 0 <= x + offset < 2^(k-1) as a value of Z_2^to_bits, exactly.

    As an integer x + offset = m - (l1 + l2) + 2^k (om + (1 - msb m) msb(lam)), all of m, l1, l2
    mod 2^k and l1 + l2 = lam + 2^k om: D deals om and msb(lam) mod 2^(to_bits-k). The evaluators
    exchange the sum of their shares under the upper bits of new masks; lower bits do not change.

    Args:
        to_bits: bits of the larger ring, k < to_bits <= 64.
        offset: public.

    Rounds: 1 online (2 total). Bits sent: D 2 (to_bits - k), E1, E2 to_bits - k per element.
    Security: one deal of two fields, each with its own mask, and one exchange, all mod
        2^(to_bits-k).
    Raises:
        UsageError: x is not of a smaller ring.
    """
    if x.limbs != 1 or not x.ring_bits < to_bits <= 64:
        raise UsageError(
            f"extend expects a value of a smaller ring than Z_2^{to_bits}, of 64 bits at most. "
            f"Received: {x!r}.",
            code="unsupported-ring",
            operation="extend",
            received=repr(x),
        )
    return _extend_ring_with_shares(party, x, to_bits, 0, offset)[0]


def _extend_ring_with_shares(
    party: Party, x: Shared, to_bits: int, width: int, offset: int
) -> tuple[Shared, Any]:
    """Extend x, unless to_bits is its ring; also return the evaluators' shares mod 2^width.

    Args:
        width: 0 for no shares.
        offset: public, so that x + offset is not negative.
    """
    k, ring = x.ring_bits, max(to_bits, width) - x.ring_bits
    sent, scale, bits = to_bits - k, x.fractional_bits, to_bits % 64
    if isinstance(party, CostParty):
        dealt = 2 * packed_bits(x.shape.num_elements(), ring)
        shares = party.count_messages(Cost(dealt, 0, 0, rounds=0, with_dealing=1), x.shape, x)
        if not sent:
            return x, shares
        high = party.count_exchange(x.shape, 0, x, shares, scale=scale, width=sent)
        return replace(high, bits=bits), shares
    high_slot = {1: slots.declare_exchanged(sent)} if sent else {}
    s = party.site(
        "extend_small",
        k,
        to_bits,
        width,
        offset,
        dealer=x.dealer,
        slots={0: slots.declare_dealt(ring, times=2), **high_slot},
    )
    kernels, named = ops.module(), {"k": k, "ring": ring, **s.kernel_attributes()}
    message = shares = None
    if s.is_dealer:
        dealt = kernels.tfe_bench_lift_deal(l1=x.l1, l2=x.l2, **named)
        s.send(dealt, s.e2, 0, run_ahead=True)
    else:
        message, shares = kernels.tfe_bench_lift_share(
            m=x.m,
            part=x.l1 if s.is_e1 else x.l2,
            dealt=s.receive_dealt(sizes.tensor_size(x.m)),
            sent=sent,
            offset=offset,
            keep=width > 0,
            output_mask=FRESH,
            **named,
        )
    shares = shares if width else None
    if not sent:
        return x, shares
    m = None
    if not s.is_dealer:
        m = kernels.tfe_bench_lift_exchange(
            m=x.m, own=message, got=s.swap(message, 1), k=k, sent=sent, offset=offset
        )
    # (masks are made when m is there, as in masked.from_masked)
    with tf.control_dependencies([] if m is None else [m]):
        l1, l2 = (
            None
            if part is None
            else kernels.tfe_bench_lift_mask(part=part, k=k, **s._named(key, FRESH))
            for part, key in ((x.l1, K1), (x.l2, K2))
        )
    return replace(x, m=m, l1=l1, l2=l2, bits=bits), shares


def lift_signed(party: Party, x: Shared, to_bits: int = 64) -> Shared:
    """Return x of Z_2^k, |x| < 2^(k-2), as a value of Z_2^to_bits, exactly.

    x + 2^(k-2) is not negative and below 2^(k-1). Arguments, rounds, bits, errors: as
    `extend_nonnegative`.
    """
    if x.limbs != 1 or x.ring_bits == 64:
        raise UsageError(
            f"lift expects a value of a small ring. Received: {x!r}.",
            code="unsupported-ring",
            operation="lift",
            received=repr(x),
        )
    return extend_nonnegative(party, x, to_bits, offset=1 << (x.ring_bits - 2))


def lift_with_shares(party: Party, x: Shared, to_bits: int, width: int) -> tuple[Shared, Any]:
    """Apply `lift_signed`; also return the evaluators' shares of x mod 2^width (None at D).

    Args:
        to_bits: x's own ring, in which it then stays unchanged, or a larger one.
        width: more than x's ring has, 64 at most.

    With k bits of x's ring, rounds: as `lift_signed`, or 0 online (1 total) for the shares and an x
    that stays. Bits sent: D 2 (max(to_bits, width) - k), E1, E2 to_bits - k per element.
    Security: as `extend_nonnegative`, without some or all of its exchange.
    Raises:
        UsageError: x is not of a small ring, or rings that are no larger.
    """
    k = x.ring_bits
    if x.limbs != 1 or not (k <= to_bits <= RING and k < width <= RING):
        raise UsageError(
            "lift_with_shares expects a ring no smaller than that of x and more bits of shares, "
            "up to "
            f"64. Received: {x!r}, {to_bits} and {width}.",
            code="unsupported-ring",
            operation="lift_with_shares",
            received=f"{x!r}, {to_bits}, {width}",
        )
    return _extend_ring_with_shares(party, x, to_bits, width, 1 << (k - 2))


def truncated_product_sum(
    party: Party,
    products: Sequence[BilinearShareProduct],
    addend: Shared | None,
    drop: int,
    to_bits: int = 64,
    ring: int | None = None,
) -> Shared:
    """Compute (sum_i x_i . w_i + addend) / 2^drop over Z_2^to_bits, stochastically rounded.

    T4, and a lift.

    Args:
        drop: 1 to 60.
        to_bits: 64, or a smaller ring if later steps read no more bits.
        ring: bits of the ring in which it is exchanged, at most to_bits. None: the largest that
            the drop admits, because one more bit of it costs three bits sent and saves four of the
            lift.

    Reads drop + ring bits of all operands. With a ring below `to_bits` it is right for
    |sum| < 2^(ring - 2 + drop); else modulo 2^to_bits, for |sum| <= 2^(ring - 1 + drop) - 2^drop.
    Rounds: 1, and 1 more with a lift. Bits sent: those of `products.exchange_truncated_sum` and of
    `lift_signed`.
    Raises:
        UsageError: as `products.exchange_truncated_sum`.
    """
    ring = min(to_bits, RING - drop) if ring is None else ring
    y, _ = exchange_truncated_sum(party, "truncated_sum", products, addend, drop, ring)
    return lift_signed(party, y, to_bits) if ring < to_bits else y


def zero_shares_where(party: Party, bits: MaskedBits, x: Shared, to_bits: int = 64) -> Shared:
    """Return 0 where the bit is 1, else x, over Z_2^to_bits; such x of Z_2^k is not negative.

    k <= to_bits. With k < to_bits a selection in Z_2^k and `extend_nonnegative`: compared with
    convert.inject with extend_ring a round more, and 4 to_bits instead of 256 + 3 (64 - k) bits.

    Rounds: 2 (1 for k = to_bits). Bits sent: those of `select` and `extend_nonnegative`.
    """
    if x.ring_bits == 64:
        return convert.inject(party, bits, x, negated=True)
    y = select(party, bits, None, x)
    return extend_nonnegative(party, y, to_bits) if to_bits > y.ring_bits else y
