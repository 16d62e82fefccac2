"""Ring products whose words are random above the bits that are read, in every test of this process.

Kernels may leave arbitrary bits there. A reader of them would be right on one processor only.
"""

from __future__ import annotations

import itertools
from typing import Any

from tfe_bench.protocols.session import ops

PRODUCTS = (
    "tfe_bench_ring_mat_mul",
    "tfe_bench_mat_mul_combined",
    "tfe_bench_ring_conv2d",
    "tfe_bench_conv_combined",
)
_seeds = itertools.count()


def randomize_unread_bits() -> None:
    """Add random words above the read bits to the results of all products traced from now on."""
    import tensorflow as tf

    def replace_product(name: str) -> None:
        product = getattr(ops.module(), name)

        def spoil(*, bits: int, **arguments: Any) -> Any:
            result = product(bits=bits, **arguments)
            if bits == 64:
                return result
            words = tf.random.stateless_uniform(
                tf.shape(result), [next(_seeds), 0], None, None, tf.int64
            )
            spoiled = result + tf.bitwise.left_shift(words, tf.constant(bits, tf.int64))
            spoiled.set_shape(result.shape)
            return spoiled

        setattr(ops.module(), name, spoil)

    for name in PRODUCTS:
        replace_product(name)
