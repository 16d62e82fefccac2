"""The program "serve": predictions of a stored model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.jobs import Context, InputSpec, Program, Size
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.worker.batching import MOST_SAMPLES
from tfe_bench.errors import UsageError
from tfe_bench.models.inference import ahead, ahead_setting, weights
from tfe_bench.models.inference.programs import predict
from tfe_bench.models.inference.request import (
    PredictRequest,
    ServeRequest,
    check_prediction,
)
from tfe_bench.protocols.session.sharing import Shared


def parse_served_request(
    parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> ServeRequest:
    """Parse a prediction request.

    Raises:
        UsageError: a parameter or an input is invalid; the text names it.
    """
    request = ServeRequest.from_parameters(parameters, "serve")
    if not inputs or not inputs[0].shape or inputs[0].shape[0] > MOST_SAMPLES:
        raise UsageError(
            f"Expected inputs of 1 to {MOST_SAMPLES} samples for a prediction. Received: "
            f"{[(i.name, list(i.shape)) for i in inputs][:4]}.",
            code="unexpected-inputs",
            operation="serve",
            received=[list(i.shape) for i in inputs][:4],
        )
    return request


def permit_serving(
    client: str, store: ShareStore, request: ServeRequest, inputs: Sequence[InputSpec]
) -> None:
    """Reject a client that may not use the model, and inputs that the model does not accept.

    Raises:
        UsageError, PolicyError: as `find_deployment`, or the inputs do not fit.
    """
    _check_served_inputs(request.find_prediction(client, store), inputs)


def _check_served_inputs(prediction: PredictRequest, inputs: Sequence[InputSpec]) -> None:
    check_prediction(prediction, [*weights.weight_specs(prediction.plan), *inputs])


def estimate_serving_size(
    client: str, store: ShareStore, request: ServeRequest, inputs: Sequence[InputSpec]
) -> Size:
    """Estimate the size as the program "predict" does, with samples of batched jobs included."""
    samples = MOST_SAMPLES if count_batchable(request, inputs) else inputs[0].shape[0]
    prediction = request.find_prediction(client, store)
    job_size = predict.estimate_samples_size(prediction, samples)
    return add_weight_memory(job_size, store, request.name, client)


def add_weight_memory(job_size: Size, store: ShareStore, name: str, client: str) -> Size:
    """Add the memory of a stored model's weights to a size, unless they are cached."""
    weight_bytes = (
        0 if stored_shares.are_shares_cached(store, name, client) else store.file_stamp(name)[1]
    )
    return dataclasses.replace(job_size, memory=job_size.memory + weight_bytes)


def run_serving(context: Context) -> dict[str, Shared]:
    """Predict with a deployed model; the outputs go to the client that sent the inputs."""
    party, store = context.party, stored_shares.require_share_store(context)
    request: ServeRequest = context.request
    specs = [
        InputSpec(name, tuple(x.shape.as_list()), x.fractional_bits, x.limbs)
        for name, x in context.inputs.items()
    ]
    prediction = request.find_prediction(context.client, store)
    _check_served_inputs(prediction, specs)
    context.progress(0.0, "loading")
    facts, model_weights = stored_shares.load_cached_shares(store, request.name, context.client)
    stored_shares.check_same(party, store, facts)
    inputs: dict[str, Any] = {**context.inputs, **model_weights}
    material = ahead.read_material(party, store, facts, prediction.plan)
    outputs = predict.run_prediction(
        dataclasses.replace(context, inputs=inputs, request=prediction), material
    )
    if material is not None:
        used = {"used": material.used, "bytes": material.made_bytes}
        context.measurements[ahead_setting.KEY] = used
        context.afterwards = ahead.make_filler(context, facts.name)
    # Outputs get fresh masks, whatever the model computes.
    return stored_shares.refresh_stored_shares(party, outputs)


def count_batchable(request: ServeRequest, inputs: Sequence[InputSpec]) -> int:
    """Return the number of samples for batching; 0 for a request that is timed repeatedly."""
    if request.repeat != 1 or request.warm_up or request.trace:
        return 0
    return inputs[0].shape[0]


PROGRAM = Program(
    "serve",
    run_serving,
    parse_served_request,
    "predicts with a kept model",
    permit=permit_serving,
    together=count_batchable,
    size=estimate_serving_size,
    is_sealed=True,
)
