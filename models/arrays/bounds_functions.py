"""Bounds of quotients and elementary functions.

Each rule is that of the operations which it names; see bounds.py.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from tfe_bench.errors import RangeError
from tfe_bench.models.arrays import amounts, flooring
from tfe_bench.models.arrays.bounds import (
    LIMIT,
    MOST,
    Bounds,
    Call,
    Guard,
    Known,
    bits_of,
    first_of,
    rule,
    widest,
)
from tfe_bench.models.arrays.bounds_products import times
from tfe_bench.protocols.api import rounding

# ---- elementary functions


def _unit(call: Call) -> int:
    return 1 << call.made[0].scale


@rule("sigmoid", "tanh", "erf", "softmax", "gelu", "silu")
def _smooth(call: Call) -> list[Bounds]:
    room = bits_of(call) - (2 if call.op == "softmax" else 1)
    x, one = call.within(first_of(call), room), _unit(call)
    if call.op in ("gelu", "silu"):
        return [Bounds(max(-one, min(0, x.bounds.low)), max(0, x.bounds.high)).spread(4)]
    low = 0 if call.op in ("sigmoid", "softmax") else -one
    return [Bounds(low, one).spread(4)]


@rule("sin", "cos", "atan2")
def _turn(call: Call) -> list[Bounds]:
    if call.op == "atan2":
        for name in ("y", "x"):
            call.within(call.given[name], bits_of(call) - 1)
    return [Bounds(-4 * _unit(call), 4 * _unit(call))]


# What roundings may take off in ring units.
_ROUNDING = 8
# Above it e^x leaves what a value may be.
MOST_EXPONENT = 31.75


@rule("exp")
def _exp(call: Call) -> list[Bounds]:
    x = first_of(call)
    top = math.floor(MOST_EXPONENT * (1 << x.scale))
    if x.scale > 16:
        top = min(top, math.floor((61 - x.scale) * math.log(2) * (1 << x.scale)))
    x = call.capped(x, None, top, f"an exponent is above {top / 2**x.scale:.6g}")
    largest = math.exp(x.bounds.high / 2**x.scale) * 2**x.scale
    return [Bounds(0, math.ceil(largest * (1 + 2.0**-20))).spread(4)]


@rule("log")
def _log(call: Call) -> list[Bounds]:
    x = call.capped(first_of(call), 1, (1 << bits_of(call, 62)) - 1, "the logarithm of 0 or below")
    ends = [math.log(max(1, b) / 2**x.scale) * _unit(call) for b in x.bounds]
    return [Bounds(math.floor(ends[0]), math.ceil(ends[1])).spread(4)]


@rule("sqrt", "rsqrt")
def _sqrt(call: Call) -> list[Bounds]:
    # (a variance may be rounded to a little less than 0, of which the root is 0)
    most = (1 << bits_of(call, 62)) - 1
    least = -min(_ROUNDING, most) if call.op == "sqrt" else 1
    what = "the root of a negative number" + (" or 0" if least else "")
    x = call.capped(first_of(call), least, most, what)
    low, high = (math.sqrt(max(least, b, 0) / 2**x.scale) for b in x.bounds)
    if call.op == "rsqrt":
        low, high = 1 / high, 1 / low
    one = _unit(call)
    return [
        Bounds(
            math.floor(low * one * (1 - 2.0**-18)), math.ceil(high * one * (1 + 2.0**-18))
        ).spread(4)
    ]


@rule("reciprocal")
def _reciprocal(call: Call) -> list[Bounds]:
    x = first_of(call)
    x = call.within(x, bits_of(call, 62))
    one, scale = _unit(call), x.scale
    if not x.bounds.low <= 0 <= x.bounds.high:
        ends = sorted((1 << (2 * scale)) / b for b in x.bounds)
        return [
            Bounds(
                math.floor(ends[0] * (1 + 2.0**-18)) if ends[0] < 0 else 0,
                math.ceil(ends[1] * (1 + 2.0**-18)) if ends[1] > 0 else 0,
            ).spread(4)
        ]
    call.guards.append(Guard((x.node, x.node), f"{call.op}: a division by 0", bits=0))
    return [Bounds(-one * one, one * one).spread(4)]


# Bits of a numerator that are divided by themselves.
_MOST_REST = 12


@rule("divide")
def _divide(call: Call) -> list[Bounds]:
    x, y = call.given["x"], call.given["y"]
    if not isinstance(y, Known):
        factors = 1.0 / np.asarray(y, np.float64)
        return [times(call, x, factors, 1, ())]
    f = y.scale
    largest = max(1, min(37, 53 - f))
    x = call.within(x, largest + _MOST_REST) if isinstance(x, Known) else x
    above = call.bounds_of(x, f)
    drop = max(0, above.bits - largest)
    # (what the first quotient leaves of x is below 2^drop y)
    y = call.within(y, min(bits_of(call, 62), LIMIT - 1, largest - 1 + f - drop if drop else LIMIT))
    if not call.given.get("signed", True):
        y = call.capped(y, 1, None, "a divisor is not positive")
    apart = not y.bounds.low <= 0 <= y.bounds.high
    nearest = min(abs(b) for b in y.bounds) if apart else 1
    most = (above.most << f) // nearest + 1
    if not apart or most >= 1 << largest:
        call.flat(x, y, largest - f, f)
        most = 1 << largest
    if above.bits > 30 or most.bit_length() > 30:
        call.extra["largest"] = largest
    if drop:
        call.extra["drop"] = drop
    low = 0 if above.low >= 0 and y.bounds.low > 0 else -most
    return [Bounds(low, most).spread(4)]


# Bits of a numerator beside a public divisor.
_MOST_FLOORED = 59


@rule("floordiv", "floor_div", "floormod", "mod")
def _floordiv(call: Call) -> list[Bounds]:
    x, y = call.given["x"], call.given["y"]
    scale, remainder = call.made[0].scale, call.op in ("floormod", "mod")
    unit = 1 << scale
    if not isinstance(y, Known) and np.size(y) == 1:
        d = max(1, call.bounds_of(y, scale).most)
        # (a quotient is a whole number at the scale of x)
        x = call.within(x, min(_MOST_FLOORED, LIMIT - 1 - scale + d.bit_length() - 1))
        if d & (d - 1) and x.bounds.bits >= bits_of(call, 31):
            call.extra["large"] = x.bounds.bits + 1
            if not amounts.can_divide(x.bounds.bits + 1, d):
                raise RangeError(
                    f"{call.op}: the public divisor {d / unit:.6g} is too large beside a dividend "
                    f"of up to {x.bounds.most / unit:.6g}. Divide both by a power of two first, or "
                    "declare a bound."
                )
        if remainder:
            return [Bounds(-d, d)]
        most = -(-x.bounds.most // d) + 1
        return [Bounds(-most * unit, most * unit)]
    wide = call.bounds_of(x, scale).bits > 30
    steps = flooring.MOST_BITS if wide else 21
    if wide:
        call.extra["large"] = flooring.MOST_BITS
        x = call.within(x, flooring.MOST_BITS) if isinstance(x, Known) else x
    if isinstance(y, Known):
        y = call.within(y, rounding.MOST_DIVISOR)
    above, below = call.bounds_of(x, scale), call.bounds_of(y, scale)
    if below.bits > bits_of(call, 31):
        call.extra["bits"] = below.bits
    for what, bounds, bits in (
        ("numerators", above, flooring.MOST_BITS),
        ("divisors", below, rounding.MOST_DIVISOR),
    ):
        if bounds.bits > bits:  # (of public numbers: private ones are kept within)
            most = (1 << bits) / unit
            raise RangeError(f"{call.op} takes {what} below {most:.6g}. Received: a larger one.")
    if below.low <= 0 or above.most >= below.low << steps:
        call.flat(x, y, steps, scale)
    if remainder:
        return [Bounds(-below.most, below.most)]
    most = min(above.most, 1 << steps) * unit
    return [Bounds(-most - unit, most + unit)]


@rule("ceil", "floor", "round")
def _rounded(call: Call) -> list[Bounds]:
    x = call.within(first_of(call), LIMIT - 1)
    unit = 1 << x.scale
    return [Bounds(x.bounds.low - unit, x.bounds.high + unit)]


@rule("polyval")
def _polyval(call: Call) -> list[Bounds]:
    x = call.within(first_of(call), bits_of(call) - 1)
    coefficients = [abs(Fraction(float(c))) for c in np.asarray(call.given["coeffs"]).reshape(-1)]

    def largest(most: int) -> Fraction:
        found = Fraction(0)
        for c in coefficients:
            found = found * Fraction(most, 1 << x.scale) + c
        return Fraction(found * (1 << x.scale))

    bits = x.bounds.bits
    while bits > 1 and largest(1 << bits) > MOST - 4:
        bits -= 1
    x = call.within(x, bits)
    most = math.ceil(largest(x.bounds.most)) + 4
    return [Bounds(-most, most)]


@rule("pow")
def _pow(call: Call) -> list[Bounds]:
    """What is left of powers: those of integers (others are products, planning.py)."""
    return [widest(call.made[0])]
