"""Activations, called as functions."""

from __future__ import annotations

import re

from tfe_bench.models.kinds.calls import Operation, Value, reads
from tfe_bench.models.kinds.reading import Reader, axis_of

_NAMES = {"exp": "exponential"}


@reads(
    *("Relu", "Relu6", "Sigmoid", "Tanh", "Silu", "Exp"),
    *("HardSigmoid", "HardSilu", "HardTanh", "LogSigmoid", "Selu", "Softplus", "Softsign"),
    *("SparsePlus", "SparseSigmoid", "TanhShrink"),
)
def activation(r: Reader, op: Operation, x: Value) -> str:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(op.own).__name__).lower()
    function = getattr(r.keras.activations, _NAMES.get(words, words))
    return r.activate(function, x.name, op.name)


@reads("Softmax")
def softmax(r: Reader, op: Operation, x: Value, axis: int) -> str:
    return r.emit(op.name, "softmax", [x.name], None, axis=axis_of(axis, len(x.shape) + 1))


@reads("LeakyRelu")
def leaky_relu(r: Reader, op: Operation, x: Value, negative_slope: float) -> str:
    return r.emit(op.name, "leaky_relu", [x.name], None, alpha=float(negative_slope))
