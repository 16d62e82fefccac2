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
from tfe_bench.cluster.timing import check_flags, check_parameters, measure
from tfe_bench.errors import UsageError
from tfe_bench.models import decoding, execute, kept, limits, weights
from tfe_bench.models.decoding import Decoding
from tfe_bench.models.layers.greedy import NOISE
from tfe_bench.models.layers.remembered import POSITION
from tfe_bench.models.programs import predict
from tfe_bench.models.programs.predict import RANGE
from tfe_bench.models.programs.serve import deployed, with_kept
from tfe_bench.models.ranges import Plan
from tfe_bench.protocols.ring import arithmetic, shapes
from tfe_bench.protocols.session import local, seeded
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.seeded import Seeded
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    from tfe_bench.cluster.store import Store

# The job's input, and its output besides RANGE.
PROMPT, TOKENS = "prompt", "tokens"
MOST_TEXTS = 64
_OWN = ("tokens", "positions", "temperature", "check_range")
_KEPT = ("name", "deployment")


@dataclasses.dataclass(frozen=True, eq=False)
class Order:
    """What a job is asked for, checked.

    Attributes:
        decoding: the model in steps.
        texts, prompt: how many texts there are, and positions of each.
        tokens: how many come behind them.
        watched: whether ranges are checked.
    """

    decoding: Decoding
    texts: int
    prompt: int
    tokens: int
    profile: str
    watched: bool

    @classmethod
    def of(cls, parameters: Mapping[str, Any], plan: Plan, spec: InputSpec) -> Order:
        """The order of a job.

        Raises:
            UsageError: the model is no language model, or the text does not fit it.
        """
        d = Decoding.of(plan, parameters.get("positions"), parameters.get("temperature", 0.0))
        tokens = parameters.get("tokens")
        shape, bits = spec.shape, plan.fraction_of(d.tokens)
        fits = len(shape) == 3 and shape[2] == d.vocabulary and spec.fractional_bits == bits
        if spec.name != PROMPT or not fits or not 1 <= shape[0] <= MOST_TEXTS:
            raise UsageError(
                f"The input {PROMPT!r} is [texts, positions, {d.vocabulary}], of 1 to {MOST_TEXTS} "
                f"texts, with {bits} fractional bits. Received: {spec.name!r}, {list(shape)} with "
                f"{spec.fractional_bits}."
            )
        check_length(d, shape[1], tokens)
        profile = profiles.get(str(parameters.get("profile", "local"))).plan
        watched = bool(parameters.get("check_range", False))
        return cls(d, shape[0], shape[1], int(tokens or 0), profile, watched)

    def predictions(self) -> tuple[execute.Prediction, execute.Prediction]:
        """Of the prompt, and of a step."""
        d = self.decoding
        return decoding.predictions(
            d, self.prompt, self.tokens, self.profile, self.texts, self.watched
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
            f"(shapes={{{d.tokens!r}: ({prompt + tokens},)}})."
        )


# ---- admission


