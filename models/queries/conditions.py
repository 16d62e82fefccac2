"""What of a join's or a subquery's condition is an equality of keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Columns of a plan, by table and name.
Names = Mapping[tuple[str, str], str]


def pairs_of(
    exp: Any, condition: Any, names: Names, theirs: Names
) -> tuple[list[list[str]], list[Any]]:
    """Equalities of a column of each side, and the other conditions.

    Args:
        exp: the module of sqlglot's nodes.
        names, theirs: columns of one side and of the other.
    """
    pairs, rest = [], []
    for each in condition.flatten() if isinstance(condition, exp.And) else [condition]:
        each = each.unnest()
        found = None
        if isinstance(each, exp.EQ):
            sides = [
                (s.table, s.name) if isinstance(s, exp.Column) else ("", "")
                for s in (each.left.unnest(), each.right.unnest())
            ]
            for one, two in (sides, sides[::-1]):
                if one in names and two in theirs:
                    found = [names[one], theirs[two]]
        if found is None:
            rest.append(each)
        elif found not in pairs:
            pairs.append(found)
    return pairs, rest
