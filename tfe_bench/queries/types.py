"""Types of private columns: the meaning of their values, and their bounds.

Every column has one ring element for each row. Numbers are element / (10^digits * 2^fraction), and
the bounds of the elements are public: `int` has neither digits nor fraction, `decimal(s)` has s
digits and is exact, `fixed(f)` has f fractional bits. Dates count days from 1970-01-01, timestamps
count units from then. A category is a code in a public list of words. A text is the first 64 bits
of a hash: it can be tested for equality, and anyone who holds it can test guesses of the text.
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
# Bits of a column that is stored as distances from its lowest element.
MAX_WIDTH = 62
# Largest element of a number without declared range: the sum of 2^21 of them fits.
DEFAULT_MAGNITUDE = 1 << 40
MAX_DIGITS, MAX_FRACTION = 18, 60
# Fractional bits of a column.
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

# Nonzero digits below microseconds, which Python's parser drops.
_FINER = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]", re.ASCII)


@dataclass(frozen=True)
class ColumnType:
    """Type of the ring elements of a column.

    Attributes:
        kind: one of KINDS.
        low, high: inclusive bounds of every element.
        digits, fraction: a number is element / (10^digits * 2^fraction).
        unit: unit of timestamps: s, ms or us.
        words: words of a category, by code.

    Raises:
        UsageError: the type is invalid.
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
            raise UsageError(
                f"A type is one of {', '.join(KINDS)}.", code="invalid-type", operation="kind"
            )
        bounds = (self.low, self.high, self.digits, self.fraction)
        if (
            not all(type(v) is int for v in bounds)
            or not MIN_ELEMENT <= self.low <= self.high <= MAX_ELEMENT
        ):
            raise UsageError(
                "A type has bounds of 64 bits, the lower one first.",
                code="invalid-type",
                operation="bounds",
            )
        if not (0 <= self.digits <= MAX_DIGITS and 0 <= self.fraction <= MAX_FRACTION):
            raise UsageError(
                f"A number has at most {MAX_DIGITS} decimal digits and {MAX_FRACTION} "
                "fractional bits.",
                code="invalid-type",
                operation="digits",
            )
        if self.kind != NUMBER and (self.digits or self.fraction):
            raise UsageError(
                "Only numbers have decimal digits or fractional bits.",
                code="invalid-type",
                operation="digits",
            )
        if (self.unit not in UNITS) if self.kind == TIMESTAMP else self.unit:
            raise UsageError(
                f"A timestamp's unit is {', '.join(UNITS)}.", code="invalid-type", operation="unit"
            )
        if self.kind == CATEGORY:
            _check_words(self.words)
            expected = (0, len(self.words) - 1)
        elif self.words:
            raise UsageError("Only a category has words.", code="invalid-type", operation="words")
        else:
            expected = {BOOL: (0, 1), TEXT: (MIN_ELEMENT, MAX_ELEMENT)}.get(
                self.kind, (self.low, self.high)
            )
        if expected != (self.low, self.high):
            raise UsageError(
                f"The bounds of a {self.kind} are {expected[0]} and {expected[1]}.",
                code="invalid-type",
                operation="bounds",
            )

    @property
    def bits(self) -> int:
        """Bits of an element's distance from `low`."""
        return (self.high - self.low).bit_length()

    @property
    def offset(self) -> int:
        """Offset of stored elements, so that stored distances are not negative."""
        return self.low if self.bits <= MAX_WIDTH else 0

    @property
    def width(self) -> int:
        """Bits of stored distances; 64 for arbitrary numbers."""
        return max(1, self.bits) if self.bits <= MAX_WIDTH else 64

    @property
    def magnitude(self) -> int:
        """Largest absolute value of an element."""
        return max(abs(self.low), abs(self.high))

    @property
    def denominator(self) -> int:
        """Divisor of elements: a number is element / denominator."""
        return int(10**self.digits << self.fraction)

    @property
    def ordered(self) -> bool:
        """True if < is defined."""
        return self.kind != TEXT

    def to_header(self) -> dict[str, Any]:
        """Return the type as public JSON."""
        fields: dict[str, Any] = {"kind": self.kind, "low": self.low, "high": self.high}
        more = {"digits": self.digits, "fraction": self.fraction, "unit": self.unit}
        fields.update({key: value for key, value in more.items() if value})
        if self.words:
            fields["words"] = list(self.words)
        return fields

    @classmethod
    def from_header(cls, header: object) -> ColumnType:
        """Parse a type from untrusted JSON.

        Raises:
            UsageError: the type is invalid.
        """
        known = {"kind", "low", "high", "digits", "fraction", "unit", "words"}
        if not isinstance(header, Mapping) or not {"kind", "low", "high"} <= set(header) <= known:
            raise UsageError(
                "Expected a type with kind, bounds and the fields of its kind.", code="invalid-type"
            )
        words = header.get("words", [])
        if not isinstance(words, list) or not isinstance(header["kind"], str):
            raise UsageError(
                "Expected a type with kind, bounds and the fields of its kind.", code="invalid-type"
            )
        fields = {key: header[key] for key in known & set(header) - {"words"}}
        return cls(**fields, words=tuple(words))

    def __str__(self) -> str:
        if self.kind != NUMBER:
            return f"{self.kind}({len(self.words)} words)" if self.words else self.kind
        if self.fraction:
            return f"fixed({self.fraction})"
        return f"decimal({self.digits})" if self.digits else "int"


