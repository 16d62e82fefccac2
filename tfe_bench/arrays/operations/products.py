"""Products, sums of products, and means.

An operation that is linear in each operand takes one of them in two parts if its exact sum may
exceed 62 bits (wide_range.in_parts).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from tfe_bench.arrays import wide_range
from tfe_bench.arrays.array_spec import FIXED, INT
from tfe_bench.arrays.bounds import (
    LIMIT,
    MAX_MAGNITUDE,
    WORDS,
    Bounds,
    OperandGuard,
    OperationCall,
    PrivateOperand,
    first_private_operand,
    operation_parameter_bits,
    sum_bounds,
    terms_per_result,
    union_bounds,
)
from tfe_bench.arrays.operations import FACTORS, MAX_REPEATS, Apply, Composer, array_operation
from tfe_bench.protocols.api import contractions, neural, operands, operators, pooling, scans

# ---- products


def encode_public_factor(value: Any, weight_bits: int) -> tuple[int, int]:
    """Return a public factor's largest ring element, and its fractional bits
    (operands.encode_public_weight).
    """
    array = np.asarray(value)
    if array.dtype.kind != "f":
        return max((abs(int(v)) for v in array.reshape(-1)), default=0), 0
    _, bits = operands.encode_public_weight("multiply", array, weight_bits)
    largest = float(np.abs(array).max(initial=0.0))
    return math.ceil(Fraction(largest) * (1 << bits)), bits


def _bound_product(call: OperationCall, names: tuple[str, str], terms: int) -> Bounds:
    return product_bounds(call, call.given[names[0]], call.given[names[1]], terms, (0, 1))


def product_bounds(
    call: OperationCall, x: Any, y: Any, terms: int, places: tuple[int, ...]
) -> Bounds:
    """Return the bounds of sums of products, each sum truncated to the larger scale.

    If the exact sum may exceed 62 bits, a private operand is taken in two parts
    (wide_range.in_parts); if this does not suffice, private operands must be smaller.

    Args:
        terms: number of terms of each sum.
        places: positions of the operands among the arguments; none: they are not split.
    """
    factors = [x, y]
    private = [isinstance(v, PrivateOperand) for v in factors]
    scales, sizes, weight_bits = [0, 0], [Bounds(0, 0)] * 2, 0
    for i, (value, other) in enumerate(((x, y), (y, x))):
        if private[i]:
            scales[i], sizes[i] = value.scale, value.bounds
        else:
            weight_bits = 0 if other.scale else operands.WEIGHT_BITS
            largest, scales[i] = encode_public_factor(value, weight_bits)
            sizes[i] = Bounds(-largest, largest)
    if call.made[0].kind == INT:
        return _exact_bounds(sizes, terms)
    if all(private):
        drop = min(scales)
    else:
        drop = scales[private.index(False)]
        drop -= min(drop, weight_bits)
    if max(1, sizes[0].most) * max(1, sizes[1].most) * terms <= MAX_MAGNITUDE:
        return _truncated_bounds(sizes, terms, drop)
    extra = (terms - 1).bit_length()
    bits = [b.bits for b in sizes]
    part = _choose_operand_to_split(private, scales, bits, drop, extra) if places else None
    limits = _cap_factor_bits(
        bits, private, LIMIT - 1 - extra + (0 if part is None else scales[part])
    )
    if part is not None:
        call.extra["split"] = places[part]
        limits[1 - part] = min(limits[1 - part], LIMIT - scales[part] - extra)
    for i, limit in enumerate(limits):
        if private[i]:
            sizes[i] = call.require_bits(factors[i], limit).bounds
    return _truncated_bounds(sizes, terms, drop)


def _choose_operand_to_split(
    private: list[bool], scales: list[int], bits: list[int], drop: int, extra: int
) -> int | None:
    """Choose the operand to split: the larger one whose whole part leaves a valid scale."""
    required_scale = drop if all(private) else operands.WEIGHT_BITS
    candidates = [i for i in (0, 1) if private[i] and drop and scales[i] == required_scale]
    candidates = [
        i for i in candidates if private[1 - i] or bits[1 - i] <= LIMIT - scales[i] - extra
    ]
    return max(candidates, key=lambda i: bits[i], default=None)


def _cap_factor_bits(bits: list[int], private: list[bool], room: int) -> list[int]:
    """Return bits of two factors whose product fits: the larger one is reduced to
    the other first.
    """
    a, b = bits
    if a + b <= room:
        return [a, b]
    if not private[0]:
        return [a, max(0, room - a)]
    if not private[1]:
        return [max(0, room - b), b]
    if a >= b:
        a = max(room - b, room // 2)
        return [a, min(b, room - a)]
    b = max(room - a, room // 2)
    return [min(a, room - b), b]


def _exact_bounds(sizes: list[Bounds], terms: int) -> Bounds:
    a, b = sizes
    corners = [p * q * terms for p in a for q in b]
    return Bounds(min(corners), max(corners))


def _truncated_bounds(sizes: list[Bounds], terms: int, drop: int) -> Bounds:
    exact = _exact_bounds(sizes, terms)
    if not drop:
        return exact
    return Bounds(exact.low >> drop, -(-exact.high >> drop)).spread(2)


@array_operation(wide_range.in_parts(operators.multiply), operands=FACTORS)
def _bound_multiply(call: OperationCall) -> list[Bounds]:
    x, y = call.given["x"], call.given["y"]
    if isinstance(x, PrivateOperand) and isinstance(y, PrivateOperand) and x.node is y.node:
        return [_square_bounds(call, x, 0)]
    return [_bound_product(call, ("x", "y"), 1)]


def _square_bounds(call: OperationCall, x: PrivateOperand, split: int) -> Bounds:
    if x.is_integer:
        return Bounds(0, x.bounds.most**2)
    if x.bounds.most**2 <= MAX_MAGNITUDE:
        return Bounds(0, x.bounds.most**2 >> x.scale).spread(1)
    x = call.require_bits(x, min((LIMIT + x.scale - 1) // 2, LIMIT - x.scale - 1))
    if x.bounds.most**2 > MAX_MAGNITUDE:
        if call.op == "square":
            call.extra["wide"] = True
        else:
            call.extra["split"] = split
    return Bounds(0, x.bounds.most**2 >> x.scale).spread(2)


@array_operation(wide_range.square)
def _bound_square(call: OperationCall) -> list[Bounds]:
    return [_square_bounds(call, first_private_operand(call), 0)]


def _product_operand_shape(value: Any) -> tuple[int, ...]:
    return value.spec.shape if isinstance(value, PrivateOperand) else np.shape(value)


@array_operation(wide_range.in_parts(operators.matmul), operands=FACTORS)
def _bound_matmul(call: OperationCall) -> list[Bounds]:
    shape = _product_operand_shape(call.given["x"])
    is_transposed = bool(call.given.get("transpose_a", False)) and len(shape) > 1
    return [_bound_product(call, ("x", "y"), shape[-2 if is_transposed else -1])]


@array_operation(wide_range.in_parts(contractions.matvec), operands=FACTORS)
def _bound_matvec(call: OperationCall) -> list[Bounds]:
    return [_bound_product(call, ("a", "b"), _product_operand_shape(call.given["b"])[-1])]


@array_operation(wide_range.in_parts(contractions.tensordot), operands=FACTORS)
def _bound_tensordot(call: OperationCall) -> list[Bounds]:
    both = [math.prod(_product_operand_shape(call.given[name])) for name in ("a", "b")]
    terms = math.isqrt(max(1, both[0] * both[1] // max(1, call.made[0].elements)))
    return [_bound_product(call, ("a", "b"), max(1, terms))]


@array_operation(wide_range.in_parts(contractions.einsum))
def _bound_einsum(call: OperationCall) -> list[Bounds]:
    values = call.given["inputs"]
    indexes = math.prod(
        _einsum_axis_sizes(
            call.given["equation"], [_product_operand_shape(v) for v in values]
        ).values()
    )
    terms = max(1, indexes // max(1, call.made[0].elements))
    if len(values) == 1:
        return [union_bounds([sum_bounds(call, values[0], terms), values[0].bounds])]
    x, y = values
    return [product_bounds(call, x, y, terms, (1, 2))]


def _einsum_axis_sizes(equation: str, shapes: list[tuple[int, ...]]) -> dict[str, int]:
    """Return the sizes of an equation's axes."""
    sizes: dict[str, int] = {}
    for term, shape in zip(
        equation.replace(" ", "").split("->")[0].split(","), shapes, strict=True
    ):
        before, dots, after = term.partition("...")
        more = len(shape) - len(before) - len(after)
        names = [*before, *([f"-{i}" for i in range(more, 0, -1)] if dots else []), *after]
        for name, size in zip(names, shape, strict=True):
            sizes[name] = max(sizes.get(name, 1), size)
    return sizes


