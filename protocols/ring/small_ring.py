"""Values of a small ring Z_2^k: a choice between two that sends k bits, and the way to Z_2^64.

A value known to be small needs no 64-bit words while it is only compared and chosen: x of Z_2^64
with |x| < 2^(k-2) is, read mod 2^k, a value of Z_2^k, whose differences fit k bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic, checks, convert, masked
from tfe_bench.protocols.ring.products import RING, Product, truncated
from tfe_bench.protocols.session import local, ops, sizes
from tfe_bench.protocols.session.cost import Cost, packed
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared


def select(party: Party, bits: MaskedBits, x: Shared, y: Shared) -> Shared:
    """x where the bit is 1, else y, both of one ring Z_2^k, k <= 64.

    y + b (x - y) = y + o d + (1 - 2o) beta d with d = x - y = m - lam, b = o ^ beta:  D deals beta
    and beta lam mod 2^k, and the evaluators exchange the sum of their shares mod 2^k.

    Rounds: 1 (2 with dealing).  Bits sent: D 2k, E1, E2 k per element; convert.select is the same
        at
    k = 64.  Security: both messages are padded mod 2^k by masks of their own, which E2
    (K1) and the other evaluator (K1 or K2) cannot make.
    Raises:
        UsageError: values of other shapes, rings or dealers, or another number of bits.
    """
    for value in (x, y):
        convert.check_inject("select", bits, value)
    checks.check_pair("select", x, y)
    if x.limbs != 1 or not x.shape.is_compatible_with(y.shape):
        raise UsageError(f"select wants values of one shape and word. Received: {x!r} and {y!r}.")
    k = x.ring_bits
    scale, n = x.fractional_bits, sizes.size(x.any)
    if isinstance(party, Counting):
        return party.exchanged(x.shape, 2 * packed(n, k), bits, x, y, scale=scale, width=k)
    import tensorflow as tf

    s = party.site("select", k, dealer=x.dealer)
    kernels, named = ops.module(), {**s.attributes(), "bits": k}
    own = None
    if s.is_dealer:
        message = kernels.tfe_bench_small_select_deal(
            beta=bits.beta, even_l1=y.l1, even_l2=y.l2, odd_l1=x.l1, odd_l2=x.l2, **named
        )
        s.send(message, s.e2, 0, run_ahead=True)
    else:
        own = kernels.tfe_bench_small_select_share(
            masked_bits=bits.masked,
            even_m=y.m,
            even_part=y.l1 if s.is_e1 else y.l2,
            odd_m=x.m,
            odd_part=x.l1 if s.is_e1 else x.l2,
            dealt=s.dealt(2 * ((n * k + 7) // 8), 0, tf.uint8),
            **named,
        )
    shape = local.shape(x.any)
    return masked.exchanged(s, own, shape, 2, 1, scale=scale, width=k, left=True)


def pick(party: Party, hot: MaskedBits, x: Shared) -> Shared:
    """sum_j hot_j x_j over the first axis of x [width, ...], modulo x's ring Z_2^k.

    As extremes.pick with k bits instead of 64: D deals beta and beta lam modulo 2^k.
    Rounds: 1 (2 with dealing).  Bits sent: D 2k per element of x, E1, E2 k per element of the
        result.
    """
    convert.check_inject("pick", hot, x)
    k, scale = x.ring_bits, x.fractional_bits
    if isinstance(party, Counting):
        dealt = 2 * packed(x.shape.num_elements(), k)
        return party.exchanged(x.shape[1:], dealt, hot, x, scale=scale, width=k)
    s = party.site("pick_small", k, dealer=x.dealer)
    shape = local.shape(x.any)
    known = convert.unpacked(hot, shape)
    product = local.mul(known, local.add(x.l1, x.l2)) if s.is_dealer else None
    beta = masked.deal(s, known, shape, 0, 0, k)
    beta_lam = masked.deal(s, product, shape, 1, 1, k)
    y = None
    if not s.is_dealer:
        own = local.neg(x.l1) if s.is_e1 else local.sub(x.m, x.l2)
        crossed = local.sub(local.mul(x.m, beta), beta_lam)
        terms = local.add(local.mul(known, own), local.mul(local.signs(known), crossed))
        y = local.reduce_sum(terms, axis=0)
    return masked.exchanged(s, y, shape[1:], 2, 2, scale=scale, width=k)


def reduced(x: Shared, k: int) -> Shared:
    """x of Z_2^64 as a value of Z_2^k, right for |x| < 2^(k-1).  Local."""
    if x.limbs != 1 or not 2 <= k <= x.ring_bits:
        raise UsageError(f"A value is reduced to fewer bits than it has. Received: {k} of {x!r}.")
    return replace(x, bits=0 if k == 64 else k)


def extend(party: Party, x: Shared, to: int = 64) -> Shared:
    """x of Z_2^k with 0 <= x < 2^(k-1) as a value of Z_2^to, exactly.

    As an integer x = m - (l1 + l2) + 2^k (om + (1 - msb m) msb(lam)), all of m, l1, l2 mod 2^k and
    l1 + l2 = lam + 2^k om: D deals om and msb(lam) mod 2^(to-k), of which the evaluators' sums
    are exchanged under the upper bits of new masks; the lower bits stay what they are.

    Args:
        to: of the larger ring, k < to <= 64.

    Rounds: 1 (2 with dealing).  Bits sent: D 2 (to - k), E1, E2 to - k per element.
    Security: two deals and one exchange, all mod 2^(to-k).
    Raises:
        UsageError: x is not of a smaller ring.
    """
    if x.limbs != 1 or not x.ring_bits < to <= 64:
        raise UsageError(
            f"extend wants a value of a smaller ring than Z_2^{to}, of 64 bits at most. "
            f"Received: {x!r}."
        )
    return _extended(party, x, to, to)[0]


def _extended(party: Party, x: Shared, to: int, width: int) -> tuple[Shared, Any]:
    """`extend` (x as it is where `to` is its ring), and the evaluators' shares of x mod 2^width."""
    k, most = x.ring_bits, max(to, width)
    scale, bits = x.fractional_bits, to % 64
    if isinstance(party, Counting):
        dealt = 2 * packed(x.shape.num_elements(), most - k)
        left = party.sent(Cost(dealt, 0, 0, rounds=0, with_dealing=1), x.shape, x)
        if to == k:
            return x, left
        high = party.exchanged(x.shape, 0, x, left, scale=scale, width=to - k)
        return replace(high, bits=bits), left
    s = party.site("extend_small", k, to, width, dealer=x.dealer)
    shape = local.shape(x.any)
    low = replace(x.map(lambda a: local.low_bits(a, k)), bits=bits)
    over = top = share = left = None
    if s.is_dealer:
        total = local.add(low.l1, low.l2)
        over = local.logical_shift(total, k)
        top = local.low_bits(local.logical_shift(total, k - 1), 1)
    wraps = masked.deal(s, over, shape, 0, 0, most - k)
    tops = masked.deal(s, top, shape, 1, 1, most - k)
    if not s.is_dealer:
        open_tops = local.sub(local.constant(1), local.logical_shift(low.m, k - 1))
        share = local.add(wraps, local.mul(open_tops, tops))
        own = local.sub(low.m, low.l1) if s.is_e1 else local.neg(low.l2)
        left = local.add(local.left_shift(share, k), own)
    if to == k:
        return x, left
    high = masked.exchanged(s, share, shape, 2, 2, scale=scale, width=to - k)
    return arithmetic.add(low, replace(high.map(lambda a: local.left_shift(a, k)), bits=bits)), left


