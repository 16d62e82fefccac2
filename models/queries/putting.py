"""Tables as their owners' clients share them: rows in an order or in bins, and links to others'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import DataError, TfeBenchError, UsageError
from tfe_bench.models.queries import bins, io, relations, stored
from tfe_bench.models.queries.guessing import type_of
from tfe_bench.models.queries.io import Elements
from tfe_bench.models.queries.reading import Values, is_missing, listed
from tfe_bench.models.queries.rights import Table
from tfe_bench.models.queries.schema import Link, Schema, check_column_name
from tfe_bench.models.queries.types import CATEGORY, Type, category, parse

Ring = np.ndarray[Any, np.dtype[np.int64]]


# The input of all words of all rows, [words, rows].
WORDS = "words"


def prepared(
    schema: Schema,
    held: Mapping[str, Elements],
    rows: int,
    links: Sequence[str],
    known: Mapping[str, Table],
) -> tuple[Schema, dict[str, Ring]]:
    """A table's header, and what is shared of it, by input.

    Args:
        schema: the header, without links and the seed of bins.
        held: the columns of all rows.
        rows: how many there are.
        links: as `link_of` takes them.
        known: what the client may use.

    Raises:
        UsageError: a link that is none.
        DataError: rows cannot be put into bins.
    """
    there = np.ones(rows, bool)
    if schema.hashed_by:
        seed, at = bins.placed(held[schema.hashed_by].distances, schema.rows)
        schema, held, there = replace(schema, seed=seed), _taken(held, at), at >= 0
    elif schema.sorted_by:
        key = held[schema.sorted_by]
        missing = np.zeros(rows) if key.null is None else key.null
        held = _taken(held, np.lexsort((key.distances, missing)))
    schema = replace(schema, links=tuple(link_of(each, schema, known) for each in links))
    words = {WORDS: stored.words_of(schema, held, len(there))}
    if schema.hashed_by:
        words[WORDS][-1] = there
    for i, link in enumerate(schema.links):
        seed = known[link.table].schema.seed
        words[stored.link_name(i)] = _target(link, schema, held[link.column], there, seed)
    return schema, words


def encoded(given: Mapping[str, Values], declared: Mapping[str, str]) -> dict[str, Elements]:
    """The columns of a table as elements.

    Args:
        declared: types of some of them, as `types.parse` takes them, or "category" alone for the
            words that the column has.

    Raises:
        UsageError, DataError, RangeError: naming all columns that do not fit, and no value.
    """
    held: dict[str, Elements] = {}
    faults: list[TfeBenchError] = []
    for name, values in given.items():
        try:
            check_column_name(name)
            held[name] = io.encode(name, values, _type(name, values, declared.get(name)))
        except TfeBenchError as error:
            faults.append(error)
    if len(faults) == 1:
        raise faults[0]
    if faults:
        listed = "".join(f"\n  {error}" for error in faults[:20])
        rest = f"\n  and {len(faults) - 20} more" if len(faults) > 20 else ""
        raise DataError(f"{len(faults)} columns do not fit:{listed}{rest}")
    return held


def _type(name: str, values: Values, declared: str | None) -> Type:
    if declared is None:
        return type_of(name, values)
    if declared.strip() != CATEGORY:
        return parse(declared)
    words = {each for each in listed(values) if not is_missing(each)}
    if not words or not all(isinstance(each, str) for each in words):
        raise DataError(f"Column {name!r} has no texts to make a category of. Leave its type out.")
    return category(tuple(sorted(words)))


def _taken(held: Mapping[str, Elements], at: Ring) -> dict[str, Elements]:
    """Rows by their numbers; 0 in every column where the number is -1."""

    def of(values: Ring) -> Ring:
        return np.append(values, 0)[at]

    return {
        name: Elements(e.type, of(e.distances), None if e.null is None else of(e.null))
        for name, e in held.items()
    }


def link_of(written: str, schema: Schema, known: Mapping[str, Table]) -> Link:
    """A link as people write it: "customer=customers.id".

    Args:
        schema: of the table that is put.
        known: what its client may use.

    Raises:
        UsageError: it is none, or the other table's rows are in no bins by that column.
    """
    column, equals, other = written.partition("=")
    table, point, key = other.partition(".")
    if not (column and equals and table and point and key):
        raise UsageError(
            f'A link is written as "customer=customers.id". Received: {written[:80]!r}.'
        )
    if table not in known:
        raise relations.missing_table(table, list(known))
    theirs = known[table].schema
    own = schema.column(column, "link").type
    if theirs.hashed_by != key:
        raise UsageError(
            f"A link is to the column by which a table's rows are in bins (--hashed-by). Received: "
            f"{key[:80]!r}; {table!r} has {theirs.hashed_by or 'none'}."
        )
    if own != theirs.columns[key].type:
        raise UsageError(
            f"A link takes columns of one type and range. Received: {column[:80]!r} is a {own} "
            f"from {own.low} to {own.high}, {key[:80]!r} another."
        )
    return Link(column, table, known[table].deployment, theirs.rows)


def _target(link: Link, schema: Schema, held: Elements, there: Any, seed: int) -> Ring:
    """Where each of the other table's bins stands, and each request of this table's rows.

    Args:
        held: the linked column, of the first rows.
        there: which of these are rows.
        seed: of the other table's bins.
    """
    asked = bins.anywhere(schema.rows, link.bins)
    if held.null is not None:
        there = there & (held.null == 0)
    rows = np.flatnonzero(there)
    asked[:, rows] = bins.positions(held.distances[rows], link.bins, seed)
    return bins.targets(asked, link.bins)
