"""Numbers of a .npy file, and its columns by position."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from tfe_bench.cli.data.files import INT64, INT64_MAX, unreadable_file_error
from tfe_bench.cli.data.sheet import Numbers, parse_column_position
from tfe_bench.errors import DataError, describe_array_position


def select_column(matrix: npt.NDArray[Any], position: int) -> npt.NDArray[Any]:
    """Return one column, contiguous in memory."""
    return np.ascontiguousarray(matrix[:, position])


def find_column_position(file: Path, width: int, column: str | int) -> int:
    """Return a column's position.

    Raises:
        DataError: the file has no such column.
    """
    position = parse_column_position(column)
    if position is None or not 0 <= position < width:
        known = f"0 to {width - 1}" if width > 1 else "0"
        raise DataError(
            f"{str(file)!r} has no column {column!r}. Its columns are {known}.",
            code="column-not-found",
            received=column,
            expected=known,
        )
    return position


def read_data_array(file: Path) -> tuple[Numbers, npt.NDArray[Any]]:
    """Read an array of one or two axes, as int64 or float64 and unconverted.

    Raises:
        DataError: the file is damaged, or the array is empty, not numeric or not finite.
    """
    try:
        with file.open("rb") as stream:
            _check_array_header(file, stream)
            values = np.lib.format.read_array(stream, allow_pickle=False)
    except DataError:
        raise
    except (OSError, MemoryError) as error:
        raise unreadable_file_error(file, error) from error
    except Exception as error:  # NumPy's header parser raises many kinds on random bytes
        raise DataError(
            f"{str(file)!r} is not a .npy file, or it is damaged.", code="file-damaged"
        ) from error
    if values.ndim not in (1, 2):
        raise DataError(
            f"Expected one or two axes. Received: shape {values.shape} in {str(file)!r}.",
            code="rank-mismatch",
            received=values.ndim,
            expected="1 or 2",
        )
    if values.size == 0:
        raise DataError(
            f"{str(file)!r} is empty: its array has shape {values.shape}.",
            code="empty-input",
            received=values.shape,
        )
    if values.dtype.kind in "biu":
        if values.dtype == np.uint64 and np.any(bad := values > np.uint64(INT64_MAX)):
            raise DataError(
                f"{str(file)!r}: an integer is outside {INT64}, {_describe_bad_array_value(bad)}.",
                code="integer-too-large",
                expected=INT64,
            )
        whole = np.ascontiguousarray(values, np.int64)
        return whole, whole if values.dtype.kind == "b" else values
    with np.errstate(over="ignore"):
        reals = np.ascontiguousarray(values, np.float64)
    if np.any(bad := ~np.isfinite(reals)):
        kind = "NaN" if np.isnan(reals.flat[int(np.argmax(bad))]) else "infinite"
        raise DataError(
            f"{str(file)!r}: a value is {kind}, {_describe_bad_array_value(bad)}.",
            code="not-finite",
            received=kind,
        )
    return reals, reals if values.dtype.itemsize > 8 else values


def _check_array_header(file: Path, stream: IO[bytes]) -> None:
    """Reject a header with a wrong type or size, before memory is allocated for it."""
    if os.fstat(stream.fileno()).st_size == 0:
        raise DataError(f"{str(file)!r} is empty.", code="empty-input", received="an empty file")
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
    else:  # 3.0 is for structured types only
        raise DataError(
            f"Expected .npy format 1.0 or 2.0. Received: {version} in {str(file)!r}.",
            code="unsupported-format",
            received=version,
            expected="1.0 or 2.0",
        )
    if dtype.kind not in "biuf":
        raise DataError(
            f"Expected an array of integers or floats. Received: {dtype} in {str(file)!r}.",
            code="unsupported-type",
            received=dtype,
        )
    count = 1
    for extent in shape:  # Python integers: they cannot overflow
        count *= int(extent)
    present = os.fstat(stream.fileno()).st_size - stream.tell()
    if count * dtype.itemsize != present:
        raise DataError(
            f"{str(file)!r} is damaged. Expected {count * dtype.itemsize} bytes of data after the "
            f"header. Received: {present}.",
            code="file-damaged",
            received=present,
            expected=count * dtype.itemsize,
        )
    stream.seek(0)


def _describe_bad_array_value(bad: npt.NDArray[np.bool_]) -> str:
    """Describe the first position that is marked as bad."""
    return describe_array_position(
        tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
    )


def read_named_arrays(path: Path) -> Any:
    """Read an array of reals with a batch axis, or arrays by name from a .npz file.

    Raises:
        DataError: the file is missing, damaged, or holds something else.
    """
    try:
        values: Any = np.load(path, allow_pickle=False)
        if isinstance(values, np.lib.npyio.NpzFile):
            with values as file:
                values = {name: file[name] for name in file.files}
    except Exception as error:  # NumPy's header parser raises many kinds on random bytes
        raise DataError(
            f"{str(path)!r} is not a readable .npy file, or it is damaged. "
            f"Received: {type(error).__name__}.",
            code="file-damaged",
            received=type(error).__name__,
        ) from error
    for each in values.values() if isinstance(values, dict) else [values]:
        if not isinstance(each, np.ndarray) or each.dtype.kind not in "biuf" or not each.size:
            raise DataError(
                f"Expected an array of numbers. Received: {str(path)!r} with another type or no "
                "elements. Use a .npy file of reals.",
                code="unsupported-type",
            )
    return values
