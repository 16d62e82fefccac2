"""Values of a small ring Z_2^k: a choice between two that sends k bits, and the way to Z_2^64.

A value known to be small needs no 64-bit words while it is only compared and chosen: x of Z_2^64
with |x| < 2^(k-2) is, read mod 2^k, a value of Z_2^k, whose differences fit k bits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic, convert, masked
from tfe_bench.protocols.session import local, ops, sizes
from tfe_bench.protocols.session.cost import Cost, packed
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared


def select(party: Party, bits: MaskedBits, x: Shared, y: Shared) -> Shared:
    """x where the bit is 1, else y, both of one ring Z_2^k, k <= 64.

    y + b (x - y) = y + o d + (1 - 2o) beta d with d = x - y = m - lam, b = o ^ beta:  D deals beta
    and beta lam mod 2^k, and the evaluators open the sum of their shares mod 2^k.

    Rounds: 1 (cold 2).  Bits sent: D 2k, E1, E2 k per element (`select_cost`); convert.select is
    the same at k = 64.  Security: both messages are padded mod 2^k by masks of their own, which E2
    (K1) and the other evaluator (K1 or K2) cannot make.
    Raises:
        UsageError: values of other shapes, rings or dealers, or another number of bits.
    """
    for value in (x, y):
        convert.check_inject("select", bits, value)
    arithmetic.check_pair("select", x, y)
    if x.limbs != 1 or not x.shape.is_compatible_with(y.shape):
        raise UsageError(f"select wants values of one shape and word. Received: {x!r} and {y!r}.")
    k = x.ring_bits
    if isinstance(party, Counting):
        cost = select_cost(x.shape.num_elements(), k)
        return replace(x, m=party.sent(cost, x.shape, bits, x, y))
    import tensorflow as tf

    s = party.site("select", k, dealer=x.dealer)
    named = {"call": s.ctx, "site": s.number, "tensor": 0, "dealer": s.dealer, "bits": k}
    shape = tf.shape(x.any, out_type=tf.int64)
    m = None
    if s.is_dealer:
        message = ops.module().tfe_bench_small_select_deal(
            beta=bits.beta, even_l1=y.l1, even_l2=y.l2, odd_l1=x.l1, odd_l2=x.l2, **named
        )
        s.send(message, s.e2, 0, run_ahead=True)
    else:
        n = sizes.size(x.m)
        field = (n * k + 7) // 8
        dealt = tf.zeros([0], tf.uint8)
        if s.is_e2:
            dealt = s.recv(sizes.vector(2 * field), s.d, 0, tf.uint8)
        own = ops.module().tfe_bench_small_select_share(
            opened=bits.opened,
            even_m=y.m,
            even_part=y.l1 if s.is_e1 else y.l2,
            odd_m=x.m,
            odd_part=x.l1 if s.is_e1 else x.l2,
            dealt=dealt,
            **named,
        )
        s.send(own, s.other, 1)
        got = s.recv(sizes.vector(field), s.other, 1, tf.uint8)
        m = s._opened = ops.module().tfe_bench_add_packed(
            own=own, other=got, shape=sizes.constant(shape), width=k
        )
    l1, l2 = s.new_mask(shape, tensor=2)
    return replace(x, m=m, l1=l1, l2=l2)


def select_cost(n: int, k: int) -> Cost:
    """Cost of `select` for n elements of Z_2^k."""
    return Cost(dealer=2 * packed(n, k), e1=packed(n, k), e2=packed(n, k), rounds=1, cold=2)


def reduced(x: Shared, k: int) -> Shared:
    """x of Z_2^64 as a value of Z_2^k, right for |x| < 2^(k-1).  Local."""
    if x.limbs != 1 or not 2 <= k <= x.ring_bits:
        raise UsageError(f"A value is reduced to fewer bits than it has. Received: {k} of {x!r}.")
    return replace(x, bits=0 if k == 64 else k)


def extend(party: Party, x: Shared) -> Shared:
    """x of Z_2^k with 0 <= x < 2^(k-1) as a value of Z_2^64, exactly.

    As an integer x = m - (l1 + l2) + 2^k (om + (1 - msb m) msb(lam)), all of m, l1, l2 mod 2^k and
    l1 + l2 = lam + 2^k om: D deals om and msb(lam) mod 2^(64-k), of which the evaluators' sums
    are opened under the upper bits of new masks; the lower bits stay what they are.

    Rounds: 1 (cold 2).  Bits sent: D 2 (64 - k), E1, E2 64 - k per element (`extend_cost`).
    Security: two deals and one open_mask, all mod 2^(64-k).
    Raises:
        UsageError: x is not of a small ring.
    """
    k = x.ring_bits
    if x.limbs != 1 or k == 64:
        raise UsageError(f"extend wants a value of a small ring. Received: {x!r}.")
    if isinstance(party, Counting):
        cost = extend_cost(x.shape.num_elements(), k)
        return replace(x, m=party.sent(cost, x.shape, x), bits=0)
    import tensorflow as tf

    s = party.site("extend_small", k, dealer=x.dealer)
    shape, width = tf.shape(x.any, out_type=tf.int64), 64 - k
    low = x.map(lambda a: local.low_bits(a, k))
    over = top = m = None
    if s.is_dealer:
        total = low.l1 + low.l2
        over = local.logical_shift(total, k)
        top = local.low_bits(local.logical_shift(total, k - 1), 1)
    wraps = masked.deal(s, over, shape, 0, 0, width)
    tops = masked.deal(s, top, shape, 1, 1, width)
    if not s.is_dealer:
        below = 1 - local.logical_shift(low.m, k - 1)
        opened = masked.exchange(s, wraps + below * tops, 2, 2, width)
        m = low.m + local.left_shift(opened, k)
    new1, new2 = s.new_mask(shape, 2)
    l1, l2 = (
        None if old is None else old + local.left_shift(new, k)
        for old, new in ((low.l1, new1), (low.l2, new2))
    )
    return replace(x, m=m, l1=l1, l2=l2, bits=0)


def extend_cost(n: int, k: int) -> Cost:
    """Cost of `extend` for n elements of Z_2^k."""
    w = packed(n, 64 - k)
    return Cost(dealer=2 * w, e1=w, e2=w, rounds=1, cold=2)


def lift(party: Party, x: Shared) -> Shared:
    """x of Z_2^k, |x| < 2^(k-2), as a value of Z_2^64, exactly.

    x + 2^(k-2) is not negative and below 2^(k-1).  Rounds and bits: as `extend`.
    """
    if x.limbs != 1 or x.ring_bits == 64:
        raise UsageError(f"lift wants a value of a small ring. Received: {x!r}.")
    offset = 1 << (x.ring_bits - 2)
    return _plus(extend(party, _plus(x, offset)), -offset)


def _plus(x: Shared, public: Any) -> Shared:
    return x if x.m is None else replace(x, m=x.m + public)


def rectified(party: Party, bits: MaskedBits, x: Shared) -> Shared:
    """x where the bit is 0, else 0, over Z_2^64; x of Z_2^k, not negative where it stays.

    With k < 64 a choice in Z_2^k and `extend`: against convert.inject with extend_ring a round
    more, and D sends 2k + 2 (64 - k) = 128 bits for 128 + 3 (64 - k).

    Rounds: 2 (1 for k = 64).  Bits sent: those of `select` and `extend`.
    """
    if x.ring_bits == 64:
        return convert.inject(party, bits, x, negated=True)
    return extend(party, select(party, bits, x.map(local.zeros_like), x))
