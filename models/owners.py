"""Data that its owners provide: rows or columns whose shares workers keep, for others to train on.

An owner shares its rows once (program "provide") and says which clients may use them. Whoever may
orders trainings on them (program "train") and gets their results; nobody sees the rows, but a
trained model tells about the data it was trained on whatever it tells: that is what the owner
permits.

What is public: how many rows, which shape, names of columns, the owner, and who may use them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tfe_bench.cluster.jobs import Context, InputSpec, Program
from tfe_bench.cluster.store import DATA, Facts, Store, check_name
from tfe_bench.errors import RangeError, UsageError, did_you_mean
from tfe_bench.models import kept
from tfe_bench.models.datasets import TARGETS, Rows
from tfe_bench.models.service import check_clients, check_deployment, check_known

if TYPE_CHECKING:
    from tfe_bench.cluster.client import Client, JobResult, PrivateInput
    from tfe_bench.protocols.party import Party
    from tfe_bench.protocols.sharing import Shared

PROVIDE, WITHDRAW = "provide", "withdraw"
# Of labels; features have the cluster's fractional bits.
LABEL_BITS = 20
# A feature's magnitude: pictures have 1, standardised columns a few.
LARGEST = 2.0**12
_FACTS = ("rows", "x", "y", "target", "classes", "columns")
_MOST_TEXT = 200
_AT_ONCE = 4096
_NAME_IS = "A data set's name"


# ---- what is shared


def check_features(x: Any, what: str = "features", first: int = 0) -> Any:
    """Refuses features that fixed point does not hold.

    Args:
        first: number of the first row, in errors.

    Raises:
        UsageError: no numbers [rows, ...].
        RangeError: NaN, or larger than 2^12; the row is named, the value is not.
    """
    array = np.asarray(x)
    if array.dtype.kind not in "fiub" or array.ndim < 2 or not array.size:
        raise UsageError(
            f"The {what} are numbers [rows, ...]. Received: {array.dtype} {list(array.shape)}."
        )
    for begin in range(0, len(array), _AT_ONCE):
        part = array[begin : begin + _AT_ONCE]
        with np.errstate(invalid="ignore"):
            bad = ~(np.abs(part) <= LARGEST).reshape(len(part), -1).all(1)
        if bad.any():
            row = first + begin + int(np.flatnonzero(bad)[0])
            raise RangeError(
                f"The {what} are numbers from -{LARGEST:g} to {LARGEST:g}. Received: NaN or a "
                f"larger one in row {row} (from 0). Scale them, as to mean 0 and deviation 1."
            )
    return array


def shared_features(x: Any, fractional_bits: int, what: str = "features") -> PrivateInput:
    """Features as their owner's input.

    Raises:
        UsageError, RangeError: as `check_features`.
    """
    from tfe_bench.cluster.client import PrivateInput

    array = check_features(x, what)
    ring = np.empty(array.shape, np.int64)
    for begin in range(0, len(array), _AT_ONCE):  # float64 copies of all rows would be large
        part = array[begin : begin + _AT_ONCE].astype(np.float64)
        ring[begin : begin + _AT_ONCE] = np.rint(part * 2.0**fractional_bits)
    return PrivateInput(ring, fractional_bits)


def shared_targets(y: Any) -> PrivateInput:
    """Labels, one-hot or as numbers [rows, outputs], as their owner's input."""
    from tfe_bench.cluster.client import PrivateInput

    return PrivateInput(
        np.rint(np.asarray(y, np.float64) * 2.0**LABEL_BITS).astype(np.int64), LABEL_BITS
    )


def encoded_labels(rows: Rows) -> Any:
    """The labels of some rows as [n, outputs]: one-hot for classes, else one number.

    Raises:
        RangeError: a label outside of the classes, or too large.
    """
    labels = rows.y
    assert labels is not None
    if rows.target == "number":
        if not np.abs(labels).max() <= LARGEST:
            raise RangeError(f"A number to be learnt is at most {LARGEST:g}. Scale them.")
        return labels.astype(np.float64)[:, None]
    if labels.min() < 0 or labels.max() >= rows.classes:
        raise RangeError(f"Labels are classes 0 to {rows.classes - 1}. Received: others.")
    if rows.target == "binary":
        return labels.astype(np.float64)[:, None]
    return np.eye(rows.classes)[labels]


