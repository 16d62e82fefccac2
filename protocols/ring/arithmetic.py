"""Linear operations on private values, and products of two (products.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.ring import products
from tfe_bench.protocols.ring.checks import (
    broadcast_shapes,
    check_factors,
    check_matmul_shapes,
    check_private_pair,
    check_public_factor,
)
from tfe_bench.protocols.ring.products import BilinearShareProduct, sum_matrix_products
from tfe_bench.protocols.session import tensor_ops, wide
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


def _map_share_field_pairs(function: Callable[[Any, Any], Any], x: Shared, y: Shared) -> Shared:
    m, l1, l2 = (
        None if a is None else function(a, b) for a, b in ((x.m, y.m), (x.l1, y.l1), (x.l2, y.l2))
    )
    return Shared(m, l1, l2, x.dealer, x.fractional_bits, x.limbs, x.bits)


def add(x: Shared, y: Shared) -> Shared:
    """Add with broadcasting. Local."""
    check_private_pair("add", x, y)
    broadcast_shapes("add", x.shape, y.shape)
    return _map_share_field_pairs(tensor_ops.add if x.limbs == 1 else wide.add, x, y)


def sub(x: Shared, y: Shared) -> Shared:
    """Subtract with broadcasting. Local."""
    check_private_pair("sub", x, y)
    broadcast_shapes("sub", x.shape, y.shape)
    return _map_share_field_pairs(tensor_ops.sub if x.limbs == 1 else wide.sub, x, y)


def neg(x: Shared) -> Shared:
    """Negate. Local."""
    return x.map(tensor_ops.neg if x.limbs == 1 else wide.negate)


def add_constant(x: Shared, constant: Any) -> Shared:
    """Add public ring elements that broadcast to x's shape.

    Local: only the masked value m changes.
    """
    return (
        x
        if x.m is None
        else replace(x, m=tensor_ops.add(x.m, _align_public_ring_elements(x, constant)))
    )


def _align_public_ring_elements(x: Shared, ring: Any) -> Any:
    """Return public ring elements in the form that combines with x's fields."""
    return (
        ring
        if tensor_ops.is_tensor(ring) or not tensor_ops.is_concrete(x.any)
        else tensor_ops.constant(ring)
    )


def add_public(x: Shared, ring: tf.Tensor) -> Shared:
    """Add public ring elements, encoded at x's scale. Local: only the masked value m changes."""
    check_public_factor("add_public", x, ring)
    if not tensor_ops.is_concrete(x.any):
        return replace(x, m=tensor_ops.add(x.m, ring))
    if x.m is None:
        # The dealer's masks take the shape that m gets by broadcasting.
        shape = tf.broadcast_dynamic_shape(tf.shape(x.any), tf.shape(ring))
        return x.map(lambda a: tf.broadcast_to(a, shape))
    m = tensor_ops.add(x.m, ring)
    return replace(
        x,
        m=m,
        l1=None if x.l1 is None else tf.broadcast_to(x.l1, tf.shape(m)),
        l2=None if x.l2 is None else tf.broadcast_to(x.l2, tf.shape(m)),
    )


def mul_public(x: Shared, ring: tf.Tensor, fractional_bits: int = 0) -> Shared:
    """Multiply by public ring elements with their own scale. Local; scales add up."""
    check_public_factor("mul_public", x, ring)
    ring = _align_public_ring_elements(x, ring)
    y = x.map(lambda a: tensor_ops.mul(a, ring))
    return replace(y, fractional_bits=x.fractional_bits + fractional_bits)


def share_public(like: Shared, ring: Any) -> Shared:
    """Return public ring elements as shares with masks of zero, for the dealer of `like`. Local."""
    if not tensor_ops.is_concrete(like.any):
        return Shared(tensor_ops.symbolic_result(np.shape(ring)), None, None, like.dealer)
    ring = tf.convert_to_tensor(ring)
    zero = tf.zeros_like(ring)
    return Shared(
        None if like.m is None else ring,
        None if like.l1 is None else zero,
        None if like.l2 is None else zero,
        like.dealer,
    )