def _compose_convolution_bias(name: str) -> Composer:
    """Return a composition of a convolution and its bias, each planned separately."""

    def add_bias(apply: Apply, arguments: Mapping[str, Any]) -> Any:
        bias = arguments.get("bias")
        if bias is None:
            return None
        shape = bias.shape if hasattr(bias, "kind") else np.shape(bias)
        plain = apply(name, **{**arguments, "bias": None})
        pairs = zip(shape[::-1], plain.shape[::-1], strict=False)
        if len(shape) > plain.ndim or any(n not in (1, size) for n, size in pairs):
            return None  # (the operation itself raises the error)
        return apply("add", plain, bias)

    return add_bias


@array_operation(wide_range.in_parts(neural.conv2d), compose=_compose_convolution_bias("conv2d"))
@array_operation(
    wide_range.in_parts(neural.depthwise_conv2d),
    compose=_compose_convolution_bias("depthwise_conv2d"),
)
def _bound_convolution(call: OperationCall) -> list[Bounds]:
    shape = _product_operand_shape(call.given["filters"])
    # (a bias is a separate sum)
    return [
        _bound_product(call, ("x", "filters"), math.prod(shape[: 3 if call.op == "conv2d" else 2]))
    ]


def _compose_product(apply: Apply, arguments: Mapping[str, Any]) -> Any:
    """Multiply halves by halves, in the order of protocols.api.ranking; each product is planned
    separately.
    """
    x = arguments["x"]
    if getattr(x, "kind", None) != FIXED or x.size == 0:
        return None
    axis = arguments.get("axis")
    if axis is not None and type(axis) is not int:
        return None
    if axis is not None and not -x.ndim <= axis < x.ndim:
        return None
    rows = apply("reshape", x, [-1]) if axis is None else _move_axis_first(apply, x, axis % x.ndim)
    count = rows.shape[0]
    while count > 1:
        half = count // 2
        low, high = (apply("getitem", rows, slice(i * half, (i + 1) * half)) for i in (0, 1))
        joined = apply("multiply", low, high)
        if count % 2:
            rest = apply("getitem", rows, slice(2 * half, count))
            joined = apply("concat", [joined, rest], 0)
        rows, count = joined, count - half
    if arguments.get("keepdims", False):
        shape = (
            [1] * x.ndim
            if axis is None
            else [1 if i == axis % x.ndim else n for i, n in enumerate(x.shape)]
        )
        return apply("reshape", rows, shape)
    return apply("getitem", rows, 0)


