"""Operations of expressions that stay correct for large values, and counts of values out of range.

The ring has 64 bits; a product of two numbers with 16 fractional bits uses 32 of them for the
fraction. Each function here is one of tfe_bench.protocols.api with parameters for large values,
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

# Ring elements of fixed point are below 2^LIMIT in magnitude, the limit of truncations.
LIMIT = 62
# A sum of squares below 2^_NARROW is used unchanged; a larger one without its last bits.
_NARROW = 60
# A square root of ring elements gets half as many fractional bits.
_ROOT_BITS = 20
# Successive divisions, each of which leaves fewer bits.
_MAX_PARTS = 8


# ---- products


def in_parts(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a bilinear operation so that it can take one operand in two parts.

    With `split` = i the private operand i is split into its whole part, an integer, and the rest:
    f(x, y) = f(whole, y) + f(rest, y). Then neither product has more fractional bits than the
    result plus those of one truncation.
    """
    signature = inspect.signature(function)
    split = inspect.Parameter("split", inspect.Parameter.KEYWORD_ONLY, default=None)

    @functools.wraps(function)
    def call_in_parts(*args: Any, split: int | None = None, **named: Any) -> Any:
        if split is None:
            return function(*args, **named)
        if type(split) is not int or not 0 <= split < len(args):
            raise UsageError(
                "split is the position of a private operand.",
                code="invalid-argument",
                operation="split",
                received=split,
            )
        x = operands.check_private_operand(function.__name__, args[split])
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
    """Compute x * x; wide: in two parts, as in `in_parts`."""
    return in_parts(operators.multiply)(x, x, split=0) if wide else operators.square(x)


def divide(
    x: Operand,
    y: Operand,
    signed: bool = True,
    bits: int = 62,
    largest: int | None = None,
    drop: int = 0,
) -> Shared:
    """Compute x / y as operators.divide does.

    Args:
        largest: |x| and |x / y| are below 2^largest ring units; f + largest <= 53.
        drop: |x| may be below 2^(largest + drop): such an x is divided without its last bits, and
            then the remainder is divided.

    Rounds: those of `divide` and 1; with `drop` twice that, and 6 more.
    """
    if largest is None or not operands.is_private(y):
        return operators.divide(x, y, signed, bits)
    x, y = operands.share_operand_pair("divide", x, y)
    checks.check_fractional_bits_range("divide", operands.check_private_operand("divide", y), 1, 24)
    operands.check_comparison_width("divide", bits, 62)
    sizes = [int(n) for n in operands.broadcast_shapes("divide", x.shape, y.shape)]
    x, y = (shapes.broadcast_to(v, sizes) for v in (x, y))
    party, width = (
        operands.require_party_in_graph("divide"),
        operands.check_comparison_width("divide", largest + 1),
    )

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
    raised = replace(_scale_up_elements(first, drop), fractional_bits=f)
    first = relational.where(party, large, raised, first)
    # (correct modulo 2^64, and small)
    remainder = arithmetic.sub(
        replace(_scale_up_elements(x, f), fractional_bits=2 * f), arithmetic.mul(party, first, y)
    )
    second = divide_scaled(truncation.truncate(party, remainder, f))
    none = second.map(tensor_ops.zeros_like)
    return arithmetic.add(first, relational.where(party, large, second, none))


# ---- means


