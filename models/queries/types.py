"""Types of private columns: what values mean, and between which bounds they lie.

Every column is one ring element a row.  Numbers are element / (10^digits * 2^fraction), with the
bounds of the elements public: `int` has neither digits nor fraction, `decimal(s)` has s digits and
is exact, `fixed(f)` has f fractional bits.  Days count from 1970-01-01, timestamps units from then.
A category is its code in a public list of words; a text is the first 64 bits of a hash, which can
be compared for equality and is no secret to anybody who can guess the text.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError, did_you_mean

NUMBER, BOOL, DATE, TIMESTAMP, CATEGORY, TEXT = (
    "number",
    "bool",
    "date",
    "timestamp",
    "category",
    "text",
)
KINDS = (NUMBER, BOOL, DATE, TIMESTAMP, CATEGORY, TEXT)
MIN_ELEMENT, MAX_ELEMENT = -(1 << 63), (1 << 63) - 1
# Bits of a column that is kept as distances from its lowest element.
MAX_WIDTH = 62
# Of elements of a number whose owner declares no range: the sum of 2^21 of them fits.
DEFAULT_MAGNITUDE = 1 << 40
MAX_DIGITS, MAX_FRACTION = 18, 60
# Of a column.
MAX_COLUMN_FRACTION = 24
FRACTION = 16
MAX_WORDS, MAX_WORD = 1 << 16, 200
UNITS = {"s": 1, "ms": 10**3, "us": 10**6}
SECONDS_OF_DAY = 86400
# 2^16 days from 1900-01-01
_FIRST_DAY = -25567
_DAYS = (_FIRST_DAY, _FIRST_DAY + (1 << 16) - 1)
_SECONDS = (0, 4102444800)  # to the end of 2099
_EPOCH = datetime.date(1970, 1, 1)
_TYPE = re.compile(r"\s*([a-z0-9]+)\s*(?:\(([^()]*)\))?\s*(?:\[([^\[\]]*)\])?\s*", re.ASCII)

# Digits of a time behind microseconds that are not 0, which Python's parser drops.
_FINER = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]", re.ASCII)


@dataclass(frozen=True)
class Type:
    """What the ring elements of a column are.

    Attributes:
        kind: one of KINDS.
        low, high: every element is from low to high, both included.
        digits, fraction: a number is element / (10^digits * 2^fraction).
        unit: of timestamps: s, ms or us.
        words: of a category, by code.

    Raises:
        UsageError: there is no such type.
    """

    kind: str
    low: int
    high: int
    digits: int = 0
    fraction: int = 0
    unit: str = ""
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"A type is one of {', '.join(KINDS)}.")
        bounds = (self.low, self.high, self.digits, self.fraction)
        if (
            not all(type(v) is int for v in bounds)
            or not MIN_ELEMENT <= self.low <= self.high <= MAX_ELEMENT
        ):
            raise UsageError("A type has bounds of 64 bits, the lower one first.")
        if not (0 <= self.digits <= MAX_DIGITS and 0 <= self.fraction <= MAX_FRACTION):
            raise UsageError(
                f"A number has at most {MAX_DIGITS} decimal digits and {MAX_FRACTION} "
                "fractional bits."
            )
        if self.kind != NUMBER and (self.digits or self.fraction):
            raise UsageError("Only numbers have digits behind the point.")
        if (self.unit not in UNITS) if self.kind == TIMESTAMP else self.unit:
            raise UsageError(f"A timestamp's unit is {', '.join(UNITS)}.")
        if self.kind == CATEGORY:
            _check_words(self.words)
            expected = (0, len(self.words) - 1)
        elif self.words:
            raise UsageError("Only a category has words.")
        else:
            expected = {BOOL: (0, 1), TEXT: (MIN_ELEMENT, MAX_ELEMENT)}.get(
                self.kind, (self.low, self.high)
            )
        if expected != (self.low, self.high):
            raise UsageError(f"The bounds of a {self.kind} are {expected[0]} and {expected[1]}.")

    @property
    def bits(self) -> int:
        """Of an element's distance from `low`."""
        return (self.high - self.low).bit_length()

    @property
    def offset(self) -> int:
        """What is taken off elements in a column that is kept: what is left is not negative."""
        return self.low if self.bits <= MAX_WIDTH else 0

    @property
    def width(self) -> int:
        """Bits of what is left; 64 for any number."""
        return max(1, self.bits) if self.bits <= MAX_WIDTH else 64

    @property
    def magnitude(self) -> int:
        """The largest absolute value of an element."""
        return max(abs(self.low), abs(self.high))

    @property
    def denominator(self) -> int:
        """A number is element / denominator."""
        return int(10**self.digits << self.fraction)

    @property
    def ordered(self) -> bool:
        """Whether < means anything."""
        return self.kind != TEXT

    def header(self) -> dict[str, Any]:
        """As public JSON."""
        fields: dict[str, Any] = {"kind": self.kind, "low": self.low, "high": self.high}
        more = {"digits": self.digits, "fraction": self.fraction, "unit": self.unit}
        fields.update({key: value for key, value in more.items() if value})
        if self.words:
            fields["words"] = list(self.words)
        return fields

    @classmethod
    def from_header(cls, header: object) -> Type:
        """From JSON of anybody.

        Raises:
            UsageError: it is no type.
        """
        known = {"kind", "low", "high", "digits", "fraction", "unit", "words"}
        if not isinstance(header, Mapping) or not {"kind", "low", "high"} <= set(header) <= known:
            raise UsageError("A type has a kind, bounds, and what else its kind has.")
        words = header.get("words", [])
        if not isinstance(words, list) or not isinstance(header["kind"], str):
            raise UsageError("A type has a kind, bounds, and what else its kind has.")
        fields = {key: header[key] for key in known & set(header) - {"words"}}
        return cls(**fields, words=tuple(words))

    def __str__(self) -> str:
        if self.kind != NUMBER:
            return f"{self.kind}({len(self.words)} words)" if self.words else self.kind
        if self.fraction:
            return f"fixed({self.fraction})"
        return f"decimal({self.digits})" if self.digits else "int"


