"""Activations by name, and their gradients by what they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tfe_bench.tf_encrypted as tfe
from tfe_bench.tf_encrypted.keras.engine.base_layer import NotOffered


def relu(x: Any) -> Any:
    """max(x, 0)."""
    return tfe.relu(x)


def sigmoid(x: Any) -> Any:
    """The logistic function itself, not lines that are like it."""
    return tfe.sigmoid(x, approx_type="exact")


def tanh(x: Any) -> Any:
    """The hyperbolic tangent."""
    return tfe.tanh(x)


def linear(x: Any) -> Any:
    """x."""
    return x


def softmax(x: Any) -> Any:
    """Along the last axis."""
    return tfe.softmax(x)


_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    f.__name__: f for f in (relu, sigmoid, tanh, linear, softmax)
}
# Of what an activation gave, and the gradient behind it.
_GRADIENTS: dict[str, Callable[[Any, Any], Any]] = {
    "relu": lambda y, d_y: tfe.select(y <= 0, d_y, 0),
    "sigmoid": lambda y, d_y: d_y * (y * (1 - y)),
    "tanh": lambda y, d_y: d_y * (1 - y * y),
    "linear": lambda y, d_y: d_y,
}


def get(identifier: Any) -> Callable[[Any], Any]:
    """An activation by name, or a function as it is.

    Raises:
        NotOffered: there is none of the name.
    """
    if identifier is None:
        return linear
    if callable(identifier):
        activation: Callable[[Any], Any] = identifier
        return activation
    if identifier not in _ACTIVATIONS:
        raise NotOffered(
            f"Activations are {', '.join(_ACTIVATIONS)}. Received: {identifier!r}. "
            "tfe_bench.convert has more."
        )
    return _ACTIVATIONS[identifier]


def get_deriv(identifier: Any) -> Callable[[Any, Any], Any]:
    """The gradient of an activation by name.

    Raises:
        NotOffered: it has none here.
    """
    name = identifier or "linear"
    if not isinstance(name, str) or name not in _GRADIENTS:
        raise NotOffered(f"Gradients are of {', '.join(_GRADIENTS)}. Received: {identifier!r}.")
    return _GRADIENTS[name]