# ---- provide


def check_provide(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Refuses what is no data set.

    Raises:
        UsageError: naming what does not fit.
    """
    check_known(PROVIDE, parameters, ("name", "clients", "replace", "deployment", "about"))
    check_name(parameters.get("name"), _NAME_IS)
    check_clients(parameters.get("clients"))
    if type(parameters.get("replace")) is not bool:
        raise UsageError(f"replace is true or false. Received: {parameters.get('replace')!r}.")
    check_deployment(parameters.get("deployment"))
    about = parameters.get("about")
    if not isinstance(about, Mapping) or set(about) != set(_FACTS):
        raise UsageError(f'"about" holds {", ".join(_FACTS)}.')
    rows, classes = about["rows"], about["classes"]
    if type(rows) is not int or rows < 1 or type(classes) is not int or classes < 1:
        raise UsageError("A data set has 1 row or more, and 1 class or more.")
    if about["target"] not in TARGETS:
        raise UsageError(f"A target is {', '.join(TARGETS)}.")
    columns = about["columns"]
    if not isinstance(columns, list) or not all(
        isinstance(c, str) and len(c) <= _MOST_TEXT for c in columns
    ):
        raise UsageError(f"Names of columns are texts of at most {_MOST_TEXT} characters.")
    # Features have the scale that their owner says; a training refuses another than its own.
    bits = {"x": next((i.fractional_bits for i in inputs if i.name == "x"), 0), "y": LABEL_BITS}
    wanted = [
        InputSpec(part, (rows, *about[part]), bits[part])
        for part in ("x", "y")
        if _is_shape(about[part])
    ]
    if not wanted or list(inputs) != wanted:
        raise UsageError(
            f"The inputs of a data set are its rows as it says: x {about['x']}, y {about['y']}. "
            f"Received: {[(i.name, list(i.shape), i.fractional_bits) for i in inputs][:4]}."
        )


def _is_shape(value: object) -> bool:
    if value is None:
        return False
    if not isinstance(value, list) or not all(type(n) is int and n > 0 for n in value):
        raise UsageError("A shape is a list of positive integers, or null.")
    return True


def _permit(
    client: str, store: Store, parameters: Mapping[str, Any], _: Sequence[InputSpec]
) -> None:
    store.of(DATA).permit_writing(parameters["name"], client, parameters["replace"])


def _provide(context: Context) -> dict[str, Shared]:
    """Keeps the shares of a data set: written at all three workers, or at none."""
    parameters, store = context.parameters, kept.store_of(context).of(DATA)
    _permit(context.client, store, parameters, ())
    context.progress(0.0, "writing")
    facts = Facts(
        parameters["name"],
        context.client,
        tuple(parameters["clients"]),
        parameters["deployment"],
        parameters["about"],
    )
    kept.write(context.party, store, facts, context.inputs)
    return {}


def _check_withdraw(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    check_known(WITHDRAW, parameters, ("name",))
    check_name(parameters.get("name"), _NAME_IS)
    if inputs:
        raise UsageError(f"{WITHDRAW} has no inputs. Received: {[i.name for i in inputs][:4]}.")


def _withdraw(context: Context) -> dict[str, Shared]:
    """Removes a data set of the asking client at all three workers."""
    store, name = kept.store_of(context).of(DATA), context.parameters["name"]
    there = name in store.names()
    if there:
        store.permit_removing(name, context.client)
    if not any(found == b"1" for found in context.party.exchange(b"1" if there else b"0")):
        raise UsageError(f"No worker has a data set {name!r}.")
    if there:
        store.remove(name)
    return {}


PROVIDE_PROGRAM = Program(PROVIDE, _provide, check_provide, "keeps an owner's rows", permit=_permit)
WITHDRAW_PROGRAM = Program(WITHDRAW, _withdraw, _check_withdraw, "removes an owner's rows")


# ---- at the workers: several owners' data as one


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
            tuple(check_name(n, _NAME_IS) for n in features),
            None if labels is None else check_name(labels, _NAME_IS),
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
    """

    rows: int
    x: tuple[int, ...]
    y: tuple[int, ...]
    classes: int
    target: str


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
        rows = sum(facts[name][1]["rows"] for name in source.features)
        return Joined(rows, tuple(about["x"]), tuple(about["y"]), about["classes"], about["target"])
    for name in source.names:
        other = facts[name][1]
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
    return Joined(about["rows"], (width,), tuple(labels["y"]), labels["classes"], labels["target"])


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
        facts[name] = (found.owner, found.about)
    return joined(source, facts)


def loaded(source: Source, party: Party, store: Store, client: str) -> tuple[Shared, Shared]:
    """(features, labels) of all data sets of a source, as one.

    Raises:
        UsageError, PolicyError, ConfigError, SecurityError: as `permitted`.
        ProtocolError: shares that do not fit each other.
    """
    from tfe_bench.protocols import shapes

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


# ---- at the client


@dataclass(frozen=True, eq=False)
class Provided:
    """A data set, as a client that may use it knows it.

    Attributes:
        name, owner, deployment: of the data set.
        clients: who else may use it; None to all but its owner.
        about: public facts.
        complete: whether all three workers have this deployment.
    """

    name: str
    owner: str
    clients: tuple[str, ...] | None
    deployment: str
    about: Mapping[str, Any]
    complete: bool


def listed(client: Client) -> dict[str, Provided]:
    """The data sets that a client may use, by name."""
    return {
        str(row["name"]): Provided(
            str(row["name"]),
            str(row["owner"]),
            None if row["clients"] is None else tuple(row["clients"]),
            str(row["deployment"]),
            row["about"],
            bool(row["complete"]),
        )
        for row in client.stored(DATA.infix)
    }


def provide(
    client: Client,
    name: str,
    rows: Rows,
    clients: Sequence[str] = (),
    replace: bool = False,
    progress: Callable[[float, str], None] | None = None,
) -> JobResult:
    """Shares rows among the workers, which keep them under a name for others to train on.

    Args:
        rows: features, labels, or both.
        clients: who may train on them besides this one; "*" for every client of the cluster.
        replace: what this client provided under the name before.

    Raises:
        UsageError: the name is none or taken.
        RangeError: values that do not fit.
        PolicyError: an operator does not let this client provide.
    """
    inputs: dict[str, PrivateInput] = {}
    if rows.x is not None:
        inputs["x"] = shared_features(rows.x, client.config.fractional_bits)
    if rows.y is not None:
        inputs["y"] = shared_targets(encoded_labels(rows))
    parameters = {
        "name": name,
        "clients": list(clients),
        "replace": replace,
        "deployment": uuid.uuid4().hex,
        "about": {
            "rows": len(rows),
            "x": list(inputs["x"].shape[1:]) if "x" in inputs else None,
            "y": list(inputs["y"].shape[1:]) if "y" in inputs else None,
            "target": rows.target,
            "classes": rows.classes,
            "columns": list(rows.columns),
        },
    }
    specs = [InputSpec(k, v.shape, v.fractional_bits) for k, v in inputs.items()]
    check_provide(parameters, specs)  # here too: a mistake costs nothing then
    return client.run(PROVIDE, parameters, inputs, progress)


def withdraw(client: Client, name: str) -> None:
    """Removes a data set of this client's from all workers."""
    client.run(WITHDRAW, {"name": check_name(name, _NAME_IS)}, {})


def source_of(
    client: Client, features: Sequence[str], labels: str | None = None
) -> tuple[Source, Joined]:
    """What a client may train on by name: rows of several owners, or columns and labels.

    Raises:
        UsageError: an unknown data set, or ones that do not fit each other.
    """
    known = listed(client)
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
