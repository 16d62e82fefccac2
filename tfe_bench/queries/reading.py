"""Tables in files and in memory, read as columns by name.

CSV needs no package. Parquet, Feather and Arrow tables require pyarrow, and so do pandas frames;
only this module imports it, and only on use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfe_bench import csv_file
from tfe_bench.errors import DataError, UsageError, did_you_mean, import_optional_library
from tfe_bench.queries.types import format_text_hash, hash_column_text

# A list, a NumPy array of float64 with NaN for NULL, or a column of Arrow.
Values = Sequence[Any] | np.ndarray[Any, Any]


def import_arrow() -> Any:
    """Import pyarrow.

    Raises:
        UsageError: it is not installed.
    """
    return import_optional_library(
        "pyarrow",
        "Parquet and Arrow tables take pyarrow",
        "Install it: pip install '.[tables]' in the checkout. Or use CSV",
    )


def read_columns(source: object, rename: Mapping[str, str] | None = None) -> dict[str, Values]:
    """Read the columns of a file, an Arrow table, a pandas frame or a dict of columns, by name.

    Args:
        rename: new names by names in the source.

    Raises:
        DataError: the source cannot be read, or is not a table.
        UsageError: another kind of source, a missing package, or an unknown name.
    """
    return _rename_columns(_source_columns(source), rename or {})


def _rename_columns(columns: dict[str, Values], rename: Mapping[str, str]) -> dict[str, Values]:
    for old in rename:
        if old not in columns:
            raise UsageError(
                f"rename: there is no column {old[:80]!r}.{did_you_mean(old[:80], columns)} "
                f"Columns: {', '.join(list(columns)[:20])}.",
                code="column-not-found",
                operation="rename",
                received=old[:80],
            )
    renamed = {rename.get(name, name): values for name, values in columns.items()}
    if len(renamed) != len(columns):
        raise UsageError(
            "rename gives two columns the same name. Choose another one.",
            code="duplicate-name",
            operation="rename",
        )
    return renamed


def _source_columns(source: object) -> dict[str, Values]:
    if isinstance(source, Mapping):
        columns = {
            str(name): _to_table_column(str(name), values) for name, values in source.items()
        }
        lengths = {name: len(values) for name, values in columns.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(
                "Expected columns of one length. Received: "
                + ", ".join(f"{name!r} with {n}" for name, n in list(lengths.items())[:10])
                + ".",
                code="length-mismatch",
            )
        return columns
    if isinstance(source, str | Path):
        path = Path(source)
        if path.suffix.lower() == ".csv":
            names, lines = csv_file.read_csv(path)
            return {
                name: [None if line[i] == "" else line[i] for line in lines]
                for i, name in enumerate(names)
            }
        if path.suffix.lower() not in (".parquet", ".feather", ".arrow"):
            raise UsageError(
                f"A table is a file .csv, .parquet, .feather or .arrow. Received: {path.name!r}.",
                code="unsupported-file-type",
                received=path.name,
            )
        source = _read_arrow(path)
    names = [str(name) for name in _column_names(source)]
    if len(set(names)) != len(names):
        raise DataError(
            "Expected different names of columns. Received: a repeated name.", code="duplicate-name"
        )
    table: Any = source
    if is_pandas(source):
        return {name: _from_pandas(name, table.iloc[:, i]) for i, name in enumerate(names)}
    return {name: _to_table_column(name, table.column(name)) for name in names}


def _column_names(source: object) -> Sequence[Any]:
    whole: Any = source
    if is_pandas(source) and hasattr(source, "columns"):
        return list(whole.columns)
    if hasattr(source, "column_names"):
        return list(whole.column_names)
    raise UsageError(
        "Expected a file, a pyarrow.Table, a pandas.DataFrame or a dict of columns (lists or "
        f"arrays of one axis). Received: {type(source).__name__}.",
        code="wrong-type",
        operation="source",
        received=type(source).__name__,
    )


def is_pandas(value: object) -> bool:
    """Return whether an object belongs to pandas."""
    return type(value).__module__.partition(".")[0] == "pandas"


def _read_arrow(path: Path) -> Any:
    pyarrow = import_arrow()
    try:
        if path.suffix.lower() == ".parquet":
            from pyarrow import parquet

            return parquet.read_table(path)
        from pyarrow import feather

        return feather.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(
            f"{str(path)!r} cannot be read as a table. Received: {type(error).__name__}.",
            code="file-not-readable",
            received=type(error).__name__,
        ) from None


def _from_pandas(name: str, series: Any) -> Values:
    if str(series.dtype) == "object":  # (Arrow would convert numbers among dates to dates)
        return _to_table_column(name, list(series))
    pyarrow = import_arrow()
    try:
        return _to_table_column(name, pyarrow.Array.from_pandas(series))
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError):
        # (the error's text quotes a value)
        return list(series)


def _to_table_column(name: str, values: Any) -> Values:
    """Convert one column: missing values become None, or NaN in an array of reals."""
    if is_pandas(values):
        return _from_pandas(name, values)
    reals = column_as_reals(values)
    if reals is not None:
        return reals
    if hasattr(values, "is_null"):
        whole: Sequence[Any] = values
        return whole
    if isinstance(values, np.ndarray):
        if values.ndim != 1 or values.dtype.kind not in "biuOUM":
            raise DataError(
                f"Column {name!r}: expected an array of one axis of numbers, truth values, "
                f"dates or texts. Received: {values.dtype} with shape {list(values.shape)}.",
                code="unsupported-type",
                operation=name,
                received=f"{values.dtype} {list(values.shape)}",
            )
        return _to_datetimes(name, values) if values.dtype.kind == "M" else list(values.tolist())
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise DataError(
            f"Column {name!r}: expected a list of values. Received: {type(values).__name__}.",
            code="wrong-type",
            operation=name,
            received=type(values).__name__,
        )
    items = list(values)
    present = [value for value in items if value is not None]
    if present and all(type(value) is float for value in present):
        return np.array([np.nan if value is None else value for value in items])
    return items


def _to_datetimes(name: str, values: np.ndarray[Any, Any]) -> list[Any]:
    """Convert NumPy's dates and times to Python's."""
    if np.datetime_data(values.dtype)[0] in ("Y", "M", "W", "D"):
        return list(values.astype("datetime64[D]").tolist())
    micro = values.astype("datetime64[us]")
    if (micro.astype(values.dtype) != values)[~np.isnat(values)].any():
        raise DataError(
            f"Column {name!r} has times finer than a microsecond. Round them first.",
            code="unsupported-precision",
            operation=name,
        )
    return list(micro.tolist())


def column_as_reals(values: object) -> np.ndarray[Any, Any] | None:
    """Return a column of floating-point numbers as float64 with NaN for NULL; None for any other
    column.

    Narrower floats become the double nearest to their shortest decimal notation: 0.1 in float32 is
    0.1.
    """
    arrow_type = str(getattr(values, "type", ""))
    if arrow_type in ("double", "float", "halffloat") and hasattr(values, "is_null"):
        whole: Any = values
        values = np.asarray(
            whole.to_numpy(zero_copy_only=False) if _is_arrow_array(whole) else whole
        )
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f" or values.ndim != 1:
        return None
    if values.dtype.itemsize < 8:
        return values.astype(str).astype(np.float64)
    return values.astype(np.float64)


def _is_arrow_array(values: Any) -> bool:
    """Return whether a column of Arrow is in one piece."""
    return not hasattr(values, "chunks")


def column_to_list(values: Values) -> Sequence[Any]:
    """Return the values of a column as a sequence of Python values."""
    whole: Any = values
    if hasattr(whole, "to_pylist"):
        return list(whole.to_pylist())
    return list(whole.tolist()) if isinstance(whole, np.ndarray) else whole


def is_null_cell(value: object) -> bool:
    """Return whether a value of a list stands for NULL: None, NaN, NaT or pandas' NA."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(value != value)


def texts_by_hash(columns: Mapping[str, Values]) -> dict[str, str]:
    """Return the texts of columns by their hashes, in the notation of results."""
    texts: dict[str, str] = {}
    for values in columns.values():
        for text in {each for each in column_to_list(values) if isinstance(each, str)}:
            texts[format_text_hash(hash_column_text(text))] = text
    return texts
