"""The program "predict": a model's outputs for private inputs and private weights.

The client sends the plan, which is public, with the job: an architecture of known layers, no code.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster import profiles
from tfe_bench.cluster.jobs import Context, InputSpec, Program, Size
from tfe_bench.cluster.timing import check_flags, check_parameters, measure_runs
from tfe_bench.errors import DataError, UsageError
from tfe_bench.models import bound_analysis, execute, weights
from tfe_bench.models.calibration import Plan
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.session.seeded import Seeded
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    from tfe_bench.cluster.store import Store

# Samples of one graph, unless the client says otherwise: no more than this, and no more than keep
# the largest value of all to so many ring elements (3 images of ResNet50).
MAX_SAMPLES = 128
MAX_ELEMENTS = 2_600_000
# Of which a worker remembers what it found out.
_CACHED_PLANS = 8


def default_batch(plan: Plan) -> int:
    """How many samples go through the model at once."""
    largest = max(math.prod(shape) for shape in plan.graph.shapes.values())
    return max(1, min(MAX_SAMPLES, MAX_ELEMENTS // largest))


def input_names(plan: Plan) -> list[str]:
    """Names of the job's inputs for those of the model."""
    return [f"input{i}" for i in range(len(plan.graph.inputs))]


def output_names(plan: Plan) -> list[str]:
    """Names of the job's outputs for those of the model."""
    return [f"output{i}" for i in range(len(plan.graph.outputs))]


# The output that says for each sample whether a value left its range: 0 where none did.
RANGE = "range"


def check_setting(parameters: Mapping[str, Any]) -> None:
    """Refuses an unfit batch or check_range.

    Raises:
        UsageError: naming the parameter.
    """
    check_flags(parameters, "check_range")
    batch = parameters.get("batch", 1)
    if type(batch) is not int or not 1 <= batch <= 1 << 16:
        raise UsageError(f"batch is 1 to 65536 samples. Received: {str(batch)[:80]!r}.")


def check_prediction(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Refuses plans that are none, and inputs that do not fit them.

    Raises:
        UsageError, DataError: naming what does not fit.
    """
    check_parameters("predict", parameters, ("plan", "batch", "check_range"))
    check_setting(parameters)
    watched = parameters.get("check_range", False)
    text = _plan_key(parameters.get("plan"))
    plan = _read_executable(text)
    if watched:
        _check_monitorable(text)
    names = input_names(plan)
    weight_parts = list(weights.weight_parts(plan))
    expected_names = [*(weights.weight_input_name(i) for i in range(len(weight_parts))), *names]
    spec_by_name = {i.name: i for i in inputs}
    if [i.name for i in inputs] != expected_names:
        raise UsageError(
            f"This model wants {len(weight_parts)} weights and the inputs {names}. Received: "
            f"{list(spec_by_name)[:8]}, {len(inputs)} in all."
        )
    for part, spec in zip(weight_parts, inputs, strict=False):
        if spec.shape != part.shape or spec.fractional_bits != part.fractional_bits:
            raise UsageError(
                f"The weights {part.first_key!r} are {list(part.shape)} with {part.fractional_bits} "
                f"fractional bits. Received: {list(spec.shape)} with {spec.fractional_bits}."
            )
    counts = set()
    for name, (model_input, shape) in zip(names, plan.graph.inputs.items(), strict=True):
        spec = spec_by_name[name]
        if spec.shape[1:] != shape or not spec.shape or spec.shape[0] < 1:
            raise UsageError(
                f"The model's input {model_input!r} wants [batch, {', '.join(map(str, shape))}]. "
                f"Received: {list(spec.shape)}."
            )
        bits = plan.fraction_of(model_input)
        if spec.fractional_bits != bits:
            raise UsageError(
                f"The model's input {model_input!r} wants {bits} fractional bits. Received: "
                f"{spec.fractional_bits}."
            )
        counts.add(spec.shape[0])
    if len(counts) != 1:
        raise UsageError(f"All inputs have one batch. Received: {sorted(counts)}.")


def _plan_key(plan: Any) -> str:
    """A plan's header, of which much is asked again for every request."""
    try:
        return json.dumps(plan, sort_keys=True)
    except (TypeError, ValueError):
        raise DataError("This is no plan.") from None


@functools.lru_cache(maxsize=_CACHED_PLANS)
def _read_executable(text: str) -> Plan:
    plan = Plan.from_header(json.loads(text))
    execute.check_executable(plan)
    return plan


def read_plan(header: Any) -> Plan:
    """A plan that is run as it is; what was found out of the last ones is remembered.

    Raises:
        UsageError, DataError: it is none, or is not run as it is.
    """
    return _read_executable(_plan_key(header))


@functools.lru_cache(maxsize=_CACHED_PLANS)
def _check_monitorable(text: str) -> None:
    bound_analysis.check_monitorable(_read_executable(text))


@functools.lru_cache(maxsize=_CACHED_PLANS)
def _estimate_batch(text: str, profile: str, batch: int) -> Size:
    return execute.estimate_size(execute.tune_prediction(_read_executable(text), profile, batch))


def estimate_predict_size(
    client: str, store: Store, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> Size:
    """Of a batch, or of all outputs."""
    return estimate_samples_size(parameters["plan"], parameters, inputs[-1].shape[0])


def estimate_samples_size(header: Any, parameters: Mapping[str, Any], samples: int) -> Size:
    """How large a prediction gets.

    Args:
        header: of a plan that `check` has let pass.
    """
    text = _plan_key(header)
    plan = _read_executable(text)
    batch = min(samples, int(parameters.get("batch", default_batch(plan))))
    profile = profiles.get_profile(str(parameters.get("profile", "local"))).plan
    outputs = max(math.prod(plan.graph.shapes[name]) for name in plan.graph.outputs)
    batch_size = _estimate_batch(text, profile, batch)
    return replace(batch_size, words=max(batch_size.words, samples * outputs))


def run_prediction(context: Context) -> dict[str, Shared]:
    """Predicts for all samples, `batch` at a time; with check_range one output more: RANGE."""
    party, parameters = context.party, context.parameters
    public = _plan_key(parameters["plan"])
    plan = _read_executable(public)
    profile = profiles.get_profile(str(parameters.get("profile", "local"))).plan
    model_weights = weights.map_by_key(plan, context.inputs)
    inputs = [context.inputs[name] for name in input_names(plan)]
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
    results = measure_runs(context, variant, predict_all)
    names = [*output_names(plan), RANGE] if watched else output_names(plan)
    return dict(zip(names, results, strict=True))


PROGRAM = Program(
    "predict",
    run_prediction,
    check_prediction,
    "predicts with a private model on private inputs",
    size=estimate_predict_size,
)
