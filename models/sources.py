"""Several owners' data as one: rows below each other, or columns side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster.store import Store
from tfe_bench.cluster.stored import DATA, Sources, check_deployment, check_name, own_input
from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.models import kept
from tfe_bench.models.owners import listed
from tfe_bench.models.programs.provide import NAME_IS, table_of
from tfe_bench.models.queries import permits
from tfe_bench.models.queries.rights import Use
from tfe_bench.models.scales import Scale
from tfe_bench.models.tables import Table

if TYPE_CHECKING:
    from tfe_bench.cluster.client import Client
    from tfe_bench.models.training.losses.loss import Loss
    from tfe_bench.protocols.session.party import Party
    from tfe_bench.protocols.session.sharing import Shared


@dataclass(frozen=True)
class Source:
    """Which data sets a training takes.

    Attributes:
        features: names of data sets.
        labels: the name of the one with the labels of a vertical split; None where each has its
            own (rows of several owners).
        deployments: that the client knows of, by name.
    """

    features: tuple[str, ...]
    labels: str | None
    deployments: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """Every data set once."""
        return tuple(dict.fromkeys([*self.features, *([self.labels] if self.labels else [])]))

    def header(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "features": list(self.features),
            "labels": self.labels,
            "deployments": dict(self.deployments),
        }

    @classmethod
    def of(cls, header: object) -> Source:
        """The source of a header, which may come from a stranger.

        Raises:
            UsageError: it is none.
        """
        fits = isinstance(header, Mapping) and set(header) == {"features", "labels", "deployments"}
        if not fits or not isinstance(header, Mapping):
            raise UsageError('A source of data has "features", "labels" and "deployments".')
        features, labels = header["features"], header["labels"]
        if not isinstance(features, list) or not 1 <= len(features) <= 64:
            raise UsageError("A source names 1 to 64 data sets.")
        made = cls(
            tuple(check_name(n, NAME_IS) for n in features),
            None if labels is None else check_name(labels, NAME_IS),
            header["deployments"] if isinstance(header["deployments"], Mapping) else {},
        )
        if len(set(features)) != len(features) or set(made.deployments) != set(made.names):
            raise UsageError("A source names each data set once, and its deployment.")
        for word in made.deployments.values():
            check_deployment(word)
        return made


@dataclass(frozen=True)
class Joined:
    """What the data sets of a source are together.

    Attributes:
        rows: their number.
        x, y: shapes of one row.
        classes: of the labels.
        target: of the labels.
        table: what they are to a model; None where an owner did not say.
    """

    rows: int
    x: tuple[int, ...]
    y: tuple[int, ...]
    classes: int
    target: str
    table: Table | None = None


def check_target(joined: Joined, loss: Loss) -> None:
    """Refuses labels that a loss is not for: nobody sees them, so that nobody would notice.

    Raises:
        UsageError: these.
    """
    if joined.target not in loss.takes:
        known = (
            f"labels that are {' or '.join(loss.takes)}" if loss.takes else "x and y of your own"
        )
        raise UsageError(
            f"{loss.name} wants {known}. Received: owners' labels that are {joined.target!r}."
        )


def joined(source: Source, facts: Mapping[str, tuple[str, Mapping[str, Any]]]) -> Joined:
    """How the data sets fit together.

    Args:
        facts: (owner, about) of each by name.

    Raises:
        UsageError: they do not; both owners are named.
    """

    def said(name: str) -> str:
        return f"{name!r} of {facts[name][0]!r}"

    first = source.features[0]
    for name in source.features:
        if facts[name][1]["x"] is None:
            raise UsageError(f"The data set {said(name)} has no features.")
    for name in [source.labels] if source.labels else source.features:
        if facts[name][1]["y"] is None:
            raise UsageError(f"The data set {said(name)} has no labels.")
    about = facts[first][1]
    if source.labels is None:
        for name in source.features[1:]:
            other = facts[name][1]
            for key in ("x", "y", "target", "classes", "columns"):
                if other[key] != about[key]:
                    what = {"x": "features", "y": "labels"}.get(key, key)
                    raise UsageError(
                        f"Rows of several owners have the same {what}. Received: {about[key]} in "
                        f"{said(first)} and {other[key]} in {said(name)}."
                    )
            _check_units(table_of(about), table_of(other), said(first), said(name))
        rows = sum(facts[name][1]["rows"] for name in source.features)
        shapes = tuple(about["x"]), tuple(about["y"])
        return Joined(rows, *shapes, about["classes"], about["target"], table_of(about))
    for name in source.names:
        other = facts[name][1]
        if "made_of" in other and len(source.names) > 1:
            raise UsageError(
                f"The rows of {said(name)} are in an order that nobody knows, so that no other "
                "columns belong to them. Align what else there is with them (align TABLE TABLE)."
            )
        if other["rows"] != about["rows"]:
            raise UsageError(
                f"Columns of several owners have the same rows in the same order. Received: "
                f"{about['rows']} rows in {said(first)} and {other['rows']} in {said(name)}. "
                "Leave out what one of them does not have, and provide again (--replace)."
            )
        if name in source.features and len(other["x"]) != 1:
            raise UsageError(f"Columns are those of tables. Received: {said(name)}, {other['x']}.")
    labels = facts[source.labels][1]
    width = sum(facts[name][1]["x"][0] for name in source.features)
    tables = [table_of(facts[name][1]) for name in source.features]
    table = _beside(source.features, tables, table_of(labels))
    shape = tuple(labels["y"])
    return Joined(about["rows"], (width,), shape, labels["classes"], labels["target"], table)


def _check_units(first: Table | None, other: Table | None, left: str, right: str) -> None:
    """Refuses rows whose numbers mean different things in one column.

    Raises:
        UsageError: naming the first such column, or the label.
    """
    if first is None or other is None or first == other:
        return  # (who provides arrays says nothing of their units)
    what = f"the label {first.label!r}"
    if (first.classes, first.unit) == (other.classes, other.unit):
        scales = [t.scale or Scale.none(len(t.columns)) for t in (first, other)]
        parts = zip(*(zip(s.factor, s.offset, strict=True) for s in scales), strict=True)
        differ = [i for i, (a, b) in enumerate(parts) if a != b]
        if not differ:
            return
        what = f"the column {first.columns[differ[0]]!r}"
    raise UsageError(
        f"Rows of several owners have the same scales and classes. Received: others of {what} in "
        f"{left} and {right}. One owner writes its scales into a file (provide --save-scale FILE), "
        "and the other provides again with them (--scale FILE --replace)."
    )


def _beside(names: Sequence[str], tables: Sequence[Table | None], label: Table | None) -> Any:
    """The table of columns of several, and of the labels of one."""
    if label is None or any(t is None for t in tables):
        return None
    held = [t for t in tables if t is not None]
    every = [c for t in held for c in t.columns]
    columns = tuple(
        c if every.count(c) == 1 else f"{name}.{c}"
        for name, t in zip(names, held, strict=True)
        for c in t.columns
    )
    scale = None
    if any(t.scale is not None for t in held):
        each = [t.scale or Scale.none(len(t.columns)) for t in held]
        factors, offsets = [s.factor for s in each], [s.offset for s in each]
        scale = Scale(tuple(sum(factors, ())), tuple(sum(offsets, ())))
    return replace(label, columns=columns, scale=scale)


def permitted(source: Source, store: Store, client: str) -> Joined:
    """What a client may train on, as the worker's store has it.

    Raises:
        UsageError, PolicyError, ConfigError, SecurityError: as Store.facts; another deployment, or
            data sets that do not fit each other.
    """
    of = store.of(DATA)
    facts: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for name in source.names:
        found = of.facts(name, client)
        if found.deployment != source.deployments[name]:
            raise UsageError(
                f"Party {store.party} has another deployment of data set {name!r} than this client "
                "asks for: it was replaced meanwhile, or not at all three. Ask again; if that does "
                "not help, its owner provides it again (--replace)."
            )
        made_of = permits.sources_of(found, DATA)
        tables = ", ".join(repr(each["table"]) for each in found.about.get("made_of", ()))
        what = f"the data set {name!r}" + (f", made of tables {tables}," if tables else "")
        permits.check(store, client, Use.ALIGNED, [made_of], what)
        facts[name] = (found.owner, found.about)
    return joined(source, facts)


def derived(source: Source | None, store: Store, client: str) -> Sources:
    """What a training's results derive from, whose data sets it may use.

    Raises:
        UsageError, PolicyError, ConfigError, SecurityError: as Store.facts.
    """
    found = own_input(client)
    for name in source.names if source is not None else ():
        found |= permits.sources_of(store.of(DATA).facts(name, client), DATA)
    return found


def loaded(source: Source, party: Party, store: Store, client: str) -> tuple[Shared, Shared]:
    """(features, labels) of all data sets of a source, as one.

    Raises:
        UsageError, PolicyError, ConfigError, SecurityError: as `permitted`.
        ProtocolError: shares that do not fit each other.
    """
    from tfe_bench.protocols.ring import shapes

    of = store.of(DATA)
    permitted(source, store, client)
    features: list[Shared] = []
    labels: list[Shared] = []
    for name in source.names:
        facts, tensors = of.load(name, client)
        kept.check_same(party, of, facts)
        if name in source.features:
            features.append(kept.shared_of(tensors.pop("x")))
        if source.labels is None or source.labels == name:
            labels.append(kept.shared_of(tensors.pop("y")))
    axis = 0 if source.labels is None else -1

    def whole(parts: list[Shared], along: int) -> Shared:
        return parts[0] if len(parts) == 1 else shapes.concat(parts, along)

    return whole(features, axis), whole(labels, 0)


def source_of(
    cluster: Client, features: Sequence[str], labels: str | None = None
) -> tuple[Source, Joined]:
    """What a client may train on by name: rows of several owners, or columns and labels.

    Raises:
        UsageError: an unknown data set, or ones that do not fit each other.
    """
    known = listed(cluster)
    source = Source(tuple(features), labels, {})
    for name in source.names:
        if name not in known:
            raise UsageError(
                f"There is no data set {name!r} that this client may use."
                f"{did_you_mean(name, known)} Known: {', '.join(known) or 'none'}."
            )
        if not known[name].complete:
            raise UsageError(
                f"The workers hold different deployments of data set {name!r}. Its owner "
                f"{known[name].owner!r} provides it again (--replace)."
            )
    facts = {name: (known[name].owner, known[name].about) for name in source.names}
    deployments = {name: known[name].deployment for name in source.names}
    return Source(source.features, labels, deployments), joined(source, facts)
