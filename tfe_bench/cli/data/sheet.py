"""A .csv file as columns of text, and its columns as numbers."""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from tfe_bench import csv_file
from tfe_bench.cli.data.files import INT64, INT64_MAX, INT64_MIN, unreadable_file_error
from tfe_bench.errors import DataError, did_you_mean

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]

_INTEGER = re.compile(r"[+-]?[0-9]+")  # int() also accepts 1_000 and digits of other scripts
_JUDGED_ROWS = 1000  # rows that decide whether a column holds numbers
_LISTED_COLUMNS = 20


@dataclass(frozen=True, eq=False, repr=False)
class CsvSheet:
    """A .csv file as columns of text."""

    file: Path
    names: list[str]
    cells: list[list[str]]  # [column][row]
    lines: array[int]  # [row] -> line of the file, counted from 1
    named: bool  # whether the file has a header line

    @classmethod
    def read_file(cls, file: Path) -> CsvSheet:
        """Read a file and detect its header line.

        Raises:
            DataError: the file is empty, unreadable or not a table.
        """
        try:
            parsed_csv = csv_file.parse_csv(file)
        except (OSError, MemoryError) as error:
            raise unreadable_file_error(file, error) from error
        if not parsed_csv.rows:
            raise DataError(
                f"{str(file)!r} is empty.", code="empty-input", received="an empty file"
            )
        columns = [list(cells) for cells in zip(*parsed_csv.rows, strict=True)]
        lines, names = parsed_csv.lines, [str(j) for j in range(len(columns))]
        named = _has_csv_header(file, columns)
        if named:
            names = [cells.pop(0).strip() or str(j) for j, cells in enumerate(columns)]
            lines.pop(0)
        if not lines:
            raise DataError(
                f"Expected rows below the header line. Received: {str(file)!r} with no rows.",
                code="empty-input",
                received="a header line alone",
            )
        return cls(file, names, columns, lines, named)

    def find_column(self, column: str | int) -> int:
        """Return the position of a column given by name or position.

        Raises:
            DataError: no column, or several columns have this name.
        """
        if isinstance(column, str):
            matches = [j for j, name in enumerate(self.names) if name == column.strip()]
            if len(matches) == 1:
                return matches[0]
            if matches:
                raise DataError(
                    f"{str(self.file)!r} has {len(matches)} columns named {column!r}, at the "
                    f"positions {', '.join(map(str, matches))}. Use the position.",
                    code="duplicate-name",
                    operation=column,
                    received=len(matches),
                )
        position = parse_column_position(column)
        if position is None or not 0 <= position < len(self.names):
            hint = did_you_mean(column, self.names) if isinstance(column, str) else ""
            raise DataError(
                f"{str(self.file)!r} has no column {column!r}.{hint} {self._list_columns()}",
                code="column-not-found",
                received=column,
            )
        return position

    def find_numeric_column(self) -> int:
        """Return the position of the only numeric column.

        Raises:
            DataError: no column, or several columns are numeric.
        """
        if len(self.names) == 1:
            return 0
        numeric = [j for j, cells in enumerate(self.cells) if _holds_numeric_cells(cells)]
        if len(numeric) != 1:
            count = len(numeric) or "no"
            raise DataError(
                f"Expected one numeric column. Received: {count} numeric columns in "
                f"{str(self.file)!r}. Name the column to use. "
                f"{self._list_columns()}",
                code="numeric-column-count",
                received=count,
                expected=1,
            )
        return numeric[0]

    def refuse_text_columns(self) -> None:
        """Reject a file with columns that are not numeric.

        Raises:
            DataError: a column is not numeric.
        """
        if len(self.names) > 1 and not all(_holds_numeric_cells(cells) for cells in self.cells):
            raise DataError(
                f"Expected numeric columns. Received: {str(self.file)!r} with columns that are not "
                "numeric. Name the columns to use. "
                f"{self._list_columns()}",
                code="not-a-number",
                received="columns of texts",
            )

    def parse_numbers(self, position: int) -> Numbers:
        """Return the column as int64 if all cells are integers, else as float64.

        Raises:
            DataError: a cell is not a number, or cannot be represented.
        """
        whole = True
        inexact: int | None = None  # the first row with an integer that float64 would round
        values: list[int | float] = []
        for row, cell in enumerate(map(str.strip, self.cells[position])):
            if _INTEGER.fullmatch(cell):
                value: int | float = (
                    int(cell) if len(cell) <= 40 else _parse_long_integer_cell(cell)
                )
                if not INT64_MIN <= value <= INT64_MAX:
                    self._refuse_csv_cell(row, position, f"is outside {INT64}", "a larger integer")
                if inexact is None and int(float(value)) != value:
                    inexact = row
            elif csv_file.REAL.fullmatch(cell):
                whole = False
                value = float(cell)
                if value in (float("inf"), float("-inf")):
                    self._refuse_csv_cell(
                        row, position, "is outside -1.8e308 .. 1.8e308", "a larger number"
                    )
            else:
                self._refuse_csv_cell(row, position, *_describe_cell_fault(cell))
            values.append(value)
        if whole:
            return np.array(values, np.int64)
        if inexact is not None:
            self._refuse_csv_cell(
                inexact, position, "is mixed with reals", "an integer that float64 cannot represent"
            )
        return np.array(values, np.float64)

    def _refuse_csv_cell(self, row: int, position: int, wrong: str, received: str) -> NoReturn:
        name = self.names[position]
        label = str(position) if name == str(position) else f"{name!r} (position {position})"
        raise DataError(
            f"Line {self.lines[row]} of {str(self.file)!r}, column {label}, {wrong}. "
            f"Received: {received}.",
            code="invalid-cell",
            operation=name,
            received=received,
        )

    def _list_columns(self) -> str:
        shown = [
            f'{j} "{name}" ({"numbers" if _holds_numeric_cells(cells) else "no numbers"})'
            for j, (name, cells) in enumerate(zip(self.names, self.cells, strict=True))
            if j < _LISTED_COLUMNS
        ]
        rest = len(self.names) - len(shown)
        return f"Columns: {', '.join(shown)}{f' and {rest} more' if rest else ''}."


