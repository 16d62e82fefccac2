"""The program "serve": predictions of a model that the workers keep."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tfe_bench.cluster.jobs import Context, InputSpec, Program, Size
from tfe_bench.cluster.store import Store
from tfe_bench.cluster.stored import Facts, check_deployment, check_name
from tfe_bench.cluster.timing import check_parameters
from tfe_bench.cluster.worker.batching import MOST_SAMPLES
from tfe_bench.errors import UsageError
from tfe_bench.models import kept, weights
from tfe_bench.models.programs import predict
from tfe_bench.models.ranges import Plan
from tfe_bench.protocols.session.sharing import Shared


def check(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Refuses what is no question to a model.

    Raises:
        UsageError: naming what does not fit.
    """
    check_parameters("serve", parameters, ("name", "deployment", "batch", "check_range"))
    predict.check_setting(parameters)
    check_name(parameters.get("name"))
    check_deployment(parameters.get("deployment"))
    if not inputs or not inputs[0].shape or inputs[0].shape[0] > MOST_SAMPLES:
        raise UsageError(
            f"A prediction has inputs of 1 to {MOST_SAMPLES} samples. Received: "
            f"{[(i.name, list(i.shape)) for i in inputs][:4]}."
        )


def deployed(client: str, store: Store, parameters: Mapping[str, Any]) -> Facts:
    """The facts of the deployment that a client asks for.

    Raises:
        UsageError, PolicyError: as Store.facts, or another deployment is here.
    """
    facts = store.facts(parameters["name"], client)
    if facts.deployment != parameters["deployment"]:
        raise UsageError(
            f"Party {store.party} has another deployment of model {facts.name!r} than this client "
            "asks for: it was replaced meanwhile, or not at all three. Ask again; if that does not "
            "help, its owner deploys it again."
        )
    return facts


def permit(
    client: str, store: Store, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> None:
    """Refuses a client that may not ask, and inputs that the model does not take.

    Raises:
        UsageError, PolicyError: as `deployed`, or the inputs do not fit.
    """
    facts = deployed(client, store, parameters)
    owned = weights.specs(Plan.of(facts.about["plan"]))
    predict.check(_as_predict(parameters, facts), [*owned, *inputs])


def size(
    client: str, store: Store, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> Size:
    """As of the program "predict", with as many samples as may come along from others."""
    plan = store.facts(parameters["name"], client).about["plan"]
    samples = MOST_SAMPLES if together(parameters, inputs) else inputs[0].shape[0]
    found = predict.sized(plan, parameters, samples)
    return with_kept(found, store, parameters["name"], client)


def with_kept(found: Size, store: Store, name: str, client: str) -> Size:
    """A size with the memory that a kept model's weights will take, unless they are there."""
    more = 0 if kept.is_in_memory(store, name, client) else store.stamp(name)[1]
    return dataclasses.replace(found, memory=found.memory + more)


def _as_predict(parameters: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
    """The parameters of the program "predict", which is what is run once the weights are there."""
    own = {k: v for k, v in parameters.items() if k not in ("name", "deployment")}
    return {**own, "plan": facts.about["plan"]}


def run(context: Context) -> dict[str, Shared]:
    """Predicts with a deployed model; the outputs go to the client whose inputs they are from."""
    party, store, parameters = context.party, kept.store_of(context), context.parameters
    given = [
        InputSpec(name, tuple(x.shape.as_list()), x.fractional_bits, x.limbs)
        for name, x in context.inputs.items()
    ]
    permit(context.client, store, parameters, given)
    context.progress(0.0, "loading")
    facts, own = kept.in_memory(store, parameters["name"], context.client)
    kept.check_same(party, store, facts)
    inputs: dict[str, Any] = {**context.inputs, **own}
    outputs = predict.run(
        dataclasses.replace(context, parameters=_as_predict(parameters, facts), inputs=inputs)
    )
    # What leaves has masks of its own, whatever the model does.
    return kept.refreshed(party, outputs)


def together(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> int:
    """How many samples a question brings; one that is timed repeatedly is asked alone."""
    once = parameters.get("repeat", 1) == 1 and not parameters.get("warm_up", 1)
    if not once or parameters.get("trace"):
        return 0
    return inputs[0].shape[0]


PROGRAM = Program(
    "serve", run, check, "predicts with a kept model", permit=permit, together=together, size=size
)
