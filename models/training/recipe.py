"""A recipe: all that is public about a training, in a header that the three workers are sent.

The layers with their shapes, the loss, the optimizer with its learning rates, the batch and the
fixed point.  No weight, no feature and no label is in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from tfe_bench.errors import DataError, UsageError
from tfe_bench.models import graph as graphs
from tfe_bench.models import plaintext
from tfe_bench.models.graph import Array, Graph, LayerSpec
from tfe_bench.models.kinds.layer import PlacedLayer
from tfe_bench.models.kinds.passes import Precision
from tfe_bench.models.training import losses, optimizers, penalties, reader
from tfe_bench.models.training.losses.loss import Loss
from tfe_bench.models.training.nodes import build_nodes, check_trainable
from tfe_bench.models.training.optimizers.optimizer import Optimizer
from tfe_bench.models.training.penalties import Penalty

FORMAT = 3
MOST_BATCH = 1 << 14
# Of a sample.
MOST_WEIGHT = 256
MOST_EXPONENT = 24


DEFAULT = Precision()


@dataclass(frozen=True, eq=False)
class Recipe:
    """How a model is trained.

    Attributes:
        graph: of one input and one output, in training form: without the softmax or sigmoid that
            the loss takes in.  Its weights are the initial ones where they are known.
        loss, optimizer: public.
        batch: samples of a step.
        order: keys ("layer/weight") in the order of Keras' model.weights.
        frozen: keys that do not change.
        seed: of Dropout's masks: public.
        numbers: the fixed point.
        weighted: 0, or what the weights of samples are divided by: a power of two, at least the
            largest of them.  Every label then brings its sample's, as one more private column.
        penalties: of weights with a regularizer, by key.
        exponents: by key of weights, k where it is not 0: their mean gradients stay below
            2^(3 + k) (magnitudes.planned).

    Raises:
        UsageError: layers that cannot be trained, all of them listed, or settings that do not fit.
    """

    graph: Graph
    loss: Loss
    optimizer: Optimizer
    batch: int = 128
    order: tuple[str, ...] = ()
    frozen: frozenset[str] = frozenset()
    seed: int = 0
    numbers: Precision = DEFAULT
    weighted: int = 0
    penalties: Mapping[str, Penalty] = field(default_factory=dict)
    exponents: Mapping[str, int] = field(default_factory=dict)
    nodes: tuple[PlacedLayer, ...] = field(init=False)

    def __post_init__(self) -> None:
        if len(self.graph.inputs) != 1 or len(self.graph.outputs) != 1:
            raise UsageError(
                "A model that is trained has one input and one output. Received: "
                f"{len(self.graph.inputs)} and {len(self.graph.outputs)}."
            )
        if type(self.batch) is not int or not 1 <= self.batch <= MOST_BATCH:
            raise UsageError(f"A batch is 1 to {MOST_BATCH} samples. Received: {self.batch!r}.")
        if type(self.seed) is not int or not 0 <= self.seed < 1 << 63:
            raise UsageError(f"A seed is an integer from 0 to 2^63 - 1. Received: {self.seed!r}.")
        if self.numbers != DEFAULT:
            raise UsageError(
                f"This version trains with the fixed point {DEFAULT.to_header()}. Received: "
                f"{self.numbers.to_header()}."
            )
        powers = [0, *(1 << i for i in range(MOST_WEIGHT.bit_length()))]
        if type(self.weighted) is not int or self.weighted not in powers:
            raise UsageError(
                f"weighted is 0, or a power of two up to {MOST_WEIGHT}. Received: "
                f"{self.weighted!r}."
            )
        check_trainable(self.graph)
        if shared_weights := self.graph.shared_weight_keys():
            raise UsageError(
                f"Layers share weights, which cannot be trained: {sorted(shared_weights)}."
            )
        keys = set(self.graph.weight_arrays())
        order = self.order or tuple(self.graph.weight_arrays())
        if set(order) != keys or len(order) != len(keys):
            raise UsageError("A recipe's order names each array of weights once.")
        if not self.frozen <= keys:
            raise UsageError(f"There are no weights {sorted(self.frozen - keys)} to freeze.")
        if unknown_keys := sorted(set(self.optimizer.undecayed) - keys):
            raise UsageError(f"There are no weights {unknown_keys} to exclude from decay.")
        object.__setattr__(self, "penalties", penalties.from_header(self.penalties, keys))
        _check_exponents(self.exponents, keys, self.optimizer.least_exponent)
        object.__setattr__(self, "order", order)
        object.__setattr__(self, "nodes", build_nodes(self.graph, self.numbers))
        if self.loss.is_categorical and self.output_shape[-1] < 2:
            raise UsageError(
                f"{self.loss.name} wants two classes at least. Received: an output of "
                f"{list(self.output_shape)}. One output goes with binary_crossentropy."
            )

    @classmethod
    def build(
        cls, model: Any, optimizer: Any = "sgd", loss: Any = None, batch: int = 128, seed: int = 0
    ) -> Recipe:
        """The recipe for a Keras model (or a .keras file, or a Graph with training's layers).

        Args:
            optimizer: of keras.optimizers, or a name of registry.NAMES.
            loss: a Keras loss or its name.  As in Keras, a name means that the model ends in the
                loss's softmax or sigmoid; from_logits=True means that it does not.
            seed: of Dropout's masks: public.

        Raises:
            UsageError: what is not supported, by name.
        """
        training_model = reader.read_model(model)
        chosen, logits = losses.read_keras_loss(loss)
        graph = _fold_input_scaling(training_model.graph)
        if misplaced := [x.name for x in graph.layers if x.name in training_model.private]:
            raise UsageError(
                f"A Normalization comes first in a model that is trained. Received: {misplaced} behind "
                "others, or beside them. Its statistics would become public."
            )
        graph = _remove_folded_activation(graph, chosen, logits)
        own_optimizer = optimizers.read_keras_optimizer(optimizer, training_model.variables)
        recipe = cls(
            graph, chosen, own_optimizer, batch, training_model.order, training_model.frozen, seed
        )
        return replace(recipe, penalties=training_model.penalties)

    # ---- what it says

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of a sample's features."""
        return next(iter(self.graph.inputs.values()))

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Of a sample's logits and of its target."""
        return self.graph.shapes[self.graph.outputs[0]]

    @property
    def label_shape(self) -> tuple[int, ...]:
        """Of what is shared of a sample to learn: its target, and its weight behind it."""
        *lead, last = self.output_shape
        return (*lead, last + 1) if self.weighted else self.output_shape

    @property
    def gradient_share(self) -> Fraction:
        """What Keras' gradient is of one that is summed over the batch."""
        loss, shape = self.loss, self.output_shape
        scale = loss.compute_scale(shape, self.batch) * max(1, self.weighted)
        return loss.compute_share(shape, self.batch) * scale

    def encode_features(self, x: Any) -> Array:
        """Features as their owner shares them, float64 with a batch, at numbers.activation.

        Raises:
            UsageError: another shape than the model's.
        """
        (array,) = plaintext.scale_owner_inputs(self.graph, x).values()
        return array

    def encode_labels(self, y: Any, label_name: str = "labels") -> Array:
        """Labels as their owner shares them, float64 with a batch, at numbers.gradient.

        Raises:
            UsageError, RangeError: as Loss.targets.
        """
        return self.loss.encode_labels(self.output_shape, y, label_name)

    # ---- as data

    def to_header(self) -> dict[str, Any]:
        """As JSON holds it, without the weights' values."""
        return {
            "format": FORMAT,
            # (the owner of the rows has scaled them: by what, nobody else needs to know)
            "graph": {**self.graph.header(), "scaling": {}},
            "loss": self.loss.to_header(),
            "optimizer": self.optimizer.to_header(),
            "batch": self.batch,
            "order": list(self.order),
            "frozen": sorted(self.frozen),
            "seed": self.seed,
            "numbers": self.numbers.to_header(),
            "weighted": self.weighted,
            "penalties": {key: list(penalty) for key, penalty in sorted(self.penalties.items())},
            "exponents": dict(sorted(self.exponents.items())),
        }

    def compute_digest(self) -> str:
        """SHA-256 of the header, in hexadecimal."""
        return hashlib.sha256(json.dumps(self.to_header(), sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_header(cls, header: Any) -> Recipe:
        """The recipe of a header, which may come from a stranger; its weights are zeros.

        Raises:
            DataError: this is no recipe.
            UsageError: as of the class.
        """
        try:
            if header["format"] != FORMAT:
                raise DataError(
                    f"This recipe is of format {header['format']!r}; this version reads {FORMAT}."
                )
            numbers = header["numbers"]
            if len(numbers) != 4 or not all(type(n) is int for n in numbers):
                raise DataError("A recipe's fixed point is four integers.")
            return cls(
                Graph.from_header(header["graph"]),
                losses.from_header(header["loss"]),
                optimizers.from_header(header["optimizer"]),
                header["batch"],
                tuple(str(k) for k in header["order"]),
                frozenset(str(k) for k in header["frozen"]),
                header["seed"],
                Precision(*numbers),
                header["weighted"],
                header["penalties"],
                header["exponents"],
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise DataError(
                f"This is no recipe. Received: {type(error).__name__}: {error}."
            ) from None

    def __repr__(self) -> str:
        return (
            f"Recipe({self.graph.name!r}, {self.loss.name}, {self.optimizer.kind}, "
            f"batch={self.batch}, {self.graph.weight_count} parameters)"
        )


def _check_exponents(exponents: Any, keys: set[str], min_exponent: int) -> None:
    """Refuses exponents of gradients, which may come from a stranger.

    Raises:
        UsageError: they are none.
    """
    if not isinstance(exponents, Mapping) or not set(exponents) <= keys:
        raise UsageError("Exponents of gradients go with arrays of weights, by their keys.")
    for k in exponents.values():
        if type(k) is not int or not min_exponent <= k <= MOST_EXPONENT:
            raise UsageError(
                f"An exponent of gradients is an integer from {min_exponent} to {MOST_EXPONENT}. "
                f"Received: {k!r}."
            )


def _fold_input_scaling(graph: Graph) -> Graph:
    """Rescaling right behind the input is left to the owner of the features."""
    if len(graph.inputs) != 1:
        return graph  # which is refused
    (name,) = graph.inputs
    uses = graph.find_users()[name]
    first = graph.layers[0]
    if uses != [first.name] or first.op != "rescale" or graph.outputs == (first.name,):
        return graph
    factor, offset = (np.asarray(first.options[k], np.float64) for k in ("scale", "offset"))
    old, more = graph.scaling.get(name, (1.0, 0.0))
    pair = (np.asarray(old) * factor, np.asarray(more) * factor + offset)
    layers = [_rename_input(x, first.name, name) for x in graph.layers[1:]]
    scaling = {name: tuple(a.tolist() for a in pair)}
    return graphs.replace_layers(graph, layers, scaling=scaling)


def scales_inputs(model: Any) -> bool:
    """Whether a Keras model begins with a Rescaling or Normalization.

    Raises:
        UsageError: layers that cannot be trained.
    """
    graph = reader.read_model(model).graph
    return len(graph.inputs) == 1 and bool(_fold_input_scaling(graph).scaling)


def _rename_input(layer: LayerSpec, old: str, new: str) -> LayerSpec:
    return replace(layer, inputs=tuple(new if i == old else i for i in layer.inputs))


def _remove_folded_activation(graph: Graph, loss: Loss, logits: bool) -> Graph:
    """The graph without the last softmax or sigmoid, if the loss wants it there.

    Raises:
        UsageError: it is there with from_logits=True, or missing without.
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
            f"{loss.name} wants a model that ends in {folded_activation}{other}. Received: a last layer "
            f"{last.name!r} ({last.op})."
        )
    if ends_in_it and logits:
        raise UsageError(
            f"{loss.name} with from_logits=True wants a model without {folded_activation} at its end. "
            f"Received: the last layer {last.name!r}. Leave out one of both."
        )
    if not ends_in_it:
        return graph
    layers = [x for x in graph.layers if x is not last]
    if not layers:
        raise UsageError("The model has nothing to train.")
    return graphs.replace_layers(graph, layers, outputs=(last.inputs[0],))