def check(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Refuses what is no order of text; of a kept model `permit` does.

    Raises:
        UsageError, DataError: naming what does not fit.
    """
    known = _KEPT if "name" in parameters else ("plan",)
    check_parameters("generate", parameters, (*known, *_OWN))
    check_flags(parameters, "check_range")
    positions = parameters.get("positions")
    if positions is not None and not isinstance(positions, str):
        raise UsageError("positions is the name of an input.")
    if "name" in parameters:
        check_name(parameters["name"])
        check_deployment(parameters.get("deployment"))
        return
    plan = predict.plan_of(parameters.get("plan"))
    owned = weights.specs(plan)
    if list(inputs[: len(owned)]) != owned or len(inputs) != len(owned) + 1:
        raise UsageError(
            f"This model wants {len(owned)} arrays of weights and a {PROMPT!r}. Received: "
            f"{[i.name for i in inputs][:8]}, {len(inputs)} in all."
        )
    _check(parameters, plan, inputs[-1:])


def _check(parameters: Mapping[str, Any], plan: Plan, inputs: Sequence[InputSpec]) -> None:
    if len(inputs) != 1:
        raise UsageError(f"A text has one input, {PROMPT!r}. Received: {len(inputs)}.")
    if parameters.get("check_range", False):
        limits.check(plan)
    Order.of(parameters, plan, inputs[0])


def permit(
    client: str, store: Store, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> None:
    """Refuses a client that may not ask a kept model, and a text that the model does not take.

    Raises:
        UsageError, PolicyError: as Store.facts, or the text does not fit.
    """
    if "name" in parameters:
        _check(
            parameters, predict.plan_of(deployed(client, store, parameters).about["plan"]), inputs
        )


def size(
    client: str, store: Store, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> Size:
    """Of the graph call that is larger."""
    named = "name" in parameters
    header = store.facts(parameters["name"], client).about["plan"] if named else parameters["plan"]
    own = {k: parameters[k] for k in (*_OWN, "profile") if k in parameters}
    found = _size(json.dumps([header, own], sort_keys=True), inputs[-1])
    return with_kept(found, store, parameters["name"], client) if named else found


@functools.lru_cache(maxsize=8)
def _size(text: str, spec: InputSpec) -> Size:
    header, parameters = json.loads(text)
    order = Order.of(parameters, predict.plan_of(header), spec)
    both = [execute.size(s) for s in order.predictions()]
    return Size(max(s.words for s in both), memory=max(s.memory for s in both))


# ---- at a party

State = tuple[Shared, list[Shared]]


class Writer:
    """A model that goes on with texts at one party.

    Args:
        own: the weights, as weights.by_key gives them.
    """

    def __init__(self, party: Party, order: Order, own: Mapping[str, Shared | Seeded]) -> None:
        self._party, self._order, self._own = party, order, own
        self._first, self._step = order.predictions()
        self._prefill = party.function(self._of_prompt)
        self._next = party.function(self._of_token)

    def run(self, prompt: Shared, told: Callable[[int], None]) -> tuple[Shared, Shared | None]:
        """The tokens [texts, tokens], and flags of their ranges, if they are watched.

        Args:
            told: hears how many tokens there are.
        """
        order = self._order
        d = order.decoding
        found = [self._prefill(self._own, prompt, d.noise(order.texts))]
        for i in range(1, order.tokens):
            told(i)
            row, cache = found[-1][0], found[-1][1]
            position = np.asarray(order.prompt + i - 1, np.int64)
            found[-1] = (None, None, *found[-1][2:])  # (what is not needed is not kept)
            noise = d.noise(order.texts)
            found.append(self._next(self._own, row, cache, position, noise))
        told(order.tokens)
        tokens = shapes.concat([each[2] for each in found], 1)
        if not order.watched:
            return tokens, None
        return tokens, shapes.concat([each[3] for each in found], 1)

    def _of_prompt(
        self, own: Mapping[str, Shared | Seeded], prompt: Shared, noise: Any = None
    ) -> Any:
        """The first token, and keys and values with room for the others."""
        order, d = self._order, self._order.decoding
        own = self._placed(own, lambda a, axis: local.gather(a, range(order.prompt), axis=axis))
        s = dataclasses.replace(self._first, public={NOISE: noise})
        row, *found = execute.run(self._party, s, own, self._inputs(prompt, 0))
        cache, more = found[: len(d.cached)], d.bucket(order.prompt + order.tokens)
        padded = [
            shapes.pad(x, [*[(0, 0)] * (len(x.shape) - 2), (0, more - order.prompt), (0, 0)])
            for x in cache
        ]
        return self._told(row, padded, found[len(cache) :])

    def _of_token(
        self,
        own: Mapping[str, Shared | Seeded],
        row: Shared,
        cache: list[Shared],
        position: Any,
        noise: Any = None,
    ) -> Any:
        """The next token, and keys and values with its own."""
        s = dataclasses.replace(self._step, public={POSITION: position, NOISE: noise})
        own = self._placed(
            own, lambda a, axis: local.gather(a, local.reshape(position, [1]), axis=axis)
        )
        inputs = [*self._inputs(row, position), *cache]
        row, *found = execute.run(self._party, s, own, inputs)
        return self._told(row, found[: len(cache)], found[len(cache) :])

    def _placed(
        self, own: Mapping[str, Shared | Seeded], part: Callable[[Any, int], Any]
    ) -> dict[str, Shared | Seeded]:
        """The weights, of those that differ from position to position a part."""
        placed = self._order.decoding.placed
        found = dict(own)
        for name, axis in placed.items():
            found[name] = seeded.expanded(own[name]).map(lambda a, axis=axis: part(a, axis))
        return found

    def _inputs(self, rows: Shared, first: Any) -> list[Shared]:
        """Those of the model: rows of tokens, and the positions' numbers from the first on."""
        d = self._order.decoding
        graph = d.plan.graph
        found = []
        for name in graph.inputs:
            if name == d.tokens:
                found.append(rows)
                continue
            count = int(rows.shape[1])
            numbers = _rows(first, count, graph.tokens[name], d.plan.fraction_of(name))
            several = local.tile(numbers[None], [int(rows.shape[0]), 1, 1])
            shared = arithmetic.public(rows, several)
            found.append(dataclasses.replace(shared, fractional_bits=d.plan.fraction_of(name)))
        return found

    def _told(self, row: Shared, cache: list[Shared], flags: list[Shared]) -> Any:
        """(the row, the cache, [texts, 1] numbers of the tokens, [texts, 1] flags)"""
        numbers = np.arange(self._order.decoding.vocabulary, dtype=np.int64)
        token = row.map(lambda a: local.reduce_sum(a * numbers, -1))
        flag = [x.map(lambda a: local.reshape(a, [-1, 1])) for x in flags]
        return (row, cache, token, *flag)


def _rows(first: Any, count: int, depth: int, bits: int) -> Any:
    """Public rows [count, depth] with a 1 at the numbers from the first on."""
    import tensorflow as tf

    hot = tf.one_hot(tf.range(count, dtype=tf.int64) + first, depth, dtype=tf.int64)
    return hot * (1 << bits)


def run(context: Context) -> dict[str, Shared]:
    """Goes on with all texts; nothing of it is kept."""
    party, parameters = context.party, context.parameters
    inputs = context.inputs
    if "name" in parameters:
        store = kept.store_of(context)
        prompt = inputs[PROMPT]
        spec = InputSpec(PROMPT, tuple(prompt.shape.as_list()), prompt.fractional_bits)
        permit(context.client, store, parameters, [spec])
        context.progress(0.0, "loading")
        facts, own = kept.in_memory(store, parameters["name"], context.client)
        kept.check_same(party, store, facts)
        inputs = cast(Any, {PROMPT: prompt, **own})
        header = facts.about["plan"]
    else:
        header = parameters["plan"]
    plan, prompt = predict.plan_of(header), inputs[PROMPT]
    spec = InputSpec(PROMPT, tuple(prompt.shape.as_list()), prompt.fractional_bits)
    order = Order.of(parameters, plan, spec)
    public = json.dumps(header, sort_keys=True)
    d = order.decoding
    setting = (d.places, d.temperature, order.profile, order.watched)
    bucket = d.bucket(order.prompt + order.tokens)
    with party.kept_graphs(("generate", public, *setting, order.prompt, bucket)):
        writer = Writer(party, order, weights.by_key(plan, inputs))
    once = parameters.get("repeat", 1) == 1 and not parameters.get("warm_up", 1)

    def written(progress: Callable[[float], None]) -> tuple[Shared, Shared | None]:
        def told(done: int) -> None:
            if once:
                context.progress(done / order.tokens, f"token {done} of {order.tokens}")
            else:
                progress(done / order.tokens)

        return writer.run(prompt, told)

    variant = f"planned for {order.profile}" + (", ranges checked" if order.watched else "")
    tokens, flags = measure(context, variant, written)
    # What leaves has masks of its own, whatever the model does.
    leaving = {TOKENS: tokens} if flags is None else {TOKENS: tokens, RANGE: flags}
    return kept.refreshed(party, leaving)


PROGRAM = Program(
    "generate",
    run,
    check,
    "goes on with a private text, by a private language model",
    permit=permit,
    size=size,
)
