"""Requests of inference, as a client sends them and the workers read them."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.cluster.schema import flag_field, integer_field, parsed_field
from tfe_bench.cluster.stored import (
    StoredFacts,
    check_deployment_identifier,
    check_name,
    check_public_facts,
)
from tfe_bench.cluster.stored_shares import StorageRequest, stored_name_field
from tfe_bench.cluster.timing import TimedRequest
from tfe_bench.errors import DataError, UsageError
from tfe_bench.models.convert import bound_analysis
from tfe_bench.models.convert.calibration import ModelPlan
from tfe_bench.models.convert.tables import Table
from tfe_bench.models.inference import ahead_setting, decoding, execute, images, weights
from tfe_bench.models.inference.ahead_setting import AheadSetting
from tfe_bench.models.inference.decoding import TokenDecoding

if TYPE_CHECKING:
    from tfe_bench.cluster.store import ShareStore


# Default number of samples in one graph: at most this, and at most as many as keep the largest
# value below this number of ring elements (3 images of ResNet50).
MAX_SAMPLES = 128
MAX_ELEMENTS = 2_600_000
# Number of plans whose checks a worker caches.
CACHED_PLANS = 8
# Output with a flag for each sample: 0 if no value left its range.
RANGE = "range"
# Input of the job, and its output besides RANGE.
PROMPT, TOKENS = "prompt", "tokens"
MAX_TEXTS = 64
NAME_SUBJECT = "A deployed model's name"


@functools.lru_cache(maxsize=CACHED_PLANS)
def plan_key(plan: ModelPlan) -> str:
    """Return a text that identifies a plan, for the names of its graphs."""
    return json.dumps(plan.to_header(), sort_keys=True)


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


@dataclass(frozen=True, kw_only=True)
class PredictionSettings(TimedRequest):
    """Settings of a prediction.

    Attributes:
        batch: number of samples that pass the model at once; None: default_batch.
        check_range: whether the outputs include a flag for each sample.
    """

    batch: int | None = integer_field(1, 1 << 16, default=None)
    check_range: bool = flag_field(default=False)


@functools.lru_cache(maxsize=CACHED_PLANS)
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


# (equal plans are one object, so that these remember them by identity)
@functools.lru_cache(maxsize=CACHED_PLANS)
def _check_monitorable(plan: ModelPlan) -> None:
    bound_analysis.check_monitorable_layers(plan)


@dataclass(frozen=True, kw_only=True)
class ServeRequest(PredictionSettings):
    """A request for predictions of a stored model.

    Attributes:
        name, deployment: the model's.
    """

    name: str = parsed_field(check_name)
    deployment: str = parsed_field(check_deployment_identifier)

    def find_prediction(self, client: str, store: ShareStore) -> PredictRequest:
        """Return the request for the stored plan, as the program "predict" takes it.

        Raises:
            UsageError, PolicyError: as `find_deployment`.
        """
        facts = find_deployment(client, store, self.name, self.deployment)
        settings = {
            each.name: getattr(self, each.name) for each in dataclasses.fields(PredictionSettings)
        }
        return PredictRequest(plan=read_model_plan(facts.about["plan"]), **settings)


def find_deployment(client: str, store: ShareStore, name: str, deployment: str) -> StoredFacts:
    """Return the facts of the deployment that a client requests.

    Raises:
        UsageError, PolicyError: as ShareStore.get_facts, or this worker stores another deployment.
    """
    facts = store.get_facts(name, client)
    if facts.deployment != deployment:
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


def _read_positions(name: object) -> str | None:
    if name is not None and not isinstance(name, str):
        raise UsageError(
            "Expected the name of an input as positions.", code="wrong-type", operation="positions"
        )
    return name


@dataclass(frozen=True, kw_only=True)
class GenerateRequest(TimedRequest):
    """A request for text: of a model that the client sends, or of a stored one.

    Attributes:
        plan: the model's executable plan; None for a stored model.
        name, deployment: a stored model's, or "".
        tokens: number of new tokens.
        positions: name of the input with position numbers, or None.
        temperature: of the choice of tokens; 0 takes the likeliest.
        check_range: whether the outputs include a flag for each token.
    """

    plan: ModelPlan | None = parsed_field(read_model_plan, default=None)
    name: str = parsed_field(check_name, default="")
    deployment: str = parsed_field(check_deployment_identifier, default="")
    tokens: int = integer_field(1, 1 << 31)
    positions: str | None = parsed_field(_read_positions, default=None)
    temperature: Any = parsed_field(lambda value: value, default=0.0)
    check_range: bool = flag_field(default=False)

    def with_plan(self, client: str, store: ShareStore) -> GenerateRequest:
        """Return the request with the stored model's plan.

        Raises:
            UsageError, PolicyError: as `find_deployment`.
        """
        if not self.name:
            return self
        facts = find_deployment(client, store, self.name, self.deployment)
        return dataclasses.replace(self, plan=read_model_plan(facts.about["plan"]))


@dataclass(frozen=True, eq=False)
class GenerationSetting:
    """Sizes and settings of a text generation.

    Attributes:
        decoding: the model in steps.
        texts, prompt_length: number of texts, and number of positions of each prompt.
        tokens: number of tokens that follow the prompt.
        watched: whether ranges are checked.
    """

    decoding: TokenDecoding
    texts: int
    prompt_length: int
    tokens: int
    profile: str
    watched: bool

    @classmethod
    def from_request(cls, request: GenerateRequest, spec: InputSpec) -> GenerationSetting:
        """Derive the setting of a request with a plan.

        Raises:
            UsageError: the model is not a language model, or the text does not fit it.
        """
        plan = request.plan
        assert plan is not None
        d = TokenDecoding.from_plan(plan, request.positions, request.temperature)
        shape, bits = spec.shape, plan.fraction_of(d.token_input)
        fits = len(shape) == 3 and shape[2] == d.vocabulary and spec.fractional_bits == bits
        if spec.name != PROMPT or not fits or not 1 <= shape[0] <= MAX_TEXTS:
            raise UsageError(
                f"Expected the input {PROMPT!r} [texts, positions, {d.vocabulary}] of 1 to "
                f"{MAX_TEXTS} texts, with {bits} fractional bits. Received: {spec.name!r}, "
                f"{list(shape)} with {spec.fractional_bits}.",
                code="unexpected-inputs",
                operation=PROMPT,
                received=list(shape),
            )
        check_length(d, shape[1], request.tokens)
        return cls(d, shape[0], shape[1], request.tokens, request.plan_profile, request.check_range)

    def build_predictions(self) -> tuple[execute.Prediction, execute.Prediction]:
        """Build the predictions for the prompt and for a step."""
        d = self.decoding
        return decoding.build_decoding_predictions(
            d, self.prompt_length, self.tokens, self.profile, self.texts, self.watched
        )


def check_length(d: TokenDecoding, prompt: int, tokens: object) -> None:
    """Reject a text that does not fit a model.

    Raises:
        UsageError: the prompt is empty, no token is requested, or both together exceed the model's
            positions.
    """
    if type(tokens) is not int or tokens < 1:
        raise UsageError(
            f"Expected a number of new tokens, 1 or more, as tokens. Received: {tokens!r}.",
            code="number-out-of-range",
            operation="tokens",
            received=tokens,
        )
    if prompt < 1:
        raise UsageError(
            "Expected at least one token in a prompt. Received: an empty prompt.",
            code="empty-input",
            operation=PROMPT,
        )
    if prompt + tokens > d.length:
        raise UsageError(
            f"The model has {d.length} positions. Received: a prompt of {prompt} tokens, and a "
            f"request for {tokens} more. Request fewer, or convert it for more positions "
            f"(shapes={{{d.token_input!r}: ({prompt + tokens},)}}).",
            code="too-large",
            operation="tokens",
            received=tokens,
            expected=d.length,
        )


def parse_generation(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> GenerateRequest:
    """Parse a request; `permit_generation` checks requests to a stored model further.

    Raises:
        UsageError, DataError: a parameter or an input is invalid; the text names it.
    """
    request = GenerateRequest.from_parameters(parameters, "generate")
    if (request.plan is None) != bool(request.name and request.deployment):
        raise UsageError(
            "Expected a plan, or the name and the deployment of a stored model.",
            code="conflicting-options",
            operation="generate",
        )
    if request.plan is None:
        return request
    weight_specs = weights.weight_specs(request.plan)
    if list(inputs[: len(weight_specs)]) != weight_specs or len(inputs) != len(weight_specs) + 1:
        raise UsageError(
            f"Expected {len(weight_specs)} arrays of weights and a {PROMPT!r}. Received: "
            f"{[i.name for i in inputs][:8]}, {len(inputs)} in all.",
            code="unexpected-inputs",
            operation="generate",
            received=len(inputs),
            expected=len(weight_specs) + 1,
        )
    check_text_request(request, inputs[-1:])
    return request


def check_text_request(request: GenerateRequest, inputs: Sequence[InputSpec]) -> None:
    """Check the prompt of a request with a plan.

    Raises:
        UsageError: the model is not a language model, or the text does not fit it.
    """
    if len(inputs) != 1:
        raise UsageError(
            f"Expected one input, {PROMPT!r}. Received: {len(inputs)}.",
            code="unexpected-inputs",
            operation="generate",
            received=len(inputs),
            expected=1,
        )
    assert request.plan is not None
    if request.check_range:
        bound_analysis.check_monitorable_layers(request.plan)
    GenerationSetting.from_request(request, inputs[0])


@dataclass(frozen=True, kw_only=True)
class DeployRequest(StorageRequest):
    """A request to store a model's weights."""

    name: str = stored_name_field(NAME_SUBJECT)


