"""Private record linkage: public facts about the matched rows of several tables.

A request names tables, their keys, and the columns that become features and the label. Each worker
independently derives the shapes and kinds of the rows from the request and from the headers that
it stores. It also checks that all owners permit the linkage: the right `match` to keys, the right
`train` to features and label, and the release of the number of matched rows. A linked data set
stays usable while all its tables are stored unchanged, and only for clients that may use each of
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfe_bench.cluster.schema import (
    Header,
    Mismatch,
    header_rule,
    label_rule,
    list_field,
    list_rule,
    parsed_field,
)
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import Sources, check_deployment_identifier, check_name
from tfe_bench.csv_file import MAX_TEXT
from tfe_bench.errors import PolicyError, UsageError
from tfe_bench.models.convert.tables import Table as Units
from tfe_bench.models.layers.base.scales import ColumnScale
from tfe_bench.queries import stored
from tfe_bench.queries.rights import ColumnUse, TableAccess
from tfe_bench.queries.schema import TableColumn
from tfe_bench.queries.types import BOOL, CATEGORY, MAX_WIDTH, NUMBER

NAME_IS = "A table's name"
MIN_TABLES, MAX_TABLES = 2, 8
MAX_KEYS = 8
# Words of a category that becomes a feature for each word, or classes of a label.
MAX_WORDS = 64
# Features of a row.
MAX_FEATURES = 4096
# Bits of the range of a number whose owner declares no scale.
MAX_BITS = 32
_COLUMN = label_rule(MAX_TEXT, code="invalid-linkage-request")


@dataclass(frozen=True)
class LinkedTable(Header, subject="A table to link", code="invalid-linkage-request"):
    """One table of a request.

    Attributes:
        name, deployment: name and deployment of the table.
        on: columns of its key.
        columns: columns that become features.
    """

    name: str = parsed_field(lambda name: check_name(name, NAME_IS), str)
    deployment: str = parsed_field(check_deployment_identifier, str)
    on: tuple[str, ...] = list_field(_COLUMN, 0, MAX_KEYS, "invalid-linkage-request")
    columns: tuple[str, ...] = list_field(_COLUMN, 0, MAX_FEATURES, "invalid-linkage-request")


def _read_linkage_label(value: object) -> tuple[str, str]:
    try:
        table, column = list_rule(_COLUMN, 2, 2).read(value)
    except Mismatch:
        raise UsageError("Expected a table and a column as label.", code="invalid-label") from None
    return table, column


@dataclass(frozen=True)
class LinkageRequest(Header, subject="A linkage request", code="invalid-linkage-request"):
    """Tables to link, their keys, and the columns to keep.

    Attributes:
        tables: 2 to 8 tables.
        label: table and column of the label.

    Raises:
        UsageError: the request is invalid.
    """

    tables: tuple[LinkedTable, ...] = list_field(
        header_rule(LinkedTable), 0, MAX_TABLES, "number-out-of-range"
    )
    label: tuple[str, str] = parsed_field(_read_linkage_label, list)

    def __post_init__(self) -> None:
        names = [part.name for part in self.tables]
        check_table_names(names)
        counts = {len(part.on) for part in self.tables}
        if len(counts) > 1 or not 1 <= max(counts) <= MAX_KEYS:
            raise UsageError(
                f"Expected keys of 1 to {MAX_KEYS} columns, with equally many in each table. "
                f"Received: {sorted(counts)}.",
                code="invalid-key",
                received=sorted(counts),
            )
        for part in self.tables:
            label_columns = [self.label[1]] if self.label[0] == part.name else []
            used = [*part.on, *part.columns, *label_columns]
            if len(set(used)) != len(used):
                raise UsageError(
                    f"Table {part.name!r}: expected each column as a key, a feature or the "
                    "label, once.",
                    code="duplicate-name",
                    operation=part.name,
                )
            if not part.columns and not label_columns:
                raise UsageError(
                    f"Table {part.name!r} has neither features nor the label. Name a feature "
                    "(--columns).",
                    code="no-features",
                    operation=part.name,
                )
        if self.label[0] not in names:
            raise UsageError(
                "The label is not a column of one of the tables (--label TABLE.COLUMN).",
                code="invalid-label",
            )
        if not any(part.columns for part in self.tables):
            raise UsageError("No table has features. Name some (--columns).", code="no-features")


def check_table_names(names: Sequence[str]) -> None:
    """Reject a number of tables other than 2 to 8, and repeated tables.

    Raises:
        UsageError: the names are rejected.
    """
    if not MIN_TABLES <= len(names) <= MAX_TABLES:
        raise UsageError(
            f"align takes {MIN_TABLES} to {MAX_TABLES} tables. Received: {len(names)}.",
            code="number-out-of-range",
            operation="align",
            received=len(names),
        )
    if len(set(names)) != len(names):
        raise UsageError(
            "align takes each table once. Received: a table twice.",
            code="duplicate-name",
            operation="align",
        )


@dataclass(frozen=True)
class LinkedFeature:
    """Model input of one column: (element - center) / 2^shift, or one bit for each word of a
    category.

    Attributes:
        table: index of its table.
        column: its name.
        schema_column: header of the column.
        names: names of the numbers that it becomes.
        shift, center: parameters of the scaling of a number; 0 for bits.
    """

    table: int
    column: str
    schema_column: TableColumn
    names: tuple[str, ...]
    shift: int = 0
    center: int = 0

    @property
    def scale(self) -> ColumnScale:
        """Scaling of values rather than of ring elements."""
        count, size = len(self.names), float(1 << self.shift)
        factor = self.schema_column.type.denominator / size
        return ColumnScale((factor,) * count, (0.0 - self.center / size,) * count)


@dataclass(frozen=True)
class LinkageSchema:
    """Public description of the linked rows of a request.

    Attributes:
        features, label: columns in the order of the data set.
        min_rows: smallest number of matched rows that the owners' rules allow.
        about: public facts of the data set in the format of the program "provide", without "rows".
    """

    features: tuple[LinkedFeature, ...]
    label: LinkedFeature
    min_rows: int
    about: Mapping[str, Any]


def derive_linkage(
    order: LinkageRequest, tables: Sequence[TableAccess], clients: Sequence[str] = ()
) -> LinkageSchema:
    """Derive the linked data set of a request and check that all owners permit it.

    Args:
        order: the request.
        tables: tables of its parts as the requesting client sees them.
        clients: further clients that will train on the rows; each requires the same rights.

    Raises:
        UsageError: a column does not exist or has an unsuitable type.
        PolicyError: naming table, owner and the missing permission.
    """
    _check_linkage_keys(order, tables)
    for client in dict.fromkeys([tables[0].client, *clients]):
        _check_linkage_rights(order, [replace(table, client=client) for table in tables])
    columns = [(i, name) for i, part in enumerate(order.tables) for name in part.columns]
    all_names = [name for _, name in columns]
    features = []
    for i, name in columns:
        shown = name if all_names.count(name) == 1 else f"{order.tables[i].name}.{name}"
        features.append(_derive_linked_feature(i, tables[i], name, shown))
    names = [name for feature in features for name in feature.names]
    if len(names) > MAX_FEATURES or len(set(names)) != len(names):
        raise UsageError(
            f"Expected at most {MAX_FEATURES} features with different names. Received: "
            f"{len(names)}. Name fewer columns (--columns).",
            code="too-many-features",
            received=len(names),
        )
    at = [part.name for part in order.tables].index(order.label[0])
    label, target = _derive_linked_label(at, tables[at], order.label[1])
    least = max(table.schema.min_group for table in tables)
    return LinkageSchema(
        tuple(features), label, least, _describe_dataset(order, tables, features, label, target)
    )


def _check_linkage_keys(order: LinkageRequest, tables: Sequence[TableAccess]) -> None:
    for part, table in zip(order.tables, tables, strict=True):
        for name in (*part.on, *part.columns):
            table.schema.column(name, f"table {table.name!r}")
        unique = table.schema.unique
        if not set(part.on) & set(unique):
            raise UsageError(
                "Expected a key with a column that is unique in each table. Received: "
                f"{', '.join(part.on)} of table {table.name!r}, whose unique columns are "
                f"{', '.join(unique) or 'none'}. Its owner, {table.owner!r}, declares them "
                "(table put --unique).",
                code="key-not-unique",
                operation=table.name,
            )
        if table.schema.unit and table.schema.unit not in unique:
            raise UsageError(
                f"Several rows of table {table.name!r} can belong to one unit: the unit "
                f"column {table.schema.unit!r} is not unique. Align tables with one row for "
                "each unit.",
                code="unit-not-unique",
                operation=table.name,
            )
    for keys in zip(*(part.on for part in order.tables), strict=True):
        first = tables[0].schema.columns[keys[0]].type
        for name, table in zip(keys, tables, strict=True):
            if (other := table.schema.columns[name].type) != first:
                raise UsageError(
                    "Expected keys of one type and range in all tables. Received: "
                    f"{keys[0]!r} of {tables[0].name!r} is {first} from {first.low} to "
                    f"{first.high}, {name!r} of {table.name!r} is {other} from {other.low} to "
                    f"{other.high}. Ask the owners to declare the same type (table put "
                    "--type).",
                    code="type-mismatch",
                    operation=name,
                )


def _check_linkage_rights(order: LinkageRequest, tables: Sequence[TableAccess]) -> None:
    """Check that a client may link these tables and train on the rows."""
    purpose = (
        f"Aligning for {tables[0].client!r}" if tables[0].client != "*" else "Aligning for all"
    )
    for part, table in zip(order.tables, tables, strict=True):
        label = [order.label[1]] if order.label[0] == part.name else []
        for use, columns in ((ColumnUse.KEY, part.on), (ColumnUse.TRAIN, (*part.columns, *label))):
            for name in columns:
                table.check(use, name, purpose)
        if table.client != table.owner and not table.schema.open_count:
            raise PolicyError(
                f"{purpose} discloses the number of matched rows, which the owner of table "
                f"{table.name!r} does not permit. {table.owner!r} can permit it with `table "
                "put ... --open-count`.",
                code="open-count-required",
                operation=table.name,
            )


def _derive_linked_feature(
    number: int, table: TableAccess, column: str, shown: str
) -> LinkedFeature:
    schema_column = table.schema.columns[column]
    kind, column_text = schema_column.type, f"{column!r} of table {table.name!r}"
    if schema_column.nullable:
        raise UsageError(
            f"Expected a feature with a value in every row. Received: {column_text}, which "
            "may be NULL. Leave it out (--columns), or ask its owner to put it with a value "
            "in every row.",
            code="nullable-column",
            operation=column,
        )
    if kind.kind == BOOL:
        return LinkedFeature(number, column, schema_column, (shown,))
    if kind.kind == CATEGORY:
        if len(kind.words) > MAX_WORDS:
            raise UsageError(
                f"Each word of a category becomes a feature, {MAX_WORDS} at most. Received: "
                f"{column_text} with {len(kind.words)}. Leave it out (--columns).",
                code="too-many-words",
                operation=column,
                received=len(kind.words),
            )
        names = tuple(f"{shown}={word}" for word in kind.words)
        if any(len(name) > MAX_TEXT for name in names):
            raise UsageError(
                f"Expected names of features with at most {MAX_TEXT} characters. Received: "
                f"longer names from {column_text} and its words.",
                code="invalid-name",
                operation=column,
            )
        return LinkedFeature(number, column, schema_column, names)
    if kind.kind != NUMBER:
        raise UsageError(
            "Expected features that are numbers, bools or categories. Received: "
            f"{column_text}, a {kind.kind}. Leave it out (--columns), or ask its owner to put "
            "its content as a number.",
            code="unsupported-type",
            operation=column,
            received=kind.kind,
        )
    if schema_column.scale is not None:
        return LinkedFeature(number, column, schema_column, (shown,), *schema_column.scale)
    if kind.bits > min(MAX_BITS, MAX_WIDTH):
        raise UsageError(
            f"The scale of {column_text} is unknown: its range has {kind.bits} bits. Its "
            f"owner, {table.owner!r}, declares a range (--type {column}:int[0,120]) or an "
            f"approximate scale (table put --scale {column}); a column with two values is a "
            "bool or a category.",
            code="unknown-scale",
            operation=column,
        )
    shift = max(0, kind.bits - 1)
    center = kind.low + (1 << shift) if kind.bits else kind.low
    return LinkedFeature(number, column, schema_column, (shown,), shift, center)


def _derive_linked_label(number: int, table: TableAccess, column: str) -> tuple[LinkedFeature, str]:
    """Return the feature of the label, and its kind: binary, classes or number."""
    kind = table.schema.column(column, f"table {table.name!r}").type
    feature = _derive_linked_feature(number, table, column, column)
    if kind.kind == NUMBER:
        return feature, "number"
    words = kind.words or ("0", "1")
    if len(words) < 2:
        raise UsageError(
            f"Expected a label with at least two classes. Received: {column!r} with one word only.",
            code="invalid-label",
            operation=column,
        )
    return replace(feature, names=words), "binary" if len(words) == 2 else "classes"


def _describe_dataset(
    order: LinkageRequest,
    tables: Sequence[TableAccess],
    features: Sequence[LinkedFeature],
    label: LinkedFeature,
    target: str,
) -> dict[str, Any]:
    scales = [feature.scale for feature in features]
    names = [name for feature in features for name in feature.names]
    classes = () if target == "number" else label.names
    columns = ColumnScale(sum((s.factor for s in scales), ()), sum((s.offset for s in scales), ()))
    unit = label.scale if target == "number" else None
    units = Units(tuple(names), target, order.label[1], classes, columns, unit).to_header()
    source_tables = [{"table": table.name, "owner": table.owner} for table in tables]
    return {
        "x": [len(names)],
        "y": [len(classes) if target == "classes" else 1],
        "target": target,
        "classes": max(1, len(classes)),
        "columns": names,
        "units": {key: units[key] for key in ("label", "classes", "scale", "unit")},
        "made_of": source_tables,
    }


def find_linkage_tables(
    order: LinkageRequest, store: ShareStore, client: str, clients: Sequence[str] = ()
) -> list[TableAccess]:
    """Return the tables of a request from a worker's store; all clients must be permitted.

    Raises:
        UsageError: a table does not exist, or was replaced.
        PolicyError: an owner has not named one of the clients.
    """
    tables = []
    for part in order.tables:
        table, facts = stored.find_table(store, part.name, part.deployment, client)
        for other in clients:
            if not facts.is_permitted(other):
                raise PolicyError(
                    f"Data derived from table {part.name!r} is for clients that its owner, "
                    f"{facts.owner!r}, has named. Received: {other[:80]!r}. The owner names "
                    "clients with `table put ... --for`.",
                    code="client-not-permitted",
                    operation=part.name,
                    received=other[:80],
                )
        tables.append(table)
    return tables


def collect_linkage_sources(order: LinkageRequest, tables: Sequence[TableAccess]) -> Sources:
    """Return the sources of the linked rows: features, label and keys."""
    columns = {
        table.source(name)
        for part, table in zip(order.tables, tables, strict=True)
        for name in (*part.on, *part.columns)
    }
    at = [part.name for part in order.tables].index(order.label[0])
    return frozenset(columns | {tables[at].source(order.label[1])})
