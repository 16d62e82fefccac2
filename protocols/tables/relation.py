"""Relations: columns of private numbers, and a private validity bit for each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import shapes, small_ring
from tfe_bench.protocols.ring.checks import is_integer_between
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.sharing import Shared

# Any signed number. Fewer bits mean 0 <= v < 2^bits, which must have been checked.
ANY_BITS = 64
# The most bits of a column that `narrow_parts` reduces.
_MAX_NARROW_BITS = 60


@dataclass(frozen=True, eq=False)
class Column:
    """One column of n rows.

    Attributes:
        values: [n], of Z_2^64; or of Z_2 for a column of bits.
        bits: 1 to 63: 0 <= v < 2^bits in every row that is valid and not NULL, which operators rely
            on (`results.check_range`); 64: any number.
        null: [n] of Z_2, 1 where there is no value; None: every row has a value.
    """

    values: Shared
    bits: int = ANY_BITS
    null: Shared | None = None

    def __post_init__(self) -> None:
        if not is_integer_between(self.bits, 1, ANY_BITS):
            raise UsageError(
                f"A column has 1 to 64 bits. Received: {self.bits!r}.",
                code="number-out-of-range",
                operation="column",
                received=self.bits,
                expected="1 to 64",
            )
        if self.values.limbs != 1 or self.values.bits not in (0, 1):
            raise UsageError(
                f"A column has values of Z_2^64, or bits of Z_2. Received: {self.values!r}.",
                code="unsupported-ring",
                operation="column",
                received=repr(self.values),
            )
        for bit in () if self.null is None else (self.null,):
            _check_column_bits("A column's NULL bits", bit, self.values)

    @property
    def parts(self) -> tuple[Shared, ...]:
        """The values, and the NULL bits if there are any."""
        return (self.values,) if self.null is None else (self.values, self.null)

    @property
    def narrow_parts(self) -> tuple[Shared, ...]:
        """The parts, with values in a smaller ring; `bits.extend_column_values` restores them.

        Local. Moves and products in between cost proportionally fewer bits.
        """
        if self.values.ring_bits == 1 or self.bits > _MAX_NARROW_BITS:
            return self.parts
        return (small_ring.reduce_ring(self.values, self.bits + 1), *self.parts[1:])

    def with_parts(self, parts: Sequence[Shared]) -> Column:
        """Return the same column with other rows."""
        return replace(self, values=parts[0], null=None if self.null is None else parts[1])


@dataclass(frozen=True, eq=False)
class Relation:
    """Rows of columns.

    Attributes:
        columns: all with the same number of rows and one dealer.
        valid: [n] of Z_2, 1 in rows that count.
    """

    columns: tuple[Column, ...]
    valid: Shared

    def __post_init__(self) -> None:
        if self.valid.ring_bits != 1 or len(self.valid.shape) != 1:
            raise UsageError(
                f"A relation has one bit for each row. Received: {self.valid!r}.",
                code="unsupported-type",
                operation="relation",
                received=repr(self.valid),
            )
        for column in self.columns:
            _check_rows("A relation's columns", column.values, self.valid)

    @property
    def rows(self) -> int:
        """The public number of rows."""
        return int(self.valid.shape[0])

    @property
    def parts(self) -> tuple[Shared, ...]:
        """All private parts, the validity bits last."""
        return (*(part for column in self.columns for part in column.parts), self.valid)

    def with_parts(self, parts: Sequence[Shared]) -> Relation:
        """Return the same columns with other rows."""
        columns, at = [], 0
        for column in self.columns:
            columns.append(column.with_parts(parts[at : at + len(column.parts)]))
            at += len(column.parts)
        return Relation(tuple(columns), parts[at])

    def column(self, index: int) -> Column:
        """Return a column by its number.

        Raises:
            UsageError: the column does not exist.
        """
        if not is_integer_between(index, 0, len(self.columns) - 1):
            raise UsageError(
                f"A relation of {len(self.columns)} columns has no column {index!r}. Columns "
                "are numbered from 0.",
                code="column-not-found",
                operation="column",
                received=index,
                expected=f"0 to {len(self.columns) - 1}",
            )
        return self.columns[index]


def limit_rows(relation: Relation, count: int) -> Relation:
    """Return the first rows, valid or not. Local.

    Raises:
        UsageError: count is negative.
    """
    if not is_integer_between(count, 0, 2**62):
        raise UsageError(
            f"limit expects a number of rows from 0. Received: {count!r}.",
            code="number-out-of-range",
            operation="limit",
            received=count,
        )
    row_count = min(count, relation.rows)
    return relation.with_parts(
        [
            part.map(lambda a: tensor_ops.strided_slice(a, np.s_[:row_count]))
            for part in relation.parts
        ]
    )


def union_rows(relations: Sequence[Relation]) -> Relation:
    """Concatenate the rows of relations. Local.

    Raises:
        UsageError: the list is empty, or columns differ in number, ring, scale or NULL bits.
    """
    if not relations:
        raise UsageError(
            "union expects relations. Received: none.", code="empty-input", operation="union"
        )
    first = relations[0]
    for other in relations[1:]:
        if [_table_column_format(c) for c in other.columns] != [
            _table_column_format(c) for c in first.columns
        ]:
            raise UsageError(
                "union expects columns of the same number, ring and scale, with NULL bits "
                f"in all or none. Received: {[_table_column_format(c) for c in first.columns]} and "
                f"{[_table_column_format(c) for c in other.columns]}.",
                code="unsupported-type",
                operation="union",
                received=[_table_column_format(c) for c in other.columns],
                expected=[_table_column_format(c) for c in first.columns],
            )
    parts = [
        shapes.concat(list(same_parts), 0)
        for same_parts in zip(*(r.parts for r in relations), strict=True)
    ]
    joined = first.with_parts(parts)
    widest = [max(r.columns[i].bits for r in relations) for i in range(len(first.columns))]
    columns = (replace(c, bits=b) for c, b in zip(joined.columns, widest, strict=True))
    return Relation(tuple(columns), joined.valid)


def _table_column_format(column: Column) -> tuple[int, int, bool]:
    return column.values.ring_bits, column.values.fractional_bits, column.null is not None


def _check_rows(name: str, part: Shared, template: Shared) -> None:
    if part.shape.as_list() != template.shape.as_list() or part.dealer != template.dealer:
        raise UsageError(
            f"{name} have one shape and dealer. Received: {part!r} and {template!r}.",
            code="shape-mismatch",
            operation=name,
            received=repr(part),
            expected=repr(template),
        )


def _check_column_bits(name: str, bits: Shared, template: Shared) -> None:
    _check_rows(name, bits, template)
    if bits.ring_bits != 1:
        raise UsageError(
            f"{name} are of Z_2. Received: {bits!r}.",
            code="unsupported-ring",
            operation=name,
            received=repr(bits),
        )
