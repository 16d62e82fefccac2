"""Upload of tables: owners' clients sort rows or place them in hash bins, and prepare links."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import DataError, TfeBenchError, UsageError
from tfe_bench.queries import hash_bins, io, relations, stored
from tfe_bench.queries.io import EncodedColumn
from tfe_bench.queries.reading import Values, column_to_list, is_null_cell
from tfe_bench.queries.rights import TableAccess
from tfe_bench.queries.schema import (
    ALL,
    LARGEST,
    PreparedJoin,
    TableSchema,
    check_table_column_name,
)
from tfe_bench.queries.type_inference import infer_column_type
from tfe_bench.queries.types import (
    CATEGORY,
    MAX_WIDTH,
    NUMBER,
    ColumnType,
    category_type,
    parse_type,
)

Ring = np.ndarray[Any, np.dtype[np.int64]]


# Input with all words of all rows, [words, rows].
WORDS = "words"


def prepare_table(
    schema: TableSchema,
    encoded_columns: Mapping[str, EncodedColumn],
    rows: int,
    links: Sequence[str],
    available: Mapping[str, TableAccess],
) -> tuple[TableSchema, dict[str, Ring]]:
    """Prepare a table's header and the words to share, by input.

    Args:
        schema: the header, without links and the seed of hash bins.
        encoded_columns: columns of all rows.
        rows: number of rows.
        links: links as `parse_prepared_join` takes them.
        available: tables that the client may use.

    Raises:
        UsageError: an invalid link.
        DataError: rows cannot be placed in hash bins.
    """
    is_real = np.ones(rows, bool)
    if schema.hashed_by:
        seed, row_numbers = hash_bins.place_rows_in_hash_bins(
            encoded_columns[schema.hashed_by].distances, schema.rows
        )
        schema, encoded_columns, is_real = (
            replace(schema, seed=seed),
            _take_column_rows(encoded_columns, row_numbers),
            row_numbers >= 0,
        )
    elif schema.sorted_by:
        key = encoded_columns[schema.sorted_by]
        missing = np.zeros(rows) if key.null is None else key.null
        encoded_columns = _take_column_rows(encoded_columns, np.lexsort((key.distances, missing)))
    schema = replace(
        schema, links=tuple(parse_prepared_join(each, schema, available) for each in links)
    )
    words = {WORDS: stored.encode_table_words(schema, encoded_columns, len(is_real))}
    if schema.hashed_by:
        words[WORDS][-1] = is_real
    for i, link in enumerate(schema.links):
        seed = available[link.table].schema.seed
        words[stored.link_name(i)] = _prepared_join_targets(
            link, schema, encoded_columns[link.column], is_real, seed
        )
    return schema, words


def encode_columns(
    source_columns: Mapping[str, Values], declared: Mapping[str, str]
) -> dict[str, EncodedColumn]:
    """Encode the columns of a table.

    Args:
        declared: types of some columns, as in `types.parse_type`, or "category" alone for the
            words of the column.

    Raises:
        UsageError, DataError, RangeError: naming all unsuitable columns, and no value.
    """
    encoded_columns: dict[str, EncodedColumn] = {}
    errors: list[TfeBenchError] = []
    for name, values in source_columns.items():
        try:
            check_table_column_name(name)
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
        raise DataError(
            f"{len(errors)} columns do not fit:{listed}{rest}",
            code="columns-do-not-fit",
            received=len(errors),
        )
    return encoded_columns


def _column_type(name: str, values: Values, declared: str | None) -> ColumnType:
    if declared is None:
        return infer_column_type(name, values)
    if declared.strip() != CATEGORY:
        return parse_type(declared)
    words = {each for each in column_to_list(values) if not is_null_cell(each)}
    if not words or not all(isinstance(each, str) for each in words):
        raise DataError(
            f"Column {name!r} has no texts to form a category. Omit its type.",
            code="no-words",
            operation=name,
        )
    return category_type(tuple(sorted(words)))


def _take_column_rows(
    encoded_columns: Mapping[str, EncodedColumn], at: Ring
) -> dict[str, EncodedColumn]:
    """Select rows by number; a row of number -1 is 0 in every column."""

    def take_values(values: Ring) -> Ring:
        return np.append(values, 0)[at]

    return {
        name: EncodedColumn(
            e.type, take_values(e.distances), None if e.null is None else take_values(e.null)
        )
        for name, e in encoded_columns.items()
    }


def parse_prepared_join(
    written: str, schema: TableSchema, available: Mapping[str, TableAccess]
) -> PreparedJoin:
    """Parse a link such as "customer=customers.id".

    Args:
        schema: schema of the table to put.
        available: tables that its client may use.

    Raises:
        UsageError: the link is invalid, or the other table is not in hash bins by that column.
    """
    column, equals, other = written.partition("=")
    table, point, key = other.partition(".")
    if not (column and equals and table and point and key):
        raise UsageError(
            f'Expected a link such as "customer=customers.id". Received: {written[:80]!r}.',
            code="invalid-link",
            received=written[:80],
        )
    if table not in available:
        raise relations.missing_table_error(table, list(available))
    other_schema = available[table].schema
    own_type = schema.column(column, "link").type
    if other_schema.hashed_by != key:
        raise UsageError(
            "Expected a link to the column by which a table is placed in hash bins "
            f"(--hashed-by). Received: {key[:80]!r}; {table!r} has "
            f"{other_schema.hashed_by or 'none'}.",
            code="not-hashed",
            operation=table,
            received=key[:80],
        )
    if own_type != other_schema.columns[key].type:
        raise UsageError(
            f"Expected two linked columns of one type and range. Received: {column[:80]!r} is "
            f"a {own_type} from {own_type.low} to {own_type.high}, {key[:80]!r} differs.",
            code="type-mismatch",
            operation=column[:80],
        )
    return PreparedJoin(column, table, available[table].deployment, other_schema.rows)


def _prepared_join_targets(
    link: PreparedJoin, schema: TableSchema, linked_column: EncodedColumn, is_real: Any, seed: int
) -> Ring:
    """Return the positions of the other table's bins and of this table's requests.

    Args:
        linked_column: the linked column, of the first rows.
        is_real: whether a row is real.
        seed: seed of the other table's bins.
    """
    requested_bins = hash_bins.draw_random_hash_bins(schema.rows, link.bins)
    if linked_column.null is not None:
        is_real = is_real & (linked_column.null == 0)
    rows = np.flatnonzero(is_real)
    requested_bins[:, rows] = hash_bins.hash_keys_to_bins(
        linked_column.distances[rows], link.bins, seed
    )
    return hash_bins.bin_request_targets(requested_bins, link.bins)


def training_scale(
    name: str, encoded: EncodedColumn, names: Sequence[str]
) -> tuple[int, int] | None:
    """Return (shift, center) of a column for publication by its owner: near deviation and mean of
    its elements.

    Args:
        names: names of columns; "*": all numeric ones.

    Raises:
        UsageError: the column is named, but not numeric.
    """
    kind = encoded.type
    numbers = kind.kind == NUMBER and kind.bits <= MAX_WIDTH
    if name not in names and not (ALL in names and numbers):
        return None
    if not numbers:
        raise UsageError(
            f"Expected a scale of a numeric column with bounds. Received: {name!r}, a {kind}.",
            code="unsupported-type",
            operation=name,
            received=kind,
        )
    present = encoded.distances if encoded.null is None else encoded.distances[encoded.null == 0]
    distances = present.astype(np.float64)
    spread = float(distances.std()) if len(distances) else 0.0
    mean = float(distances.mean()) if len(distances) else 0.0
    min_shift = max(0, math.ceil(math.log2(max(1, kind.high - kind.low) / LARGEST)))
    shift = max(min_shift, round(math.log2(spread)) if spread >= 1 else 0)
    half = max(1, (1 << shift) // 2)
    center = kind.low + half * round(mean / half)
    return shift, min(max(center, kind.low), kind.high)
