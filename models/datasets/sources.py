"""Combination of several owners' data sets: rows below each other, or columns side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.schema import (
    Header,
    Rule,
    declare_field,
    list_field,
    mapping_rule,
    optional_rule,
)
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import (
    DATA,
    Sources,
    check_deployment_identifier,
    check_name,
    client_input_source,
)
from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.models.convert.tables import Table
from tfe_bench.models.datasets.owners import list_datasets
from tfe_bench.models.datasets.request import NAME_SUBJECT, read_dataset_table
from tfe_bench.models.layers.base.scales import ColumnScale
from tfe_bench.queries import permits
from tfe_bench.queries.rights import ColumnUse

if TYPE_CHECKING:
    from tfe_bench.cluster.client import Client
    from tfe_bench.protocols.session.party import Party
    from tfe_bench.protocols.session.sharing import Shared


# Data sets with features of one training.
MAX_DATASETS = 64
_NAME = Rule(lambda name: check_name(name, NAME_SUBJECT))


@dataclass(frozen=True)
class DatasetRef(Header, subject="A source of data", code="invalid-parameters"):
    """The data sets of a training.

    Attributes:
        features: names of data sets.
        labels: name of the data set with the labels of a vertical split; None if each data set has
            its own labels (rows of several owners).
        deployments: deployment by name, as known to the client.
    """

    features: tuple[str, ...] = list_field(_NAME, 1, MAX_DATASETS, "invalid-parameters")
    labels: str | None = declare_field(optional_rule(_NAME))
    deployments: Mapping[str, str] = declare_field(
        mapping_rule(Rule(check_deployment_identifier), MAX_DATASETS + 1)
    )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the data sets, each once."""
        return tuple(dict.fromkeys([*self.features, *([self.labels] if self.labels else [])]))

    @classmethod
    def from_header(cls, header: object) -> DatasetRef:
        """Read the reference of a header from an untrusted source.

        Raises:
            UsageError: the header is invalid.
        """
        dataset_ref = super().from_header(header)
        features, names = dataset_ref.features, dataset_ref.names
        if len(set(features)) != len(features) or set(dataset_ref.deployments) != set(names):
            raise UsageError(
                "Expected each data set once in a source, with its deployment.",
                code="duplicate-name",
                operation="features",
            )
        return dataset_ref


@dataclass(frozen=True)
class CombinedSchema:
    """The schema of combined data sets.

    Attributes:
        rows: number of rows.
        x, y: shapes of one row.
        classes: number of classes of the labels.
        target: type of the labels.
        table: column names and scales for a model; None if an owner stated none.
    """

    rows: int
    x: tuple[int, ...]
    y: tuple[int, ...]
    classes: int
    target: str
    table: Table | None = None


