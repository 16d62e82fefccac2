"""Units of a group: how many different people, say, its rows are about.

For each table whose units may be in several rows a sort brings together the rows of one group and
unit; the first of them that contributes is marked, so that marks add up to the number of units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tfe_bench.models.queries.plan import Step
from tfe_bench.models.queries.relations import Relation as Facts
from tfe_bench.protocols.ring import arithmetic, equality
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import bits
from tfe_bench.protocols.tables.keys import Key
from tfe_bench.protocols.tables.relation import Column, Relation
from tfe_bench.protocols.tables.windows import Window, windows

# By table: the column of marks of units with a value in a column, or (None) in any row.
Marks = dict[str, dict[str | None, str]]


def marked(
    party: Party,
    step: Step,
    valid: Shared,
    named: Mapping[str, Column],
    about: Facts,
    aliases: Sequence[str],
    profile: str = "local",
) -> tuple[Shared, dict[str, Column], Marks]:
    """The rows of a step `group`, in another order, with columns of marks.

    Args:
        valid, named, about: the rows.
        aliases: of the tables whose units are counted.

    A unit that is NULL is none; an aggregate's column counts where it has a value.
    """
    columns, marks = dict(named), Marks()
    for alias in aliases:
        unit = about.records[alias].unit
        counted = {
            argument
            for _, _, argument in step["aggregates"]
            if argument is not None
            and about.columns[argument].nullable
            and alias in {source.alias for source in about.columns[argument].sources}
        }
        wanted: list[str | None] = [None, *sorted(counted)]
        names = list(columns)
        parted = [names.index(name) for name in dict.fromkeys([*step["keys"], unit])]
        # any order will do
        least = min(parted, key=lambda i: columns[names[i]].bits)
        functions = [Window("count", None if w is None else names.index(w)) for w in wanted]
        rows = Relation(tuple(columns.values()), valid)
        told = windows(party, rows, parted, [Key(least)], functions, profile=profile)
        columns = dict(zip(names, told.columns, strict=False))
        valid = told.valid
        counts = told.columns[len(names) :]

        def first(
            valid: Shared, unit: Column, given: list[Column], counts: list[Column]
        ) -> list[Shared]:
            found = []
            nulls = [unit.null, *(None if c is None else c.null for c in given)]
            for i, count in enumerate(counts):
                own = [nulls[0], nulls[i + 1]]
                there = [valid, *(bits.invert(null) for null in own if null is not None)]
                one = arithmetic.moved(count.values, np.int64(-1))
                is_one = bits.of(party, equality.zero(party, [(one, count.bits + 1)]))
                found.append(bits.all_of(party, [*there, is_one]))
            return found

        given = [columns[unit if w is None else w] for w in wanted]
        made = party.function(first)(valid, columns[unit], given, counts)
        marks[alias] = {w: f"{alias}?of {w or ''}" for w in wanted}
        columns.update(
            {name: Column(m, 1) for name, m in zip(marks[alias].values(), made, strict=True)}
        )
    return valid, columns, marks
