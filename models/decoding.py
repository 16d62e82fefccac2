"""A causal language model one position at a time: what is computed of a prompt, and for each token.

From the plan of a model that gives logits at every position, two others are made.  `prefill` is the
model for as many positions as the prompt has, as far as the last position's choice and the keys and
values of all of them need it.  `step` is the model for one position, which is public and known when
the graph runs; keys and values of the positions before it are inputs, and those with its own are
outputs.  So whatever is cached is what the model itself computes, and every layer says itself
whether it can be cut so (Kind.positions).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from tfe_bench.errors import UsageError, unknown
from tfe_bench.models import execute
from tfe_bench.models import graph as graphs
from tfe_bench.models.execute import Prediction
from tfe_bench.models.graph import Graph
from tfe_bench.models.kinds import registry
from tfe_bench.models.kinds.kind import Mixes
from tfe_bench.models.kinds.layer import Array, Layer, Numbers, Shape
from tfe_bench.models.kinds.operations import Setting
from tfe_bench.models.layers.attend import Attend
from tfe_bench.models.layers.greedy import Greedy
from tfe_bench.models.layers.hide import Hide
from tfe_bench.models.layers.remembered import POSITION, AttendRemembered, Remember
from tfe_bench.models.layers.softmax import Softmax
from tfe_bench.models.layers.sum import Sum
from tfe_bench.models.ranges import Plan
from tfe_bench.protocols.order import gumbel

# Positions that are remembered come in so many, so that one graph is for many lengths.
BUCKET: Final = 64


@dataclass(frozen=True, eq=False)
class Decoding:
    """A language model, cut into steps.

    Attributes:
        plan: of the model, for `length` positions.
        tokens: its input of tokens.
        places: its input of the positions' numbers, which are public, or None.
        vocabulary: how many tokens there are.
        length: how many positions the model has at most.
        cached: the names of what causal attentions take as keys and values.
        temperature: of the choice; 0 for the likeliest token.
    """

    plan: Plan
    tokens: str
    places: str | None
    vocabulary: int
    length: int
    cached: tuple[str, ...]
    _axes: Mapping[str, int]
    _last: Layer
    temperature: float = 0.0

    @classmethod
    def of(cls, plan: Plan, positions: str | None = None, temperature: float = 0.0) -> Decoding:
        """Cuts a model.

        A mask that is an input, as keras-hub's `padding_mask`, is 1 at every position of a text
        that is written: it is no input of the steps.

        Args:
            positions: the input that takes the numbers of the positions, if there is one.
            temperature: of the choice, from 0 to gumbel.MOST_TEMPERATURE.

        Raises:
            UsageError: it is no causal language model; why, by the name of the layer.
        """
        plan = _without_padding(plan)
        graph = plan.graph
        tokens, places = _inputs(graph, positions)
        length, vocabulary = graph.inputs[tokens][:-1], graph.tokens[tokens]
        if len(length) != 1 or length[0] < 2:
            raise _unfit(f"its input {tokens!r} is {list(length)}; [n] from 2 on is supported")
        if places is not None and graph.inputs[places][:-1] != length:
            raise _unfit(f"its inputs {tokens!r} and {places!r} are of different lengths")
        axes = _positions(graph)
        last = _logits(graph, axes)
        if graph.shapes[last.name] != (*length, vocabulary):
            raise _unfit(
                f"{last.name!r} gives {list(graph.shapes[last.name])}, where logits of "
                f"{vocabulary} tokens at {length[0]} positions are due"
            )
        cached = dict.fromkeys(
            name for x in graph.layers if x.op == Attend.op for name in x.inputs[1:]
        )
        warm = gumbel.check_temperature(temperature)
        return cls(plan, tokens, places, vocabulary, length[0], tuple(cached), axes, last, warm)

    def bucket(self, positions: int) -> int:
        """How many positions are remembered where so many are needed."""
        return min(self.length, -(-positions // BUCKET) * BUCKET)

    @property
    def placed(self) -> dict[str, int]:
        """The weights that have a part for each position, by key, and along which axis."""
        return {
            f"{x.name}/{name}": self._axes[x.name] - 1
            for x in self.plan.graph.layers
            if registry.find(x.op).placed
            for name in x.weights
        }

    # ---- plans

    def prefill(self, count: int, watched: bool = False) -> Plan:
        """The model for the positions of a prompt: the token after it, then keys and values.

        Args:
            watched: for a Prediction that is watched.
        """
        last = self._only_last()
        layers: list[Layer] = []
        numbers = self._numbers(watched)
        inputs = {name: (count, *shape[1:]) for name, shape in self.plan.graph.inputs.items()}

        def taken(name: str) -> str:
            """The value at the last position alone."""
            own = name if name in last else f"{name}@last"
            if own not in numbers:
                options = {"axis": self._axes[name], "places": [count - 1]}
                layers.append(Layer(own, "take", (name,), options))
                numbers[own] = Numbers(self.plan.fraction_of(name))
            return own

        for x in self._layers():
            if x.name not in last:
                layers.append(self._sized(x, count))
                continue
            if x.op == Attend.op:  # (it attends to all there is)
                given = [taken(x.inputs[0]), *x.inputs[1:]]
                x = replace(x, options={**x.options, "causal": False})
            else:
                given = [taken(name) for name in x.inputs]
            layers.append(self._sized(replace(x, inputs=tuple(given)), 1))
        return self._plan(inputs, layers, numbers, self.cached)

    def step(self, bucket: int, watched: bool = False) -> Plan:
        """The model for one position: the token after it, then keys and values up to it.

        Inputs are the model's own, and keys and values of the positions before, in a bucket.
        """
        numbers = self._numbers(watched)
        inputs: dict[str, Shape] = {
            name: (1, *shape[1:]) for name, shape in self.plan.graph.inputs.items()
        }
        fractions = dict(self.plan.inputs)
        layers: list[Layer] = []
        for name in self.cached:
            before, remembered = f"{name}@before", f"{name}@remembered"
            *lead, _, depth = self.plan.graph.shapes[name]
            inputs[before] = (*lead, bucket, depth)
            fractions[before] = self.plan.fraction_of(name)
            layers.append(Layer(remembered, Remember.op, (before, name)))
            numbers[remembered] = Numbers(fractions[before])
        for x in self._layers():
            if x.op == Attend.op:
                query, *others = x.inputs
                given = (query, *(f"{name}@remembered" for name in others))
                layers.append(replace(x, op=AttendRemembered.op, inputs=given))
            else:
                layers.append(self._sized(x, 1))
        found = [f"{name}@remembered" for name in self.cached]
        return self._plan(inputs, graphs.ordered(layers, inputs), numbers, found, fractions)

    def _plan(
        self,
        inputs: Mapping[str, Shape],
        layers: Sequence[Layer],
        numbers: Mapping[str, Numbers],
        remembered: Sequence[str],
        fractions: Mapping[str, int] | None = None,
    ) -> Plan:
        outputs = (self._last.name, *remembered)
        graph = Graph(self.plan.graph.name, inputs, tuple(layers), outputs)
        own = {x.name: numbers[x.name] for x in layers}
        known = self.plan.inputs if fractions is None else fractions
        return Plan(graph, self.plan.fraction, own, known)

    def _layers(self) -> list[Layer]:
        """The layers up to the logits, which are chosen from."""
        found: list[Layer] = []
        for x in self.plan.graph.layers:
            if x.name == self._last.name:
                return [*found, self._greedy()[0]]
            found.append(x)
        raise AssertionError("a model without its last layer")

    def _greedy(self) -> tuple[Layer, Numbers]:
        own = self.plan.numbers[self._last.name]
        # (results are logits times a factor, which the largest does not notice, but noise does)
        noise = gumbel.LARGEST * self.temperature * self._scale
        return Greedy.of(self._last, own, self.plan.fraction_of(self.tokens), noise)

    @property
    def _scale(self) -> float:
        """Of what is chosen from, over the logits that the model gives."""
        return 1 / max((float(np.max(factor)) for factor, _ in self.plan.graph.results), default=1)

    def noise(self, texts: int) -> Array | None:
        """What the dealer adds to the logits of a position, drawn anew; None for nothing."""
        if not self.temperature:
            return None
        bits = int(self._greedy()[0].options["fraction"])
        return gumbel.noise((texts, self.vocabulary), self.temperature * self._scale, bits)

    def _numbers(self, watched: bool) -> dict[str, Numbers]:
        """Of all layers; what is compared is as wide as what the whole model makes of it."""
        nodes = Prediction(self.plan, Setting(), watched=watched).nodes()
        found = {node.layer.name: node.numbers for node in nodes}
        return {**found, self._last.name: self._greedy()[1]}

    def _sized(self, x: Layer, count: int) -> Layer:
        kind, axis = registry.find(x.op), self._axes[x.name]
        if kind.placed:
            weights = {name: _part(w, axis - 1, count) for name, w in x.weights.items()}
            return replace(x, weights=weights)
        return kind.resized(x, axis, count)

    def _only_last(self) -> set[str]:
        """Values of which the last position is all that is needed."""
        whole: set[str] = set()
        layers = self._layers()
        for x in reversed(layers):
            if x.name in whole:
                whole.update(x.inputs)
            elif x.op == Attend.op:
                whole.update(x.inputs[1:])
        return {x.name for x in layers} - whole


def predictions(
    d: Decoding, prompt: int, tokens: int, profile: str, batch: int = 1, watched: bool = False
) -> tuple[Prediction, Prediction]:
    """A prompt's prediction and a step's, each in the setting in which it is over soonest."""
    bucket = d.bucket(prompt + tokens)
    public: dict[str, Any] = {POSITION: bucket - 1}
    return (
        execute.tuned(d.prefill(prompt, watched), profile, batch, watched),
        execute.tuned(d.step(bucket, watched), profile, batch, watched, public),
    )


def _part(w: Array, axis: int, count: int) -> Array:
    return np.take(w, range(count), axis) if any(w.strides) else _nothing(w, axis, count)


def _nothing(w: Array, axis: int, count: int) -> Array:
    """For weights that are not here."""
    shape = list(w.shape)
    shape[axis] = count
    return np.broadcast_to(np.zeros((), w.dtype), shape)


def _unfit(why: str) -> UsageError:
    return UsageError(
        "Text is generated by a causal language model: it takes tokens [n] and gives logits of the "
        f"next one at each of n positions, made of those up to it. Received: one of which {why}."
    )


# What is 1 everywhere where all that it takes is.
_ONES = ("reshape", "permute", "repeat", "crop", "take", "concat", "multiply")


def _without_padding(plan: Plan) -> Plan:
    """The plan of a text without padding: masks that are inputs are 1 everywhere, and go.

    Raises:
        UsageError: a layer takes such a mask for something else than to hide places or leave out
            steps.
    """
    graph = plan.graph
    ones, names, layers = {*graph.masks}, dict[str, str](), list[Layer]()
    for x in graph.layers:
        given = tuple(names.get(name, name) for name in x.inputs)
        masked = [name in ones for name in given]
        if all(masked) and x.op in _ONES:
            ones.add(x.name)
        elif x.op == Attend.op and masked == [False, False, False, True]:
            layers.append(replace(x, inputs=given[:3]))
        elif x.op == Hide.op and masked == [False, True] and not x.options["inverted"]:
            names[x.name] = given[0]
        elif any(masked):
            raise _unfit(f"the layer {x.name!r} ({x.op}) takes the mask {_masks(graph)}")
        else:
            layers.append(replace(x, inputs=given))
    if not ones:
        return plan
    inputs = {name: shape for name, shape in graph.inputs.items() if name not in ones}
    found = graphs.replaced(graph, layers, inputs=inputs, masks=())
    numbers = {x.name: plan.numbers[x.name] for x in layers}
    return replace(plan, graph=found, numbers=numbers)


def _masks(graph: Graph) -> str:
    return ", ".join(map(repr, graph.masks))


def _inputs(graph: Graph, positions: str | None) -> tuple[str, str | None]:
    """The inputs of tokens and of positions."""
    if positions is not None and positions not in graph.inputs:
        raise unknown(f"The model has no input {positions!r}.", str(positions), graph.inputs)
    tokens = [name for name in graph.inputs if name != positions]
    if any(name not in graph.tokens for name in graph.inputs) or len(tokens) != 1:
        raise _unfit(
            f"the inputs are {', '.join(map(repr, graph.inputs))}; one of tokens is supported, and "
            "one of the positions' numbers if it is named (positions=...)"
        )
    if positions is not None:
        length = graph.inputs[positions][0]
        if graph.tokens[positions] < length:
            raise _unfit(
                f"{positions!r} takes {graph.tokens[positions]} numbers, fewer than {length}"
            )
    return tokens[0], positions


def _positions(graph: Graph) -> dict[str, int]:
    """The axis of positions of each value, counted with the batch."""
    found = dict.fromkeys(graph.inputs, 1)
    for x in graph.layers:
        given = [graph.shapes[name] for name in x.inputs]
        try:
            axes = [found[name] for name in x.inputs]
            found[x.name] = registry.find(x.op).positions(x, given, axes)
        except Mixes as why:
            raise _unfit(f"the layer {x.name!r} ({x.op}) {why}") from None
    return found


def _logits(graph: Graph, axes: Mapping[str, int]) -> Layer:
    """The layer whose values are chosen from; a softmax of them has its largest where they have."""
    if len(graph.outputs) != 1:
        raise _unfit(f"there are {len(graph.outputs)} outputs")
    for factor, offset in graph.results:
        if np.size(factor) > 1 or np.size(offset) > 1 or np.min(factor) <= 0:
            raise _unfit("the output is scaled token by token")
    x = graph.by_name.get(graph.outputs[0])
    if x is not None and x.op == Softmax.op:
        x = graph.by_name.get(x.inputs[0])
    if x is None or x.op != Sum.op or x.options["activation"] != "none":
        name = graph.outputs[0] if x is None else x.name
        raise _unfit(f"{name!r} is what the choice is made of; a Dense layer without activation is")
    if x.name in {i for y in graph.layers if y.op != Softmax.op for i in y.inputs}:
        raise _unfit(f"{x.name!r} gives logits that other layers take")
    if axes[x.name] != 1:
        raise _unfit(f"{x.name!r} gives logits along another axis than the last")
    return x
