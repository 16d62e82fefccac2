"""Models of layers in sequence."""

from __future__ import annotations

from typing import Any

import tfe_bench.tf_encrypted as tfe
from tfe_bench.errors import UsageError
from tfe_bench.tf_encrypted.keras.engine.base_layer import Layer, NotOffered
from tfe_bench.tf_encrypted.keras.engine.input_layer import Input, InputLayer
from tfe_bench.tf_encrypted.keras.models.base_model import BaseModel


class Sequential(BaseModel):
    """Layers in sequence; the first one has the input's shape."""

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
        """Add a layer.

        Raises:
            UsageError: the argument is no layer, or the first layer has no shape.
        """
        if not isinstance(layer, Layer) or isinstance(layer, InputLayer):
            raise UsageError(
                f"add takes a layer. Received: {type(layer).__name__}.",
                code="wrong-type",
                operation="layer",
                received=type(layer).__name__,
            )
        if self.outputs:
            inputs = self.outputs[0]
        else:
            shape = layer._batch_input_shape
            if shape is None or None in shape:
                raise UsageError(
                    "The first layer takes batch_input_shape, the batch included.",
                    code="missing-argument",
                    operation="batch_input_shape",
                )
            inputs = Input(batch_shape=shape, name=f"{layer.name}_input")
        self.outputs = [layer(inputs)]
        self._layers.append(layer)
        self.weights.append(layer.weights)

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Return the last layer's outputs."""
        if training is not None or mask is not None:
            raise NotOffered(
                "Sequential is called with its inputs alone.",
                code="unsupported-argument",
                operation="training, mask",
            )
        for layer in self._layers:
            inputs = layer(inputs)
        return inputs

    def backward(self, d_y: Any) -> None:
        """Compute gradients from the last layer to the first, and apply each."""
        for layer in reversed(self._layers):
            gradients, d_y = layer.backward(d_y)
            self._optimizer.apply_gradients(layer.weights, gradients)

    def set_weights(self, weights: Any) -> None:
        """Set the weights: those of Keras' get_weights, or of another model's `weights`.

        Raises:
            UsageError: the number differs from the layers'.
        """
        rest = list(weights)
        nested = [list(w) for w in rest] if rest and isinstance(rest[0], list) else []
        if not nested:
            for layer in self._layers:
                nested.append(rest[: len(layer.weights)])
                rest = rest[len(layer.weights) :]
            if rest:
                raise UsageError(
                    f"{len(weights)} weights are more than the model has.",
                    code="shape-mismatch",
                    operation="weights",
                    received=len(weights),
                )
        for layer, layer_weights in zip(self._layers, nested, strict=True):
            if layer_weights or layer.weights:
                layer.set_weights(layer_weights)

    @classmethod
    def from_config(cls, config: Any) -> Sequential:
        """Return the model of a Keras configuration, as model_from_config."""
        return model_from_config(config)


def model_from_config(config: Any) -> Sequential:
    """Create a model of the layers of a Keras configuration, with new weights.

    Raises:
        NotOffered: a layer that tfe.keras does not have.
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
                f"tfe.keras has no layer {entry['class_name']}. tfe_bench.convert may have it.",
                code="unsupported-layer",
                operation=entry["class_name"],
            )
        if not model._layers and shape is not None:
            about.setdefault("batch_input_shape", shape)
        model.add(kind(**about))
    return model


def clone_model(model: Any) -> Sequential:
    """Return a private copy of a Sequential model of TensorFlow's Keras."""
    copy = model_from_config(model.get_config())
    copy.set_weights(model.get_weights())
    return copy