def combine_dataset_schemas(
    source: DatasetRef, facts: Mapping[str, tuple[str, Mapping[str, Any]]]
) -> CombinedSchema:
    """Combine the schemas of the data sets.

    Args:
        facts: (owner, about) of each data set by name.

    Raises:
        UsageError: the data sets do not fit each other; the text names both owners.
    """

    def describe_dataset(name: str) -> str:
        return f"{name!r} of {facts[name][0]!r}"

    first = source.features[0]
    for name in source.features:
        if facts[name][1]["x"] is None:
            raise UsageError(
                f"The data set {describe_dataset(name)} has no features.",
                code="missing-features",
                operation=name,
            )
    for name in [source.labels] if source.labels else source.features:
        if facts[name][1]["y"] is None:
            raise UsageError(
                f"The data set {describe_dataset(name)} has no labels.",
                code="missing-label",
                operation=name,
            )
    about = facts[first][1]
    if source.labels is None:
        for name in source.features[1:]:
            other_facts = facts[name][1]
            for key in ("x", "y", "target", "classes", "columns"):
                if other_facts[key] != about[key]:
                    property_name = {"x": "features", "y": "labels"}.get(key, key)
                    raise UsageError(
                        f"Expected the same {property_name} in the rows of all owners. Received: "
                        f"{about[key]} in {describe_dataset(first)} and {other_facts[key]} in "
                        f"{describe_dataset(name)}.",
                        code="dataset-mismatch",
                        operation=property_name,
                        received=other_facts[key],
                        expected=about[key],
                    )
            _check_dataset_units(
                read_dataset_table(about),
                read_dataset_table(other_facts),
                describe_dataset(first),
                describe_dataset(name),
            )
        rows = sum(facts[name][1]["rows"] for name in source.features)
        shapes = tuple(about["x"]), tuple(about["y"])
        return CombinedSchema(
            rows, *shapes, about["classes"], about["target"], read_dataset_table(about)
        )
    for name in source.names:
        other_facts = facts[name][1]
        if "made_of" in other_facts and len(source.names) > 1:
            raise UsageError(
                f"The rows of {describe_dataset(name)} are in an order that no party knows, so "
                "that other columns cannot be added. Align the other tables with them (align "
                "TABLE TABLE).",
                code="unknown-row-order",
                operation=name,
            )
        if other_facts["rows"] != about["rows"]:
            raise UsageError(
                "Expected the same rows in the same order for all owners' columns. Received: "
                f"{about['rows']} rows in {describe_dataset(first)} and {other_facts['rows']} in "
                f"{describe_dataset(name)}. Remove rows that one of them does not have, and "
                "provide the data again (--replace).",
                code="row-count-mismatch",
                operation=name,
                received=other_facts["rows"],
                expected=about["rows"],
            )
        if name in source.features and len(other_facts["x"]) != 1:
            raise UsageError(
                f"Expected columns of tables. Received: {describe_dataset(name)}, "
                f"{other_facts['x']}.",
                code="shape-mismatch",
                operation=name,
                received=other_facts["x"],
            )
    labels = facts[source.labels][1]
    column_count = sum(facts[name][1]["x"][0] for name in source.features)
    tables = [read_dataset_table(facts[name][1]) for name in source.features]
    table = _combine_tables(source.features, tables, read_dataset_table(labels))
    shape = tuple(labels["y"])
    return CombinedSchema(
        about["rows"], (column_count,), shape, labels["classes"], labels["target"], table
    )


def _check_dataset_units(
    first: Table | None, other: Table | None, first_name: str, other_name: str
) -> None:
    """Reject rows of two owners whose numbers have different scales in one column.

    Raises:
        UsageError: the scales differ; the text names the first such column, or the label.
    """
    if first is None or other is None or first == other:
        return  # data sets from arrays state no units
    subject = f"the label {first.label!r}"
    if (first.classes, first.unit) == (other.classes, other.unit):
        scales = [t.scale or ColumnScale.identity(len(t.columns)) for t in (first, other)]
        parts = zip(*(zip(s.factor, s.offset, strict=True) for s in scales), strict=True)
        differ = [i for i, (a, b) in enumerate(parts) if a != b]
        if not differ:
            return
        subject = f"the column {first.columns[differ[0]]!r}"
    raise UsageError(
        "Expected the same scales and classes in the rows of all owners. Received: different "
        f"ones for {subject} in {first_name} and {other_name}. One owner writes its scales to a "
        "file (provide --save-scale FILE), and the other provides its rows again with them "
        "(--scale FILE --replace).",
        code="scales-mismatch",
        operation=subject,
    )


def _combine_tables(
    names: Sequence[str], tables: Sequence[Table | None], label: Table | None
) -> Any:
    """Combine the tables of several owners' columns with the labels of one owner."""
    if label is None or any(t is None for t in tables):
        return None
    known_tables = [t for t in tables if t is not None]
    all_columns = [c for t in known_tables for c in t.columns]
    columns = tuple(
        c if all_columns.count(c) == 1 else f"{name}.{c}"
        for name, t in zip(names, known_tables, strict=True)
        for c in t.columns
    )
    scale = None
    if any(t.scale is not None for t in known_tables):
        scales = [t.scale or ColumnScale.identity(len(t.columns)) for t in known_tables]
        factors, offsets = [s.factor for s in scales], [s.offset for s in scales]
        scale = ColumnScale(tuple(sum(factors, ())), tuple(sum(offsets, ())))
    return replace(label, columns=columns, scale=scale)


