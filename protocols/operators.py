"""Python's operators on private tensors: x + y, x @ w, x < 3.5, (x < y) & ~z.

Scales are looked after: a product of reals is truncated back, public numbers are
encoded at the scale that fits.  The party is that of the running program
(`party.current`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols import arithmetic, logic, relational, truncation
from tfe_bench.protocols.fixedpoint import FixedPoint
from tfe_bench.protocols.party import current
from tfe_bench.protocols.sharing import MaskedBits, Shared

# Of public reals that are multiplied with a private value.
WEIGHT_BITS = 16


def is_private(value: Any) -> bool:
    """Whether a value is a private tensor or private bits."""
    return isinstance(value, (Shared, MaskedBits))


def encode(operation: str, value: Any, fractional_bits: int) -> Any:
    """A public number, array or tensor as ring elements.

    Raises:
        RangeError: NaN, infinite or too large (arrays and numbers).
        UsageError: not numeric.
    """
    import tensorflow as tf

    if is_private(value):
        raise UsageError(f"{operation} wants a public value here. Received: {value!r}.")
    if isinstance(value, tf.Tensor):
        if value.dtype.is_floating:
            scaled = tf.round(tf.cast(value, tf.float64) * 2.0**fractional_bits)
            return tf.cast(scaled, tf.int64)
        if value.dtype.is_integer or value.dtype.is_bool:
            return tf.cast(value, tf.int64) * (1 << fractional_bits)
        raise UsageError(f"{operation} wants numbers. Received: a tensor of {value.dtype.name}.")
    return tf.constant(FixedPoint(fractional_bits).encode(value), tf.int64)


def _whole(value: Any) -> bool:
    """Whether a public value is of an integer type, and so needs no scale."""
    import tensorflow as tf

    if isinstance(value, tf.Tensor):
        return bool(value.dtype.is_integer or value.dtype.is_bool)
    return np.asarray(value).dtype.kind in "iub"


def _private(operation: str, x: Any) -> Shared:
    if isinstance(x, MaskedBits):
        raise UsageError(
            f"{operation} wants numbers. Received: {x!r}. Use cast(bits) to make 0 and 1 of them."
        )
    if not isinstance(x, Shared):
        raise UsageError(f"{operation} wants a private tensor. Received: {type(x).__name__}.")
    return x


def add(x: Any, y: Any) -> Shared:
    """x + y, broadcast; one of them may be public.  Local."""
    if not isinstance(x, Shared):
        x, y = y, x
    x = _private("add", x)
    if isinstance(y, Shared):
        return arithmetic.add(x, y)
    return arithmetic.add_public(x, encode("add", y, x.fractional_bits))


def sub(x: Any, y: Any) -> Shared:
    """x - y, broadcast; one of them may be public.  Local."""
    if isinstance(x, Shared) and isinstance(y, Shared):
        return arithmetic.sub(x, y)
    if isinstance(x, Shared):
        return arithmetic.add_public(x, -encode("sub", y, x.fractional_bits))
    y = _private("sub", y)
    return arithmetic.add_public(arithmetic.neg(y), encode("sub", x, y.fractional_bits))


def _scaled_product(z: Shared, f: int, g: int) -> Shared:
    """Drops the smaller of two scales from their product."""
    drop = min(f, g)
    return truncation.truncate(current(), z, drop) if drop else z


def mul(x: Any, y: Any) -> Shared:
    """x * y elementwise, broadcast; one of them may be public.

    The result has the larger of the two scales; error below 1 ulp (T3), none for integers.
    Rounds: 2 (cold 3); a public real 1 (2), a public integer none.
    """
    if not isinstance(x, Shared):
        x, y = y, x
    x = _private("mul", x)
    if isinstance(y, Shared):
        z = arithmetic.mul(current(), x, y)
        return _scaled_product(z, x.fractional_bits, y.fractional_bits)
    if _whole(y):
        return arithmetic.mul_public(x, encode("mul", y, 0))
    z = arithmetic.mul_public(x, encode("mul", y, WEIGHT_BITS), WEIGHT_BITS)
    if x.fractional_bits == 0:
        return z
    return truncation.truncate(current(), z, WEIGHT_BITS)


def matmul(x: Any, y: Any) -> Shared:
    """x @ y; one of them may be public.  Scale, error and rounds as `mul`."""
    if isinstance(x, Shared) and isinstance(y, Shared):
        z = arithmetic.matmul(current(), x, y)
        return _scaled_product(z, x.fractional_bits, y.fractional_bits)
    if not isinstance(x, Shared):
        raise UsageError(
            "matmul wants its left operand private. Received: a public one. "
            "Transpose: transpose(transpose(y) @ transpose(x))."
        )
    if _whole(y):
        return arithmetic.matmul_public(x, encode("matmul", y, 0))
    z = arithmetic.matmul_public(x, encode("matmul", y, WEIGHT_BITS), WEIGHT_BITS)
    return truncation.truncate(current(), z, WEIGHT_BITS) if x.fractional_bits else z


def divide(x: Any, y: Any) -> Shared:
    """x / y; see reciprocal.divide for its domain.  A public y is a multiplication."""
    if isinstance(y, Shared):
        from tfe_bench.protocols import reciprocal

        if not isinstance(x, Shared):
            x = encode("divide", x, y.fractional_bits)
        return reciprocal.divide(current(), x, y)
    x = _private("divide", x)
    import tensorflow as tf

    inverse = 1.0 / tf.cast(y, tf.float64) if isinstance(y, tf.Tensor) else 1.0 / np.asarray(y)
    return mul(x, inverse)


def power(x: Any, exponent: Any) -> Shared:
    """x ** n for a public integer n from 1 to 64, by repeated squaring."""
    x = _private("power", x)
    if isinstance(exponent, bool) or not isinstance(exponent, int) or not 1 <= exponent <= 64:
        raise UsageError(f"power wants a public integer from 1 to 64. Received: {exponent!r}.")
    result: Shared | None = None
    square = x
    while exponent:
        if exponent & 1:
            result = square if result is None else mul(result, square)
        exponent >>= 1
        if exponent:
            square = mul(square, square)
    assert result is not None
    return result


def absolute(x: Any) -> Shared:
    """|x|, exact.  Rounds: those of `less`, and 1.  Bits sent: relational.maximum_cost."""
    x = _private("abs", x)
    return relational.maximum(current(), x, arithmetic.neg(x))


# ---- comparisons


def _difference(operation: str, x: Any, y: Any) -> Shared:
    if not isinstance(x, Shared) and not isinstance(y, Shared):
        raise UsageError(
            f"{operation} wants a private tensor on one side. Received: "
            f"{type(x).__name__} and {type(y).__name__}."
        )
    _private(operation, x if isinstance(x, Shared) else y)
    return sub(x, y)


def _shaped(bits: MaskedBits, like: Shared) -> MaskedBits:
    shape = like.shape
    return replace(bits, shape=None if shape.rank is None else tuple(shape.as_list()))


def _sign(operation: str, x: Any, y: Any) -> MaskedBits:
    d = _difference(operation, x, y)
    return _shaped(relational.negative(current(), d), d)


def less(x: Any, y: Any) -> MaskedBits:
    """[x < y], exact; one side may be public.  Rounds and bits: relational.less."""
    return _sign("less", x, y)


def greater(x: Any, y: Any) -> MaskedBits:
    """[x > y]; as `less`."""
    return _sign("greater", y, x)


def less_equal(x: Any, y: Any) -> MaskedBits:
    """[x <= y]; as `less`."""
    return logic.invert(_sign("less_equal", y, x))


def greater_equal(x: Any, y: Any) -> MaskedBits:
    """[x >= y]; as `less`."""
    return logic.invert(_sign("greater_equal", x, y))


def equal(x: Any, y: Any) -> MaskedBits:
    """[x == y], exact; one side may be public.  Rounds and bits: relational.equal."""
    d = _difference("equal", x, y)
    return _shaped(relational.zero(current(), d), d)


def not_equal(x: Any, y: Any) -> MaskedBits:
    """[x != y]; as `equal`."""
    return logic.invert(equal(x, y))


# ---- bits


def _both(operation: str, a: Any, b: Any) -> tuple[MaskedBits, MaskedBits]:
    for bits in (a, b):
        if not isinstance(bits, MaskedBits):
            raise UsageError(
                f"{operation} wants private bits on both sides. Received: {type(bits).__name__}."
            )
    if a.shape != b.shape:
        raise UsageError(f"{operation} wants bits of one shape. Received: {a.shape} and {b.shape}.")
    return a, b


def logical_and(a: Any, b: Any) -> MaskedBits:
    """a AND b.  Rounds: 1 (cold 2).  Bits sent: D 3, E1, E2 1 per bit."""
    from tfe_bench.protocols import convert

    a, b = _both("logical_and", a, b)
    opened = convert.open_bits(current(), logic.all_of(current(), [a, b]))
    return replace(opened, shape=a.shape)


def logical_or(a: Any, b: Any) -> MaskedBits:
    """a OR b; as `logical_and`."""
    a, b = _both("logical_or", a, b)
    return logic.invert(logical_and(logic.invert(a), logic.invert(b)))


def logical_xor(a: Any, b: Any) -> MaskedBits:
    """a XOR b.  Local."""
    return logic.xor(*_both("logical_xor", a, b))


def logical_not(a: Any) -> MaskedBits:
    """NOT a.  Local."""
    if not isinstance(a, MaskedBits):
        raise UsageError(f"logical_not wants private bits. Received: {type(a).__name__}.")
    return logic.invert(a)


def cast(bits: Any) -> Shared:
    """Bits as the integers 0 and 1.  Rounds: 1 (cold 2).  Bits sent: 64 per bit by each party."""
    import tensorflow as tf

    from tfe_bench.protocols import convert

    if not isinstance(bits, MaskedBits):
        raise UsageError(f"cast wants private bits. Received: {type(bits).__name__}.")
    shape = None if bits.shape is None else tf.constant(bits.shape, tf.int64)
    return convert.b2a(current(), bits, shape)


def where(condition: Any, x: Any, y: Any) -> Shared:
    """x where the private bit is 1, else y; public x or y are encoded; all broadcast.

    Rounds: 1 (cold 2).  Bits sent: D 128, E1, E2 64 per element.
    """
    import tensorflow as tf

    if not isinstance(condition, MaskedBits):
        raise UsageError(
            "where wants private bits as its condition (the result of a private comparison). "
            f"Received: {type(condition).__name__}. Use tf.where for a public condition."
        )
    if not isinstance(x, Shared) and not isinstance(y, Shared):
        raise UsageError("where wants x or y private. Received: two public values.")
    d = sub(x, y)
    if condition.shape is not None:
        try:
            whole = tf.broadcast_static_shape(d.shape, tf.TensorShape(condition.shape))
        except ValueError:
            whole = None
        if whole is None or whole.as_list() != list(condition.shape):
            raise UsageError(
                "where wants x and y to broadcast to the condition's shape "
                f"{list(condition.shape)}. Received: {d.shape.as_list()}."
            )
        d = d.map(lambda a: tf.broadcast_to(a, condition.shape))
    from tfe_bench.protocols import convert

    return add(convert.inject(current(), condition, d), y)


def negative(x: Any) -> Shared:
    """-x.  Local."""
    return arithmetic.neg(_private("neg", x))
