"""Groups by public codes, and compaction of valid rows: steps that need no order of keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfe_bench.protocols.ring import arithmetic, shapes
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange, bits, dense, groups, results
from tfe_bench.protocols.tables.relation import Column, Relation
from tfe_bench.queries.column_facts import ColumnFact


@dataclass(frozen=True, eq=False)
class GroupColumns:
    """Groups of a relation: keys, totals, extremes, and validity."""

    keys: tuple[Column, ...]
    sums: tuple[Shared, ...]
    extremes: tuple[Shared, ...]
    valid: Shared


def and_bits(party: Party, terms: Sequence[Shared]) -> Shared:
    """Compute the AND of any number of bits."""
    while len(terms) > 1:
        terms = [bits.all_of(party, terms[i : i + 6]) for i in range(0, len(terms), 6)]
    return terms[0]


def gather_valid_rows(party: Party, rows: Relation) -> Relation:
    """Move valid rows to the front; their order discloses nothing about their earlier places."""
    shuffled = results.deliver_rows(party, rows)
    return shuffled.with_parts(
        arrange.partition_by_bit(party, shuffled.valid).apply(shuffled.parts)
    )


def group_by_codes(
    party: Party,
    rows: Relation,
    aggregates: Sequence[groups.GroupAggregate],
    count: int,
    facts: Sequence[ColumnFact],
    profile: str = "local",
    *,
    by_sort: bool,
) -> GroupColumns:
    """Form one group for each public combination of codes.

    Args:
        rows: keys first, then columns to sum or count.
        aggregates: the number of rows first, then aggregates of columns behind the keys.
        count: number of groups.
        facts: facts about the keys.
        by_sort: whether to sort, for more combinations than `dense_group` takes.
    """
    keys = len(facts)
    of_keys = Relation(rows.columns[:keys], rows.valid)
    coded_rows = _replace_keys_by_code(party, rows, keys, count, facts)
    shifted = [
        replace(a, column=None if a.column is None else a.column - keys + 1) for a in aggregates
    ]
    if by_sort:
        sums, valid = _sum_groups_by_sort(party, coded_rows, shifted, count, profile)
    else:
        sums, valid = _sum_groups_by_code(party, coded_rows, shifted, count)
    return GroupColumns(_decode_group_keys(valid, of_keys, facts, count), tuple(sums), (), valid)


def _sum_groups_by_code(
    party: Party, rows: Relation, aggregates: Sequence[groups.GroupAggregate], count: int
) -> tuple[list[Shared], Shared]:
    """Compute the aggregates of each code, and the validity of groups."""
    totals: dict[groups.GroupAggregate, Shared] = {}
    relations: list[Relation] = []
    for batch in _split_aggregates(rows, aggregates):
        relations.append(dense.group_by_code(party, rows, 0, count, batch))
        totals.update(zip(batch, (c.values for c in relations[-1].columns[1:]), strict=True))
    return [totals[a] for a in aggregates], relations[0].valid


def _sum_groups_by_sort(
    party: Party,
    rows: Relation,
    aggregates: Sequence[groups.GroupAggregate],
    count: int,
    profile: str,
) -> tuple[list[Shared], Shared]:
    """Compute the same as `_sum_groups_by_code` by a sort; all codes are groups.

    One further row without value for each code makes every code a group, in the order of codes.
    """

    def append_rows(rows: Relation) -> Relation:
        parts = [shapes.pad(part, [[0, count]]) for part in rows.parts]
        ones = np.arange(rows.rows + count) >= rows.rows
        codes = np.maximum(np.arange(-rows.rows, count, dtype=np.int64), 0)
        parts[0] = arithmetic.add_constant(parts[0], codes)
        parts[-1] = bits.xor(parts[-1], bits.share_public_row_bits(parts[-1], ones))
        columns, at = [], 0
        for column in rows.columns:
            column_parts = parts[at : at + len(column.parts)]
            if column.null is not None:  # (no aggregate counts the added rows)
                column_parts[1] = bits.xor(
                    column_parts[1], bits.share_public_row_bits(column_parts[1], ones)
                )
            columns.append(column.with_parts(column_parts))
            at += len(column_parts)
        return Relation(tuple(columns), parts[-1])

    grouped = groups.group_rows(
        party, party.function(append_rows)(rows), [0], aggregates, profile=profile
    )

    def remove_extra(grouped: Relation) -> list[Shared]:
        totals = []
        for aggregate, column in zip(aggregates, grouped.columns[1:], strict=True):
            total = column.values.map(lambda a: a[:count])
            every_row = aggregate.function == "count" and (
                aggregate.column is None or rows.columns[aggregate.column].null is None
            )
            totals.append(arithmetic.add_constant(total, np.int64(-1)) if every_row else total)
        return totals

    sums: list[Shared] = party.function(remove_extra)(grouped)
    return sums, bits.share_public_row_bits(sums[0], np.ones(count))


def _replace_keys_by_code(
    party: Party, rows: Relation, keys: int, count: int, facts: Sequence[ColumnFact]
) -> Relation:
    """Replace the keys of rows by one column with the number of their combination."""
    of_keys = Relation(rows.columns[:keys], rows.valid)
    code: Shared = party.function(lambda rows: _combine_key_codes(party, rows, facts))(of_keys)
    column = Column(code, max(1, (count - 1).bit_length()))
    return replace(rows, columns=(column, *rows.columns[keys:]))


def _split_aggregates(
    rows: Relation, aggregates: Sequence[groups.GroupAggregate]
) -> list[list[groups.GroupAggregate]]:
    """Split aggregates into batches of at most as many columns as `dense_group` takes; aggregates
    of one column stay together.
    """
    batches: list[list[groups.GroupAggregate]] = [[]]
    used = 0
    for column in dict.fromkeys(a.column for a in aggregates):
        of_column = [a for a in aggregates if a.column == column]
        size = 0 if column is None else 1 + (rows.columns[column].null is not None)
        if used + size > dense.MAX_COLUMNS:
            batches.append([])
            used = 0
        batches[-1] += of_column
        used += size
    return batches


def _combine_key_codes(party: Party, keys: Relation, facts: Sequence[ColumnFact]) -> Shared:
    code: Shared | None = None
    for column, fact in zip(keys.columns, facts, strict=True):
        word = column.values
        if word.ring_bits == 1:
            word = bits.to_number(party, word)
        if code is not None:
            scaled = arithmetic.mul_public(code, np.int64(fact.value_type.high + 1))
            word = arithmetic.add(scaled, word)
        code = word
    assert code is not None
    return code


def _decode_group_keys(
    like: Shared, keys: Relation, facts: Sequence[ColumnFact], count: int
) -> tuple[Column, ...]:
    """Return the public keys of all groups."""
    codes = np.arange(count, dtype=np.int64)
    columns: list[Column] = []
    for column, fact in reversed(list(zip(keys.columns, facts, strict=True))):
        codes, key_codes = np.divmod(codes, fact.value_type.high + 1)
        values = replace(arithmetic.share_public(like, key_codes), bits=column.values.bits)
        columns.append(Column(values, column.bits))
    return tuple(reversed(columns))
