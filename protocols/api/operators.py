"""Python's arithmetic operators on private tensors: x + y, x @ w, x / 3, x ** 2.

Scales are handled automatically: a product of reals is truncated back, public numbers are encoded
at a matching scale (operands.py). The party is that of the running program (`current_party`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.api import operands
from tfe_bench.protocols.ring import (
    arithmetic,
    checks,
    compare,
    relational,
    shapes,
    truncation,
)
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import current_party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.session.types import Operand, Public

# Arguments: a private value, ring elements and their fractional bits.
WeightProduct: TypeAlias = "Callable[[Shared, tf.Tensor, int], Shared]"

EXACT_BITS = compare.EXACT_BITS


def add(x: Operand, y: Operand) -> Shared:
    """Compute x + y, broadcast; one of them may be public. Local."""
    return arithmetic.add(*operands.share_operand_pair("add", x, y))


def subtract(x: Operand, y: Operand) -> Shared:
    """Compute x - y, broadcast; one of them may be public. Local."""
    return arithmetic.sub(*operands.share_operand_pair("subtract", x, y))


def negative(x: Shared) -> Shared:
    """Compute -x. Local."""
    return arithmetic.neg(operands.check_private_operand("negative", x, any_ring=True))


def drop_product_scale(operation: str, z: Shared, f: int, g: int) -> Shared:
    """Drop the smaller of two scales from their product."""
    drop = min(f, g)
    return truncation.truncate(operands.require_party_in_graph(operation), z, drop) if drop else z


def _private_first(operation: str, x: Operand, y: Operand) -> tuple[Shared, Operand]:
    """Return both operands, a private one first; private ones are over Z_2^64, of one dealer."""
    first = operands.either_private(operation, x, y)
    private_values = [
        operands.check_private_operand(operation, value)
        for value in (x, y)
        if operands.is_private(value)
    ]
    if private_values[0].dealer != private_values[-1].dealer:
        raise UsageError(
            f"{operation} expects operands of one dealer. Received: "
            f"{private_values[0].dealer} and {private_values[1].dealer}.",
            code="dealer-mismatch",
            operation=operation,
            received=f"{private_values[0].dealer} and {private_values[1].dealer}",
        )
    return first, y if first is x else x


def multiply_by_public_weight(
    operation: str, x: Shared, weight: Operand, weight_product: WeightProduct
) -> Shared:
    """Return weight_product(x, ring elements, fractional bits) for a public weight, at x's scale.

    An integer x gets WEIGHT_BITS fractional bits, unless the weight is whole too.
    """
    kept_bits = 0 if x.fractional_bits else operands.WEIGHT_BITS
    ring, bits = operands.encode_public_weight(operation, weight, kept_bits)
    z = weight_product(x, ring, bits)
    drop = bits - min(bits, kept_bits)
    return truncation.truncate(operands.require_party_in_graph(operation), z, drop) if drop else z


def multiply(x: Operand, y: Operand) -> Shared:
    """Compute x * y elementwise, broadcast; one of them may be public.

    The result has the larger of the two scales; error below 1 ulp (T3), none for integers. A public
    real is held with 24 significant bits of the largest one, and at least 16 fractional bits; the
    exact product must be below 2^62 ring units before it is truncated.
    Rounds: 2 online, 3 in total; with a public real 1 online, 2 in total; with whole public numbers
    none.
    """
    first, second = _private_first("multiply", x, y)
    if isinstance(second, Shared):
        operands.check_fit("multiply", first, second, same_scale=False)
        z = arithmetic.mul(operands.require_party_in_graph("multiply"), first, second)
        return drop_product_scale("multiply", z, first.fractional_bits, second.fractional_bits)
    operands.broadcast_shapes("multiply", first.shape, operands.public_shape("multiply", second))
    return multiply_by_public_weight("multiply", first, second, arithmetic.mul_public)


def matmul(x: Operand, y: Operand, transpose_a: bool = False, transpose_b: bool = False) -> Shared:
    """Compute x @ y over the last two axes; one of them may be public.

    A vector counts as a row on the left and as a column on the right. That axis is dropped again,
    as in NumPy and Keras; two vectors yield their inner product.
    Scale, error and rounds: as `multiply`, with sums before the truncation.
    """
    inner, other = _private_first("matmul", x, y)
    ranks = [_matmul_operand_rank(v) for v in (x, y)]
    if 1 in ranks and 0 not in ranks and not transpose_a and not transpose_b:
        z = matmul(
            _reshape_to_matmul_row(x) if ranks[0] == 1 else x,
            _reshape_to_matmul_column(y) if ranks[1] == 1 else y,
        )
        return shapes.squeeze(z, [a for a, r in zip((-2, -1), ranks, strict=True) if r == 1])
    left, right = (
        v.shape if isinstance(v, Shared) else operands.public_shape("matmul", v) for v in (x, y)
    )
    checks.check_matmul_shapes("matmul", left, right, transpose_a, transpose_b)
    if isinstance(other, Shared):
        z = arithmetic.matmul(
            operands.require_party_in_graph("matmul"), inner, other, transpose_a, transpose_b
        )
        return drop_product_scale("matmul", z, inner.fractional_bits, other.fractional_bits)

    def matmul_public(a: Shared, ring: tf.Tensor, bits: int) -> Shared:
        first, second = (a, ring) if isinstance(x, Shared) else (ring, a)
        return arithmetic.matmul_public(first, second, bits, transpose_a, transpose_b)

    return multiply_by_public_weight("matmul", inner, other, matmul_public)


def _matmul_operand_rank(value: Operand) -> int | None:
    shape = value.shape if isinstance(value, Shared) else operands.public_shape("matmul", value)
    return shape.rank  # type: ignore[no-any-return]


def _reshape_to_matmul_row(x: Operand) -> Operand:
    return shapes.expand_dims(x, 0) if isinstance(x, Shared) else _reshape_public(x, (1, -1))


def _reshape_to_matmul_column(x: Operand) -> Operand:
    return shapes.expand_dims(x, 1) if isinstance(x, Shared) else _reshape_public(x, (-1, 1))


def _reshape_public(value: Public, shape: tuple[int, int]) -> Public:
    if not tensor_ops.is_tensor(value):
        return np.asarray(value).reshape(shape)
    return tf.reshape(value, shape)


def divide(x: Operand, y: Operand, signed: bool = True, bits: int = 62) -> Shared:
    """Compute x / y; 0 for y = 0. A public y is a multiplication.

    Args:
        signed: y of either sign; False requires y > 0 (else 0) and sends a quarter less.
        bits: |y| < 2^bits ring units; fewer are cheaper.

    Error: at most 2^-20 of the quotient and 1.25 ulp, while |x| and |x / y| are below 2^30 ring
    units (2^14 at 16 fractional bits); beyond that the result is garbage. A public y: as
    `multiply`.
    Rounds: 9 (5 for bits <= 12) online, one more in total. Bits sent: those of reciprocal.divide.
    """
    from tfe_bench.protocols.functions import reciprocal

    operands.either_private("divide", x, y)
    if not operands.is_private(y):
        return multiply(operands.check_private_operand("divide", x), _invert_public_divisor(y))
    x, y = operands.share_operand_pair("divide", x, y)
    operands.check_private_operand("divide", y)
    operands.check_comparison_width("divide", bits, 62)
    if not 1 <= y.fractional_bits <= 24:
        raise UsageError(
            f"divide expects 1 to 24 fractional bits. Received: {y.fractional_bits}. "
            f"Rescale both: cast(x, {operands.WEIGHT_BITS}).",
            code="unsupported-scale",
            operation="divide",
            received=y.fractional_bits,
            expected="1 to 24",
        )
    result_shape = operands.broadcast_shapes("divide", x.shape, y.shape)

    def broadcast_division_operand(v: Any) -> Any:
        return (
            v.map(lambda a: tensor_ops.broadcast_to(a, result_shape))
            if result_shape.is_fully_defined()
            else v
        )

    return reciprocal.divide(
        operands.require_party_in_graph("divide"),
        broadcast_division_operand(x),
        broadcast_division_operand(y),
        bits,
        signed,
    )


def _invert_public_divisor(y: Public) -> Public:
    divisor = operands.static_public_operand("divide", y)
    if divisor is None:
        return 1.0 / tf.cast(y, tf.float64)
    if not np.all(divisor.astype(np.float64)):
        raise UsageError(
            "divide expects a public divisor without zeros. Received: a divisor that "
            "contains 0. Replace the zeros, or select the result with where.",
            code="division-by-zero",
            operation="divide",
        )
    return 1.0 / divisor.astype(np.float64)


@operands.check_arguments()
def square(x: Shared) -> Shared:
    """Compute x * x, at x's scale; error below 1 ulp.

    Rounds: 2 online, 3 in total; for integers 1 online, 2 in total.
    """
    from tfe_bench.protocols.ring import reductions

    z = reductions.square(current_party(), x)
    return drop_product_scale("square", z, x.fractional_bits, x.fractional_bits)


@operands.check_arguments(max_bits=64)
def abs(x: Shared, bits: int = EXACT_BITS) -> Shared:
    """Compute |x|, exact for |x| < 2^(bits-2) ring units. Rounds: those of `less`, and 1."""
    return relational.maximum(current_party(), x, arithmetic.neg(x), bits)
