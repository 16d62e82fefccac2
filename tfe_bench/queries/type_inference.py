"""Type inference for columns whose owner declares no type: the narrowest kind that holds all
values.

Reals with few decimals become `decimal`, which is exact. Others become `fixed` with enough
fractional bits that every value keeps a relative error of a thousandth.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from tfe_bench import csv_file
from tfe_bench.errors import DataError
from tfe_bench.queries.reading import Values, column_as_reals, column_to_list, is_null_cell
from tfe_bench.queries.types import (
    BITS,
    DEFAULT_MAGNITUDE,
    FRACTION,
    HASHES,
    MAX_COLUMN_FRACTION,
    MAX_DIGITS,
    NUMBER,
    ColumnType,
    encode_column_value,
    parse_type,
)

Reals = np.ndarray[Any, np.dtype[np.float64]]
# Relative error of a value that rounding may cause without a warning.
COARSE = 1e-3
# Types by the name of an Arrow type.
_ARROW = {
    "bool": "bool",
    "date32[day]": "date",
    "date64[ms]": "date",
    "null": "int",
}
_TEXTS = ("string", "large_string", "string_view", "dictionary")
# Units of Arrow's timestamps, with or without a time zone.
_UNITS = {"s": "s", "ms": "ms", "us": "us", "ns": "us"}
# Number of values that decide the kind of a column, and the share of one kind above which the
# column is not text, so that other values are refused.
_JUDGED, _MIXED = 1000, 0.5
# Kinds in the order of trial, and the words for their values.
_TRIED = {
    "int": "numbers",
    "real": "numbers",
    "bool": "truth values",
    "date": "dates",
    "timestamp": "times",
}


def infer_column_type(name: str, values: Values) -> ColumnType:
    """Infer the type of a column whose owner declares none.

    Raises:
        DataError: values are of several kinds, of an unsupported kind, or so near 0 that they
            would vanish; the text names column and row, not the value.
    """
    reals = column_as_reals(values)
    if reals is not None:
        return _infer_real_column_type(name, reals)
    kind = getattr(values, "type", None)
    if kind is None:
        return _infer_from_list(name, values)
    shown = str(kind)
    if shown.startswith(("int", "uint")):
        return parse_type("int")
    if shown.startswith("decimal"):
        if 0 <= kind.scale <= MAX_DIGITS:
            return parse_type(f"decimal({kind.scale})")
        return _infer_from_list(name, column_to_list(values))
    if shown.startswith(_TEXTS):
        return HASHES
    if shown.startswith("timestamp["):
        return parse_type(f"timestamp({_UNITS[kind.unit]})")
    if shown in _ARROW:
        return parse_type(_ARROW[shown])
    raise DataError(
        f"Column {name!r} has an unsupported type. Received: {shown[:80]}.",
        code="unsupported-type",
        operation=name,
        received=shown[:80],
    )


def _infer_from_list(name: str, values: Values) -> ColumnType:
    rows = [row for row, value in enumerate(values) if not is_null_cell(value)]
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
        raise DataError(
            f"Column {name!r} has an unsupported type. Received: {kind}.",
            code="unsupported-type",
            operation=name,
            received=kind,
        )
    return HASHES


def _match_near_numbers(samples: list[Any], best: str, share: float) -> tuple[str, float]:
    """Compare with the share of numbers in other notations ("1,5", "$5"); return the best kind and
    its share.
    """
    fits = _make_matcher("real")
    number_like = [
        csv_file.is_almost_csv_number(v) if isinstance(v, str) else None for v in samples
    ]
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
        f"Column {name!r} has {expected}, except in row {row + 1}. Received there: {kind}. "
        f'Correct the rows, or declare the column as text (--type "{name}:text").',
        code="mixed-types",
        operation=name,
    )


def _make_matcher(kind: str) -> Callable[[Any], bool]:
    def is_real(value: Any) -> bool:
        try:
            return parse_exact_decimal(value).is_finite() or isinstance(value, float | np.floating)
        except ValueError:
            return False

    if kind == "real":
        return is_real
    candidate = parse_type(kind)

    def matches_type(value: Any) -> bool:
        if candidate.kind == NUMBER and isinstance(value, float | np.floating):
            return False  # (whole reals are handled by `_infer_numbers`, with their range)
        if candidate != BITS and isinstance(value, bool | np.bool_):
            return False
        if candidate.kind == NUMBER and isinstance(value, str) and not is_real(value):
            return False
        try:
            encode_column_value(value, candidate)
        except (ValueError, KeyError, TypeError, OverflowError):
            return False
        return True

    return matches_type


def parse_exact_decimal(value: Any) -> Decimal:
    """Parse a number exactly; a float by its shortest notation.

    Raises:
        ValueError: the value is not a number.
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


def _infer_numbers(name: str, values: dict[int, Any]) -> ColumnType:
    """Infer the type of numbers in a list, given by row."""
    exact = {row: parse_exact_decimal(value) for row, value in values.items()}
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
    """Return the number of decimal digits without trailing zeros."""
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    if not any(digits):
        return 0
    text = "".join(map(str, digits))
    return max(0, -(exponent + len(text) - len(text.rstrip("0"))))


def _infer_real_column_type(name: str, reals: Reals) -> ColumnType:
    present = reals[~np.isnan(reals)]
    for digits in range(MAX_DIGITS + 1):
        # (both powers and elements are exact in float64, so that their quotient is the double
        # nearest to the decimal)
        with np.errstate(over="ignore"):
            elements = np.rint(present * 10.0**digits)
        if (np.abs(elements) > DEFAULT_MAGNITUDE).any():
            break
        if (elements / 10.0**digits == present).all():
            return _decimal_type(digits)
    return _fixed_type(name, reals)


def _decimal_type(digits: int) -> ColumnType:
    return parse_type(f"decimal({digits})" if digits else "int")


def _fixed_type(name: str, reals: Reals) -> ColumnType:
    """Return a `fixed` type for reals with more than a few decimals."""
    with np.errstate(invalid="ignore"):
        largest = float(np.nanmax(np.abs(reals)))
    room = (
        DEFAULT_MAGNITUDE.bit_length()
        - 1
        - (math.frexp(largest)[1] if math.isfinite(largest) else 99)
    )
    max_fraction = min(MAX_COLUMN_FRACTION, room)
    if max_fraction < 1:
        return parse_type("fixed")  # (its largest value is outside the range of any type)
    for fraction in range(min(FRACTION, max_fraction), max_fraction + 1):
        if not coarsely_rounded_rows(reals, fraction).any():
            return parse_type(f"fixed({fraction})")
    gone = (reals != 0) & (np.rint(reals * 2.0**max_fraction) == 0)
    if gone.any():
        raise _vanishing_error(name, int(np.flatnonzero(gone)[0]), max_fraction)
    return parse_type(f"fixed({max_fraction})")


def coarsely_rounded_rows(reals: Reals, fraction: int) -> Any:
    """Return which values change by more than a thousandth when rounded to some
    fractional bits.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = np.rint(reals * 2.0**fraction) / 2.0**fraction
        return np.abs(rounded - reals) > COARSE * np.abs(reals)


def _vanishing_error(name: str, row: int, fraction: int) -> DataError:
    return DataError(
        f"Column {name!r}, row {row + 1}: {fraction} fractional bits would round a nonzero "
        "value to 0. Use smaller units for the column, or allow the rounding (--type "
        f'"{name}:fixed({fraction})").',
        code="value-vanishes",
        operation=name,
    )