def _move_axis_first(apply: Apply, x: Any, axis: int) -> Any:
    if axis == 0:
        return x
    return apply("transpose", x, [axis, *(i for i in range(x.ndim) if i != axis)])


@array_operation(scans.reduce_prod, compose=_compose_product)
@array_operation(scans.cumprod)
def _bound_prod(call: OperationCall) -> list[Bounds]:
    x = first_private_operand(call)
    if x.is_integer:
        return [WORDS]
    count = (
        terms_per_result(x, call.made[0])
        if call.op == "reduce_prod"
        else max(x.spec.shape, default=1)
    )
    one, largest = 1 << x.scale, max(x.bounds.most, 1 << x.scale)
    # any partial product is below 2^30 if the whole one is
    room = (LIMIT + x.scale - 2) // 2 - x.scale
    if (Fraction(largest, one) ** min(count, 4096)) >= 1 << room or count > 4096:
        limit = math.floor(2 ** (room / count) * one)
        x = call.require_range(x, -limit, limit)
        largest = max(x.bounds.most, one)
    magnitude = math.ceil((Fraction(largest, one) ** count) * one * (1 + Fraction(count, one)))
    return [Bounds(-magnitude, magnitude).spread(count)]


# Scores of a row that differ by more get wrong weights; the second limit is for a private mask.
_SPREAD, _MASKED_SPREAD = 119.0, 50.0


