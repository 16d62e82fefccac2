"""Exact columns of numbers from a .csv or .npy file, and other columns unconverted."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tfe_bench.cli.data import arrays
from tfe_bench.cli.data.files import find_readable_data_file
from tfe_bench.cli.data.sheet import CsvSheet, Numbers
from tfe_bench.errors import DataError, RangeError, UsageError

Cells = list[str] | npt.NDArray[Any]


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Column:
    """Numbers to compute on, and their origin.

    Args:
        values: int64 or float64, finite; one column (1-D), or a matrix (2-D, from .npy)
            whose rows are separate, so that a sort runs along the last axis.
        name: the column's name, or its position counted from 0 if the file has no names.
        source: the path that was read.
        cells: the unconverted cells of the file.
        named: whether a .csv file has a header line.
    """

    values: Numbers
    name: str
    source: str
    cells: Cells
    named: bool = True

    def __repr__(self) -> str:
        shape, dtype = self.values.shape, self.values.dtype
        return f"Column(name={self.name!r}, source={self.source!r}, shape={shape}, dtype={dtype})"


def load_data_column(path: str | os.PathLike[str], column: str | int | None = None) -> Column:
    """Return one column of a .csv or .npy file, in the file's order.

    A .csv is UTF-8, separated by commas, semicolons or tabs, with or without a header line.
    A column of integers only becomes int64 and is exact; one decimal point or exponent makes
    the whole column float64.

    Args:
        path: the file.
        column: a name, or a position counted from 0 (also as text, if no column has that
            name). None selects the only numeric column of a .csv, the only axis of a 1-D
            array, or a whole 2-D array.

    Raises:
        DataError: the file cannot be read, or a cell of the column is not a finite number
            (integers: from -2^63 to 2^63 - 1). The text states line and column, for a .npy the
            index.
    """
    return load_column_with_others(path, column, ())[0]


def load_column_with_others(
    path: str | os.PathLike[str],
    column: str | int | None,
    others: Sequence[str | int],
    numbers: bool = False,
) -> tuple[Column, dict[str, Cells]]:
    """Return one column, like `load_data_column`, and other columns unconverted, by name.

    Args:
        path: the file.
        column: a name or position, as in `load_data_column`.
        others: names or positions of columns of any content, such as texts.
        numbers: whether `cells` and the others must be numbers, for a .npy file.

    Raises:
        DataError: as in `load_data_column`; a column is unknown, or two columns have one name.
        UsageError: a column is selected twice, or others of a 2-D array without a column.
    """
    file = find_readable_data_file(path)
    if file.suffix.lower() == ".npy":
        return _load_array_column(file, column, others)
    sheet = CsvSheet.read_file(file)
    position = sheet.find_numeric_column() if column is None else sheet.find_column(column)
    places = [sheet.find_column(other) for other in others]
    names = [sheet.names[p] for p in (position, *places)]
    _refuse_repeated_columns([position, *places], names)
    _refuse_equal_column_names(file, names)
    rest = list(zip(names[1:], places, strict=True))
    column_numbers = sheet.parse_numbers(position)
    if numbers:
        whole = Column(column_numbers, names[0], str(file), column_numbers, sheet.named)
        return whole, {n: sheet.parse_numbers(p) for n, p in rest}
    cells = sheet.cells
    loaded_column = Column(column_numbers, names[0], str(file), cells[position], sheet.named)
    return loaded_column, {n: cells[p] for n, p in rest}


@contextlib.contextmanager
def name_csv_positions(path: str | os.PathLike[str], columns: Sequence[str]) -> Iterator[None]:
    """Add line and column of a .csv file to a RangeError about its numbers.

    Args:
        path: the file of the numbers [rows] or [rows, columns].
        columns: the names of the columns.

    Raises:
        RangeError: the error of the block, with the position in the file.
    """
    try:
        yield
    except RangeError as error:
        file = Path(path)
        if error.position is None or file.suffix.lower() == ".npy":
            raise
        row, *other = error.position
        line = CsvSheet.read_file(file).lines[row]
        name = columns[other[0] if other else 0]
        raise error.with_place(f"on line {line} of {str(file)!r}, column {name!r}") from None


def load_data_table(
    path: str | os.PathLike[str], columns: Sequence[str | int] | None = None
) -> dict[str, Numbers]:
    """Return columns of equal length by name: a sort key and its payload.

    Args:
        path: a .csv file, or a .npy file of one or two axes with the names "0", "1", ...
        columns: names or positions, as in `load_data_column`; None selects all columns.

    Returns:
        1-D int64 or float64 arrays by name, in the order of `columns`.

    Raises:
        DataError: as in `load_data_column`; or `columns` is None and a column is not numeric.
        UsageError: `columns` is empty or selects a column twice.
    """
    file = find_readable_data_file(path)
    if columns is not None and (isinstance(columns, str) or not columns):
        raise UsageError(
            f"Expected a list of one or more columns. Received: {columns!r}.",
            code="empty-input",
            operation="columns",
        )
    if file.suffix.lower() == ".npy":
        numbers, _ = arrays.read_data_array(file)
        matrix = numbers[:, np.newaxis] if numbers.ndim == 1 else numbers
        selected = range(matrix.shape[1]) if columns is None else columns
        places = [arrays.find_column_position(file, matrix.shape[1], c) for c in selected]
        _refuse_repeated_columns(places, [str(p) for p in places])
        return {str(p): cast(Numbers, arrays.select_column(matrix, p)) for p in places}
    sheet = CsvSheet.read_file(file)
    if columns is None:
        places = list(range(len(sheet.names)))
        sheet.refuse_text_columns()
    else:
        places = [sheet.find_column(c) for c in columns]
    names = [sheet.names[p] for p in places]
    _refuse_repeated_columns(places, names)
    _refuse_equal_column_names(file, names)
    return {sheet.names[p]: sheet.parse_numbers(p) for p in places}


def _refuse_repeated_columns(places: Sequence[int], names: Sequence[str]) -> None:
    place, count = Counter(places).most_common(1)[0]
    if count > 1:
        name = names[list(places).index(place)]
        raise UsageError(
            f"Expected each column once. Received: {name!r} {count} times.",
            code="duplicate-column",
            operation=name,
            received=count,
        )


def _refuse_equal_column_names(file: Path, names: Sequence[str]) -> None:
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise DataError(
            f"Expected different column names in {str(file)!r}. Received: {name!r} {count} times. "
            "Rename the columns.",
            code="duplicate-name",
            operation=name,
            received=count,
        )


def _load_array_column(
    file: Path, column: str | int | None, others: Sequence[str | int]
) -> tuple[Column, dict[str, Cells]]:
    numbers, cells = arrays.read_data_array(file)
    if numbers.ndim == 1:
        if column is not None:
            arrays.find_column_position(file, 1, column)
        if others:
            raise DataError(
                f"Expected two axes for other columns. Received: one axis in {str(file)!r}.",
                code="column-not-found",
                received="an array of one axis",
            )
        return Column(numbers, file.stem, str(file), cells), {}
    if column is None:
        if others:
            raise UsageError(
                f"Expected a key column of {str(file)!r} in --column, as the array has two axes. "
                "Received: other columns only. Add --column.",
                code="missing-argument",
                operation="--column",
            )
        return Column(numbers, file.stem, str(file), cells), {}
    places = [arrays.find_column_position(file, numbers.shape[1], c) for c in (column, *others)]
    _refuse_repeated_columns(places, [str(p) for p in places])
    first, *rest = places
    values = cast(Numbers, arrays.select_column(numbers, first))
    loaded_column = Column(values, str(first), str(file), arrays.select_column(cells, first))
    return loaded_column, {str(p): arrays.select_column(cells, p) for p in rest}