BITS = Type(BOOL, 0, 1)
HASHES = Type(TEXT, MIN_ELEMENT, MAX_ELEMENT)


def int_type(low: int, high: int) -> Type:
    """Integers from low to high."""
    return Type(NUMBER, low, high)


def _check_words(words: tuple[str, ...]) -> None:
    fits = 1 <= len(words) <= MAX_WORDS
    if not fits or not all(isinstance(w, str) and len(w) <= MAX_WORD for w in words):
        raise UsageError(f"A category has 1 to {MAX_WORDS} words of at most {MAX_WORD} characters.")
    if len(set(words)) != len(words):
        raise UsageError("A category names each of its words once.")


def hash_text(text: str) -> int:
    """The element of a text: 64 bits of SHA-256, as a signed integer."""
    data = b"tfe-bench text v1" + unicodedata.normalize("NFC", text).encode()
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little", signed=True)


def format_hash(element: int) -> str:
    """A text's element as a result shows it."""
    return f"{element % (1 << 64):016x}"


def parse_date(text: str) -> int:
    """Days from 1970 to a date written as 2024-02-29.

    Raises:
        ValueError: it is none.
    """
    return (datetime.date.fromisoformat(text.strip()) - _EPOCH).days


def days_to_date(days: int) -> datetime.date:
    """The date that is so many days from 1970."""
    return _EPOCH + datetime.timedelta(days=days)


def units_per_day(unit: str) -> int:
    """The length of a day in units of a timestamp."""
    return SECONDS_OF_DAY * UNITS[unit]


def parse_timestamp(text: str, unit: str) -> int:
    """Units from 1970 to a time written as 2024-02-29 12:30:00 (in UTC).

    Raises:
        ValueError: it is none, or is finer than the unit.
    """
    if _FINER.search(text):
        raise ValueError("finer than a microsecond")
    moment = datetime.datetime.fromisoformat(text.strip())
    if moment.tzinfo is not None:
        moment = moment.astimezone(datetime.UTC).replace(tzinfo=None)
    delta = moment - datetime.datetime(1970, 1, 1)
    micro = (delta.days * 86400 + delta.seconds) * 10**6 + delta.microseconds
    step = 10**6 // UNITS[unit]
    if micro % step:
        raise ValueError("finer than the unit")
    return micro // step


def parse_element(text: str, kind: Type) -> int:
    """The ring element of a value that is written out.

    Raises:
        ValueError: it is none of this type; whether it is in range is for others to say.
    """
    match kind.kind:
        case "number":
            try:
                value = Decimal(text.strip()) * 10**kind.digits
            except InvalidOperation:
                raise ValueError("no number") from None
            if not value.is_finite():
                raise ValueError("NaN or infinity")
            if kind.fraction:
                nearest: int = round(value * (1 << kind.fraction))
                return nearest
            if value != value.to_integral_value():
                raise ValueError("more digits behind the point than its type has")
            return int(value)
        case "bool":
            return {"true": 1, "t": 1, "1": 1, "false": 0, "f": 0, "0": 0}[text.strip().lower()]
        case "date":
            return parse_date(text)
        case "timestamp":
            return parse_timestamp(text, kind.unit)
        case "category":
            return kind.words.index(text)
        case _:
            return hash_text(text)


