"""Operations that compare values, select some of them, or work on their bits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from tfe_bench.arrays import wide_range
from tfe_bench.arrays.array_spec import INT
from tfe_bench.arrays.bounds import (
    LIMIT,
    MAX_MAGNITUDE,
    TRUTH,
    WORDS,
    Bounds,
    OperationCall,
    PrivateOperand,
    first_private_operand,
    operation_parameter_bits,
    union_bounds,
)
from tfe_bench.arrays.operations import (
    MAX_ELEMENTS,
    MAX_REPEATS,
    ONE_SCALE,
    Apply,
    Composer,
    array_operation,
)
from tfe_bench.protocols.api import (
    bitwise,
    neural,
    operands,
    pooling,
    predicates,
    ranking,
    scans,
)

# ---- comparisons


def _require_comparable_operand(call: OperationCall, x: Any) -> Bounds:
    """Require values to be comparable with one another in `bits`."""
    bits = operation_parameter_bits(call)
    bounds = x.bounds
    if bounds.high - bounds.low >= 1 << (bits - 1):
        bounds = call.require_bits(x, bits - 2).bounds
    return Bounds(*bounds)


@array_operation(ranking.maximum, ranking.minimum, operands=ONE_SCALE)
@array_operation(predicates.less, predicates.less_equal, operands=ONE_SCALE)
@array_operation(predicates.greater, predicates.greater_equal, operands=ONE_SCALE)
@array_operation(predicates.equal, predicates.not_equal, operands=ONE_SCALE)
def _bound_comparison(call: OperationCall) -> list[Bounds]:
    x, y = call.given["x"], call.given["y"]
    scale = max(v.scale for v in (x, y) if isinstance(v, PrivateOperand))
    a, b = (call.bounds_of(v, scale) for v in (x, y))
    bits = operation_parameter_bits(call)
    if max(a.high - b.low, b.high - a.low) >= 1 << (bits - 1):
        for value, other in ((x, b), (y, a)):
            if isinstance(value, PrivateOperand):
                if isinstance(x, PrivateOperand) and isinstance(y, PrivateOperand):
                    call.require_bits(value, bits - 2)
                else:
                    _require_near_public_values(call, value, other, bits)
    if call.op == "maximum":
        return [Bounds(max(a.low, b.low), max(a.high, b.high))]
    if call.op == "minimum":
        return [Bounds(min(a.low, b.low), min(a.high, b.high))]
    return [TRUTH]


@array_operation(ranking.clip_by_value, operands=ONE_SCALE)
def _bound_clip(call: OperationCall) -> list[Bounds]:
    x, scale, bits = call.given["x"], call.made[0].scale, operation_parameter_bits(call)
    limits = [call.given[name] for name in ("clip_value_min", "clip_value_max")]
    low, high = (call.bounds_of(limit, scale) for limit in limits)
    joint_bounds = union_bounds([x.bounds, low, high])
    if joint_bounds.high - joint_bounds.low >= 1 << (bits - 1):
        private = [limit for limit in limits if isinstance(limit, PrivateOperand)]
        for limit in private:
            call.require_bits(limit, bits - 2)
        x = call.require_bits(x, bits - 2) if private else x
        for limit, near in zip(limits, (low, high), strict=True):
            if not isinstance(limit, PrivateOperand):
                x = _require_near_public_values(call, x, near, bits)
    lower_clipped = Bounds(max(x.bounds.low, low.low), max(x.bounds.high, low.high))
    return [Bounds(min(lower_clipped.low, high.low), min(lower_clipped.high, high.high))]


def _require_near_public_values(call: OperationCall, x: Any, other: Bounds, bits: int) -> Any:
    """Require a private value to be comparable with public ones in `bits`."""
    room = 1 << (bits - 1)
    return call.require_range(x, other.high - room + 1, other.low + room - 1)


@array_operation(ranking.reduce_max, ranking.reduce_min, ranking.argmax, ranking.argmin)
@array_operation(scans.cummax)
@array_operation(ranking.sort, between=True)
@array_operation(ranking.top_k, between=True, sizes={"k": MAX_ELEMENTS})
@array_operation(
    neural.max_pool2d, pooling.max_pool_with_argmax, bits=64, sizes={"ksize": MAX_REPEATS}
)
@array_operation(pooling.adaptive_max_pool2d, bits=64, sizes={"output_size": MAX_REPEATS})
def _bound_extremes(call: OperationCall) -> list[Bounds]:
    x = first_private_operand(call)
    bounds = _require_comparable_operand(call, x)
    places = Bounds(0, max(1, x.spec.elements))
    if call.op in ("argmax", "argmin"):
        return [places]
    return [bounds, places] if call.op in ("top_k", "max_pool_with_argmax") else [bounds]


def _compose_quantile(name: str) -> Composer:
    """Return a composition for quantiles of integers, which are reals as in NumPy."""

    def cast_integers(apply: Apply, arguments: Mapping[str, Any]) -> Any:
        x = arguments["x"]
        if getattr(x, "kind", None) != INT:
            return None
        return apply(name, **{**arguments, "x": apply("cast", x, 16)})

    return cast_integers


@array_operation(ranking.median, between=True, compose=_compose_quantile("median"))
@array_operation(ranking.quantile, between=True, compose=_compose_quantile("quantile"))
def _bound_quantile(call: OperationCall) -> list[Bounds]:
    x = call.require_bits(first_private_operand(call), 44)
    return [x.bounds.spread(2)]


@array_operation(ranking.sign)
def _bound_sign(call: OperationCall) -> list[Bounds]:
    call.require_bits(first_private_operand(call), operation_parameter_bits(call) - 1)
    unit = 1 << call.made[0].scale
    return [Bounds(-unit, unit)]


@array_operation(bitwise.bit_extract, bitwise.unpack_bits, predicates.in_range)
@array_operation(predicates.logical_and, predicates.logical_or, predicates.logical_xor)
@array_operation(predicates.logical_not)
def _bound_truth_values(call: OperationCall) -> list[Bounds]:
    return [TRUTH]


@array_operation(neural.relu, neural.relu_derivative, bits=64)
@array_operation(neural.leaky_relu, bits=39)
def _bound_relu(call: OperationCall) -> list[Bounds]:
    x = call.require_bits(first_private_operand(call), min(operation_parameter_bits(call), 63) - 1)
    if call.op == "relu_derivative":
        return [TRUTH]
    if call.op == "relu":
        return [Bounds(max(0, x.bounds.low), max(0, x.bounds.high))]
    alpha = Fraction(float(call.given.get("alpha", 0.2)))
    factor = abs(int(operands.encode_public_weight("leaky_relu", float(alpha))[0]))
    x = call.require_range(x, -(MAX_MAGNITUDE // max(1, factor)), None)
    ends = [math.floor(alpha * b) for b in x.bounds]
    return [Bounds(min(*x.bounds, *ends, 0), max(*x.bounds, *ends, 0)).spread(2)]


# ---- words of bits


@array_operation(bitwise.bitwise_and, bitwise.bitwise_or, bitwise.bitwise_xor, bitwise.invert)
@array_operation(bitwise.left_shift, bitwise.right_shift)
def _bound_bitwise_words(call: OperationCall) -> list[Bounds]:
    x = first_private_operand(call)
    if call.op == "invert":
        return [Bounds(-1 - x.bounds.high, -1 - x.bounds.low)]
    if call.op == "right_shift":
        x = call.require_bits(x, LIMIT)
        y = int(np.asarray(call.given["y"]).max(initial=0))
        return [Bounds(x.bounds.low >> y, x.bounds.high >> y)]
    if call.op == "left_shift":
        y = int(np.asarray(call.given["y"]).max(initial=0))
        return [Bounds(x.bounds.low << y, x.bounds.high << y)]
    both = [call.bounds_of(call.given[name], 0) for name in ("x", "y")]
    if min(b.low for b in both) < 0:
        return [WORDS]
    bits = [b.high.bit_length() for b in both]
    width = min(bits) if call.op == "bitwise_and" else max(bits)
    return [Bounds(0, (1 << width) - 1)]


@array_operation(bitwise.popcount, bitwise.pack_bits)
def _bound_bit_counts(call: OperationCall) -> list[Bounds]:
    if call.op == "popcount":
        return [Bounds(0, 64)]
    size = first_private_operand(call).spec.shape[-1]
    return [Bounds(0, (1 << size) - 1)]


@array_operation(wide_range.count_outside, wide_range.count_steep, wide_range.count_zeros)
def _bound_violations(call: OperationCall) -> list[Bounds]:
    return [Bounds(0, 1 << 40)]
