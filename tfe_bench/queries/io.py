"""Encoding of columns as ring elements at their owner, and results of queries as
values and files.
"""

from __future__ import annotations

import csv
import datetime
import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from tfe_bench.errors import DataError, RangeError, UsageError, did_you_mean
from tfe_bench.protocols.session.openings import Opening
from tfe_bench.queries.reading import (
    Values,
    column_as_reals,
    column_to_list,
    import_arrow,
    is_null_cell,
)
from tfe_bench.queries.type_inference import COARSE
from tfe_bench.queries.types import (
    CATEGORY,
    NUMBER,
    TEXT,
    UNITS,
    ColumnType,
    days_to_date,
    encode_column_value,
    format_text_hash,
)

Ring = np.ndarray[Any, np.dtype[np.int64]]
_EPOCH = datetime.datetime(1970, 1, 1)


@dataclass(frozen=True, eq=False, repr=False)
class EncodedColumn:
    """A column as its owner shares it.

    Attributes:
        type: type of the elements.
        distances: element - type.offset, 0 for NULL.
        null: 1 for NULL; None: no row is NULL.
        rounding: effect of rounding; None if every value is exact.
    """

    type: ColumnType
    distances: Ring
    null: Ring | None
    rounding: ColumnRounding | None = None


@dataclass(frozen=True)
class ColumnRounding:
    """Effect of rounding in a column of `fixed`.

    Attributes:
        error: largest absolute error.
        coarse: number of values that changed by more than a thousandth of themselves.
        gone: number of these that became 0.
        row: first of these rows, from 1; 0 for unnumbered rows.
    """

    error: float
    coarse: int
    gone: int
    row: int


def encode_column(name: str, values: Values, kind: ColumnType) -> EncodedColumn:
    """Encode a column; NaN is NULL.

    Raises:
        RangeError: infinity, or a value outside the declared range; the text names its row.
        DataError: a value of another type; the text names its row.
    """
    reals = column_as_reals(values)
    fast = (
        _encode_arrow(name, values, kind)
        if reals is None
        else _encode_real_column(name, reals, kind)
    )
    if fast is not None:
        return fast
    values = column_to_list(values if reals is None else reals)
    distances = np.zeros(len(values), np.int64)
    null = np.zeros(len(values), np.int64)
    exact = np.full(len(values), np.nan)
    for row, value in enumerate(values):
        if is_null_cell(value):
            null[row] = 1
            continue
        try:
            element = encode_column_value(value, kind)
            if kind.fraction:
                exact[row] = float(value)
        except (ValueError, KeyError, TypeError):
            fault = (
                "a word that its category does not have" if kind.kind == CATEGORY else f"no {kind}"
            )
            raise DataError(
                f"Column {name!r}, row {row + 1}: {fault}. Declare another type (--type "
                f'"{name}:...").',
                code="value-of-other-type",
                operation=name,
            ) from None
        except OverflowError:
            raise _column_range_error(name, row, kind) from None
        if not kind.low <= element <= kind.high:
            raise _column_range_error(name, row, kind)
        distances[row] = element - kind.offset
    rounding = _measure_rounding(exact, distances + np.int64(kind.offset), kind)
    return EncodedColumn(kind, distances, null if null.any() else None, rounding)


def _measure_rounding(exact: Any, elements: Ring, kind: ColumnType) -> ColumnRounding | None:
    """Measure the effect of rounding.

    Args:
        exact: float64, NaN for NULL.
        elements: encoded values.
    """
    if not kind.fraction:
        return None
    with np.errstate(invalid="ignore"):
        errors = np.abs(elements / float(kind.denominator) - exact)
        coarse = errors > COARSE * np.abs(exact)
    if not np.isfinite(errors).any():
        return ColumnRounding(0.0, 0, 0, 0)
    gone = coarse & (elements == 0)
    first = int(np.flatnonzero(coarse)[0]) + 1 if coarse.any() else 0
    return ColumnRounding(float(np.nanmax(errors)), int(coarse.sum()), int(gone.sum()), first)


