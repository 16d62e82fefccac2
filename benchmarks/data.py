"""Users' own numbers: reading columns of .csv and .npy files, writing results, made-up keys.

The numbers are private.  No error and no repr of this module shows a cell: errors give
the line and the column.  Results are files that only their owner may read.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import os
import re
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from tfe_bench.errors import DataError, RangeError, UsageError, did_you_mean, place

SUFFIXES = (".csv", ".npy")
KINDS = ("int64", "few", "float", "sorted", "reversed")

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]
# A column as its file has it: the text of a .csv's cells, the numbers of a .npy.
Cells = list[str] | npt.NDArray[Any]

INT64 = "-2^63 .. 2^63-1"
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_INTEGER = re.compile(r"[+-]?[0-9]+")  # int() would also take 1_000 and other scripts' digits
_REAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_COMMA = re.compile(r"[+-]?[0-9.]*,[0-9]+")
_DELIMITERS = "\t;,"  # a tab or semicolon leaves the comma free to be a decimal comma
_SNIFFED_ROWS = 50
_JUDGED_ROWS = 1000  # rows that decide whether a column holds numbers
_LISTED_COLUMNS = 20


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Column:
    """Numbers to compute on, and where they came from.

    Args:
        values: int64 or float64, finite; one column (1-D), or a matrix (2-D, from .npy)
            whose rows are separate, so that a sort runs along the last axis.
        name: the column's name; its position counted from 0 where the file gives none.
        source: the path that was read.
        cells: the same as the file has it.
    """

    values: Numbers
    name: str
    source: str
    cells: Cells

    def __repr__(self) -> str:
        shape, dtype = self.values.shape, self.values.dtype
        return f"Column(name={self.name!r}, source={self.source!r}, shape={shape}, dtype={dtype})"


def load_column(path: str | os.PathLike[str], column: str | int | None = None) -> Column:
    """Returns one column of a .csv or .npy file, in the file's order.

    A .csv is UTF-8, separated by commas, semicolons or tabs, with or without a header line.
    A column that holds only integers becomes int64 and is exact; one decimal point or
    exponent makes all of it float64.

    Args:
        path: the file.
        column: a name, or a position counted from 0 (also as text, where no column has that
            name). None takes the only numeric column of a .csv, the only axis of a 1-D
            array, or the whole of a 2-D array.

    Raises:
        DataError: the file cannot be read, or a cell of the column is no finite number
            (integers: from -2^63 to 2^63 - 1). The text gives line and column, of a .npy the
            index.
    """
    return load_with(path, column, ())[0]


def load_with(
    path: str | os.PathLike[str],
    column: str | int | None,
    others: Sequence[str | int],
    numbers: bool = False,
) -> tuple[Column, dict[str, Cells]]:
    """Returns one column, as `load_column`, and others of the file as they stand there, by name.

    Args:
        others: names or positions. They may hold anything, text too: nothing is computed on them.
        numbers: `cells` and the others are numbers, as a .npy file needs them.

    Raises:
        DataError: as `load_column`; an unknown column, or two of one name.
        UsageError: a column that is asked for twice; others of a 2-D array without a column.
    """
    file = _readable(path)
    if file.suffix.lower() == ".npy":
        return _npy_columns(file, column, others)
    sheet = _Sheet.read(file)
    position = sheet.only_numeric() if column is None else sheet.find(column)
    places = [sheet.find(other) for other in others]
    names = [sheet.names[p] for p in (position, *places)]
    _refuse_repeats([position, *places], names)
    _refuse_equal_names(file, names)
    rest = list(zip(names[1:], places, strict=True))
    own = sheet.numbers(position)
    if numbers:
        return Column(own, names[0], str(file), own), {n: sheet.numbers(p) for n, p in rest}
    cells = sheet.cells
    return Column(own, names[0], str(file), cells[position]), {n: cells[p] for n, p in rest}


@contextlib.contextmanager
def naming_lines(path: str | os.PathLike[str], columns: Sequence[str]) -> Iterator[None]:
    """Lets a RangeError about the numbers of a .csv name line and column, as it names any other.

    Args:
        path: where the numbers [rows] or [rows, columns] came from.
        columns: their names.

    Raises:
        RangeError: the same as in the block, but for the place.
    """
    try:
        yield
    except RangeError as error:
        file = Path(path)
        if error.position is None or file.suffix.lower() == ".npy":
            raise
        row, *other = error.position
        line = _Sheet.read(file).lines[row]
        name = columns[other[0] if other else 0]
        raise error.moved(f"on line {line} of {str(file)!r}, column {name!r}") from None


def load_table(
    path: str | os.PathLike[str], columns: Sequence[str | int] | None = None
) -> dict[str, Numbers]:
    """Returns columns of equal length by name: a sort's key and what travels with it.

    Args:
        path: a .csv or .npy file (the latter of one or two axes; names are "0", "1", ...).
        columns: names or positions, as in `load_column`; None takes every column.

    Returns:
        name -> 1-D int64 or float64, in the order asked for.

    Raises:
        DataError: as in `load_column`; also with None where a column is not numeric.
        UsageError: `columns` is empty or names a column twice.
    """
    file = _readable(path)
    if columns is not None and (isinstance(columns, str) or not columns):
        raise UsageError(f"Columns are a list of one or more names. Received: {columns!r}.")
    if file.suffix.lower() == ".npy":
        numbers, _ = _read_npy(file)
        matrix = numbers[:, np.newaxis] if numbers.ndim == 1 else numbers
        wanted = range(matrix.shape[1]) if columns is None else columns
        places = [_npy_position(file, matrix.shape[1], c) for c in wanted]
        _refuse_repeats(places, [str(p) for p in places])
        return {str(p): cast(Numbers, _column_of(matrix, p)) for p in places}
    sheet = _Sheet.read(file)
    if columns is None:
        places = list(range(len(sheet.names)))
        sheet.refuse_text_columns()
    else:
        places = [sheet.find(c) for c in columns]
    names = [sheet.names[p] for p in places]
    _refuse_repeats(places, names)
    _refuse_equal_names(file, names)
    return {sheet.names[p]: sheet.numbers(p) for p in places}


def check_result_path(path: str | os.PathLike[str]) -> Path:
    """Returns `path` if a result could be written there: to be asked before a long computation.

    Raises:
        DataError: the suffix is neither .csv nor .npy, the folder is missing or not
            writable, or the path is not a regular file.
    """
    file = Path(path)
    _check_suffix(file)
    if not file.parent.is_dir():
        raise DataError(f"There is no folder {str(file.parent)!r} to write {file.name!r} into.")
    if file.exists() and not file.is_file():
        raise DataError(f"A result is written to a file. Received: {str(file)!r}, which is none.")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise DataError(f"The folder {str(file.parent)!r} is not writable.")
    return file


def write_result(path: str | os.PathLike[str], values: Cells, name: str) -> None:
    """Writes a result as .csv or .npy, whole or not at all, readable by its owner only (0600).

    Sorted private data is still private.  An existing file is replaced.

    Args:
        path: where to; the suffix chooses the format.
        values: integers or floats, 1-D, or 2-D; for a .csv also a list of texts. A .csv has a
            header line: `name`, or `name_0`, `name_1`, ... for a matrix. Floats are written so
            that they read back equal, texts as they are.
        name: the column's name; one that is blank or looks like a number is written
            as `column_<name>`, so that it cannot be taken for a value.

    Raises:
        DataError: see `check_result_path`; or the disk is full.
        UsageError: `values` has other types or more axes.
    """
    file = check_result_path(path)
    _refuse_other_types(values, file)
    if isinstance(values, list):
        _write_csv(file, {name: values})
        return
    if values.ndim not in (1, 2):
        raise UsageError(f"A result has one or two axes. Received: shape {values.shape}.")
    if file.suffix.lower() == ".npy":
        write_atomically(file, lambda stream: np.save(stream, values, allow_pickle=False))
        return
    if values.ndim == 1:
        _write_csv(file, {name: values})
    else:
        _write_csv(file, {f"{name}_{j}": values[:, j] for j in range(values.shape[1])})


def write_table(path: str | os.PathLike[str], table: Mapping[str, Cells]) -> None:
    """Writes columns of equal length, such as a sorted key with its payload, like `write_result`.

    Args:
        path: where to. A .npy holds them side by side and needs numbers of one type.
        table: name -> 1-D integers or floats, or a list of texts.

    Raises:
        DataError: see `check_result_path`.
        UsageError: no columns, unequal lengths, other types, mixed types for .npy.
    """
    file = check_result_path(path)
    for values in table.values():
        _refuse_other_types(values, file)
    shapes = {np.shape(values) for values in table.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1:
        raise UsageError(f"A table has 1-D columns of one length. Received: shapes {shapes}.")
    if file.suffix.lower() == ".csv":
        _write_csv(file, table)
        return
    check_one_type(table)
    matrix = np.stack([np.asarray(values) for values in table.values()], axis=1)
    write_atomically(file, lambda stream: np.save(stream, matrix, allow_pickle=False))


def check_one_type(table: Mapping[str, Cells]) -> None:
    """Refuses columns that no .npy file holds together.

    Raises:
        UsageError: they have several types.
    """
    names = sorted({str(np.asarray(values).dtype) for values in table.values()})
    if len(names) > 1:
        raise UsageError(
            f"A .npy file has one type; write a .csv instead. Received: {', '.join(names)}."
        )


def generate(n: int, seed: int, kind: str = "int64") -> Numbers:
    """Returns `n` made-up keys, shape (n,); the same seed gives the same keys.

    Args:
        n: how many, 0 or more.
        seed: 0 or more.
        kind: "int64" (uniform over the whole int64 range), "few" (integers 0 to 9, so many
            are equal), "float" (uniform reals in [-1000, 1000), float64), "sorted" and
            "reversed" (the keys of "int64" in rising and falling order).

    Raises:
        UsageError: another kind, or a negative `n` or `seed`.
    """
    if kind not in KINDS:
        known = ", ".join(KINDS)
        raise UsageError(f"Kinds of keys: {known}. Received: {kind!r}.{did_you_mean(kind, KINDS)}")
    if n < 0 or seed < 0:
        raise UsageError(f"n and seed are 0 or more. Received: n={n}, seed={seed}.")
    draw = np.random.default_rng(seed)
    if kind == "few":
        return draw.integers(0, 10, n, np.int64)
    if kind == "float":
        return draw.uniform(-1000, 1000, n)
    keys = draw.integers(_INT64_MIN, _INT64_MAX, n, np.int64, endpoint=True)
    if kind == "int64":
        return keys
    keys.sort()
    return keys if kind == "sorted" else np.ascontiguousarray(keys[::-1])


def ordered(values: Numbers) -> npt.NDArray[np.int64]:
    """Returns int64 in the order of the values: equal where they are equal, less where less.

    A float64 is read as an integer of 64 bits: from 0 up that is their order already, below 0 it is
    turned around. Nothing is rounded.
    """
    if values.dtype.kind != "f":
        return values.astype(np.int64)
    words = (values + 0.0).view(np.int64)  # -0.0 becomes 0.0: they are equal
    return words ^ ((words >> 63) & np.int64(_INT64_MAX))


# --- finding the file -------------------------------------------------------------------------


def _check_suffix(file: Path) -> None:
    if file.suffix.lower() not in SUFFIXES:
        given = f"suffix {file.suffix!r}" if file.suffix else "no suffix"
        raise DataError(f"Data files end in .csv or .npy. Received: {str(file)!r} with {given}.")


def _readable(path: str | os.PathLike[str]) -> Path:
    file = Path(path)
    try:
        if file.is_dir():
            raise DataError(f"Data is read from a file. Received: {str(file)!r}, a folder.")
        if not file.exists():
            raise DataError(f"There is no file {str(file)!r}.{_nearby(file)}")
        _check_suffix(file)
        if not file.is_file():
            raise DataError(f"Data is read from a file. Received: {str(file)!r}, which is none.")
    except (OSError, ValueError) as error:  # a name too long, a null byte, a closed folder
        raise _unreadable(file, error) from error
    return file


def _nearby(file: Path) -> str:
    if not file.parent.is_dir():
        return f" Its folder {str(file.parent)!r} is missing too."
    try:
        names = [p.name for p in file.parent.iterdir() if p.suffix.lower() in SUFFIXES]
    except OSError:
        return ""
    return did_you_mean(file.name, names)


def _unreadable(file: Path, error: Exception) -> DataError:
    if isinstance(error, PermissionError):
        return DataError(f"No permission to read {str(file)!r}. Ask its owner, or check its mode.")
    reason = getattr(error, "strerror", None) or type(error).__name__
    return DataError(f"Cannot read {str(file)!r}: {reason}.")


# --- .csv -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class _Sheet:
    """A .csv file as text, by column."""

    file: Path
    names: list[str]
    cells: list[list[str]]  # [column][row]
    lines: array[int]  # [row] -> line of the file, counted from 1

    @classmethod
    def read(cls, file: Path) -> _Sheet:
        try:
            with file.open(encoding="utf-8-sig", newline="") as stream:
                return cls._parse(file, stream)
        except UnicodeDecodeError as error:
            raise DataError(f"{str(file)!r} is not UTF-8 text. Save it as CSV UTF-8.") from error
        except (OSError, MemoryError) as error:
            raise _unreadable(file, error) from error

    @classmethod
    def _parse(cls, file: Path, stream: IO[str]) -> _Sheet:
        delimiter = _sniff(stream)
        stream.seek(0)
        reader = csv.reader(stream, delimiter=delimiter, strict=True)
        columns: list[list[str]] = []
        lines = array("Q")
        blank = 0  # the first blank line since the last row
        try:
            for row in reader:
                if not row or (len(row) == 1 and row[0].isspace()):  # a quoted "" is a cell
                    blank = blank or reader.line_num
                    continue
                if blank:
                    raise DataError(f"Line {blank} of {str(file)!r} is blank: a value is missing.")
                columns = columns or [[] for _ in row]
                if len(row) != len(columns):
                    raise DataError(
                        f"Line {reader.line_num} of {str(file)!r} has {len(row)} cells where line "
                        f"{lines[0]} has {len(columns)} (separated by {delimiter!r})."
                    )
                for cells, cell in zip(columns, row, strict=True):
                    cells.append(cell)
                lines.append(reader.line_num)
        except csv.Error as error:  # its text names the rule that was broken, never a cell
            raise DataError(f"Line {reader.line_num} of {str(file)!r}: {error}.") from error
        if not columns:
            raise DataError(f"{str(file)!r} is empty.")
        names = [str(j) for j in range(len(columns))]
        if _has_header(file, columns):
            names = [cells.pop(0).strip() or str(j) for j, cells in enumerate(columns)]
            lines.pop(0)
        if not lines:
            raise DataError(f"{str(file)!r} has a header line and no rows under it.")
        return cls(file, names, columns, lines)

    def find(self, column: str | int) -> int:
        """The position of a column given by name or position."""
        if isinstance(column, str):
            matches = [j for j, name in enumerate(self.names) if name == column.strip()]
            if len(matches) == 1:
                return matches[0]
            if matches:
                raise DataError(
                    f"{str(self.file)!r} has {len(matches)} columns named {column!r}, at the "
                    f"positions {', '.join(map(str, matches))}. Give the position."
                )
        position = _as_position(column)
        if position is None or not 0 <= position < len(self.names):
            hint = did_you_mean(column, self.names) if isinstance(column, str) else ""
            raise DataError(
                f"{str(self.file)!r} has no column {column!r}.{hint} {self._list_columns()}"
            )
        return position

    def only_numeric(self) -> int:
        if len(self.names) == 1:
            return 0
        numeric = [j for j, cells in enumerate(self.cells) if _holds_numbers(cells)]
        if len(numeric) != 1:
            count = len(numeric) or "no"
            raise DataError(
                f"{str(self.file)!r} has {count} numeric columns; name the one to use. "
                f"{self._list_columns()}"
            )
        return numeric[0]

    def refuse_text_columns(self) -> None:
        if len(self.names) > 1 and not all(_holds_numbers(cells) for cells in self.cells):
            raise DataError(
                f"{str(self.file)!r} has columns that are not numeric; name the ones to use. "
                f"{self._list_columns()}"
            )

    def numbers(self, position: int) -> Numbers:
        """The column as int64 if all its cells are integers, else float64."""
        whole = True
        inexact: int | None = None  # the first row with an integer that float64 would round
        values: list[int | float] = []
        for row, cell in enumerate(map(str.strip, self.cells[position])):
            if _INTEGER.fullmatch(cell):
                value: int | float = int(cell) if len(cell) <= 40 else _int_of_long(cell)
                if not _INT64_MIN <= value <= _INT64_MAX:
                    self._refuse(row, position, f"is outside {INT64}", "a larger integer")
                if inexact is None and int(float(value)) != value:
                    inexact = row
            elif _REAL.fullmatch(cell):
                whole = False
                value = float(cell)
                if value in (float("inf"), float("-inf")):
                    self._refuse(row, position, "is outside -1.8e308 .. 1.8e308", "a larger number")
            else:
                self._refuse(row, position, *_fault(cell))
            values.append(value)
        if whole:
            return np.array(values, np.int64)
        if inexact is not None:
            self._refuse(
                inexact, position, "stands among reals", "an integer that float64 does not hold"
            )
        return np.array(values, np.float64)

    def _refuse(self, row: int, position: int, wrong: str, received: str) -> None:
        name = self.names[position]
        label = str(position) if name == str(position) else f"{name!r} (position {position})"
        raise DataError(
            f"Line {self.lines[row]} of {str(self.file)!r}, column {label}, {wrong}. "
            f"Received: {received}."
        )

    def _list_columns(self) -> str:
        shown = [
            f'{j} "{name}" ({"numbers" if _holds_numbers(cells) else "no numbers"})'
            for j, (name, cells) in enumerate(zip(self.names, self.cells, strict=True))
            if j < _LISTED_COLUMNS
        ]
        rest = len(self.names) - len(shown)
        return f"Columns: {', '.join(shown)}{f' and {rest} more' if rest else ''}."


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


def _has_header(file: Path, columns: list[list[str]]) -> bool:
    """Whether the first line names the columns.

    It does if some column has a name there and numbers below, or if it holds no number.
    "$5" or "1 000" is no name but a number to be refused: it must not vanish as a header.
    A line of text and numbers over columns that settle nothing is refused: guessing
    would silently drop a row, or sort a heading along.
    """
    first = [cells[0].strip() for cells in columns]
    named = [_is_name(cell) for cell in first]
    if not any(named):
        return False
    if any(n and _holds_numbers(cells, 1) for n, cells in zip(named, columns, strict=True)):
        return True
    if not any(map(_is_numeric, first)):
        return True
    raise DataError(
        f"The first line of {str(file)!r} mixes text and numbers: it may be a header or data. "
        "Add a header line of names."
    )


def _is_numeric(cell: str) -> bool:
    return bool(_REAL.fullmatch(cell) or _NOT_FINITE.fullmatch(cell))


def _is_name(cell: str) -> bool:
    letters = any(map(str.isalpha, cell)) or not any(map(str.isdigit, cell))
    return bool(cell) and letters and not _is_numeric(cell)


def _holds_numbers(cells: Sequence[str], start: int = 0) -> bool:
    """Whether most cells that are not blank are numbers (the rest are then errors)."""
    judged = map(str.strip, itertools.islice(cells, start, start + _JUDGED_ROWS))
    filled = [cell for cell in judged if cell]
    return 2 * sum(map(_is_numeric, filled)) > len(filled)


def _int_of_long(cell: str) -> int:
    """The value of many digits: leading zeros count nothing, and int() refuses thousands."""
    digits = cell.lstrip("+-").lstrip("0")
    if len(digits) > 40:
        return _INT64_MAX + 1
    return int(digits or "0") * (-1 if cell.startswith("-") else 1)


def _fault(cell: str) -> tuple[str, str]:
    """(what is wrong, what kind of cell this is), without what it says."""
    if not cell:
        return "is no number", "a blank cell"
    if _NOT_FINITE.fullmatch(cell):
        return "is not finite", "NaN" if "nan" in cell.lower() else "an infinite value"
    if _COMMA.fullmatch(cell):
        hint = "write decimals with a point and thousands without marks"
        return "is no number", f"a number with a comma; {hint}"
    return "is no number", "text"


def _as_position(column: str | int) -> int | None:
    if isinstance(column, str):
        word = column.strip()
        return int(word) if re.fullmatch(r"[0-9]{1,9}", word) else None
    return int(column)


def _refuse_repeats(places: Sequence[int], names: Sequence[str]) -> None:
    place, count = Counter(places).most_common(1)[0]
    if count > 1:
        name = names[list(places).index(place)]
        raise UsageError(f"Each column is taken once. Received: {name!r} {count} times.")


def _refuse_equal_names(file: Path, names: Sequence[str]) -> None:
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise DataError(f"{str(file)!r} has {count} columns named {name!r}; rename them.")


# --- .npy -------------------------------------------------------------------------------------


def _npy_columns(
    file: Path, column: str | int | None, others: Sequence[str | int]
) -> tuple[Column, dict[str, Cells]]:
    numbers, cells = _read_npy(file)
    if numbers.ndim == 1:
        if column is not None:
            _npy_position(file, 1, column)
        if others:
            raise DataError(f"{str(file)!r} has one axis: there are no other columns in it.")
        return Column(numbers, file.stem, str(file), cells), {}
    if column is None:
        if others:
            raise UsageError(
                f"{str(file)!r} has two axes: other columns go with the one to sort by. "
                "Received: others alone. Name that one too (--column)."
            )
        return Column(numbers, file.stem, str(file), cells), {}
    places = [_npy_position(file, numbers.shape[1], c) for c in (column, *others)]
    _refuse_repeats(places, [str(p) for p in places])
    first, *rest = places
    values = cast(Numbers, _column_of(numbers, first))
    own = Column(values, str(first), str(file), _column_of(cells, first))
    return own, {str(p): _column_of(cells, p) for p in rest}


def _column_of(matrix: npt.NDArray[Any], position: int) -> npt.NDArray[Any]:
    return np.ascontiguousarray(matrix[:, position])


def _npy_position(file: Path, width: int, column: str | int) -> int:
    position = _as_position(column)
    if position is None or not 0 <= position < width:
        known = f"0 to {width - 1}" if width > 1 else "0"
        raise DataError(
            f"{str(file)!r} has no column {column!r}: a .npy file's columns are {known}."
        )
    return position


def _read_npy(file: Path) -> tuple[Numbers, npt.NDArray[Any]]:
    """The array as int64 or float64, with one or two axes, finite, not empty; and as it is."""
    try:
        with file.open("rb") as stream:
            _check_npy_size(file, stream)
            values = np.lib.format.read_array(stream, allow_pickle=False)
    except DataError:
        raise
    except (OSError, MemoryError) as error:
        raise _unreadable(file, error) from error
    except Exception as error:  # NumPy's header parser raises many kinds on random bytes
        raise DataError(f"{str(file)!r} is not a .npy file, or a damaged one.") from error
    if values.ndim not in (1, 2):
        raise DataError(f"An array has one or two axes. Received: {str(file)!r}: {values.shape}.")
    if values.size == 0:
        raise DataError(f"{str(file)!r} is empty: its array has shape {values.shape}.")
    if values.dtype.kind in "biu":
        if values.dtype == np.uint64 and np.any(bad := values > np.uint64(_INT64_MAX)):
            raise DataError(f"{str(file)!r}: an integer is outside {INT64}, {_where(bad)}.")
        whole = np.ascontiguousarray(values, np.int64)
        return whole, whole if values.dtype.kind == "b" else values
    with np.errstate(over="ignore"):
        reals = np.ascontiguousarray(values, np.float64)
    if np.any(bad := ~np.isfinite(reals)):
        kind = "NaN" if np.isnan(reals.flat[int(np.argmax(bad))]) else "infinite"
        raise DataError(f"{str(file)!r}: a value is {kind}, {_where(bad)}.")
    return reals, reals if values.dtype.itemsize > 8 else values


def _check_npy_size(file: Path, stream: IO[bytes]) -> None:
    """Refuses a header that is wrong about the type or size, before memory is taken for it."""
    if os.fstat(stream.fileno()).st_size == 0:
        raise DataError(f"{str(file)!r} is empty.")
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
    else:  # 3.0 is for structured types only
        raise DataError(f"{str(file)!r} is in .npy format {version}; 1.0 and 2.0 are read.")
    if dtype.kind not in "biuf":
        raise DataError(
            f"An array holds integers or floats. Received: {str(file)!r}, which holds {dtype}."
        )
    count = 1
    for extent in shape:  # Python integers: they cannot overflow
        count *= int(extent)
    present = os.fstat(stream.fileno()).st_size - stream.tell()
    if count * dtype.itemsize != present:
        raise DataError(
            f"{str(file)!r} is damaged: its header says {count * dtype.itemsize} bytes of data "
            f"and it holds {present}."
        )
    stream.seek(0)


def _where(bad: npt.NDArray[np.bool_]) -> str:
    """The first place of an array that is bad."""
    return place(tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape)))


# --- writing ----------------------------------------------------------------------------------


def _refuse_other_types(values: Cells, file: Path) -> None:
    if isinstance(values, list) and all(isinstance(cell, str) for cell in values):
        if file.suffix.lower() == ".npy":
            raise UsageError("A .npy file holds numbers; write a .csv instead. Received: texts.")
        return
    kind = getattr(values, "dtype", None)
    if kind is None or kind.kind not in "iuf" or kind.itemsize > 8:
        raise UsageError(
            "Results are arrays of integers or floats of at most 64 bits. "
            f"Received: {kind or type(values).__name__}."
        )


def _write_csv(file: Path, table: Mapping[str, Cells]) -> None:
    names = [_heading(name) for name in table]
    texts = itertools.chain(names, *(cells for cells in table.values() if isinstance(cells, list)))
    # Of another dialect, or the end of a line for some: it would mislead a reader unless quoted.
    foreign = any(re.search("[;\t\r]", text) for text in texts)

    def write(stream: IO[bytes]) -> None:
        text = io.TextIOWrapper(stream, "utf-8", newline="")
        plain = csv.writer(text, lineterminator="\n")
        quoted = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
        (quoted if foreign else plain).writerow(names)
        texts_too = any(isinstance(cells, list) for cells in table.values())
        (quoted if foreign and texts_too else plain).writerows(_rows(list(table.values())))
        text.flush()
        text.detach()

    write_atomically(file, write)


def _rows(columns: list[Cells]) -> Iterator[tuple[int | float | str, ...]]:
    """Python numbers, a block at a time; csv writes a float by its shortest exact repr."""
    block = 65536
    for start in range(0, len(columns[0]) if columns else 0, block):
        parts = (c[start : start + block] for c in columns)
        yield from zip(*(p if isinstance(p, list) else p.tolist() for p in parts), strict=True)


def _heading(name: str) -> str:
    return name if _is_name(name.strip()) else f"column_{name.strip()}"


def write_atomically(file: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Puts a file in place once it is whole, with mode 0600; never one that is half-written.

    Raises:
        DataError: it cannot be written.
    """
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(".tmp", f".{file.name}.", file.parent)  # mode 0600
        with os.fdopen(handle, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except BaseException as error:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if isinstance(error, OSError):
            reason = error.strerror or type(error).__name__
            raise DataError(f"Cannot write {str(file)!r}: {reason}.") from error
        raise
