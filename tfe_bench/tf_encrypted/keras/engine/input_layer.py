"""The input of a model."""

from __future__ import annotations

from typing import Any

import numpy as np

import tfe_bench.tf_encrypted as tfe
from tfe_bench.tf_encrypted.keras.engine.base_layer import Layer, NotOffered


class InputLayer(Layer):
    """Private zeros of a shape, on which a model is built."""

    def __init__(
        self,
        input_shape: Any = None,
        batch_size: int | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        full_shape = kwargs.pop("batch_input_shape", None)
        if full_shape is not None:
            batch_size, input_shape = full_shape[0], tuple(full_shape[1:])
        if batch_size is None or input_shape is None or kwargs:
            raise NotOffered(
                f"Input takes a shape and a batch size. Received: {kwargs or None}.",
                code="unsupported-argument",
                operation="Input",
            )
        super().__init__(name=name)
        sizes = (input_shape,) if isinstance(input_shape, int) else tuple(input_shape)
        self._batch_input_shape = (batch_size, *sizes)
        self.input = tfe.define_private_variable(np.zeros(self._batch_input_shape))


def Input(
    shape: Any = None,
    batch_size: int | None = None,
    name: str | None = None,
    batch_shape: Any = None,
    **kwargs: Any,
) -> Any:
    """Return private zeros of a shape."""
    if batch_shape is not None:
        batch_size, shape = batch_shape[0], tuple(batch_shape[1:])
    return InputLayer(shape, batch_size, name, **kwargs).input
