"""Bounds of private values in ring units: preconditions and results of each operation.

A value of fixed point stays below 2^62 ring units in magnitude. A rule sees public facts only:
kinds, shapes, scales, bounds and public operands. It returns the bounds of the results and adds
the parameters that an operation requires for them (wide_range.py). It also names the preconditions
that do not follow from bounds: the client checks these on its own arrays, and the workers count
violations on all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from tfe_bench.arrays.array_spec import BITS, INT, ArraySpec

LIMIT = 62
MAX_MAGNITUDE = (1 << LIMIT) - 1
# Default bounds of reals and of integers, as powers of two.
DEFAULT_REAL_BITS, DEFAULT_INT_BITS = 20, 40


class Bounds(NamedTuple):
    """Inclusive bounds `low` and `high` of every ring element."""

    low: int
    high: int

    @property
    def most(self) -> int:
        """Largest magnitude."""
        return max(-self.low, self.high, 0)

    @property
    def bits(self) -> int:
        """Number of bits: all magnitudes are below 2 to this power."""
        return self.most.bit_length()

    def spread(self, more: int = 1) -> Bounds:
        """Return wider bounds, with room for rounding."""
        return Bounds(self.low - more, self.high + more)

    def within(self, low: int, high: int) -> bool:
        """Return whether the bounds imply low <= x <= high."""
        return low <= self.low and self.high <= high


TRUTH = Bounds(0, 1)
WORDS = Bounds(-(1 << 63), (1 << 63) - 1)


def default_bounds(spec: ArraySpec) -> Bounds:
    """Return the bounds of an array whose owner declares none."""
    if spec.kind == BITS:
        return TRUTH
    magnitude = 1 << (
        DEFAULT_INT_BITS if spec.kind == INT else min(DEFAULT_REAL_BITS + spec.scale, LIMIT)
    )
    return Bounds(-min(magnitude, MAX_MAGNITUDE), min(magnitude, MAX_MAGNITUDE))


def widest_bounds(spec: ArraySpec) -> Bounds:
    """Return the bounds of a value of which nothing else is known."""
    if spec.kind == BITS:
        return TRUTH
    return WORDS if spec.kind == INT else Bounds(-MAX_MAGNITUDE, MAX_MAGNITUDE)


def held_bounds(bounds: Bounds, spec: ArraySpec) -> Bounds:
    """Return wider bounds for a value that workers hold, so that iterations of a
    loop have equal plans.
    """
    if not bounds.within(*default_bounds(spec)):
        return widest_bounds(spec)
    low, high = (1 << max(0, end).bit_length() for end in (-bounds.low - 1, bounds.high - 1))
    return Bounds(
        min(0, max(-low, default_bounds(spec).low)), max(0, min(high, default_bounds(spec).high))
    )


@dataclass(frozen=True, eq=False)
class PrivateOperand:
    """A private operand, as a rule sees it.

    Attributes:
        node: its node.
    """

    spec: ArraySpec
    bounds: Bounds
    node: Any

    @property
    def scale(self) -> int:
        """Fractional bits."""
        return self.spec.scale

    @property
    def is_integer(self) -> bool:
        """True for an integer, with arithmetic modulo 2^64 as in NumPy."""
        return self.spec.kind == INT


@dataclass(frozen=True)
class OperandGuard:
    """A precondition on operands that does not follow from their bounds.

    Attributes:
        nodes: one for low <= x <= high, two for |x| < |y| 2^bits.
        drop: as in wide_range.count_steep.
        text: the operation and its violation in words.
    """

    nodes: tuple[Any, ...]
    text: str
    low: int | None = None
    high: int | None = None
    bits: int | None = None
    drop: int = 0


@dataclass
class OperationCall:
    """An operation on operands, as the input and output of its rule.

    Attributes:
        op: its name.
        given: arguments by name, with PrivateOperand for private ones.
        made: public facts about the results.
        guards, extra: guards and parameters that the rule adds.
    """

    op: str
    given: Mapping[str, Any]
    made: list[ArraySpec]
    guards: list[OperandGuard] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def bounds_of(self, value: Any, scale: int) -> Bounds:
        """Return the bounds of an operand, public ones at a scale."""
        if isinstance(value, PrivateOperand):
            return value.bounds
        array = np.asarray(value)
        if array.size == 0:
            return Bounds(0, 0)
        unit = Fraction(1 << scale)
        low, high = (Fraction(v.item()) * unit for v in (array.min(), array.max()))
        return Bounds(math.floor(low), math.ceil(high))

    def require_range(
        self, value: Any, low: int | None, high: int | None, message: str = ""
    ) -> Any:
        """Require a private operand to be from `low` to `high`; return public ones unchanged."""
        if not isinstance(value, PrivateOperand):
            return value
        bounds = value.bounds
        lowest = bounds.low if low is None else max(low, bounds.low)
        highest = bounds.high if high is None else min(high, bounds.high)
        if bounds.within(lowest, highest):
            return value
        needs_low = low if low is not None and low > bounds.low else None
        needs_high = high if high is not None and high < bounds.high else None
        text = (
            message
            or f"a value is outside of {_operand_limit_text(low, value)} to "
            f"{_operand_limit_text(high, value)}"
        )
        if value.is_integer and None in (
            needs_low,
            needs_high,
        ):  # (one side of a 64-bit word may wrap around)
            needs_low, needs_high = lowest, highest
        self.guards.append(OperandGuard((value.node,), f"{self.op}: {text}", needs_low, needs_high))
        return PrivateOperand(
            value.spec, Bounds(min(lowest, highest), max(lowest, highest)), value.node
        )

    def require_quotient(self, x: Any, y: Any, bits: int, scale: int) -> None:
        """Require a quotient below 2^bits in magnitude, with a nonzero divisor."""
        divisor_bounds = self.bounds_of(y, scale)
        drop = max(0, bits - (LIMIT - 1 - divisor_bounds.bits))
        nodes = tuple(v.node if isinstance(v, PrivateOperand) else v for v in (x, y))
        text = f"{self.op}: a division by 0, or a quotient above {1 << bits}"
        self.guards.append(OperandGuard(nodes, text, bits=bits, drop=drop))

    def require_bits(self, value: Any, bits: int) -> Any:
        """Require a private operand below 2^bits in magnitude."""
        magnitude = (1 << max(bits, 0)) - 1
        return self.require_range(value, -magnitude, magnitude)


def _operand_limit_text(limit: int | None, value: PrivateOperand) -> str:
    if limit is None:
        return "any"
    return f"{limit / 2**value.scale:.6g}"


BoundsRule = Callable[[OperationCall], list[Bounds]]


def apply_bounds_rule(rule: BoundsRule, call: OperationCall) -> list[Bounds]:
    """Return the bounds of an operation's results, at most the widest of their kind."""
    bounds = rule(call)
    if len(bounds) == 1:
        bounds = bounds * len(call.made)
    return [
        _clip_bounds(result_bounds, spec)
        for result_bounds, spec in zip(bounds, call.made, strict=True)
    ]


