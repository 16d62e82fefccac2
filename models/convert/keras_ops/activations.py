"""Activations, called as functions."""

from __future__ import annotations

import functools
import re
from typing import Any

from tfe_bench.models.layers import base as L

_NAMES = {"exp": "exponential", "re_lu": "relu"}


@L.register_reader(
    *("Relu", "Relu6", "LeakyRelu", "Sigmoid", "Tanh", "Silu", "Gelu", "Exp", "Softmax"),
    *("Celu", "Elu", "Glu", "HardSigmoid", "HardSilu", "HardShrink", "HardTanh", "LogSigmoid"),
    *("LogSoftmax", "Selu", "SoftShrink", "Softplus", "Softsign", "SparsePlus", "SparseSigmoid"),
    *("ReLU", "Sparsemax", "Squareplus", "TanhShrink", "Threshold"),
)
def convert_keras_activation(
    r: L.Reader, op: L.KerasOperation, x: L.TensorValue, **settings: Any
) -> str:
    """Convert to the keras.activations function of that name, which has the same settings."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(op.keras_operation).__name__).lower()
    function = getattr(r.keras.activations, _NAMES.get(words, words))
    return r.add_activation(functools.partial(function, **settings), x.name, op.name)
