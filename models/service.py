"""The prediction service: a model that workers hold, and who asks them for predictions.

Three roles, each with its own certificate: the model's owner deploys it (program "deploy"), clients
whom the owner and all three operators let in send inputs and get results (program "serve", in
benchmarks/workloads, as it is measured), and the workers hold shares of both and learn neither.

What is public: the model's layers, shapes and fixed point, its owner, who may use it.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster.jobs import Context, InputSpec, Program
from tfe_bench.cluster.store import ANY, Facts, Store, check_about, check_name
from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.models import kept
from tfe_bench.models.kept import store_of

if TYPE_CHECKING:
    from tfe_bench.cluster.client import Client, JobResult
    from tfe_bench.models.private import PrivateModel
    from tfe_bench.models.ranges import Plan
    from tfe_bench.models.tables import Table
    from tfe_bench.protocols.session.sharing import Shared

DEPLOY, REMOVE, SERVE = "deploy", "undeploy", "serve"
_CLIENT = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_DEPLOYMENT = re.compile(r"[0-9a-f]{32}", re.ASCII)
_MOST_CLIENTS = 1000


# ---- deploy


def check_deploy(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Refuses what is no deployment.

    Raises:
        UsageError, DataError: naming what does not fit.
    """
    from tfe_bench.models import execute, images

    check_known(DEPLOY, parameters, ("name", "clients", "replace", "deployment", "about"))
    check_name(parameters.get("name"))
    check_clients(parameters.get("clients"))
    if type(parameters.get("replace")) is not bool:
        raise UsageError(f"replace is true or false. Received: {parameters.get('replace')!r}.")
    check_deployment(parameters.get("deployment"))
    about = parameters.get("about")
    facts = {"plan", "bounds", "preprocessing"}
    if not isinstance(about, Mapping) or set(about) - {"table"} != facts:
        raise UsageError('"about" holds a plan, bounds of its inputs and a preprocessing.')
    check_about(about)
    way = about["preprocessing"]
    if way is not None and way not in images.WAYS:
        raise UsageError(f"There is no such preprocessing. Known: {', '.join(images.WAYS)}.")
    plan = plan_of(about)
    execute.check_executable(plan)
    table = table_of(about)
    shapes = list(plan.graph.inputs.values())
    if table is not None and shapes != [(len(table.columns),)]:
        raise UsageError(
            f"The model takes {shapes} and its table has {len(table.columns)} columns."
        )
    bounds = about["bounds"]
    if not isinstance(bounds, Mapping) or set(bounds) != set(plan.graph.inputs):
        raise UsageError("bounds are those of the model's inputs.")
    if not all(type(v) is float and 0 < v < math.inf for v in bounds.values()):
        raise UsageError("bounds are positive numbers.")
    wanted = weight_specs(plan)
    if list(inputs) != wanted:
        raise UsageError(
            f"The inputs of a deployment are the {len(wanted)} arrays of the plan's weights. "
            f"Received: {[(i.name, list(i.shape), i.fractional_bits) for i in inputs][:4]}, "
            f"{len(inputs)} in all."
        )


def _permit_deploy(
    client: str, store: Store, parameters: Mapping[str, Any], _: Sequence[InputSpec]
) -> None:
    store.permit_writing(parameters["name"], client, parameters["replace"])


def deploy(context: Context) -> dict[str, Shared]:
    """Keeps the shares of a model's weights: written at all three workers, or at none."""
    parameters, store, party = context.parameters, store_of(context), context.party
    _permit_deploy(context.client, store, parameters, ())
    facts = Facts(
        parameters["name"],
        context.client,
        tuple(parameters["clients"]),
        parameters["deployment"],
        parameters["about"],
    )
    context.progress(0.0, "writing")
    kept.write(party, store, facts, context.inputs)
    return {}


# ---- undeploy


