"""Tables in files and in memory: read into ring elements by their owner, results written.

CSV needs no package.  Parquet, Feather and Arrow tables go through pyarrow, pandas frames through
it as well; both are imported only here and only then.
"""

from __future__ import annotations

import csv
import datetime
import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from tfe_bench.errors import DataError, RangeError, UsageError, did_you_mean, imported
from tfe_bench.models import csv_file
from tfe_bench.models.queries.types import (
    BITS,
    CATEGORY,
    HASHES,
    UNITS,
    Type,
    date_of,
    element_of,
    parse,
)

Ring = np.ndarray[Any, np.dtype[np.int64]]
_EPOCH = datetime.datetime(1970, 1, 1)
# By the name of an Arrow type.
_ARROW = {
    "bool": "bool",
    "date32[day]": "date",
    "date64[ms]": "date",
    "timestamp[s]": "timestamp(s)",
    "timestamp[ms]": "timestamp(ms)",
    "timestamp[us]": "timestamp(us)",
    "timestamp[ns]": "timestamp(us)",
    "string": "text",
    "large_string": "text",
}


@dataclass(frozen=True, eq=False, repr=False)
class Elements:
    """A column as its owner shares it.

    Attributes:
        type: of the elements.
        distances: element - type.offset, 0 where there is none.
        null: where there is none; None: nowhere.
    """

    type: Type
    distances: Ring
    null: Ring | None


def arrow() -> Any:
    """pyarrow.

    Raises:
        UsageError: it is not installed.
    """
    return imported(
        "pyarrow",
        "Parquet and Arrow tables take pyarrow",
        'pip install "tfe_bench[tables]", or use CSV',
    )


def read(source: object) -> dict[str, Sequence[Any]]:
    """The columns of a file, an Arrow table, a pandas frame or a dict of lists, by name.

    Raises:
        DataError: it cannot be read, or is no table.
        UsageError: another kind of file, or a package is missing.
    """
    if isinstance(source, Mapping):
        columns: dict[str, Sequence[Any]] = {
            str(name): list(values) for name, values in source.items()
        }
        if len({len(values) for values in columns.values()}) > 1:
            raise DataError("The columns of a table have one length.")
        return columns
    if isinstance(source, str | Path):
        path = Path(source)
        if path.suffix.lower() == ".csv":
            names, lines = csv_file.read(path)
            return {
                name: [None if line[i] == "" else line[i] for line in lines]
                for i, name in enumerate(names)
            }
        if path.suffix.lower() not in (".parquet", ".feather", ".arrow"):
            raise UsageError(
                f"A table is a file .csv, .parquet, .feather or .arrow. Received: {path.name!r}."
            )
        table = _read_arrow(path)
    elif type(source).__module__.partition(".")[0] == "pandas":
        table = arrow().Table.from_pandas(source, preserve_index=False)
    else:
        table = source
    listed: Any = getattr(table, "column_names", None)
    if listed is None:
        raise UsageError(
            "A table is a file, a pyarrow.Table, a pandas.DataFrame or a dict of lists. Received: "
            f"{type(source).__name__}."
        )
    if len(set(listed)) != len(listed):
        raise DataError("A table names each of its columns once.")
    whole: Any = table
    return {name: whole.column(name) for name in listed}


def _read_arrow(path: Path) -> Any:
    pyarrow = arrow()
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


def type_of(name: str, values: Sequence[Any]) -> Type:
    """The type of a column whose owner declares none.

    Raises:
        DataError: it has none here.
    """
    kind = getattr(values, "type", None)
    if kind is not None:
        shown = str(kind)
        if shown.startswith(("int", "uint")):
            return parse("int")
        if shown in ("float", "double", "halffloat"):
            return parse("fixed")
        if shown.startswith("decimal"):
            return parse(f"decimal({kind.scale})")
        if shown.startswith("dictionary"):
            return HASHES
        if shown in _ARROW:
            return parse(_ARROW[shown])
        raise DataError(f"Column {name!r} has a type that is not offered. Received: {shown[:80]}.")
    given = [value for value in values if value is not None]
    for written in ("int", "fixed", "bool", "date", "timestamp"):
        made = parse(written)
        try:
            for value in given:
                _element(value, made)
        except (ValueError, KeyError, TypeError, OverflowError):
            continue
        return made
    return HASHES