BITS = ColumnType(BOOL, 0, 1)
HASHES = ColumnType(TEXT, MIN_ELEMENT, MAX_ELEMENT)


def int_column_type(low: int, high: int) -> ColumnType:
    """Return the type of integers from low to high."""
    return ColumnType(NUMBER, low, high)


def _check_words(words: tuple[str, ...]) -> None:
    fits = 1 <= len(words) <= MAX_WORDS
    if not fits or not all(isinstance(w, str) and len(w) <= MAX_WORD for w in words):
        raise UsageError(
            f"A category has 1 to {MAX_WORDS} words of at most {MAX_WORD} characters.",
            code="invalid-type",
            operation="words",
        )
    if len(set(words)) != len(words):
        raise UsageError(
            "A category lists each of its words once.", code="duplicate-name", operation="words"
        )


def hash_column_text(text: str) -> int:
    """Return the element of a text: 64 bits of SHA-256, as a signed integer."""
    data = b"tfe-bench text v1" + unicodedata.normalize("NFC", text).encode()
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little", signed=True)


def format_text_hash(element: int) -> str:
    """Format a text's element as in results."""
    return f"{element % (1 << 64):016x}"


def parse_date(text: str) -> int:
    """Parse a date such as 2024-02-29 to days from 1970.

    Raises:
        ValueError: the text is not a date.
    """
    return (datetime.date.fromisoformat(text.strip()) - _EPOCH).days


def days_to_date(days: int) -> datetime.date:
    """Return the date a number of days from 1970."""
    return _EPOCH + datetime.timedelta(days=days)


def units_per_day(unit: str) -> int:
    """Return the length of a day in units of a timestamp."""
    return SECONDS_OF_DAY * UNITS[unit]


def parse_timestamp(text: str, unit: str) -> int:
    """Parse a time such as 2024-02-29 12:30:00 (in UTC) to units from 1970.

    Raises:
        ValueError: the text is not a time, or is finer than the unit.
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


def parse_column_element(text: str, kind: ColumnType) -> int:
    """Parse a literal to a ring element.

    Raises:
        ValueError: it is not of this type; callers check the range.
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
            return hash_column_text(text)


def encode_column_value(value: Any, kind: ColumnType) -> int:
    """Encode one value of a list as a ring element.

    Raises:
        ValueError, KeyError, TypeError, OverflowError: it is not of this type.
    """
    if isinstance(value, str):
        return parse_column_element(value, kind)
    if isinstance(value, bool | np.bool_):
        if kind.kind != BOOL:
            raise ValueError("a bool")
        return int(value)
    match kind.kind:
        case "number" if isinstance(value, int | np.integer | Decimal):
            return parse_column_element(str(value), kind)
        case "number" if isinstance(value, float | np.floating):
            if kind.fraction:
                return round(float(value) * (1 << kind.fraction))
            return parse_column_element(str(value), kind)
        case "bool" if isinstance(value, int | np.integer):
            return {0: 0, 1: 1}[int(value)]
        case "timestamp" if isinstance(value, datetime.datetime):
            if getattr(value, "nanosecond", 0):  # (pandas)
                raise ValueError("finer than a microsecond")
            return parse_column_element(value.isoformat(), kind)
        case "date" if isinstance(value, datetime.datetime):
            if value.time() != datetime.time():
                raise ValueError("a time")
            return parse_column_element(value.date().isoformat(), kind)
        case "date" if isinstance(value, datetime.date):
            return parse_column_element(value.isoformat(), kind)
    raise ValueError("another type")


