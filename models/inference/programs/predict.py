"""The program "predict": a model's outputs for private inputs and private weights.

The client sends the plan with the job; it is public: an architecture of known layers, no code.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster.jobs import Context, InputSpec, Program, Size
from tfe_bench.cluster.schema import flag_field, integer_field, parsed_field
from tfe_bench.cluster.timing import TimedRequest, measure_program_runs
from tfe_bench.errors import DataError, UsageError
from tfe_bench.models.convert import bound_analysis
from tfe_bench.models.convert.calibration import ModelPlan
from tfe_bench.models.inference import execute, weights
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.session.seeded import Seeded
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    from tfe_bench.cluster.store import ShareStore

# Default number of samples in one graph: at most this, and at most as many as keep the largest
# value below this number of ring elements (3 images of ResNet50).
MAX_SAMPLES = 128
MAX_ELEMENTS = 2_600_000
# Number of plans whose checks a worker caches.
_CACHED_PLANS = 8


def default_batch(plan: ModelPlan) -> int:
    """Return the default number of samples that pass the model at once."""
    largest = max(math.prod(shape) for shape in plan.graph.shapes.values())
    return max(1, min(MAX_SAMPLES, MAX_ELEMENTS // largest))


def prediction_input_names(plan: ModelPlan) -> list[str]:
    """Return the job's input names for the inputs of the model."""
    return [f"input{i}" for i in range(len(plan.graph.inputs))]


def prediction_output_names(plan: ModelPlan) -> list[str]:
    """Return the job's output names for the outputs of the model."""
    return [f"output{i}" for i in range(len(plan.graph.outputs))]


# Output with a flag for each sample: 0 if no value left its range.
RANGE = "range"


@dataclass(frozen=True, kw_only=True)
class PredictionSettings(TimedRequest):
    """Settings of a prediction.

    Attributes:
        batch: number of samples that pass the model at once; None: default_batch.
        check_range: whether the outputs include a flag for each sample.
    """

    batch: int | None = integer_field(1, 1 << 16, default=None)
    check_range: bool = flag_field(default=False)


@functools.lru_cache(maxsize=_CACHED_PLANS)
def _read_executable(text: str) -> ModelPlan:
    plan = ModelPlan.from_header(json.loads(text))
    execute.check_executable_plan(plan)
    return plan


def read_model_plan(header: Any) -> ModelPlan:
    """Read an executable plan; equal headers give one object, as requests repeat plans.

    Raises:
        UsageError, DataError: the plan is invalid, or is not executable as it is.
    """
    try:
        text = json.dumps(header, sort_keys=True)
    except (TypeError, ValueError):
        raise DataError("Invalid plan.", code="invalid-plan") from None
    return _read_executable(text)


@dataclass(frozen=True, kw_only=True)
class PredictRequest(PredictionSettings):
    """A request for a model's outputs.

    Attributes:
        plan: the model's executable plan.
    """

    plan: ModelPlan = parsed_field(read_model_plan)

    @property
    def batch_size(self) -> int:
        """Number of samples that pass the model at once."""
        return default_batch(self.plan) if self.batch is None else self.batch


def parse_prediction(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> PredictRequest:
    """Parse a request, and check that the inputs match its plan.

    Raises:
        UsageError, DataError: a parameter or an input is invalid; the text names it.
    """
    request = PredictRequest.from_parameters(parameters, "predict")
    check_prediction(request, inputs)
    return request


def check_prediction(request: PredictRequest, inputs: Sequence[InputSpec]) -> None:
    """Check that inputs match the plan of a request.

    Raises:
        UsageError, DataError: an input is invalid; the text names it.
    """
    plan = request.plan
    if request.check_range:
        _check_monitorable(plan)
    names = prediction_input_names(plan)
    weight_parts = list(weights.weight_parts(plan))
    expected_names = [*(weights.weight_input_name(i) for i in range(len(weight_parts))), *names]
    spec_by_name = {i.name: i for i in inputs}
    if [i.name for i in inputs] != expected_names:
        raise UsageError(
            f"Expected {len(weight_parts)} weights and the inputs {names}. Received: "
            f"{list(spec_by_name)[:8]}, {len(inputs)} in all.",
            code="unexpected-inputs",
            operation="predict",
            received=len(inputs),
        )
    for part, spec in zip(weight_parts, inputs, strict=False):
        if spec.shape != part.shape or spec.fractional_bits != part.fractional_bits:
            raise UsageError(
                f"Expected the weights {part.first_key!r}: {list(part.shape)} with "
                f"{part.fractional_bits} fractional bits. Received: {list(spec.shape)} with "
                f"{spec.fractional_bits}.",
                code="weights-mismatch",
                operation=part.first_key,
                received=list(spec.shape),
                expected=list(part.shape),
            )
    counts = set()
    for name, (model_input, shape) in zip(names, plan.graph.inputs.items(), strict=True):
        spec = spec_by_name[name]
        if spec.shape[1:] != shape or not spec.shape or spec.shape[0] < 1:
            raise UsageError(
                f"Expected [batch, {', '.join(map(str, shape))}] as the model's input "
                f"{model_input!r}. Received: {list(spec.shape)}.",
                code="shape-mismatch",
                operation=model_input,
                received=list(spec.shape),
                expected=list(shape),
            )
        bits = plan.fraction_of(model_input)
        if spec.fractional_bits != bits:
            raise UsageError(
                f"Expected {bits} fractional bits of the model's input {model_input!r}. "
                f"Received: {spec.fractional_bits}.",
                code="scale-mismatch",
                operation=model_input,
                received=spec.fractional_bits,
                expected=bits,
            )
        counts.add(spec.shape[0])
    if len(counts) != 1:
        raise UsageError(
            f"Expected one batch size for all inputs. Received: {sorted(counts)}.",
            code="batch-mismatch",
            operation="predict",
            received=sorted(counts),
        )


@functools.lru_cache(maxsize=_CACHED_PLANS)
def plan_key(plan: ModelPlan) -> str:
    """Return a text that identifies a plan, for the names of its graphs."""
    return json.dumps(plan.to_header(), sort_keys=True)


# (equal plans are one object, so that these remember them by identity)
@functools.lru_cache(maxsize=_CACHED_PLANS)
def _check_monitorable(plan: ModelPlan) -> None:
    bound_analysis.check_monitorable_layers(plan)


@functools.lru_cache(maxsize=_CACHED_PLANS)
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


def run_prediction(context: Context) -> dict[str, Shared]:
    """Predict for all samples, `batch` at a time; check_range adds the output RANGE."""
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
            batches.append(function(model_weights, cut))
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
)
