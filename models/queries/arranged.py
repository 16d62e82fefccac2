"""Groups by public codes, and valid rows gathered: what a query needs of no order of keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfe_bench.models.queries.expressions import Fact
from tfe_bench.protocols.ring import arithmetic, relational, shapes
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange, bits, results
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
    groups: int,
    facts: Sequence[Fact],
) -> Grouped:
    """A group for each public combination of codes: sums of what has it.

    Args:
        sums: numbers to add up, 0 in rows that do not count; the first counts rows.
    """

    def made(keys: Relation, sums: list[Shared]) -> Grouped:
        code = _code(party, keys, facts)
        n = keys.rows

        def added(a: Any) -> Any:
            return local.reduce_sum(local.reshape(a, [1, n]), [1], False)

        hot = []
        for group in range(groups):
            away = arithmetic.moved(code, np.int64(-group))
            zero = away.map(lambda a: 0 * a)
            hot.append(relational.equal(party, away, zero, groups.bit_length() + 2))
        totals = []
        bit = [bits.of(party, h) for h in hot]
        for word in sums:
            rows = []
            for b in bit:
                chosen = bits.times(party, b, word)
                rows.append(chosen.map(added))
            totals.append(shapes.concat(rows, 0))
        columns = _decoded(code, keys, facts, groups)
        nothing = arithmetic.moved(totals[0], np.int64(-1))
        empty = bits.of(party, relational.negative(party, nothing, n.bit_length() + 1))
        return Grouped(columns, tuple(totals), (), bits.invert(empty))

    result: Grouped = party.function(made)(keys, list(sums))
    return result


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


def _decoded(
    like: Shared, keys: Relation, facts: Sequence[Fact], groups: int
) -> tuple[Column, ...]:
    """The keys of all groups, which are public."""
    codes = np.arange(groups, dtype=np.int64)
    found: list[Column] = []
    for column, fact in reversed(list(zip(keys.columns, facts, strict=True))):
        codes, own = np.divmod(codes, fact.known.high + 1)
        values: Any = arithmetic.public(like, own)
        if column.values.ring_bits == 1:
            values = replace(values, bits=1)
        found.append(Column(values, column.bits))
    return tuple(reversed(found))
