"""Quantiles of a query's groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfe_bench.models.queries.plan import PARTS, quantile_of
from tfe_bench.models.queries.relations import Relation as Facts
from tfe_bench.protocols.ring import arithmetic
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables.quantiles import CONT, DISC, quantiles
from tfe_bench.protocols.tables.relation import Column, Relation


def quantiles_of(
    party: Party,
    aggregates: Sequence[Sequence[Any]],
    keys: Relation,
    named: Mapping[str, Column],
    about: Facts,
    count: int,
    profile: str = "local",
) -> dict[str, Shared]:
    """The elements of aggregates that are quantiles, by name: in the order of sorted groups.

    Args:
        keys: the key's columns; none: one group of all rows.
        named, about: the rows that are grouped.
        count: of the groups' rows that are kept.

    One sort for each column, and for each way to take a quantile.
    """
    wanted: dict[tuple[str, str], dict[str, int]] = {}
    for name, function, argument in aggregates:
        if (quantile := quantile_of(function)) is not None:
            wanted.setdefault((argument, quantile[0]), {})[name] = quantile[1]
    found: dict[str, Shared] = {}
    by = range(len(keys.columns))
    for (argument, way), parts in wanted.items():
        rows = Relation((*keys.columns, named[argument]), keys.valid)
        how = DISC if way == "quantile_disc" else CONT
        made = quantiles(party, rows, by, len(by), list(parts.values()), how=how, profile=profile)
        # (columns are kept as distances)
        offset = about.columns[argument].known.offset * (1 if how == DISC else PARTS)
        for name, column in zip(parts, made.columns[len(by) :], strict=True):
            data = column.values.map(lambda a: a[:count])
            found[name] = arithmetic.moved(data, np.int64(offset))
    return found
