"""Stepwise decoding with a causal language model: plans for the prompt and for each further token.

The plan of a model with logits at every position is split into two plans.  `build_prefill` gives
the model for the positions of the prompt, as far as two results need it: the choice at the last
position, and the keys and values of all positions.  `build_step` gives the model for one position,
which is public and known when the graph runs.  Its inputs include the keys and values of earlier
positions, and its outputs include the keys and values up to its own position.  So the cache holds
exactly what the model itself computes, and each layer decides whether it can be split
(Kind.find_position_axis).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from tfe_bench.errors import UsageError, unknown_name_error
from tfe_bench.models.convert import graph as graphs
from tfe_bench.models.convert.calibration import ModelPlan
from tfe_bench.models.convert.graph import Graph
from tfe_bench.models.inference import execute
from tfe_bench.models.inference.execute import Prediction
from tfe_bench.models.layers.attend import DotProductAttention
from tfe_bench.models.layers.base import registry
from tfe_bench.models.layers.base.kind import NotPositionwise
from tfe_bench.models.layers.base.layer import Array, FixedPointFormat, LayerSpec, Shape
from tfe_bench.models.layers.base.operations import ProtocolSetting
from tfe_bench.models.layers.greedy import GreedyToken
from tfe_bench.models.layers.hide import SoftmaxMask
from tfe_bench.models.layers.remembered import POSITION, CachedAttention, KeyValueCache
from tfe_bench.models.layers.softmax import Softmax
from tfe_bench.models.layers.sum import SumOfProducts
from tfe_bench.protocols.order import gumbel

# Cached positions are a multiple of this number, so that one graph serves many lengths.
BUCKET: Final = 64


@dataclass(frozen=True, eq=False)
class TokenDecoding:
    """A language model, split into steps.

    Attributes:
        plan: plan of the model for `length` positions.
        token_input: name of the input of tokens.
        position_input: name of the input of position numbers, which are public, or None.
        vocabulary: number of tokens.
        length: largest number of positions of the model.
        cached_values: names of the keys and values of causal attention layers.
        temperature: temperature of the choice; 0 for the likeliest token.
    """

    plan: ModelPlan
    token_input: str
    position_input: str | None
    vocabulary: int
    length: int
    cached_values: tuple[str, ...]
    _axes: Mapping[str, int]
    _logit_layer: LayerSpec
    temperature: float = 0.0

    @classmethod
    def from_plan(
        cls, plan: ModelPlan, positions: str | None = None, temperature: float = 0.0
    ) -> TokenDecoding:
        """Split the plan of a model.

        A mask input, such as the `padding_mask` of keras-hub, is 1 at every position of a generated
        text.
        It is not an input of the steps.

        Args:
            positions: name of the input of position numbers, if there is one.
            temperature: temperature of the choice, from 0 to gumbel.MAX_TEMPERATURE.

        Raises:
            UsageError: the model is not a causal language model; the text names the layer.
        """
        plan = _remove_padding_masks(plan)
        graph = plan.graph
        token_input, position_input = _find_token_inputs(graph, positions)
        length, vocabulary = graph.inputs[token_input][:-1], graph.tokens[token_input]
        if len(length) != 1 or length[0] < 2:
            raise _unsupported_language_model(
                f"its input {token_input!r} has shape {list(length)}; expected [n] with n >= 2"
            )
        if position_input is not None and graph.inputs[position_input][:-1] != length:
            raise _unsupported_language_model(
                f"its inputs {token_input!r} and {position_input!r} have different lengths"
            )
        axes = _find_token_position_axes(graph)
        logit_layer = _find_logit_layer(graph, axes)
        if graph.shapes[logit_layer.name] != (*length, vocabulary):
            raise _unsupported_language_model(
                f"{logit_layer.name!r} returns {list(graph.shapes[logit_layer.name])}; expected "
                f"logits of {vocabulary} tokens at {length[0]} positions"
            )
        cached = dict.fromkeys(
            name for x in graph.layers if x.op == DotProductAttention.op for name in x.inputs[1:]
        )
        checked_temperature = gumbel.check_gumbel_temperature(temperature)
        return cls(
            plan,
            token_input,
            position_input,
            vocabulary,
            length[0],
            tuple(cached),
            axes,
            logit_layer,
            checked_temperature,
        )

    def round_up_length(self, positions: int) -> int:
        """Return the number of cached positions for a number of needed positions."""
        return min(self.length, -(-positions // BUCKET) * BUCKET)

    @property
    def positional_weights(self) -> dict[str, int]:
        """Axis of the positions in each weight that has a part for each position, by key."""
        return {
            f"{x.name}/{name}": self._axes[x.name] - 1
            for x in self.plan.graph.layers
            if registry.get_layer_kind(x.op).has_positional_weights
            for name in x.weights
        }

    # ---- plans

    def build_prefill(self, count: int, watched: bool = False) -> ModelPlan:
        """Build the plan for the positions of a prompt: the next token, then keys and values.

        Args:
            count: number of positions of the prompt.
            watched: whether the Prediction checks ranges.
        """
        last_only = self._find_last_token_values()
        layers: list[LayerSpec] = []
        numbers = self._layer_numbers(watched)
        inputs = {name: (count, *shape[1:]) for name, shape in self.plan.graph.inputs.items()}

        def take_last(name: str) -> str:
            """Return the name of a value at the last position alone; add a layer if necessary."""
            last_name = name if name in last_only else f"{name}@last"
            if last_name not in numbers:
                options = {"axis": self._axes[name], "places": [count - 1]}
                layers.append(LayerSpec(last_name, "take", (name,), options))
                numbers[last_name] = FixedPointFormat(self.plan.fraction_of(name))
            return last_name

        for x in self._layers_with_choice():
            if x.name not in last_only:
                layers.append(self._resize_layer(x, count))
                continue
            if x.op == DotProductAttention.op:  # the last query attends to all positions
                layer_inputs = [take_last(x.inputs[0]), *x.inputs[1:]]
                x = replace(x, options={**x.options, "causal": False})
            else:
                layer_inputs = [take_last(name) for name in x.inputs]
            layers.append(self._resize_layer(replace(x, inputs=tuple(layer_inputs)), 1))
        return self._build_plan(inputs, layers, numbers, self.cached_values)

    def build_step(self, bucket: int, watched: bool = False) -> ModelPlan:
        """Build the plan for one position: the next token, then keys and values up to it.

        Inputs are those of the model, and the cached keys and values of earlier positions.
        """
        numbers = self._layer_numbers(watched)
        inputs: dict[str, Shape] = {
            name: (1, *shape[1:]) for name, shape in self.plan.graph.inputs.items()
        }
        fractions = dict(self.plan.inputs)
        layers: list[LayerSpec] = []
        for name in self.cached_values:
            before, remembered = f"{name}@before", f"{name}@remembered"
            *lead, _, depth = self.plan.graph.shapes[name]
            inputs[before] = (*lead, bucket, depth)
            fractions[before] = self.plan.fraction_of(name)
            layers.append(LayerSpec(remembered, KeyValueCache.op, (before, name)))
            numbers[remembered] = FixedPointFormat(fractions[before])
        for x in self._layers_with_choice():
            if x.op == DotProductAttention.op:
                query, *key_value_names = x.inputs
                layer_inputs = (query, *(f"{name}@remembered" for name in key_value_names))
                layers.append(replace(x, op=CachedAttention.op, inputs=layer_inputs))
            else:
                layers.append(self._resize_layer(x, 1))
        cache_names = [f"{name}@remembered" for name in self.cached_values]
        return self._build_plan(
            inputs, graphs.sort_layers(layers, inputs), numbers, cache_names, fractions
        )

    def _build_plan(
        self,
        inputs: Mapping[str, Shape],
        layers: Sequence[LayerSpec],
        numbers: Mapping[str, FixedPointFormat],
        remembered: Sequence[str],
        fractions: Mapping[str, int] | None = None,
    ) -> ModelPlan:
        outputs = (self._logit_layer.name, *remembered)
        graph = Graph(self.plan.graph.name, inputs, tuple(layers), outputs)
        layer_numbers = {x.name: numbers[x.name] for x in layers}
        input_fractions = self.plan.inputs if fractions is None else fractions
        return ModelPlan(graph, self.plan.fraction, layer_numbers, input_fractions)

    def _layers_with_choice(self) -> list[LayerSpec]:
        """Return the layers up to the logits, followed by the choice of a token."""
        layers: list[LayerSpec] = []
        for x in self.plan.graph.layers:
            if x.name == self._logit_layer.name:
                return [*layers, self._build_greedy_layer()[0]]
            layers.append(x)
        raise AssertionError("a model without its last layer")

    def _build_greedy_layer(self) -> tuple[LayerSpec, FixedPointFormat]:
        logit_numbers = self.plan.numbers[self._logit_layer.name]
        # results are logits times a factor, which does not change the largest logit but scales the
        # noise
        noise = gumbel.MAX_MAGNITUDE * self.temperature * self._logit_scale
        return GreedyToken.from_sum(
            self._logit_layer, logit_numbers, self.plan.fraction_of(self.token_input), noise
        )

    @property
    def _logit_scale(self) -> float:
        """Ratio of the scores of the choice to the logits that the model outputs."""
        return 1 / max((float(np.max(factor)) for factor, _ in self.plan.graph.results), default=1)

    def draw_noise(self, texts: int) -> Array | None:
        """Draw the dealer's noise for the logits of one position; None at temperature 0."""
        if not self.temperature:
            return None
        bits = int(self._build_greedy_layer()[0].options["fraction"])
        return gumbel.draw_gumbel(
            (texts, self.vocabulary), self.temperature * self._logit_scale, bits
        )

    def _layer_numbers(self, watched: bool) -> dict[str, FixedPointFormat]:
        """Return the formats of all layers; comparisons are as wide as in the whole model."""
        nodes = Prediction(self.plan, ProtocolSetting(), watched=watched).placed_layers()
        numbers = {node.layer.name: node.numbers for node in nodes}
        return {**numbers, self._logit_layer.name: self._build_greedy_layer()[1]}

    def _resize_layer(self, x: LayerSpec, count: int) -> LayerSpec:
        kind, axis = registry.get_layer_kind(x.op), self._axes[x.name]
        if kind.has_positional_weights:
            weights = {name: _take_positions(w, axis - 1, count) for name, w in x.weights.items()}
            return replace(x, weights=weights)
        return kind.resize_positions(x, axis, count)

    def _find_last_token_values(self) -> set[str]:
        """Return the names of values that are needed at the last position alone."""
        whole: set[str] = set()
        layers = self._layers_with_choice()
        for x in reversed(layers):
            if x.name in whole:
                whole.update(x.inputs)
            elif x.op == DotProductAttention.op:
                whole.update(x.inputs[1:])
        return {x.name for x in layers} - whole


