"""The error that a result is judged by: in units of its last place, relative, or of a range.

The one place that decides which error is printed.  A record keeps it as `error`, beside the
greatest absolute one, which says nothing of e^31 that is right to nine digits.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tfe_bench.benchmarks.records import Record

ULP, RELATIVE, RANGE = "ulp", "relative", "range"
_FORMATS = {ULP: "{} ulp", RELATIVE: "{} (relative above 1)", RANGE: "{} of the range"}


def largest_error(unit: str, errors: Any, exact: Any, fractional_bits: int) -> float:
    """The largest error in a unit.

    Args:
        unit: ULP: of a result with that many fractional bits; RELATIVE: parts of the exact result,
            and of 1 where that is smaller.
        errors: absolute ones, of the exact results.
    """
    parts = errors / np.maximum(np.abs(exact), 1) if unit == RELATIVE else errors
    worst = float(np.max(parts, initial=0.0))
    return math.ldexp(worst, fractional_bits) if unit == ULP else worst


def error_to_json(unit: str, value: float) -> dict[str, Any] | None:
    """For a record; None where it is no number (and the absolute error says so)."""
    return {"unit": unit, "value": value} if math.isfinite(value) else None


def format_error(record: Record, digits: int = 3) -> str | None:
    """The largest error in words, None where nothing was compared."""
    found = record.error or {}
    words, value = _FORMATS.get(str(found.get("unit"))), found.get("value")
    if words and isinstance(value, int | float) and record.max_error:
        return words.format(f"{value:.{digits}g}")
    return None if record.max_error is None else f"{record.max_error:.{digits}g}"
