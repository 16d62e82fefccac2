"""Report for an owner on each column of a table after its upload."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.protocols.session.openings import Opening
from tfe_bench.queries.io import ColumnRounding, EncodedColumn, decode_column_element
from tfe_bench.queries.reading import Values, column_to_list
from tfe_bench.queries.schema import TableColumn, TableSchema
from tfe_bench.queries.types import MAX_WORDS, NUMBER, TEXT, ColumnType

_ZEROS = re.compile(r"\s*[+-]?0[0-9]", re.ASCII)
# Different texts of a column up to which a category is suggested.
_FEW = 1000


@dataclass(frozen=True)
class ColumnReport:
    """Report on one column.

    Attributes:
        type: type of its values.
        nullable: whether it may have NULLs.
        rounding: effect of rounding; None if every value is exact.
        texts: number of different texts; 0 for other types.
    """

    type: ColumnType
    nullable: bool
    rounding: ColumnRounding | None = None
    texts: int = 0

    @property
    def largest_error(self) -> float:
        """Largest rounding error of a value."""
        return 0.0 if self.rounding is None else self.rounding.error

    @property
    def range(self) -> tuple[Any, Any] | None:
        """Public range of its values; None if its type has none."""
        if self.type.words or self.type.kind == TEXT:
            return None
        return decode_column_element(self.type.low, self.type), decode_column_element(
            self.type.high, self.type
        )

    def to_header(self) -> dict[str, Any]:
        """Return the report as JSON."""
        bounds = self.range
        return {
            "type": str(self.type),
            "range": None if bounds is None else [_json_column_value(bound) for bound in bounds],
            "nullable": self.nullable,
            "largest_error": self.largest_error,
        }

    def __str__(self) -> str:
        parts = [str(self.type)]
        if (bounds := self.range) is not None and self.type.kind != "bool":
            low, high = (f"{b:,}" if self.type.kind == NUMBER else f"{b}" for b in bounds)
            parts.append(f"{low} to {high}")
        if self.nullable:
            parts.append("may be NULL")
        if self.rounding is not None:
            parts.append(f"largest rounding error {self.largest_error:.2g}")
        elif self.type.kind == NUMBER:
            parts.append("exact")
        return ", ".join(parts)


def _json_column_value(value: Any) -> Any:
    return value if isinstance(value, int | float) else str(value)


@dataclass(frozen=True)
class TableReport:
    """Report on an uploaded table.

    Attributes:
        name: name of the table.
        schema: its public header.
        columns: reports on its columns.
        shortened: columns of digits with leading zeros, which numbers do not keep.
        opened: what the checks of the table made public to the workers.
    """

    name: str
    schema: TableSchema
    columns: Mapping[str, ColumnReport]
    shortened: tuple[str, ...] = ()
    opened: tuple[Opening, ...] = ()

    @classmethod
    def from_columns(
        cls,
        name: str,
        schema: TableSchema,
        encoded_columns: Mapping[str, EncodedColumn],
        source_columns: Mapping[str, Values],
        opened: tuple[Opening, ...] = (),
    ) -> TableReport:
        """Build the report of encoded columns.

        Args:
            source_columns: columns of the source.
            opened: as the attribute.
        """

        def report_column(column: TableColumn, encoded: EncodedColumn) -> ColumnReport:
            texts = 0
            if encoded.type.kind == TEXT:
                present = (
                    encoded.distances
                    if encoded.null is None
                    else encoded.distances[encoded.null == 0]
                )
                texts = len(np.unique(present))
            return ColumnReport(encoded.type, column.nullable, encoded.rounding, texts)

        columns = {
            name: report_column(column, encoded_columns[name])
            for name, column in schema.columns.items()
        }
        shortened = [
            name
            for name, column in columns.items()
            if column.type.kind == NUMBER
            and any(
                isinstance(v, str) and _ZEROS.match(v) for v in column_to_list(source_columns[name])
            )
        ]
        return cls(name, schema, columns, tuple(shortened), opened)

    @property
    def warnings(self) -> list[str]:
        """Warnings on values that rounding changed by more than a thousandth, and on
        lost leading zeros.
        """
        messages = [
            f"Column {name!r} of table {self.name!r}: digits with leading zeros became numbers, "
            f'which do not keep these. Declare --type "{name}:text" for codes such as zip codes.'
            for name in self.shortened
        ]
        for name, column in self.columns.items():
            rounding = column.rounding
            if rounding is None or not rounding.coarse:
                continue
            lost_text = f", and {rounding.gone:,} to 0" if rounding.gone else ""
            messages.append(
                f"Column {name!r} of table {self.name!r}: rounding changed {rounding.coarse:,} "
                f"values by more than a thousandth of themselves{lost_text}, the first in row "
                f"{rounding.row}. Declare more fractional bits (at most 24), decimal(s), or put "
                "the column in smaller units."
            )
        return messages

    @property
    def advice(self) -> list[str]:
        """Suggestions of types that would suit queries better, by column."""
        return [
            f"{name} is kept as hashes of its {column.texts:,} different texts: they are compared "
            "for equality only, and other clients see hashes. To sort by it and to show its words, "
            f'make these public: --type "{name}:category".'
            for name, column in self.columns.items()
            if 0 < column.texts <= min(_FEW, MAX_WORDS)
        ]

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.schema.rows:,} rows"]
        lines += [f"  {name}: {column}" for name, column in self.columns.items()]
        return "\n".join([*lines, *self.warnings, *self.advice])