def lift(party: Party, x: Shared, to: int = 64) -> Shared:
    """x of Z_2^k, |x| < 2^(k-2), as a value of Z_2^to, exactly.

    x + 2^(k-2) is not negative and below 2^(k-1).  Arguments, rounds, bits, errors: as `extend`.
    """
    if x.limbs != 1 or x.ring_bits == 64:
        raise UsageError(f"lift wants a value of a small ring. Received: {x!r}.")
    offset = 1 << (x.ring_bits - 2)
    return arithmetic.moved(extend(party, arithmetic.moved(x, offset), to), -offset)


def lift_with_shares(party: Party, x: Shared, to: int, width: int) -> tuple[Shared, Any]:
    """`lift`, and the evaluators' shares of x modulo 2^width (None at the dealer).

    Args:
        to: x's own ring, in which it then stays as it is, or a larger one.
        width: more than x's ring has, 64 at most.

    With k bits of x's ring, rounds: as `lift`, or 0 (1 with dealing) for the shares and an x that
    stays.  Bits sent: D 2 (max(to, width) - k), E1, E2 to - k per element.
    Security: as `extend`, of which some or all of the exchange is left out.
    Raises:
        UsageError: x is not of a small ring, or rings that are no larger.
    """
    k = x.ring_bits
    if x.limbs != 1 or not (k <= to <= RING and k < width <= RING):
        raise UsageError(
            f"lift_with_shares wants a ring from that of x on and more bits of shares, up to 64. "
            f"Received: {x!r}, {to} and {width}."
        )
    offset = 1 << (k - 2)
    y, share = _extended(party, arithmetic.moved(x, offset), to, width)
    if not isinstance(party, Counting) and y.l1 is not None and y.m is not None:  # (at E1)
        share = share - offset
    return arithmetic.moved(y, -offset), share


def product(
    party: Party,
    products: Sequence[Product],
    addend: Shared | None,
    drop: int,
    to: int = 64,
    ring: int | None = None,
) -> Shared:
    """(sum_i x_i . w_i + addend) / 2^drop over Z_2^to, stochastically rounded: T4, and a lift.

    Args:
        drop: 1 to 60.
        to: 64, or a smaller ring for whoever reads no more bits.
        ring: in which it is opened, to at most; None: the largest that the drop leaves, as a bit
            more of it is three bits sent, and four less of the lift.

    Reads drop + ring bits of all that it is given.  With a ring below `to` it is right for
    |sum| < 2^(ring - 2 + drop); else modulo 2^to, for |sum| <= 2^(ring - 1 + drop) - 2^drop.
    Rounds: 1, and 1 more with a lift.  Bits sent: those of `products.truncated` and of `lift`.
    Raises:
        UsageError: as `products.truncated`.
    """
    ring = min(to, RING - drop) if ring is None else ring
    y, _ = truncated(party, "truncated_sum", products, addend, drop, ring)
    return lift(party, y, to) if ring < to else y


def rectified(party: Party, bits: MaskedBits, x: Shared, to: int = 64) -> Shared:
    """x where the bit is 0, else 0, over Z_2^to; x of Z_2^k, k <= to, not negative where it stays.

    With k < to a choice in Z_2^k and `extend`: against convert.inject with extend_ring a round
    more, and 4 to bits for 256 + 3 (64 - k).

    Rounds: 2 (1 for k = to).  Bits sent: those of `select` and `extend`.
    """
    if x.ring_bits == 64:
        return convert.inject(party, bits, x, negated=True)
    y = select(party, bits, x.map(local.zeros_like), x)
    return extend(party, y, to) if to > y.ring_bits else y
