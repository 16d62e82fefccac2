"""Values of a small ring Z_2^k: a choice between two that sends k bits, and the way to Z_2^64.

A value known to be small needs no 64-bit words while it is only compared and chosen: x of Z_2^64
with |x| < 2^(k-2) is, read mod 2^k, a value of Z_2^k, whose differences fit k bits.
"""

from __future__ import annotations

from dataclasses import replace

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic, checks, convert, masked
from tfe_bench.protocols.session import local, ops, sizes
from tfe_bench.protocols.session.cost import packed
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


def reduced(x: Shared, k: int) -> Shared:
    """x of Z_2^64 as a value of Z_2^k, right for |x| < 2^(k-1).  Local."""
    if x.limbs != 1 or not 2 <= k <= x.ring_bits:
        raise UsageError(f"A value is reduced to fewer bits than it has. Received: {k} of {x!r}.")
    return replace(x, bits=0 if k == 64 else k)


def extend(party: Party, x: Shared) -> Shared:
    """x of Z_2^k with 0 <= x < 2^(k-1) as a value of Z_2^64, exactly.

    As an integer x = m - (l1 + l2) + 2^k (om + (1 - msb m) msb(lam)), all of m, l1, l2 mod 2^k and
    l1 + l2 = lam + 2^k om: D deals om and msb(lam) mod 2^(64-k), of which the evaluators' sums
    are exchanged under the upper bits of new masks; the lower bits stay what they are.

    Rounds: 1 (2 with dealing).  Bits sent: D 2 (64 - k), E1, E2 64 - k per element.
    Security: two deals and one exchange, all mod 2^(64-k).
    Raises:
        UsageError: x is not of a small ring.
    """
    k = x.ring_bits
    if x.limbs != 1 or k == 64:
        raise UsageError(f"extend wants a value of a small ring. Received: {x!r}.")
    width, scale = 64 - k, x.fractional_bits
    if isinstance(party, Counting):
        dealt = 2 * packed(x.shape.num_elements(), width)
        return replace(party.exchanged(x.shape, dealt, x, scale=scale, width=width), bits=0)
    s = party.site("extend_small", k, dealer=x.dealer)
    shape = local.shape(x.any)
    low = replace(x.map(lambda a: local.low_bits(a, k)), bits=0)
    over = top = share = None
    if s.is_dealer:
        total = low.l1 + low.l2
        over = local.logical_shift(total, k)
        top = local.low_bits(local.logical_shift(total, k - 1), 1)
    wraps = masked.deal(s, over, shape, 0, 0, width)
    tops = masked.deal(s, top, shape, 1, 1, width)
    if not s.is_dealer:
        share = wraps + (1 - local.logical_shift(low.m, k - 1)) * tops
    high = masked.exchanged(s, share, shape, 2, 2, scale=scale, width=width)
    return arithmetic.add(low, replace(high.map(lambda a: local.left_shift(a, k)), bits=0))


def lift(party: Party, x: Shared) -> Shared:
    """x of Z_2^k, |x| < 2^(k-2), as a value of Z_2^64, exactly.

    x + 2^(k-2) is not negative and below 2^(k-1).  Rounds and bits: as `extend`.
    """
    if x.limbs != 1 or x.ring_bits == 64:
        raise UsageError(f"lift wants a value of a small ring. Received: {x!r}.")
    offset = 1 << (x.ring_bits - 2)
    return arithmetic.moved(extend(party, arithmetic.moved(x, offset)), -offset)


def rectified(party: Party, bits: MaskedBits, x: Shared) -> Shared:
    """x where the bit is 0, else 0, over Z_2^64; x of Z_2^k, not negative where it stays.

    With k < 64 a choice in Z_2^k and `extend`: against convert.inject with extend_ring a round
    more, and D sends 2k + 2 (64 - k) = 128 bits for 128 + 3 (64 - k).

    Rounds: 2 (1 for k = 64).  Bits sent: those of `select` and `extend`.
    """
    if x.ring_bits == 64:
        return convert.inject(party, bits, x, negated=True)
    return extend(party, select(party, bits, x.map(local.zeros_like), x))
