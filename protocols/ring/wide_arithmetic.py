"""Products, constants and truncation in either ring; over Z_2^128 in the same dealer form.

A value of Z_2^64 goes to arithmetic.py and truncation.py.  Over Z_2^128 the forms are theirs, word
for word, on pairs of words (wide.py):

T2b  truncate(.., "probable")  0 rounds, D f, E 0;        error (-1.5, 1.5) ulp,
                               fails with probability |x| / 2^128
T3   truncate(.., "safe")      1 round,  D 128 + f, E f;  error (-1, 1) ulp, mean 0,
                               never fails for |x| < 2^126
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic, convert, masked, truncation
from tfe_bench.protocols.session import local, ops, wide
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.party import K1, K2, Party, Site
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

RING = 128
MOST_DROPPED = 63  # so that what is multiplied by 2^(128-f) lies in the high word


def constant(value: int, limbs: int) -> Any:
    """An integer as a ring element: a scalar, or two words."""
    words = [(value >> (64 * i)) % (1 << 64) for i in range(limbs)]
    signed = [w - (1 << 64) if w >> 63 else w for w in words]
    return np.array(signed[0] if limbs == 1 else signed, np.int64)


def plus(a: Any, b: Any, limbs: int) -> Any:
    """a + b of ring elements."""
    return a + b if limbs == 1 else wide.add(a, b)


def minus(a: Any, b: Any, limbs: int) -> Any:
    """a - b of ring elements."""
    return a - b if limbs == 1 else wide.sub(a, b)


def times(a: Any, b: Any, limbs: int) -> Any:
    """a * b of ring elements; a constant may be the second factor."""
    if limbs == 1 or not local.known(a):
        return a * b
    import tensorflow as tf

    return ops.module().tfe_bench_wide_mul(a=a, b=tf.broadcast_to(b, tf.shape(a)))


def add_constant(x: Shared, value: int) -> Shared:
    """x + c for a public integer at x's scale.  Local: only m moves."""
    if x.m is None:
        return x
    return replace(x, m=plus(x.m, constant(value, x.limbs), x.limbs))


def mul_constant(x: Shared, value: int, fractional_bits: int = 0) -> Shared:
    """x * c for a public integer with its own scale.  Local; scales add up."""
    y = x.map(lambda a: times(a, constant(value, x.limbs), x.limbs))
    return replace(y, fractional_bits=x.fractional_bits + fractional_bits)


def bit_shares(s: Site, bits: MaskedBits, shape: Any, tensor: int, slot: int, limbs: int) -> Any:
    """`convert.b2a_shares` in either ring: additive shares of bits; None at the dealer.

    Args:
        shape: of the words, with the axis of 2 when limbs is 2.

    Rounds: 0 with D ahead, else 1.  Bits sent: D 64 * limbs per bit.
    """
    known = convert.unpacked(bits, shape, limbs)
    share = masked.deal(s, known, shape, tensor, slot, 64 * limbs)
    return None if s.is_dealer else flipped(s, known, share, limbs)


def flipped(s: Site, masked_bits: Any, share: Any, limbs: int) -> Any:
    """Shares of masked ^ beta from shares of beta: o + (1 - 2 o) beta."""
    y = signed(masked_bits, share, limbs)
    return plus(y, masked_bits, limbs) if s.is_e2 else y


def signed(masked_bits: Any, share: Any, limbs: int) -> Any:
    """(1 - 2 o) * share, o = 0 or 1."""
    import tensorflow as tf

    if limbs == 1:
        return (1 - 2 * masked_bits) * share
    return tf.where(tf.equal(masked_bits[..., :1], 1), wide.negate(share), share)


def mul(party: Party, x: Shared, y: Shared) -> Shared:
    """x * y elementwise; over Z_2^128 without broadcasting.  The scales add up.

    Rounds: 1 (2 with dealing).  Bits sent: D, E1, E2 one ring element per element each.
    """
    if x.limbs == 1:
        return arithmetic.mul(party, x, y)
    if y.limbs != 2 or x.ring_bits != RING or y.ring_bits != RING or x.dealer != y.dealer:
        raise UsageError(
            f"mul wants operands with one dealer and one ring. Received: {x!r} and {y!r}."
        )
    scale = x.fractional_bits + y.fractional_bits
    if isinstance(party, Counting):
        dealt = RING * x.shape.num_elements()
        return party.exchanged(x.shape, dealt, x, y, scale=scale, width=RING)
    s = party.site("wide_mul", x.fractional_bits, y.fractional_bits, dealer=x.dealer)
    product = z = None
    if s.is_dealer:
        product = times(wide.add(x.l1, x.l2), wide.add(y.l1, y.l2), 2)
    gamma = masked.deal(s, product, local.shape(x.any), 0, 0, RING)
    if s.is_e1:
        z = wide.sub(gamma, wide.add(times(x.m, y.l1, 2), times(x.l1, y.m, 2)))
    elif s.is_e2:
        own = wide.sub(times(x.m, wide.sub(y.m, y.l2), 2), times(x.l2, y.m, 2))
        z = wide.add(gamma, own)
    return masked.exchanged(s, z, local.shape(x.any), 1, 1, scale=scale, width=RING)


