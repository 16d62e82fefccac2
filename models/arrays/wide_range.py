"""Operations of expressions that stay right for ordinary amounts, and counts of what is too large.

The ring has 64 bits, of which a product of two numbers with 16 fractional bits takes 32 for their
fractions.  Each function here is one of tfe_bench.protocols.api with parameters for large values,
which the client plans from public bounds (bounds.py); the values themselves stay private.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.api import operands, operators, predicates, rounding, statistics, tensors
from tfe_bench.protocols.functions import reciprocal, roots
from tfe_bench.protocols.ring import (
    arithmetic,
    checks,
    convert,
    reductions,
    relational,
    shapes,
    truncation,
)
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.session.types import Axes, Operand

# Ring elements of fixed point are below 2^LIMIT in magnitude: truncations take no larger ones.
LIMIT = 62
# A sum of squares below 2^_NARROW is used as it is; above it without its last bits.
_NARROW = 60
# A square root of ring elements gets half as many fractional bits of its own.
_ROOT_BITS = 8
# Divisions one after the other, of which each leaves fewer bits.
_MAX_PARTS = 8


# ---- products


def in_parts(function: Callable[..., Any]) -> Callable[..., Any]:
    """A bilinear operation that may take one operand in two parts.

    With `split` = i the private operand i is its whole part, an integer, and the rest:
    f(x, y) = f(whole, y) + f(rest, y), so that neither product has more fractional bits than the
    result and what one truncation takes.
    """
    signature = inspect.signature(function)
    split = inspect.Parameter("split", inspect.Parameter.KEYWORD_ONLY, default=None)

    @functools.wraps(function)
    def call_in_parts(*args: Any, split: int | None = None, **named: Any) -> Any:
        if split is None:
            return function(*args, **named)
        if type(split) is not int or not 0 <= split < len(args):
            raise UsageError("split is the place of a private operand.")
        x = operands.check_private(function.__name__, args[split])
        whole = predicates.cast(x, 0)
        rest = arithmetic.sub(x, predicates.cast(whole, x.fractional_bits))
        high, low = (
            function(*args[:split], part, *args[split + 1 :], **named) for part in (whole, rest)
        )
        return arithmetic.add(high, low)

    parameters = [*signature.parameters.values(), split]
    call_in_parts.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call_in_parts


def square(x: Shared, wide: bool = False) -> Shared:
    """x * x; wide: in parts, as of `in_parts`."""
    return in_parts(operators.multiply)(x, x, split=0) if wide else operators.square(x)


def divide(
    x: Operand,
    y: Operand,
    signed: bool = True,
    bits: int = 62,
    largest: int | None = None,
    drop: int = 0,
) -> Shared:
    """x / y as of operators.divide.

    Args:
        largest: |x| and |x / y| are below 2^largest ring units; f + largest <= 53.
        drop: |x| may be below 2^(largest + drop): such an x is divided without its last bits, and
            what the quotient leaves of it again.

    Rounds: those of `divide` and 1; with `drop` twice, and 6 besides.
    """
    if largest is None or not operands.is_private(y):
        return operators.divide(x, y, signed, bits)
    x, y = operands.share_pair("divide", x, y)
    checks.check_scale("divide", operands.check_private("divide", y), 1, 24)
    operands.check_bits("divide", bits, 62)
    sizes = [int(n) for n in operands.broadcast_shapes("divide", x.shape, y.shape)]
    x, y = (shapes.broadcast_to(v, sizes) for v in (x, y))
    party, width = operands.in_graph("divide"), operands.check_bits("divide", largest + 1)

    def divide_scaled(above: Shared) -> Shared:
        return reciprocal.divide(
            party, above, y, bits, signed, numerator_bits=width, quotient_bits=width
        )

    if not drop:
        return divide_scaled(x)
    f = y.fractional_bits
    large = relational.is_negative(
        party,
        arithmetic.add_constant(arithmetic.neg(operators.abs(x)), np.int64(1 << (largest - 1))),
    )
    short = truncation.truncate(party, replace(x, fractional_bits=f + drop), drop)
    first = divide_scaled(relational.where(party, large, short, x))
    raised = replace(_shift_left(first, drop), fractional_bits=f)
    first = relational.where(party, large, raised, first)
    # (right modulo 2^64, and small)
    remainder = arithmetic.sub(
        replace(_shift_left(x, f), fractional_bits=2 * f), arithmetic.mul(party, first, y)
    )
    second = divide_scaled(truncation.truncate(party, remainder, f))
    none = second.map(tensor_ops.zeros_like)
    return arithmetic.add(first, relational.where(party, large, second, none))


# ---- means


def _division_bits(bits: int, log: int, more: int) -> tuple[int, int]:
    """Bits that a last division by about 2^log drops, and those that one before others drops."""
    last = min(truncation.MAX_DROPPED_BITS, 61 - bits - more + log)
    return last, min(max((bits + log + 1 - more) // 2, 1), truncation.MAX_DROPPED_BITS)


def can_divide(bits: int, count: int) -> bool:
    """Whether `quotient` divides numbers below 2^bits: each division leaves fewer bits."""
    log = count.bit_length() - 1
    for _ in range(_MAX_PARTS):
        last, drop = _division_bits(bits, log, 0)
        if count == 1 << log or bits < last:
            return True
        bits = max(bits - drop + log + 1, drop) + 1
    return False


def divide_by_count(party: Party, total: Shared, count: int, bits: int, more: int = 0) -> Shared:
    """total * 2^more / count in ring units, at the scale of `total`, off by 2 at most.

    What the count leaves of powers of two is divided again, until a reciprocal of few bits does.

    Args:
        total: |total| < 2^bits; the result is below 2^62.
        count: public, at least 1.
    Rounds: 1 for each division.
    """
    f = total.fractional_bits
    total = replace(total, fractional_bits=0)

    def drop_bits(x: Shared, drop: int) -> Shared:
        short = truncation.truncate(party, replace(x, fractional_bits=drop), drop)
        return replace(short, fractional_bits=0)

    parts: list[Shared] = []
    log = count.bit_length() - 1
    while True:
        e, drop = _division_bits(bits, log, more)
        power = count == 1 << log
        if power and (more >= log or log - more <= truncation.MAX_DROPPED_BITS):
            part = (
                arithmetic.mul_public(total, np.int64(1 << (more - log)))
                if more >= log
                else drop_bits(total, log - more)
            )
            break
        if e > 0 and bits < e:
            factor = ((2 << (e + more)) + count) // (2 * count)
            part = drop_bits(arithmetic.mul_public(total, np.int64(factor)), e)
            break
        whole, remainder = divmod(1 << (drop + more), count)
        high = drop_bits(total, drop)
        low = arithmetic.sub(total, arithmetic.mul_public(high, np.int64(1 << drop)))
        parts.append(arithmetic.mul_public(high, np.int64(whole)))
        total = arithmetic.add(
            arithmetic.mul_public(high, np.int64(remainder)),
            arithmetic.mul_public(low, np.int64(1 << more)),
        )
        bits, more = max(bits - drop + log + 1, drop + more) + 1, 0
    return replace(functools.reduce(arithmetic.add, [*parts, part]), fractional_bits=f)


def _reduced_axes(operation: str, x: Shared, axis: Axes) -> tuple[list[int], int]:
    sizes = operands.sizes(operation, x)
    axes = checks.normalize_axes(operation, axis, len(sizes))
    count = math.prod(sizes[i] for i in axes)
    if count == 0:
        raise UsageError(f"{operation} wants at least one value. Received: axes {axes} of {x!r}.")
    return axes, count


def reduce_mean(
    x: Shared, axis: Axes = None, keepdims: bool = False, bits: int | None = None
) -> Shared:
    """The mean as of tensors.reduce_mean.

    Args:
        bits: |x| < 2^bits ring units: the exact sum is divided, whatever the number of values, and
            the mean is off by 3 ulp at most.
    """
    x = operands.check_private("reduce_mean", x)
    if bits is None:
        return tensors.reduce_mean(x, axis, keepdims)
    axes, count = _reduced_axes("reduce_mean", x, axis)
    party, more = operands.in_graph("reduce_mean"), 0 if x.fractional_bits else 16
    if type(bits) is not int or not 1 <= bits <= LIMIT - more:
        raise UsageError(f"bits is an integer from 1 to {LIMIT - more}. Received: {bits!r}.")
    needed = bits + (count - 1).bit_length()
    drop = max(0, needed + 1 - LIMIT)
    if drop == 0:
        total = reductions.reduce_sum(x, axes, keepdims)
        mean = divide_by_count(party, total, count, needed, more)
    else:  # (the sum itself leaves the ring)
        shortened = truncation.truncate(party, replace(x, fractional_bits=drop), drop)
        rest = arithmetic.sub(replace(x, fractional_bits=0), _shift_left(shortened, drop))
        high, low = (reductions.reduce_sum(v, axes, keepdims) for v in (shortened, rest))
        mean = arithmetic.add(
            divide_by_count(party, high, count, needed - drop, more + drop),
            divide_by_count(party, low, count, drop + count.bit_length(), more),
        )
    return replace(mean, fractional_bits=x.fractional_bits + more)


def _shift_left(x: Shared, up: int) -> Shared:
    return arithmetic.mul_public(replace(x, fractional_bits=0), np.int64(1 << up))


# ---- sums of squares


def _sum_products(party: Party, x: Shared, y: Shared, axes: list[int], keepdims: bool) -> Shared:
    """Sums of x * y over axes; what is exchanged is the sums."""
    sizes = operands.sizes("This function", x)
    kept = [i for i in range(len(sizes)) if i not in axes]
    rest, count = [sizes[i] for i in kept], math.prod(sizes[i] for i in axes)
    rows = [
        shapes.reshape(shapes.transpose(replace(v, fractional_bits=0), [*kept, *axes]), shape)
        for v, shape in ((x, [*rest, 1, count]), (y, [*rest, count, 1]))
    ]
    sums = arithmetic.matmul(party, rows[0], rows[1])
    whole = [1 if i in axes else n for i, n in enumerate(sizes)] if keepdims else rest
    return shapes.reshape(sums, whole)


def _mean_square(
    party: Party, x: Shared, axes: list[int], keepdims: bool, count: int, bits: int
) -> tuple[Any, Shared, Shared, int]:
    """The mean of squares in ring units, as it is and over 2^(2 h), and which of them is right.

    x = s 2^k + r gives sum x^2 = 2^(2 k) sum s^2 + 2^(k+1) sum s r + sum r^2: exact modulo 2^64,
    and without its last 2 k bits whatever its size.

    Args:
        count: of values of a mean; 1 gives the sum.
        bits: |x| < 2^bits.

    Returns:
        private bits that are 1 where the second one is right; both; h.
    """
    sizes = operands.sizes("This function", x)
    number = (math.prod(sizes[i] for i in axes) - 1).bit_length()
    k = min(max(bits - (60 - number) // 2, 1), truncation.MAX_DROPPED_BITS // 2)
    if 2 * (bits - k) + number > 60 or bits + number > 59 or 2 * k + number > 60:
        raise UsageError(f"A sum of squares takes no {1 << number} values of {bits} bits.")

    def drop_bits(v: Shared, drop: int) -> Shared:
        short = truncation.truncate(party, replace(v, fractional_bits=drop), drop)
        return replace(short, fractional_bits=0)

    short = drop_bits(x, k)
    rest = arithmetic.sub(replace(x, fractional_bits=0), _shift_left(short, k))
    squares = _sum_products(party, short, short, axes, keepdims)
    crossed = _shift_left(_sum_products(party, short, rest, axes, keepdims), 1)
    small = _sum_products(party, rest, rest, axes, keepdims)
    exact = arithmetic.add(
        _shift_left(squares, 2 * k), arithmetic.add(_shift_left(crossed, k), small)
    )
    above = functools.reduce(
        arithmetic.add, [squares, drop_bits(crossed, k), drop_bits(small, 2 * k)]
    )
    threshold = np.int64(1 << (_NARROW - 2 * k))
    large = relational.is_negative(party, arithmetic.add_constant(arithmetic.neg(above), threshold))
    extra = 0 if count > 1 else number
    h = min(k, max(0, bits - 30 + (extra + 1) // 2))
    narrow = divide_by_count(party, exact, count, _NARROW + 1)
    wide = divide_by_count(party, above, count, 62 - (1 if count == 1 else 0), 2 * (k - h))
    return large, narrow, wide, h


def _scaled_root(party: Party, large: Any, narrow: Shared, wide: Shared, h: int, f: int) -> Shared:
    """The square root of ring units, at scale f."""
    chosen = relational.where(party, large, wide, narrow)
    root = roots.sqrt(party, replace(chosen, fractional_bits=_ROOT_BITS))
    root = replace(root, fractional_bits=0)
    drop = _ROOT_BITS // 2
    short = truncation.truncate(party, replace(root, fractional_bits=drop), drop)
    short = replace(short, fractional_bits=0)
    up = h - drop
    more = (
        _shift_left(root, up)
        if up >= 0
        else replace(
            truncation.truncate(party, replace(root, fractional_bits=-up), -up), fractional_bits=0
        )
    )
    return replace(relational.where(party, large, more, short), fractional_bits=f)


def norm(
    tensor: Shared,
    ord: str | float = "euclidean",
    axis: Axes = None,
    keepdims: bool = False,
    bits: int | None = None,
) -> Shared:
    """The norm as of statistics.norm.

    Args:
        bits: |tensor| < 2^bits ring units: the Euclidean norm is right also where the sum of
            squares leaves the ring.
    """
    if bits is None or ord not in ("euclidean", 2):
        return statistics.norm(tensor, ord, axis, keepdims)
    x = operands.check_private("norm", tensor)
    axes, _ = _reduced_axes("norm", x, axis)
    party = operands.in_graph("norm")
    mean_square = _mean_square(party, x, axes, keepdims, 1, bits)
    return _scaled_root(party, *mean_square, x.fractional_bits)


def _center_values(
    operation: str, x: Shared, axis: Axes, bits: int
) -> tuple[Shared, list[int], int]:
    axes, count = _reduced_axes(operation, x, axis)
    return arithmetic.sub(x, reduce_mean(x, axes, True, bits)), axes, count


def reduce_variance(
    x: Shared, axis: Axes = None, keepdims: bool = False, bits: int | None = None
) -> Shared:
    """The variance as of statistics.reduce_variance; bits: as of `norm`."""
    x = operands.check_private("reduce_variance", x)
    if bits is None:
        return statistics.reduce_variance(x, axis, keepdims)
    centered, axes, count = _center_values("reduce_variance", x, axis, bits)
    party, f = operands.in_graph("reduce_variance"), x.fractional_bits
    large, narrow, wide, h = _mean_square(party, centered, axes, keepdims, count, bits + 1)
    short = truncation.truncate(party, replace(narrow, fractional_bits=2 * f), f)
    up = 2 * h - f
    if up < 0:
        wide = truncation.truncate(party, replace(wide, fractional_bits=f - up), -up)
    else:
        wide = replace(_shift_left(wide, up), fractional_bits=f)
    return relational.where(party, large, wide, short)


def reduce_std(
    x: Shared, axis: Axes = None, keepdims: bool = False, bits: int | None = None
) -> Shared:
    """The standard deviation as of statistics.reduce_std; bits: as of `norm`."""
    x = operands.check_private("reduce_std", x)
    if bits is None:
        return statistics.reduce_std(x, axis, keepdims)
    centered, axes, count = _center_values("reduce_std", x, axis, bits)
    party = operands.in_graph("reduce_std")
    mean_square = _mean_square(party, centered, axes, keepdims, count, bits + 1)
    return _scaled_root(party, *mean_square, x.fractional_bits)


# ---- what leaves a range


def _count_bits(party: Party, negative: Any, shape: list[int]) -> Shared:
    return reductions.reduce_sum(convert.b2a(party, negative, shape))


def count_outside(x: Shared, low: int | None = None, high: int | None = None) -> Shared:
    """How many ring elements are below `low` or above `high`, an integer.

    Args:
        x: |x| < 2^62, or both limits are given.
        low, high: ring units below 2^62 in magnitude; None: no limit.

    Rounds: those of `less`, and 1.  Bits sent: those of `less` and of `cast` for each limit.
    """
    x = operands.check_private("count_outside", x)
    sizes = operands.sizes("count_outside", x)
    for limit in (low, high):
        if limit is not None and (type(limit) is not int or not -(1 << 62) <= limit < 1 << 62):
            raise UsageError("count_outside takes limits below 2^62.")
    if low is None and high is None:
        raise UsageError("count_outside takes one limit at least.")
    flat = shapes.reshape(replace(x, fractional_bits=0), [math.prod(sizes)])
    sides = []
    if low is not None:
        sides.append(arithmetic.add_constant(flat, np.int64(-low)))
    if high is not None:
        sides.append(arithmetic.add_constant(arithmetic.neg(flat), np.int64(high)))
    tested = shapes.concat(sides, 0)
    party = operands.in_graph("count_outside")
    negative = relational.is_negative(party, tested)
    return _count_bits(party, negative, [int(tested.shape[0])])


def count_steep(x: Operand, y: Operand, bits: int, drop: int = 0) -> Shared:
    """How many quotients x / y are not below 2^bits in magnitude, or have y = 0: an integer.

    Args:
        x, y: of one scale, broadcast.
        drop: so many of `bits` are taken off x, exactly, and the others put on y: |x| and
            |y| 2^(bits - drop) are below 2^61 ring units.

    Rounds: those of `abs` and of `less`, and 1; with `drop` 3 more.
    """
    x, y = operands.share_pair("count_steep", x, y)
    whole = [int(n) for n in operands.broadcast_shapes("count_steep", x.shape, y.shape)]
    if type(bits) is not int or type(drop) is not int or not 0 <= drop <= bits <= 61:
        raise UsageError("count_steep takes 0 to 61 bits, of which it drops some.")
    party = operands.in_graph("count_steep")
    large, small = (operators.abs(operands.check_private("count_steep", v)) for v in (x, y))
    large = rounding.floor_shift(party, large, drop) if drop else replace(large, fractional_bits=0)
    room = arithmetic.sub(
        shapes.broadcast_to(_shift_left(small, bits - drop), whole),
        shapes.broadcast_to(large, whole),
    )
    tested = shapes.reshape(arithmetic.add_constant(room, np.int64(-1)), [math.prod(whole)])
    return _count_bits(party, relational.is_negative(party, tested), [math.prod(whole)])


def count_zeros(x: Shared) -> Shared:
    """How many elements are 0, an integer.  Rounds: those of `equal`, and 1."""
    x = operands.check_private("count_zeros", x)
    sizes = operands.sizes("count_zeros", x)
    flat = shapes.reshape(replace(x, fractional_bits=0), [math.prod(sizes)])
    party = operands.in_graph("count_zeros")
    return _count_bits(party, relational.is_zero(party, flat), [math.prod(sizes)])
