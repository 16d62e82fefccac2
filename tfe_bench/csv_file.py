"""CSV files: one reader for sorts, tables, training and predictions, and columns of numbers.

A file is UTF-8 text, with or without a byte order mark.  Commas, semicolons or tabs separate cells.
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
# Limits of the number of columns, and of the length of a name.
MAX_COLUMNS, MAX_TEXT = 100_000, 200
_DELIMITERS = "\t;,"  # with a tab or semicolon, a comma may be a decimal comma
_SNIFFED_ROWS = 50
# float() and Decimal() would also accept 1_000, inf and digits of other scripts
REAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
COMMA_NUMBER = re.compile(r"[+-]?[0-9.]*,[0-9]+(?:[.,][0-9]+)*")
_UNIT_NUMBER = re.compile(r"[+-]?[^\w\s.,+-]\s?[+-]?[0-9.,]+|[+-]?[0-9.,]+\s?[^\w\s.,]")
_MISSING_MARKS = ("na", "n/a", "#n/a", "null", "none", "-", "--", "?", "missing")
_BOOLEANS = {"true": 1.0, "false": 0.0}
_MAX_LISTED = 20


@dataclass(frozen=True, eq=False, repr=False)
class CsvCells:
    """The cells of a CSV file as text.

    Attributes:
        rows: cells by row, the header row included.
        lines: for each row, the number of its last line in the file, from 1.
        delimiter: the character between cells.
    """

    rows: list[list[str]]
    lines: array[int]
    delimiter: str


def parse_csv(file: Path) -> CsvCells:
    """Read a CSV file whose rows all have the same number of cells.

    Raises:
        DataError: the file is not such a CSV file; the text names the line.
        OSError, MemoryError: the file cannot be read.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            return _read_csv_cells(file, stream)
    except UnicodeDecodeError as error:
        raise DataError(
            f"Expected UTF-8 text in {str(file)!r}. Save the file as CSV UTF-8.",
            code="invalid-encoding",
            operation=str(file),
        ) from error


def _read_csv_cells(file: Path, stream: IO[str]) -> CsvCells:
    delimiter = _detect_delimiter(stream)
    stream.seek(0)
    reader = csv.reader(stream, delimiter=delimiter, strict=True)
    rows: list[list[str]] = []
    lines = array("Q")
    blank = 0  # number of the first blank line since the last row
    try:
        for row in reader:
            if not row or (len(row) == 1 and row[0].isspace()):  # a quoted "" is a cell
                blank = blank or reader.line_num
                continue
            if blank and rows and len(rows[0]) == 1:
                raise DataError(
                    f"Line {blank} of {str(file)!r} is blank: a value is missing.",
                    code="blank-line",
                    operation=str(file),
                    received=blank,
                )
            blank = 0
            if rows and len(row) != len(rows[0]):
                raise DataError(
                    f"Line {reader.line_num} of {str(file)!r} has {len(row)} cells, but line "
                    f"{lines[0]} has {len(rows[0])} (separated by {delimiter!r}).",
                    code="invalid-csv",
                    operation=str(file),
                    received=len(row),
                    expected=len(rows[0]),
                )
            rows.append(row)
            lines.append(reader.line_num)
            if len(rows) > MAX_ROWS:
                raise DataError(
                    f"{str(file)!r} has more than {MAX_ROWS} rows.",
                    code="too-large",
                    operation=str(file),
                    expected=MAX_ROWS,
                )
    except csv.Error as error:  # the text of the error names the violated rule, never a cell
        raise DataError(
            f"Line {reader.line_num} of {str(file)!r}: {error}.",
            code="invalid-csv",
            operation=str(file),
        ) from error
    return CsvCells(rows, lines, delimiter)


def _detect_delimiter(stream: IO[str]) -> str:
    """Detect the delimiter that splits the first rows into equally many cells, more than one."""
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
    """Read the column names and the rows of a CSV file whose first line names its columns.

    Raises:
        DataError: the file cannot be read, or is not a table.
    """
    try:
        cells = parse_csv(file)
    except OSError as error:
        raise DataError(
            f"Cannot read {str(file)!r}: {error.strerror}.",
            code="file-not-readable",
            operation=str(file),
            received=error.strerror,
        ) from error
    except MemoryError as error:
        raise DataError(
            f"{str(file)!r} is too large for the memory of this machine.",
            code="too-large",
            operation=str(file),
        ) from error
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
            f"Expected distinct names of columns, of at most {MAX_TEXT} characters each, in the "
            f"first line of {file.name!r}.{received}",
            code="invalid-header",
            operation=file.name,
        )
    if not rows:
        raise DataError(
            f"Expected rows below the names of columns in {file.name!r}. Received: none.",
            code="empty-input",
            operation=file.name,
        )
    return names, rows