def build_decoding_predictions(
    d: TokenDecoding, prompt: int, tokens: int, profile: str, batch: int = 1, watched: bool = False
) -> tuple[Prediction, Prediction]:
    """Build the predictions for a prompt and for a step, each with its fastest protocol setting."""
    bucket = d.round_up_length(prompt + tokens)
    public: dict[str, Any] = {POSITION: bucket - 1}
    return (
        execute.tune_prediction(d.build_prefill(prompt, watched), profile, batch, watched),
        execute.tune_prediction(d.build_step(bucket, watched), profile, batch, watched, public),
    )


def _take_positions(w: Array, axis: int, count: int) -> Array:
    return (
        np.take(w, range(count), axis)
        if any(w.strides)
        else _placeholder_model_weights(w, axis, count)
    )


def _placeholder_model_weights(w: Array, axis: int, count: int) -> Array:
    """Return zeros in place of weights that are not in this process."""
    shape = list(w.shape)
    shape[axis] = count
    return np.broadcast_to(np.zeros((), w.dtype), shape)


def _unsupported_language_model(reason: str) -> UsageError:
    return UsageError(
        "Text generation requires a causal language model: it maps tokens [n] to logits of the "
        "next token at each of n positions, which depend on earlier positions alone. Received: "
        f"a model where {reason}.",
        code="unsupported-model",
        operation="generate",
        received=reason,
    )


