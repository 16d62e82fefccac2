"""The base class of layers: a name, weights, and a call that builds them."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from typing import Any

import numpy as np

import tfe_bench.tf_encrypted as tfe
from tfe_bench.errors import UsageError
from tfe_bench.tf_encrypted.protocol.aby3 import ABY3Tensor

_numbers: dict[str, itertools.count[int]] = defaultdict(itertools.count)
_IGNORED = {"batch_size", "dtype", "weights"}


class NotOffered(UsageError, NotImplementedError):
    """A part of tf-encrypted's Keras that tfe_bench does not offer."""


def check_default(layer: str, **arguments: Any) -> None:
    """Reject arguments that would change the result.

    Raises:
        NotOffered: naming the first.
    """
    for name, value in arguments.items():
        if value:
            raise NotOffered(
                f"{layer} takes no {name}. tfe_bench.convert may: docs/keras_layers.md.",
                code="unsupported-argument",
                operation=name,
            )


class Layer:
    """A layer: `build` creates weights, `call` computes, `backward` returns gradients.

    Attributes:
        weights: private variables.
    """

    def __init__(self, trainable: bool = True, name: str | None = None, **kwargs: Any) -> None:
        options = dict(kwargs)
        self._batch_input_shape = options.pop("batch_input_shape", options.pop("input_shape", None))
        self.lazy_normalization = bool(options.pop("lazy_normalization", False))
        refused = [name for name in options if name.endswith(("_regularizer", "_constraint"))]
        check_default(type(self).__name__, **{name: options.pop(name) for name in refused})
        unknown = {name for name, value in options.items() if value} - _IGNORED
        if unknown:
            raise NotOffered(
                f"{type(self).__name__} takes no {', '.join(sorted(unknown))}.",
                code="unsupported-argument",
                operation=", ".join(sorted(unknown)),
            )
        self.trainable, self.built = trainable, False
        self.weights: list[Any] = []
        self._name = name or self._unique_name()

    def _unique_name(self) -> str:
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()
        number = next(_numbers[words])
        return f"{words}_{number}" if number else words

    @property
    def name(self) -> str:
        """The layer's name."""
        return self._name

    def build(self, input_shape: Any) -> None:
        """Create the weights for inputs of a shape."""
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Compute the outputs."""
        return inputs

    def backward(self, d_y: Any) -> Any:
        """Return the gradients of the weights, and of the inputs."""
        raise NotOffered(
            f"{type(self).__name__} has no gradient here.",
            code="unsupported-operation",
            operation="backward",
        )

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the outputs."""
        return input_shape

    def __call__(self, inputs: Any, *args: Any, **named: Any) -> Any:
        if not self.built:
            self.build(inputs.shape)
            self.built = True
        return self.call(inputs, *args, **named)

    def add_weight(self, variable: Any, make_private: bool = True) -> Any:
        """Add a weight; all weights are private."""
        weight = tfe.define_private_variable(variable)
        self.weights.append(weight)
        return weight

    def set_weights(self, weights: Any) -> None:
        """Set the weights: arrays of this process, or private tensors.

        Raises:
            UsageError: the number differs from the layer's.
        """
        new_weights = list(weights)
        if len(new_weights) != len(self.weights):
            raise UsageError(
                f"{self.name} has {len(self.weights)} weights. Received: {len(new_weights)}.",
                code="shape-mismatch",
                operation="weights",
                received=len(new_weights),
                expected=len(self.weights),
            )
        for variable, new in zip(self.weights, new_weights, strict=True):
            value = (
                new if isinstance(new, ABY3Tensor) else tfe.define_private_variable(np.asarray(new))
            )
            tfe.assign(variable, value.reshape(variable.shape.as_list()))
