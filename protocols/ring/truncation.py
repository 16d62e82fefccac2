"""Truncation: dropping f fractional bits after a product.

On the masked view a product's opening and its truncation share one message, so
each variant here, applied to the result of mul or matmul, costs what the fused
form costs (docs/protocols.md, truncation).

T2b  truncate(.., "probable")  0 rounds, D f, E 0;       error (-1.5, 1.5) ulp, mean -2^-(f+1),
                               fails with probability |x| / 2^64
T3   truncate(.., "safe")      1 round,  D 64 + f, E f;  error (-1, 1) ulp, mean 0,
                               never fails for |x| < 2^62; the default
T4   truncate_reduce           1 round,  D 0, E k;       error (-1, 1) ulp modulo 2^k,
                               never fails for |x| <= 2^(k-1+t) - 2^t
T5   truncate(.., "exact")     3 rounds, D and E as T3 and a comparison of f bits;  rounded to the
                               nearest, never fails for |x| < 2^62 - 2^(f-1)

A failure of T2b is catastrophic: off by 2^(64-f).  Only T5 gives a function of x alone, which is
what may be revealed to workers without more: the others round by a coin that a party can recompute.
"""

from __future__ import annotations

from dataclasses import replace

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic, compare, convert, masked
from tfe_bench.protocols.session import local, ops, sizes
from tfe_bench.protocols.session.cost import Cost, packed
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.party import K1, Party
from tfe_bench.protocols.session.sharing import Shared

RING = 64
MOST_DROPPED = 48
METHODS = ("safe", "probable", "exact")


def _check(name: str, x: Shared, f: int) -> None:
    if x.limbs != 1 or x.ring_bits != RING:
        raise UsageError(f"{name} works over Z_2^64. Received: {x!r}.")
    if not 0 < f <= MOST_DROPPED:
        raise UsageError(f"{name} drops 1 to {MOST_DROPPED} bits. Received: {f}.")


def truncate(party: Party, x: Shared, f: int, method: str = "safe") -> Shared:
    """x / 2^f, stochastically rounded, or rounded to the nearest with "exact" (halves go up).

    Args:
        f: bits to drop; the result has that many fractional bits fewer.
        method: "safe" (T3; |x| < 2^62, never fails), "probable" (T2b; one round less, and a
            catastrophic error with probability |x| / 2^64: for small values only), or "exact"
            (T5; |x| < 2^62 - 2^(f-1), two rounds more): for what is then revealed.

    Revealing another result than an exact one gives away a comparison of the dropped bits
    (docs/threat_model.md).
    Rounds and bits: see the module's table.  Sources: ABY3 (Mohassel, Rindal, CCS 2018) section
    5.1; SPU's asymmetric truncation (commit 02ac612d); MP-SPDZ's trunc_pr with a small gap.
    """
    _check("truncate", x, f)
    if method not in METHODS:
        raise UsageError(f"truncate knows {', '.join(METHODS)}. Received: {method!r}.")
    y = {"safe": _safe, "probable": _probable, "exact": _exact}[method](party, x, f)
    return replace(y, fractional_bits=x.fractional_bits - f)


def _counted(party: Counting, x: Shared, f: int, method: str) -> Shared:
    cost = truncate_cost(x.shape.num_elements(), f, method)
    return replace(x, m=party.sent(cost, x.shape, x))


def _probable(party: Party, x: Shared, f: int) -> Shared:
    if isinstance(party, Counting):
        return _counted(party, x, f, "probable")
    import tensorflow as tf

    s = party.site("truncate_probable", f, dealer=x.dealer)
    shape = tf.shape(x.any, out_type=tf.int64)
    top = RING - f
    omega = None
    if s.is_dealer:
        # signed(l1) + signed(l2) = signed(l1 + l2) + omega 2^64, omega in {-1, 0, 1}
        total = x.l1 + x.l2
        negative = tf.constant(0, tf.int64)
        over = tf.logical_and(tf.logical_and(x.l1 >= negative, x.l2 >= negative), total < negative)
        under = tf.logical_and(tf.logical_and(x.l1 < negative, x.l2 < negative), total >= negative)
        omega = tf.cast(over, tf.int64) - tf.cast(under, tf.int64)
    w = masked.deal(s, omega, shape, 0, 0, f)
    m = l1 = l2 = None
    if s.is_dealer:
        w1 = local.low_bits(s.mask(K1, 0, shape), f)
        w2 = local.low_bits(omega - w1, f)
    else:
        m = local.arithmetic_shift(x.m - (1 << (f - 1)), f)
        w1 = w2 = w
    if not s.is_e2:
        l1 = local.arithmetic_shift(x.l1, f) - tf.bitwise.left_shift(w1, tf.constant(top, tf.int64))
    if not s.is_e1:
        l2 = local.arithmetic_shift(x.l2, f) - tf.bitwise.left_shift(w2, tf.constant(top, tf.int64))
    return replace(x, m=m, l1=l1, l2=l2)


