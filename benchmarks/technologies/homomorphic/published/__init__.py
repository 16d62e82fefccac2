"""The published table of SEAL's operations: microseconds by scheme, operation and degree.

Source: a comparison of BFV, BGV and CKKS in Microsoft SEAL, whose table prints each row's three
numbers without separators.  Their growth with the degree determines one way to separate them.
"""

from __future__ import annotations

import csv
import functools
import importlib.resources
from dataclasses import dataclass
from typing import Final

# A note that is shown with every ratio to these figures.
DEBUG_BUILD: Final = (
    "The published figures are those of a debug build of the library: on the geometric mean a "
    "release build is 25 to 40 times as fast on one core of today, and additions about 100 times. "
    "So a ratio mostly reflects the build."
)
DEFECT: Final = (
    "The published BFV rotate_columns at N = 8192 and 16384 repeat the row above them "
    "(rotate_rows_random), an error of copying: about 112 ms and 719 ms are due."
)


@dataclass(frozen=True)
class Published:
    """A cell of the table.

    Attributes:
        seconds: as printed.
        suspect: a description of an error in the cell, or "".
    """

    seconds: float
    suspect: str


@functools.cache
def read_published_operations() -> dict[tuple[str, str, int], Published]:
    """Read the table by (scheme, operation, degree)."""
    text = importlib.resources.files(__name__).joinpath("operations.csv").read_text("utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {
        (row["scheme"], row["operation"], int(row["degree"])): Published(
            float(row["microseconds"]) * 1e-6, row["suspect"]
        )
        for row in rows
    }
