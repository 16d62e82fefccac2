"""Validation of messages and weights: whole numbers within declared limits."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfe_bench.benchmarks.technologies.functional.curve import Numbers
from tfe_bench.errors import RangeError, UsageError, describe_array_position


def to_bounded_integers(subject: str, values: Any, largest: int) -> Numbers:
    """Convert numbers of any shape to int64.

    Args:
        subject: name of the values, for errors.
        values: an array of integers, or of floats that are whole.
        largest: the largest magnitude allowed.

    Raises:
        UsageError: the values are not numbers.
        RangeError: a value is NaN, not whole, or larger than `largest`.  The error contains its
            position, not its value.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "iuf":
        raise UsageError(
            f"{subject} are whole numbers. Received: an array of {array.dtype}.",
            code="not-a-number",
            operation=subject,
            received=array.dtype,
        )
    if array.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            _refuse_values(
                subject, ~np.isfinite(array), "NaN or infinite", "Encrypt finite numbers."
            )
            _refuse_values(
                subject, array != np.rint(array), "not whole", "Scale and round it first."
            )
    # Compared before the conversion, which could wrap around.
    beyond = (array > largest) | (array < -largest)
    _refuse_values(
        subject, beyond, f"beyond {largest:,} in size", "Declare more bits, or scale it."
    )
    return np.ascontiguousarray(array, np.int64)


def _refuse_values(subject: str, wrong: Any, how: str, then: str) -> None:
    if np.any(wrong):
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise RangeError(
            f"{subject}: the value {describe_array_position(at)} is {how}. {then}",
            at,
            code="number-out-of-range",
            operation=subject,
            received=how,
        )
