"""Groups by public codes, and valid rows gathered: what a query needs of no order of keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfe_bench.models.queries.expressions import Fact
from tfe_bench.protocols.ring import arithmetic
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


def dense_groups(
    party: Party,
    keys: Relation,
    sums: Sequence[Shared],
    count: int,
    facts: Sequence[Fact],
) -> Grouped:
    """A group for each public combination of codes: sums of what has it.

    Args:
        sums: numbers to add up, 0 in rows that do not count.
        count: of the groups.
    """
    code: Shared = party.function(lambda rows: _code(party, rows, facts))(keys)
    column = Column(code, max(1, (count - 1).bit_length()))
    made: list[Relation] = []
    for begin in range(0, len(sums), dense.MOST_COLUMNS):
        some = [Column(s) for s in sums[begin : begin + dense.MOST_COLUMNS]]
        wanted = [groups.Aggregate("sum", 1 + i) for i in range(len(some))]
        rows = Relation((column, *some), keys.valid)
        made.append(dense.dense_group(party, rows, 0, count, wanted))
    totals = [c.values for each in made for c in each.columns[1:]]
    return Grouped(_decoded(made[0].valid, keys, facts, count), tuple(totals), (), made[0].valid)


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