def check_permitted_datasets(source: DatasetRef, store: ShareStore, client: str) -> CombinedSchema:
    """Return the schema of the data sets that a client may train on, from the worker's store.

    Raises:
        UsageError, PolicyError, ConfigError, SecurityError: as ShareStore.get_facts; or the
            deployment changed, or the data sets do not fit each other.
    """
    dataset_store = store.for_kind(DATA)
    facts: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for name in source.names:
        stored_facts = dataset_store.get_facts(name, client)
        if stored_facts.deployment != source.deployments[name]:
            raise UsageError(
                f"Party {store.party} stores another deployment of data set {name!r} than this "
                "client requests: it was replaced in the meantime, or is not complete at all "
                "three workers. Submit the job again; if that does not help, its owner must "
                "provide it again (--replace).",
                code="deployment-changed",
                operation=name,
                party=store.party,
            )
        made_of = permits.stored_item_sources(stored_facts, DATA)
        tables = ", ".join(repr(table["table"]) for table in stored_facts.about.get("made_of", ()))
        subject = f"the data set {name!r}" + (f", made of tables {tables}," if tables else "")
        permits.check_permission(store, client, ColumnUse.ALIGNED, [made_of], subject)
        facts[name] = (stored_facts.owner, stored_facts.about)
    return combine_dataset_schemas(source, facts)


def derive_training_sources(source: DatasetRef | None, store: ShareStore, client: str) -> Sources:
    """Return the sources of a training's results, if the client may use its data sets.

    Raises:
        UsageError, PolicyError, ConfigError, SecurityError: as ShareStore.get_facts.
    """
    result_sources = client_input_source(client)
    for name in source.names if source is not None else ():
        result_sources |= permits.stored_item_sources(
            store.for_kind(DATA).get_facts(name, client), DATA
        )
    return result_sources


def load_datasets(
    source: DatasetRef, party: Party, store: ShareStore, client: str
) -> tuple[Shared, Shared]:
    """Load the features and labels of all data sets, combined.

    Raises:
        UsageError, PolicyError, ConfigError, SecurityError: as `check_permitted_datasets`.
        ProtocolError: the workers' shares do not match.
    """
    from tfe_bench.protocols.ring import shapes

    dataset_store = store.for_kind(DATA)
    check_permitted_datasets(source, store, client)
    features: list[Shared] = []
    labels: list[Shared] = []
    for name in source.names:
        facts, tensors = dataset_store.load(name, client)
        stored_shares.check_same(party, dataset_store, facts)
        if name in source.features:
            features.append(stored_shares.stored_to_shared(tensors.pop("x")))
        if source.labels is None or source.labels == name:
            labels.append(stored_shares.stored_to_shared(tensors.pop("y")))
    axis = 0 if source.labels is None else -1

    def concat_parts(parts: list[Shared], along: int) -> Shared:
        return parts[0] if len(parts) == 1 else shapes.concat(parts, along)

    return concat_parts(features, axis), concat_parts(labels, 0)


def resolve_datasets(
    cluster: Client, features: Sequence[str], labels: str | None = None
) -> tuple[DatasetRef, CombinedSchema]:
    """Resolve names of data sets for a training: rows of several owners, or columns and labels.

    Raises:
        UsageError: a data set is unknown, or data sets do not fit each other.
    """
    datasets = list_datasets(cluster)
    source = DatasetRef(tuple(features), labels, {})
    for name in source.names:
        if name not in datasets:
            raise UsageError(
                f"There is no data set {name!r} that this client may "
                f"use.{did_you_mean(name, datasets)} Known: {', '.join(datasets) or 'none'}.",
                code="dataset-not-found",
                operation=name,
            )
        if not datasets[name].complete:
            raise UsageError(
                f"The workers store different deployments of data set {name!r}. Its owner "
                f"{datasets[name].owner!r} must provide it again (--replace).",
                code="deployment-mismatch",
                operation=name,
            )
    facts = {name: (datasets[name].owner, datasets[name].about) for name in source.names}
    deployments = {name: datasets[name].deployment for name in source.names}
    return DatasetRef(source.features, labels, deployments), combine_dataset_schemas(source, facts)
