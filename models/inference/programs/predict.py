"""The program "predict": a model's outputs for private inputs and private weights.

The client sends the plan with the job; it is public: an architecture of known layers, no code.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tfe_bench.cluster.jobs import Context, InputSpec, Program, Size
from tfe_bench.cluster.timing import measure_program_runs
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.models.convert.calibration import ModelPlan
from tfe_bench.models.inference import execute, weights
from tfe_bench.models.inference.request import (
    CACHED_PLANS,
    RANGE,
    PredictRequest,
    parse_prediction,
    plan_key,
    prediction_input_names,
    prediction_output_names,
)
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.session.seeded import Seeded
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    from tfe_bench.cluster.store import ShareStore
    from tfe_bench.models.inference.ahead import PredictionMaterial


@functools.lru_cache(maxsize=CACHED_PLANS)
def _estimate_batch(plan: ModelPlan, profile: str, batch: int) -> Size:
    return execute.estimate_prediction_size(execute.tune_prediction(plan, profile, batch))


def estimate_predict_size(
    client: str, store: ShareStore, request: PredictRequest, inputs: Sequence[InputSpec]
) -> Size:
    """Estimate the size of a batch, or of all outputs."""
    return estimate_samples_size(request, inputs[-1].shape[0])


def estimate_samples_size(request: PredictRequest, samples: int) -> Size:
    """Estimate the size of a prediction for a number of samples."""
    plan = request.plan
    batch_size = _estimate_batch(plan, request.plan_profile, min(samples, request.batch_size))
    outputs = max(math.prod(plan.graph.shapes[name]) for name in plan.graph.outputs)
    return replace(batch_size, words=max(batch_size.words, samples * outputs))


def pad_samples(inputs: Sequence[Shared], most: int) -> list[Shared]:
    """Append rows of zeros up to a power of two, so that graphs for few sizes serve all batches.

    Local. The rows are public constants: their masked values and masks are 0.

    Args:
        inputs: with samples along the first axis.
        most: largest number of samples.
    """
    samples = int(inputs[0].shape[0])
    rows = min(most, 1 << (samples - 1).bit_length()) - samples

    def append_rows(field: tf.Tensor) -> tf.Tensor:
        return tf.pad(field, [[0, rows], *([[0, 0]] * (field.shape.rank - 1))])

    return [x.map(append_rows) for x in inputs] if rows else list(inputs)


def run_prediction(
    context: Context, material: PredictionMaterial | None = None
) -> dict[str, Shared]:
    """Predict for all samples, `batch` at a time; check_range adds the output RANGE.

    Args:
        material: of the model, made ahead of time; batches that it fits use it.
    """
    party = context.party
    request: PredictRequest = context.request
    plan, profile, watched = request.plan, request.plan_profile, request.check_range
    model_weights = weights.map_weights_by_key(plan, context.inputs)
    inputs = [context.inputs[name] for name in prediction_input_names(plan)]
    count, batch_size = int(inputs[0].shape[0]), request.batch_size

    def predict_batch(
        model_weights: Mapping[str, Shared | Seeded], batch_inputs: list[Shared]
    ) -> list[Shared]:
        setting = execute.tune_prediction(plan, profile, int(batch_inputs[0].shape[0]), watched)
        return execute.run_model(party, setting, model_weights, batch_inputs)

    with party.kept_graphs(("predict", plan_key(plan), profile, watched)):
        function = party.function(predict_batch)

    def predict_all(progress: Callable[[float], None]) -> list[Shared]:
        batches: list[list[Shared]] = []
        for begin in range(0, count, batch_size):
            progress(begin / count)
            end = min(begin + batch_size, count)
            cut = [x.map(lambda a, b=begin, e=end: a[b:e]) for x in inputs]
            if context.joined_jobs > 1:  # (their number varies from batch to batch)
                cut = pad_samples(cut, batch_size)
            outputs = None
            if material is not None and material.is_fitting(profile, watched, cut):
                outputs = material.predict_batch(model_weights, cut)
            if outputs is None:
                outputs = function(model_weights, cut)
            batches.append([x.map(lambda a, n=end - begin: a[:n]) for x in outputs])
        return [shapes.concat(list(column), 0) for column in zip(*batches, strict=True)]

    variant = f"planned for {profile}" + (", ranges checked" if watched else "")
    results = measure_program_runs(context, variant, predict_all)
    names = [*prediction_output_names(plan), RANGE] if watched else prediction_output_names(plan)
    return dict(zip(names, results, strict=True))


PROGRAM = Program(
    "predict",
    run_prediction,
    parse_prediction,
    "predicts with a private model on private inputs",
    size=estimate_predict_size,
    is_sealed=True,
)