def _guard_attention_scores(
    apply: Apply, arguments: Mapping[str, Any]
) -> list[tuple[Any, OperandGuard]]:
    query, key = arguments["query"], arguments["key"]
    rank = query.ndim
    transposed_key = apply("transpose", key, [*range(rank - 2), rank - 1, rank - 2])
    scale = arguments["scale"]
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    spread = _SPREAD if arguments["spread"] is None else float(arguments["spread"])
    if arguments["spread"] is None and hasattr(arguments["mask"], "kind"):
        spread = _MASKED_SPREAD
    scores = apply("multiply", apply("matmul", query, transposed_key), scale)
    limit = math.floor(spread / 2 * 2.0**scores.fractional_bits)
    text = f"scaled_dot_product_attention: scores are {spread:.4g} or more apart"
    return [(scores, OperandGuard((), text, -limit, limit))]


@array_operation(neural.scaled_dot_product_attention, bits=45, guards=_guard_attention_scores)
def _bound_attention(call: OperationCall) -> list[Bounds]:
    value = call.given["value"]
    for name in ("query", "key"):
        call.require_bits(
            call.given[name], 30 - (call.given["query"].spec.shape[-1] - 1).bit_length() // 2
        )
    value = call.require_bits(value, min(operation_parameter_bits(call) - 1, 44))
    return [value.bounds.spread(value.bounds.most // 512 + 8)]


# ---- means


# Bits of a sum, at the scale of the mean, up to which a product with the count's reciprocal has an
# error of half an ulp.
_PLAIN = 30


@array_operation(wide_range.reduce_mean)
def _bound_mean(call: OperationCall) -> list[Bounds]:
    x, result = first_private_operand(call), call.made[0]
    up = result.scale - x.scale
    x = call.require_bits(x, LIMIT - 1 - up)
    if x.bounds.bits + up + (terms_per_result(x, result) - 1).bit_length() > _PLAIN:
        call.extra["bits"] = max(1, x.bounds.bits)
    return [Bounds(x.bounds.low << up, x.bounds.high << up).spread(4)]


@array_operation(neural.avg_pool2d, sizes={"ksize": MAX_REPEATS})
@array_operation(pooling.adaptive_avg_pool2d, sizes={"output_size": MAX_REPEATS})
def _bound_average_pool(call: OperationCall) -> list[Bounds]:
    x, up = first_private_operand(call), call.made[0].scale - first_private_operand(call).scale
    x = call.require_bits(x, 31)
    return [Bounds(x.bounds.low << up, x.bounds.high << up).spread(4)]


def _cap_squared_operand(call: OperationCall, more: int) -> tuple[PrivateOperand, int, int]:
    """Limit the operand of a sum of squares; return it, its bits, and the number of values."""
    x = first_private_operand(call)
    terms = terms_per_result(x, call.made[0])
    x = call.require_bits(x, 59 - more - max(1, (terms - 1).bit_length()))
    number = (terms - 1).bit_length()
    # (at most 36 bits of the sum are dropped: a sum from 2^60 on keeps the 24 that its root reads)
    x = call.require_bits(x, min(x.bounds.bits, 18 + (60 - number) // 2 - more))
    return x, x.bounds.bits + more, terms


@array_operation(wide_range.norm)
def _bound_norm(call: OperationCall) -> list[Bounds]:
    x = first_private_operand(call)
    order = call.given.get("ord", "euclidean")
    if order not in ("euclidean", 2):
        x = call.require_bits(x, LIMIT - 1)
        return [Bounds(0, sum_bounds(call, x, terms_per_result(x, call.made[0])).most)]
    x, bits, terms = _cap_squared_operand(call, 0)
    if x.bounds.most**2 * terms > MAX_MAGNITUDE >> 1:
        call.extra["bits"] = bits
    root = math.isqrt(x.bounds.most**2 * terms) + 1
    return [Bounds(0, root + (root >> 18)).spread(4)]


@array_operation(wide_range.reduce_variance, wide_range.reduce_std)
def _bound_variance(call: OperationCall) -> list[Bounds]:
    x, bits, terms = _cap_squared_operand(call, 1)
    # (a variance is at most a quarter of the range's square)
    half_range = (x.bounds.high - x.bounds.low + 2) // 2 + 1
    if max(bits, 2 * bits - x.scale) + (terms - 1).bit_length() > _PLAIN:
        call.extra["bits"] = bits - 1
    if call.op == "reduce_std":
        return [Bounds(0, half_range + (half_range >> 17)).spread(4)]
    square = half_range**2 >> x.scale
    if square > MAX_MAGNITUDE:
        x = call.require_bits(x, (LIMIT - 2 + x.scale) // 2)
        square = MAX_MAGNITUDE - 4
    return [Bounds(0, square).spread(4)]