# Operations whose value is 1 everywhere if all inputs are.
_MASK_PRESERVING = ("reshape", "permute", "repeat", "crop", "take", "concat", "multiply")


def _remove_padding_masks(plan: ModelPlan) -> ModelPlan:
    """Remove masks from the plan for a text without padding: mask inputs are 1 everywhere.

    Raises:
        UsageError: a layer uses such a mask for another purpose than to hide positions or skip
            steps.
    """
    graph = plan.graph
    ones, replacements, layers = {*graph.masks}, dict[str, str](), list[LayerSpec]()
    for x in graph.layers:
        layer_inputs = tuple(replacements.get(name, name) for name in x.inputs)
        masked = [name in ones for name in layer_inputs]
        if all(masked) and x.op in _MASK_PRESERVING:
            ones.add(x.name)
        elif x.op == DotProductAttention.op and masked == [False, False, False, True]:
            layers.append(replace(x, inputs=layer_inputs[:3]))
        elif x.op == SoftmaxMask.op and masked == [False, True] and not x.options["inverted"]:
            replacements[x.name] = layer_inputs[0]
        elif any(masked):
            raise _unsupported_language_model(
                f"the layer {x.name!r} ({x.op}) uses the mask {_quote_masks(graph)}"
            )
        else:
            layers.append(replace(x, inputs=layer_inputs))
    if not ones:
        return plan
    inputs = {name: shape for name, shape in graph.inputs.items() if name not in ones}
    unpadded_graph = graphs.replace_layers(graph, layers, inputs=inputs, masks=())
    numbers = {x.name: plan.numbers[x.name] for x in layers}
    return replace(plan, graph=unpadded_graph, numbers=numbers)


