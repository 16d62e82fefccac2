"""The program "generate": a private language model goes on with a private text, token by token.

The model is the client's, shared with the job, or one that the workers keep.  Every token stays a
shared row with one 1 on its way to the next step; the client alone gets to know it, at the end.
Keys and values of earlier positions are shares that live in this job and no longer.

Each position is a graph call of its own, and so has masks of its own, whatever its number in the
text: a second text of one session never meets the masks of the first.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tfe_bench.cluster import profiles
from tfe_bench.cluster.jobs import Context, InputSpec, Program, Size
from tfe_bench.cluster.stored import check_deployment, check_name
from tfe_bench.cluster.timing import check_flags, check_parameters, measure_runs
from tfe_bench.errors import UsageError
from tfe_bench.models import bound_analysis, decoding, execute, stored_shares, weights
from tfe_bench.models.calibration import Plan
from tfe_bench.models.decoding import Decoding
from tfe_bench.models.layers.greedy import NOISE
from tfe_bench.models.layers.remembered import POSITION
from tfe_bench.models.programs import predict
from tfe_bench.models.programs.predict import RANGE
from tfe_bench.models.programs.serve import add_weight_memory, find_deployment
from tfe_bench.protocols.ring import arithmetic, shapes
from tfe_bench.protocols.session import seeded, tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.seeded import Seeded
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    from tfe_bench.cluster.store import Store

# The job's input, and its output besides RANGE.
PROMPT, TOKENS = "prompt", "tokens"
MAX_TEXTS = 64
_OPTIONS = ("tokens", "positions", "temperature", "check_range")
_DEPLOYMENT = ("name", "deployment")


@dataclasses.dataclass(frozen=True, eq=False)
class GenerationRequest:
    """What a job is asked for, checked.

    Attributes:
        decoding: the model in steps.
        texts, prompt: how many texts there are, and positions of each.
        tokens: how many come behind them.
        watched: whether ranges are checked.
    """

    decoding: Decoding
    texts: int
    prompt_length: int
    tokens: int
    profile: str
    watched: bool

    @classmethod
    def from_parameters(
        cls, parameters: Mapping[str, Any], plan: Plan, spec: InputSpec
    ) -> GenerationRequest:
        """The order of a job.

        Raises:
            UsageError: the model is no language model, or the text does not fit it.
        """
        d = Decoding.from_plan(
            plan, parameters.get("positions"), parameters.get("temperature", 0.0)
        )
        tokens = parameters.get("tokens")
        shape, bits = spec.shape, plan.fraction_of(d.token_input)
        fits = len(shape) == 3 and shape[2] == d.vocabulary and spec.fractional_bits == bits
        if spec.name != PROMPT or not fits or not 1 <= shape[0] <= MAX_TEXTS:
            raise UsageError(
                f"The input {PROMPT!r} is [texts, positions, {d.vocabulary}], of 1 to {MAX_TEXTS} "
                f"texts, with {bits} fractional bits. Received: {spec.name!r}, {list(shape)} with "
                f"{spec.fractional_bits}."
            )
        check_length(d, shape[1], tokens)
        profile = profiles.get_profile(str(parameters.get("profile", "local"))).plan
        watched = bool(parameters.get("check_range", False))
        return cls(d, shape[0], shape[1], int(tokens or 0), profile, watched)

    def build_predictions(self) -> tuple[execute.Prediction, execute.Prediction]:
        """Of the prompt, and of a step."""
        d = self.decoding
        return decoding.build_predictions(
            d, self.prompt_length, self.tokens, self.profile, self.texts, self.watched
        )


def check_length(d: Decoding, prompt: int, tokens: object) -> None:
    """Refuses a text that does not fit a model.

    Raises:
        UsageError: it has no token, none is wanted, or both are more than the model has positions.
    """
    if type(tokens) is not int or tokens < 1:
        raise UsageError(f"tokens is how many are wanted, 1 or more. Received: {tokens!r}.")
    if prompt < 1:
        raise UsageError("A prompt has a token at least. Received: an empty one.")
    if prompt + tokens > d.length:
        raise UsageError(
            f"The model has {d.length} positions. Received: a prompt of {prompt} tokens, and "
            f"{tokens} that are wanted. Ask for fewer, or convert it for more positions "
            f"(shapes={{{d.token_input!r}: ({prompt + tokens},)}})."
        )


# ---- admission


def check_generation(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Refuses what is no order of text; of a kept model `permit` does.

    Raises:
        UsageError, DataError: naming what does not fit.
    """
    model_keys = _DEPLOYMENT if "name" in parameters else ("plan",)
    check_parameters("generate", parameters, (*model_keys, *_OPTIONS))
    check_flags(parameters, "check_range")
    positions = parameters.get("positions")
    if positions is not None and not isinstance(positions, str):
        raise UsageError("positions is the name of an input.")
    if "name" in parameters:
        check_name(parameters["name"])
        check_deployment(parameters.get("deployment"))
        return
    plan = predict.read_plan(parameters.get("plan"))
    weight_specs = weights.weight_specs(plan)
    if list(inputs[: len(weight_specs)]) != weight_specs or len(inputs) != len(weight_specs) + 1:
        raise UsageError(
            f"This model wants {len(weight_specs)} arrays of weights and a {PROMPT!r}. Received: "
            f"{[i.name for i in inputs][:8]}, {len(inputs)} in all."
        )
    _check_text(parameters, plan, inputs[-1:])