def parse_type(text: str) -> ColumnType:
    """Parse a type: int[0,120], decimal(2), fixed(16)[-5,5], date, category(a,b).

    `int` and the others without a range take elements up to 2^40; `int64` takes all integers.

    Raises:
        UsageError: the text is not a type.
    """
    match = _TYPE.fullmatch(text)
    if match is None or match[1] not in _MAKERS:
        name = text.split("(")[0].split("[")[0].strip()
        raise UsageError(
            f"A type is {', '.join(_MAKERS)}, with arguments in parentheses and a range in "
            f"brackets. Received: {text[:80]!r}.{did_you_mean(name, _MAKERS)}",
            code="unknown-type",
            received=text[:80],
        )
    try:
        parsed_type = _MAKERS[match[1]](match[2])
        return parsed_type if match[3] is None else _apply_column_range(parsed_type, match[3])
    except (ValueError, KeyError, OverflowError, InvalidOperation):
        raise UsageError(
            f"The arguments or the range of the type {text[:80]!r} are invalid. Write "
            "int[0,120], decimal(2)[0,9999.99], fixed(16)[-5,5], bool, "
            "date[2020-01-01,2025-12-31], timestamp(ms), category(a,b,c) or text.",
            code="invalid-type",
            received=text[:80],
        ) from None


def _apply_column_range(base_type: ColumnType, written: str) -> ColumnType:
    first, last = written.split(",")
    if base_type.kind in (BOOL, CATEGORY, TEXT):
        raise ValueError("no range")
    low, high = parse_column_element(first, base_type), parse_column_element(last, base_type)
    return ColumnType(
        base_type.kind, low, high, base_type.digits, base_type.fraction, base_type.unit
    )


def _constant_maker(constant_type: ColumnType) -> Callable[[str | None], ColumnType]:
    def make_type(argument: str | None) -> ColumnType:
        if argument is not None:
            raise ValueError("takes nothing")
        return constant_type

    return make_type


def _number_maker(
    name: str, default: int | None, max_count: int
) -> Callable[[str | None], ColumnType]:
    def make_type(argument: str | None) -> ColumnType:
        if argument is None and default is None:
            raise ValueError("how many")
        count = default if argument is None else int(argument)
        assert count is not None
        if not 0 <= count <= max_count:
            raise ValueError("how many")
        return ColumnType(NUMBER, -DEFAULT_MAGNITUDE, DEFAULT_MAGNITUDE, **{name: count})  # type: ignore[arg-type]

    return make_type


def _timestamp_type(argument: str | None) -> ColumnType:
    unit = "us" if argument is None else argument.strip()
    low, high = (UNITS[unit] * s for s in _SECONDS)
    return ColumnType(TIMESTAMP, low, high, unit=unit)


def category_type(words: tuple[str, ...]) -> ColumnType:
    """Return the type of words of a public list."""
    return ColumnType(CATEGORY, 0, len(words) - 1, words=words)


def _parse_category(argument: str | None) -> ColumnType:
    if argument is None:
        raise ValueError("which words")
    return category_type(tuple(word.strip() for word in argument.split(",")))


_MAKERS: dict[str, Callable[[str | None], ColumnType]] = {
    "int": _constant_maker(int_column_type(-DEFAULT_MAGNITUDE, DEFAULT_MAGNITUDE)),
    "int64": _constant_maker(int_column_type(MIN_ELEMENT, MAX_ELEMENT)),
    "decimal": _number_maker("digits", None, MAX_DIGITS),
    "fixed": _number_maker("fraction", FRACTION, MAX_COLUMN_FRACTION),
    "bool": _constant_maker(BITS),
    "date": _constant_maker(ColumnType(DATE, *_DAYS)),
    "timestamp": _timestamp_type,
    "category": _parse_category,
    "text": _constant_maker(HASHES),
}


def rescaled_column_type(
    kind: ColumnType, low: int, high: int, digits: int, fraction: int
) -> ColumnType:
    """Return a number's type with other bounds.

    Raises:
        UsageError: the bounds exceed 63 bits, so that a result could be wrong.
    """
    if not -(1 << 62) <= low <= high <= 1 << 62:
        raise UsageError(
            f"A value of this query may have {math.ceil(math.log2(max(-low, high)))} bits "
            "with sign and decimal digits; at most 62 are exact. Ask the owners to declare "
            "narrower ranges of its columns, as int[0,120].",
            code="value-too-wide",
        )
    if digits > MAX_DIGITS:
        raise UsageError(
            f"A value of this query has {digits} decimal digits; at most {MAX_DIGITS} are "
            "supported. Use fixed columns.",
            code="too-many-digits",
            received=digits,
        )
    return ColumnType(NUMBER, low, high, digits, fraction)