def _check_remove(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    check_known(REMOVE, parameters, ("name",))
    check_name(parameters.get("name"))
    if inputs:
        raise UsageError(f"{REMOVE} has no inputs. Received: {[i.name for i in inputs][:4]}.")


def remove(context: Context) -> dict[str, Shared]:
    """Removes a model of the asking client at all three workers, also where one has it no more."""
    name = context.parameters["name"]
    kept.remove(context.party, store_of(context), name, context.client)
    return {}


# ---- what the programs share


def check_clients(clients: object) -> None:
    """Refuses what are no names of clients.

    Raises:
        UsageError: naming the first one.
    """
    if not isinstance(clients, (list, tuple)) or len(clients) > _MOST_CLIENTS:
        raise UsageError(f"clients is a list of at most {_MOST_CLIENTS} names.")
    for name in clients:
        if not isinstance(name, str) or not (name == ANY or _CLIENT.fullmatch(name)):
            raise UsageError(
                'A client is named as in cluster.toml, or "*" for all of them. Received: '
                f"{str(name)[:80]!r}."
            )


def check_known(program: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuses parameters that a program does not have.

    Raises:
        UsageError: naming the first one.
    """
    for name in given:
        if name not in known:
            raise UsageError(
                f"{program} has no parameter {str(name)[:80]!r}.{did_you_mean(str(name), known)}"
            )


def check_deployment(word: object) -> None:
    """Refuses what is no number of a deployment.

    Raises:
        UsageError: it is none.
    """
    if not isinstance(word, str) or not _DEPLOYMENT.fullmatch(word):
        raise UsageError("A deployment is 32 hexadecimal digits.")


def weight_specs(plan: Plan) -> list[InputSpec]:
    """What a plan's weights are as inputs of a job."""
    from tfe_bench.models import weights

    return [
        InputSpec(weights.input_name(i), part.shape, part.fractional_bits)
        for i, part in enumerate(weights.parts(plan))
    ]


def plan_of(about: Mapping[str, Any]) -> Plan:
    """The plan of a model's public facts.

    Raises:
        DataError, UsageError: there is none.
    """
    from tfe_bench.models.ranges import Plan

    return Plan.of(about["plan"])


def table_of(about: Mapping[str, Any]) -> Table | None:
    """Names of columns and classes among a model's public facts, None where there are none.

    Raises:
        DataError: what is there is no table.
    """
    from tfe_bench.models.tables import Table

    return Table.of(about["table"]) if about.get("table") is not None else None


DEPLOY_PROGRAM = Program(DEPLOY, deploy, check_deploy, "keeps a model", permit=_permit_deploy)
REMOVE_PROGRAM = Program(REMOVE, remove, _check_remove, "removes a kept model")


# ---- at the client


@dataclass(frozen=True, eq=False)
class Deployed:
    """A model that workers hold, as its client knows it.

    Attributes:
        name: of the deployment.
        owner: the client that deployed it.
        clients: who else may use it; None to all but its owner.
        deployment: changes whenever it is deployed again.
        private: its layers, fixed point and ranges; without its weights.
        preprocessing: the way of `tfe_bench.models.images` in which pictures are prepared for it;
            None if its owner did not say.
        complete: whether all three workers have this deployment.
        table: names of its columns and classes; None if it did not learn from a table.
    """

    name: str
    owner: str
    clients: tuple[str, ...] | None
    deployment: str
    private: PrivateModel
    preprocessing: str | None
    complete: bool
    table: Table | None = None


def listed(client: Client) -> list[Deployed]:
    """The deployed models that a client may use.

    Raises:
        ClusterError: a worker does not answer.
        DataError, UsageError: it describes a model that is none.
    """
    from tfe_bench.models.private import PrivateModel

    return [
        Deployed(
            str(row["name"]),
            str(row["owner"]),
            None if row["clients"] is None else tuple(row["clients"]),
            str(row["deployment"]),
            PrivateModel(plan_of(row["about"]), row["about"]["bounds"], True),
            row["about"]["preprocessing"],
            bool(row["complete"]),
            table_of(row["about"]),
        )
        for row in client.stored()
    ]


def find(client: Client, name: str) -> Deployed:
    """The deployed model of a name.

    Raises:
        UsageError: there is none that this client may use, or the workers do not agree on it.
    """
    check_name(name)
    models = {model.name: model for model in listed(client)}
    if name not in models:
        known = f"Known: {', '.join(models)}." if models else "It may use none."
        raise UsageError(
            f"There is no model {name!r} that this client may use."
            f"{did_you_mean(name, models)} {known}"
        )
    if not models[name].complete:
        raise UsageError(
            f"The workers hold different deployments of model {name!r}. Its owner deploys it again "
            "(--replace)."
        )
    return models[name]


def deploy_model(
    client: Client,
    private: PrivateModel,
    name: str,
    clients: Sequence[str] = (),
    replace: bool = False,
    preprocessing: str | None = None,
    progress: Callable[[float, str], None] | None = None,
    table: Table | None = None,
) -> JobResult:
    """Shares a model's weights among the workers, which keep them under a name.

    Args:
        private: of `tfe_bench.convert`.
        clients: who may use it besides this one; "*" for every client of the cluster.
        replace: what this client deployed under the name before.
        preprocessing: of pictures; see `tfe_bench.models.images.WAYS`.
        table: names of the model's columns and classes.

    Raises:
        UsageError: the name is none or taken, or the model's precision is not the cluster's.
        PolicyError: an operator does not let this client deploy.
    """
    config = client.config
    if private.fractional_bits != config.fractional_bits or config.ring != 64:
        raise UsageError(
            f"The model has {private.fractional_bits} fractional bits over Z_2^64 and the cluster "
            f"{config.fractional_bits} over Z_2^{config.ring}. Convert it with fractional_bits="
            f"{config.fractional_bits}, or use another cluster."
        )
    parameters = {
        "name": name,
        "clients": list(clients),
        "replace": replace,
        "deployment": uuid.uuid4().hex,
        "about": {
            "plan": private.plan.header(),
            "bounds": private.bounds,
            "preprocessing": preprocessing,
            **({} if table is None else {"table": table.header()}),
        },
    }
    # Here too: a mistake costs nothing then.
    check_deploy(parameters, weight_specs(private.plan))
    return client.run(DEPLOY, parameters, private.shared_weights(), progress)


def remove_model(client: Client, name: str) -> None:
    """Removes a model of this client's from all workers.

    Raises:
        UsageError: there is none; another client's is as unknown.
    """
    client.run(REMOVE, {"name": check_name(name)}, {})


def predict(
    client: Client,
    name: str | Deployed,
    images: Any,
    profile: str = "local",
    batch: int | None = None,
    progress: Callable[[float, str], None] | None = None,
    check_range: bool | None = None,
) -> tuple[Any, JobResult]:
    """Outputs of a deployed model by name, reconstructed here alone, and what they cost.

    Args:
        name: of the model, or what `find` said of it.
        images: prepared as the model wants them, [batch, ...]; several inputs by name or in order.
        profile: for which network the protocols plan.
        batch: samples that go through the model at once; None: 32.
        check_range: whether the workers find out, for this client alone, that a value left the
            range that the model was planned for; None: where the plan admits it.

    Returns:
        float64 outputs (a list of them if the model has several), and the job's result.

    Raises:
        UsageError: a model that this client may not use, or images that it does not take.
        RangeError: images outside of the model's range, or values inside of it that left theirs.
        PolicyError: an operator does not let this client ask.
    """
    model = name if isinstance(name, Deployed) else find(client, name)
    parameters = {
        "name": model.name,
        "deployment": model.deployment,
        **model.private.asked(profile, batch, check_range),
    }
    result = client.run(SERVE, parameters, model.private.shared_inputs(images), progress)
    return model.private.decode(result), result