def _element(value: Any, kind: Type) -> int:
    """The ring element of one value.

    Raises:
        ValueError, KeyError, TypeError: it is none of this type.
    """
    if isinstance(value, str):
        return element_of(value, kind)
    if isinstance(value, bool | np.bool_):
        if kind.kind != BITS.kind:
            raise ValueError("a bool")
        return int(value)
    match kind.kind:
        case "number" if isinstance(value, int | np.integer | Decimal):
            return element_of(str(value), kind)
        case "number" if isinstance(value, float | np.floating):
            if kind.fraction:
                return round(float(value) * (1 << kind.fraction))
            return element_of(repr(float(value)), kind)
        case "bool" if isinstance(value, int | np.integer):
            return {0: 0, 1: 1}[int(value)]
        case "timestamp" if isinstance(value, datetime.datetime):
            return element_of(value.isoformat(), kind)
        case "date" if isinstance(value, datetime.datetime):
            return element_of(value.date().isoformat(), kind)
        case "date" if isinstance(value, datetime.date):
            return element_of(value.isoformat(), kind)
    raise ValueError("another type")


def encode(name: str, values: Sequence[Any], kind: Type) -> Elements:
    """A column as elements; NaN is NULL.

    Raises:
        RangeError: a value outside of the declared range, or infinity; its row is named.
        DataError: a value of another type; its row is named.
    """
    fast = _encoded_arrow(name, values, kind)
    if fast is not None:
        return fast
    listed: Any = getattr(values, "to_pylist", None)
    if listed is not None:
        values = listed()
    found = np.zeros(len(values), np.int64)
    null = np.zeros(len(values), np.int64)
    for row, value in enumerate(values):
        if value is None or (isinstance(value, float | np.floating) and value != value):
            null[row] = 1
            continue
        try:
            element = _element(value, kind)
        except (ValueError, KeyError, TypeError):
            what = (
                "a word that its category does not have" if kind.kind == CATEGORY else f"no {kind}"
            )
            raise DataError(
                f"Column {name!r}, row {row + 1}: {what}. Declare another type "
                f'(--type "{name}:...").'
            ) from None
        except OverflowError:
            raise _outside(name, row, kind) from None
        if not kind.low <= element <= kind.high:
            raise _outside(name, row, kind)
        found[row] = element - kind.offset
    return Elements(kind, found, null if null.any() else None)


def _outside(name: str, row: int, kind: Type) -> RangeError:
    return RangeError(
        f"Column {name!r}, row {row + 1}: a value outside of the range of {kind}, "
        f"{shown(kind.low, kind)} to {shown(kind.high, kind)}. Declare its range, as "
        f'--type "{name}:{kind}[LOW,HIGH]".'
    )


def _encoded_arrow(name: str, values: Any, kind: Type) -> Elements | None:
    """An Arrow column at once; None where its values have to be looked at one by one."""
    if not hasattr(values, "is_null"):
        return None
    missing = np.asarray(values.is_null(nan_is_null=True))
    elements = _arrow_elements(values, kind, missing)
    if elements is None:
        return None
    bad = ((elements < kind.low) | (elements > kind.high)) & ~missing
    if bad.any():
        raise _outside(name, int(np.flatnonzero(bad)[0]), kind)
    distances = elements - np.int64(kind.offset)
    distances[missing] = 0
    return Elements(kind, distances, missing.astype(np.int64) if missing.any() else None)


def _arrow_elements(values: Any, kind: Type, missing: Any) -> Any:
    """Elements of values as far as whole columns are read, anything where they are missing."""
    pyarrow = arrow()
    compute: Any = importlib.import_module("pyarrow.compute")

    def whole(numbers: Any) -> Any:
        return np.asarray(compute.fill_null(numbers.cast(pyarrow.int64()), 0))

    stated = str(values.type)
    match kind.kind:
        case "number" if stated.startswith("int") and not kind.digits and not kind.fraction:
            return whole(values)
        case "number" if stated.startswith(("double", "float")) and kind.fraction:
            filled = np.asarray(compute.fill_null(values, pyarrow.scalar(0, values.type)))
            with np.errstate(invalid="ignore", over="ignore"):
                real = np.rint(filled.astype(np.float64) * float(1 << kind.fraction))
            real[missing] = 0
            # (what has no int64 is outside of every range)
            most = float(1 << 62)
            return np.where(np.abs(real) < most, real, np.copysign(most, real)).astype(np.int64)
        case "number" if stated.startswith("decimal") and not kind.fraction:
            scale = pyarrow.scalar(10**kind.digits, pyarrow.int64())
            try:
                return whole(compute.multiply(values, scale))
            except pyarrow.ArrowInvalid:  # more digits than the type has, or than fit
                return None
        case "date" if stated.startswith("date32"):
            return whole(values.cast(pyarrow.int32()))
        case "bool" if stated == "bool":
            return whole(values)
        case "category" if stated in ("string", "large_string"):
            words = pyarrow.array(kind.words, values.type)
            found = compute.index_in(values, value_set=words)
            return None if found.null_count > missing.sum() else whole(found)
    return None