def _quote_masks(graph: Graph) -> str:
    return ", ".join(map(repr, graph.masks))


def _find_token_inputs(graph: Graph, positions: str | None) -> tuple[str, str | None]:
    """Find the input of tokens and the input of positions."""
    if positions is not None and positions not in graph.inputs:
        raise unknown_name_error(
            f"The model has no input {positions!r}.",
            str(positions),
            graph.inputs,
            operation="positions",
        )
    tokens = [name for name in graph.inputs if name != positions]
    if any(name not in graph.tokens for name in graph.inputs) or len(tokens) != 1:
        raise _unsupported_language_model(
            f"the inputs are {', '.join(map(repr, graph.inputs))}; expected one input of tokens, "
            "and one of position numbers if it is named (positions=...)"
        )
    if positions is not None:
        length = graph.inputs[positions][0]
        if graph.tokens[positions] < length:
            raise _unsupported_language_model(
                f"{positions!r} accepts {graph.tokens[positions]} numbers, fewer than {length}"
            )
    return tokens[0], positions


def _find_token_position_axes(graph: Graph) -> dict[str, int]:
    """Find the axis of the positions in each value, counted with the batch."""
    axis_by_name = dict.fromkeys(graph.inputs, 1)
    for x in graph.layers:
        input_shapes = [graph.shapes[name] for name in x.inputs]
        try:
            axes = [axis_by_name[name] for name in x.inputs]
            axis_by_name[x.name] = registry.get_layer_kind(x.op).find_position_axis(
                x, input_shapes, axes
            )
        except NotPositionwise as error:
            raise _unsupported_language_model(f"the layer {x.name!r} ({x.op}) {error}") from None
    return axis_by_name


def _find_logit_layer(graph: Graph, axes: Mapping[str, int]) -> LayerSpec:
    """Find the layer of the logits; a final softmax has its largest value at the same position."""
    if len(graph.outputs) != 1:
        raise _unsupported_language_model(f"the number of outputs is {len(graph.outputs)}")
    for factor, offset in graph.results:
        if np.size(factor) > 1 or np.size(offset) > 1 or np.min(factor) <= 0:
            raise _unsupported_language_model("the scaling of the output depends on the token")
    x = graph.by_name.get(graph.outputs[0])
    if x is not None and x.op == Softmax.op:
        x = graph.by_name.get(x.inputs[0])
    if x is None or x.op != SumOfProducts.op or x.options["activation"] != "none":
        name = graph.outputs[0] if x is None else x.name
        raise _unsupported_language_model(
            f"{name!r} is the output; expected a Dense layer without activation"
        )
    if x.name in {i for y in graph.layers if y.op != Softmax.op for i in y.inputs}:
        raise _unsupported_language_model(f"{x.name!r} returns logits that other layers use")
    if axes[x.name] != 1:
        raise _unsupported_language_model(
            f"{x.name!r} returns logits along another axis than the last"
        )
    return x
