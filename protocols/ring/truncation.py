"""Truncation: dropping f fractional bits after a product.

On the masked view a product's exchange and its truncation share one message, so
each variant here, applied to the result of mul or matmul, costs as much as the fused
form (docs/protocols.md, truncation).

T2b  truncate(.., "probable")  0 rounds, D f, E 0;       error (-1.5, 1.5) ulp, mean -2^-(f+1),
                               fails with probability |x| / 2^64
T3   truncate(.., "safe")      1 round,  D 64 + f, E f;  error (-1, 1) ulp, mean 0,
                               never fails for |x| < 2^62; the default
T4   truncate_reduce           1 round,  D 0, E k;       error (-1, 1) ulp modulo 2^k,
                               never fails for |x| <= 2^(k-1+t) - 2^t
T5   truncate(.., "exact")     3 rounds, D and E as T3 and a comparison of f bits;  rounded to the
                               nearest, never fails for |x| < 2^62 - 2^(f-1)

A failure of T2b is catastrophic: off by 2^(64-f). Only the result of T5 is a function of x alone,
which may be revealed to workers without further leakage: the others round by a coin that a party
can recompute.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.ring import arithmetic, compare, convert, masked
from tfe_bench.protocols.ring.checks import check_private_64bit_tensor
from tfe_bench.protocols.session import ops, sizes, slots, tensor_ops
from tfe_bench.protocols.session.cost import Cost, packed_bits
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import K1, Party, Site
from tfe_bench.protocols.session.sharing import Shared

RING = 64
MAX_DROPPED_BITS = 48
METHODS = ("safe", "probable", "exact")


def _check_dropped_bits(name: str, x: Shared, f: int) -> None:
    check_private_64bit_tensor(name, x)
    if not 0 < f <= MAX_DROPPED_BITS:
        raise UsageError(
            f"{name} drops 1 to {MAX_DROPPED_BITS} bits. Received: {f}.",
            code="number-out-of-range",
            operation=name,
            received=f,
            expected=f"1 to {MAX_DROPPED_BITS}",
        )


def truncate(party: Party, x: Shared, f: int, method: str = "safe") -> Shared:
    """Divide by 2^f, stochastically rounded, or rounded to the nearest with "exact" (halves go up).

    Args:
        f: bits to drop; the result has that many fractional bits fewer.
        method: "safe" (T3; |x| < 2^62, never fails), "probable" (T2b; one round less, and a
            catastrophic error with probability |x| / 2^64: for small values only), or "exact"
            (T5; |x| < 2^62 - 2^(f-1), two rounds more): for results that are then revealed.

    Revealing a result that is not exact discloses a comparison of the dropped bits
    (docs/threat_model.md).
    Rounds and bits: see the module's table. Sources: ABY3 (Mohassel, Rindal, CCS 2018) section
    5.1; SPU's asymmetric truncation (commit 02ac612d); MP-SPDZ's trunc_pr with a small gap.
    """
    _check_dropped_bits("truncate", x, f)
    if method not in METHODS:
        raise UsageError(
            f"truncate expects a method from {', '.join(METHODS)}. Received: {method!r}.",
            code="unknown-name",
            operation="truncate",
            received=method,
            expected=", ".join(METHODS),
        )
    if isinstance(party, CostParty) and method != "exact":
        cost = truncate_cost(x.shape.num_elements(), f, method)
        y = replace(x, m=party.count_messages(cost, x.shape, x))
    else:
        y = {"safe": _truncate_safe, "probable": _truncate_probable, "exact": _truncate_exact}[
            method
        ](party, x, f)
    return replace(y, fractional_bits=x.fractional_bits - f)


def _truncate_probable(party: Party, x: Shared, f: int) -> Shared:
    s = party.site("truncate_probable", f, dealer=x.dealer, slots={0: slots.declare_dealt(f)})
    total = x.l1 + x.l2 if s.is_dealer else None
    w1, w2 = deal_mask_wrap_shares(s, x.l1, x.l2, total, tensor_ops.dynamic_shape(x.any), f)
    m = None if s.is_dealer else tensor_ops.arithmetic_shift(x.m - (1 << (f - 1)), f)
    l1, l2 = (
        None
        if w is None
        else tensor_ops.arithmetic_shift(part, f) - tensor_ops.left_shift(w, RING - f)
        for part, w in ((x.l1, w1), (x.l2, w2))
    )
    return replace(x, m=m, l1=l1, l2=l2)


def deal_mask_wrap_shares(
    s: Site, l1: Any, l2: Any, total: Any, shape: Any, f: int
) -> tuple[Any, Any]:
    """Deal shares mod 2^f, in slot 0, of the wrap -1, 0 or 1 of signed l1 + l2.

    D has E1's and E2's.

    Args:
        l1, l2, total: their highest words, at the dealer.

    Bits sent: D f per element.
    """
    if not s.is_dealer:
        w = masked.deal(s, None, shape, 0)
        return (w, None) if s.is_e1 else (None, w)
    zero = tf.constant(0, tf.int64)
    over = tf.logical_and(tf.logical_and(l1 >= zero, l2 >= zero), total < zero)
    under = tf.logical_and(tf.logical_and(l1 < zero, l2 < zero), total >= zero)
    omega = tf.cast(over, tf.int64) - tf.cast(under, tf.int64)
    masked.deal(s, omega, shape, 0)
    w1 = tensor_ops.low_bits(s.mask(K1, 0, shape), f)
    return w1, tensor_ops.low_bits(omega - w1, f)


def _truncate_safe(party: Party, x: Shared, f: int) -> Shared:
    s = party.site(
        "truncate_safe",
        f,
        dealer=x.dealer,
        slots={0: slots.declare_dealt(RING, f), 1: slots.declare_exchanged(f)},
    )
    kernels, attributes = ops.module(), {"site": s.number, "dealer": s.dealer, "drop": f}
    if s.is_dealer:
        message, l1, l2 = kernels.tfe_bench_truncate_deal(
            call=s.ctx, l1=x.l1, l2=x.l2, **attributes
        )
        s.send(message, s.e2, 0, run_ahead=True)
        return replace(x, m=None, l1=l1, l2=l2)
    dealt = s.receive_dealt(sizes.tensor_size(x.m))
    masked_share, part = kernels.tfe_bench_truncate_share(
        call=s.ctx, m=x.m, dealt=dealt, **attributes
    )
    m = kernels.tfe_bench_truncate_exchange(
        m=x.m, own=masked_share, got=s.swap(masked_share, 1), drop=f
    )
    return replace(x, m=m, l1=part if s.is_e1 else None, l2=part if s.is_e2 else None)


def _truncate_exact(party: Party, x: Shared, f: int) -> Shared:
    """Apply T5: T3 of x + 2^(f-1), minus the borrow that determined its coin."""
    centered = arithmetic.add_constant(x, 1 << (f - 1))
    # (m >> f) - (lam >> f) is one too many where the low bits of m are below those of lam.
    borrow = convert.mask_bits(party, compare.compare_low_bits(party, centered, f, exchanges=1))
    correction = convert.b2a(party, borrow, tensor_ops.dynamic_shape(x.any))
    up = truncate(party, centered, f)
    return arithmetic.sub(up, replace(correction, fractional_bits=up.fractional_bits))


def truncate_reduce(party: Party, x: Shared, t: int, k: int) -> Shared:
    """Divide by 2^t in the small ring Z_2^k (T4), as a comparison of k bits needs it.

    Exact modulo the stochastic rounding, any k <= 64 - t; no failure for
    |x| <= 2^(k-1+t) - 2^t (a value rounded up to 2^(k-1) would be read as negative).
    Rounds: 1. Bits sent: E1, E2 k per element each.
    """
    _check_dropped_bits("truncate_reduce", x, t)
    if not 2 <= k <= RING - t:
        raise UsageError(
            f"truncate_reduce expects 2 <= k <= {RING - t}. Received: k={k}.",
            code="unsupported-ring",
            operation="truncate_reduce",
            received=k,
            expected=f"2 to {RING - t}",
        )
    scale = x.fractional_bits - t
    s = party.site("truncate_reduce", t, k, dealer=x.dealer, slots={0: slots.declare_exchanged(k)})
    share = None if s.is_dealer else x.m - x.l1 if s.is_e1 else -x.l2
    share = masked.truncate_shares(s, share, t)
    return masked.exchange_masked(s, share, tensor_ops.dynamic_shape(x.any), 0, scale=scale)


def truncate_cost(n: int, f: int, method: str = "safe", limbs: int = 1) -> Cost:
    """Return the cost of `truncate`, "safe" or "probable", for n elements."""
    if method == "probable":
        return Cost(dealer=packed_bits(n, f), e1=0, e2=0, rounds=0, with_dealing=1)
    return Cost(
        64 * limbs * n + packed_bits(n, f),
        packed_bits(n, f),
        packed_bits(n, f),
        rounds=1,
        with_dealing=2,
    )
