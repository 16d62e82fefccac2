"""Groups by public codes, and valid rows gathered: what a query needs of no order of keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfe_bench.models.queries.expressions import Fact
from tfe_bench.protocols.ring import arithmetic, shapes
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange, bits, dense, groups, results
from tfe_bench.protocols.tables.relation import Column, Relation


@dataclass(frozen=True, eq=False)
class Grouped:
    """Groups: keys, what was added up in each, the extremes, and whether it is one."""

    keys: tuple[Column, ...]
    sums: tuple[Shared, ...]
    extremes: tuple[Shared, ...]
    valid: Shared


def every(party: Party, several: Sequence[Shared]) -> Shared:
    """AND of any number of bits."""
    while len(several) > 1:
        several = [bits.all_of(party, several[i : i + 6]) for i in range(0, len(several), 6)]
    return several[0]


def gathered(party: Party, rows: Relation) -> Relation:
    """Valid rows first; where they were cannot be seen in their order."""
    mixed = results.deliver(party, rows)
    return mixed.with_parts(arrange.by_bit(party, mixed.valid).forward(mixed.parts))


def coded_groups(
    party: Party,
    rows: Relation,
    wanted: Sequence[groups.Aggregate],
    count: int,
    facts: Sequence[Fact],
    profile: str = "local",
    *,
    by_sort: bool,
) -> Grouped:
    """A group for each public combination of codes.

    Args:
        rows: keys first; then what is added up or counted.
        wanted: the number of rows first, then of columns behind the keys.
        count: of the groups.
        facts: of the keys.
        by_sort: for more combinations than `dense_group` takes.
    """
    keys = len(facts)
    of_keys = Relation(rows.columns[:keys], rows.valid)
    given = _coded(party, rows, keys, count, facts)
    own = [replace(a, column=None if a.column is None else a.column - keys + 1) for a in wanted]
    if by_sort:
        sums, valid = _by_sort(party, given, own, count, profile)
    else:
        sums, valid = _by_dense(party, given, own, count)
    return Grouped(_decoded(valid, of_keys, facts, count), tuple(sums), (), valid)


def _by_dense(
    party: Party, given: Relation, wanted: Sequence[groups.Aggregate], count: int
) -> tuple[list[Shared], Shared]:
    """What is wanted of each code, and which are groups."""
    found: dict[groups.Aggregate, Shared] = {}
    made: list[Relation] = []
    for some in _columns_at_once(given, wanted):
        made.append(dense.dense_group(party, given, 0, count, some))
        found.update(zip(some, (c.values for c in made[-1].columns[1:]), strict=True))
    return [found[a] for a in wanted], made[0].valid


def _by_sort(
    party: Party, given: Relation, wanted: Sequence[groups.Aggregate], count: int, profile: str
) -> tuple[list[Shared], Shared]:
    """As `_by_dense`; all are groups.

    A row more for each of them, of no value, makes all of them groups, which stand in their order.
    """

    def filled(given: Relation) -> Relation:
        parts = [shapes.pad(part, [[0, count]]) for part in given.parts]
        ones = np.arange(given.rows + count) >= given.rows
        codes = np.maximum(np.arange(-given.rows, count, dtype=np.int64), 0)
        parts[0] = arithmetic.moved(parts[0], codes)
        parts[-1] = bits.xor(parts[-1], bits.public(parts[-1], ones))
        made, at = [], 0
        for column in given.columns:
            own = parts[at : at + len(column.parts)]
            if column.null is not None:  # (of which no aggregate counts those rows)
                own[1] = bits.xor(own[1], bits.public(own[1], ones))
            made.append(column.with_parts(own))
            at += len(own)
        return Relation(tuple(made), parts[-1])

    sorted_ = groups.group(party, party.function(filled)(given), [0], wanted, profile=profile)

    def counted(made: Relation) -> list[Shared]:
        found = []
        for aggregate, column in zip(wanted, made.columns[1:], strict=True):
            total = column.values.map(lambda a: a[:count])
            every_row = aggregate.how == "count" and (
                aggregate.column is None or given.columns[aggregate.column].null is None
            )
            found.append(arithmetic.moved(total, np.int64(-1)) if every_row else total)
        return found

    sums: list[Shared] = party.function(counted)(sorted_)
    return sums, bits.public(sums[0], np.ones(count))


def _coded(party: Party, rows: Relation, keys: int, count: int, facts: Sequence[Fact]) -> Relation:
    """Rows with one column, of the number of their combination, in place of their keys."""
    of_keys = Relation(rows.columns[:keys], rows.valid)
    code: Shared = party.function(lambda rows: _code(party, rows, facts))(of_keys)
    column = Column(code, max(1, (count - 1).bit_length()))
    return replace(rows, columns=(column, *rows.columns[keys:]))


def _columns_at_once(
    rows: Relation, wanted: Sequence[groups.Aggregate]
) -> list[list[groups.Aggregate]]:
    """Aggregates by what `dense_group` takes in one go; those of one column stay together."""
    found: list[list[groups.Aggregate]] = [[]]
    taken = 0
    for column in dict.fromkeys(a.column for a in wanted):
        own = [a for a in wanted if a.column == column]
        each = 0 if column is None else 1 + (rows.columns[column].null is not None)
        if taken + each > dense.MOST_COLUMNS:
            found.append([])
            taken = 0
        found[-1] += own
        taken += each
    return found


def _code(party: Party, keys: Relation, facts: Sequence[Fact]) -> Shared:
    code: Shared | None = None
    for column, fact in zip(keys.columns, facts, strict=True):
        word = column.values
        if word.ring_bits == 1:
            word = bits.number(party, word)
        if code is not None:
            scaled = arithmetic.mul_public(code, np.int64(fact.known.high + 1))
            word = arithmetic.add(scaled, word)
        code = word
    assert code is not None
    return code


def _decoded(like: Shared, keys: Relation, facts: Sequence[Fact], count: int) -> tuple[Column, ...]:
    """The keys of all groups, which are public."""
    codes = np.arange(count, dtype=np.int64)
    found: list[Column] = []
    for column, fact in reversed(list(zip(keys.columns, facts, strict=True))):
        codes, own = np.divmod(codes, fact.known.high + 1)
        values = replace(arithmetic.public(like, own), bits=column.values.bits)
        found.append(Column(values, column.bits))
    return tuple(reversed(found))