def check_csv_column_names(source: str, names: Sequence[str]) -> None:
    """Reject numeric column names where a job uses all columns: the header would be a lost row.

    Raises:
        DataError: all names are numbers, other than the 0, 1, 2, ... that some tools write as
            names.
    """
    if all(map(REAL.fullmatch, names)) and list(names) != [str(i) for i in range(len(names))]:
        raise DataError(
            f"Expected names of columns in the first line of {source!r}. Received: numbers. Add "
            "a line of names.",
            code="missing-header",
            operation=source,
        )


def parse_columns(
    source: str, names: Sequence[str], rows: Sequence[Sequence[str]], positions: Sequence[int]
) -> Array:
    """Parse columns of a table as float64 numbers; a column of true and false becomes 1 and 0.

    Raises:
        DataError: cells are not numbers; the text names all such columns, with a row and a kind
            each.
    """
    values = np.empty((len(rows), len(positions)))
    faults = []
    for j, position in enumerate(positions):
        fault = _fill_column(values[:, j], [row[position] for row in rows])
        if fault is not None:
            faults.append((names[position], *fault))
    if len(faults) == 1:
        ((name, row, kind),) = faults
        raise DataError(
            f"{_csv_cell_error_text(source, row, name, kind)} Or exclude the column (--drop).",
            code="not-a-number",
            operation=name,
            received=kind,
        )
    if faults:
        listed = "".join(
            f"\n  {n!r}, row {row + 1}: {kind}" for n, row, kind in faults[:_MAX_LISTED]
        )
        rest = f"\n  and {len(faults) - _MAX_LISTED} more" if len(faults) > _MAX_LISTED else ""
        raise DataError(
            f"{source!r}: {len(faults)} columns have cells other than numbers, true and false. "
            f"Correct them, write classes as numbers, or exclude columns (--drop):{listed}{rest}",
            code="not-a-number",
            operation=source,
            received=len(faults),
        )
    return values


def parse_csv_label(source: str, row: int, column: str, text: str) -> float:
    """Parse one cell of a label as a finite number.

    Raises:
        DataError: the cell is not a number; the text names row and column.
    """
    value = _parse_csv_number(text)
    if value is None:
        raise DataError(
            f"{_csv_cell_error_text(source, row, column, describe_bad_cell(text))} For a label "
            "with "
            "classes use --target classes.",
            code="not-a-number",
            operation=column,
            received=describe_bad_cell(text),
        )
    return value


def _csv_cell_error_text(source: str, row: int, column: str, kind: str) -> str:
    return (
        f"{source!r}, row {row + 1}, column {column!r}: expected a number. Received: {kind}. Mend "
        "the column, or write its classes as numbers."
    )


def _fill_column(column: Array, cells: Sequence[str]) -> tuple[int, str] | None:
    """Write a column's numbers; return row and kind of the first cell that is not a number."""
    if all(cell.strip().lower() in _BOOLEANS for cell in cells):
        column[:] = [_BOOLEANS[cell.strip().lower()] for cell in cells]
        return None
    for row, cell in enumerate(cells):
        value = _parse_csv_number(cell)
        if value is None:
            return row, describe_bad_cell(cell)
        column[row] = value
    return None


def _parse_csv_number(text: str) -> float | None:
    text = text.strip()
    value = float(text) if REAL.fullmatch(text) else math.inf
    return value if math.isfinite(value) else None


def is_almost_csv_number(cell: str) -> bool | None:
    """Return whether a cell is a number in another notation; None for a missing value."""
    cell = cell.strip()
    if not cell or cell.lower() in _MISSING_MARKS or NOT_FINITE.fullmatch(cell):
        return None
    return bool(COMMA_NUMBER.fullmatch(cell) or _UNIT_NUMBER.fullmatch(cell))


def describe_bad_cell(cell: str) -> str:
    """Describe the kind of a cell that is not a number, without its content."""
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