def _encode_real_column(name: str, reals: Any, kind: ColumnType) -> EncodedColumn | None:
    """Encode an array of floating-point numbers at once; None if values must be
    encoded one by one.
    """
    if kind.kind != NUMBER:
        return None
    missing = np.isnan(reals)
    by = float(kind.denominator)
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.rint(reals * by)
        if not kind.fraction:
            exact = (np.abs(scaled) < 1 << 53) & (scaled / by == reals)
            if not (exact | missing).all():
                return None
    scaled[missing] = 0
    if (np.abs(scaled) >= float(1 << 62)).any():
        return None
    elements = scaled.astype(np.int64)
    return _bounded_column(name, elements, missing, kind, _measure_rounding(reals, elements, kind))


def _bounded_column(
    name: str,
    elements: Ring,
    missing: Any,
    kind: ColumnType,
    rounding: ColumnRounding | None = None,
) -> EncodedColumn:
    bad = ((elements < kind.low) | (elements > kind.high)) & ~missing
    if bad.any():
        raise _column_range_error(name, int(np.flatnonzero(bad)[0]), kind)
    distances = elements - np.int64(kind.offset)
    distances[missing] = 0
    null = missing.astype(np.int64) if missing.any() else None
    return EncodedColumn(kind, distances, null, rounding)


def _column_range_error(name: str, row: int, kind: ColumnType) -> RangeError:
    return RangeError(
        f"Column {name!r}, row {row + 1}: a value outside the range of {kind}, "
        f"{decode_column_element(kind.low, kind)} to {decode_column_element(kind.high, kind)}. "
        "Declare its "
        f'range, as --type "{name}:{kind}[LOW,HIGH]".',
        code="value-outside-range",
        operation=name,
    )


def _encode_arrow(name: str, values: Any, kind: ColumnType) -> EncodedColumn | None:
    """Encode an Arrow column at once; None if values must be encoded one by one."""
    if not hasattr(values, "is_null"):
        return None
    missing = np.asarray(values.is_null(nan_is_null=True))
    elements = _arrow_elements(values, kind, missing)
    if elements is None:
        return None
    return _bounded_column(name, elements, missing, kind)


def _arrow_elements(values: Any, kind: ColumnType, missing: Any) -> Any:
    """Return the elements of a whole Arrow column, arbitrary ones for missing values, or None."""
    pyarrow = import_arrow()
    compute: Any = importlib.import_module("pyarrow.compute")

    def to_integers(numbers: Any) -> Any:
        return np.asarray(compute.fill_null(numbers.cast(pyarrow.int64()), 0))

    arrow_type = str(values.type)
    match kind.kind:
        case "number" if arrow_type.startswith("int") and not kind.digits and not kind.fraction:
            return to_integers(values)
        case "number" if arrow_type.startswith("decimal") and not kind.fraction:
            scale = pyarrow.scalar(10**kind.digits, pyarrow.int64())
            try:
                return to_integers(compute.multiply(values, scale))
            except pyarrow.ArrowInvalid:  # more digits than the type allows, or than fit
                return None
        case "date" if arrow_type.startswith("date32"):
            return to_integers(values.cast(pyarrow.int32()))
        case "bool" if arrow_type == "bool":
            return to_integers(values)
        case "category" if arrow_type in ("string", "large_string"):
            words = pyarrow.array(kind.words, values.type)
            codes = compute.index_in(values, value_set=words)
            return None if codes.null_count > missing.sum() else to_integers(codes)
    return None


def check_unique_column(name: str, column: EncodedColumn) -> None:
    """Reject a declared unique column with repeated values; the text names rows, not values.

    Raises:
        DataError: a value repeats.
    """
    rows = np.arange(len(column.distances))
    if column.null is not None:
        rows = rows[column.null == 0]
    present = column.distances[rows]
    order = np.argsort(present, kind="stable")
    duplicates = np.flatnonzero(present[order][1:] == present[order][:-1])
    if len(duplicates):
        first, second = sorted(int(rows[order[duplicates[0] + i]]) + 1 for i in (0, 1))
        raise DataError(
            f"Column {name!r} is declared unique, but rows {first} and {second} have the same "
            "value.",
            code="value-not-unique",
            operation=name,
        )


