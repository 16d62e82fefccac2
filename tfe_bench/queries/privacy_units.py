"""Privacy units of a group: the number of different units, for example people, among its rows.

For each table whose units may be in several rows, a sort brings together the rows of one group and
unit. The first of them that contributes is marked, so that the sum of marks is the number of
units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfe_bench.protocols.ring import arithmetic, equality
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import bits
from tfe_bench.protocols.tables.keys import OrderKey
from tfe_bench.protocols.tables.relation import Column, Relation
from tfe_bench.protocols.tables.windows import WindowFunction, compute_windows
from tfe_bench.queries.relation_facts import Relation as Facts

# Columns of marks by table: of units with a value in a column, or (None) in any row.
Marks = dict[str, dict[str | None, str]]


def mark_privacy_units(
    party: Party,
    keys: Sequence[str],
    aggregates: Sequence[Sequence[Any]],
    valid: Shared,
    named: Mapping[str, Column],
    input_facts: Facts,
    aliases: Sequence[str],
    profile: str = "local",
) -> tuple[Shared, dict[str, Column], Marks]:
    """Return the rows of a step `group`, in another order, with columns of marks.

    A unit that is NULL does not count; a row counts for an aggregate's column if it has a value
    there.

    Args:
        keys, aggregates: those of the step.
        valid, named, input_facts: validity, columns and facts of the rows.
        aliases: aliases of the tables whose units are counted.
    """
    columns, marks = dict(named), Marks()
    for alias in aliases:
        unit = input_facts.records[alias].unit
        counted = {
            argument
            for _, _, argument in aggregates
            if argument is not None
            and input_facts.columns[argument].nullable
            and alias in {source.alias for source in input_facts.columns[argument].sources}
        }
        arguments: list[str | None] = [None, *sorted(counted)]
        names = list(columns)
        parted = [names.index(name) for name in dict.fromkeys([*keys, unit])]
        # any order is suitable
        narrowest = min(parted, key=lambda i: columns[names[i]].bits)
        functions = [
            WindowFunction("count", None if w is None else names.index(w)) for w in arguments
        ]
        rows = Relation(tuple(columns.values()), valid)
        counted_rows = compute_windows(
            party, rows, parted, [OrderKey(narrowest)], functions, profile=profile
        )
        columns = dict(zip(names, counted_rows.columns, strict=False))
        valid = counted_rows.valid
        counts = counted_rows.columns[len(names) :]

        def mark_first(
            valid: Shared, unit: Column, columns: list[Column], counts: list[Column]
        ) -> list[Shared]:
            mark_bits = []
            nulls = [unit.null, *(None if c is None else c.null for c in columns)]
            for i, count in enumerate(counts):
                null_bits = [nulls[0], nulls[i + 1]]
                conditions = [valid, *(bits.invert(null) for null in null_bits if null is not None)]
                one = arithmetic.add_constant(count.values, np.int64(-1))
                is_one = bits.from_masked(
                    party, equality.are_shares_all_zero(party, [(one, count.bits + 1)])
                )
                mark_bits.append(bits.all_of(party, [*conditions, is_one]))
            return mark_bits

        argument_columns = [columns[unit if w is None else w] for w in arguments]
        mark_columns = party.function(mark_first)(valid, columns[unit], argument_columns, counts)
        marks[alias] = {w: f"{alias}?of {w or ''}" for w in arguments}
        columns.update(
            {
                name: Column(m, 1)
                for name, m in zip(marks[alias].values(), mark_columns, strict=True)
            }
        )
    return valid, columns, marks
