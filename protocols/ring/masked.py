"""Values mod 2^width under masks: dealt to the evaluators, and exchanged between them.

Of values narrower than a word the low bits travel, packed in whole bytes.
"""

from __future__ import annotations

from typing import Any

from tfe_bench.protocols.session import local, ops, sizes
from tfe_bench.protocols.session.party import K1, Site

RING = 64


def _pack(x: Any, width: int) -> Any:
    return ops.module().tfe_bench_pack_words(x=x, width=width)


def _received(s: Site, shape: Any, width: int, source: int, slot: int) -> Any:
    """Words of a shape from a party that sends `width` bits of each."""
    import tensorflow as tf

    n = sizes.elements(shape)
    packed = s.recv(sizes.vector((n * width + 7) // 8), source, slot, tf.uint8)
    words = ops.module().tfe_bench_unpack_words(packed=packed, n=n, width=width)
    return tf.reshape(words, shape)


def deal(s: Site, value: Any, shape: Any, tensor: int, slot: int, width: int = RING) -> Any:
    """The dealer splits a value that it knows: additive shares mod 2^width, None at the dealer.

    Args:
        value: at the dealer; its message is the low bits of value - mask, uniform mod 2^width.
        shape: public.
        tensor, slot: number of the mask and of the message.

    Rounds: 0 when the dealer runs ahead, else 1.  Bits sent: D width per element.
    """
    if width == RING:
        return s.deal(value, shape, tensor, slot)
    if s.is_dealer:
        message = _pack(s.apply_mask(value, K1, tensor, "sub"), width)
        s.send(message, s.e2, slot, run_ahead=True)
        return None
    if s.is_e1:
        return local.low_bits(s.mask(K1, tensor, shape), width)
    return _received(s, shape, width, s.d, slot)


def exchange(s: Site, share: Any, tensor: int, slot: int, width: int = RING) -> Any:
    """E1, E2 hold y1 + y2 = y; both get y + l1 + l2 mod 2^width under the mask `tensor`.

    Rounds: 1.  Bits sent: E1, E2 width per element each.
    """
    if width == RING:
        return s.open_mask(share, tensor, slot)
    own = s.apply_mask(share, s.own_key, tensor, "add")
    s.send(_pack(own, width), s.other, slot)
    got = _received(s, local.shape(share), width, s.other, slot)
    s._opened = local.low_bits(own + got, width)
    return s._opened
