"""Quantiles of a query's groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfe_bench.protocols.ring import arithmetic
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables.keys import OrderKey
from tfe_bench.protocols.tables.quantiles import CONT, DISC, group_quantiles, rows_at_ranks
from tfe_bench.protocols.tables.relation import Column, Relation
from tfe_bench.queries.plan_syntax import PARTS, parse_quantile
from tfe_bench.queries.relation_facts import Relation as Facts


def compute_group_quantiles(
    party: Party,
    aggregates: Sequence[Sequence[Any]],
    keys: Relation,
    named: Mapping[str, Column],
    input_facts: Facts,
    count: int,
    profile: str = "local",
) -> dict[str, Shared]:
    """Compute the elements of quantile aggregates, by name, in the order of sorted groups.

    One sort for each column and kind of quantile. For a whole table in which every row has a
    value, the ranks are public and nothing is sorted.

    Args:
        keys: columns of the key; without columns all rows form one group.
        named, input_facts: columns and facts of the grouped rows.
        count: number of rows of groups to keep.
    """
    fractions_by_column: dict[tuple[str, str], dict[str, int]] = {}
    for name, function, argument in aggregates:
        if (quantile := parse_quantile(function)) is not None:
            fractions_by_column.setdefault((argument, quantile[0]), {})[name] = quantile[1]
    elements_by_name: dict[str, Shared] = {}
    by = range(len(keys.columns))
    for (argument, way), parts in fractions_by_column.items():
        rows = Relation((*keys.columns, named[argument]), keys.valid)
        how = DISC if way == "quantile_disc" else CONT
        fact, fractions = input_facts.columns[argument], list(parts.values())
        if not by and input_facts.valid and not fact.nullable:
            values = _select_quantiles(party, rows, fractions, how, profile)
        else:
            quantile_rows = group_quantiles(
                party, rows, by, len(by), fractions, method=how, profile=profile
            )
            values = [c.values.map(lambda a: a[:count]) for c in quantile_rows.columns[len(by) :]]
        # (columns are stored as distances)
        offset = fact.value_type.offset * (1 if how == DISC else PARTS)
        for name, data in zip(parts, values, strict=True):
            elements_by_name[name] = arithmetic.add_constant(data, np.int64(offset))
    return elements_by_name


def _select_quantiles(
    party: Party, rows: Relation, fractions: Sequence[int], how: str, profile: str
) -> list[Shared]:
    """Select quantiles [1] of the only column, all of whose rows count."""
    n = rows.rows
    if how == DISC:
        places = [(max(0, -(-q * n // PARTS) - 1), 0) for q in fractions]
    else:
        places = [divmod(q * (n - 1), PARTS) for q in fractions]
    ranks = sorted({r for at, part in places for r in (at, at + (part > 0))})
    (column,) = rows_at_ranks(party, rows, OrderKey(0), ranks, profile=profile).columns

    def interpolate_ranks(values: Shared) -> list[Shared]:
        def weighted_rank(rank: int, times: int) -> Shared:
            i = ranks.index(rank)
            return arithmetic.mul_public(values.map(lambda a: a[i : i + 1]), np.int64(times))

        if how == DISC:
            return [weighted_rank(at, 1) for at, _ in places]
        return [
            arithmetic.add(weighted_rank(at, PARTS - part), weighted_rank(at + (part > 0), part))
            for at, part in places
        ]

    result: list[Shared] = party.function(interpolate_ranks)(column.values)
    return result
