"""CSV files: one reader for sorts, tables, training and predictions, and columns of numbers.

A file is UTF-8, with or without a byte order mark, separated by commas, semicolons or tabs.
"""

from __future__ import annotations

import csv
import itertools
import math
import re
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from tfe_bench.errors import DataError

Array = np.ndarray[Any, Any]
MOST_ROWS = 10**8
# Of a name.
MOST_COLUMNS, MOST_TEXT = 100_000, 200
_DELIMITERS = "\t;,"  # a tab or semicolon leaves the comma free to be a decimal comma
_SNIFFED_ROWS = 50
# float() and Decimal() would also take 1_000, inf and other scripts' digits
REAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
COMMA = re.compile(r"[+-]?[0-9.]*,[0-9]+(?:[.,][0-9]+)*")
_UNIT = re.compile(r"[+-]?[^\w\s.,+-]\s?[+-]?[0-9.,]+|[+-]?[0-9.,]+\s?[^\w\s.,]")
_MISSING = ("na", "n/a", "#n/a", "null", "none", "-", "--", "?", "missing")
_TRUTH = {"true": 1.0, "false": 0.0}
_LISTED = 20


@dataclass(frozen=True, eq=False, repr=False)
class Cells:
    """A CSV file as text.

    Attributes:
        rows: cells by row, the line of names among them.
        lines: of each row the last line of the file that it is on, from 1.
        delimiter: between cells.
    """

    rows: list[list[str]]
    lines: array[int]
    delimiter: str


