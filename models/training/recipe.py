"""A recipe: all public properties of a training, in a header that the client sends to the workers.

It holds the layers with their shapes, the loss, the optimizer with its learning rates, the batch
and the fixed-point format. It contains no weight, no feature and no label.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from tfe_bench.cluster.schema import (
    Header,
    Mismatch,
    Rule,
    declare_field,
    integer_field,
    integer_rule,
    label_rule,
    list_rule,
    mapping_rule,
    object_rule,
)
from tfe_bench.errors import DataError, UsageError
from tfe_bench.models.convert import graph as graphs
from tfe_bench.models.convert import plaintext
from tfe_bench.models.convert.graph import Array, Graph, LayerSpec
from tfe_bench.models.layers.base.layer import PlacedLayer
from tfe_bench.models.layers.base.passes import TrainingPrecision
from tfe_bench.models.training import losses, optimizers, reader
from tfe_bench.models.training.losses.loss import Loss
from tfe_bench.models.training.nodes import build_training_nodes, check_trainable_layers
from tfe_bench.models.training.optimizers.optimizer import MOST_RAISED, Optimizer
from tfe_bench.models.training.penalties import PENALTY, WeightPenalty

FORMAT = 3
MOST_BATCH = 1 << 14
# Bound on a sample's weight.
MOST_WEIGHT = 256
MOST_EXPONENT = 24


DEFAULT = TrainingPrecision()


def _read_precision(value: object) -> TrainingPrecision:
    return TrainingPrecision(*list_rule(integer_rule(-(1 << 63), 1 << 63), 4, 4).read(value))


def _graph_to_header(graph: Graph) -> dict[str, Any]:
    # (the owner of the rows has scaled them; the factors stay with the owner)
    return {**graph.to_header(), "scaling": {}}


def _read_divisor(value: object) -> int:
    if type(value) is not int or value not in _DIVISORS:
        raise Mismatch(f"0, or a power of two up to {MOST_WEIGHT}", "number-out-of-range")
    return value


def _by_key_rule(element: Rule) -> Rule:
    """Return a rule for values by keys of weights, which are written in the order of the keys."""
    rule = mapping_rule(element, _MOST_KEYS)
    return replace(rule, write=lambda values: rule.write(dict(sorted(values.items()))))


_MOST_KEYS = 1 << 16
_DIVISORS = [0, *(1 << i for i in range(MOST_WEIGHT.bit_length()))]
_OPTIONS = mapping_rule(Rule(lambda value: value), 1 << 10)
_KEYS = list_rule(label_rule(1 << 12), 0, _MOST_KEYS)


@dataclass(frozen=True, eq=False)
class Recipe(Header, subject="A recipe", is_complete=True):
    """The settings of a model's training.

    Attributes:
        graph: graph of one input and one output, in training form: without the softmax or sigmoid
            that the loss folds in. Its weights are the initial ones where they are known.
        loss, optimizer: public.
        batch: samples of a step.
        order: keys ("layer/weight") in the order of Keras' model.weights.
        frozen: keys that do not change.
        seed: public seed of Dropout's masks.
        numbers: the fixed-point format.
        weighted: 0, or the divisor of the weights of samples: a power of two, at least the largest
            weight. Then every label has its sample's weight as one more private column.
        penalties: penalties of weights with a regularizer, by key.
        exponents: by key of weights, k where it is not 0: their mean gradients stay below 2^(3 + k)
            (magnitudes.plan_exponents).

    Raises:
        UsageError: layers cannot be trained, all of them listed, or settings do not fit.
    """

    graph: Graph = declare_field(object_rule(Graph, Graph.from_header, _graph_to_header))
    loss: Loss = declare_field(
        object_rule(Loss, lambda value: losses.from_header(_OPTIONS.read(value)))
    )
    optimizer: Optimizer = declare_field(
        object_rule(Optimizer, lambda value: optimizers.from_header(_OPTIONS.read(value)))
    )
    batch: int = integer_field(1, MOST_BATCH, default=128)
    order: tuple[str, ...] = declare_field(_KEYS, ())
    frozen: frozenset[str] = declare_field(
        object_rule(frozenset, lambda keys: frozenset(_KEYS.read(keys)), sorted), frozenset()
    )
    seed: int = integer_field(0, (1 << 63) - 1, default=0)
    numbers: TrainingPrecision = declare_field(
        object_rule(TrainingPrecision, _read_precision), DEFAULT
    )
    weighted: int = declare_field(Rule(_read_divisor), 0)
    penalties: Mapping[str, WeightPenalty] = declare_field(_by_key_rule(PENALTY), factory=dict)
    exponents: Mapping[str, int] = declare_field(
        _by_key_rule(integer_rule(-MOST_RAISED, MOST_EXPONENT)), factory=dict
    )
    nodes: tuple[PlacedLayer, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.check_fields()
        if len(self.graph.inputs) != 1 or len(self.graph.outputs) != 1:
            raise UsageError(
                "Training expects a model with one input and one output. Received: "
                f"{len(self.graph.inputs)} and {len(self.graph.outputs)}.",
                code="wrong-number-of-values",
                operation="model",
            )
        if self.numbers != DEFAULT:
            raise UsageError(
                f"This version trains with the fixed-point format {DEFAULT.to_header()}. Received: "
                f"{self.numbers.to_header()}.",
                code="invalid-fixed-point-format",
                operation="numbers",
            )
        check_trainable_layers(self.graph)
        if shared_weights := self.graph.shared_weight_keys():
            raise UsageError(
                f"Layers share weights, which cannot be trained: {sorted(shared_weights)}.",
                code="shared-weights",
                received=", ".join(sorted(shared_weights)),
            )
        keys = set(self.graph.weight_arrays())
        order = self.order or tuple(self.graph.weight_arrays())
        if set(order) != keys or len(order) != len(keys):
            raise UsageError(
                "Expected each array of weights once in a recipe's order.",
                code="unknown-weights",
                operation="order",
            )
        for name, listed in (
            ("frozen", self.frozen),
            ("undecayed", self.optimizer.undecayed),
            ("penalties", self.penalties),
            ("exponents", self.exponents),
        ):
            if unknown_keys := sorted(set(listed) - keys):
                raise UsageError(
                    f"Expected keys of weights as {name}. Received: {unknown_keys}.",
                    code="unknown-weights",
                    operation=name,
                )
        least = min(self.exponents.values(), default=0)
        if least < self.optimizer.least_exponent:
            raise UsageError(
                "Expected exponents of gradients as integers from "
                f"{self.optimizer.least_exponent} to {MOST_EXPONENT}. Received: {least}.",
                code="number-out-of-range",
                operation="exponents",
                received=least,
            )
        object.__setattr__(self, "order", order)
        object.__setattr__(self, "nodes", build_training_nodes(self.graph, self.numbers))
        if self.loss.is_categorical and self.output_shape[-1] < 2:
            raise UsageError(
                f"{self.loss.name} requires at least two classes. Received: an output of "
                f"{list(self.output_shape)}. Use binary_crossentropy for one output.",
                code="shape-mismatch",
                operation=self.loss.name,
                received=list(self.output_shape),
            )

    @classmethod
    def build(
        cls, model: Any, optimizer: Any = "sgd", loss: Any = None, batch: int = 128, seed: int = 0
    ) -> Recipe:
        """Build the recipe for a Keras model (or a .keras file, or a Graph in training form).

        Args:
            optimizer: an optimizer of keras.optimizers, or a name of optimizers.NAMES.
            loss: a Keras loss or its name. As in Keras, a name means that the model ends in the
                loss's softmax or sigmoid; from_logits=True means that it does not.
            seed: public seed of Dropout's masks.

        Raises:
            UsageError: names the parts that are not supported.
        """
        training_model = reader.read_training_model(model)
        chosen, logits = losses.read_keras_loss(loss)
        graph = _fold_input_scaling(training_model.graph)
        if misplaced := [x.name for x in graph.layers if x.name in training_model.private]:
            raise UsageError(
                "Training requires a Normalization to be the first layer. Received: "
                f"{misplaced} after or in parallel to others. Its statistics would become public.",
                code="misplaced-normalization",
                received=", ".join(misplaced),
            )
        graph = _remove_loss_activation(graph, chosen, logits)
        own_optimizer = optimizers.read_keras_optimizer(optimizer, training_model.variables)
        recipe = cls(
            graph, chosen, own_optimizer, batch, training_model.order, training_model.frozen, seed
        )
        return replace(recipe, penalties=training_model.penalties)

    # ---- derived properties

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of a sample's features."""
        return next(iter(self.graph.inputs.values()))

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of a sample's logits and of its target."""
        return self.graph.shapes[self.graph.outputs[0]]

    @property
    def label_shape(self) -> tuple[int, ...]:
        """Shape of a sample's shared label: its target, followed by its weight."""
        *lead, last = self.output_shape
        return (*lead, last + 1) if self.weighted else self.output_shape

    @property
    def gradient_share(self) -> Fraction:
        """Factor from a gradient summed over the batch to Keras' gradient."""
        loss, shape = self.loss, self.output_shape
        scale = loss.compute_scale(shape, self.batch) * max(1, self.weighted)
        return loss.compute_share(shape, self.batch) * scale

    def encode_features(self, x: Any) -> Array:
        """Encode features as their owner shares them, float64 with a batch, at numbers.activation.

        Raises:
            UsageError: the shape differs from the model's.
        """
        (array,) = plaintext.scale_owner_inputs(self.graph, x).values()
        return array

    def encode_labels(self, y: Any, label_name: str = "labels") -> Array:
        """Encode labels as their owner shares them, float64 with a batch, at numbers.gradient.

        Raises:
            UsageError, RangeError: as in Loss.encode_labels.
        """
        return self.loss.encode_labels(self.output_shape, y, label_name)

    # ---- serialization

    def to_header(self) -> dict[str, Any]:
        """Return the recipe as a JSON object, without the weights' values."""
        return {"format": FORMAT, **super().to_header()}

    def compute_digest(self) -> str:
        """Return the SHA-256 of the header, in hexadecimal."""
        return hashlib.sha256(json.dumps(self.to_header(), sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_header(cls, header: Any) -> Recipe:
        """Read the recipe of an untrusted client's header; its weights are zeros.

        Raises:
            DataError: the header is malformed.
            UsageError: as for the class.
        """
        version = header.get("format") if isinstance(header, Mapping) else None
        if version != FORMAT:
            raise DataError(
                f"This version reads recipes of format {FORMAT}. Received: {str(version)[:40]!r}.",
                code="unsupported-format",
                operation="recipe",
                received=version,
            )
        try:
            return super().from_header({k: v for k, v in header.items() if k != "format"})
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise DataError(  # (options of losses and optimizers are JSON of any form)
                f"Invalid recipe. Received: {type(error).__name__}: {error}.", code="invalid-recipe"
            ) from None

    def __repr__(self) -> str:
        return (
            f"Recipe({self.graph.name!r}, {self.loss.name}, {self.optimizer.kind}, "
            f"batch={self.batch}, {self.graph.weight_count} parameters)"
        )


def _fold_input_scaling(graph: Graph) -> Graph:
    """Move a rescaling directly after the input to the owner of the features."""
    if len(graph.inputs) != 1:
        return graph  # Recipe refuses it
    (name,) = graph.inputs
    uses = graph.find_users()[name]
    first = graph.layers[0]
    if uses != [first.name] or first.op != "rescale" or graph.outputs == (first.name,):
        return graph
    factor, offset = (np.asarray(first.options[k], np.float64) for k in ("scale", "offset"))
    old, more = graph.scaling.get(name, (1.0, 0.0))
    pair = (np.asarray(old) * factor, np.asarray(more) * factor + offset)
    layers = [_rename_layer_input(x, first.name, name) for x in graph.layers[1:]]
    scaling = {name: tuple(a.tolist() for a in pair)}
    return graphs.replace_layers(graph, layers, scaling=scaling)


def scales_model_inputs(model: Any) -> bool:
    """Return whether a Keras model starts with a Rescaling or Normalization.

    Raises:
        UsageError: layers cannot be trained.
    """
    graph = reader.read_training_model(model).graph
    return len(graph.inputs) == 1 and bool(_fold_input_scaling(graph).scaling)


def _rename_layer_input(layer: LayerSpec, old: str, new: str) -> LayerSpec:
    return replace(layer, inputs=tuple(new if i == old else i for i in layer.inputs))


def _remove_loss_activation(graph: Graph, loss: Loss, logits: bool) -> Graph:
    """Return the graph without the last softmax or sigmoid, if the loss requires it at the end.

    Raises:
        UsageError: it is present with from_logits=True, or missing without.
    """
    folded_activation = loss.folded_activation
    last = graph.by_name.get(graph.outputs[0])
    if not folded_activation or last is None:
        return graph
    ends_in_it = last.op == folded_activation and graph.find_users()[last.name] == [""]
    if last.op == "softmax" and last.options["axis"] != len(graph.shapes[last.name]):
        ends_in_it = False
    if not ends_in_it and not logits:
        other = ", or from_logits=True" if loss.takes_logits else ""
        raise UsageError(
            f"{loss.name} requires a model that ends in {folded_activation}{other}. Received: a "
            "last layer "
            f"{last.name!r} ({last.op}).",
            code="missing-activation",
            operation=loss.name,
            received=last.op,
        )
    if ends_in_it and logits:
        raise UsageError(
            f"{loss.name} with from_logits=True requires a model without {folded_activation} at "
            "its end. "
            f"Received: the last layer {last.name!r}. Remove one of both.",
            code="unexpected-activation",
            operation=loss.name,
            received=last.op,
        )
    if not ends_in_it:
        return graph
    layers = [x for x in graph.layers if x is not last]
    if not layers:
        raise UsageError("Expected a model with a trainable layer.", code="nothing-to-train")
    return graphs.replace_layers(graph, layers, outputs=(last.inputs[0],))


def anonymize_training_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's header without names: Keras renumbers layers for every model."""
    graph = recipe["graph"]
    known_names = [
        *(name for name, _ in graph["inputs"]),
        *(row["name"] for row in graph["layers"]),
    ]
    number = {name: f"#{i}" for i, name in enumerate(known_names)}

    def anonymize_key(text: str) -> str:
        layer, _, weight = text.rpartition("/")
        return f"{number[layer]}/{weight}"

    layers = [
        {**row, "name": number[row["name"]], "inputs": [number[i] for i in row["inputs"]]}
        for row in graph["layers"]
    ]
    shapes = [shape for _, shape in graph["inputs"]]
    outputs = [number[name] for name in graph["outputs"]]
    nameless = {k: v for k, v in graph.items() if k != "name"}
    optimizer = recipe["optimizer"]
    return {
        **recipe,
        "optimizer": {
            **optimizer,
            "undecayed": sorted(anonymize_key(k) for k in optimizer["undecayed"]),
        },
        "graph": {**nameless, "inputs": shapes, "outputs": outputs, "layers": layers},
        "order": [anonymize_key(k) for k in recipe["order"]],
        "frozen": sorted(anonymize_key(k) for k in recipe["frozen"]),
        **{
            name: dict(sorted((anonymize_key(k), v) for k, v in recipe[name].items()))
            for name in ("penalties", "exponents")
        },
    }
