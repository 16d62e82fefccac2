"""Values of a small ring Z_2^k: a choice between two that sends k bits, and the way to Z_2^64.

A value known to be small needs no 64-bit words while it is only compared and chosen: x of Z_2^64
with |x| < 2^(k-2) is, read mod 2^k, a value of Z_2^k, whose differences fit k bits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.protocols import arithmetic, convert, ops, sizes
from tfe_bench.protocols.cost import Cost, packed
from tfe_bench.protocols.party import Party
from tfe_bench.protocols.sharing import MaskedBits, Shared


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
    import tensorflow as tf

    for value in (x, y):
        convert.check_inject("select", bits, value)
    arithmetic.check_pair("select", x, y)
    if x.limbs != 1 or not x.shape.is_compatible_with(y.shape):
        raise UsageError(f"select wants values of one shape and word. Received: {x!r} and {y!r}.")
    k = x.ring_bits
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


def lift(party: Party, x: Shared) -> Shared:
    """x of Z_2^k, |x| < 2^(k-2), as a value of Z_2^64, exactly.

    x + 2^(k-2) is not negative and below 2^(k-1), so that a bit injection with a public 1 extends
    its ring (convert.inject).

    Rounds: 1 (cold 2).  Bits sent: those of convert.inject with ring_bits k.
    """
    import tensorflow as tf

    k = x.ring_bits
    if x.limbs != 1 or k == 64:
        raise UsageError(f"lift wants a value of a small ring. Received: {x!r}.")
    offset = tf.constant(1 << (k - 2), tf.int64)
    n = sizes.size(x.any)
    some = tf.fill(sizes.vector((n + 63) // 64), tf.constant(0, tf.int64))
    every = tf.bitwise.invert(some)
    is_dealer = party.index == x.dealer
    ones = MaskedBits(None if is_dealer else every, some if is_dealer else None, n, x.dealer)
    raised = convert.inject(party, ones, _plus(x, offset), extend_ring=True)
    return _plus(raised, -offset)


def lift_cost(n: int, k: int) -> Cost:
    """Cost of `lift` for n elements of Z_2^k."""
    return convert.inject_cost(n, ring_bits=k)


def _plus(x: Shared, public: Any) -> Shared:
    return x if x.m is None else replace(x, m=x.m + public)
