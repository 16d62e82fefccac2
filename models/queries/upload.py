"""Tables as their owners' clients share them: rows in an order or in bins, and links to others'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import DataError, TfeBenchError, UsageError
from tfe_bench.models.queries import hash_bins, io, relations, stored
from tfe_bench.models.queries.io import EncodedColumn
from tfe_bench.models.queries.reading import Values, is_missing, to_list
from tfe_bench.models.queries.rights import Table
from tfe_bench.models.queries.schema import Link, Schema, check_column_name
from tfe_bench.models.queries.type_inference import infer_type
from tfe_bench.models.queries.types import CATEGORY, Type, category_type, parse_type

Ring = np.ndarray[Any, np.dtype[np.int64]]


# The input of all words of all rows, [words, rows].
WORDS = "words"


def prepare_table(
    schema: Schema,
    encoded_columns: Mapping[str, EncodedColumn],
    rows: int,
    links: Sequence[str],
    available: Mapping[str, Table],
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
    is_real = np.ones(rows, bool)
    if schema.hashed_by:
        seed, row_numbers = hash_bins.place_rows(
            encoded_columns[schema.hashed_by].distances, schema.rows
        )
        schema, encoded_columns, is_real = (
            replace(schema, seed=seed),
            _take_rows(encoded_columns, row_numbers),
            row_numbers >= 0,
        )
    elif schema.sorted_by:
        key = encoded_columns[schema.sorted_by]
        missing = np.zeros(rows) if key.null is None else key.null
        encoded_columns = _take_rows(encoded_columns, np.lexsort((key.distances, missing)))
    schema = replace(schema, links=tuple(parse_link(each, schema, available) for each in links))
    words = {WORDS: stored.encode_words(schema, encoded_columns, len(is_real))}
    if schema.hashed_by:
        words[WORDS][-1] = is_real
    for i, link in enumerate(schema.links):
        seed = available[link.table].schema.seed
        words[stored.link_name(i)] = _link_targets(
            link, schema, encoded_columns[link.column], is_real, seed
        )
    return schema, words


def encode_columns(
    source_columns: Mapping[str, Values], declared: Mapping[str, str]
) -> dict[str, EncodedColumn]:
    """The columns of a table as elements.

    Args:
        declared: types of some of them, as `types.parse` takes them, or "category" alone for the
            words that the column has.

    Raises:
        UsageError, DataError, RangeError: naming all columns that do not fit, and no value.
    """
    encoded_columns: dict[str, EncodedColumn] = {}
    errors: list[TfeBenchError] = []
    for name, values in source_columns.items():
        try:
            check_column_name(name)
            encoded_columns[name] = io.encode_column(
                name, values, _column_type(name, values, declared.get(name))
            )
        except TfeBenchError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        listed = "".join(f"\n  {error}" for error in errors[:20])
        rest = f"\n  and {len(errors) - 20} more" if len(errors) > 20 else ""
        raise DataError(f"{len(errors)} columns do not fit:{listed}{rest}")
    return encoded_columns


def _column_type(name: str, values: Values, declared: str | None) -> Type:
    if declared is None:
        return infer_type(name, values)
    if declared.strip() != CATEGORY:
        return parse_type(declared)
    words = {each for each in to_list(values) if not is_missing(each)}
    if not words or not all(isinstance(each, str) for each in words):
        raise DataError(f"Column {name!r} has no texts to make a category of. Leave its type out.")
    return category_type(tuple(sorted(words)))


def _take_rows(encoded_columns: Mapping[str, EncodedColumn], at: Ring) -> dict[str, EncodedColumn]:
    """Rows by their numbers; 0 in every column where the number is -1."""

    def take_values(values: Ring) -> Ring:
        return np.append(values, 0)[at]

    return {
        name: EncodedColumn(
            e.type, take_values(e.distances), None if e.null is None else take_values(e.null)
        )
        for name, e in encoded_columns.items()
    }


def parse_link(written: str, schema: Schema, available: Mapping[str, Table]) -> Link:
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
    if table not in available:
        raise relations.missing_table_error(table, list(available))
    other_schema = available[table].schema
    own_type = schema.column(column, "link").type
    if other_schema.hashed_by != key:
        raise UsageError(
            f"A link is to the column by which a table's rows are in bins (--hashed-by). Received: "
            f"{key[:80]!r}; {table!r} has {other_schema.hashed_by or 'none'}."
        )
    if own_type != other_schema.columns[key].type:
        raise UsageError(
            f"A link takes columns of one type and range. Received: {column[:80]!r} is a {own_type} "
            f"from {own_type.low} to {own_type.high}, {key[:80]!r} another."
        )
    return Link(column, table, available[table].deployment, other_schema.rows)


def _link_targets(
    link: Link, schema: Schema, linked_column: EncodedColumn, is_real: Any, seed: int
) -> Ring:
    """Where each of the other table's bins stands, and each request of this table's rows.

    Args:
        held: the linked column, of the first rows.
        there: which of these are rows.
        seed: of the other table's bins.
    """
    requested_bins = hash_bins.random_bins(schema.rows, link.bins)
    if linked_column.null is not None:
        is_real = is_real & (linked_column.null == 0)
    rows = np.flatnonzero(is_real)
    requested_bins[:, rows] = hash_bins.hash_keys(linked_column.distances[rows], link.bins, seed)
    return hash_bins.request_targets(requested_bins, link.bins)
