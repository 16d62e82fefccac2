"""Activations by name, and their gradients as functions of their outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tfe_bench.tf_encrypted as tfe
from tfe_bench.tf_encrypted.keras.engine.base_layer import NotOffered


def relu(x: Any) -> Any:
    """Return max(x, 0)."""
    return tfe.relu(x)


def sigmoid(x: Any) -> Any:
    """Return the exact logistic function, not a piecewise approximation."""
    return tfe.sigmoid(x, approx_type="exact")


def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent."""
    return tfe.tanh(x)


def linear(x: Any) -> Any:
    """Return x."""
    return x


def softmax(x: Any) -> Any:
    """Return the softmax along the last axis."""
    return tfe.softmax(x)


_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    f.__name__: f for f in (relu, sigmoid, tanh, linear, softmax)
}
# Gradients by an activation's output and the gradient of that output.
_GRADIENTS: dict[str, Callable[[Any, Any], Any]] = {
    "relu": lambda y, d_y: tfe.select(y <= 0, d_y, 0),
    "sigmoid": lambda y, d_y: d_y * (y * (1 - y)),
    "tanh": lambda y, d_y: d_y * (1 - y * y),
    "linear": lambda y, d_y: d_y,
}


def get(identifier: Any) -> Callable[[Any], Any]:
    """Return an activation by name; return a function unchanged.

    Raises:
        NotOffered: the name is unknown.
    """
    if identifier is None:
        return linear
    if callable(identifier):
        activation: Callable[[Any], Any] = identifier
        return activation
    if identifier not in _ACTIVATIONS:
        raise NotOffered(
            f"Activations are {', '.join(_ACTIVATIONS)}. Received: {identifier!r}. "
            "tfe_bench.convert has more.",
            code="unsupported-argument",
            operation="activation",
            received=identifier,
        )
    return _ACTIVATIONS[identifier]


def get_deriv(identifier: Any) -> Callable[[Any, Any], Any]:
    """Return the gradient of an activation by name.

    Raises:
        NotOffered: it has no gradient here.
    """
    name = identifier or "linear"
    if not isinstance(name, str) or name not in _GRADIENTS:
        raise NotOffered(
            f"Gradients are of {', '.join(_GRADIENTS)}. Received: {identifier!r}.",
            code="unsupported-argument",
            operation="activation",
            received=identifier,
        )
    return _GRADIENTS[name]
