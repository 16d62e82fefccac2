"""Results as .csv and .npy files that only their owner may read."""

from __future__ import annotations

import csv
import io
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np

from tfe_bench import atomic
from tfe_bench.cli.data.columns import Cells
from tfe_bench.cli.data.files import check_data_file_suffix
from tfe_bench.cli.data.sheet import is_heading_cell
from tfe_bench.errors import DataError, UsageError


def check_result_path(path: str | os.PathLike[str]) -> Path:
    """Return `path` if a result can be written there; call this before a long computation.

    Raises:
        DataError: the suffix is neither .csv nor .npy, the folder is missing or not
            writable, or the path is not a regular file.
    """
    file = Path(path)
    check_data_file_suffix(file)
    if not file.parent.is_dir():
        raise DataError(
            f"Expected an existing folder for {file.name!r}. Received: {str(file.parent)!r}, which "
            "does not exist.",
            code="file-not-found",
            received=file.parent,
        )
    if file.exists() and not file.is_file():
        raise DataError(
            f"Expected a regular file to write to. Received: {str(file)!r}, which is not one.",
            code="not-a-file",
            received=file,
        )
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise DataError(
            f"The folder {str(file.parent)!r} is not writable.",
            code="file-not-writable",
            received=file.parent,
        )
    return file


def write_result_file(path: str | os.PathLike[str], values: Cells, name: str) -> None:
    """Write a result atomically as .csv or .npy, readable only by its owner (0600).

    Sorted private data is still private.  An existing file is replaced.

    Args:
        path: the output file; its suffix determines the format.
        values: 1-D or 2-D integers or floats; for a .csv also a list of texts. A .csv has a
            header line: `name`, or `name_0`, `name_1`, ... for a matrix. Floats are written with
            enough digits to read back equal, texts unchanged.
        name: the column's name; a blank name or a number is written as `column_<name>`, so that
            it is not read as a value.

    Raises:
        DataError: see `check_result_path`; or the disk is full.
        UsageError: `values` has an unsupported type or more than two axes.
    """
    file = check_result_path(path)
    _refuse_other_value_types(values, file)
    if isinstance(values, list):
        _write_csv_file(file, {name: values})
        return
    if values.ndim not in (1, 2):
        raise UsageError(
            f"Expected a result of one or two axes. Received: shape {values.shape}.",
            code="rank-mismatch",
            received=values.ndim,
            expected="1 or 2",
        )
    if file.suffix.lower() == ".npy":
        atomic.write_atomically(file, lambda stream: np.save(stream, values, allow_pickle=False))
        return
    if values.ndim == 1:
        _write_csv_file(file, {name: values})
    else:
        _write_csv_file(file, {f"{name}_{j}": values[:, j] for j in range(values.shape[1])})


def write_result_table(path: str | os.PathLike[str], table: Mapping[str, Cells]) -> None:
    """Write columns of equal length, such as a sorted key with its payload, like
    `write_result_file`.

    Args:
        path: the output file. A .npy holds the columns of one matrix, of one numeric type.
        table: 1-D integers or floats, or a list of texts, by name.

    Raises:
        DataError: see `check_result_path`.
        UsageError: there are no columns, their lengths differ, a type is unsupported, or the types
            for a .npy differ.
    """
    file = check_result_path(path)
    for values in table.values():
        _refuse_other_value_types(values, file)
    shapes = {np.shape(values) for values in table.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1:
        raise UsageError(
            f"Expected 1-D columns of one length. Received: shapes {shapes}.",
            code="length-mismatch",
            received=shapes,
        )
    if file.suffix.lower() == ".csv":
        _write_csv_file(file, table)
        return
    check_one_column_type(table)
    matrix = np.stack([np.asarray(values) for values in table.values()], axis=1)
    atomic.write_atomically(file, lambda stream: np.save(stream, matrix, allow_pickle=False))


def check_one_column_type(table: Mapping[str, Cells]) -> None:
    """Reject columns that a .npy file cannot hold together.

    Raises:
        UsageError: the columns have several types.
    """
    names = sorted({str(np.asarray(values).dtype) for values in table.values()})
    if len(names) > 1:
        raise UsageError(
            f"Expected one type for a .npy file. Received: {', '.join(names)}. Write a .csv file.",
            code="mixed-types",
            received=", ".join(names),
        )


def _refuse_other_value_types(values: Cells, file: Path) -> None:
    if isinstance(values, list) and all(isinstance(cell, str) for cell in values):
        if file.suffix.lower() == ".npy":
            raise UsageError(
                "Expected numbers for a .npy file. Received: texts. Write a .csv file.",
                code="unsupported-type",
                received="texts",
            )
        return
    kind = getattr(values, "dtype", None)
    if kind is None or kind.kind not in "iuf" or kind.itemsize > 8:
        raise UsageError(
            "Expected arrays of integers or floats of at most 64 bits. "
            f"Received: {kind or type(values).__name__}.",
            code="unsupported-type",
            received=kind or type(values).__name__,
        )


def _write_csv_file(file: Path, table: Mapping[str, Cells]) -> None:
    names = [_csv_column_heading(name) for name in table]
    texts = itertools.chain(names, *(cells for cells in table.values() if isinstance(cells, list)))
    # Separators of other dialects, or line ends for some readers: these require quotes.
    foreign = any(re.search("[;\t\r]", text) for text in texts)

    def write_stream(stream: IO[bytes]) -> None:
        text = io.TextIOWrapper(stream, "utf-8", newline="")
        plain = csv.writer(text, lineterminator="\n")
        quoted = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
        (quoted if foreign else plain).writerow(names)
        texts_too = any(isinstance(cells, list) for cells in table.values())
        (quoted if foreign and texts_too else plain).writerows(
            _iterate_csv_rows(list(table.values()))
        )
        text.flush()
        text.detach()

    atomic.write_atomically(file, write_stream)


def _iterate_csv_rows(columns: list[Cells]) -> Iterator[tuple[int | float | str, ...]]:
    """Yield rows of Python numbers by blocks; csv writes the shortest exact repr of a float."""
    block = 65536
    for start in range(0, len(columns[0]) if columns else 0, block):
        parts = (c[start : start + block] for c in columns)
        yield from zip(*(p if isinstance(p, list) else p.tolist() for p in parts), strict=True)


def _csv_column_heading(name: str) -> str:
    return name if is_heading_cell(name.strip()) else f"column_{name.strip()}"
