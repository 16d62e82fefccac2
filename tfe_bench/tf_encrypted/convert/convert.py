"""Conversion of Keras models: Sequential ones can be trained, others only predict."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tfe_bench.errors import TfeBenchError, UsageError
from tfe_bench.tf_encrypted.config import get_config
from tfe_bench.tf_encrypted.keras.engine.base_layer import NotOffered
from tfe_bench.tf_encrypted.keras.models import BaseModel, Sequential, clone_model
from tfe_bench.tf_encrypted.protocol.aby3 import ABY3PrivateTensor
from tfe_bench.tf_encrypted.protocol.protocol import set_protocol

# A model is first planned for inputs of about 1, then again for larger ones: for images of 0 to
# 255 without normalization, and beyond.
_MAGNITUDES = (1, 64, 4096)


class Converted(BaseModel):
    """A model of tfe_bench.convert: it predicts private inputs of this process.

    Args:
        planned: returns a private model for inputs of a magnitude, and the largest input that it
            accepts.
    """

    def __init__(
        self, planned: Callable[[int], tuple[Any, float]], name: str | None = None
    ) -> None:
        super().__init__(name=name)
        self._planned, self._larger = planned, list(_MAGNITUDES[1:])
        self.private, self._largest_input = planned(_MAGNITUDES[0])

    def predict(self, x: Any, batch_size: int | None = 32, reveal: bool = True) -> Any:
        """Return the outputs, revealed to this process.

        Raises:
            UsageError: a computed tensor, or outputs that are to stay private.
        """
        if not reveal:
            raise NotOffered(
                "Outputs of a converted model are revealed. Received: reveal=False.",
                code="unsupported-argument",
                operation="reveal",
                received=False,
            )
        size = batch_size or 32
        parts = x if isinstance(x, Iterator) else [x]
        batch_outputs = []
        for part in parts:
            values = _private_input_values(part)
            for start in range(0, len(values[0]), size):
                batch_outputs.append(
                    self._predict_batch([value[start : start + size] for value in values])
                )
        if isinstance(batch_outputs[0], list):
            return [np.concatenate(outputs) for outputs in zip(*batch_outputs, strict=True)]
        return np.concatenate(batch_outputs)

    def _predict_batch(self, values: list[Any]) -> Any:
        largest = max(float(np.abs(value).max(initial=0)) for value in values)
        while largest > self._largest_input and self._larger:
            self.private, self._largest_input = self._planned(self._larger.pop(0))
        images = values if len(values) > 1 else values[0]
        return get_config().cluster.predict(self.private, images, batch=len(values[0]))

    def call(self, inputs: Any) -> Any:
        """Refuse: a converted model runs as a whole."""
        raise NotOffered(
            "A converted model is not called; write model.predict(x).",
            code="unsupported-operation",
            operation="call",
        )

    def compile(self, optimizer: Any, loss: Any) -> None:
        """Refuse: tfe_bench.fit trains any Keras model."""
        raise NotOffered(
            "This model is not Sequential. tfe_bench.fit trains it: docs/training.md.",
            code="unsupported-operation",
            operation="compile",
        )


def _private_input_values(x: Any) -> list[Any]:
    """Return the values that this process gave as private inputs."""
    several = x if isinstance(x, list) else [x]
    values = [tensor.own if isinstance(tensor, ABY3PrivateTensor) else None for tensor in several]
    known_values = [value for value in values if value is not None]
    if len(known_values) < len(values):
        raise NotOffered(
            "A converted model takes private inputs of this process. Received: a computed tensor. "
            "Sequential models of tfe.keras take any.",
            code="unsupported-argument",
            operation="x",
            received="a computed tensor",
        )
    return known_values


class Converter:
    """Converts models to private ones.

    Args:
        config, protocol: used instead of the current ones.
    """

    def __init__(self, config: Any = None, protocol: Any = None) -> None:
        self.config = config or get_config()
        if protocol is not None:
            set_protocol(protocol)

    def convert(self, model: Any, input_shapes: Any, model_provider: Any = None) -> Any:
        """Convert a model.

        Args:
            model: a Keras model, of Keras 3 or of Keras 2 (tf_keras); a Sequential one of layers
                of tfe.keras can be trained here.
            input_shapes: with the batch.
            model_provider: a player's name; the weights are this process's.

        Raises:
            NotOffered: an ONNX model or file.
            UsageError: tfe_bench.convert rejects the model and names the layer.
        """
        if isinstance(model, (str, Path)) or not hasattr(model, "get_config"):
            raise NotOffered(
                "The converter takes Keras models. Received: an ONNX model or a path. Load a Keras "
                "model first: keras.models.load_model(path).",
                code="unsupported-type",
                operation="model",
                received=type(model).__name__,
            )
        if type(model).__name__ == "Sequential":
            try:
                return clone_model(model)
            except NotOffered:
                pass  # it may be converted as a whole
        shapes = input_shapes if isinstance(input_shapes[0], (list, tuple)) else [input_shapes]
        rng = np.random.default_rng(0)
        samples = [rng.normal(size=[min(8, int(s[0])), *map(int, s[1:])]) for s in shapes]
        keras_model = _convert_to_keras_3(model)

        def plan_model(magnitude: int) -> tuple[Any, float]:
            from tfe_bench.models.convert.calibration import MARGIN
            from tfe_bench.models.inference.private import convert

            scaled_samples = [magnitude * array for array in samples]
            largest_input = MARGIN * min(float(np.abs(array).max()) for array in scaled_samples)
            return convert(
                keras_model, scaled_samples if len(scaled_samples) > 1 else scaled_samples[0]
            ), largest_input

        return Converted(plan_model, model.name)


def _convert_to_keras_3(model: Any) -> Any:
    """Convert a model of Keras 2 to Keras 3 by a file that both can read."""
    import keras

    if isinstance(model, keras.Model):
        return model
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.h5"
        try:
            model.save(file)
            return keras.models.load_model(file, compile=False)
        except TfeBenchError:
            raise
        except Exception as error:
            raise UsageError(
                f"Keras 3 cannot load this Keras 2 model: {str(error)[:200]}. Create it with "
                "keras, not tf_keras.",
                code="unsupported-type",
                operation="model",
            ) from error


__all__ = ["Converted", "Converter", "Sequential"]
