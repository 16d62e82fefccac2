"""Error metrics of results: in units of the last place, relative, or relative to a range.

This module alone decides which error is printed.  A record keeps it as `error`, next to the
largest absolute error, which is no measure of an e^31 with nine correct digits.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tfe_bench.benchmarks.records import Record

ULP, RELATIVE, RANGE = "ulp", "relative", "range"
_FORMATS = {ULP: "{} ulp", RELATIVE: "{} (relative above 1)", RANGE: "{} of the range"}


def largest_result_error(unit: str, errors: Any, exact: Any, fractional_bits: int) -> float:
    """Return the largest error in a unit.

    Args:
        unit: ULP: units in the last place of a result with that many fractional bits; RELATIVE:
            parts of the exact result, or of 1 if that is smaller.
        errors: absolute errors.
        exact: exact results.
    """
    parts = errors / np.maximum(np.abs(exact), 1) if unit == RELATIVE else errors
    worst = float(np.max(parts, initial=0.0))
    return math.ldexp(worst, fractional_bits) if unit == ULP else worst


def error_to_json(unit: str, value: float) -> dict[str, Any] | None:
    """Return the error for a record; None if it is not a number (the absolute error shows it)."""
    return {"unit": unit, "value": value} if math.isfinite(value) else None


def format_error(record: Record, digits: int = 3) -> str | None:
    """Format the largest error; None if no result was compared."""
    error = record.error or {}
    words, value = _FORMATS.get(str(error.get("unit"))), error.get("value")
    if words and isinstance(value, int | float) and record.max_error:
        return words.format(f"{value:.{digits}g}")
    return None if record.max_error is None else f"{record.max_error:.{digits}g}"
