"""Bounds of operations that move, sum, compare or split values.

Each rule belongs to the operations that it names; see bounds.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

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
    register_bounds_rule,
    sum_bounds,
    terms_per_result,
    union_bounds,
)
from tfe_bench.arrays.plan import BITS, FIXED
from tfe_bench.errors import RangeError
from tfe_bench.protocols.api import operands

# ---- moves, concatenations and sums


@register_bounds_rule(
    *("broadcast_to", "expand_dims", "getitem", "reshape", "reverse", "slice", "split"),
    *("squeeze", "tile", "transpose", "unstack", "cummax", "sort"),
)
def _bound_view_elements(call: OperationCall) -> list[Bounds]:
    x = first_private_operand(call)
    return [require_comparable_operand(call, x) if call.op in ("cummax", "sort") else x.bounds]


@register_bounds_rule("concat", "stack")
def _bound_concat(call: OperationCall) -> list[Bounds]:
    scale = call.made[0].scale
    return [union_bounds([call.bounds_of(v, scale) for v in call.given["values"]])]


@register_bounds_rule("where")
def _bound_where(call: OperationCall) -> list[Bounds]:
    scale = call.made[0].scale
    return [union_bounds([call.bounds_of(call.given[name], scale) for name in ("x", "y")])]


@register_bounds_rule("pad")
def _bound_pad(call: OperationCall) -> list[Bounds]:
    fill = call.bounds_of(call.given.get("constant_values", 0), call.made[0].scale)
    return [union_bounds([first_private_operand(call).bounds, fill])]


@register_bounds_rule("tensor_scatter_nd_update")
def _bound_scatter_update(call: OperationCall) -> list[Bounds]:
    scale = call.made[0].scale
    return [union_bounds([call.bounds_of(call.given[n], scale) for n in ("tensor", "updates")])]


@register_bounds_rule("scatter_nd")
def _bound_scatter(call: OperationCall) -> list[Bounds]:
    indices = np.asarray(call.given["indices"])
    rows = indices.reshape(-1, indices.shape[-1]) if indices.ndim else indices.reshape(-1, 1)
    times = int(np.unique(rows, axis=0, return_counts=True)[1].max(initial=1))
    return [union_bounds([sum_bounds(call, call.given["updates"], times), Bounds(0, 0)])]


@register_bounds_rule("gather")
def _bound_gather(call: OperationCall) -> list[Bounds]:
    x, indices = call.given["x"], call.given["indices"]
    if not isinstance(indices, PrivateOperand):
        return [x.bounds]
    size = max(x.spec.shape, default=1)
    _require_index_range(call, indices, size)
    return [union_bounds([x.bounds, Bounds(0, 0)])]


def _require_index_range(call: OperationCall, indices: Any, size: int) -> None:
    """Require differences to positions to fit 64 bits, or `bits`."""
    width = operation_parameter_bits(call) - 1
    call.require_range(indices, size - (1 << width), (1 << width) - 1)


@register_bounds_rule("one_hot")
def _bound_one_hot(call: OperationCall) -> list[Bounds]:
    _require_index_range(call, call.given["indices"], int(call.given["depth"]))
    values = [call.given.get("on_value", 1), call.given.get("off_value", 0)]
    return [union_bounds([call.bounds_of(v, call.made[0].scale) for v in values])]


@register_bounds_rule("bincount")
def _bound_bincount(call: OperationCall) -> list[Bounds]:
    arr, weights = call.given["arr"], call.given.get("weights")
    _require_index_range(call, arr, int(call.given["maxlength"]) + 1)
    count = math.prod(arr.spec.shape)
    if weights is None:
        return [Bounds(0, count)]
    return [union_bounds([sum_bounds(call, weights, count), Bounds(0, 0)])]


@register_bounds_rule("histogram_fixed_width")
def _bound_histogram(call: OperationCall) -> list[Bounds]:
    x = first_private_operand(call)
    edges = call.bounds_of(call.given["value_range"], x.scale)
    width = operation_parameter_bits(call) - 1
    call.require_range(x, edges.high - (1 << width) + 1, edges.low + (1 << width) - 1)
    return [Bounds(0, math.prod(x.spec.shape))]


@register_bounds_rule("reduce_sum", "cumsum")
def _bound_sum(call: OperationCall) -> list[Bounds]:
    x = first_private_operand(call)
    if call.op == "cumsum":
        shape = x.spec.shape
        count = shape[int(call.given.get("axis", 0))] if shape else 1
        return [union_bounds([sum_bounds(call, x, max(1, count)), Bounds(0, 0)])]
    return [sum_bounds(call, x, terms_per_result(x, call.made[0]))]


@register_bounds_rule("add", "subtract")
def _bound_add(call: OperationCall) -> list[Bounds]:
    scale = call.made[0].scale
    x, y = _cap_summand_bounds(call, [call.given["x"], call.given["y"]])
    a, b = (call.bounds_of(v, scale) for v in (x, y))
    if call.op == "add":
        return [Bounds(a.low + b.low, a.high + b.high)]
    return [Bounds(a.low - b.high, a.high - b.low)]


def _cap_summand_bounds(call: OperationCall, values: Sequence[Any]) -> list[Any]:
    """Limit the larger private terms of a sum equally, so that the sum of reals fits.

    Raises:
        RangeError: the public terms alone do not fit.
    """
    scale = call.made[0].scale
    sizes = [(call.bounds_of(v, scale).most, isinstance(v, PrivateOperand)) for v in values]
    if call.made[0].kind != FIXED or sum(size for size, _ in sizes) <= MAX_MAGNITUDE:
        return list(values)
    room = MAX_MAGNITUDE - sum(size for size, private in sizes if not private)
    if room < 0:
        limit = MAX_MAGNITUDE / (1 << scale)
        raise RangeError(
            f"{call.op}: expected public numbers below {limit:.6g}. Received: larger.",
            code="public-operand-too-large",
            operation=call.op,
        )
    private = sorted(size for size, private in sizes if private)
    cap = 0
    for place, size in enumerate(private):
        cap = room // (len(private) - place)
        if size > cap:
            break
        room -= size
    return [call.require_range(v, -cap, cap) for v in values]


@register_bounds_rule("add_n")
def _bound_add_n(call: OperationCall) -> list[Bounds]:
    values = _cap_summand_bounds(call, call.given["inputs"])
    bounds = [call.bounds_of(v, call.made[0].scale) for v in values]
    return [Bounds(sum(b.low for b in bounds), sum(b.high for b in bounds))]


@register_bounds_rule("negative")
def _bound_negative(call: OperationCall) -> list[Bounds]:
    bounds = first_private_operand(call).bounds
    return [Bounds(-bounds.high, -bounds.low)]


@register_bounds_rule("abs")
def _bound_abs(call: OperationCall) -> list[Bounds]:
    x = call.require_bits(first_private_operand(call), operation_parameter_bits(call) - 2)
    return [Bounds(0, x.bounds.most)]


@register_bounds_rule("cast")
def _bound_cast(call: OperationCall) -> list[Bounds]:
    x, result = first_private_operand(call), call.made[0]
    if x.spec.kind == BITS:
        return [Bounds(0, 1 << result.scale)]
    up = result.scale - x.scale
    if up == 0:
        return [x.bounds]
    if up < 0:
        x = call.require_bits(x, LIMIT) if call.given.get("method") != "exact" else x
        top = MAX_MAGNITUDE - (1 << (-up - 1))
        x = call.require_range(x, -top, top)
        return [Bounds(x.bounds.low >> -up, -(-x.bounds.high >> -up)).spread()]
    x = call.require_bits(x, LIMIT - up)
    return [Bounds(x.bounds.low << up, x.bounds.high << up)]


@register_bounds_rule("bitcast")
def _bound_bitcast(call: OperationCall) -> list[Bounds]:
    x = first_private_operand(call)
    if call.made[0].kind == FIXED and x.is_integer:
        x = call.require_bits(x, LIMIT)
    return [x.bounds]


# ---- comparisons


def require_comparable_operand(call: OperationCall, x: Any) -> Bounds:
    """Require values to be comparable with one another in `bits`."""
    bits = operation_parameter_bits(call)
    bounds = x.bounds
    if bounds.high - bounds.low >= 1 << (bits - 1):
        bounds = call.require_bits(x, bits - 2).bounds
    return Bounds(*bounds)


@register_bounds_rule(
    "less", "less_equal", "greater", "greater_equal", "equal", "not_equal", "maximum", "minimum"
)
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


@register_bounds_rule("clip_by_value")
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


@register_bounds_rule(
    *("reduce_max", "reduce_min", "max_pool2d", "adaptive_max_pool2d", "max_pool_with_argmax"),
    *("argmax", "argmin", "top_k"),
)
def _bound_extremes(call: OperationCall) -> list[Bounds]:
    x = first_private_operand(call)
    bounds = require_comparable_operand(call, x)
    places = Bounds(0, max(1, x.spec.elements))
    if call.op in ("argmax", "argmin"):
        return [places]
    return [bounds, places] if call.op in ("top_k", "max_pool_with_argmax") else [bounds]


@register_bounds_rule("median", "quantile")
def _bound_quantile(call: OperationCall) -> list[Bounds]:
    x = call.require_bits(first_private_operand(call), 44)
    return [x.bounds.spread(2)]


@register_bounds_rule("sign")
def _bound_sign(call: OperationCall) -> list[Bounds]:
    call.require_bits(first_private_operand(call), operation_parameter_bits(call) - 1)
    unit = 1 << call.made[0].scale
    return [Bounds(-unit, unit)]


@register_bounds_rule("in_range", "bit_extract", "unpack_bits", "logical_and", "logical_not")
@register_bounds_rule("logical_or", "logical_xor")
def _bound_truth_values(call: OperationCall) -> list[Bounds]:
    return [TRUTH]


@register_bounds_rule("relu", "relu_derivative", "leaky_relu")
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


@register_bounds_rule(
    "bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift"
)
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


@register_bounds_rule("popcount", "pack_bits")
def _bound_bit_counts(call: OperationCall) -> list[Bounds]:
    if call.op == "popcount":
        return [Bounds(0, 64)]
    size = first_private_operand(call).spec.shape[-1]
    return [Bounds(0, (1 << size) - 1)]


@register_bounds_rule("count_outside", "count_steep", "count_zeros")
def _bound_violations(call: OperationCall) -> list[Bounds]:
    return [Bounds(0, 1 << 40)]
