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

from tfe_bench.cluster.jobs import Context, InputSpec, Program
from tfe_bench.cluster.store import DATA, Facts, Store, check_about, check_name
from tfe_bench.errors import UsageError
from tfe_bench.models import kept
from tfe_bench.models.datasets import Rows
from tfe_bench.models.rows import LABEL_BITS, encoded_labels, shared_features, shared_targets
from tfe_bench.models.service import check_clients, check_deployment, check_known
from tfe_bench.models.tables import TARGETS, Table

if TYPE_CHECKING:
    from tfe_bench.cluster.client import Client, JobResult, PrivateInput
    from tfe_bench.protocols.session.sharing import Shared

PROVIDE, WITHDRAW = "provide", "withdraw"
_FACTS = ("rows", "x", "y", "target", "classes", "columns")
# Of a Table, besides: there for tables that were read from files.
_UNITS = ("label", "classes", "scale", "unit")
_MOST_TEXT = 200
NAME_IS = "A data set's name"


# ---- at the workers


def check_provide(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Refuses what is no data set.

    Raises:
        UsageError: naming what does not fit.
    """
    check_known(PROVIDE, parameters, ("name", "clients", "replace", "deployment", "about"))
    check_name(parameters.get("name"), NAME_IS)
    check_clients(parameters.get("clients"))
    if type(parameters.get("replace")) is not bool:
        raise UsageError(f"replace is true or false. Received: {parameters.get('replace')!r}.")
    check_deployment(parameters.get("deployment"))
    about = parameters.get("about")
    if not isinstance(about, Mapping) or set(about) - {"units"} != set(_FACTS):
        raise UsageError(f'"about" holds {", ".join(_FACTS)}.')
    rows, classes = about["rows"], about["classes"]
    if type(rows) is not int or rows < 1 or type(classes) is not int or classes < 1:
        raise UsageError("A data set has 1 row or more, and 1 class or more.")
    check_about(about)
    if about["target"] not in TARGETS:
        raise UsageError(f"A target is {', '.join(TARGETS)}.")
    columns = about["columns"]
    if not isinstance(columns, list) or not all(
        isinstance(c, str) and len(c) <= _MOST_TEXT for c in columns
    ):
        raise UsageError(f"Names of columns are texts of at most {_MOST_TEXT} characters.")
    if columns and about["x"] != [len(columns)]:
        raise UsageError(
            f"Every feature has a name, or none has. Received: {len(columns)} names of columns for "
            f"features {about['x']}."
        )
    table_of(about)
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


def table_of(about: Mapping[str, Any]) -> Table | None:
    """What a data set's rows are to a model; None where its owner did not say.

    Raises:
        UsageError, DataError: it is no table, or another than the rows.
    """
    units = about.get("units")
    if units is None:
        return None
    if not isinstance(units, Mapping) or set(units) != set(_UNITS):
        raise UsageError(f'"units" holds {", ".join(_UNITS)}.')
    known = {"columns": about["columns"], "target": about["target"], "logits": True}
    return Table.of({**units, **known})


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
    check_name(parameters.get("name"), NAME_IS)
    if inputs:
        raise UsageError(f"{WITHDRAW} has no inputs. Received: {[i.name for i in inputs][:4]}.")


def _withdraw(context: Context) -> dict[str, Shared]:
    """Removes a data set of the asking client at all three workers."""
    store = kept.store_of(context).of(DATA)
    kept.remove(context.party, store, context.parameters["name"], context.client)
    return {}


PROVIDE_PROGRAM = Program(PROVIDE, _provide, check_provide, "keeps an owner's rows", permit=_permit)
WITHDRAW_PROGRAM = Program(WITHDRAW, _withdraw, _check_withdraw, "removes an owner's rows")


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
            **_units(rows.table),
        },
    }
    specs = [InputSpec(k, v.shape, v.fractional_bits) for k, v in inputs.items()]
    check_provide(parameters, specs)  # here too: a mistake costs nothing then
    return client.run(PROVIDE, parameters, inputs, progress)


def _units(table: Table | None) -> dict[str, Any]:
    if table is None:
        return {}
    header = table.header()
    return {"units": {key: header[key] for key in _UNITS}}


def withdraw(client: Client, name: str) -> None:
    """Removes a data set of this client's from all workers."""
    client.run(WITHDRAW, {"name": check_name(name, NAME_IS)}, {})