def encode_value(value: Any, kind: Type) -> int:
    """The ring element of one value of a list.

    Raises:
        ValueError, KeyError, TypeError, OverflowError: it is none of this type.
    """
    if isinstance(value, str):
        return parse_element(value, kind)
    if isinstance(value, bool | np.bool_):
        if kind.kind != BOOL:
            raise ValueError("a bool")
        return int(value)
    match kind.kind:
        case "number" if isinstance(value, int | np.integer | Decimal):
            return parse_element(str(value), kind)
        case "number" if isinstance(value, float | np.floating):
            if kind.fraction:
                return round(float(value) * (1 << kind.fraction))
            return parse_element(str(value), kind)
        case "bool" if isinstance(value, int | np.integer):
            return {0: 0, 1: 1}[int(value)]
        case "timestamp" if isinstance(value, datetime.datetime):
            if getattr(value, "nanosecond", 0):  # (of pandas)
                raise ValueError("finer than a microsecond")
            return parse_element(value.isoformat(), kind)
        case "date" if isinstance(value, datetime.datetime):
            if value.time() != datetime.time():
                raise ValueError("a time")
            return parse_element(value.date().isoformat(), kind)
        case "date" if isinstance(value, datetime.date):
            return parse_element(value.isoformat(), kind)
    raise ValueError("another type")


def parse_type(text: str) -> Type:
    """A type as people write it: int[0,120], decimal(2), fixed(16)[-5,5], date, category(a,b).

    `int` and the others without a range take elements up to 2^40; `int64` takes all integers.

    Raises:
        UsageError: it is none.
    """
    match = _TYPE.fullmatch(text)
    if match is None or match[1] not in _MAKERS:
        name = text.split("(")[0].split("[")[0].strip()
        raise UsageError(
            f"A type is {', '.join(_MAKERS)}, with what it takes in parentheses and its range in "
            f"brackets. Received: {text[:80]!r}.{did_you_mean(name, _MAKERS)}"
        )
    try:
        parsed_type = _MAKERS[match[1]](match[2])
        return parsed_type if match[3] is None else _apply_range(parsed_type, match[3])
    except (ValueError, KeyError, OverflowError, InvalidOperation):
        raise UsageError(
            f"The type {text[:80]!r} does not fit. Write it as int[0,120], decimal(2)[0,9999.99], "
            "fixed(16)[-5,5], bool, date[2020-01-01,2025-12-31], timestamp(ms), category(a,b,c) or "
            "text."
        ) from None


def _apply_range(base_type: Type, written: str) -> Type:
    first, last = written.split(",")
    if base_type.kind in (BOOL, CATEGORY, TEXT):
        raise ValueError("no range")
    low, high = parse_element(first, base_type), parse_element(last, base_type)
    return Type(base_type.kind, low, high, base_type.digits, base_type.fraction, base_type.unit)


def _constant_maker(constant_type: Type) -> Callable[[str | None], Type]:
    def make_type(argument: str | None) -> Type:
        if argument is not None:
            raise ValueError("takes nothing")
        return constant_type

    return make_type


def _number_maker(name: str, default: int | None, max_count: int) -> Callable[[str | None], Type]:
    def make_type(argument: str | None) -> Type:
        if argument is None and default is None:
            raise ValueError("how many")
        count = default if argument is None else int(argument)
        assert count is not None
        if not 0 <= count <= max_count:
            raise ValueError("how many")
        return Type(NUMBER, -DEFAULT_MAGNITUDE, DEFAULT_MAGNITUDE, **{name: count})  # type: ignore[arg-type]

    return make_type


def _timestamp_type(argument: str | None) -> Type:
    unit = "us" if argument is None else argument.strip()
    low, high = (UNITS[unit] * s for s in _SECONDS)
    return Type(TIMESTAMP, low, high, unit=unit)


def category_type(words: tuple[str, ...]) -> Type:
    """The words of a public list."""
    return Type(CATEGORY, 0, len(words) - 1, words=words)


def _parse_category(argument: str | None) -> Type:
    if argument is None:
        raise ValueError("which words")
    return category_type(tuple(word.strip() for word in argument.split(",")))


_MAKERS: dict[str, Callable[[str | None], Type]] = {
    "int": _constant_maker(int_type(-DEFAULT_MAGNITUDE, DEFAULT_MAGNITUDE)),
    "int64": _constant_maker(int_type(MIN_ELEMENT, MAX_ELEMENT)),
    "decimal": _number_maker("digits", None, MAX_DIGITS),
    "fixed": _number_maker("fraction", FRACTION, MAX_COLUMN_FRACTION),
    "bool": _constant_maker(BITS),
    "date": _constant_maker(Type(DATE, *_DAYS)),
    "timestamp": _timestamp_type,
    "category": _parse_category,
    "text": _constant_maker(HASHES),
}


def scaled_type(kind: Type, low: int, high: int, digits: int, fraction: int) -> Type:
    """A number's type between other bounds.

    Raises:
        UsageError: the bounds do not fit 63 bits, so that a result could be wrong.
    """
    if not -(1 << 62) <= low <= high <= 1 << 62:
        raise UsageError(
            f"A value of this query may have {math.ceil(math.log2(max(-low, high)))} bits with its "
            "sign and the digits behind the point; at most 62 are right. Have the owners declare "
            "narrower ranges of its columns, as int[0,120]."
        )
    if digits > MAX_DIGITS:
        raise UsageError(
            f"A value of this query has {digits} decimal digits behind the point; at most "
            f"{MAX_DIGITS} are offered. Use fixed columns."
        )
    return Type(NUMBER, low, high, digits, fraction)
