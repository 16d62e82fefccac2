"""The program "generate": a private language model continues a private text, token by token.

The client shares the model with the job, or the workers store it.  Every token remains a shared
one-hot row on its way to the next step; the client alone learns it, at the end.  Keys and values of
earlier positions are shares that exist in this job alone.
Each position is a graph call of its own, and so has its own masks, whatever its number in the
text: a second text of one session never reuses masks of the first.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.jobs import Context, InputSpec, Program, Size
from tfe_bench.cluster.timing import measure_program_runs
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.models.inference import execute, weights
from tfe_bench.models.inference.programs.serve import add_weight_memory
from tfe_bench.models.inference.request import (
    PROMPT,
    RANGE,
    TOKENS,
    GenerateRequest,
    GenerationSetting,
    check_text_request,
    parse_generation,
    plan_key,
)
from tfe_bench.models.layers.greedy import NOISE
from tfe_bench.models.layers.remembered import POSITION
from tfe_bench.protocols.ring import arithmetic, shapes
from tfe_bench.protocols.session import seeded, tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.seeded import Seeded
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    from tfe_bench.cluster.store import ShareStore


def permit_generation(
    client: str, store: ShareStore, request: GenerateRequest, inputs: Sequence[InputSpec]
) -> None:
    """Reject a client that may not use a stored model, and a text that the model does not accept.

    Raises:
        UsageError, PolicyError: as ShareStore.get_facts, or the text does not fit.
    """
    if request.name:
        check_text_request(request.with_plan(client, store), inputs)


def estimate_generation_size(
    client: str, store: ShareStore, request: GenerateRequest, inputs: Sequence[InputSpec]
) -> Size:
    """Estimate the size of the larger of the two graph calls."""
    job_size = _estimate_cached(request.with_plan(client, store), inputs[-1])
    return add_weight_memory(job_size, store, request.name, client) if request.name else job_size


@functools.lru_cache(maxsize=8)
def _estimate_cached(request: GenerateRequest, spec: InputSpec) -> Size:
    setting = GenerationSetting.from_request(request, spec)
    sizes = [execute.estimate_prediction_size(s) for s in setting.build_predictions()]
    return Size(max(s.words for s in sizes), memory=max(s.memory for s in sizes))


# ---- execution at a party

DecodingState = tuple[Shared, list[Shared]]


class PrivateTextGenerator:
    """Text generation at one party.

    Args:
        model_weights: the weights from weights.map_weights_by_key.
    """

    def __init__(
        self, party: Party, order: GenerationSetting, model_weights: Mapping[str, Shared | Seeded]
    ) -> None:
        self._party, self._order, self._weights = party, order, model_weights
        self._prefill_prediction, self._step_prediction = order.build_predictions()
        self._run_prefill = party.function(self._prefill_graph)
        self._run_step = party.function(self._step_graph)

    def generate_tokens(
        self, prompt: Shared, report_tokens: Callable[[int], None]
    ) -> tuple[Shared, Shared | None]:
        """Generate the tokens [texts, tokens], and flags of their ranges if these are checked.

        Args:
            report_tokens: callback for the number of generated tokens.
        """
        order = self._order
        d = order.decoding
        steps = [self._run_prefill(self._weights, prompt, d.draw_noise(order.texts))]
        for i in range(1, order.tokens):
            report_tokens(i)
            row, cache = steps[-1][0], steps[-1][1]
            position = np.asarray(order.prompt_length + i - 1, np.int64)
            steps[-1] = (None, None, *steps[-1][2:])  # releases values that are no longer needed
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
        """Return the first token, and the keys and values padded to the cache length."""
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
        """Return the next token, and the keys and values including its own."""
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
        """Return the weights; of weights with one part per position, select the current ones."""
        axes = self._order.decoding.positional_weights
        selected = dict(model_weights)
        for name, axis in axes.items():
            selected[name] = seeded.expand_masks(model_weights[name]).map(
                lambda a, axis=axis: select(a, axis)
            )
        return selected

    def _model_inputs(self, rows: Shared, first: Any) -> list[Shared]:
        """Return the model's inputs: rows of tokens, and position numbers from `first` on."""
        d = self._order.decoding
        graph = d.plan.graph
        inputs = []
        for name in graph.inputs:
            if name == d.token_input:
                inputs.append(rows)
                continue
            count = int(rows.shape[1])
            numbers = _one_hot_token_positions(
                first, count, graph.tokens[name], d.plan.fraction_of(name)
            )
            several = tensor_ops.tile(numbers[None], [int(rows.shape[0]), 1, 1])
            shared = arithmetic.share_public(rows, several)
            inputs.append(dataclasses.replace(shared, fractional_bits=d.plan.fraction_of(name)))
        return inputs

    def _pack_outputs(self, row: Shared, cache: list[Shared], flags: list[Shared]) -> Any:
        """Return (row, cache, token numbers [texts, 1], flags [texts, 1])."""
        numbers = np.arange(self._order.decoding.vocabulary, dtype=np.int64)
        token = row.map(lambda a: tensor_ops.reduce_sum(a * numbers, -1))
        flag = [x.map(lambda a: tensor_ops.reshape(a, [-1, 1])) for x in flags]
        return (row, cache, token, *flag)