def parse(file: Path) -> Cells:
    """Read a CSV file whose rows have one number of cells.

    Raises:
        DataError: it is no such file; the line is named.
        OSError, MemoryError: it cannot be read.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            return _parsed(file, stream)
    except UnicodeDecodeError as error:
        raise DataError(f"{str(file)!r} is not UTF-8 text. Save it as CSV UTF-8.") from error


def _parsed(file: Path, stream: IO[str]) -> Cells:
    delimiter = _sniff(stream)
    stream.seek(0)
    reader = csv.reader(stream, delimiter=delimiter, strict=True)
    rows: list[list[str]] = []
    lines = array("Q")
    blank = 0  # the first blank line since the last row
    try:
        for row in reader:
            if not row or (len(row) == 1 and row[0].isspace()):  # a quoted "" is a cell
                blank = blank or reader.line_num
                continue
            if blank and rows and len(rows[0]) == 1:
                raise DataError(f"Line {blank} of {str(file)!r} is blank: a value is missing.")
            blank = 0
            if rows and len(row) != len(rows[0]):
                raise DataError(
                    f"Line {reader.line_num} of {str(file)!r} has {len(row)} cells where line "
                    f"{lines[0]} has {len(rows[0])} (separated by {delimiter!r})."
                )
            rows.append(row)
            lines.append(reader.line_num)
            if len(rows) > MOST_ROWS:
                raise DataError(f"{str(file)!r} has more than {MOST_ROWS} rows.")
    except csv.Error as error:  # its text names the rule that was broken, never a cell
        raise DataError(f"Line {reader.line_num} of {str(file)!r}: {error}.") from error
    return Cells(rows, lines, delimiter)


def _sniff(stream: IO[str]) -> str:
    """The delimiter that splits the first rows into equally many cells, more than one."""
    sample = [line for line in itertools.islice(stream, _SNIFFED_ROWS) if line.strip()]
    usual: str | None = None
    for delimiter in _DELIMITERS:
        try:
            widths = Counter(len(row) for row in csv.reader(sample, delimiter=delimiter) if row)
        except csv.Error:
            continue
        if not widths or widths.most_common(1)[0][0] == 1:
            continue
        if len(widths) == 1:
            return delimiter
        usual = usual or delimiter
    return usual or ","


def read(file: Path) -> tuple[list[str], list[list[str]]]:
    """The names and the rows of a CSV file whose first line names its columns.

    Raises:
        DataError: it cannot be read, or is no table.
    """
    try:
        found = parse(file)
    except OSError as error:
        raise DataError(f"Cannot read {str(file)!r}: {error.strerror}.") from error
    except MemoryError as error:
        raise DataError(f"{str(file)!r} is too large for this machine's memory.") from error
    names = [name.strip() for name in found.rows[0]] if found.rows else []
    rows = found.rows[1:]
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    long = any(len(name) > MOST_TEXT for name in names)
    if twice is not None or not all(names) or long or len(names) > MOST_COLUMNS:
        received = ""
        if twice is not None:
            received = f" Received: {twice[:80]!r} twice." if twice else " Received: blank names."
        raise DataError(
            f"The first line of {file.name!r} names its columns, each by another name of "
            f"at most {MOST_TEXT} characters.{received}"
        )
    if not rows:
        raise DataError(f"{file.name!r} has no rows below its names.")
    return names, rows


def check_names(source: str, names: Sequence[str]) -> None:
    """Refuse names that are numbers where all columns are taken: they would be a row that is lost.

    Raises:
        DataError: they are, and not 0, 1, 2, ..., which tools write as names.
    """
    if all(map(REAL.fullmatch, names)) and list(names) != [str(i) for i in range(len(names))]:
        raise DataError(
            f"The first line of {source!r} holds numbers, where names of columns were expected. "
            "Add a line of names."
        )


def numbers(
    source: str, names: Sequence[str], rows: Sequence[Sequence[str]], places: Sequence[int]
) -> Array:
    """Columns of a table as numbers, float64; a column of true and false is 1 and 0.

    Raises:
        DataError: cells that are none; all such columns are named, each with a row and a kind.
    """
    found = np.empty((len(rows), len(places)))
    faults = []
    for j, place in enumerate(places):
        fault = _fill(found[:, j], [row[place] for row in rows])
        if fault is not None:
            faults.append((names[place], *fault))
    if len(faults) == 1:
        ((name, row, kind),) = faults
        raise DataError(f"{_refusal(source, row, name, kind)} Or leave it out (--drop).")
    if faults:
        listed = "".join(f"\n  {n!r}, row {row + 1}: {kind}" for n, row, kind in faults[:_LISTED])
        rest = f"\n  and {len(faults) - _LISTED} more" if len(faults) > _LISTED else ""
        raise DataError(
            f"{source!r}: {len(faults)} columns hold other cells than numbers, true and false. "
            f"Mend them, write classes as numbers, or leave columns out (--drop):{listed}{rest}"
        )
    return found


def number(source: str, row: int, column: str, text: str) -> float:
    """One cell of a label as a finite number.

    Raises:
        DataError: it is none; row and column are named.
    """
    value = _number(text)
    if value is None:
        raise DataError(
            f"{_refusal(source, row, column, fault(text))} A label of classes takes --target "
            "classes."
        )
    return value


def _refusal(source: str, row: int, column: str, kind: str) -> str:
    return (
        f"{source!r}, row {row + 1}, column {column!r}: expected a number. Received: {kind}. Mend "
        "the column, or write its classes as numbers."
    )


def _fill(column: Array, cells: Sequence[str]) -> tuple[int, str] | None:
    """Writes a column's numbers; of the first cell that is none its row and kind."""
    if all(cell.strip().lower() in _TRUTH for cell in cells):
        column[:] = [_TRUTH[cell.strip().lower()] for cell in cells]
        return None
    for row, cell in enumerate(cells):
        value = _number(cell)
        if value is None:
            return row, fault(cell)
        column[row] = value
    return None


def _number(text: str) -> float | None:
    text = text.strip()
    value = float(text) if REAL.fullmatch(text) else math.inf
    return value if math.isfinite(value) else None


def is_almost_number(cell: str) -> bool | None:
    """Whether a cell that is no number is one in another notation; None of missing values."""
    cell = cell.strip()
    if not cell or cell.lower() in _MISSING or NOT_FINITE.fullmatch(cell):
        return None
    return bool(COMMA.fullmatch(cell) or _UNIT.fullmatch(cell))


def fault(cell: str) -> str:
    """The kind of a cell that is no number, without what it says."""
    cell = cell.strip()
    if not cell:
        return "a blank cell"
    if NOT_FINITE.fullmatch(cell):
        return "NaN or infinity"
    if cell.lower() in _MISSING:
        return "a mark for a missing value"
    if COMMA.fullmatch(cell):
        return "a number with a comma; write decimals with a point and thousands without marks"
    if _UNIT.fullmatch(cell):
        return "a number with the sign of a currency or unit; write the number alone"
    return "a text"
