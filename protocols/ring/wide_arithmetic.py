"""Products, constants and truncation in either ring; over Z_2^128 in the same dealer form.

Values of Z_2^64 are passed to arithmetic.py and truncation.py. Over Z_2^128 the forms are the same,
on pairs of words (wide.py):

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
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.ring import arithmetic, convert, masked, truncation
from tfe_bench.protocols.session import ops, slots, tensor_ops, wide
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import K1, K2, Party, Site
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

RING = 128
MAX_DROPPED_BITS = 63  # so that the term multiplied by 2^(128-f) lies in the high word


def encode_ring_constant(value: int, limbs: int) -> Any:
    """Return an integer as a ring element: a scalar, or two words."""
    words = [(value >> (64 * i)) % (1 << 64) for i in range(limbs)]
    signed = [w - (1 << 64) if w >> 63 else w for w in words]
    return np.array(signed[0] if limbs == 1 else signed, np.int64)


def add_ring_elements(a: Any, b: Any, limbs: int) -> Any:
    """Add ring elements."""
    return a + b if limbs == 1 else wide.add(a, b)


def subtract_ring_elements(a: Any, b: Any, limbs: int) -> Any:
    """Subtract ring elements."""
    return a - b if limbs == 1 else wide.sub(a, b)


def multiply_ring_elements(a: Any, b: Any, limbs: int) -> Any:
    """Multiply ring elements; a constant may be the second factor."""
    if limbs == 1 or not tensor_ops.is_concrete(a):
        return a * b
    return ops.module().tfe_bench_wide_mul(a=a, b=tf.broadcast_to(b, tf.shape(a)))


def add_constant(x: Shared, value: int) -> Shared:
    """Add a public integer at x's scale. Local: only the masked value m changes."""
    if x.m is None:
        return x
    return replace(x, m=add_ring_elements(x.m, encode_ring_constant(value, x.limbs), x.limbs))


def mul_constant(x: Shared, value: int, fractional_bits: int = 0) -> Shared:
    """Multiply by a public integer with its own scale. Local; scales add up."""
    y = x.map(lambda a: multiply_ring_elements(a, encode_ring_constant(value, x.limbs), x.limbs))
    return replace(y, fractional_bits=x.fractional_bits + fractional_bits)


def share_bits(s: Site, bits: MaskedBits, shape: Any, tensor: int, slot: int, limbs: int) -> Any:
    """Return additive shares of bits in either ring, as `convert.b2a_shares`; None at the dealer.

    Args:
        shape: shape of the words, with the axis of 2 if limbs is 2.

    Rounds: 0 online (1 total). Bits sent: D 64 * limbs per bit.
    """
    known = convert.unpack_bits_to_ring_elements(bits, shape, limbs)
    share = masked.deal(s, known, shape, tensor, slot)
    return None if s.is_dealer else unmask_bit_share(s, known, share, limbs)


def unmask_bit_share(s: Site, masked_bits: Any, share: Any, limbs: int) -> Any:
    """Return shares of masked ^ beta from shares of beta: o + (1 - 2 o) beta."""
    y = apply_sign_to_share(masked_bits, share, limbs)
    return add_ring_elements(y, masked_bits, limbs) if s.is_e2 else y


def apply_sign_to_share(masked_bits: Any, share: Any, limbs: int) -> Any:
    """Return (1 - 2 o) * share, o = 0 or 1."""
    if limbs == 1 or not tensor_ops.is_concrete(share):
        return (1 - 2 * masked_bits) * share
    return tf.where(tf.equal(masked_bits[..., :1], 1), wide.negate(share), share)


def mul(party: Party, x: Shared, y: Shared) -> Shared:
    """Multiply elementwise; over Z_2^128 without broadcasting. The scales add up.

    Rounds: 1 online (2 total). Bits sent: D, E1, E2 one ring element per element each.
    """
    if x.limbs == 1:
        return arithmetic.mul(party, x, y)
    if y.limbs != 2 or x.ring_bits != RING or y.ring_bits != RING or x.dealer != y.dealer:
        raise UsageError(
            f"mul expects operands with one dealer and one ring. Received: {x!r} and {y!r}.",
            code="operand-mismatch",
            operation="mul",
            received=f"{x!r}, {y!r}",
        )
    scale = x.fractional_bits + y.fractional_bits
    s = party.site(
        "wide_mul",
        x.fractional_bits,
        y.fractional_bits,
        dealer=x.dealer,
        slots={0: slots.declare_dealt(RING), 1: slots.declare_exchanged(RING)},
    )
    product = z = None
    if s.is_dealer:
        product = multiply_ring_elements(wide.add(x.l1, x.l2), wide.add(y.l1, y.l2), 2)
    gamma = masked.deal(s, product, tensor_ops.dynamic_shape(x.any), 0)
    if s.is_e1:
        z = wide.sub(
            gamma,
            wide.add(multiply_ring_elements(x.m, y.l1, 2), multiply_ring_elements(y.m, x.l1, 2)),
        )
    elif s.is_e2:
        own_product = wide.sub(
            multiply_ring_elements(x.m, wide.sub(y.m, y.l2), 2),
            multiply_ring_elements(x.l2, y.m, 2),
        )
        z = wide.add(gamma, own_product)
    return masked.exchange_masked(s, z, tensor_ops.dynamic_shape(x.any), 1, 1, scale=scale)


