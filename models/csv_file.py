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
MAX_ROWS = 10**8
# Of a name.
MAX_COLUMNS, MAX_TEXT = 100_000, 200
_DELIMITERS = "\t;,"  # a tab or semicolon leaves the comma free to be a decimal comma
_SNIFFED_ROWS = 50
# float() and Decimal() would also take 1_000, inf and other scripts' digits
REAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
COMMA_NUMBER = re.compile(r"[+-]?[0-9.]*,[0-9]+(?:[.,][0-9]+)*")
_UNIT_NUMBER = re.compile(r"[+-]?[^\w\s.,+-]\s?[+-]?[0-9.,]+|[+-]?[0-9.,]+\s?[^\w\s.,]")
_MISSING_MARKS = ("na", "n/a", "#n/a", "null", "none", "-", "--", "?", "missing")
_BOOLEANS = {"true": 1.0, "false": 0.0}
_MAX_LISTED = 20


@dataclass(frozen=True, eq=False, repr=False)
class CsvCells:
    """A CSV file as text.

    Attributes:
        rows: cells by row, the line of names among them.
        lines: of each row the last line of the file that it is on, from 1.
        delimiter: between cells.
    """

    rows: list[list[str]]
    lines: array[int]
    delimiter: str


def parse_csv(file: Path) -> CsvCells:
    """Read a CSV file whose rows have one number of cells.

    Raises:
        DataError: it is no such file; the line is named.
        OSError, MemoryError: it cannot be read.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            return _read_cells(file, stream)
    except UnicodeDecodeError as error:
        raise DataError(f"{str(file)!r} is not UTF-8 text. Save it as CSV UTF-8.") from error


def _read_cells(file: Path, stream: IO[str]) -> CsvCells:
    delimiter = _detect_delimiter(stream)
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
            if len(rows) > MAX_ROWS:
                raise DataError(f"{str(file)!r} has more than {MAX_ROWS} rows.")
    except csv.Error as error:  # its text names the rule that was broken, never a cell
        raise DataError(f"Line {reader.line_num} of {str(file)!r}: {error}.") from error
    return CsvCells(rows, lines, delimiter)


def _detect_delimiter(stream: IO[str]) -> str:
    """The delimiter that splits the first rows into equally many cells, more than one."""
    sample = [line for line in itertools.islice(stream, _SNIFFED_ROWS) if line.strip()]
    fallback: str | None = None
    for delimiter in _DELIMITERS:
        try:
            widths = Counter(len(row) for row in csv.reader(sample, delimiter=delimiter) if row)
        except csv.Error:
            continue
        if not widths or widths.most_common(1)[0][0] == 1:
            continue
        if len(widths) == 1:
            return delimiter
        fallback = fallback or delimiter
    return fallback or ","


def read_csv(file: Path) -> tuple[list[str], list[list[str]]]:
    """The names and the rows of a CSV file whose first line names its columns.

    Raises:
        DataError: it cannot be read, or is no table.
    """
    try:
        cells = parse_csv(file)
    except OSError as error:
        raise DataError(f"Cannot read {str(file)!r}: {error.strerror}.") from error
    except MemoryError as error:
        raise DataError(f"{str(file)!r} is too large for this machine's memory.") from error
    names = [name.strip() for name in cells.rows[0]] if cells.rows else []
    rows = cells.rows[1:]
    duplicate = next((name for name, count in Counter(names).items() if count > 1), None)
    has_long_name = any(len(name) > MAX_TEXT for name in names)
    if duplicate is not None or not all(names) or has_long_name or len(names) > MAX_COLUMNS:
        received = ""
        if duplicate is not None:
            received = (
                f" Received: {duplicate[:80]!r} twice." if duplicate else " Received: blank names."
            )
        raise DataError(
            f"The first line of {file.name!r} names its columns, each by another name of "
            f"at most {MAX_TEXT} characters.{received}"
        )
    if not rows:
        raise DataError(f"{file.name!r} has no rows below its names.")
    return names, rows


def check_column_names(source: str, names: Sequence[str]) -> None:
    """Refuse names that are numbers where all columns are taken: they would be a row that is lost.

    Raises:
        DataError: they are, and not 0, 1, 2, ..., which tools write as names.
    """
    if all(map(REAL.fullmatch, names)) and list(names) != [str(i) for i in range(len(names))]:
        raise DataError(
            f"The first line of {source!r} holds numbers, where names of columns were expected. "
            "Add a line of names."
        )


def parse_columns(
    source: str, names: Sequence[str], rows: Sequence[Sequence[str]], positions: Sequence[int]
) -> Array:
    """Columns of a table as numbers, float64; a column of true and false is 1 and 0.

    Raises:
        DataError: cells that are none; all such columns are named, each with a row and a kind.
    """
    values = np.empty((len(rows), len(positions)))
    faults = []
    for j, position in enumerate(positions):
        fault = _fill_column(values[:, j], [row[position] for row in rows])
        if fault is not None:
            faults.append((names[position], *fault))
    if len(faults) == 1:
        ((name, row, kind),) = faults
        raise DataError(f"{_cell_error_text(source, row, name, kind)} Or leave it out (--drop).")
    if faults:
        listed = "".join(
            f"\n  {n!r}, row {row + 1}: {kind}" for n, row, kind in faults[:_MAX_LISTED]
        )
        rest = f"\n  and {len(faults) - _MAX_LISTED} more" if len(faults) > _MAX_LISTED else ""
        raise DataError(
            f"{source!r}: {len(faults)} columns hold other cells than numbers, true and false. "
            f"Mend them, write classes as numbers, or leave columns out (--drop):{listed}{rest}"
        )
    return values


def parse_label(source: str, row: int, column: str, text: str) -> float:
    """One cell of a label as a finite number.

    Raises:
        DataError: it is none; row and column are named.
    """
    value = _parse_number(text)
    if value is None:
        raise DataError(
            f"{_cell_error_text(source, row, column, describe_bad_cell(text))} A label of classes takes --target "
            "classes."
        )
    return value


def _cell_error_text(source: str, row: int, column: str, kind: str) -> str:
    return (
        f"{source!r}, row {row + 1}, column {column!r}: expected a number. Received: {kind}. Mend "
        "the column, or write its classes as numbers."
    )


def _fill_column(column: Array, cells: Sequence[str]) -> tuple[int, str] | None:
    """Writes a column's numbers; of the first cell that is none its row and kind."""
    if all(cell.strip().lower() in _BOOLEANS for cell in cells):
        column[:] = [_BOOLEANS[cell.strip().lower()] for cell in cells]
        return None
    for row, cell in enumerate(cells):
        value = _parse_number(cell)
        if value is None:
            return row, describe_bad_cell(cell)
        column[row] = value
    return None


def _parse_number(text: str) -> float | None:
    text = text.strip()
    value = float(text) if REAL.fullmatch(text) else math.inf
    return value if math.isfinite(value) else None


def is_almost_number(cell: str) -> bool | None:
    """Whether a cell that is no number is one in another notation; None of missing values."""
    cell = cell.strip()
    if not cell or cell.lower() in _MISSING_MARKS or NOT_FINITE.fullmatch(cell):
        return None
    return bool(COMMA_NUMBER.fullmatch(cell) or _UNIT_NUMBER.fullmatch(cell))


def describe_bad_cell(cell: str) -> str:
    """The kind of a cell that is no number, without what it says."""
    cell = cell.strip()
    if not cell:
        return "a blank cell"
    if NOT_FINITE.fullmatch(cell):
        return "NaN or infinity"
    if cell.lower() in _MISSING_MARKS:
        return "a mark for a missing value"
    if COMMA_NUMBER.fullmatch(cell):
        return "a number with a comma; write decimals with a point and thousands without marks"
    if _UNIT_NUMBER.fullmatch(cell):
        return "a number with the sign of a currency or unit; write the number alone"
    return "a text"
