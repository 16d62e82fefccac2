"""What may be encrypted or weighted: whole numbers within declared limits, refused by position."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfe_bench.benchmarks.technologies.functional.curve import Numbers
from tfe_bench.errors import RangeError, UsageError, describe_position


def to_integers(what: str, values: Any, most: int) -> Numbers:
    """Numbers as int64, of any shape.

    Args:
        what: they are, for errors.
        values: an array of integers, or of floats that are whole.
        most: the largest size that is allowed.

    Raises:
        UsageError: they are no numbers.
        RangeError: one is NaN, not whole, or larger than `most`; its value is not told.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "iuf":
        raise UsageError(f"{what} are whole numbers. Received: an array of {array.dtype}.")
    if array.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            _refuse_values(what, ~np.isfinite(array), "NaN or infinite", "Encrypt finite numbers.")
            _refuse_values(what, array != np.rint(array), "not whole", "Scale and round it first.")
    # Compared as they come: a conversion could wrap.
    beyond = (array > most) | (array < -most)
    _refuse_values(what, beyond, f"beyond {most:,} in size", "Declare more bits, or scale it.")
    return np.ascontiguousarray(array, np.int64)


def _refuse_values(what: str, wrong: Any, how: str, then: str) -> None:
    if np.any(wrong):
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise RangeError(f"{what}: the value {describe_position(at)} is {how}. {then}", at)
