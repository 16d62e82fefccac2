"""Layers one after the other."""

from __future__ import annotations

from typing import Any

import tfe_bench.tf_encrypted as tfe
from tfe_bench.errors import UsageError
from tfe_bench.tf_encrypted.keras.engine.base_layer import Layer, NotOffered
from tfe_bench.tf_encrypted.keras.engine.input_layer import Input, InputLayer
from tfe_bench.tf_encrypted.keras.models.base_model import BaseModel


class Sequential(BaseModel):
    """Layers one after the other, the first of which says its input's shape."""

    def __init__(self, layers: Any = None, name: str | None = None) -> None:
        super().__init__(name=name)
        self._layers: list[Any] = []
        self.outputs: list[Any] = []
        for layer in layers or ():
            self.add(layer)

    @property
    def layers(self) -> list[Any]:
        """The layers."""
        return self._layers[:]

    def add(self, layer: Any) -> None:
        """One more layer.

        Raises:
            UsageError: no layer, or a first one without a shape.
        """
        if not isinstance(layer, Layer) or isinstance(layer, InputLayer):
            raise UsageError(f"add takes a layer. Received: {type(layer).__name__}.")
        if self.outputs:
            inputs = self.outputs[0]
        else:
            shape = layer._batch_input_shape
            if shape is None or None in shape:
                raise UsageError("The first layer wants batch_input_shape, the batch included.")
            inputs = Input(batch_shape=shape, name=f"{layer.name}_input")
        self.outputs = [layer(inputs)]
        self._layers.append(layer)
        self.weights.append(layer.weights)

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """The last layer's outputs."""
        if training is not None or mask is not None:
            raise NotOffered("Sequential is called with its inputs alone.")
        for layer in self._layers:
            inputs = layer(inputs)
        return inputs

    def backward(self, d_y: Any) -> None:
        """Gradients from the last layer to the first, and a step of each."""
        for layer in reversed(self._layers):
            gradients, d_y = layer.backward(d_y)
            self._optimizer.apply_gradients(layer.weights, gradients)

    def set_weights(self, weights: Any) -> None:
        """Other weights: those of Keras' get_weights, or of another model's `weights`.

        Raises:
            UsageError: others than the layers have.
        """
        rest = list(weights)
        nested = [list(w) for w in rest] if rest and isinstance(rest[0], list) else []
        if not nested:
            for layer in self._layers:
                nested.append(rest[: len(layer.weights)])
                rest = rest[len(layer.weights) :]
            if rest:
                raise UsageError(f"{len(weights)} weights are more than the model has.")
        for layer, layer_weights in zip(self._layers, nested, strict=True):
            if layer_weights or layer.weights:
                layer.set_weights(layer_weights)

    @classmethod
    def from_config(cls, config: Any) -> Sequential:
        """As model_from_config."""
        return model_from_config(config)


def model_from_config(config: Any) -> Sequential:
    """A model of the layers of a Keras configuration, with weights of its own.

    Raises:
        NotOffered: a layer that there is none of here.
    """
    model, shape = Sequential(), None
    for entry in config["layers"]:
        about = dict(entry["config"])
        if entry["class_name"] == "InputLayer":
            shape = about.get("batch_input_shape") or about.get("batch_shape")
            continue
        kind = getattr(tfe.keras.layers, entry["class_name"], None)
        if kind is None:
            raise NotOffered(
                f"tfe.keras has no layer {entry['class_name']}. tfe_bench.convert may have it."
            )
        if not model._layers and shape is not None:
            about.setdefault("batch_input_shape", shape)
        model.add(kind(**about))
    return model


def clone_model(model: Any) -> Sequential:
    """A private copy of a Sequential model of TensorFlow's Keras."""
    copy = model_from_config(model.get_config())
    copy.set_weights(model.get_weights())
    return copy
