"""Which lookups of a plan need no sort: those of a table whose owner has linked its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfe_bench.models.queries.rights import Tables

if TYPE_CHECKING:
    from tfe_bench.models.queries.relations import Relation


def link_of(
    pairs: Sequence[Sequence[str]], left: Relation, right: Relation, tables: Tables
) -> tuple[str, int] | None:
    """The link by which left's rows can be looked up in right: its table, and which it is."""
    if len(pairs) != 1 or not left.home or not right.home:
        return None
    other = tables[right.home]
    if pairs[0][1] != f"{right.home}.{other.schema.hashed_by}":
        return None
    wanted = (other.name, other.deployment, right.rows)
    for i, link in enumerate(tables[left.home].schema.links):
        named = pairs[0][0] == f"{left.home}.{link.column}"
        if named and (link.table, link.deployment, link.bins) == wanted:
            return left.home, i
    return None
