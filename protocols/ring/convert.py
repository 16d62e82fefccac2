"""Conversions between bits and ring elements: B2A, bit injection, selection.

With b = masked ^ beta, masked, known to the evaluators and beta known to D,
b = masked + (1 - 2 masked) beta is linear in beta, so dealt shares of beta and
of beta * lam suffice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.ring import arithmetic, logic, masked
from tfe_bench.protocols.session import ops, sizes, slots, tensor_ops, wide
from tfe_bench.protocols.session.cost import Cost, packed_bits, words_for_bits
from tfe_bench.protocols.session.counting import CostParty, CostSite
from tfe_bench.protocols.session.party import K1, K2, Party, Site
from tfe_bench.protocols.session.sharing import EvaluatorBits, MaskedBits, Shared

_BIT_EXCHANGE = {0: slots.declare_exchanged(1, unit=slots.WORD)}


def mask_bits(party: Party, bits: EvaluatorBits) -> MaskedBits:
    """Turn XOR shares at the evaluators into b = masked ^ beta, beta known to the dealer.

    Rounds: 1. Bits sent: E1, E2 1 per bit each, in whole words.
    """
    if isinstance(party, CostParty):
        masked_bits = party.count_bit_messages(_bit_masking_cost(bits.n), bits.n, bits)
        return MaskedBits(masked_bits, None, bits.n, bits.dealer)
    s = party.site("mask_bits", dealer=bits.dealer, slots=_BIT_EXCHANGE)
    masked_bits = beta = None
    if s.is_dealer:
        beta = tensor_ops.xor(*_draw_bit_masks(s, bits))
        if bits.top is not None:
            beta = tensor_ops.xor(beta, bits.top)
    else:
        masked_bits = _exchange_masked(s, bits)
    return MaskedBits(masked_bits, beta, bits.n, bits.dealer)


def mask_together(party: Party, bit_arrays: Sequence[EvaluatorBits]) -> MaskedBits:
    """Apply `mask_bits` to several arrays, each padded to whole words, in one exchange."""
    held_words = [b.top if b.share is None else b.share for b in bit_arrays]
    together = tensor_ops.concat(held_words, axis=0)
    n = sizes.tensor_size(together) * 64
    if bit_arrays[0].share is None:
        return mask_bits(party, EvaluatorBits(None, together, n, bit_arrays[0].dealer))
    return mask_bits(party, EvaluatorBits(together, None, n, bit_arrays[0].dealer))


def _bit_masking_cost(n: int) -> Cost:
    return Cost(
        dealer=0, e1=64 * words_for_bits(n), e2=64 * words_for_bits(n), rounds=1, with_dealing=1
    )


def _draw_bit_masks(s: Site, bits: EvaluatorBits) -> tuple[Any, Any]:
    """Return the masks of bits that this party knows: E1's and E2's."""
    n_words = sizes.vector_shape((sizes.static_value(bits.n) + 63) // 64)
    return (
        None if s.is_e2 else s.mask(K1, 0, n_words),
        None if s.is_e1 else s.mask(K2, 0, n_words),
    )


def _exchange_masked(s: Site, bits: EvaluatorBits) -> Any:
    """Return at the evaluators the XOR of their masked shares."""
    message = s.apply_mask(bits.share, s.own_key, 0, "xor")
    return tensor_ops.xor(message, s.swap(message))


def unpack_bits_to_ring_elements(bits: MaskedBits, shape: Any, limbs: int = 1) -> Any:
    """Return masked or beta as ring elements 0 and 1 in a shape (with the axis of 2 if wide)."""
    if isinstance(bits.masked, tensor_ops.SymbolicTensor):
        return tensor_ops.symbolic_result(shape, bits.masked)
    ones = logic.unpack_bits(bits)
    if limbs == 2:
        ones = tensor_ops.stack([ones, tensor_ops.zeros_like(ones)], axis=-1)
    return tensor_ops.reshape(ones, shape)


def b2a_shares(s: Site, bits: MaskedBits, shape: Any, tensor: int, slot: int) -> Any:
    """Return the evaluators' additive shares of bits, before the exchange; None at the dealer.

    Args:
        shape: public, of n elements.
        tensor, slot: number of the dealt mask and of its message, whose width is that of the ring.

    Rounds: 0 online (1 total). Bits sent: D width per bit.
    """
    known = unpack_bits_to_ring_elements(bits, shape)
    share = masked.deal(s, known, shape, tensor, slot)
    if s.is_dealer:
        return None
    y = tensor_ops.mul(tensor_ops.bit_signs(known), share)
    return tensor_ops.add(y, known) if s.is_e2 else y


def b2a(party: Party, bits: MaskedBits, shape: Any = None, width: int = masked.RING) -> Shared:
    """Convert bits to the ring elements 0 and 1.

    Args:
        shape: public, of n elements; None gives [n].
        width: bits of the ring Z_2^width, 64 or less.

    Rounds: 1 online (2 total). Bits sent: D, E1, E2 width per bit each.
    """
    if isinstance(party, CostParty):
        dealt = packed_bits(bits.n, width)
        return party.count_exchange([bits.n] if shape is None else shape, dealt, bits, width=width)
    s = party.site(
        "b2a",
        width,
        dealer=bits.dealer,
        slots={0: slots.declare_dealt(width), 1: slots.declare_exchanged(width)},
    )
    shape = sizes.vector_shape(bits.n) if shape is None else tf.cast(shape, tf.int64)
    share = b2a_shares(s, bits, shape, 0, 0)
    return masked.exchange_masked(s, share, shape, 1, 1)


def inject_shares(
    s: Site,
    bits: MaskedBits,
    x: Shared,
    tensor: int,
    slot: int,
    *,
    negated: bool = False,
    extend_ring: bool = False,
    output_mask: int | None = None,
    drop: int = 0,
) -> Any:
    """Return the evaluators' additive shares of b * x before the exchange; None at the dealer.

    Sums of such shares are exchanged once:

    y1 = -o L1 + (1-2o)(m B1 - BL1);  y2 = o m - o L2 + (1-2o)(m B2 - BL2),
    o the masked bit, B and BL dealt shares of beta and beta * lam, L of lam.
    With extend_ring x is of Z_2^k, k < 64, and not negative where b = 1, and the result of Z_2^64:
    as an integer x = m - lam + 2^k (1 - msb m) msb(lam) there, the wraps dealt mod 2^(64-k).

    Args:
        bits: in the row-major order of x's elements.
        tensor, slot: number of the first dealt mask (2 of them; 5 with extend_ring) and of the
            message (2 messages with 2 limbs), declared by `list_injection_slots`.
        negated: use 1 - b instead of b.
        output_mask: number of the mask under which the share is sent (64-bit words only).
        drop: compute b * x / 2^drop (backward.py), where x is of Z_2^(64-drop) and extended.

    Rounds: 0 online (1 total). Bits sent: D 128 per element (256 with 2 limbs), and with
    extend_ring 3 (64 - k) more.
    Raises:
        UsageError: bits and x have different dealers or numbers, or a wide x is to be extended.
    """
    check_inject("inject", bits, x, extend_ring)
    k = x.ring_bits if extend_ring else 64 - drop
    if isinstance(s, CostSite):
        n = x.shape.num_elements()
        dealt = sum(s.find_slot(slot + limb).count_bits(n) for limb in range(x.limbs))
        return s.count_dealt(dealt, x.any.shape, bits, x)
    if x.limbs == 2:
        assert output_mask is None and not negated and not drop
        return _wide_inject_shares(s, bits, x, tensor, slot)
    attributes = {**s.kernel_attributes(tensor), "bits": k, "drop": drop}
    if s.is_dealer:
        message = ops.module().tfe_bench_inject_deal(
            beta=bits.beta, l1=x.l1, l2=x.l2, n=bits.n, **attributes
        )
        s.send(message, s.e2, slot, run_ahead=True)
        return None
    return ops.module().tfe_bench_inject_share(
        masked_bits=bits.masked,
        m=x.m,
        part=x.l1 if s.is_e1 else x.l2,
        dealt=s.receive_dealt(sizes.tensor_size(x.m), slot),
        n=bits.n,
        mask=-1 if output_mask is None else output_mask,
        negate=negated,
        **attributes,
    )


def check_inject(name: str, bits: MaskedBits, x: Shared, extend_ring: bool = False) -> None:
    """Reject operands while tracing; the kernels check the number of bits again."""
    for expected_type, operand in ((MaskedBits, bits), (Shared, x)):
        if not isinstance(operand, expected_type):
            raise UsageError(
                f"{name} expects private bits, exchanged under a mask, and a private tensor. "
                f"Received: {type(operand).__name__} for {expected_type.__name__}.",
                code="not-private",
                operation=name,
                received=type(operand).__name__,
                expected=expected_type.__name__,
            )
    if bits.dealer != x.dealer:
        raise UsageError(
            f"{name} expects operands of one dealer. Received: {bits!r} and {x!r}.",
            code="dealer-mismatch",
            operation=name,
            received=f"{bits!r}, {x!r}",
        )
    if extend_ring and x.limbs != 1:
        raise UsageError(
            f"{name} extends rings of at most 64 bits. Received: {x!r}.",
            code="unsupported-ring",
            operation=name,
            received=repr(x),
        )
    n, elements = sizes.static_value(bits.n), x.shape.num_elements()
    if isinstance(n, int) and elements is not None and n != elements:
        raise UsageError(
            f"{name} expects one bit per element. "
            f"Received: {n} bits for shape {x.shape.as_list()}, {elements} elements.",
            code="size-mismatch",
            operation=name,
            received=n,
            expected=elements,
        )


def _wide_inject_shares(s: Site, bits: MaskedBits, x: Shared, tensor: int, slot: int) -> Any:
    """Return `inject_shares` of 128-bit elements."""
    shape = tf.shape(x.any, out_type=tf.int64)
    known = unpack_bits_to_ring_elements(bits, shape, 2)
    masked_bits = known[..., :1]
    product = wide.add(x.l1, x.l2) * masked_bits if s.is_dealer else None
    b = masked.deal(s, known, shape, tensor, slot)
    bl = masked.deal(s, product, shape, tensor + 1, slot + 1)
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
    """Compute b * x for bits in the row-major order of x's elements.

    Args:
        negated: compute (1 - b) * x instead.
        extend_ring: x of Z_2^k, not negative where the bit is 1, becomes a value of Z_2^64.

    Rounds: 1 online (2 total). Bits sent: D `bit_injection_dealt_bits`, E1, E2 64 * limbs per
    element each.
    """
    check_inject("inject", bits, x, extend_ring)
    ring = 0 if extend_ring else x.bits
    s = party.site(
        "inject",
        x.ring_bits,
        negated,
        extend_ring,
        dealer=x.dealer,
        slots={
            **list_injection_slots(x.limbs, x.ring_bits if extend_ring else 64),
            2: slots.declare_exchanged(64 * x.limbs),
        },
    )
    last = 7  # after the dealt masks
    if x.limbs == 2:
        share = inject_shares(s, logic.invert_bits(bits) if negated else bits, x, tensor=0, slot=0)
    else:
        share = inject_shares(
            s, bits, x, 0, 0, negated=negated, extend_ring=extend_ring, output_mask=last
        )
    y = masked.exchange_masked(
        s,
        share,
        tensor_ops.dynamic_shape(x.any),
        last,
        2,
        scale=x.fractional_bits,
        is_masked=x.limbs == 1,
    )
    return replace(y, bits=ring)


def list_injection_slots(limbs: int = 1, ring_bits: int = 64, slot: int = 0) -> slots.Slots:
    """Return the dealt messages of `inject_shares`, by their numbers from `slot` on.

    Args:
        ring_bits: bits of x's ring with extend_ring, 64 - drop with bits to drop, else 64.
    """
    if limbs == 2:
        return dict.fromkeys((slot, slot + 1), slots.declare_dealt(masked.WIDE))
    wraps = [64 - ring_bits] * 3 if ring_bits < 64 else []
    return {slot: slots.declare_dealt(64, 64, *wraps)}


def bit_injection_dealt_bits(n: int, limbs: int = 1, ring_bits: int = 64) -> int:
    """Return the bits D sends for `inject` of n elements; ring_bits k < 64 with extend_ring."""
    return sum(slot.count_bits(n) for slot in list_injection_slots(limbs, ring_bits).values())


def select(party: Party, bits: MaskedBits, x: Shared, y: Shared) -> Shared:
    """Return x where the bit is 1, else y.

    Rounds and bits: as `inject`.
    """
    return arithmetic.add(y, inject(party, bits, arithmetic.sub(x, y)))


def negate_where(party: Party, bits: MaskedBits, x: Shared) -> Shared:
    """Return -x where the bit is 1, else x.

    Rounds and bits: as `inject`.
    """
    return arithmetic.sub(x, arithmetic.mul_public(inject(party, bits, x), 2))


def extend_to_wide(party: Party, x: Shared, shift: int, exchanges: int | None = None) -> Shared:
    """Multiply an unsigned 64-bit value by 2^shift exactly, in the ring Z_2^(65+shift).

    x = m - l1 - l2 mod 2^64 becomes m - l1 - l2 + 2^64 t over the integers mod 2^65, where t is the
    most significant bit of the 65-bit difference: one comparison. Modulo 2 its XOR shares are
    additive shares, so that re-masking takes one bit.

    Rounds: exchanges + 1 online (exchanges + 2 total). Bits sent: those of `msb` with 65 bits and
    of
        `mask_bits`.
    """
    from tfe_bench.protocols.ring import compare

    if x.limbs != 1 or not 0 <= shift < 63:
        raise UsageError(
            f"extend expects a 64-bit value and a shift from 0 to 62. Received: {x!r}, {shift!r}.",
            code="unsupported-ring",
            operation="extend",
            received=f"{x!r}, {shift!r}",
        )
    zero_extended = replace(x.map(lambda a: wide.shift_left(a, 0)), limbs=2, bits=65)
    t = compare.msb(party, zero_extended, bits=65, exchanges=exchanges)
    if isinstance(party, CostParty):
        lifted = party.count_messages(_bit_masking_cost(t.n), [*x.shape, 2], t, x)
        return Shared(lifted, None, None, x.dealer, x.fractional_bits, 2, 65 + shift)
    s = party.site("extend", shift, dealer=x.dealer, slots=_BIT_EXCHANGE)
    shape = tensor_ops.dynamic_shape(x.any)
    masked_bits = None if s.is_dealer else _exchange_masked(s, t)

    def extend_share_part(part: Any, packed: Any) -> Any:
        if part is None:
            return None
        top = tf.reshape(ops.module().tfe_bench_unpack_bits(words=packed, n=t.n), shape)
        shifted = wide.shift_left(part, shift)
        low, high = (tensor_ops.strided_slice(shifted, np.s_[..., i]) for i in range(2))
        return tensor_ops.stack(
            [low, tensor_ops.add(high, tensor_ops.left_shift(top, shift))], axis=-1
        )

    m, l1, l2 = map(extend_share_part, (x.m, x.l1, x.l2), (masked_bits, *_draw_bit_masks(s, t)))
    return Shared(m, l1, l2, x.dealer, x.fractional_bits, 2, 65 + shift)