def _logical(x: Any, f: int) -> Any:
    low, high = local.logical_shift(x[..., 0], f), local.logical_shift(x[..., 1], f)
    return local.stack([low + local.left_shift(x[..., 1], 64 - f), high], axis=-1)


def _arithmetic(x: Any, f: int) -> Any:
    low = local.logical_shift(x[..., 0], f) + local.left_shift(x[..., 1], 64 - f)
    return local.stack([low, local.arithmetic_shift(x[..., 1], f)], axis=-1)


def _at_top(value: Any, f: int) -> Any:
    """value * 2^(128 - f)."""
    return local.stack([local.zeros_like(value), local.left_shift(value, 64 - f)], axis=-1)


def truncate(party: Party, x: Shared, f: int, method: str) -> Shared:
    """x / 2^f, stochastically rounded.

    Args:
        f: bits to drop, 1 to 48 (63 over Z_2^128).
        method: "safe" (|x| < 2^62 or 2^126, never fails) or "probable" (fails with probability
            |x| / 2^64 or |x| / 2^128).

    Rounds and bits: see the module's table.  Source: as truncation.py.
    """
    if x.limbs == 1:
        return truncation.truncate(party, x, f, method)
    if x.ring_bits != RING:
        raise UsageError(f"truncate works over Z_2^64 and Z_2^128. Received: {x!r}.")
    if not 0 < f <= MOST_DROPPED:
        raise UsageError(f"truncate drops 1 to {MOST_DROPPED} bits here. Received: {f}.")
    if method not in ("safe", "probable"):
        raise UsageError(f'truncate knows "safe" and "probable". Received: {method!r}.')
    if isinstance(party, Counting):
        cost = truncation.truncate_cost(x.shape.num_elements(), f, method, x.limbs)
        y = replace(x, m=party.sent(cost, x.any.shape, x))
    else:
        y = _safe(party, x, f) if method == "safe" else _probable(party, x, f)
    return replace(y, fractional_bits=x.fractional_bits - f)


def _probable(party: Party, x: Shared, f: int) -> Shared:
    s = party.site("wide_truncate_probable", f, dealer=x.dealer)
    l1 = l2 = total = None
    if s.is_dealer:
        l1, l2, total = (a[..., 1] for a in (x.l1, x.l2, wide.add(x.l1, x.l2)))
    w1, w2 = truncation.dealt_wrap(s, l1, l2, total, local.shape(x.any)[:-1], f)
    m = None if s.is_dealer else _arithmetic(wide.sub(x.m, constant(1 << (f - 1), 2)), f)
    l1, l2 = (
        None if w is None else wide.sub(_arithmetic(part, f), _at_top(w, f))
        for part, w in ((x.l1, w1), (x.l2, w2))
    )
    return replace(x, m=m, l1=l1, l2=l2)


def _safe(party: Party, x: Shared, f: int) -> Shared:
    s = party.site("wide_truncate_safe", f, dealer=x.dealer)
    shape = local.shape(x.any)
    elements = shape[:-1]
    shifted = msb = None
    if s.is_dealer:
        r = wide.add(x.l1, x.l2)
        shifted, msb = _logical(r, f), local.logical_shift(r[..., 1], 63)
    u = masked.deal(s, shifted, shape, 0, 0, RING)
    b = masked.deal(s, msb, elements, 1, 1, f)
    m = l1 = l2 = None
    if not s.is_dealer:
        c = wide.add(x.m, constant(1 << (RING - 2), 2))
        wraps = 1 - local.logical_shift(c[..., 1], 63)  # w = msb(r) (1 - msb(c))
        t = masked.exchange(s, wraps * b, 2, 2, f)
        m = wide.sub(wide.add(_logical(c, f), _at_top(t, f)), constant(1 << (RING - 2 - f), 2))
    if not s.is_e2:
        u1 = s.mask(K1, 0, shape) if s.is_dealer else u
        l1 = wide.add(u1, _at_top(s.mask(K1, 2, elements), f))
    if not s.is_e1:
        u2 = wide.sub(shifted, s.mask(K1, 0, shape)) if s.is_dealer else u
        l2 = wide.add(u2, _at_top(s.mask(K2, 2, elements), f))
    return replace(x, m=m, l1=l1, l2=l2)
