"""Stored tables at a worker: their headers, and their words as a relation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import TABLE, StoredFacts
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import bits
from tfe_bench.protocols.tables.relation import Column, Relation
from tfe_bench.queries.hash_bins import HASH_COUNT
from tfe_bench.queries.io import EncodedColumn
from tfe_bench.queries.rights import TableAccess
from tfe_bench.queries.schema import TableSchema
from tfe_bench.queries.types import BOOL


def find_table(
    store: ShareStore, name: str, deployment: str, client: str
) -> tuple[TableAccess, StoredFacts]:
    """Return a table that a client may use, by the header in a worker's store.

    Raises:
        UsageError: it does not exist, or has another deployment.
    """
    facts = store.for_kind(TABLE).get_facts(name, client)
    if facts.deployment != deployment:
        raise UsageError(
            f"Party {store.party} has another table {name!r} than this query was compiled "
            "for: it was replaced. Compile the query again.",
            code="deployment-changed",
            operation=name,
            party=store.party,
        )
    return as_accessible_table(facts, client), facts


def as_accessible_table(facts: StoredFacts, client: str) -> TableAccess:
    """Return a stored table as a client sees it."""
    return TableAccess(
        facts.name, facts.owner, facts.deployment, TableSchema.from_header(facts.about), client
    )


def stored_row_word_names(schema: TableSchema) -> list[str]:
    """Return the names of a row's words: values v0, v1, ..., NULL bits n0, ... of nullable
    columns, valid.
    """
    names = []
    for i, column in enumerate(schema.columns.values()):
        names.append(f"v{i}")
        if column.nullable:
            names.append(f"n{i}")
    return [*names, "valid"] if schema.padded else names


def column_word_names(schema: TableSchema, columns: Sequence[str]) -> list[str]:
    """Return the names of the stored words of some columns and of the validity; at least one."""
    listed = list(schema.columns)
    names = []
    for name in columns:
        i = listed.index(name)
        names.append(f"v{i}")
        if schema.columns[name].nullable:
            names.append(f"n{i}")
    if schema.padded:
        names.append("valid")
    return names or ["v0"]


def link_name(i: int) -> str:
    """Return the name under which a table's link is stored."""
    return f"link{i}"


def link_sizes(schema: TableSchema) -> dict[str, int]:
    """Return the number of positions of each stored link: its bins, and three for each row."""
    return {
        link_name(i): link.bins + HASH_COUNT * schema.rows for i, link in enumerate(schema.links)
    }


def encode_table_words(schema: TableSchema, columns: Mapping[str, EncodedColumn], rows: int) -> Any:
    """Encode all words of a table for sharing, [words, schema.rows]; padding is 0.

    Args:
        rows: number of real rows.
    """
    words = []
    padding = schema.rows - rows
    for name, column in schema.columns.items():
        encoded = columns[name]
        words.append(np.pad(encoded.distances, (0, padding)))
        if column.nullable:
            null = np.zeros(rows, np.int64) if encoded.null is None else encoded.null
            words.append(np.pad(null, (0, padding)))
    if schema.padded:
        words.append(np.pad(np.ones(rows, np.int64), (0, padding)))
    return np.stack(words)


def build_stored_relation(
    schema: TableSchema, columns: Sequence[str], words: Mapping[str, Shared]
) -> Relation:
    """Build a relation of some columns. Local."""
    listed = list(schema.columns)
    like = next(iter(words.values()))
    built_columns = []
    for name in columns:
        i, schema_column = listed.index(name), schema.columns[name]
        value = words[f"v{i}"]
        if schema_column.type.kind == BOOL:
            value = stored_word_to_bit(value)
        width = 1 if schema_column.type.kind == BOOL else schema_column.type.width
        built_columns.append(
            Column(
                value, width, stored_word_to_bit(words[f"n{i}"]) if schema_column.nullable else None
            )
        )
    if schema.padded:
        valid = stored_word_to_bit(words["valid"])
    else:
        valid = bits.share_public_row_bits(like, np.ones(schema.rows, np.int64))
    return Relation(tuple(built_columns), valid)


def stored_word_to_bit(word: Shared) -> Shared:
    """Convert a word that is 0 or 1 to a bit. Local."""
    return replace(word.map(lambda a: tensor_ops.low_bits(a, 1)), bits=1)
