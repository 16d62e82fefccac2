"""Tables in files and in memory, as columns by name.

CSV needs no package.  Parquet, Feather and Arrow tables go through pyarrow, pandas frames through
it as well; it is imported only here and only then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfe_bench.errors import DataError, UsageError, did_you_mean, import_optional
from tfe_bench.models import csv_file
from tfe_bench.models.queries.types import format_hash, hash_text

# A list, a NumPy array of float64 with NaN for NULL, or a column of Arrow.
Values = Sequence[Any] | np.ndarray[Any, Any]


def import_arrow() -> Any:
    """pyarrow.

    Raises:
        UsageError: it is not installed.
    """
    return import_optional(
        "pyarrow",
        "Parquet and Arrow tables take pyarrow",
        "Install it: pip install '.[tables]' in the checkout. Or use CSV",
    )


def read_columns(source: object, rename: Mapping[str, str] | None = None) -> dict[str, Values]:
    """Read the columns of a file, an Arrow table, a pandas frame or a dict of columns, by name.

    Args:
        rename: new names by the source's.

    Raises:
        DataError: it cannot be read, or is no table.
        UsageError: another kind of source, a missing package, or a name that is not there.
    """
    return _rename_columns(_source_columns(source), rename or {})


def _rename_columns(columns: dict[str, Values], rename: Mapping[str, str]) -> dict[str, Values]:
    for old in rename:
        if old not in columns:
            raise UsageError(
                f"rename: there is no column {old[:80]!r}.{did_you_mean(old[:80], columns)} "
                f"Columns: {', '.join(list(columns)[:20])}."
            )
    renamed = {rename.get(name, name): values for name, values in columns.items()}
    if len(renamed) != len(columns):
        raise UsageError("rename gives two columns one name. Choose another one.")
    return renamed


def _source_columns(source: object) -> dict[str, Values]:
    if isinstance(source, Mapping):
        columns = {str(name): _to_column(str(name), values) for name, values in source.items()}
        lengths = {name: len(values) for name, values in columns.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(
                "The columns of a table have one length. Received: "
                + ", ".join(f"{name!r} with {n}" for name, n in list(lengths.items())[:10])
                + "."
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
                f"A table is a file .csv, .parquet, .feather or .arrow. Received: {path.name!r}."
            )
        source = _read_arrow(path)
    names = [str(name) for name in _column_names(source)]
    if len(set(names)) != len(names):
        raise DataError("A table names each of its columns once.")
    table: Any = source
    if is_pandas(source):
        return {name: _from_pandas(name, table.iloc[:, i]) for i, name in enumerate(names)}
    return {name: _to_column(name, table.column(name)) for name in names}


def _column_names(source: object) -> Sequence[Any]:
    whole: Any = source
    if is_pandas(source) and hasattr(source, "columns"):
        return list(whole.columns)
    if hasattr(source, "column_names"):
        return list(whole.column_names)
    raise UsageError(
        "A table is a file, a pyarrow.Table, a pandas.DataFrame or a dict of columns (lists or "
        f"arrays of one axis). Received: {type(source).__name__}."
    )


def is_pandas(value: object) -> bool:
    """Whether an object is one of pandas' own."""
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
            f"{str(path)!r} cannot be read as a table. Received: {type(error).__name__}."
        ) from None


def _from_pandas(name: str, series: Any) -> Values:
    if str(series.dtype) == "object":  # (Arrow would make dates of numbers among dates)
        return _to_column(name, list(series))
    pyarrow = import_arrow()
    try:
        return _to_column(name, pyarrow.Array.from_pandas(series))
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError):
        # (its text quotes a value)
        return list(series)


def _to_column(name: str, values: Any) -> Values:
    """One column: missing values are None, or NaN in an array of reals."""
    if is_pandas(values):
        return _from_pandas(name, values)
    reals = as_reals(values)
    if reals is not None:
        return reals
    if hasattr(values, "is_null"):
        whole: Sequence[Any] = values
        return whole
    if isinstance(values, np.ndarray):
        if values.ndim != 1 or values.dtype.kind not in "biuOUM":
            raise DataError(
                f"Column {name!r} is no array of one axis of numbers, truth values, dates or "
                f"texts. Received: {values.dtype} with shape {list(values.shape)}."
            )
        return _to_datetimes(name, values) if values.dtype.kind == "M" else list(values.tolist())
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise DataError(f"Column {name!r} is no list of values. Received: {type(values).__name__}.")
    items = list(values)
    present = [value for value in items if value is not None]
    if present and all(type(value) is float for value in present):
        return np.array([np.nan if value is None else value for value in items])
    return items


def _to_datetimes(name: str, values: np.ndarray[Any, Any]) -> list[Any]:
    """NumPy's dates and times as Python's."""
    if np.datetime_data(values.dtype)[0] in ("Y", "M", "W", "D"):
        return list(values.astype("datetime64[D]").tolist())
    micro = values.astype("datetime64[us]")
    if (micro.astype(values.dtype) != values)[~np.isnat(values)].any():
        raise DataError(f"Column {name!r} has times finer than a microsecond. Round them first.")
    return list(micro.tolist())


def as_reals(values: object) -> np.ndarray[Any, Any] | None:
    """A column of floating-point numbers as float64, NaN for NULL; None of any other column.

    Numbers of fewer bits become the double nearest to their shortest decimal notation: 0.1 in
    float32 is 0.1.
    """
    arrow_type = str(getattr(values, "type", ""))
    if arrow_type in ("double", "float", "halffloat") and hasattr(values, "is_null"):
        whole: Any = values
        values = np.asarray(whole.to_numpy(zero_copy_only=False) if _is_array(whole) else whole)
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f" or values.ndim != 1:
        return None
    if values.dtype.itemsize < 8:
        return values.astype(str).astype(np.float64)
    return values.astype(np.float64)


def _is_array(values: Any) -> bool:
    """Whether a column of Arrow is in one piece."""
    return not hasattr(values, "chunks")


def to_list(values: Values) -> Sequence[Any]:
    """The values of a column as Python's, one by one."""
    whole: Any = values
    if hasattr(whole, "to_pylist"):
        return list(whole.to_pylist())
    return list(whole.tolist()) if isinstance(whole, np.ndarray) else whole


def is_missing(value: object) -> bool:
    """Whether a value of a list stands for NULL: None, NaN, NaT or pandas' NA."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(value != value)


def texts_by_hash(columns: Mapping[str, Values]) -> dict[str, str]:
    """The texts of columns by their hashes, as results show these."""
    texts: dict[str, str] = {}
    for values in columns.values():
        for text in {each for each in to_list(values) if isinstance(each, str)}:
            texts[format_hash(hash_text(text))] = text
    return texts
