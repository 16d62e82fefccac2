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
from tfe_bench.models.queries.reading import Values, as_reals, is_missing, to_list
from tfe_bench.models.queries.types import (
    BITS,
    DEFAULT_MAGNITUDE,
    FRACTION,
    HASHES,
    MAX_COLUMN_FRACTION,
    MAX_DIGITS,
    NUMBER,
    Type,
    encode_value,
    parse_type,
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


def infer_type(name: str, values: Values) -> Type:
    """The type of a column whose owner declares none.

    Raises:
        DataError: its values are of several kinds, of a kind that is not offered, or so near 0
            that they would vanish; column and row are named, the value is not.
    """
    reals = as_reals(values)
    if reals is not None:
        return _infer_reals(name, reals)
    kind = getattr(values, "type", None)
    if kind is None:
        return _infer_from_list(name, values)
    shown = str(kind)
    if shown.startswith(("int", "uint")):
        return parse_type("int")
    if shown.startswith("decimal"):
        if 0 <= kind.scale <= MAX_DIGITS:
            return parse_type(f"decimal({kind.scale})")
        return _infer_from_list(name, to_list(values))
    if shown.startswith(_TEXTS):
        return HASHES
    if shown.startswith("timestamp["):
        return parse_type(f"timestamp({_UNITS[kind.unit]})")
    if shown in _ARROW:
        return parse_type(_ARROW[shown])
    raise DataError(f"Column {name!r} has a type that is not offered. Received: {shown[:80]}.")


def _infer_from_list(name: str, values: Values) -> Type:
    rows = [row for row, value in enumerate(values) if not is_missing(value)]
    if not rows:
        return parse_type("int")
    sampled_rows = rows[:: -(-len(rows) // _JUDGED)]
    best, share = "", 0.0
    for tried in _TRIED:
        fits = _make_matcher(tried)
        share_fitting = sum(fits(values[row]) for row in sampled_rows) / len(sampled_rows)
        if share_fitting == 1 and all(fits(values[row]) for row in rows):
            if tried != "real":
                return parse_type(tried)
            return _infer_numbers(name, {row: values[row] for row in rows})
        if tried != "int" and share_fitting > share:  # (whole numbers are numbers)
            best, share = tried, share_fitting
    texts = sum(isinstance(values[row], str) for row in rows)
    if best in ("", "real"):
        best, share = _match_near_numbers([values[row] for row in sampled_rows], best, share)
    if share >= _MIXED or 0 < texts < len(rows):
        fits = _make_matcher(best) if share else lambda value: isinstance(value, str)
        row = next(row for row in rows if not fits(values[row]))
        raise _mixed_kinds_error(name, row, values[row], _TRIED.get(best, "texts"))
    if not texts:
        kind = type(values[rows[0]]).__name__
        raise DataError(f"Column {name!r} has a type that is not offered. Received: {kind}.")
    return HASHES


def _match_near_numbers(samples: list[Any], best: str, share: float) -> tuple[str, float]:
    """The same where numbers that are written otherwise ("1,5", "$5") count as numbers."""
    fits = _make_matcher("real")
    number_like = [csv_file.is_almost_number(v) if isinstance(v, str) else None for v in samples]
    number_like = [True if fits(v) else t for v, t in zip(samples, number_like, strict=True)]
    decided = [each for each in number_like if each is not None]
    alike = sum(decided) / len(decided) if decided else 0.0
    return ("real", alike) if alike > share else (best, share)


def _mixed_kinds_error(name: str, row: int, value: object, expected: str) -> DataError:
    kind = (
        csv_file.describe_bad_cell(value)
        if isinstance(value, str)
        else f"a value of {type(value).__name__}"
    )
    return DataError(
        f"Column {name!r} has {expected}, but for row {row + 1}. Received there: {kind}. Mend the "
        f'rows, or declare the column as text (--type "{name}:text").'
    )


def _make_matcher(kind: str) -> Callable[[Any], bool]:
    def is_real(value: Any) -> bool:
        try:
            return parse_decimal(value).is_finite() or isinstance(value, float | np.floating)
        except ValueError:
            return False

    if kind == "real":
        return is_real
    candidate = parse_type(kind)

    def matches_type(value: Any) -> bool:
        if candidate.kind == NUMBER and isinstance(value, float | np.floating):
            return False  # (whole reals are found below, with their range)
        if candidate != BITS and isinstance(value, bool | np.bool_):
            return False
        if candidate.kind == NUMBER and isinstance(value, str) and not is_real(value):
            return False
        try:
            encode_value(value, candidate)
        except (ValueError, KeyError, TypeError, OverflowError):
            return False
        return True

    return matches_type


def parse_decimal(value: Any) -> Decimal:
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


def _infer_numbers(name: str, values: dict[int, Any]) -> Type:
    """Of numbers in a list, by row."""
    exact = {row: parse_decimal(value) for row, value in values.items()}
    finite = [value for value in exact.values() if value.is_finite()]
    digits = max((_decimal_places(value) for value in finite), default=0)
    fits = digits <= MAX_DIGITS and len(finite) == len(exact)
    if fits and all(abs(value).scaleb(digits) <= DEFAULT_MAGNITUDE for value in finite):
        return _decimal_type(digits)
    reals = np.full(max(exact) + 1, np.nan)
    for row, value in exact.items():
        reals[row] = float(value)
        if value and not reals[row]:
            raise _vanishing_error(name, row, MAX_COLUMN_FRACTION)
    return _fixed_type(name, reals)


def _decimal_places(value: Decimal) -> int:
    """Digits behind the point, without zeros at the end."""
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    if not any(digits):
        return 0
    text = "".join(map(str, digits))
    return max(0, -(exponent + len(text) - len(text.rstrip("0"))))


def _infer_reals(name: str, reals: Reals) -> Type:
    present = reals[~np.isnan(reals)]
    for digits in range(MAX_DIGITS + 1):
        # (both powers and elements are exact in float64, so that their quotient is the double
        # that is nearest to the decimal)
        with np.errstate(over="ignore"):
            elements = np.rint(present * 10.0**digits)
        if (np.abs(elements) > DEFAULT_MAGNITUDE).any():
            break
        if (elements / 10.0**digits == present).all():
            return _decimal_type(digits)
    return _fixed_type(name, reals)


def _decimal_type(digits: int) -> Type:
    return parse_type(f"decimal({digits})" if digits else "int")


def _fixed_type(name: str, reals: Reals) -> Type:
    """Reals with other than few decimals."""
    with np.errstate(invalid="ignore"):
        largest = float(np.nanmax(np.abs(reals)))
    room = (
        DEFAULT_MAGNITUDE.bit_length()
        - 1
        - (math.frexp(largest)[1] if math.isfinite(largest) else 99)
    )
    max_fraction = min(MAX_COLUMN_FRACTION, room)
    if max_fraction < 1:
        return parse_type("fixed")  # (whose range its largest value is outside of)
    for fraction in range(min(FRACTION, max_fraction), max_fraction + 1):
        if not coarse_rows(reals, fraction).any():
            return parse_type(f"fixed({fraction})")
    gone = (reals != 0) & (np.rint(reals * 2.0**max_fraction) == 0)
    if gone.any():
        raise _vanishing_error(name, int(np.flatnonzero(gone)[0]), max_fraction)
    return parse_type(f"fixed({max_fraction})")


def coarse_rows(reals: Reals, fraction: int) -> Any:
    """Which values rounding to fractional bits changes by more than a thousandth of themselves."""
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = np.rint(reals * 2.0**fraction) / 2.0**fraction
        return np.abs(rounded - reals) > COARSE * np.abs(reals)


def _vanishing_error(name: str, row: int, fraction: int) -> DataError:
    return DataError(
        f"Column {name!r}, row {row + 1}: a value other than 0 would be kept as 0, with "
        f"{fraction} fractional bits. Put the column in smaller units, or declare that it may be "
        f'rounded (--type "{name}:fixed({fraction})").'
    )