# ---- results


def decode_column_element(element: int, kind: ColumnType) -> Any:
    """Decode a ring element to a value."""
    match kind.kind:
        case "number" if kind.fraction:
            return element / kind.denominator
        case "number" if kind.digits:
            return Decimal(element).scaleb(-kind.digits)
        case "bool":
            return bool(element)
        case "date":
            return days_to_date(element)
        case "timestamp":
            return _EPOCH + datetime.timedelta(microseconds=element * (10**6 // UNITS[kind.unit]))
        case "category":
            return kind.words[element]
        case "text":
            return format_text_hash(element)
    return element


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """Rows of a query's result.

    Attributes:
        types: types by column, in order.
        columns: values, None for NULL.
        measured: public measurements of each worker.
        notes: sentences on dropped groups, the rules that drop them, and noise.
        noise: standard deviations of the noise under a privacy budget, by column: of its "value",
            or of an average's "number" and "sum".
        opened: what became public to the workers.
    """

    types: Mapping[str, ColumnType]
    columns: Mapping[str, Sequence[Any]]
    measured: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()
    noise: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    opened: Sequence[Opening] = ()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __repr__(self) -> str:
        return f"Result({len(self)} rows of {', '.join(self.types)})"

    def named(self, names: Mapping[str, str], texts: Mapping[str, str]) -> Result:
        """Return the result with other names of columns, and texts instead of their hashes.

        Args:
            names: new names of some columns, by present ones.
            texts: texts by hash, as results show it.
        """
        columns = {
            name: [texts.get(v, v) for v in values] if self.types[name].kind == TEXT else values
            for name, values in self.columns.items()
        }
        return replace(
            self,
            types={names.get(name, name): kind for name, kind in self.types.items()},
            columns={names.get(name, name): values for name, values in columns.items()},
            noise={names.get(name, name): parts for name, parts in self.noise.items()},
        )

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """Rows as tuples."""
        return list(zip(*self.columns.values(), strict=True))

    def to_arrow(self) -> Any:
        """Convert to a pyarrow.Table.

        Raises:
            UsageError: pyarrow is not installed.
        """
        pyarrow = import_arrow()
        fields = [(name, _arrow_type(pyarrow, kind)) for name, kind in self.types.items()]
        arrays = [
            pyarrow.array(list(self.columns[name]), type=arrow_type) for name, arrow_type in fields
        ]
        return pyarrow.Table.from_arrays(arrays, schema=pyarrow.schema(fields))

    def to_pandas(self) -> Any:
        """Convert to a pandas.DataFrame."""
        return self.to_arrow().to_pandas()

    def write(self, path: Path) -> None:
        """Write a file .csv, .json, .parquet or .feather.

        Raises:
            UsageError: another kind of file, or an existing one.
            DataError: the file cannot be written.
        """
        if path.exists():
            raise UsageError(
                f"{str(path)!r} exists. Name another file.", code="file-exists", received=str(path)
            )
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
                    "A result is written as .csv, .json, .parquet or .feather. Received: "
                    f"{path.name!r}.{did_you_mean(suffix, ('.csv', '.json', '.parquet'))}",
                    code="unsupported-file-type",
                    received=path.name,
                )
        except OSError as error:
            raise DataError(
                f"Cannot write {str(path)!r}: {error.strerror}.",
                code="file-not-writable",
                received=str(path),
            ) from error

    def listed(self) -> list[dict[str, Any]]:
        """Return one object for each row, as JSON takes them."""

        def json_value(value: Any) -> Any:
            return value if value is None or isinstance(value, int | float) else str(value)

        return [
            {name: json_value(v) for name, v in zip(self.types, row, strict=True)}
            for row in self.rows
        ]


def _arrow_type(pyarrow: Any, kind: ColumnType) -> Any:
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
