"""Quotients, powers and elementary functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from tfe_bench.arrays import flooring, wide_range
from tfe_bench.arrays.array_spec import BITS, FIXED
from tfe_bench.arrays.bounds import (
    LIMIT,
    MAX_MAGNITUDE,
    Bounds,
    OperandGuard,
    OperationCall,
    PrivateOperand,
    first_private_operand,
    operation_parameter_bits,
    widest_bounds,
)
from tfe_bench.arrays.operations import ONE_SCALE, Apply, array_operation
from tfe_bench.arrays.operations.products import product_bounds
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.protocols.api import elementary, neural, powers, rounding

# ---- elementary functions


def _result_scale_unit(call: OperationCall) -> int:
    return 1 << call.made[0].scale


@array_operation(neural.sigmoid, neural.tanh, neural.softmax, neural.gelu, neural.silu, bits=62)
@array_operation(elementary.erf, bits=62)
def _bound_smooth_activation(call: OperationCall) -> list[Bounds]:
    room = operation_parameter_bits(call) - (2 if call.op == "softmax" else 1)
    x, one = call.require_bits(first_private_operand(call), room), _result_scale_unit(call)
    if call.op in ("gelu", "silu"):
        return [Bounds(max(-one, min(0, x.bounds.low)), max(0, x.bounds.high)).spread(4)]
    low = 0 if call.op in ("sigmoid", "softmax") else -one
    return [Bounds(low, one).spread(4)]


# Bits of coordinates that atan2 takes.
_NEAR = 30


def _compose_atan2(apply: Apply, arguments: Mapping[str, Any]) -> Any:
    """Replace distant points by nearer ones in the same direction."""
    y, x = arguments["y"], arguments["x"]
    if not all(getattr(v, "kind", None) == FIXED for v in (y, x)) or "bits" in arguments:
        return None
    bits, f = max(v._node.range.bits for v in (y, x)), y.fractional_bits
    drop = bits - _NEAR + 1
    if bits <= _NEAR or drop >= f or x.fractional_bits != f:
        return None
    whole = list(np.broadcast_shapes(y.shape, x.shape))
    both = [v if list(v.shape) == whole else apply("broadcast_to", v, whole) for v in (y, x)]
    far = [apply("logical_not", apply("in_range", v, _NEAR)) for v in both]
    is_far = apply("logical_or", *far)
    nearer = [
        apply("where", is_far, apply("bitcast", apply("cast", v, f - drop), f), v) for v in both
    ]
    # (a y that is rounded to 0 keeps its sign: the angle of -0 is -pi on the left)
    size = apply("abs", apply("atan2", *nearer, bits=_NEAR + 1))
    return apply("where", apply("less", y, 0.0), apply("negative", size), size)


@array_operation(elementary.sin, elementary.cos)
@array_operation(elementary.atan2, operands=ONE_SCALE, compose=_compose_atan2)
def _bound_angle(call: OperationCall) -> list[Bounds]:
    if call.op == "atan2":
        for name in ("y", "x"):
            call.require_bits(call.given[name], operation_parameter_bits(call) - 1)
    return [Bounds(-4 * _result_scale_unit(call), 4 * _result_scale_unit(call))]


# Largest error of roundings in ring units.
_ROUNDING = 8
# Largest exponent x for which e^x is representable.
_LARGEST_EXPONENT = 31.75


@array_operation(elementary.exp)
def _bound_exp(call: OperationCall) -> list[Bounds]:
    x = first_private_operand(call)
    top = math.floor(_LARGEST_EXPONENT * (1 << x.scale))
    if x.scale > 16:
        top = min(top, math.floor((61 - x.scale) * math.log(2) * (1 << x.scale)))
    x = call.require_range(x, None, top, f"an exponent is above {top / 2**x.scale:.6g}")
    largest = math.exp(x.bounds.high / 2**x.scale) * 2**x.scale
    return [Bounds(0, math.ceil(largest * (1 + 2.0**-20))).spread(4)]


@array_operation(elementary.log, undefined=("x", "less_equal"))
def _bound_log(call: OperationCall) -> list[Bounds]:
    x = call.require_range(
        first_private_operand(call),
        1,
        (1 << operation_parameter_bits(call, 62)) - 1,
        "the logarithm of 0 or below",
    )
    ends = [math.log(max(1, b) / 2**x.scale) * _result_scale_unit(call) for b in x.bounds]
    return [Bounds(math.floor(ends[0]), math.ceil(ends[1])).spread(4)]


@array_operation(elementary.sqrt, undefined=("x", "less"))
@array_operation(elementary.rsqrt, undefined=("x", "less_equal"))
def _bound_root(call: OperationCall) -> list[Bounds]:
    # (rounding may make a variance slightly negative; its root is 0)
    highest = (1 << operation_parameter_bits(call, 62)) - 1
    lowest = -min(_ROUNDING, highest) if call.op == "sqrt" else 1
    message = "the root of a negative number" + (" or 0" if lowest else "")
    x = call.require_range(first_private_operand(call), lowest, highest, message)
    low, high = (math.sqrt(max(lowest, b, 0) / 2**x.scale) for b in x.bounds)
    if call.op == "rsqrt":
        low, high = 1 / high, 1 / low
    one = _result_scale_unit(call)
    return [
        Bounds(
            math.floor(low * one * (1 - 2.0**-18)), math.ceil(high * one * (1 + 2.0**-18))
        ).spread(4)
    ]


@array_operation(elementary.reciprocal, undefined=("x", "equal"))
def _bound_reciprocal(call: OperationCall) -> list[Bounds]:
    x = first_private_operand(call)
    x = call.require_bits(x, operation_parameter_bits(call, 62))
    one, scale = _result_scale_unit(call), x.scale
    if not x.bounds.low <= 0 <= x.bounds.high:
        ends = sorted((1 << (2 * scale)) / b for b in x.bounds)
        return [
            Bounds(
                math.floor(ends[0] * (1 + 2.0**-18)) if ends[0] < 0 else 0,
                math.ceil(ends[1] * (1 + 2.0**-18)) if ends[1] > 0 else 0,
            ).spread(4)
        ]
    call.guards.append(OperandGuard((x.node, x.node), f"{call.op}: a division by 0", bits=0))
    return [Bounds(-one * one, one * one).spread(4)]


# Bits of a numerator that are divided separately.
_MAX_REST_BITS = 12


@array_operation(wide_range.divide, operands=ONE_SCALE, undefined=("y", "equal"))
def _bound_divide(call: OperationCall) -> list[Bounds]:
    x, y = call.given["x"], call.given["y"]
    if not isinstance(y, PrivateOperand):
        factors = 1.0 / np.asarray(y, np.float64)
        return [product_bounds(call, x, factors, 1, ())]
    f = y.scale
    largest = max(1, min(37, 53 - f))
    x = call.require_bits(x, largest + _MAX_REST_BITS) if isinstance(x, PrivateOperand) else x
    above = call.bounds_of(x, f)
    drop = max(0, above.bits - largest)
    # (the remainder after the first quotient is below 2^drop y)
    y = call.require_bits(
        y,
        min(
            operation_parameter_bits(call, 62), LIMIT - 1, largest - 1 + f - drop if drop else LIMIT
        ),
    )
    if not call.given.get("signed", True):
        y = call.require_range(y, 1, None, "a divisor is not positive")
    excludes_zero = not y.bounds.low <= 0 <= y.bounds.high
    nearest = min(abs(b) for b in y.bounds) if excludes_zero else 1
    largest_quotient = (above.most << f) // nearest + 1
    if not excludes_zero or largest_quotient >= 1 << largest:
        call.require_quotient(x, y, largest - f, f)
        largest_quotient = 1 << largest
    if above.bits > 30 or largest_quotient.bit_length() > 30:
        call.extra["largest"] = largest
    if drop:
        call.extra["drop"] = drop
    low = 0 if above.low >= 0 and y.bounds.low > 0 else -largest_quotient
    return [Bounds(low, largest_quotient).spread(4)]


# Bits of a numerator with a public divisor.
_MAX_FLOORED_BITS = 59


@array_operation(
    *(flooring.floordiv, flooring.floormod),
    aliases={"floor_div": flooring.floor_div, "mod": flooring.mod},
    operands=ONE_SCALE,
    undefined=("y", "equal"),
)
def _bound_floordiv(call: OperationCall) -> list[Bounds]:
    x, y = call.given["x"], call.given["y"]
    scale, remainder = call.made[0].scale, call.op in ("floormod", "mod")
    unit = 1 << scale
    if not isinstance(y, PrivateOperand) and np.size(y) == 1:
        d = max(1, call.bounds_of(y, scale).most)
        # (a quotient is a whole number at the scale of x)
        x = call.require_bits(x, min(_MAX_FLOORED_BITS, LIMIT - 1 - scale + d.bit_length() - 1))
        if d & (d - 1) and x.bounds.bits >= operation_parameter_bits(call, 31):
            call.extra["large"] = x.bounds.bits + 1
            if not wide_range.can_divide_by_count(x.bounds.bits + 1, d):
                raise RangeError(
                    f"{call.op}: the public divisor {d / unit:.6g} is too large for a "
                    f"dividend of up to {x.bounds.most / unit:.6g}. Divide both by a power of "
                    "two first, or declare a bound.",
                    code="divisor-too-large",
                    operation=call.op,
                )
        if remainder:
            return [Bounds(-d, d)]
        largest_quotient = -(-x.bounds.most // d) + 1
        return [Bounds(-largest_quotient * unit, largest_quotient * unit)]
    wide = call.bounds_of(x, scale).bits > 30
    steps = flooring.MAX_BITS if wide else 21
    if wide:
        call.extra["large"] = flooring.MAX_BITS
        x = call.require_bits(x, flooring.MAX_BITS) if isinstance(x, PrivateOperand) else x
    if isinstance(y, PrivateOperand):
        y = call.require_bits(y, rounding.MAX_DIVISOR)
    above, below = call.bounds_of(x, scale), call.bounds_of(y, scale)
    if below.bits > operation_parameter_bits(call, 31):
        call.extra["bits"] = below.bits
    for role, bounds, bits in (
        ("numerators", above, flooring.MAX_BITS),
        ("divisors", below, rounding.MAX_DIVISOR),
    ):
        if bounds.bits > bits:  # (for public numbers: private ones have guards)
            largest_quotient = (1 << bits) / unit
            raise RangeError(
                f"{call.op} takes {role} below {largest_quotient:.6g}. Received: a larger one.",
                code="public-operand-too-large",
                operation=call.op,
            )
    if below.low <= 0 or above.most >= below.low << steps:
        call.require_quotient(x, y, steps, scale)
    if remainder:
        return [Bounds(-below.most, below.most)]
    largest_quotient = min(above.most, 1 << steps) * unit
    return [Bounds(-largest_quotient - unit, largest_quotient + unit)]


@array_operation(rounding.ceil, rounding.floor, rounding.round)
def _bound_rounding(call: OperationCall) -> list[Bounds]:
    x = call.require_bits(first_private_operand(call), LIMIT - 1)
    unit = 1 << x.scale
    return [Bounds(x.bounds.low - unit, x.bounds.high + unit)]


@array_operation(elementary.polyval, bits=61)
def _bound_polyval(call: OperationCall) -> list[Bounds]:
    x = call.require_bits(first_private_operand(call), operation_parameter_bits(call) - 1)
    coefficients = [abs(Fraction(float(c))) for c in np.asarray(call.given["coeffs"]).reshape(-1)]

    def largest_value(magnitude_of_x: int) -> Fraction:
        magnitude = Fraction(0)
        for c in coefficients:
            magnitude = magnitude * Fraction(magnitude_of_x, 1 << x.scale) + c
        return Fraction(magnitude * (1 << x.scale))

    bits = x.bounds.bits
    while bits > 1 and largest_value(1 << bits) > MAX_MAGNITUDE - 4:
        bits -= 1
    x = call.require_bits(x, bits)
    magnitude = math.ceil(largest_value(x.bounds.most)) + 4
    return [Bounds(-magnitude, magnitude)]


# ---- powers

# The exponent multiplies an error of the logarithm: beyond this limit powers have no correct bit.
_MAX_POWER = 1 << 14


def _compose_power(apply: Apply, arguments: Mapping[str, Any]) -> Any:
    x, y = arguments["x"], arguments["y"]
    if hasattr(y, "kind"):
        return None if y.kind == BITS else _compose_private_power(apply, x, y)
    exponent = np.asarray(y)
    if getattr(x, "kind", None) != FIXED or exponent.size != 1 or exponent.dtype.kind not in "iuf":
        return None
    power = float(exponent.item())
    if not np.isfinite(power):
        return None  # (the operation itself raises the error)
    if power == int(power) and 1 <= abs(power) <= 64:
        return _compose_integer_power(
            apply, apply("reciprocal", x) if power < 0 else x, abs(int(power))
        )
    if power in (0.5, -0.5):
        return apply("sqrt" if power > 0 else "rsqrt", x)
    if power == int(power):
        return None
    if abs(power) > _MAX_POWER:
        raise UsageError(
            f"pow expects an exponent of at most {_MAX_POWER} in magnitude. Received: {power:g}.",
            code="number-out-of-range",
            operation="pow",
            received=power,
            expected=f"{-_MAX_POWER} to {_MAX_POWER}",
        )
    return apply("exp", apply("multiply", apply("log", x), power))


def _compose_integer_power(apply: Apply, x: Any, n: int) -> Any:
    result: Any = None
    while n:
        if n & 1:
            result = x if result is None else apply("multiply", result, x)
        n >>= 1
        if n:
            x = apply("square", x)
    return result


def _compose_private_power(apply: Apply, x: Any, y: Any) -> Any:
    """Compute x ** y: for whole private y also where x < 0, with the sign of odd powers."""
    if not hasattr(x, "kind"):
        base = np.asarray(x)
        usable = base.dtype.kind in "iuf" and bool(np.all(np.isfinite(base) & (base > 0)))
        if y.kind != FIXED or not usable:
            return None
        return apply("exp", apply("multiply", y, np.log(base.astype(np.float64))))
    if x.kind != FIXED:
        return None
    if y.kind == FIXED:
        return apply("exp", apply("multiply", y, apply("log", x)))
    size = apply("exp", apply("multiply", apply("log", apply("abs", x)), y))
    odd = apply("logical_and", apply("less", x, 0.0), apply("bit_extract", y, 0))
    return apply("where", odd, apply("negative", size), size)


def _guard_exponent(apply: Apply, arguments: Mapping[str, Any]) -> list[tuple[Any, OperandGuard]]:
    exponent = arguments["y"]
    if not all(hasattr(arguments[key], "kind") for key in ("x", "y")):
        return []
    limit = _MAX_POWER << exponent.fractional_bits
    text = f"pow: an exponent is above {_MAX_POWER} in magnitude"
    return [(exponent, OperandGuard((), text, -limit, limit))]


@array_operation(powers.pow, compose=_compose_power, guards=_guard_exponent)
def _bound_pow(call: OperationCall) -> list[Bounds]:
    """Return the bounds of remaining powers: those of integers (others are products)."""
    return [widest_bounds(call.made[0])]
