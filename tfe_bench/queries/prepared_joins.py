"""Prepared joins: lookups that need no sort, as the owner has linked the rows of its table."""

from __future__ import annotations

from collections.abc import Sequence

from tfe_bench.queries.rights import Tables


def find_prepared_join(
    pairs: Sequence[Sequence[str]], left: str, right: str, rows: int, tables: Tables
) -> tuple[str, int] | None:
    """Return the link that a join of left and right can use: its table and its number, or None.

    Args:
        left, right: aliases of the tables whose rows are joined, "" for other rows.
        rows: number of rows of right.
    """
    if len(pairs) != 1 or not left or not right:
        return None
    other = tables[right]
    if pairs[0][1] != f"{right}.{other.schema.hashed_by}":
        return None
    target = (other.name, other.deployment, rows)
    for i, link in enumerate(tables[left].schema.links):
        named = pairs[0][0] == f"{left}.{link.column}"
        if named and (link.table, link.deployment, link.bins) == target:
            return left, i
    return None
