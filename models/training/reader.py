"""A Keras model in training form: its layers, and the array of weights of each variable."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.models.convert import from_keras
from tfe_bench.models.convert.graph import Graph, replace_layers
from tfe_bench.models.layers.base.reading import UnsupportedLayer
from tfe_bench.models.training import penalties
from tfe_bench.models.training.penalties import WeightPenalty

# Options that change a layer's gradient or its weights outside of the optimizer.
_PARTS = ("kernel", "bias", "depthwise", "pointwise", "gamma", "beta")
_EXTRAS = ("activity_regularizer", *(f"{part}_constraint" for part in _PARTS))


@dataclass(frozen=True, eq=False)
class TrainingModel:
    """A model in training form.

    Attributes:
        graph: the graph with the model's weights.
        order: keys in the order of model.weights.
        frozen: keys of weights that are not trained.
        variables: Keras' weights by key, none without a Keras model.
        penalties: penalties of weights with a regularizer, by key.
        private: layers "rescale" whose numbers are statistics of rows (a Normalization's).
    """

    graph: Graph
    order: tuple[str, ...] = ()
    frozen: frozenset[str] = frozenset()
    private: frozenset[str] = frozenset()
    penalties: Mapping[str, WeightPenalty] = field(default_factory=dict)
    variables: Mapping[str, Any] | None = None


class TrainingReader(from_keras.KerasReader):
    """Reads layers in their training form, and records their variables."""

    training = True

    def __init__(self, keras: Any) -> None:
        super().__init__(keras)
        self.keys: dict[int, str] = {}
        self.untrained: set[str] = set()
        self.penalties: dict[str, WeightPenalty] = {}

    def check_layer(self, layer: Any) -> None:
        """Refuse options that change the layer's gradient."""
        used = [name for name in _EXTRAS if getattr(layer, name, None) is not None]
        if used:
            raise UnsupportedLayer(f"it has {', '.join(used)}, which training does not support")

    def add_layer(
        self, name: str, op: str, inputs: list[str], weights: dict[str, Any] | None = None, **o: Any
    ) -> str:
        for weight_name, variable in (weights or {}).items():
            if not hasattr(variable, "trainable"):
                raise UnsupportedLayer("its weights are computed from others, as with lora_rank")
            if id(variable) in self.keys:
                raise UnsupportedLayer("it is used twice, which training does not support")
            self.keys[id(variable)] = f"{name}/{weight_name}"
            if (regularizer := getattr(variable, "regularizer", None)) is not None:
                self.penalties[f"{name}/{weight_name}"] = penalties.read_keras_regularizer(
                    regularizer
                )
            if not variable.trainable:
                self.untrained.add(f"{name}/{weight_name}")
        return super().add_layer(name, op, inputs, weights, **o)


def list_weight_variables(model: Any) -> list[Any]:
    """List the weights of a Keras model that have a key, in the order of TrainingModel.order.

    A Normalization's statistics have no key: they belong to the owner of the rows, who scales by
    them.
    """
    import keras

    normalizations = [x for x in model._flatten_layers() if type(x) is keras.layers.Normalization]
    skipped_ids = {id(v) for layer in normalizations for v in layer.weights}
    return [v for v in model.weights if id(v) not in skipped_ids]


def copy_keras_layer(layer: Any) -> Any:
    """Copy a Keras layer, whose activation may be a functools.partial.

    Raises:
        UsageError: Keras cannot copy it.
    """
    import keras

    function = getattr(layer, "activation", None)
    partial = isinstance(function, functools.partial)
    try:
        if partial:  # Keras cannot put it into a config
            layer.activation = keras.activations.linear
        copied = layer.__class__.from_config(layer.get_config())
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"Keras cannot copy layer {layer.name!r}, which contains a function: "
            f"{str(error)[:120]}. Move the function to an Activation of the model itself.",
            code="unsupported-layer",
            operation=layer.name,
        ) from None
    finally:
        if partial:
            layer.activation = function
    if partial:
        copied.activation = function
    return copied


def copy_keras_model(
    model: Any, weights: Any = None, clone_function: Callable[[Any], Any] = copy_keras_layer
) -> Any:
    """Copy a Keras model, with its weights or others.

    Raises:
        UsageError: Keras cannot copy one of its layers.
    """
    import keras

    copied_model = keras.models.clone_model(model, clone_function=clone_function)
    copied_model.set_weights(model.get_weights() if weights is None else weights)
    for layer in copied_model._flatten_layers():
        if type(layer) is keras.layers.Normalization:
            layer.finalize_state()  # Keras computes with a copy of its weights
    return copied_model


def read_training_model(model: Any) -> TrainingModel:
    """Read a Keras model, a .keras file or a Graph in training form.

    Raises:
        UsageError: lists all layers that are not supported.
    """
    if isinstance(model, Graph):
        # (layers that share an array are trained separately here)
        layers = [
            replace(x, weights={k: w.copy() for k, w in x.weights.items()}) for x in model.layers
        ]
        return TrainingModel(replace_layers(model, layers))
    if isinstance(model, (str, Path)):
        model = from_keras.load_model(model)
    readers: list[TrainingReader] = []

    def make_reader(keras: Any) -> TrainingReader:
        readers.append(TrainingReader(keras))
        return readers[-1]

    graph = from_keras.from_keras(model, make_reader)
    (reader,) = readers
    named = {reader.keys[id(v)]: v for v in list_weight_variables(model)}
    untrained, private = frozenset(reader.untrained), frozenset(reader.private)
    return TrainingModel(graph, tuple(named), untrained, private, reader.penalties, named)
