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
from tfe_bench.cluster.timing import check_flags, check_parameters, measure
from tfe_bench.errors import DataError, UsageError
from tfe_bench.models import execute, limits, weights
from tfe_bench.models.ranges import Plan
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.session.seeded import Seeded
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    from tfe_bench.cluster.store import Store

# Samples of one graph, unless the client says otherwise: no more than this, and no more than keep
# the largest value of all to so many ring elements (3 images of ResNet50).
MOST_SAMPLES = 128
MOST_ELEMENTS = 2_600_000
# Of which a worker remembers what it found out.
_PLANS = 8


def default_batch(plan: Plan) -> int:
    """How many samples go through the model at once."""
    largest = max(math.prod(shape) for shape in plan.graph.shapes.values())
    return max(1, min(MOST_SAMPLES, MOST_ELEMENTS // largest))


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


def check(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Refuses plans that are none, and inputs that do not fit them.

    Raises:
        UsageError, DataError: naming what does not fit.
    """
    check_parameters("predict", parameters, ("plan", "batch", "check_range"))
    check_setting(parameters)
    watched = parameters.get("check_range", False)
    text = _text(parameters.get("plan"))
    plan = _executable(text)
    if watched:
        _watchable(text)
    names = input_names(plan)
    owned = list(weights.parts(plan))
    wanted = [*(weights.input_name(i) for i in range(len(owned))), *names]
    given = {i.name: i for i in inputs}
    if [i.name for i in inputs] != wanted:
        raise UsageError(
            f"This model wants {len(owned)} weights and the inputs {names}. Received: "
            f"{list(given)[:8]}, {len(inputs)} in all."
        )
    for part, spec in zip(owned, inputs, strict=False):
        if spec.shape != part.shape or spec.fractional_bits != part.fractional_bits:
            raise UsageError(
                f"The weights {part.key!r} are {list(part.shape)} with {part.fractional_bits} "
                f"fractional bits. Received: {list(spec.shape)} with {spec.fractional_bits}."
            )
    counts = set()
    for name, (own, shape) in zip(names, plan.graph.inputs.items(), strict=True):
        spec = given[name]
        if spec.shape[1:] != shape or not spec.shape or spec.shape[0] < 1:
            raise UsageError(
                f"The model's input {own!r} wants [batch, {', '.join(map(str, shape))}]. "
                f"Received: {list(spec.shape)}."
            )
        bits = plan.fraction_of(own)
        if spec.fractional_bits != bits:
            raise UsageError(
                f"The model's input {own!r} wants {bits} fractional bits. Received: "
                f"{spec.fractional_bits}."
            )
        counts.add(spec.shape[0])
    if len(counts) != 1:
        raise UsageError(f"All inputs have one batch. Received: {sorted(counts)}.")


def _text(plan: Any) -> str:
    """A plan's header, of which much is asked again for every request."""
    try:
        return json.dumps(plan, sort_keys=True)
    except (TypeError, ValueError):
        raise DataError("This is no plan.") from None


@functools.lru_cache(maxsize=_PLANS)
def _executable(text: str) -> Plan:
    plan = Plan.of(json.loads(text))
    execute.check_executable(plan)
    return plan


def plan_of(header: Any) -> Plan:
    """A plan that is run as it is; what was found out of the last ones is remembered.

    Raises:
        UsageError, DataError: it is none, or is not run as it is.
    """
    return _executable(_text(header))


@functools.lru_cache(maxsize=_PLANS)
def _watchable(text: str) -> None:
    limits.check(_executable(text))


@functools.lru_cache(maxsize=_PLANS)
def _size(text: str, profile: str, batch: int) -> Size:
    return execute.size(execute.tuned(_executable(text), profile, batch))


def size(
    client: str, store: Store, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> Size:
    """Of a batch, or of all outputs."""
    return sized(parameters["plan"], parameters, inputs[-1].shape[0])


def sized(header: Any, parameters: Mapping[str, Any], samples: int) -> Size:
    """How large a prediction gets.

    Args:
        header: of a plan that `check` has let pass.
    """
    text = _text(header)
    plan = _executable(text)
    batch = min(samples, int(parameters.get("batch", default_batch(plan))))
    profile = profiles.get(str(parameters.get("profile", "local"))).plan
    outputs = max(math.prod(plan.graph.shapes[name]) for name in plan.graph.outputs)
    found = _size(text, profile, batch)
    return replace(found, words=max(found.words, samples * outputs))


def run(context: Context) -> dict[str, Shared]:
    """Predicts for all samples, `batch` at a time; with check_range one output more: RANGE."""
    party, parameters = context.party, context.parameters
    public = _text(parameters["plan"])
    plan = _executable(public)
    profile = profiles.get(str(parameters.get("profile", "local"))).plan
    own = weights.by_key(plan, context.inputs)
    inputs = [context.inputs[name] for name in input_names(plan)]
    watched = bool(parameters.get("check_range", False))
    count, most = int(inputs[0].shape[0]), int(parameters.get("batch", default_batch(plan)))

    def graph(own: Mapping[str, Shared | Seeded], given: list[Shared]) -> list[Shared]:
        setting = execute.tuned(plan, profile, int(given[0].shape[0]), watched)
        return execute.run(party, setting, own, given)

    with party.kept_graphs(("predict", public, profile, watched)):
        function = party.function(graph)

    def once(progress: Callable[[float], None]) -> list[Shared]:
        found: list[list[Shared]] = []
        for begin in range(0, count, most):
            progress(begin / count)
            end = min(begin + most, count)
            cut = [x.map(lambda a, b=begin, e=end: a[b:e]) for x in inputs]
            found.append(function(own, cut))
        return [shapes.concat(list(column), 0) for column in zip(*found, strict=True)]

    variant = f"planned for {profile}" + (", ranges checked" if watched else "")
    results = measure(context, variant, once)
    names = [*output_names(plan), RANGE] if watched else output_names(plan)
    return dict(zip(names, results, strict=True))


PROGRAM = Program(
    "predict", run, check, "predicts with a private model on private inputs", size=size
)
