"""Values under masks: dealt to the evaluators, exchanged between them, and shared under new masks.

All rings use one form of exchange. Elements of 64 and 128 bits are sent as words (128: pairs of
words, low word first). Of smaller rings the low bits are sent, packed in whole bytes.
"""

from __future__ import annotations

import math
from typing import Any

from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.session import ops, sizes, tensor_ops, wide
from tfe_bench.protocols.session.cost import packed_bits
from tfe_bench.protocols.session.counting import CostSite
from tfe_bench.protocols.session.packing import receive_packed_ring_words
from tfe_bench.protocols.session.party import K1, K2, Site
from tfe_bench.protocols.session.sharing import Shared

RING = 64
WIDE = 128


def mask_operation(name: str, width: int) -> str:
    """Return the operation of Site.apply_mask, "add" or "sub", for a ring of `width` bits."""
    return f"{name}128" if width == WIDE else name


def mask_ring_words(s: Site, x: Any, key: int, tensor: int, operation: str, width: int) -> Any:
    """Return the message x + mask ("add") or x - mask ("sub") mod 2^width."""
    if width < RING:
        return s.pack_masked(x, key, tensor, operation, width)
    return s.apply_mask(x, key, tensor, mask_operation(operation, width))


def deal(s: Site, value: Any, shape: Any, tensor: int, slot: int = 0) -> Any:
    """Split a value that the dealer knows: additive shares mod 2^width, None at the dealer.

    The width is that of the declared slot.

    Args:
        value: at the dealer; its message, to E2, is value - mask, uniform mod 2^width.
        shape: public shape of the words (with the axis of 2 for 128 bits).
        tensor, slot: number of the mask and of the message.

    Rounds: 0 online (1 total). Bits sent: D width per element.
    """
    width = s.find_slot(slot).element_bits
    if isinstance(s, CostSite):
        return s.count_dealt(packed_bits(math.prod(shape), min(width, RING)), shape)
    if s.is_dealer:
        s.send(mask_ring_words(s, value, K1, tensor, "sub", width), s.e2, slot, run_ahead=True)
        return None
    if s.is_e1:
        mask = s.mask(K1, tensor, shape)
        return mask if width >= RING else tensor_ops.low_bits(mask, width)
    return receive_packed_ring_words(s, shape, s.d, slot, width)


def exchange_shares(s: Site, share: Any, tensor: int, slot: int = 0) -> Any:
    """Exchange shares y1 + y2 = y: E1, E2 get y + l1 + l2 mod 2^width under mask `tensor`.

    The width is that of the declared slot.
    Rounds: 1. Bits sent: E1, E2 width per element each.
    """
    width = s.find_slot(slot).element_bits
    message = mask_ring_words(s, share, s.own_key, tensor, "add", width)
    return add_messages(message, s.swap(message, slot), tensor_ops.dynamic_shape(share), width)


def add_messages(sent: Any, received: Any, shape: Any, width: int) -> Any:
    """Return the sum of two messages, as words."""
    if width == WIDE:
        return wide.add(sent, received)
    if sent.dtype == tf.int64:
        return tensor_ops.add(sent, received)
    return ops.module().tfe_bench_add_packed(
        own=sent, other=received, shape=sizes.shape_constant(shape), width=width
    )


def exchange_masked(
    s: Site,
    share: Any,
    shape: Any,
    tensor: int,
    slot: int = 0,
    *,
    scale: int = 0,
    is_masked: bool = False,
) -> Shared:
    """Return the value of Z_2^width whose shares E1 and E2 hold, under the fresh mask `tensor`.

    The width is that of the declared slot.

    Args:
        share: None at the dealer.
        shape: public shape of the words.
        scale: fractional bits.
        is_masked: the kernel that made the share has masked and packed it.

    Rounds: 1. Bits sent: E1, E2 width per element each.
    """
    width = s.find_slot(slot).element_bits
    if isinstance(s, CostSite):
        return s.count_exchange(share, shape[:-1] if width == WIDE else shape, scale, width)
    m = None
    if not s.is_dealer:
        if is_masked:
            m = add_messages(share, s.swap(share, slot), shape, width)
        else:
            m = exchange_shares(s, share, tensor, slot)
    return from_masked(s, m, shape, tensor, scale=scale, width=width)


def from_masked(
    s: Site, m: Any, shape: Any, tensor: int, *, scale: int = 0, width: int = RING
) -> Shared:
    """Return the private value whose masked value m under the mask `tensor` the evaluators hold."""
    # not before they are needed: masks of a whole model at once would fill the memory
    with tf.control_dependencies([] if m is None else [m]):
        l1 = None if s.is_e2 else s.mask(K1, tensor, shape)
        l2 = None if s.is_e1 else s.mask(K2, tensor, shape)
    return Shared(m, l1, l2, s.dealer, scale, 2 if width == WIDE else 1, width % RING)


def truncate_shares(s: Site, share: Any, drop: int) -> Any:
    """Return shares of y / 2^drop mod 2^(64-drop), stochastically rounded (T4).

    Floor at E1, ceil at E2.
    """
    if s.is_dealer or drop == 0:
        return share
    if s.is_e1:
        return tensor_ops.arithmetic_shift(share, drop)
    return tensor_ops.neg(tensor_ops.arithmetic_shift(tensor_ops.neg(share), drop))