def check_unique(name: str, column: Elements) -> None:
    """Refuses a column that is said to be unique and is not; rows are named, values are not.

    Raises:
        DataError: a value is there twice.
    """
    rows = np.arange(len(column.distances))
    if column.null is not None:
        rows = rows[column.null == 0]
    held = column.distances[rows]
    order = np.argsort(held, kind="stable")
    again = np.flatnonzero(held[order][1:] == held[order][:-1])
    if len(again):
        first, second = sorted(int(rows[order[again[0] + i]]) + 1 for i in (0, 1))
        raise DataError(
            f"Column {name!r} is said to be unique, and rows {first} and {second} have one value."
        )


# ---- results


def shown(element: int, kind: Type) -> Any:
    """A ring element as a value."""
    match kind.kind:
        case "number" if kind.fraction:
            return element / kind.denominator
        case "number" if kind.digits:
            return Decimal(element).scaleb(-kind.digits)
        case "bool":
            return bool(element)
        case "date":
            return date_of(element)
        case "timestamp":
            return _EPOCH + datetime.timedelta(microseconds=element * (10**6 // UNITS[kind.unit]))
        case "category":
            return kind.words[element]
        case "text":
            return f"{element % (1 << 64):016x}"
    return element


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """The rows that a query gave its client.

    Attributes:
        types: by column, in their order.
        columns: values, None for NULL.
        measured: public figures of each worker.
    """

    types: Mapping[str, Type]
    columns: Mapping[str, Sequence[Any]]
    measured: Sequence[Mapping[str, Any]] = ()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __repr__(self) -> str:
        return f"Result({len(self)} rows of {', '.join(self.types)})"

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """One tuple a row."""
        return list(zip(*self.columns.values(), strict=True))

    def to_arrow(self) -> Any:
        """As a pyarrow.Table.

        Raises:
            UsageError: pyarrow is not installed.
        """
        pyarrow = arrow()
        fields = [(name, _arrow_type(pyarrow, kind)) for name, kind in self.types.items()]
        arrays = [pyarrow.array(list(self.columns[name]), type=made) for name, made in fields]
        return pyarrow.Table.from_arrays(arrays, schema=pyarrow.schema(fields))

    def to_pandas(self) -> Any:
        """As a pandas.DataFrame."""
        return self.to_arrow().to_pandas()

    def write(self, path: Path) -> None:
        """Writes a file .csv, .json, .parquet or .feather.

        Raises:
            UsageError: another kind of file, or one that is there.
            DataError: it cannot be written.
        """
        if path.exists():
            raise UsageError(f"{str(path)!r} is there already. Name another file.")
        suffix = path.suffix.lower()
        try:
            if suffix == ".csv":
                with path.open("w", newline="", encoding="utf-8") as stream:
                    writer = csv.writer(stream)
                    writer.writerow(self.types)
                    writer.writerows(["" if v is None else v for v in row] for row in self.rows)
            elif suffix == ".json":
                path.write_text(json.dumps(self.listed()) + "\n")
            elif suffix in (".parquet", ".feather"):
                table = self.to_arrow()
                if suffix == ".parquet":
                    import pyarrow.parquet as parquet

                    parquet.write_table(table, path)
                else:
                    import pyarrow.feather as feather

                    feather.write_feather(table, path)
            else:
                raise UsageError(
                    f"A result is written as .csv, .json, .parquet or .feather. Received: "
                    f"{path.name!r}.{did_you_mean(suffix, ('.csv', '.json', '.parquet'))}"
                )
        except OSError as error:
            raise DataError(f"Cannot write {str(path)!r}: {error.strerror}.") from error

    def listed(self) -> list[dict[str, Any]]:
        """One object a row, as JSON takes them."""

        def plain(value: Any) -> Any:
            return value if value is None or isinstance(value, int | float) else str(value)

        return [
            {name: plain(v) for name, v in zip(self.types, row, strict=True)} for row in self.rows
        ]


def _arrow_type(pyarrow: Any, kind: Type) -> Any:
    match kind.kind:
        case "number" if kind.fraction:
            return pyarrow.float64()
        case "number" if kind.digits:
            return pyarrow.decimal128(38, kind.digits)
        case "number":
            return pyarrow.int64()
        case "bool":
            return pyarrow.bool_()
        case "date":
            return pyarrow.date32()
        case "timestamp":
            return pyarrow.timestamp("us")
        case _:
            return pyarrow.string()