def _check_text(parameters: Mapping[str, Any], plan: Plan, inputs: Sequence[InputSpec]) -> None:
    if len(inputs) != 1:
        raise UsageError(f"A text has one input, {PROMPT!r}. Received: {len(inputs)}.")
    if parameters.get("check_range", False):
        bound_analysis.check_monitorable(plan)
    GenerationRequest.from_parameters(parameters, plan, inputs[0])


def permit_generation(
    client: str, store: Store, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> None:
    """Refuses a client that may not ask a kept model, and a text that the model does not take.

    Raises:
        UsageError, PolicyError: as Store.facts, or the text does not fit.
    """
    if "name" in parameters:
        _check_text(
            parameters,
            predict.read_plan(find_deployment(client, store, parameters).about["plan"]),
            inputs,
        )


def estimate_generation_size(
    client: str, store: Store, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> Size:
    """Of the graph call that is larger."""
    is_deployed = "name" in parameters
    header = (
        store.get_facts(parameters["name"], client).about["plan"]
        if is_deployed
        else parameters["plan"]
    )
    options = {k: parameters[k] for k in (*_OPTIONS, "profile") if k in parameters}
    job_size = _estimate_cached(json.dumps([header, options], sort_keys=True), inputs[-1])
    return (
        add_weight_memory(job_size, store, parameters["name"], client) if is_deployed else job_size
    )


@functools.lru_cache(maxsize=8)
def _estimate_cached(text: str, spec: InputSpec) -> Size:
    header, parameters = json.loads(text)
    order = GenerationRequest.from_parameters(parameters, predict.read_plan(header), spec)
    sizes = [execute.estimate_size(s) for s in order.build_predictions()]
    return Size(max(s.words for s in sizes), memory=max(s.memory for s in sizes))


# ---- at a party

DecodingState = tuple[Shared, list[Shared]]


class TextGenerator:
    """A model that goes on with texts at one party.

    Args:
        own: the weights, as weights.by_key gives them.
    """

    def __init__(
        self, party: Party, order: GenerationRequest, model_weights: Mapping[str, Shared | Seeded]
    ) -> None:
        self._party, self._order, self._weights = party, order, model_weights
        self._prefill_prediction, self._step_prediction = order.build_predictions()
        self._run_prefill = party.function(self._prefill_graph)
        self._run_step = party.function(self._step_graph)

    def generate_tokens(
        self, prompt: Shared, report_tokens: Callable[[int], None]
    ) -> tuple[Shared, Shared | None]:
        """The tokens [texts, tokens], and flags of their ranges, if they are watched.

        Args:
            told: hears how many tokens there are.
        """
        order = self._order
        d = order.decoding
        steps = [self._run_prefill(self._weights, prompt, d.draw_noise(order.texts))]
        for i in range(1, order.tokens):
            report_tokens(i)
            row, cache = steps[-1][0], steps[-1][1]
            position = np.asarray(order.prompt_length + i - 1, np.int64)
            steps[-1] = (None, None, *steps[-1][2:])  # (what is not needed is not kept)
            noise = d.draw_noise(order.texts)
            steps.append(self._run_step(self._weights, row, cache, position, noise))
        report_tokens(order.tokens)
        tokens = shapes.concat([each[2] for each in steps], 1)
        if not order.watched:
            return tokens, None
        return tokens, shapes.concat([each[3] for each in steps], 1)

    def _prefill_graph(
        self, model_weights: Mapping[str, Shared | Seeded], prompt: Shared, noise: Any = None
    ) -> Any:
        """The first token, and keys and values with room for the others."""
        order, d = self._order, self._order.decoding
        model_weights = self._select_positions(
            model_weights,
            lambda a, axis: tensor_ops.gather(a, range(order.prompt_length), axis=axis),
        )
        s = dataclasses.replace(self._prefill_prediction, public={NOISE: noise})
        row, *outputs = execute.run_model(
            self._party, s, model_weights, self._model_inputs(prompt, 0)
        )
        cache, cache_length = (
            outputs[: len(d.cached_values)],
            d.round_up_length(order.prompt_length + order.tokens),
        )
        padded = [
            shapes.pad(
                x, [*[(0, 0)] * (len(x.shape) - 2), (0, cache_length - order.prompt_length), (0, 0)]
            )
            for x in cache
        ]
        return self._pack_outputs(row, padded, outputs[len(cache) :])

    def _step_graph(
        self,
        model_weights: Mapping[str, Shared | Seeded],
        row: Shared,
        cache: list[Shared],
        position: Any,
        noise: Any = None,
    ) -> Any:
        """The next token, and keys and values with its own."""
        s = dataclasses.replace(self._step_prediction, public={POSITION: position, NOISE: noise})
        model_weights = self._select_positions(
            model_weights,
            lambda a, axis: tensor_ops.gather(a, tensor_ops.reshape(position, [1]), axis=axis),
        )
        inputs = [*self._model_inputs(row, position), *cache]
        row, *outputs = execute.run_model(self._party, s, model_weights, inputs)
        return self._pack_outputs(row, outputs[: len(cache)], outputs[len(cache) :])

    def _select_positions(
        self, model_weights: Mapping[str, Shared | Seeded], select: Callable[[Any, int], Any]
    ) -> dict[str, Shared | Seeded]:
        """The weights, of those that differ from position to position a part."""
        axes = self._order.decoding.positional_weights
        selected = dict(model_weights)
        for name, axis in axes.items():
            selected[name] = seeded.expand_masks(model_weights[name]).map(
                lambda a, axis=axis: select(a, axis)
            )
        return selected

    def _model_inputs(self, rows: Shared, first: Any) -> list[Shared]:
        """Those of the model: rows of tokens, and the positions' numbers from the first on."""
        d = self._order.decoding
        graph = d.plan.graph
        inputs = []
        for name in graph.inputs:
            if name == d.token_input:
                inputs.append(rows)
                continue
            count = int(rows.shape[1])
            numbers = _one_hot_positions(first, count, graph.tokens[name], d.plan.fraction_of(name))
            several = tensor_ops.tile(numbers[None], [int(rows.shape[0]), 1, 1])
            shared = arithmetic.share_public(rows, several)
            inputs.append(dataclasses.replace(shared, fractional_bits=d.plan.fraction_of(name)))
        return inputs

    def _pack_outputs(self, row: Shared, cache: list[Shared], flags: list[Shared]) -> Any:
        """(the row, the cache, [texts, 1] numbers of the tokens, [texts, 1] flags)"""
        numbers = np.arange(self._order.decoding.vocabulary, dtype=np.int64)
        token = row.map(lambda a: tensor_ops.reduce_sum(a * numbers, -1))
        flag = [x.map(lambda a: tensor_ops.reshape(a, [-1, 1])) for x in flags]
        return (row, cache, token, *flag)


def _one_hot_positions(first: Any, count: int, depth: int, bits: int) -> Any:
    """Public rows [count, depth] with a 1 at the numbers from the first on."""
    import tensorflow as tf

    hot = tf.one_hot(tf.range(count, dtype=tf.int64) + first, depth, dtype=tf.int64)
    return hot * (1 << bits)


def run_generation(context: Context) -> dict[str, Shared]:
    """Goes on with all texts; nothing of it is kept."""
    party, parameters = context.party, context.parameters
    inputs = context.inputs
    if "name" in parameters:
        store = stored_shares.require_store(context)
        prompt = inputs[PROMPT]
        spec = InputSpec(PROMPT, tuple(prompt.shape.as_list()), prompt.fractional_bits)
        permit_generation(context.client, store, parameters, [spec])
        context.progress(0.0, "loading")
        facts, model_weights = stored_shares.load_cached(store, parameters["name"], context.client)
        stored_shares.check_same(party, store, facts)
        inputs = cast(Any, {PROMPT: prompt, **model_weights})
        header = facts.about["plan"]
    else:
        header = parameters["plan"]
    plan, prompt = predict.read_plan(header), inputs[PROMPT]
    spec = InputSpec(PROMPT, tuple(prompt.shape.as_list()), prompt.fractional_bits)
    order = GenerationRequest.from_parameters(parameters, plan, spec)
    public = json.dumps(header, sort_keys=True)
    d = order.decoding
    setting = (d.position_input, d.temperature, order.profile, order.watched)
    bucket = d.round_up_length(order.prompt_length + order.tokens)
    with party.kept_graphs(("generate", public, *setting, order.prompt_length, bucket)):
        writer = TextGenerator(party, order, weights.map_by_key(plan, inputs))
    runs_once = parameters.get("repeat", 1) == 1 and not parameters.get("warm_up", 1)

    def generate_texts(progress: Callable[[float], None]) -> tuple[Shared, Shared | None]:
        def report_tokens(done: int) -> None:
            if runs_once:
                context.progress(done / order.tokens, f"token {done} of {order.tokens}")
            else:
                progress(done / order.tokens)

        return writer.generate_tokens(prompt, report_tokens)

    variant = f"planned for {order.profile}" + (", ranges checked" if order.watched else "")
    tokens, flags = measure_runs(context, variant, generate_texts)
    # What leaves has masks of its own, whatever the model does.
    leaving = {TOKENS: tokens} if flags is None else {TOKENS: tokens, RANGE: flags}
    return stored_shares.refresh_values(party, leaving)


PROGRAM = Program(
    "generate",
    run_generation,
    check_generation,
    "goes on with a private text, by a private language model",
    permit=permit_generation,
    size=estimate_generation_size,
)