def _has_csv_header(file: Path, columns: list[list[str]]) -> bool:
    """Return True if the first line names the columns.

    The first line is a header if a column has a name there and numbers below, or if the line has no
    number. "$5" or "1 000" is not a name but a malformed number, which must not vanish as a header.
    A first line of text and numbers over undecided columns is rejected: guessing would silently
    drop a row, or sort a heading with the data.

    Raises:
        DataError: the first line may be a header or data.
    """
    first = [cells[0].strip() for cells in columns]
    named = [is_heading_cell(cell) for cell in first]
    if not any(named):
        return False
    if any(n and _holds_numeric_cells(cells, 1) for n, cells in zip(named, columns, strict=True)):
        return True
    if not any(map(_is_numeric_cell, first)):
        return True
    raise DataError(
        f"Expected a header line. Received: {str(file)!r}, whose first line mixes text and numbers "
        "and may be a header or data. Add a line of column names.",
        code="ambiguous-header",
    )


def _is_numeric_cell(cell: str) -> bool:
    return bool(csv_file.REAL.fullmatch(cell) or csv_file.NOT_FINITE.fullmatch(cell))


def is_heading_cell(cell: str) -> bool:
    """Return True if a cell is read as a heading, not as a value."""
    letters = any(map(str.isalpha, cell)) or not any(map(str.isdigit, cell))
    return bool(cell) and letters and not _is_numeric_cell(cell)


def _holds_numeric_cells(cells: Sequence[str], start: int = 0) -> bool:
    """Return True if most nonblank cells are numbers; the other cells are then errors."""
    judged = map(str.strip, itertools.islice(cells, start, start + _JUDGED_ROWS))
    filled = [cell for cell in judged if cell]
    return 2 * sum(map(_is_numeric_cell, filled)) > len(filled)


def _parse_long_integer_cell(cell: str) -> int:
    """Parse an integer with many digits, without leading zeros, as int() limits the digits."""
    digits = cell.lstrip("+-").lstrip("0")
    if len(digits) > 40:
        return INT64_MAX + 1
    return int(digits or "0") * (-1 if cell.startswith("-") else 1)


def _describe_cell_fault(cell: str) -> tuple[str, str]:
    """Return the fault and the kind of a cell, without its content."""
    if not cell:
        return "is not a number", "a blank cell"
    if csv_file.NOT_FINITE.fullmatch(cell):
        return "is not finite", "NaN" if "nan" in cell.lower() else "an infinite value"
    if csv_file.COMMA_NUMBER.fullmatch(cell):
        hint = "write decimals with a point and thousands without marks"
        return "is not a number", f"a number with a comma; {hint}"
    return "is not a number", "text"


def parse_column_position(column: str | int) -> int | None:
    """Return a column's position counted from 0, or None for a name."""
    if isinstance(column, str):
        word = column.strip()
        return int(word) if re.fullmatch(r"[0-9]{1,9}", word) else None
    return int(column)