def _shift_ring_words_logical(x: Any, f: int) -> Any:
    low, high = tensor_ops.logical_shift(x[..., 0], f), tensor_ops.logical_shift(x[..., 1], f)
    return tensor_ops.stack([low + tensor_ops.left_shift(x[..., 1], 64 - f), high], axis=-1)


def _shift_ring_words_arithmetic(x: Any, f: int) -> Any:
    low = tensor_ops.logical_shift(x[..., 0], f) + tensor_ops.left_shift(x[..., 1], 64 - f)
    return tensor_ops.stack([low, tensor_ops.arithmetic_shift(x[..., 1], f)], axis=-1)


def _shift_to_128bit_top(value: Any, f: int) -> Any:
    """Return value * 2^(128 - f)."""
    return tensor_ops.stack(
        [tensor_ops.zeros_like(value), tensor_ops.left_shift(value, 64 - f)], axis=-1
    )


def truncate(party: Party, x: Shared, f: int, method: str) -> Shared:
    """Divide by 2^f, stochastically rounded.

    Args:
        f: bits to drop, 1 to 48 (63 over Z_2^128).
        method: "safe" (|x| < 2^62 or 2^126, never fails) or "probable" (fails with probability
            |x| / 2^64 or |x| / 2^128).

    Rounds and bits: see the module's table. Source: as truncation.py.
    """
    if x.limbs == 1:
        return truncation.truncate(party, x, f, method)
    if x.ring_bits != RING:
        raise UsageError(
            f"truncate works over Z_2^64 and Z_2^128. Received: {x!r}.",
            code="unsupported-ring",
            operation="truncate",
            received=repr(x),
        )
    if not 0 < f <= MAX_DROPPED_BITS:
        raise UsageError(
            f"truncate drops 1 to {MAX_DROPPED_BITS} bits in this ring. Received: {f}.",
            code="number-out-of-range",
            operation="truncate",
            received=f,
            expected=f"1 to {MAX_DROPPED_BITS}",
        )
    if method not in ("safe", "probable"):
        raise UsageError(
            f'truncate expects the method "safe" or "probable". Received: {method!r}.',
            code="unknown-name",
            operation="truncate",
            received=method,
            expected="safe, probable",
        )
    if isinstance(party, CostParty):
        cost = truncation.truncate_cost(x.shape.num_elements(), f, method, x.limbs)
        y = replace(x, m=party.count_messages(cost, x.any.shape, x))
    else:
        y = _truncate_safe(party, x, f) if method == "safe" else _truncate_probable(party, x, f)
    return replace(y, fractional_bits=x.fractional_bits - f)


def _truncate_probable(party: Party, x: Shared, f: int) -> Shared:
    s = party.site("wide_truncate_probable", f, dealer=x.dealer, slots={0: slots.declare_dealt(f)})
    l1 = l2 = total = None
    if s.is_dealer:
        l1, l2, total = (a[..., 1] for a in (x.l1, x.l2, wide.add(x.l1, x.l2)))
    w1, w2 = truncation.deal_mask_wrap_shares(
        s, l1, l2, total, tensor_ops.dynamic_shape(x.any)[:-1], f
    )
    m = (
        None
        if s.is_dealer
        else _shift_ring_words_arithmetic(wide.sub(x.m, encode_ring_constant(1 << (f - 1), 2)), f)
    )
    l1, l2 = (
        None
        if w is None
        else wide.sub(_shift_ring_words_arithmetic(part, f), _shift_to_128bit_top(w, f))
        for part, w in ((x.l1, w1), (x.l2, w2))
    )
    return replace(x, m=m, l1=l1, l2=l2)


def _truncate_safe(party: Party, x: Shared, f: int) -> Shared:
    s = party.site(
        "wide_truncate_safe",
        f,
        dealer=x.dealer,
        slots={
            0: slots.declare_dealt(RING),
            1: slots.declare_dealt(f),
            2: slots.declare_exchanged(f),
        },
    )
    shape = tensor_ops.dynamic_shape(x.any)
    elements = shape[:-1]
    shifted = msb = None
    if s.is_dealer:
        r = wide.add(x.l1, x.l2)
        shifted, msb = _shift_ring_words_logical(r, f), tensor_ops.logical_shift(r[..., 1], 63)
    u = masked.deal(s, shifted, shape, 0)
    b = masked.deal(s, msb, elements, 1, 1)
    m = l1 = l2 = None
    if not s.is_dealer:
        c = wide.add(x.m, encode_ring_constant(1 << (RING - 2), 2))
        wraps = 1 - tensor_ops.logical_shift(c[..., 1], 63)  # w = msb(r) (1 - msb(c))
        t = masked.exchange_shares(s, wraps * b, 2, 2)
        m = wide.sub(
            wide.add(_shift_ring_words_logical(c, f), _shift_to_128bit_top(t, f)),
            encode_ring_constant(1 << (RING - 2 - f), 2),
        )
    if not s.is_e2:
        u1 = s.mask(K1, 0, shape) if s.is_dealer else u
        l1 = wide.add(u1, _shift_to_128bit_top(s.mask(K1, 2, elements), f))
    if not s.is_e1:
        u2 = wide.sub(shifted, s.mask(K1, 0, shape)) if s.is_dealer else u
        l2 = wide.add(u2, _shift_to_128bit_top(s.mask(K2, 2, elements), f))
    return replace(x, m=m, l1=l1, l2=l2)
