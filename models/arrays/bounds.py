"""Bounds of private values in ring units: what each operation takes, and what it makes of them.

A value of fixed point stays below 2^62 ring units in magnitude.  A rule sees public facts alone:
kinds, shapes, scales, bounds and public operands.  It returns the bounds of the results, adds the
parameters that an operation needs for them (amounts.py), and names what has to hold and does not
follow: the client checks that on its own arrays, and the workers count it on all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from tfe_bench.models.arrays.evaluate import Meaning
from tfe_bench.models.arrays.plan import BITS, INT

LIMIT = 62
MOST = (1 << LIMIT) - 1
# Of reals and of integers whose owner declares no bound, as powers of two.
USUAL_REAL, USUAL_INT = 20, 40


class Bounds(NamedTuple):
    """Every ring element is from `low` to `high`."""

    low: int
    high: int

    @property
    def most(self) -> int:
        """The largest magnitude."""
        return max(-self.low, self.high, 0)

    @property
    def bits(self) -> int:
        """All magnitudes are below 2 to this."""
        return self.most.bit_length()

    def spread(self, more: int = 1) -> Bounds:
        """With room for rounding."""
        return Bounds(self.low - more, self.high + more)

    def within(self, low: int, high: int) -> bool:
        """Whether they say so."""
        return low <= self.low and self.high <= high


TRUTH = Bounds(0, 1)
WORDS = Bounds(-(1 << 63), (1 << 63) - 1)


def usual(meaning: Meaning) -> Bounds:
    """Of an array whose owner declares none."""
    if meaning.kind == BITS:
        return TRUTH
    most = 1 << (USUAL_INT if meaning.kind == INT else min(USUAL_REAL + meaning.scale, LIMIT))
    return Bounds(-min(most, MOST), min(most, MOST))


def widest(meaning: Meaning) -> Bounds:
    """Of a value of which nothing else is known."""
    if meaning.kind == BITS:
        return TRUTH
    return WORDS if meaning.kind == INT else Bounds(-MOST, MOST)


def settled(bounds: Bounds, meaning: Meaning) -> Bounds:
    """Of a value that the workers hold: wider, so that turns of a loop are equal plans."""
    if not bounds.within(*usual(meaning)):
        return widest(meaning)
    low, high = (1 << max(0, end).bit_length() for end in (-bounds.low - 1, bounds.high - 1))
    return Bounds(min(0, max(-low, usual(meaning).low)), max(0, min(high, usual(meaning).high)))


@dataclass(frozen=True, eq=False)
class Known:
    """A private operand, as a rule sees it.

    Attributes:
        node: which it is.
    """

    meaning: Meaning
    bounds: Bounds
    node: Any

    @property
    def scale(self) -> int:
        """Fractional bits."""
        return self.meaning.scale

    @property
    def whole(self) -> bool:
        """Whether it is an integer, with arithmetic modulo 2^64 as in NumPy."""
        return self.meaning.kind == INT


@dataclass(frozen=True)
class Guard:
    """What has to hold of operands and does not follow from their bounds.

    Attributes:
        nodes: one for low <= x <= high, two for |x| < |y| 2^bits.
        drop: as of amounts.count_steep.
        text: the operation and what leaves its range, in words.
    """

    nodes: tuple[Any, ...]
    text: str
    low: int | None = None
    high: int | None = None
    bits: int | None = None
    drop: int = 0


@dataclass
class Call:
    """An operation on operands, while its rule looks at it.

    Attributes:
        op: its name.
        given: arguments by name, with Known in place of private ones.
        made: what is public of the results.
        guards, extra: what the rule adds.
    """

    op: str
    given: Mapping[str, Any]
    made: list[Meaning]
    guards: list[Guard] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def bounds_of(self, value: Any, scale: int) -> Bounds:
        """Of an operand, public ones at a scale."""
        if isinstance(value, Known):
            return value.bounds
        array = np.asarray(value)
        if array.size == 0:
            return Bounds(0, 0)
        unit = Fraction(1 << scale)
        low, high = (Fraction(v.item()) * unit for v in (array.min(), array.max()))
        return Bounds(math.floor(low), math.ceil(high))

    def capped(self, value: Any, low: int | None, high: int | None, what: str = "") -> Any:
        """A private operand that has to be from `low` to `high`; public ones as they are."""
        if not isinstance(value, Known):
            return value
        own = value.bounds
        least = own.low if low is None else max(low, own.low)
        most = own.high if high is None else min(high, own.high)
        if own.within(least, most):
            return value
        needs_low = low if low is not None and low > own.low else None
        needs_high = high if high is not None and high < own.high else None
        text = what or f"a value is outside of {_shown(low, value)} to {_shown(high, value)}"
        if value.whole and None in (needs_low, needs_high):  # (one side of a word may wrap)
            needs_low, needs_high = least, most
        self.guards.append(Guard((value.node,), f"{self.op}: {text}", needs_low, needs_high))
        return Known(value.meaning, Bounds(min(least, most), max(least, most)), value.node)

    def flat(self, x: Any, y: Any, bits: int, scale: int) -> None:
        """A quotient that has to be below 2^bits in magnitude, of a divisor that is not 0."""
        below = self.bounds_of(y, scale)
        drop = max(0, bits - (LIMIT - 1 - below.bits))
        nodes = tuple(v.node if isinstance(v, Known) else v for v in (x, y))
        text = f"{self.op}: a division by 0, or a quotient above {1 << bits}"
        self.guards.append(Guard(nodes, text, bits=bits, drop=drop))

    def within(self, value: Any, bits: int) -> Any:
        """A private operand that has to be below 2^bits in magnitude."""
        most = (1 << max(bits, 0)) - 1
        return self.capped(value, -most, most)


def _shown(limit: int | None, value: Known) -> str:
    if limit is None:
        return "any"
    return f"{limit / 2**value.scale:.6g}"


Rule = Callable[[Call], list[Bounds]]
_RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers the rule of some operations."""

    def add(function: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, function))
        return function

    return add


