"""Tables as a worker keeps them: their headers, and their words as a relation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.cluster.store import Store
from tfe_bench.cluster.stored import TABLE, Facts
from tfe_bench.errors import UsageError
from tfe_bench.models.queries.bins import ASKED
from tfe_bench.models.queries.io import Elements
from tfe_bench.models.queries.rights import Table
from tfe_bench.models.queries.schema import Schema
from tfe_bench.models.queries.types import BOOL
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import bits
from tfe_bench.protocols.tables.relation import Column, Relation


def kept_table(store: Store, name: str, deployment: str, client: str) -> tuple[Table, Facts]:
    """A table that a client may use, by the header that a worker keeps.

    Raises:
        UsageError: it is not there, or not of this deployment.
    """
    facts = store.of(TABLE).facts(name, client)
    if facts.deployment != deployment:
        raise UsageError(
            f"Party {store.party} has another table {name!r} than this was made for: it was "
            "replaced meanwhile. Ask again."
        )
    return table_of(facts, client), facts


def table_of(facts: Facts, client: str) -> Table:
    """A kept table as a client sees it."""
    return Table(facts.name, facts.owner, facts.deployment, Schema.of(facts.about), client)


def word_names(schema: Schema) -> list[str]:
    """The words of a row: values v0, v1, ..., NULL bits n0, ... of nullable columns, valid."""
    found = []
    for i, column in enumerate(schema.columns.values()):
        found.append(f"v{i}")
        if column.nullable:
            found.append(f"n{i}")
    return [*found, "valid"] if schema.padded else found


def names_of(schema: Schema, columns: Sequence[str]) -> list[str]:
    """The stored words that some columns and the rows' validity are; one at least."""
    listed = list(schema.columns)
    found = []
    for name in columns:
        i = listed.index(name)
        found.append(f"v{i}")
        if schema.columns[name].nullable:
            found.append(f"n{i}")
    if schema.padded:
        found.append("valid")
    return found or ["v0"]


def link_name(i: int) -> str:
    """What a table's link is kept as."""
    return f"link{i}"


def link_sizes(schema: Schema) -> dict[str, int]:
    """How many places each link has that is kept with a table: bins, and three a row."""
    return {link_name(i): link.bins + ASKED * schema.rows for i, link in enumerate(schema.links)}


def words_of(schema: Schema, columns: Mapping[str, Elements], rows: int) -> Any:
    """All words of a table that its owner shares, [words, schema.rows]; padding is 0.

    Args:
        rows: how many are real.
    """
    found = []
    more = schema.rows - rows
    for name, column in schema.columns.items():
        own = columns[name]
        found.append(np.pad(own.distances, (0, more)))
        if column.nullable:
            null = np.zeros(rows, np.int64) if own.null is None else own.null
            found.append(np.pad(null, (0, more)))
    if schema.padded:
        found.append(np.pad(np.ones(rows, np.int64), (0, more)))
    return np.stack(found)


def relation(schema: Schema, columns: Sequence[str], words: Mapping[str, Shared]) -> Relation:
    """Columns as relations have them.  Local."""
    listed = list(schema.columns)
    like = next(iter(words.values()))
    found = []
    for name in columns:
        i, own = listed.index(name), schema.columns[name]
        value = words[f"v{i}"]
        if own.type.kind == BOOL:
            value = bit_of(value)
        width = 1 if own.type.kind == BOOL else own.type.width
        found.append(Column(value, width, bit_of(words[f"n{i}"]) if own.nullable else None))
    if schema.padded:
        valid = bit_of(words["valid"])
    else:
        valid = bits.public(like, np.ones(schema.rows, np.int64))
    return Relation(tuple(found), valid)


def bit_of(word: Shared) -> Shared:
    """A word that is 0 or 1 as its bit.  Local."""
    return replace(word.map(lambda a: local.low_bits(a, 1)), bits=1)
