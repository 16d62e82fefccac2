"""Between bits and ring elements: B2A, bit injection, selection.

With b = masked ^ beta, masked, known to the evaluators and beta known to D,
b = masked + (1 - 2 masked) beta is linear in beta, so dealt shares of beta and
of beta * lam are all that is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic, logic, masked
from tfe_bench.protocols.session import local, ops, sizes, wide
from tfe_bench.protocols.session.cost import Cost, packed, words
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.party import K1, K2, Party, Site
from tfe_bench.protocols.session.sharing import EvaluatorBits, MaskedBits, Shared


def mask_bits(party: Party, bits: EvaluatorBits) -> MaskedBits:
    """XOR shares at the evaluators become b = masked ^ beta, beta known to the dealer.

    Rounds: 1.  Bits sent: E1, E2 1 per bit each, in whole words.
    """
    if isinstance(party, Counting):
        masked_bits = party.sent_bits(_exchange(bits.n), bits.n, bits)
        return MaskedBits(masked_bits, None, bits.n, bits.dealer)
    s = party.site("mask_bits", dealer=bits.dealer)
    masked_bits = beta = None
    if s.is_dealer:
        beta = local.xor(*_tau(s, bits))
        if bits.top is not None:
            beta = local.xor(beta, bits.top)
    else:
        masked_bits = _exchanged(s, bits)
    return MaskedBits(masked_bits, beta, bits.n, bits.dealer)


def mask_each(party: Party, found: Sequence[EvaluatorBits]) -> MaskedBits:
    """`mask_bits` of several, one after the other, each padded to whole words; in one exchange."""
    held = [b.top if b.share is None else b.share for b in found]
    together = local.concat(held, axis=0)
    n = sizes.size(together) * 64
    if found[0].share is None:
        return mask_bits(party, EvaluatorBits(None, together, n, found[0].dealer))
    return mask_bits(party, EvaluatorBits(together, None, n, found[0].dealer))


def _exchange(n: int) -> Cost:
    return Cost(dealer=0, e1=64 * words(n), e2=64 * words(n), rounds=1, with_dealing=1)


def _tau(s: Site, bits: EvaluatorBits) -> tuple[Any, Any]:
    """The masks of bits that this party knows: E1's and E2's."""
    n_words = sizes.vector((sizes.known(bits.n) + 63) // 64)
    return (
        None if s.is_e2 else s.mask(K1, 0, n_words),
        None if s.is_e1 else s.mask(K2, 0, n_words),
    )


def _exchanged(s: Site, bits: EvaluatorBits) -> Any:
    """At the evaluators, the XOR of what they hold under masks."""
    own = s.apply_mask(bits.share, s.own_key, 0, "xor")
    return local.xor(own, s.swap(own))


def unpacked(bits: MaskedBits, shape: Any, limbs: int = 1) -> Any:
    """masked or beta as ring elements 0 and 1 in a shape (with the axis of 2 if wide)."""
    ones = logic.unpacked(bits)
    if limbs == 2:
        ones = local.stack([ones, local.zeros_like(ones)], axis=-1)
    return local.reshape(ones, shape)


def b2a_shares(
    s: Site, bits: MaskedBits, shape: Any, tensor: int, slot: int, width: int = masked.RING
) -> Any:
    """The evaluators' additive shares of bits as ring elements, not exchanged yet; None at the
    dealer.

    Args:
        shape: public, of n elements.
        tensor, slot: number of the dealt mask and of its message.
        width: of the ring.

    Rounds: 0 with D ahead, else 1.  Bits sent: D width per bit.
    """
    known = unpacked(bits, shape)
    share = masked.deal(s, known, shape, tensor, slot, width)
    if s.is_dealer:
        return None
    y = local.mul(local.signs(known), share)
    return local.add(y, known) if s.is_e2 else y


def b2a(party: Party, bits: MaskedBits, shape: Any = None, width: int = masked.RING) -> Shared:
    """Bits as ring elements 0 and 1.

    Args:
        shape: public, of n elements; None gives [n].
        width: of the ring Z_2^width, 64 or less.

    Rounds: 1 (2 with dealing).  Bits sent: D, E1, E2 width per bit each.
    """
    if isinstance(party, Counting):
        dealt = packed(bits.n, width)
        return party.exchanged([bits.n] if shape is None else shape, dealt, bits, width=width)
    import tensorflow as tf

    s = party.site("b2a", width, dealer=bits.dealer)
    shape = sizes.vector(bits.n) if shape is None else tf.cast(shape, tf.int64)
    share = b2a_shares(s, bits, shape, 0, 0, width)
    return masked.exchanged(s, share, shape, 1, 1, width=width)


def inject_shares(
    s: Site,
    bits: MaskedBits,
    x: Shared,
    tensor: int,
    slot: int,
    *,
    negated: bool = False,
    extend_ring: bool = False,
    leave: int | None = None,
    drop: int = 0,
) -> Any:
    """The evaluators' additive shares of b * x, not exchanged yet, so that sums of them are
    exchanged as one.

    y1 = -o L1 + (1-2o)(m B1 - BL1);  y2 = o m - o L2 + (1-2o)(m B2 - BL2),
    o the masked bit, B and BL dealt shares of beta and beta * lam, L of lam; None at the dealer.
    With extend_ring x is of Z_2^k, k < 64, and not negative where b = 1, and the result of Z_2^64:
    as an integer x = m - lam + 2^k (1 - msb m) msb(lam) there, the wraps dealt mod 2^(64-k).

    Args:
        bits: in the row-major order of x's elements.
        tensor, slot: number of the first dealt mask (2 of them; 5 with extend_ring) and of the
            message (2 messages with 2 limbs).
        negated: take 1 - b for b.
        leave: number of the mask under which the share leaves (64-bit words only).
        drop: of b * x / 2^drop (backward.py), where x is of Z_2^(64-drop) and extended.

    Rounds: 0 with D ahead, else 1.  Bits sent: D 128 per element (256 with 2 limbs), and with
    extend_ring 3 (64 - k) more.
    Raises:
        UsageError: bits and x have different dealers or numbers, or a wide x is to be extended.
    """
    check_inject("inject", bits, x, extend_ring)
    if x.limbs == 2:
        assert leave is None and not negated and not drop
        return _wide_inject_shares(s, bits, x, tensor, slot)
    import tensorflow as tf

    k = x.ring_bits if extend_ring else 64 - drop
    attributes = {**s.attributes(tensor), "bits": k, "drop": drop}
    if s.is_dealer:
        message = ops.module().tfe_bench_inject_deal(
            beta=bits.beta, l1=x.l1, l2=x.l2, n=bits.n, **attributes
        )
        s.send(message, s.e2, slot, run_ahead=True)
        return None
    n = sizes.size(x.m)
    wraps = 0 if k == 64 else 3 * ((n * (64 - k) + 7) // 8)
    return ops.module().tfe_bench_inject_share(
        masked_bits=bits.masked,
        m=x.m,
        part=x.l1 if s.is_e1 else x.l2,
        dealt=s.dealt(16 * n + wraps, slot, tf.uint8),
        n=bits.n,
        mask=-1 if leave is None else leave,
        negate=negated,
        **attributes,
    )


def check_inject(name: str, bits: MaskedBits, x: Shared, extend_ring: bool = False) -> None:
    """Refuses what can be refused while tracing; the kernels check the number of bits again."""
    for wanted, given in ((MaskedBits, bits), (Shared, x)):
        if not isinstance(given, wanted):
            raise UsageError(
                f"{name} wants private bits, exchanged under a mask, and a private tensor. "
                f"Received: {type(given).__name__} for {wanted.__name__}."
            )
    if bits.dealer != x.dealer:
        raise UsageError(f"{name} wants one dealer. Received: {bits!r} and {x!r}.")
    if extend_ring and x.limbs != 1:
        raise UsageError(f"{name} extends rings of at most 64 bits. Received: {x!r}.")
    n, elements = sizes.known(bits.n), x.shape.num_elements()
    if isinstance(n, int) and elements is not None and n != elements:
        raise UsageError(
            f"{name} wants one bit per element. "
            f"Received: {n} bits for shape {x.shape.as_list()}, {elements} elements."
        )


def _wide_inject_shares(s: Site, bits: MaskedBits, x: Shared, tensor: int, slot: int) -> Any:
    """`inject_shares` of 128-bit elements."""
    import tensorflow as tf

    shape = tf.shape(x.any, out_type=tf.int64)
    known = unpacked(bits, shape, 2)
    masked_bits = known[..., :1]
    product = wide.add(x.l1, x.l2) * masked_bits if s.is_dealer else None
    b = masked.deal(s, known, shape, tensor, slot, masked.WIDE)
    bl = masked.deal(s, product, shape, tensor + 1, slot + 1, masked.WIDE)
    if s.is_dealer:
        return None
    part = x.l1 if s.is_e1 else x.l2
    flipped = wide.sub(ops.module().tfe_bench_wide_mul(a=x.m, b=b), bl)  # share of beta * x
    signed = tf.where(tf.equal(masked_bits, 1), wide.negate(flipped), flipped)
    public = wide.sub(x.m, part) if s.is_e2 else wide.negate(part)
    return wide.add(public * masked_bits, signed)


def inject(
    party: Party,
    bits: MaskedBits,
    x: Shared,
    *,
    negated: bool = False,
    extend_ring: bool = False,
) -> Shared:
    """b * x for bits in the row-major order of x's elements.

    Args:
        negated: (1 - b) * x instead.
        extend_ring: x of Z_2^k, not negative where the bit is 1, becomes a value of Z_2^64.

    Rounds: 1 (2 with dealing).  Bits sent: D `inject_dealt`, E1, E2 64 * limbs per element each.
    """
    check_inject("inject", bits, x, extend_ring)
    ring = 0 if extend_ring else x.bits
    if isinstance(party, Counting):
        dealt = inject_dealt(x.shape.num_elements(), x.limbs, x.ring_bits if extend_ring else 64)
        y = party.exchanged(x.shape, dealt, bits, x, scale=x.fractional_bits, width=64 * x.limbs)
        return replace(y, bits=ring)
    s = party.site("inject", x.ring_bits, negated, extend_ring, dealer=x.dealer)
    last = 7  # after the dealt masks
    if x.limbs == 2:
        own = inject_shares(s, logic.invert(bits) if negated else bits, x, tensor=0, slot=0)
    else:
        own = inject_shares(s, bits, x, 0, 0, negated=negated, extend_ring=extend_ring, leave=last)
    y = masked.exchanged(
        s,
        own,
        local.shape(x.any),
        last,
        2,
        scale=x.fractional_bits,
        width=64 * x.limbs,
        left=x.limbs == 1,
    )
    return replace(y, bits=ring)


def inject_dealt(n: int, limbs: int = 1, ring_bits: int = 64) -> int:
    """Bits that D sends for `inject` of n elements; ring_bits k < 64 is that of extend_ring."""
    wraps = 3 * packed(n, 64 - ring_bits) if ring_bits < 64 else 0
    return 128 * limbs * n + wraps


def select(party: Party, bits: MaskedBits, x: Shared, y: Shared) -> Shared:
    """x where the bit is 1, else y.

    Rounds and bits: as `inject`.
    """
    return arithmetic.add(y, inject(party, bits, arithmetic.sub(x, y)))


def negated(party: Party, bits: MaskedBits, x: Shared) -> Shared:
    """-x where the bit is 1, else x.

    Rounds and bits: as `inject`.
    """
    return arithmetic.sub(x, arithmetic.mul_public(inject(party, bits, x), 2))


def extend(party: Party, x: Shared, shift: int, exchanges: int | None = None) -> Shared:
    """An unsigned 64-bit value times 2^shift in the ring Z_2^(65+shift), exactly.

    x = m - l1 - l2 mod 2^64 becomes m - l1 - l2 + 2^64 t over the integers mod 2^65, where t is the
    most significant bit of the 65-bit difference: one comparison.  Modulo 2 its XOR shares are
    additive shares, so that re-masking takes one bit.

    Rounds: exchanges + 1 (+ 2 with dealing).  Bits sent: those of `msb` with 65 bits and of
        `mask_bits`.
    """
    from tfe_bench.protocols.ring import compare

    if x.limbs != 1 or not 0 <= shift < 63:
        raise UsageError(f"extend wants a 64-bit value and a shift below 63. Received: {x!r}.")
    zero_extended = replace(x.map(lambda a: wide.shift_left(a, 0)), limbs=2, bits=65)
    t = compare.msb(party, zero_extended, bits=65, exchanges=exchanges)
    if isinstance(party, Counting):
        lifted = party.sent(_exchange(t.n), [*x.shape, 2], t, x)
        return Shared(lifted, None, None, x.dealer, x.fractional_bits, 2, 65 + shift)
    import tensorflow as tf

    s = party.site("extend", shift, dealer=x.dealer)
    shape = local.shape(x.any)
    masked_bits = None if s.is_dealer else _exchanged(s, t)

    def lift(part: Any, packed: Any) -> Any:
        if part is None:
            return None
        top = tf.reshape(ops.module().tfe_bench_unpack_bits(words=packed, n=t.n), shape)
        shifted = wide.shift_left(part, shift)
        low, high = (local.at(shifted, np.s_[..., i]) for i in range(2))
        return local.stack([low, local.add(high, local.left_shift(top, shift))], axis=-1)

    m, l1, l2 = map(lift, (x.m, x.l1, x.l2), (masked_bits, *_tau(s, t)))
    return Shared(m, l1, l2, x.dealer, x.fractional_bits, 2, 65 + shift)