def has_rule(name: str) -> bool:
    """Whether an operation has a rule of its own."""
    return name in _RULES


def apply_rule(call: Call) -> list[Bounds]:
    """The bounds of an operation's results, none wider than its kind admits."""
    own = _RULES.get(call.op, _unknown)
    found = own(call)
    if len(found) == 1:
        found = found * len(call.made)
    return [_clipped(each, meaning) for each, meaning in zip(found, call.made, strict=True)]


def _clipped(bounds: Bounds, meaning: Meaning) -> Bounds:
    whole = widest(meaning)
    if meaning.kind == INT and not bounds.within(*whole):
        return whole  # (modulo 2^64)
    return Bounds(max(bounds.low, whole.low), min(bounds.high, whole.high))


def _unknown(call: Call) -> list[Bounds]:
    return [widest(meaning) for meaning in call.made]


def private_in(value: Any) -> Iterator[Known]:
    """The private operands of an argument."""
    if isinstance(value, Known):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from private_in(each)


def first_of(call: Call) -> Known:
    return next(each for value in call.given.values() for each in private_in(value))


def joined(several: list[Bounds]) -> Bounds:
    """Of a value that is one of several."""
    return Bounds(min(b.low for b in several), max(b.high for b in several))


def bits_of(call: Call, usual: int = 64) -> int:
    bits = call.given.get("bits", usual)
    return int(bits)


def summed(call: Call, x: Any, terms: int) -> Bounds:
    """The sum of so many: of reals each is bounded so that the sum fits."""
    scale = call.made[0].scale
    if isinstance(x, Known) and not x.whole and call.bounds_of(x, scale).most * terms > MOST:
        x = call.capped(x, -(MOST // terms), MOST // terms)
    own = call.bounds_of(x, scale)
    return Bounds(min(own.low * terms, own.low), max(own.high * terms, own.high))


def terms_of(x: Known, made: Meaning) -> int:
    return max(1, x.meaning.elements // max(1, made.elements))
