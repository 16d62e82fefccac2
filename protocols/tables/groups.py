"""Groups of rows with equal keys: a sort, one equality with the row before, and one partition.

Sums and counts are differences of running sums at the beginnings of groups; smallest and largest
values are at the ends of groups. So no scan is required for any number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.order import sort
from tfe_bench.protocols.ring import arithmetic, equality, relational, shapes
from tfe_bench.protocols.ring.checks import check_choice, is_integer_between
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange, bits, keys
from tfe_bench.protocols.tables.arrange import cached_graph
from tfe_bench.protocols.tables.relation import ANY_BITS, Column, Relation

FUNCTIONS = ("sum", "count", "min", "max")


@dataclass(frozen=True)
class GroupAggregate:
    """An aggregate function of a group.

    Attributes:
        function: "sum" (modulo 2^64), "count", "min" or "max"; rows without a value are skipped.
        column: its argument; None counts rows.
    """

    function: str
    column: int | None = None


def check_group_aggregates(
    name: str, relation: Relation, aggregates: Sequence[GroupAggregate]
) -> None:
    """Check the aggregates of a relation's columns.

    Raises:
        UsageError: an aggregate is unknown, or its column does not exist or has bits.
    """
    for aggregate in aggregates:
        check_choice("aggregate", aggregate.function, FUNCTIONS, name)
        if aggregate.column is None:
            if aggregate.function != "count":
                raise UsageError(
                    f"{name} expects a column for {aggregate.function}. Received: None.",
                    code="missing-argument",
                    operation=name,
                    expected=f"column of {aggregate.function}",
                )
        elif (
            relation.column(aggregate.column).values.ring_bits == 1
            and aggregate.function != "count"
        ):
            raise UsageError(
                f"{name} computes {aggregate.function} of numbers. Received: column "
                f"{aggregate.column}, of bits. Convert bits to numbers (bits.to_number).",
                code="unsupported-type",
                operation=name,
                received=aggregate.column,
            )


def distinct_rows(
    party: Party, relation: Relation, by: Sequence[int], *, profile: str = "local"
) -> Relation:
    """Return one row for each key, the columns `by` alone. Costs and errors: as `group_rows`."""
    return group_rows(party, relation, by, (), profile=profile)


def group_rows(
    party: Party,
    relation: Relation,
    by: Sequence[int],
    aggregates: Sequence[GroupAggregate],
    *,
    min_rows: int = 1,
    profile: str = "local",
) -> Relation:
    """Return a row for each group of valid rows with equal keys: columns `by`, then aggregates.

    The result has as many rows as the input. The rows of groups come first and are valid; the
    others hold arbitrary values. Rows with NULL keys form one group. The sum, minimum and maximum
    of no value are NULL.

    Args:
        by: numbers of the key columns, at least one.
        min_rows: groups with fewer rows are not valid. They keep their positions among the others:
            deliver the result in another order.

    Rounds: those of keys.clear_keys and keys.sort_rows_by_key_parts, and about 16. Bits sent:
    those, an equality, a partition, and two moves of each column; again for each column of a "min"
    or "max" but the first.
    Raises:
        UsageError: no or unknown columns, unknown aggregates, min_rows below 1.
        RangeError: a key is outside its column's bits.
    """
    check_group_aggregates("group", relation, aggregates)
    if not by or not is_integer_between(min_rows, 1, 2**62):
        raise UsageError(
            f"group expects keys, and at least 1 row per group. Received: {by!r}, {min_rows!r}.",
            code="number-out-of-range" if by else "empty-input",
            operation="group",
            received=f"{by!r}, {min_rows!r}",
        )
    for i in by:
        relation.column(i)
    aggregate_columns: list[Column | None] = [None] * len(aggregates)
    result: Relation | None = None
    sorts: list[tuple[int | None, bool]] = [*_aggregate_sort_columns(relation, aggregates)]
    for sort_column, descending in sorts or [(None, False)]:
        aggregate_numbers = [
            i
            for i, a in enumerate(aggregates)
            if (
                _aggregate_sort_column(relation, a)
                or (sort_column if result is None else -1, descending)
            )
            == (sort_column, descending)
        ]
        sort_aggregates = [aggregates[i] for i in aggregate_numbers]
        grouped = _group_sorted(
            party, relation, by, sort_column, descending, sort_aggregates, min_rows, profile
        )
        for i, column in zip(aggregate_numbers, grouped.columns[len(by) :], strict=True):
            aggregate_columns[i] = column
        result = grouped if result is None else result
    assert result is not None
    columns = (*result.columns[: len(by)], *(c for c in aggregate_columns if c is not None))
    return Relation(columns, result.valid)


def _aggregate_sort_column(
    relation: Relation, aggregate: GroupAggregate
) -> tuple[int, bool] | None:
    """Return the column whose sort yields an extreme, and its direction (True: descending)."""
    if aggregate.function not in ("min", "max") or aggregate.column is None:
        return None
    is_nullable = relation.column(aggregate.column).null is not None
    # The largest value is the last, unless rows without a value come last.
    return aggregate.column, aggregate.function == "max" and is_nullable


def _aggregate_sort_columns(
    relation: Relation, aggregates: Sequence[GroupAggregate]
) -> list[tuple[int, bool]]:
    sort_columns = [_aggregate_sort_column(relation, a) for a in aggregates]
    return list(dict.fromkeys(f for f in sort_columns if f is not None))


def _group_sorted(
    party: Party,
    relation: Relation,
    by: Sequence[int],
    sort_column: int | None,
    descending: bool,
    aggregates: Sequence[GroupAggregate],
    min_rows: int,
    profile: str,
) -> Relation:
    """Run `group_rows` for "min" and "max" of at most one column."""
    n = relation.rows
    key_columns = [relation.column(i) for i in by]
    value_columns = [None if a.column is None else relation.column(a.column) for a in aggregates]
    parts = keys.clear_keys(party, relation.valid, [(c, False) for c in key_columns])
    value_parts = []
    if sort_column is not None:
        value_parts = keys.clear_keys(
            party, relation.valid, [(relation.column(sort_column), descending)], False
        )
    permutation = keys.sort_rows_by_key_parts(
        party, relation.valid, [*parts, *value_parts], profile
    )
    widths = tuple(k for _, k in parts)
    columns = list(dict.fromkeys([*by, *(a.column for a in aggregates if a.column is not None)]))
    used_columns = [relation.column(i) for i in columns]
    sorted_parts = permutation.apply(
        [*keys.narrow_key_parts(parts), *(p for c in used_columns for p in c.parts), relation.valid]
    )
    column_places = {column: i for i, column in enumerate(columns)}

    def mark_group_beginnings(
        sorted_keys: list[Shared], sorted_columns: list[Column], valid: Shared
    ) -> Any:
        first = bits.invert(keys.equals_previous(party, sorted_keys, widths))
        valid_first = bits.all_of(party, [first, valid])
        # An additional row ends the last group.
        flag = shapes.pad(first, [[0, 1]], constant_values=1)
        columns = [
            shapes.pad(p, [[0, 1]]) for i in by for p in sorted_columns[column_places[i]].parts
        ]
        columns.append(row_position_column(valid, n + 1))
        for a in aggregates:
            columns += _prepare_group_aggregate(
                party, a, None if a.column is None else sorted_columns[column_places[a.column]]
            )
        return flag, [*columns, shapes.pad(valid_first, [[0, 1]])]

    def derive_group_aggregates(group_values: list[Shared]) -> list[Shared]:
        first_values = [
            c.map(lambda a: tensor_ops.strided_slice(a, np.s_[:n])) for c in group_values
        ]
        next_values = [
            c.map(lambda a: tensor_ops.strided_slice(a, np.s_[1:])) for c in group_values
        ]
        at = sum(len(c.parts) for c in key_columns)
        aggregate_parts = first_values[:at]
        count = arithmetic.sub(next_values[at], first_values[at])
        at += 1
        for a, column in zip(aggregates, value_columns, strict=True):
            if a.function == "count" and (column is None or column.null is None):
                aggregate_parts.append(count)
            elif a.function in ("sum", "count"):
                aggregate_parts.append(arithmetic.sub(next_values[at], first_values[at]))
                at += 1
                if a.function == "sum" and column is not None and column.null is not None:
                    present_count = arithmetic.sub(next_values[at], first_values[at])
                    at += 1
                    width = sort.sort_index_bits(n) + 1
                    aggregate_parts.append(
                        bits.from_masked(
                            party, equality.are_shares_all_zero(party, [(present_count, width)])
                        )
                    )
            else:
                extreme_parts = (
                    next_values if a.function == "max" and not descending else first_values
                )
                width = 1 if column is None or column.null is None else 2
                aggregate_parts += extreme_parts[at : at + width]
                at += width
        valid = first_values[at]
        if min_rows > 1:
            width = max(sort.sort_index_bits(n), int(min_rows).bit_length()) + 2
            is_short = relational.is_negative(
                party, arithmetic.add_constant(count, np.int64(-min_rows)), width
            )
            is_large_enough = bits.invert(bits.from_masked(party, is_short))
            valid = bits.all_of(party, [valid, is_large_enough])
        return [*aggregate_parts, valid]

    kinds = tuple((a.function, a.column) for a in aggregates)
    key = (n, widths, tuple(by), tuple(columns), kinds, descending)
    sorted_keys, sorted_values = sorted_parts[: len(parts)], sorted_parts[len(parts) : -1]
    sorted_columns, at = [], 0
    for column in used_columns:
        sorted_columns.append(column.with_parts(sorted_values[at : at + len(column.parts)]))
        at += len(column.parts)
    flag, end_values = cached_graph(party, "beginnings", mark_group_beginnings, *key)(
        sorted_keys, sorted_columns, sorted_parts[-1]
    )
    group_values = arrange.partition_by_bit(party, flag).apply(end_values)
    is_nullable = tuple(
        c is not None and c.null is not None for c in [*key_columns, *value_columns]
    )
    aggregate_parts = cached_graph(
        party, "ends", derive_group_aggregates, *key, is_nullable, min_rows
    )(group_values)
    return _build_relation(relation, key_columns, aggregates, value_columns, aggregate_parts, n)


def _build_relation(
    relation: Relation,
    key_columns: Sequence[Column],
    aggregates: Sequence[GroupAggregate],
    value_columns: Sequence[Column | None],
    parts: list[Shared],
    n: int,
) -> Relation:
    columns, at = [], 0
    for column in key_columns:
        columns.append(column.with_parts(parts[at : at + len(column.parts)]))
        at += len(column.parts)
    for a, source in zip(aggregates, value_columns, strict=True):
        null = None
        values = parts[at]
        at += 1
        if a.function != "count" and source is not None and source.null is not None:
            null = parts[at]
            at += 1
        if a.function == "count":
            columns.append(Column(replace(values, fractional_bits=0), row_count_bits(n)))
        else:
            assert source is not None
            columns.append(Column(values, ANY_BITS if a.function == "sum" else source.bits, null))
    return Relation(tuple(columns), parts[at])


def row_count_bits(n: int) -> int:
    """Return the bits of a number of rows."""
    return max(1, n.bit_length())


def row_position_column(like: Shared, n: int) -> Shared:
    """Return the public column 0 .. n-1."""
    return arithmetic.share_public_range(like, n)


def row_prefix_sums(x: Shared) -> Shared:
    """Return the sum before each row, and behind the last. Local."""
    return shapes.pad(x.map(lambda a: tensor_ops.cumsum(a, 0, False, False)), [[1, 0]])


def _prepare_group_aggregate(
    party: Party, aggregate: GroupAggregate, column: Column | None
) -> list[Shared]:
    """Return columns with one more row, which hold an aggregate at the beginnings of groups."""
    if column is None:
        return []
    if aggregate.function in ("min", "max"):
        return [
            _pad_group_extreme(p, aggregate.function, column.null is not None) for p in column.parts
        ]
    if column.null is None:
        return [] if aggregate.function == "count" else [row_prefix_sums(column.values)]
    is_present = bits.invert(column.null)
    count = row_prefix_sums(bits.to_number(party, is_present))
    if aggregate.function == "count":
        return [count]
    return [row_prefix_sums(bits.multiply_by_bit(party, is_present, column.values)), count]


def _pad_group_extreme(x: Shared, function: str, is_nullable: bool) -> Shared:
    """Return values at each group's first row, or before the next group's."""
    is_last = function == "max" and not is_nullable
    return shapes.pad(x, [[1, 0]] if is_last else [[0, 1]])