def _safe(party: Party, x: Shared, f: int) -> Shared:
    if isinstance(party, Counting):
        return _counted(party, x, f, "safe")
    import tensorflow as tf

    s = party.site("truncate_safe", f, dealer=x.dealer)
    kernels, attributes = ops.module(), {"site": s.number, "dealer": s.dealer, "drop": f}
    if s.is_dealer:
        message, l1, l2 = kernels.tfe_bench_truncate_deal(
            call=s.ctx, l1=x.l1, l2=x.l2, **attributes
        )
        s.send(message, s.e2, 0, run_ahead=True)
        return replace(x, m=None, l1=l1, l2=l2)
    n = sizes.size(x.m)
    dealt = tf.zeros([0], tf.uint8)
    if s.is_e2:
        dealt = s.recv(sizes.vector(8 * n + (n * f + 7) // 8), s.d, 0, tf.uint8)
    own, part = kernels.tfe_bench_truncate_share(call=s.ctx, m=x.m, dealt=dealt, **attributes)
    s.send(own, s.other, 1)
    got = s.recv(sizes.vector((n * f + 7) // 8), s.other, 1, tf.uint8)
    m = kernels.tfe_bench_truncate_open(m=x.m, own=own, got=got, drop=f)
    return replace(x, m=m, l1=part if s.is_e1 else None, l2=part if s.is_e2 else None)


def _exact(party: Party, x: Shared, f: int) -> Shared:
    """T5: T3 of x + 2^(f-1), less the borrow that made its coin."""
    centred = x if x.m is None else replace(x, m=x.m + (1 << (f - 1)))
    # (m >> f) - (lam >> f) is one too many where the low bits of m are below those of lam.
    borrow = convert.open_bits(party, compare.borrow(party, centred, f, openings=1))
    more = convert.b2a(party, borrow, local.shape(x.any))
    up = _safe(party, centred, f)
    return arithmetic.sub(up, replace(more, fractional_bits=x.fractional_bits))


def truncate_reduce(party: Party, x: Shared, t: int, k: int) -> Shared:
    """x / 2^t in the small ring Z_2^k (T4): what a comparison of k bits wants.

    Exact modulo the stochastic rounding, any k <= 64 - t; no failure for
    |x| <= 2^(k-1+t) - 2^t (a value rounded up to 2^(k-1) would read as negative).
    Rounds: 1.  Bits sent: E1, E2 k per element each.
    """
    _check("truncate_reduce", x, t)
    if not 2 <= k <= RING - t:
        raise UsageError(f"truncate_reduce wants 2 <= k <= {RING - t}. Received: k={k}.")
    scale = x.fractional_bits - t
    if isinstance(party, Counting):
        sent = packed(x.shape.num_elements(), k)
        m = party.sent(Cost(0, sent, sent, rounds=1, cold=1), x.shape, x)
        return Shared(m, None, None, x.dealer, scale, 1, k)
    import tensorflow as tf

    s = party.site("truncate_reduce", t, k, dealer=x.dealer)
    shape = tf.shape(x.any, out_type=tf.int64)
    m = None
    if not s.is_dealer:
        # x = z1 + z2; floor(z1) + ceil(z2) is a stochastic rounding of the sum, mod 2^k exactly
        u = local.arithmetic_shift(x.m - x.l1, t) if s.is_e1 else -local.arithmetic_shift(x.l2, t)
        m = masked.exchange(s, u, tensor=0, slot=0, width=k)
    l1, l2 = s.new_mask(shape, tensor=0)
    return Shared(m, l1, l2, x.dealer, scale, 1, k)


def truncate_cost(n: int, f: int, method: str = "safe") -> Cost:
    """Cost of `truncate`, "safe" or "probable", for n elements."""
    if method == "probable":
        return Cost(dealer=packed(n, f), e1=0, e2=0, rounds=0, cold=1)
    return Cost(64 * n + packed(n, f), packed(n, f), packed(n, f), rounds=1, cold=2)