def _clip_bounds(bounds: Bounds, spec: ArraySpec) -> Bounds:
    widest = widest_bounds(spec)
    if spec.kind == INT and not bounds.within(*widest):
        return widest  # (modulo 2^64)
    return Bounds(max(bounds.low, widest.low), min(bounds.high, widest.high))


def widest_result_bounds(call: OperationCall) -> list[Bounds]:
    """Return the bounds of results of which nothing else is known."""
    return [widest_bounds(spec) for spec in call.made]


def private_operands(value: Any) -> Iterator[PrivateOperand]:
    """Yield the private operands of an argument."""
    if isinstance(value, PrivateOperand):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from private_operands(each)


def first_private_operand(call: OperationCall) -> PrivateOperand:
    return next(each for value in call.given.values() for each in private_operands(value))


def union_bounds(bounds: list[Bounds]) -> Bounds:
    """Return the bounds of a value that is one of several."""
    return Bounds(min(b.low for b in bounds), max(b.high for b in bounds))


def operation_parameter_bits(call: OperationCall, default: int = 64) -> int:
    bits = call.given.get("bits", default)
    return int(bits)


def sum_bounds(call: OperationCall, x: Any, terms: int) -> Bounds:
    """Return the bounds of a sum of a number of terms; each term of reals is limited so that the
    sum fits.
    """
    scale = call.made[0].scale
    if (
        isinstance(x, PrivateOperand)
        and not x.is_integer
        and call.bounds_of(x, scale).most * terms > MAX_MAGNITUDE
    ):
        x = call.require_range(x, -(MAX_MAGNITUDE // terms), MAX_MAGNITUDE // terms)
    bounds = call.bounds_of(x, scale)
    return Bounds(min(bounds.low * terms, bounds.low), max(bounds.high * terms, bounds.high))


def terms_per_result(x: PrivateOperand, result: ArraySpec) -> int:
    return max(1, x.spec.elements // max(1, result.elements))