def share_public_range(like: Shared, n: int) -> Shared:
    """Return 0, 1, ..., n - 1 as shares with masks of zero, as `share_public`. Local.

    No array of n words is made where the values are only counted, and a graph keeps none.
    """
    if not tensor_ops.is_concrete(like.any):
        return Shared(tensor_ops.symbolic_result([n]), None, None, like.dealer)
    return share_public(like, tensor_ops.arange(n))


def to_ring_tensor(operation: str, value: Any) -> Any:
    """Return public ring elements as an int64 tensor or array.

    Raises:
        UsageError: the value is private, or not of integers (reals must be encoded first).
    """
    if not isinstance(value, Shared):
        tensor = value if tensor_ops.is_tensor(value) else np.asarray(value)
        if not isinstance(tensor, np.ndarray) and tensor.dtype == np.int64:
            return tensor
        if isinstance(tensor, np.ndarray) and tensor.dtype.kind in "iu":
            return tensor.astype(np.int64)
    received = repr(value) if isinstance(value, Shared) else getattr(value, "dtype", type(value))
    raise UsageError(
        f"{operation} expects public ring elements, int64. Received: {received}. Encode reals as "
        f"fixed point; use {operation.removesuffix('_public')} for a private operand.",
        code="not-public" if isinstance(value, Shared) else "unsupported-type",
        operation=operation,
        received=received,
    )


def matmul_public(
    x: Any,
    y: Any,
    fractional_bits: int = 0,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Shared:
    """Multiply a private and a public matrix, in either order. Local; scales add up.

    Args:
        x, y: [..., m, k] and [..., k, n], one of them public ring elements with `fractional_bits`;
            leading dimensions broadcast.
        transpose_a, transpose_b: take an operand with its last two dimensions transposed.
    """
    private, public = (x, y) if isinstance(x, Shared) else (y, x)
    check_public_factor("matmul_public", private, public)
    ring = to_ring_tensor("matmul_public", public)
    shape = tensor_ops.static_shape(ring)
    left, right = (private.shape, shape) if private is x else (shape, private.shape)
    check_matmul_shapes("matmul_public", left, right, transpose_a, transpose_b)

    def multiply_public(a: Any) -> Any:
        operands = (a, ring) if private is x else (ring, a)
        return sum_matrix_products(
            [_transpose_ring_matrix(operands[0], transpose_a)],
            [_transpose_ring_matrix(operands[1], transpose_b)],
        )

    return replace(
        private.map(multiply_public), fractional_bits=private.fractional_bits + fractional_bits
    )


def _transpose_ring_matrix(a: Any, transpose: bool) -> Any:
    if not transpose:
        return a
    if not tensor_ops.is_concrete(a):
        return a.like([*a.shape[:-2], a.shape[-1], a.shape[-2]])
    return tf.linalg.matrix_transpose(a)


def mul(party: Party, x: Shared, y: Shared) -> Shared:
    """Multiply elementwise with broadcasting; the scales add up (truncate afterwards).

    Rounds: 1 online (2 total). Bits sent: D, E1, E2 64 per element each.
    """
    check_factors("mul", x, y)
    broadcast_shapes("mul", x.shape, y.shape)
    return products.exchange_sum(
        party, "mul", [BilinearShareProduct(x, y, products.sum_elementwise_products)]
    )


def matmul(
    party: Party, x: Shared, y: Shared, transpose_a: bool = False, transpose_b: bool = False
) -> Shared:
    """Multiply over the last two dimensions, the leading ones broadcast; the scales add up.

    Args:
        x, y: [..., m, k] and [..., k, n], of rank 2 at least.
        transpose_a, transpose_b: take an operand with its last two dimensions transposed.

    Rounds: 1 online (2 total). Bits sent: D, E1, E2 64 per element of the result each.
    """
    check_factors("matmul", x, y)
    check_matmul_shapes("matmul", x.shape, y.shape, transpose_a, transpose_b)
    x = x.map(lambda a: _transpose_ring_matrix(a, transpose_a))
    y = y.map(lambda b: _transpose_ring_matrix(b, transpose_b))
    return products.exchange_sum(party, "matmul", [BilinearShareProduct(x, y, sum_matrix_products)])
