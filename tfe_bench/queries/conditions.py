"""Conditions of joins and subqueries: separate the equalities of keys from other terms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# Columns of a plan, by table and name.
Names = Mapping[tuple[str, str], str]


def split_sql_conjuncts(exp: Any, condition: Any) -> list[Any]:
    """Return the terms of a conjunction; an empty list without a condition.

    Args:
        exp: the module of sqlglot's nodes.
    """
    if condition is None:
        return []
    condition = condition.unnest()
    if not isinstance(condition, exp.And):
        return [condition]
    return [*split_sql_conjuncts(exp, condition.left), *split_sql_conjuncts(exp, condition.right)]


def referenced_aliases(exp: Any, condition: Any) -> set[str]:
    """Return the tables outside a condition whose columns it names."""
    inner = {each.alias_or_name for each in condition.find_all(exp.Table, exp.Subquery)}
    return {column.table for column in condition.find_all(exp.Column)} - inner


def split_equalities(
    exp: Any, terms: Iterable[Any], names: Names, right_names: Names
) -> tuple[list[list[str]], list[Any]]:
    """Split terms into equalities of a column of each side and other terms.

    Args:
        terms: terms of a conjunction.
        names, right_names: columns of either side; no alias is on both sides.
    """
    pairs, rest = [], []
    for term in terms:
        pair = None
        if isinstance(term, exp.EQ):
            sides = [
                (s.table, s.name) if isinstance(s, exp.Column) else ("", "")
                for s in (term.left.unnest(), term.right.unnest())
            ]
            for one, two in (sides, sides[::-1]):
                if one in names and two in right_names:
                    pair = [names[one], right_names[two]]
        if pair is None:
            rest.append(term)
        elif pair not in pairs:
            pairs.append(pair)
    return pairs, rest
