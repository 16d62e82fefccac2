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
from tfe_bench.cli.data.files import check_suffix
from tfe_bench.cli.data.sheet import is_name
from tfe_bench.errors import DataError, UsageError


def check_result_path(path: str | os.PathLike[str]) -> Path:
    """Return `path` if a result can be written there: call this before a long computation.

    Raises:
        DataError: the suffix is neither .csv nor .npy, the folder is missing or not
            writable, or the path is not a regular file.
    """
    file = Path(path)
    check_suffix(file)
    if not file.parent.is_dir():
        raise DataError(f"There is no folder {str(file.parent)!r} to write {file.name!r} into.")
    if file.exists() and not file.is_file():
        raise DataError(f"A result is written to a file. Received: {str(file)!r}, which is none.")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise DataError(f"The folder {str(file.parent)!r} is not writable.")
    return file


def write_result(path: str | os.PathLike[str], values: Cells, name: str) -> None:
    """Write a result as .csv or .npy, whole or not at all, readable by its owner only (0600).

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
        atomic.write_atomically(file, lambda stream: np.save(stream, values, allow_pickle=False))
        return
    if values.ndim == 1:
        _write_csv(file, {name: values})
    else:
        _write_csv(file, {f"{name}_{j}": values[:, j] for j in range(values.shape[1])})


def write_table(path: str | os.PathLike[str], table: Mapping[str, Cells]) -> None:
    """Write columns of equal length, such as a sorted key with its payload, like `write_result`.

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
    atomic.write_atomically(file, lambda stream: np.save(stream, matrix, allow_pickle=False))


def check_one_type(table: Mapping[str, Cells]) -> None:
    """Reject columns that a .npy file cannot hold together.

    Raises:
        UsageError: they have several types.
    """
    names = sorted({str(np.asarray(values).dtype) for values in table.values()})
    if len(names) > 1:
        raise UsageError(
            f"A .npy file has one type; write a .csv instead. Received: {', '.join(names)}."
        )


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
    names = [_column_heading(name) for name in table]
    texts = itertools.chain(names, *(cells for cells in table.values() if isinstance(cells, list)))
    # Of another dialect, or the end of a line for some: it would mislead a reader unless quoted.
    foreign = any(re.search("[;\t\r]", text) for text in texts)

    def write_stream(stream: IO[bytes]) -> None:
        text = io.TextIOWrapper(stream, "utf-8", newline="")
        plain = csv.writer(text, lineterminator="\n")
        quoted = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
        (quoted if foreign else plain).writerow(names)
        texts_too = any(isinstance(cells, list) for cells in table.values())
        (quoted if foreign and texts_too else plain).writerows(_iterate_rows(list(table.values())))
        text.flush()
        text.detach()

    atomic.write_atomically(file, write_stream)


def _iterate_rows(columns: list[Cells]) -> Iterator[tuple[int | float | str, ...]]:
    """Yield rows of Python numbers by blocks; csv writes a float by its shortest exact repr."""
    block = 65536
    for start in range(0, len(columns[0]) if columns else 0, block):
        parts = (c[start : start + block] for c in columns)
        yield from zip(*(p if isinstance(p, list) else p.tolist() for p in parts), strict=True)


def _column_heading(name: str) -> str:
    return name if is_name(name.strip()) else f"column_{name.strip()}"
