"""Operations that move, place, sum or convert values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfe_bench.arrays.arguments import MAX_PARTS
from tfe_bench.arrays.array_spec import BITS, FIXED
from tfe_bench.arrays.bounds import (
    LIMIT,
    MAX_MAGNITUDE,
    Bounds,
    OperationCall,
    PrivateOperand,
    first_private_operand,
    operation_parameter_bits,
    sum_bounds,
    terms_per_result,
    union_bounds,
)
from tfe_bench.arrays.operations import (
    BITS_OR_NUMBERS,
    MAX_ELEMENTS,
    MAX_REPEATS,
    ONE_SCALE,
    array_operation,
)
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.protocols.api import indexing, operators, predicates, statistics, tensors
from tfe_bench.protocols.ring import reductions, shapes

# ---- moves, concatenations and sums


def _check_split_parts(arguments: Mapping[str, Any]) -> None:
    """Reject a split of an array into too many parts, before it runs."""
    parts = arguments["num_or_size_splits"]
    if type(parts) is int and parts > MAX_PARTS:
        raise UsageError(
            f"split returns at most {MAX_PARTS} arrays. Received: {parts}.",
            code="too-many-results",
            operation="split",
            received=parts,
        )


def _check_unstacked_parts(arguments: Mapping[str, Any]) -> None:
    sizes, axis = getattr(arguments["x"], "shape", None), arguments.get("axis", 0)
    if sizes is None or type(axis) is not int:
        return
    if -len(sizes) <= axis < len(sizes) and int(sizes[axis]) > MAX_PARTS:
        raise UsageError(
            f"unstack returns at most {MAX_PARTS} arrays. Received: more.",
            code="too-many-results",
            operation="unstack",
        )


@array_operation(shapes.expand_dims, view=lambda x, axis: np.expand_dims(x, axis))
@array_operation(shapes.getitem, view=lambda x, key: x[key])
@array_operation(
    shapes.reshape, sizes={"shape": MAX_ELEMENTS}, view=lambda x, shape: np.reshape(x, shape)
)
@array_operation(shapes.transpose, view=lambda x: np.transpose(x))
@array_operation(shapes.reverse, shapes.slice, shapes.squeeze)
@array_operation(shapes.broadcast_to, sizes={"shape": MAX_ELEMENTS})
@array_operation(shapes.tile, sizes={"multiples": MAX_ELEMENTS})
@array_operation(shapes.split, sizes={"num_or_size_splits": MAX_ELEMENTS}, check=_check_split_parts)
@array_operation(tensors.unstack, check=_check_unstacked_parts)
def _bound_view_elements(call: OperationCall) -> list[Bounds]:
    return [first_private_operand(call).bounds]


@array_operation(tensors.concat, tensors.stack, operands=BITS_OR_NUMBERS)
def _bound_concat(call: OperationCall) -> list[Bounds]:
    scale = call.made[0].scale
    return [union_bounds([call.bounds_of(v, scale) for v in call.given["values"]])]


@array_operation(predicates.where, operands=BITS_OR_NUMBERS)
def _bound_where(call: OperationCall) -> list[Bounds]:
    scale = call.made[0].scale
    return [union_bounds([call.bounds_of(call.given[name], scale) for name in ("x", "y")])]


@array_operation(tensors.pad, sizes={"paddings": MAX_ELEMENTS})
def _bound_pad(call: OperationCall) -> list[Bounds]:
    fill = call.bounds_of(call.given.get("constant_values", 0), call.made[0].scale)
    return [union_bounds([first_private_operand(call).bounds, fill])]


@array_operation(indexing.tensor_scatter_nd_update, operands=BITS_OR_NUMBERS)
def _bound_scatter_update(call: OperationCall) -> list[Bounds]:
    scale = call.made[0].scale
    return [union_bounds([call.bounds_of(call.given[n], scale) for n in ("tensor", "updates")])]


@array_operation(indexing.scatter_nd, sizes={"shape": MAX_ELEMENTS})
def _bound_scatter(call: OperationCall) -> list[Bounds]:
    indices = np.asarray(call.given["indices"])
    rows = indices.reshape(-1, indices.shape[-1]) if indices.ndim else indices.reshape(-1, 1)
    times = int(np.unique(rows, axis=0, return_counts=True)[1].max(initial=1))
    return [union_bounds([sum_bounds(call, call.given["updates"], times), Bounds(0, 0)])]


@array_operation(indexing.gather)
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


@array_operation(indexing.one_hot, sizes={"depth": MAX_ELEMENTS})
def _bound_one_hot(call: OperationCall) -> list[Bounds]:
    _require_index_range(call, call.given["indices"], int(call.given["depth"]))
    values = [call.given.get("on_value", 1), call.given.get("off_value", 0)]
    return [union_bounds([call.bounds_of(v, call.made[0].scale) for v in values])]


@array_operation(statistics.bincount, sizes={"minlength": MAX_ELEMENTS, "maxlength": MAX_ELEMENTS})
def _bound_bincount(call: OperationCall) -> list[Bounds]:
    arr, weights = call.given["arr"], call.given.get("weights")
    _require_index_range(call, arr, int(call.given["maxlength"]) + 1)
    count = math.prod(arr.spec.shape)
    if weights is None:
        return [Bounds(0, count)]
    return [union_bounds([sum_bounds(call, weights, count), Bounds(0, 0)])]


@array_operation(statistics.histogram_fixed_width, sizes={"nbins": MAX_REPEATS})
def _bound_histogram(call: OperationCall) -> list[Bounds]:
    x = first_private_operand(call)
    edges = call.bounds_of(call.given["value_range"], x.scale)
    width = operation_parameter_bits(call) - 1
    call.require_range(x, edges.high - (1 << width) + 1, edges.low + (1 << width) - 1)
    return [Bounds(0, math.prod(x.spec.shape))]


@array_operation(reductions.reduce_sum, reductions.cumsum)
def _bound_sum(call: OperationCall) -> list[Bounds]:
    x = first_private_operand(call)
    if call.op == "cumsum":
        shape = x.spec.shape
        count = shape[int(call.given.get("axis", 0))] if shape else 1
        return [union_bounds([sum_bounds(call, x, max(1, count)), Bounds(0, 0)])]
    return [sum_bounds(call, x, terms_per_result(x, call.made[0]))]


@array_operation(operators.add, operators.subtract, operands=ONE_SCALE)
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


@array_operation(tensors.add_n, operands=ONE_SCALE)
def _bound_add_n(call: OperationCall) -> list[Bounds]:
    values = _cap_summand_bounds(call, call.given["inputs"])
    bounds = [call.bounds_of(v, call.made[0].scale) for v in values]
    return [Bounds(sum(b.low for b in bounds), sum(b.high for b in bounds))]


@array_operation(operators.negative)
def _bound_negative(call: OperationCall) -> list[Bounds]:
    bounds = first_private_operand(call).bounds
    return [Bounds(-bounds.high, -bounds.low)]


@array_operation(operators.abs)
def _bound_abs(call: OperationCall) -> list[Bounds]:
    x = call.require_bits(first_private_operand(call), operation_parameter_bits(call) - 2)
    return [Bounds(0, x.bounds.most)]


@array_operation(predicates.cast)
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


@array_operation(tensors.bitcast)
def _bound_bitcast(call: OperationCall) -> list[Bounds]:
    x = first_private_operand(call)
    if call.made[0].kind == FIXED and x.is_integer:
        x = call.require_bits(x, LIMIT)
    return [x.bounds]
