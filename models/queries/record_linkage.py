"""What is public about several tables' common rows, which are kept for trainings.

The order names tables, their keys, and the columns that become features and the label.  Every
worker derives from it and from the headers that it keeps what the rows are to a model, and whether
all owners permit it: the right `match` to keys, `train` to what is learned from, and that the
common rows are counted.  What was kept so is used as long as all of its tables are kept as they
were, and by clients that may use each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfe_bench.cluster.store import Store
from tfe_bench.cluster.stored import Sources, check_deployment, check_name
from tfe_bench.errors import PolicyError, UsageError
from tfe_bench.models.csv_file import MAX_TEXT
from tfe_bench.models.queries import stored
from tfe_bench.models.queries.rights import Table, Use
from tfe_bench.models.queries.schema import Column
from tfe_bench.models.queries.types import BOOL, CATEGORY, MAX_WIDTH, NUMBER
from tfe_bench.models.scales import Scale
from tfe_bench.models.tables import Table as Units

NAME_IS = "A table's name"
MIN_TABLES, MAX_TABLES = 2, 8
MAX_KEYS = 8
# Of a category that becomes a feature for each of its words, or classes to learn.
MAX_WORDS = 64
# Features of a row.
MAX_FEATURES = 4096
# Of a number whose owner does not say near which values it lies.
MAX_BITS = 32


@dataclass(frozen=True)
class LinkedTable:
    """What is taken of one table.

    Attributes:
        name, deployment: of the table.
        on: its key's columns.
        columns: its features.
    """

    name: str
    deployment: str
    on: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class LinkageRequest:
    """Which tables are aligned by what, and what is kept of them.

    Attributes:
        parts: of 2 to 8 tables.
        label: the table and the column that is to be learned.

    Raises:
        UsageError: there is no such order.
    """

    parts: tuple[LinkedTable, ...]
    label: tuple[str, str]

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        check_table_names(names)
        counts = {len(part.on) for part in self.parts}
        if len(counts) > 1 or not 1 <= max(counts) <= MAX_KEYS:
            raise UsageError(
                f"A key has 1 to {MAX_KEYS} columns, as many in each table. Received: "
                f"{sorted(counts)}."
            )
        for part in self.parts:
            label_columns = [self.label[1]] if self.label[0] == part.name else []
            used = [*part.on, *part.columns, *label_columns]
            if len(set(used)) != len(used):
                raise UsageError(
                    f"Of table {part.name!r} each column is a key, a feature or the label, once."
                )
            if not part.columns and not label_columns:
                raise UsageError(
                    f"Of table {part.name!r} nothing is learned from. Name a feature (--columns)."
                )
        if self.label[0] not in names:
            raise UsageError("The label is a column of one of the tables (--label TABLE.COLUMN).")
        if not any(part.columns for part in self.parts):
            raise UsageError("There are no features to learn from. Name some (--columns).")

    def header(self) -> dict[str, Any]:
        """As public JSON."""
        parts = [
            {"name": p.name, "deployment": p.deployment, "on": [*p.on], "columns": [*p.columns]}
            for p in self.parts
        ]
        return {"tables": parts, "label": list(self.label)}

    @classmethod
    def from_header(cls, header: object) -> LinkageRequest:
        """From JSON of anybody.

        Raises:
            UsageError: it is no order.
        """
        if not isinstance(header, Mapping) or set(header) != {"tables", "label"}:
            raise UsageError('What is aligned has "tables" and a "label".')
        listed, label = header["tables"], header["label"]
        if not isinstance(listed, list) or len(listed) > MAX_TABLES:
            raise UsageError(f"align takes {MIN_TABLES} to {MAX_TABLES} tables.")
        if not _is_text_list(label, 2) or len(label) != 2:
            raise UsageError("A label is a table and a column.")
        parts = []
        for entry in listed:
            known = {"name", "deployment", "on", "columns"}
            if not isinstance(entry, Mapping) or set(entry) != known:
                raise UsageError("Of a table its deployment, keys and columns are named.")
            if not _is_text_list(entry["on"], MAX_KEYS) or not _is_text_list(
                entry["columns"], MAX_FEATURES
            ):
                raise UsageError("Keys and columns are lists of names.")
            check_deployment(entry["deployment"])
            name = check_name(entry["name"], NAME_IS)
            parts.append(
                LinkedTable(name, entry["deployment"], tuple(entry["on"]), tuple(entry["columns"]))
            )
        return cls(tuple(parts), (label[0], label[1]))


def check_table_names(names: Sequence[str]) -> None:
    """Refuses other numbers of tables than are aligned, and one that comes twice.

    Raises:
        UsageError: those.
    """
    if not MIN_TABLES <= len(names) <= MAX_TABLES:
        raise UsageError(
            f"align takes {MIN_TABLES} to {MAX_TABLES} tables. Received: {len(names)}."
        )
    if len(set(names)) != len(names):
        raise UsageError("align takes each table once.")


def _is_text_list(value: object, max_length: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= max_length
        and all(isinstance(each, str) and len(each) <= MAX_TEXT for each in value)
    )


@dataclass(frozen=True)
class Feature:
    """What one column is to a model: (element - center) / 2^shift, or a bit for each word.

    Attributes:
        table: its number.
        column: its name.
        kept: the column's header.
        names: of the numbers that it becomes.
        shift, center: of a number; 0 of bits.
    """

    table: int
    column: str
    schema_column: Column
    names: tuple[str, ...]
    shift: int = 0
    center: int = 0

    @property
    def scale(self) -> Scale:
        """The same of values, not of elements."""
        count, size = len(self.names), float(1 << self.shift)
        factor = self.schema_column.type.denominator / size
        return Scale((factor,) * count, (0.0 - self.center / size,) * count)


@dataclass(frozen=True)
class LinkageSchema:
    """What an order makes.

    Attributes:
        features, label: in the order of the data set.
        least: common rows that there must be, by the owners' rules.
        about: public facts of the data set, as the program "provide" has them, without "rows".
    """

    features: tuple[Feature, ...]
    label: Feature
    min_rows: int
    about: Mapping[str, Any]


def derive_linkage(
    order: LinkageRequest, tables: Sequence[Table], clients: Sequence[str] = ()
) -> LinkageSchema:
    """What an order makes of its tables, if their owners permit it.

    Args:
        tables: of the order's parts, as the asking client sees them.
        clients: who else is to train on the rows: each needs the same rights.

    Raises:
        UsageError: columns that are not there, or not of the kind that it takes.
        PolicyError: naming table, owner and what they do not permit.
    """
    _check_keys(order, tables)
    for client in dict.fromkeys([tables[0].client, *clients]):
        _check_rights(order, [replace(table, client=client) for table in tables])
    columns = [(i, name) for i, part in enumerate(order.parts) for name in part.columns]
    all_names = [name for _, name in columns]
    features = []
    for i, name in columns:
        shown = name if all_names.count(name) == 1 else f"{order.parts[i].name}.{name}"
        features.append(_derive_feature(i, tables[i], name, shown))
    names = [name for feature in features for name in feature.names]
    if len(names) > MAX_FEATURES or len(set(names)) != len(names):
        raise UsageError(
            f"A row has at most {MAX_FEATURES} features, each of another name. Received: "
            f"{len(names)}. Name some (--columns)."
        )
    at = [part.name for part in order.parts].index(order.label[0])
    label, target = _derive_label(at, tables[at], order.label[1])
    least = max(table.schema.min_group for table in tables)
    return LinkageSchema(
        tuple(features), label, least, _describe_dataset(order, tables, features, label, target)
    )


def _check_keys(order: LinkageRequest, tables: Sequence[Table]) -> None:
    for part, table in zip(order.parts, tables, strict=True):
        for name in (*part.on, *part.columns):
            table.schema.column(name, f"table {table.name!r}")
        unique = table.schema.unique
        if not set(part.on) & set(unique):
            raise UsageError(
                f"Keys are unique in each table. Received: {', '.join(part.on)} of table "
                f"{table.name!r}, where {', '.join(unique) or 'none'} is. Its owner, "
                f"{table.owner!r}, declares it (table put --unique)."
            )
        if table.schema.unit and table.schema.unit not in unique:
            raise UsageError(
                f"A record of table {table.name!r} is not one person's alone: its unit, "
                f"{table.schema.unit!r}, is not unique. Align tables of one row for each."
            )
    for keys in zip(*(part.on for part in order.parts), strict=True):
        first = tables[0].schema.columns[keys[0]].type
        for name, table in zip(keys, tables, strict=True):
            if (other := table.schema.columns[name].type) != first:
                raise UsageError(
                    "Keys have one type and range in all tables. Received: "
                    f"{keys[0]!r} of {tables[0].name!r} is {first} from {first.low} to "
                    f"{first.high}, {name!r} of {table.name!r} is {other} from {other.low} to "
                    f"{other.high}. Have the owners declare the same (table put --type)."
                )


def _check_rights(order: LinkageRequest, tables: Sequence[Table]) -> None:
    """Whether a client may align these tables, and learn from the rows."""
    purpose = (
        f"Aligning for {tables[0].client!r}" if tables[0].client != "*" else "Aligning for all"
    )
    for part, table in zip(order.parts, tables, strict=True):
        label = [order.label[1]] if order.label[0] == part.name else []
        for use, columns in ((Use.KEY, part.on), (Use.TRAIN, (*part.columns, *label))):
            for name in columns:
                table.check(use, name, purpose)
        if table.client != table.owner and not table.schema.open_count:
            raise PolicyError(
                f"{purpose} tells how many rows are common, which the owner of table {table.name!r} "
                f"does not permit. {table.owner!r} permits it with `table put ... --open-count`."
            )


def _derive_feature(number: int, table: Table, column: str, shown: str) -> Feature:
    schema_column = table.schema.columns[column]
    kind, column_text = schema_column.type, f"{column!r} of table {table.name!r}"
    if schema_column.nullable:
        raise UsageError(
            f"The column {column_text} may be NULL, and there is no number in its place. Leave it out "
            "(--columns), or have its owner put it with a value in every row."
        )
    if kind.kind == BOOL:
        return Feature(number, column, schema_column, (shown,))
    if kind.kind == CATEGORY:
        if len(kind.words) > MAX_WORDS:
            raise UsageError(
                f"A category is learned from by a number for each of its words, {MAX_WORDS} at "
                f"most. Received: {column_text} with {len(kind.words)}. Leave it out (--columns)."
            )
        names = tuple(f"{shown}={word}" for word in kind.words)
        if any(len(name) > MAX_TEXT for name in names):
            raise UsageError(
                f"Names of features have at most {MAX_TEXT} characters. Received: longer ones of "
                f"{column_text} and its words."
            )
        return Feature(number, column, schema_column, names)
    if kind.kind != NUMBER:
        raise UsageError(
            f"Numbers, bools and categories are learned from. Received: {column_text}, a {kind.kind}. "
            "Leave it out (--columns), or have its owner put what it says as a number."
        )
    if schema_column.scale is not None:
        return Feature(number, column, schema_column, (shown,), *schema_column.scale)
    if kind.bits > min(MAX_BITS, MAX_WIDTH):
        raise UsageError(
            f"Nothing says near which values {column_text} lies: its range has {kind.bits} bits. Its "
            f"owner, {table.owner!r}, declares a range (--type {column}:int[0,120]), or tells "
            f"roughly (table put --scale {column}); what has two values is a bool or a category."
        )
    shift = max(0, kind.bits - 1)
    center = kind.low + (1 << shift) if kind.bits else kind.low
    return Feature(number, column, schema_column, (shown,), shift, center)


def _derive_label(number: int, table: Table, column: str) -> tuple[Feature, str]:
    """What is learned, and whether it is binary, classes or a number."""
    kind = table.schema.column(column, f"table {table.name!r}").type
    feature = _derive_feature(number, table, column, column)
    if kind.kind == NUMBER:
        return feature, "number"
    words = kind.words or ("0", "1")
    if len(words) < 2:
        raise UsageError(f"The label {column!r} has one word only: there is nothing to learn.")
    return replace(feature, names=words), "binary" if len(words) == 2 else "classes"


def _describe_dataset(
    order: LinkageRequest,
    tables: Sequence[Table],
    features: Sequence[Feature],
    label: Feature,
    target: str,
) -> dict[str, Any]:
    scales = [feature.scale for feature in features]
    names = [name for feature in features for name in feature.names]
    classes = () if target == "number" else label.names
    columns = Scale(sum((s.factor for s in scales), ()), sum((s.offset for s in scales), ()))
    unit = label.scale if target == "number" else None
    units = Units(tuple(names), target, order.label[1], classes, columns, unit).header()
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


def find_tables(
    order: LinkageRequest, store: Store, client: str, clients: Sequence[str] = ()
) -> list[Table]:
    """The tables of an order as a worker keeps them, of which all clients are among the permitted.

    Raises:
        UsageError: one is not there, or was replaced meanwhile.
        PolicyError: a client whom an owner has not named.
    """
    tables = []
    for part in order.parts:
        table, facts = stored.find_table(store, part.name, part.deployment, client)
        for other in clients:
            if not facts.is_permitted(other):
                raise PolicyError(
                    f"What is made of table {part.name!r} is for those whom its owner, "
                    f"{facts.owner!r}, has named. Received: {other[:80]!r}. They are named with "
                    "`table put ... --for`."
                )
        tables.append(table)
    return tables


def collect_sources(order: LinkageRequest, tables: Sequence[Table]) -> Sources:
    """What the rows of an order derive from: features, the label, and keys."""
    columns = {
        table.source(name)
        for part, table in zip(order.parts, tables, strict=True)
        for name in (*part.on, *part.columns)
    }
    at = [part.name for part in order.parts].index(order.label[0])
    return frozenset(columns | {tables[at].source(order.label[1])})