def _one_hot_token_positions(first: Any, count: int, depth: int, bits: int) -> Any:
    """Return public one-hot rows [count, depth] for consecutive numbers from the first on."""
    hot = tf.one_hot(tf.range(count, dtype=tf.int64) + first, depth, dtype=tf.int64)
    return hot * (1 << bits)


def run_generation(context: Context) -> dict[str, Shared]:
    """Continue all texts; nothing is stored."""
    party, inputs, prompt = context.party, context.inputs, context.inputs[PROMPT]
    request: GenerateRequest = context.request
    spec = InputSpec(PROMPT, tuple(prompt.shape.as_list()), prompt.fractional_bits)
    if request.name:
        store = stored_shares.require_share_store(context)
        request = request.with_plan(context.client, store)
        check_text_request(request, [spec])
        context.progress(0.0, "loading")
        facts, model_weights = stored_shares.load_cached_shares(store, request.name, context.client)
        stored_shares.check_same(party, store, facts)
        inputs = cast(Any, {PROMPT: prompt, **model_weights})
    plan = request.plan
    assert plan is not None
    order = GenerationSetting.from_request(request, spec)
    public = plan_key(plan)
    d = order.decoding
    setting = (d.position_input, d.temperature, order.profile, order.watched)
    bucket = d.round_up_length(order.prompt_length + order.tokens)
    with party.kept_graphs(("generate", public, *setting, order.prompt_length, bucket)):
        writer = PrivateTextGenerator(party, order, weights.map_weights_by_key(plan, inputs))
    runs_once = request.repeat == 1 and not request.warm_up

    def generate_texts(progress: Callable[[float], None]) -> tuple[Shared, Shared | None]:
        def report_tokens(done: int) -> None:
            if runs_once:
                context.progress(done / order.tokens, f"token {done} of {order.tokens}")
            else:
                progress(done / order.tokens)

        return writer.generate_tokens(prompt, report_tokens)

    variant = f"planned for {order.profile}" + (", ranges checked" if order.watched else "")
    tokens, flags = measure_program_runs(context, variant, generate_texts)
    # Outputs get fresh masks, whatever the model computes.
    leaving = {TOKENS: tokens} if flags is None else {TOKENS: tokens, RANGE: flags}
    return stored_shares.refresh_stored_shares(party, leaving)


PROGRAM = Program(
    "generate",
    run_generation,
    parse_generation,
    "goes on with a private text, by a private language model",
    permit=permit_generation,
    size=estimate_generation_size,
    is_sealed=True,
)
