"""Activations, called as functions."""

from __future__ import annotations

import functools
import re
from typing import Any

from tfe_bench.models.kinds.calls import Operation, Value, reads
from tfe_bench.models.kinds.reading import Reader

_NAMES = {"exp": "exponential", "re_lu": "relu"}


@reads(
    *("Relu", "Relu6", "LeakyRelu", "Sigmoid", "Tanh", "Silu", "Gelu", "Exp", "Softmax"),
    *("Celu", "Elu", "Glu", "HardSigmoid", "HardSilu", "HardShrink", "HardTanh", "LogSigmoid"),
    *("LogSoftmax", "Selu", "SoftShrink", "Softplus", "Softsign", "SparsePlus", "SparseSigmoid"),
    *("ReLU", "Sparsemax", "Squareplus", "TanhShrink", "Threshold"),
)
def activation(r: Reader, op: Operation, x: Value, **settings: Any) -> str:
    """The function of keras.activations by that name, which takes the same settings."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(op.own).__name__).lower()
    function = getattr(r.keras.activations, _NAMES.get(words, words))
    return r.activate(functools.partial(function, **settings), x.name, op.name)
