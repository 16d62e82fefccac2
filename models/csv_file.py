"""Tables of numbers in CSV files."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tfe_bench.errors import DataError
from tfe_bench.models.graph import Array

MOST_ROWS = 10**8
# Of a name.
MOST_COLUMNS, MOST_TEXT = 100_000, 200


def read(file: Path) -> tuple[list[str], list[list[str]]]:
    """The names and the lines of a CSV file.

    Raises:
        DataError: it cannot be read, or is no table.
    """
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, strict=True)
            names = [name.strip() for name in next(reader, [])]
            lines: list[list[str]] = []
            for line in reader:
                if not line:
                    continue
                if len(line) != len(names):
                    raise DataError(
                        f"{file.name!r}, row {len(lines) + 1}: {len(line)} values for "
                        f"{len(names)} columns."
                    )
                lines.append(line)
                if len(lines) > MOST_ROWS:
                    raise DataError(f"{file.name!r} has more than {MOST_ROWS} rows.")
    except OSError as error:
        raise DataError(f"Cannot read {str(file)!r}: {error.strerror}.") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(
            f"{str(file)!r} is no CSV file in UTF-8. Received: {type(error).__name__}."
        ) from None
    long = any(len(name) > MOST_TEXT for name in names)
    if len(set(names)) != len(names) or not all(names) or long or len(names) > MOST_COLUMNS:
        raise DataError(
            f"The first line of {file.name!r} names its columns, each by another name of "
            f"at most {MOST_TEXT} characters."
        )
    if not lines:
        raise DataError(f"{file.name!r} has no rows below its names.")
    return names, lines


def numbers(
    source: str, names: Sequence[str], lines: Sequence[Sequence[str]], places: Sequence[int]
) -> Array:
    """Columns of a table as numbers, float64.

    Raises:
        DataError: a field that is none; row and column are named.
    """
    rows = [[number(source, i, names[p], line[p]) for p in places] for i, line in enumerate(lines)]
    return np.array(rows, np.float64)


def number(source: str, row: int, column: str, text: str) -> float:
    """One field as a finite number.

    Raises:
        DataError: it is none; row and column are named.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
        what = "no number" if text.strip() else "nothing"
    else:
        what = "NaN or infinity"
    if not math.isfinite(value):
        raise DataError(
            f"{source!r}, row {row + 1}, column {column!r}: a number is due. Received: {what}. "
            "Fill in what is missing, write classes as numbers, or leave the column out (--drop)."
        )
    return value
