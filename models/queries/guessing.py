"""Types of columns whose owner declares none: the narrowest kind that holds all values.

Reals with few decimals become `decimal`, which is exact.  Others become `fixed` with as many
fractional bits as keep every value to a thousandth of itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from tfe_bench.errors import DataError
from tfe_bench.models import csv_file
from tfe_bench.models.queries.reading import Values, is_missing, listed, reals_of
from tfe_bench.models.queries.types import (
    BITS,
    FRACTION,
    HASHES,
    MOST_DIGITS,
    MOST_OWN_FRACTION,
    NUMBER,
    USUAL,
    Type,
    parse,
    value_element,
)

Reals = np.ndarray[Any, np.dtype[np.float64]]
# Of a value, what rounding may change without a warning.
COARSE = 1e-3
# By the name of an Arrow type.
_ARROW = {
    "bool": "bool",
    "date32[day]": "date",
    "date64[ms]": "date",
    "null": "int",
}
_TEXTS = ("string", "large_string", "string_view", "dictionary")
# The units of Arrow's timestamps, with or without a time zone, as types have them.
_UNITS = {"s": "s", "ms": "ms", "us": "us", "ns": "us"}
# Values that decide what a column is; and the part of them that makes it more than texts, so that
# the others are refused.
_JUDGED, _MIXED = 1000, 0.5
# In which order types are tried, and what their values are called.
_TRIED = {
    "int": "numbers",
    "real": "numbers",
    "bool": "truth values",
    "date": "dates",
    "timestamp": "times",
}


def type_of(name: str, values: Values) -> Type:
    """The type of a column whose owner declares none.

    Raises:
        DataError: its values are of several kinds, of a kind that is not offered, or so near 0
            that they would vanish; column and row are named, the value is not.
    """
    reals = reals_of(values)
    if reals is not None:
        return _of_reals(name, reals)
    kind = getattr(values, "type", None)
    if kind is None:
        return _of_list(name, values)
    shown = str(kind)
    if shown.startswith(("int", "uint")):
        return parse("int")
    if shown.startswith("decimal"):
        if 0 <= kind.scale <= MOST_DIGITS:
            return parse(f"decimal({kind.scale})")
        return _of_list(name, listed(values))
    if shown.startswith(_TEXTS):
        return HASHES
    if shown.startswith("timestamp["):
        return parse(f"timestamp({_UNITS[kind.unit]})")
    if shown in _ARROW:
        return parse(_ARROW[shown])
    raise DataError(f"Column {name!r} has a type that is not offered. Received: {shown[:80]}.")


def _of_list(name: str, values: Values) -> Type:
    rows = [row for row, value in enumerate(values) if not is_missing(value)]
    if not rows:
        return parse("int")
    judged = rows[:: -(-len(rows) // _JUDGED)]
    most, share = "", 0.0
    for tried in _TRIED:
        fits = _fits(tried)
        found = sum(fits(values[row]) for row in judged) / len(judged)
        if found == 1 and all(fits(values[row]) for row in rows):
            if tried != "real":
                return parse(tried)
            return _of_numbers(name, {row: values[row] for row in rows})
        if tried != "int" and found > share:  # (whole numbers are numbers)
            most, share = tried, found
    texts = sum(isinstance(values[row], str) for row in rows)
    if most in ("", "real"):
        most, share = _most_like_numbers([values[row] for row in judged], most, share)
    if share >= _MIXED or 0 < texts < len(rows):
        fits = _fits(most) if share else lambda value: isinstance(value, str)
        row = next(row for row in rows if not fits(values[row]))
        raise _mixed(name, row, values[row], _TRIED.get(most, "texts"))
    if not texts:
        kind = type(values[rows[0]]).__name__
        raise DataError(f"Column {name!r} has a type that is not offered. Received: {kind}.")
    return HASHES


def _most_like_numbers(judged: list[Any], most: str, share: float) -> tuple[str, float]:
    """The same where numbers that are written otherwise ("1,5", "$5") count as numbers."""
    fits = _fits("real")
    told = [csv_file.is_almost_number(v) if isinstance(v, str) else None for v in judged]
    told = [True if fits(v) else t for v, t in zip(judged, told, strict=True)]
    known = [each for each in told if each is not None]
    alike = sum(known) / len(known) if known else 0.0
    return ("real", alike) if alike > share else (most, share)


def _mixed(name: str, row: int, value: object, most: str) -> DataError:
    kind = csv_file.fault(value) if isinstance(value, str) else f"a value of {type(value).__name__}"
    return DataError(
        f"Column {name!r} has {most}, but for row {row + 1}. Received there: {kind}. Mend the "
        f'rows, or declare the column as text (--type "{name}:text").'
    )


def _fits(tried: str) -> Callable[[Any], bool]:
    def is_real(value: Any) -> bool:
        try:
            return decimal_of(value).is_finite() or isinstance(value, float | np.floating)
        except ValueError:
            return False

    if tried == "real":
        return is_real
    made = parse(tried)

    def fits(value: Any) -> bool:
        if made.kind == NUMBER and isinstance(value, float | np.floating):
            return False  # (whole reals are found below, with their range)
        if made != BITS and isinstance(value, bool | np.bool_):
            return False
        if made.kind == NUMBER and isinstance(value, str) and not is_real(value):
            return False
        try:
            value_element(value, made)
        except (ValueError, KeyError, TypeError, OverflowError):
            return False
        return True

    return fits


def decimal_of(value: Any) -> Decimal:
    """A number as it is written, exact; a float by its shortest notation.

    Raises:
        ValueError: it is no number.
    """
    if isinstance(value, bool | np.bool_):
        raise ValueError("a bool")
    try:
        if isinstance(value, np.floating):
            return Decimal(str(value))
        if isinstance(value, float):
            return Decimal(repr(value))
        if isinstance(value, str) and csv_file.REAL.fullmatch(value.strip()):
            return Decimal(value.strip())
        if isinstance(value, int | np.integer):
            return Decimal(int(value))
    except InvalidOperation:
        raise ValueError("no number") from None
    if isinstance(value, Decimal):
        return value
    raise ValueError("no number")


def _of_numbers(name: str, values: dict[int, Any]) -> Type:
    """Of numbers in a list, by row."""
    exact = {row: decimal_of(value) for row, value in values.items()}
    finite = [value for value in exact.values() if value.is_finite()]
    digits = max((_decimals(value) for value in finite), default=0)
    fits = digits <= MOST_DIGITS and len(finite) == len(exact)
    if fits and all(abs(value).scaleb(digits) <= USUAL for value in finite):
        return _decimal(digits)
    reals = np.full(max(exact) + 1, np.nan)
    for row, value in exact.items():
        reals[row] = float(value)
        if value and not reals[row]:
            raise _vanishing(name, row, MOST_OWN_FRACTION)
    return _fixed(name, reals)


def _decimals(value: Decimal) -> int:
    """Digits behind the point, without zeros at the end."""
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    if not any(digits):
        return 0
    text = "".join(map(str, digits))
    return max(0, -(exponent + len(text) - len(text.rstrip("0"))))


def _of_reals(name: str, reals: Reals) -> Type:
    given = reals[~np.isnan(reals)]
    for digits in range(MOST_DIGITS + 1):
        # (both powers and elements are exact in float64, so that their quotient is the double
        # that is nearest to the decimal)
        with np.errstate(over="ignore"):
            elements = np.rint(given * 10.0**digits)
        if (np.abs(elements) > USUAL).any():
            break
        if (elements / 10.0**digits == given).all():
            return _decimal(digits)
    return _fixed(name, reals)


def _decimal(digits: int) -> Type:
    return parse(f"decimal({digits})" if digits else "int")


def _fixed(name: str, reals: Reals) -> Type:
    """Reals with other than few decimals."""
    with np.errstate(invalid="ignore"):
        largest = float(np.nanmax(np.abs(reals)))
    room = USUAL.bit_length() - 1 - (math.frexp(largest)[1] if math.isfinite(largest) else 99)
    most = min(MOST_OWN_FRACTION, room)
    if most < 1:
        return parse("fixed")  # (whose range its largest value is outside of)
    for fraction in range(min(FRACTION, most), most + 1):
        if not coarse_rows(reals, fraction).any():
            return parse(f"fixed({fraction})")
    gone = (reals != 0) & (np.rint(reals * 2.0**most) == 0)
    if gone.any():
        raise _vanishing(name, int(np.flatnonzero(gone)[0]), most)
    return parse(f"fixed({most})")


def coarse_rows(reals: Reals, fraction: int) -> Any:
    """Which values rounding to fractional bits changes by more than a thousandth of themselves."""
    with np.errstate(invalid="ignore", over="ignore"):
        kept = np.rint(reals * 2.0**fraction) / 2.0**fraction
        return np.abs(kept - reals) > COARSE * np.abs(reals)


def _vanishing(name: str, row: int, fraction: int) -> DataError:
    return DataError(
        f"Column {name!r}, row {row + 1}: a value other than 0 would be kept as 0, with "
        f"{fraction} fractional bits. Put the column in smaller units, or declare that it may be "
        f'rounded (--type "{name}:fixed({fraction})").'
    )
