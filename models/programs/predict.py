"""The program "predict": a model's outputs for private inputs and private weights.

The client sends the plan with the job; it is public: an architecture of known layers, no code.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster import profiles
from tfe_bench.cluster.jobs import Context, InputSpec, Program, Size, keep_parameters
from tfe_bench.cluster.timing import (
    check_benchmark_parameters,
    check_boolean_parameters,
    measure_program_runs,
)
from tfe_bench.errors import DataError, UsageError
from tfe_bench.models import bound_analysis, execute, weights
from tfe_bench.models.calibration import ModelPlan
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


def check_prediction_setting(parameters: Mapping[str, Any]) -> None:
    """Reject an invalid batch or check_range.

    Raises:
        UsageError: a parameter is invalid; the text names it.
    """
    check_boolean_parameters(parameters, "check_range")
    batch = parameters.get("batch", 1)
    if type(batch) is not int or not 1 <= batch <= 1 << 16:
        raise UsageError(
            f"Expected 1 to 65536 samples as batch. Received: {str(batch)[:80]!r}.",
            code="number-out-of-range",
            operation="batch",
            received=str(batch)[:80],
        )


def check_prediction(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Check a plan, and that the inputs match it.

    Raises:
        UsageError, DataError: a parameter or an input is invalid; the text names it.
    """
    check_benchmark_parameters("predict", parameters, ("plan", "batch", "check_range"))
    check_prediction_setting(parameters)
    watched = parameters.get("check_range", False)
    text = _model_plan_key(parameters.get("plan"))
    plan = _read_executable(text)
    if watched:
        _check_monitorable(text)
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


def _model_plan_key(plan: Any) -> str:
    """Return a plan's header as a text: the key of caches, as requests repeat plans."""
    try:
        return json.dumps(plan, sort_keys=True)
    except (TypeError, ValueError):
        raise DataError("Invalid plan.", code="invalid-plan") from None


@functools.lru_cache(maxsize=_CACHED_PLANS)
def _read_executable(text: str) -> ModelPlan:
    plan = ModelPlan.from_header(json.loads(text))
    execute.check_executable_plan(plan)
    return plan


def read_model_plan(header: Any) -> ModelPlan:
    """Read an executable plan; the checks of the last plans are cached.

    Raises:
        UsageError, DataError: the plan is invalid, or is not executable as it is.
    """
    return _read_executable(_model_plan_key(header))


@functools.lru_cache(maxsize=_CACHED_PLANS)
def _check_monitorable(text: str) -> None:
    bound_analysis.check_monitorable_layers(_read_executable(text))


@functools.lru_cache(maxsize=_CACHED_PLANS)
def _estimate_batch(text: str, profile: str, batch: int) -> Size:
    return execute.estimate_prediction_size(
        execute.tune_prediction(_read_executable(text), profile, batch)
    )


def estimate_predict_size(
    client: str, store: ShareStore, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> Size:
    """Estimate the size of a batch, or of all outputs."""
    return estimate_samples_size(parameters["plan"], parameters, inputs[-1].shape[0])


def estimate_samples_size(header: Any, parameters: Mapping[str, Any], samples: int) -> Size:
    """Estimate the size of a prediction.

    Args:
        header: a plan's header that `check_prediction` has accepted.
    """
    text = _model_plan_key(header)
    plan = _read_executable(text)
    batch = min(samples, int(parameters.get("batch", default_batch(plan))))
    profile = profiles.get_profile(str(parameters.get("profile", "local"))).plan
    outputs = max(math.prod(plan.graph.shapes[name]) for name in plan.graph.outputs)
    batch_size = _estimate_batch(text, profile, batch)
    return replace(batch_size, words=max(batch_size.words, samples * outputs))


def run_prediction(context: Context) -> dict[str, Shared]:
    """Predict for all samples, `batch` at a time; check_range adds the output RANGE."""
    party, parameters = context.party, context.parameters
    public = _model_plan_key(parameters["plan"])
    plan = _read_executable(public)
    profile = profiles.get_profile(str(parameters.get("profile", "local"))).plan
    model_weights = weights.map_weights_by_key(plan, context.inputs)
    inputs = [context.inputs[name] for name in prediction_input_names(plan)]
    watched = bool(parameters.get("check_range", False))
    count, batch_size = int(inputs[0].shape[0]), int(parameters.get("batch", default_batch(plan)))

    def predict_batch(
        model_weights: Mapping[str, Shared | Seeded], batch_inputs: list[Shared]
    ) -> list[Shared]:
        setting = execute.tune_prediction(plan, profile, int(batch_inputs[0].shape[0]), watched)
        return execute.run_model(party, setting, model_weights, batch_inputs)

    with party.kept_graphs(("predict", public, profile, watched)):
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
    keep_parameters(check_prediction),
    "predicts with a private model on private inputs",
    size=estimate_predict_size,
)