def parse_deployed_model(
    parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> DeployRequest:
    """Parse the request of a deployment, and check its inputs.

    Raises:
        UsageError, DataError: a parameter or an input is invalid; the text names it.
    """
    request = DeployRequest.from_parameters(parameters, "deploy")
    about = request.about
    if set(about) - {"table", ahead_setting.KEY} != {"plan", "bounds", "preprocessing"}:
        raise UsageError(
            'Expected a plan, bounds of its inputs and a preprocessing in "about".',
            code="invalid-parameters",
            operation="about",
        )
    check_public_facts(about)
    setting = AheadSetting.from_facts(about)
    preprocessing = about["preprocessing"]
    if preprocessing is not None and preprocessing not in images.PREPROCESSINGS:
        raise UsageError(
            f"Unknown preprocessing. Known: {', '.join(images.PREPROCESSINGS)}.",
            code="unknown-name",
            operation="preprocessing",
            expected=", ".join(images.PREPROCESSINGS),
        )
    plan = ModelPlan.from_header(about["plan"])
    execute.check_executable_plan(plan)
    if setting is not None and setting.check_range:
        _check_monitorable(plan)
    table = read_deployed_table(about)
    shapes = list(plan.graph.inputs.values())
    if table is not None and shapes != [(len(table.columns),)]:
        raise UsageError(
            f"The model takes inputs {shapes}, but its table has {len(table.columns)} columns.",
            code="shape-mismatch",
            operation="table",
            received=len(table.columns),
        )
    bounds = about["bounds"]
    if not isinstance(bounds, Mapping) or set(bounds) != set(plan.graph.inputs):
        raise UsageError(
            "Expected a bound for each input of the model.",
            code="invalid-parameters",
            operation="bounds",
        )
    if not all(type(v) is float and 0 < v < math.inf for v in bounds.values()):
        raise UsageError(
            "Expected positive numbers as bounds.", code="number-out-of-range", operation="bounds"
        )
    expected = weights.weight_specs(plan)
    if list(inputs) != expected:
        raise UsageError(
            f"Expected the {len(expected)} arrays of the plan's weights as inputs. Received: "
            f"{[(i.name, list(i.shape), i.fractional_bits) for i in inputs][:4]}, {len(inputs)} "
            "in all.",
            code="unexpected-inputs",
            operation="deploy",
            received=len(inputs),
            expected=len(expected),
        )
    return request


def read_deployed_table(about: Mapping[str, Any]) -> Table | None:
    """Return the table among a model's public facts, or None.

    Raises:
        DataError: the table is invalid.
    """
    return Table.from_header(about["table"]) if about.get("table") is not None else None