def _mean_division_bits(bits: int, log: int, more: int) -> tuple[int, int]:
    """Return the bits that a final division by about 2^log drops, and those that an
    earlier one drops.
    """
    last = min(truncation.MAX_DROPPED_BITS, 61 - bits - more + log)
    return last, min(max((bits + log + 1 - more) // 2, 1), truncation.MAX_DROPPED_BITS)


def can_divide_by_count(bits: int, count: int) -> bool:
    """Return whether `divide_by_count` divides numbers below 2^bits: each division
    leaves fewer bits.
    """
    log = count.bit_length() - 1
    for _ in range(_MAX_PARTS):
        last, drop = _mean_division_bits(bits, log, 0)
        if count == 1 << log or bits < last:
            return True
        bits = max(bits - drop + log + 1, drop) + 1
    return False


def divide_by_count(party: Party, total: Shared, count: int, bits: int, more: int = 0) -> Shared:
    """Compute total * 2^more / count in ring units, at the scale of `total`, with an error of at
    most 2.

    The remainder of powers of two modulo the count is divided again, until a reciprocal of few
    bits suffices.

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
        e, drop = _mean_division_bits(bits, log, more)
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


def _reduced_array_axes(operation: str, x: Shared, axis: Axes) -> tuple[list[int], int]:
    sizes = operands.sizes(operation, x)
    axes = checks.normalize_axes(operation, axis, len(sizes))
    count = math.prod(sizes[i] for i in axes)
    if count == 0:
        raise UsageError(
            f"{operation} takes at least one value. Received: axes {axes} of {x!r}.",
            code="empty-input",
            operation=operation,
        )
    return axes, count


def reduce_mean(
    x: Shared, axis: Axes = None, keepdims: bool = False, bits: int | None = None
) -> Shared:
    """Compute the mean as tensors.reduce_mean does.

    Args:
        bits: |x| < 2^bits ring units: the exact sum is divided, for any number of values, and the
            mean has an error of at most 3 ulp.
    """
    x = operands.check_private_operand("reduce_mean", x)
    if bits is None:
        return tensors.reduce_mean(x, axis, keepdims)
    axes, count = _reduced_array_axes("reduce_mean", x, axis)
    party, more = operands.require_party_in_graph("reduce_mean"), 0 if x.fractional_bits else 16
    if type(bits) is not int or not 1 <= bits <= LIMIT - more:
        raise UsageError(
            f"bits is an integer from 1 to {LIMIT - more}. Received: {bits!r}.",
            code="number-out-of-range",
            operation="bits",
            received=bits,
        )
    needed = bits + (count - 1).bit_length()
    drop = max(0, needed + 1 - LIMIT)
    if drop == 0:
        total = reductions.reduce_sum(x, axes, keepdims)
        mean = divide_by_count(party, total, count, needed, more)
    else:  # (the sum itself exceeds the ring)
        shortened = truncation.truncate(party, replace(x, fractional_bits=drop), drop)
        rest = arithmetic.sub(replace(x, fractional_bits=0), _scale_up_elements(shortened, drop))
        high, low = (reductions.reduce_sum(v, axes, keepdims) for v in (shortened, rest))
        mean = arithmetic.add(
            divide_by_count(party, high, count, needed - drop, more + drop),
            divide_by_count(party, low, count, drop + count.bit_length(), more),
        )
    return replace(mean, fractional_bits=x.fractional_bits + more)


def _scale_up_elements(x: Shared, up: int) -> Shared:
    return arithmetic.mul_public(replace(x, fractional_bits=0), np.int64(1 << up))


# ---- sums of squares


def _sum_products(party: Party, x: Shared, y: Shared, axes: list[int], keepdims: bool) -> Shared:
    """Compute sums of x * y over axes; only the sums are exchanged."""
    sizes = operands.sizes("This function", x)
    kept_axes = [i for i in range(len(sizes)) if i not in axes]
    rest, count = [sizes[i] for i in kept_axes], math.prod(sizes[i] for i in axes)
    rows = [
        shapes.reshape(shapes.transpose(replace(v, fractional_bits=0), [*kept_axes, *axes]), shape)
        for v, shape in ((x, [*rest, 1, count]), (y, [*rest, count, 1]))
    ]
    sums = arithmetic.matmul(party, rows[0], rows[1])
    whole = [1 if i in axes else n for i, n in enumerate(sizes)] if keepdims else rest
    return shapes.reshape(sums, whole)


def _mean_square(
    party: Party, x: Shared, axes: list[int], keepdims: bool, count: int, bits: int
) -> tuple[Any, Shared, Shared, int]:
    """Compute the mean of squares in ring units, exactly and divided by 2^(2 h), and which of both
    is correct.

    x = s 2^k + r gives sum x^2 = 2^(2 k) sum s^2 + 2^(k+1) sum s r + sum r^2: exact modulo 2^64,
    and without its last 2 k bits for any size.

    Args:
        count: number of values of a mean; 1 gives the sum.
        bits: |x| < 2^bits.

    Returns:
        private bits that are 1 where the second one is correct; both; h.
    """
    sizes = operands.sizes("This function", x)
    number = (math.prod(sizes[i] for i in axes) - 1).bit_length()
    k = min(max(bits - (60 - number) // 2, 1), truncation.MAX_DROPPED_BITS // 2)
    if 2 * (bits - k) + number > 60 or bits + number > 59 or 2 * k + number > 60:
        raise UsageError(
            f"A sum of squares cannot take {1 << number} values of {bits} bits.",
            code="value-too-wide",
            operation="sum of squares",
            received=bits,
        )

    def drop_bits(v: Shared, drop: int) -> Shared:
        short = truncation.truncate(party, replace(v, fractional_bits=drop), drop)
        return replace(short, fractional_bits=0)

    short = drop_bits(x, k)
    rest = arithmetic.sub(replace(x, fractional_bits=0), _scale_up_elements(short, k))
    squares = _sum_products(party, short, short, axes, keepdims)
    crossed = _scale_up_elements(_sum_products(party, short, rest, axes, keepdims), 1)
    small = _sum_products(party, rest, rest, axes, keepdims)
    exact = arithmetic.add(
        _scale_up_elements(squares, 2 * k), arithmetic.add(_scale_up_elements(crossed, k), small)
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
    """Compute the square root of ring units, at scale f."""
    chosen = relational.where(party, large, wide, narrow)
    root = roots.sqrt(party, replace(chosen, fractional_bits=_ROOT_BITS))
    root = replace(root, fractional_bits=0)
    drop = _ROOT_BITS // 2
    short = truncation.truncate(party, replace(root, fractional_bits=drop), drop)
    short = replace(short, fractional_bits=0)
    up = h - drop
    more = (
        _scale_up_elements(root, up)
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
    """Compute the norm as statistics.norm does.

    Args:
        bits: |tensor| < 2^bits ring units: the Euclidean norm is correct even if the sum of
            squares exceeds the ring.
    """
    if bits is None or ord not in ("euclidean", 2):
        return statistics.norm(tensor, ord, axis, keepdims)
    x = operands.check_private_operand("norm", tensor)
    axes, _ = _reduced_array_axes("norm", x, axis)
    party = operands.require_party_in_graph("norm")
    mean_square = _mean_square(party, x, axes, keepdims, 1, bits)
    return _scaled_root(party, *mean_square, x.fractional_bits)


def _subtract_array_mean(
    operation: str, x: Shared, axis: Axes, bits: int
) -> tuple[Shared, list[int], int]:
    axes, count = _reduced_array_axes(operation, x, axis)
    return arithmetic.sub(x, reduce_mean(x, axes, True, bits)), axes, count


def reduce_variance(
    x: Shared, axis: Axes = None, keepdims: bool = False, bits: int | None = None
) -> Shared:
    """Compute the variance as statistics.reduce_variance does; bits: as in `norm`."""
    x = operands.check_private_operand("reduce_variance", x)
    if bits is None:
        return statistics.reduce_variance(x, axis, keepdims)
    centered, axes, count = _subtract_array_mean("reduce_variance", x, axis, bits)
    party, f = operands.require_party_in_graph("reduce_variance"), x.fractional_bits
    large, narrow, wide, h = _mean_square(party, centered, axes, keepdims, count, bits + 1)
    short = truncation.truncate(party, replace(narrow, fractional_bits=2 * f), f)
    up = 2 * h - f
    if up < 0:
        wide = truncation.truncate(party, replace(wide, fractional_bits=f - up), -up)
    else:
        wide = replace(_scale_up_elements(wide, up), fractional_bits=f)
    return relational.where(party, large, wide, short)


def reduce_std(
    x: Shared, axis: Axes = None, keepdims: bool = False, bits: int | None = None
) -> Shared:
    """Compute the standard deviation as statistics.reduce_std does; bits: as in `norm`."""
    x = operands.check_private_operand("reduce_std", x)
    if bits is None:
        return statistics.reduce_std(x, axis, keepdims)
    centered, axes, count = _subtract_array_mean("reduce_std", x, axis, bits)
    party = operands.require_party_in_graph("reduce_std")
    mean_square = _mean_square(party, centered, axes, keepdims, count, bits + 1)
    return _scaled_root(party, *mean_square, x.fractional_bits)


# ---- values out of range


def _count_true_elements(party: Party, negative: Any, shape: list[int]) -> Shared:
    return reductions.reduce_sum(convert.b2a(party, negative, shape))


def count_outside(x: Shared, low: int | None = None, high: int | None = None) -> Shared:
    """Count the ring elements below `low` or above `high`, as an integer.

    Args:
        x: |x| < 2^62, or both limits are given.
        low, high: ring units below 2^62 in magnitude; None: no limit.

    Rounds: those of `less`, and 1. Bits sent: those of `less` and of `cast` for each limit.
    """
    x = operands.check_private_operand("count_outside", x)
    sizes = operands.sizes("count_outside", x)
    for limit in (low, high):
        if limit is not None and (type(limit) is not int or not -(1 << 62) <= limit < 1 << 62):
            raise UsageError(
                "count_outside takes limits below 2^62.",
                code="number-out-of-range",
                operation="count_outside",
            )
    if low is None and high is None:
        raise UsageError(
            "count_outside takes at least one limit.",
            code="missing-argument",
            operation="count_outside",
        )
    flat = shapes.reshape(replace(x, fractional_bits=0), [math.prod(sizes)])
    sides = []
    if low is not None:
        sides.append(arithmetic.add_constant(flat, np.int64(-low)))
    if high is not None:
        sides.append(arithmetic.add_constant(arithmetic.neg(flat), np.int64(high)))
    tested = shapes.concat(sides, 0)
    party = operands.require_party_in_graph("count_outside")
    negative = relational.is_negative(party, tested)
    return _count_true_elements(party, negative, [int(tested.shape[0])])


def count_steep(x: Operand, y: Operand, bits: int, drop: int = 0) -> Shared:
    """Count the quotients x / y of magnitude 2^bits or more, or with y = 0, as an integer.

    Args:
        x, y: operands of one scale, broadcast.
        drop: number of `bits` that are removed from x, exactly; the others are added to y: |x| and
            |y| 2^(bits - drop) are below 2^61 ring units.

    Rounds: those of `abs` and of `less`, and 1; with `drop` 3 more.
    """
    x, y = operands.share_operand_pair("count_steep", x, y)
    whole = [int(n) for n in operands.broadcast_shapes("count_steep", x.shape, y.shape)]
    if type(bits) is not int or type(drop) is not int or not 0 <= drop <= bits <= 61:
        raise UsageError(
            "count_steep takes 0 to 61 bits, and a drop of at most that.",
            code="number-out-of-range",
            operation="count_steep",
        )
    party = operands.require_party_in_graph("count_steep")
    large, small = (operators.abs(operands.check_private_operand("count_steep", v)) for v in (x, y))
    large = (
        rounding.floor_divide_by_power_of_two(party, large, drop)
        if drop
        else replace(large, fractional_bits=0)
    )
    room = arithmetic.sub(
        shapes.broadcast_to(_scale_up_elements(small, bits - drop), whole),
        shapes.broadcast_to(large, whole),
    )
    tested = shapes.reshape(arithmetic.add_constant(room, np.int64(-1)), [math.prod(whole)])
    return _count_true_elements(party, relational.is_negative(party, tested), [math.prod(whole)])


def count_zeros(x: Shared) -> Shared:
    """Count the elements that are 0, as an integer. Rounds: those of `equal`, and 1."""
    x = operands.check_private_operand("count_zeros", x)
    sizes = operands.sizes("count_zeros", x)
    flat = shapes.reshape(replace(x, fractional_bits=0), [math.prod(sizes)])
    party = operands.require_party_in_graph("count_zeros")
    return _count_true_elements(party, relational.is_zero(party, flat), [math.prod(sizes)])
