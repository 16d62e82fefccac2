"""The program "serve": predictions of a stored model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tfe_bench.cluster.jobs import Context, InputSpec, Program, Size, keep_parameters
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import StoredFacts, check_deployment_identifier, check_name
from tfe_bench.cluster.timing import check_benchmark_parameters
from tfe_bench.cluster.worker.batching import MOST_SAMPLES
from tfe_bench.errors import UsageError
from tfe_bench.models import stored_shares, weights
from tfe_bench.models.calibration import ModelPlan
from tfe_bench.models.programs import predict
from tfe_bench.protocols.session.sharing import Shared


def check_served_request(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Check a prediction request.

    Raises:
        UsageError: a parameter or an input is invalid; the text names it.
    """
    check_benchmark_parameters("serve", parameters, ("name", "deployment", "batch", "check_range"))
    predict.check_prediction_setting(parameters)
    check_name(parameters.get("name"))
    check_deployment_identifier(parameters.get("deployment"))
    if not inputs or not inputs[0].shape or inputs[0].shape[0] > MOST_SAMPLES:
        raise UsageError(
            f"Expected inputs of 1 to {MOST_SAMPLES} samples for a prediction. Received: "
            f"{[(i.name, list(i.shape)) for i in inputs][:4]}.",
            code="unexpected-inputs",
            operation="serve",
            received=[list(i.shape) for i in inputs][:4],
        )


def find_deployment(client: str, store: ShareStore, parameters: Mapping[str, Any]) -> StoredFacts:
    """Return the facts of the deployment that a client requests.

    Raises:
        UsageError, PolicyError: as ShareStore.get_facts, or this worker stores another deployment.
    """
    facts = store.get_facts(parameters["name"], client)
    if facts.deployment != parameters["deployment"]:
        raise UsageError(
            f"Party {store.party} stores another deployment of model {facts.name!r} than this "
            "client requests: it was replaced in the meantime, or is not complete at all three "
            "workers. Submit the job again; if that does not help, its owner must deploy it "
            "again.",
            code="deployment-changed",
            operation=facts.name,
            party=store.party,
        )
    return facts


def permit_serving(
    client: str, store: ShareStore, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> None:
    """Reject a client that may not use the model, and inputs that the model does not accept.

    Raises:
        UsageError, PolicyError: as `find_deployment`, or the inputs do not fit.
    """
    facts = find_deployment(client, store, parameters)
    weight_specs = weights.weight_specs(ModelPlan.from_header(facts.about["plan"]))
    predict.check_prediction(_predict_parameters(parameters, facts), [*weight_specs, *inputs])


def estimate_serving_size(
    client: str, store: ShareStore, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> Size:
    """Estimate the size as the program "predict" does, with samples of batched jobs included."""
    plan = store.get_facts(parameters["name"], client).about["plan"]
    samples = MOST_SAMPLES if count_batchable(parameters, inputs) else inputs[0].shape[0]
    job_size = predict.estimate_samples_size(plan, parameters, samples)
    return add_weight_memory(job_size, store, parameters["name"], client)


def add_weight_memory(job_size: Size, store: ShareStore, name: str, client: str) -> Size:
    """Add the memory of a stored model's weights to a size, unless they are cached."""
    weight_bytes = (
        0 if stored_shares.are_shares_cached(store, name, client) else store.file_stamp(name)[1]
    )
    return dataclasses.replace(job_size, memory=job_size.memory + weight_bytes)


def _predict_parameters(parameters: Mapping[str, Any], facts: StoredFacts) -> dict[str, Any]:
    """Return the parameters of the program "predict", which runs once the weights are loaded."""
    options = {k: v for k, v in parameters.items() if k not in ("name", "deployment")}
    return {**options, "plan": facts.about["plan"]}


def run_serving(context: Context) -> dict[str, Shared]:
    """Predict with a deployed model; the outputs go to the client that sent the inputs."""
    party, store, parameters = (
        context.party,
        stored_shares.require_share_store(context),
        context.parameters,
    )
    specs = [
        InputSpec(name, tuple(x.shape.as_list()), x.fractional_bits, x.limbs)
        for name, x in context.inputs.items()
    ]
    permit_serving(context.client, store, parameters, specs)
    context.progress(0.0, "loading")
    facts, model_weights = stored_shares.load_cached_shares(
        store, parameters["name"], context.client
    )
    stored_shares.check_same(party, store, facts)
    inputs: dict[str, Any] = {**context.inputs, **model_weights}
    outputs = predict.run_prediction(
        dataclasses.replace(
            context, parameters=_predict_parameters(parameters, facts), inputs=inputs
        )
    )
    # Outputs get fresh masks, whatever the model computes.
    return stored_shares.refresh_stored_shares(party, outputs)


def count_batchable(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> int:
    """Return the number of samples for batching; 0 for a request that is timed repeatedly."""
    runs_once = parameters.get("repeat", 1) == 1 and not parameters.get("warm_up", 1)
    if not runs_once or parameters.get("trace"):
        return 0
    return inputs[0].shape[0]


PROGRAM = Program(
    "serve",
    run_serving,
    keep_parameters(check_served_request),
    "predicts with a kept model",
    permit=permit_serving,
    together=count_batchable,
    size=estimate_serving_size,
)
