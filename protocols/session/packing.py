"""Ring elements on the wire: whole words, or the packed low bits of smaller rings."""

from __future__ import annotations

from typing import Any

from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.session import ops, sizes, tensor_ops
from tfe_bench.protocols.session.numbering import Site

RING = 64


def pack_ring_words(x: Any, width: int) -> Any:
    """Return words mod 2^width as a message."""
    return x if width >= RING else ops.module().tfe_bench_pack_words(x=x, width=width)


def receive_packed_ring_words(
    s: Site, shape: Any, source: int, slot: int = 0, width: int = RING
) -> Any:
    """Receive words of a public shape that a party sent with `pack_words`."""
    if width >= RING:
        return s.recv(shape, source, slot)
    n = sizes.count_elements(shape)
    packed = s.recv(sizes.vector_shape((n * width + 7) // 8), source, slot, tf.uint8)
    count = tensor_ops.constant(n) if isinstance(n, int) else n
    words = ops.module().tfe_bench_unpack_words(packed=packed, n=count, width=width)
    return tensor_ops.reshape(words, shape)
