"""Optimizers: their state per weight, and a step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import tfe_bench.tf_encrypted as tfe
from tfe_bench.errors import UsageError
from tfe_bench.tf_encrypted.protocol.protocol import require_protocol

# Gradients are multiplied by a gain before they are squared, which preserves small ones; rates are
# encoded with additional bits, which a truncation removes, to preserve their digits.
_GAIN, _RATE_BITS = 32, 8


class Optimizer:
    """An optimizer with state tensors in the shape of each weight.

    Attributes:
        kept: names of the state tensors.
    """

    kept: tuple[str, ...] = ()

    def __init__(self, learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self._kept: dict[int, dict[str, Any]] = {}
        self._steps: dict[int, int] = {}

    def compile(self, weights: Any) -> None:
        """Create zero state for the weights of all layers."""
        for of_layer in weights:
            for w in of_layer:
                zeros = np.zeros(w.shape.as_list())
                self._kept[id(w)] = {k: tfe.define_private_variable(zeros) for k in self.kept}
                self._steps[id(w)] = 0

    def apply_gradients(self, weights: Any, gradients: Any) -> None:
        """Apply one step to a layer's weights.

        Raises:
            UsageError: the optimizer was not compiled with the weights.
        """
        if not gradients:
            return
        for w, g in zip(weights, gradients, strict=True):
            if id(w) not in self._kept:
                raise UsageError(
                    "The optimizer was compiled with other weights. Compile the model.",
                    code="model-not-compiled",
                )
            self._steps[id(w)] += 1
            state = self._kept[id(w)]
            tfe.assign(w, w.read_value() - self.step(g, state, self._steps[id(w)]))

    def step(self, g: Any, state: dict[str, Any], t: int) -> Any:
        """Return the amount to subtract from a weight."""
        raise NotImplementedError


class SGD(Optimizer):
    """Steps against the gradient, with momentum."""

    kept = ("v",)

    def __init__(self, learning_rate: float = 0.01, momentum: float = 0.0) -> None:
        super().__init__(learning_rate)
        self.momentum = momentum

    def step(self, g: Any, state: dict[str, Any], t: int) -> Any:
        """Return v = momentum v + learning_rate g."""
        update = g * self.learning_rate
        if self.momentum:
            update = state["v"].read_value() * self.momentum + update
            tfe.assign(state["v"], update)
        return update


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015), for gradients below 1024.

    The state for squares is their weighted sum, v / (1 - beta2): small ones vanish later.
    """

    kept: tuple[str, ...] = ("m", "v")

    def __init__(
        self, learning_rate: float = 0.001, beta1: float = 0.9, beta2: float = 0.999
    ) -> None:
        super().__init__(learning_rate)
        self.beta1, self.beta2 = beta1, beta2

    def _update_moments(self, g: Any, state: dict[str, Any]) -> tuple[Any, Any]:
        g = g * _GAIN  # (cancels out in m / sqrt(v))
        m = state["m"].read_value() * self.beta1 + g * (1 - self.beta1)
        v = state["v"].read_value() * self.beta2 + g.square()
        tfe.assign(state["m"], m)
        tfe.assign(state["v"], v)
        return m, v

    def _scale_step(self, m: Any, v: Any, rate: Any) -> Any:
        tiny = 2.0 ** -require_protocol().fixedpoint_config.precision_fractional
        return tfe.truncate(m * tfe.inv_sqrt(v + tiny) * rate, amount=_RATE_BITS)

    def step(self, g: Any, state: dict[str, Any], t: int) -> Any:
        """Return rate m / sqrt(v) for bias-corrected moments."""
        m, v = self._update_moments(g, state)
        # (the value that changes with the step is an input, so that each step is the same plan)
        factor = math.sqrt((1 - self.beta2**t) / (1 - self.beta2)) / (1 - self.beta1**t)
        rate = np.array(self.learning_rate * factor * 2**_RATE_BITS)
        return self._scale_step(m, v, tfe.define_private_input("server0", lambda: rate))


class AMSgrad(Adam):
    """AMSGrad (Reddi, Kale and Kumar, 2018), without a bias correction."""

    kept = ("m", "v", "most")

    def step(self, g: Any, state: dict[str, Any], t: int) -> Any:
        """Return rate m / sqrt(the largest v)."""
        m, v = self._update_moments(g, state)
        largest_v = tfe.maximum(state["most"].read_value(), v)
        tfe.assign(state["most"], largest_v)
        rate = self.learning_rate / math.sqrt(1 - self.beta2) * 2**_RATE_BITS
        return self._scale_step(m, largest_v, rate)


_OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {"sgd": SGD, "amsgrad": AMSgrad, "adam": Adam}


def get(identifier: Any) -> Any:
    """Return an optimizer by name or class; return an instance unchanged.

    Raises:
        UsageError: the name is unknown.
    """
    if isinstance(identifier, str):
        if identifier not in _OPTIMIZERS:
            raise UsageError(
                f"Optimizers are {', '.join(_OPTIMIZERS)}. Received: {identifier!r}.",
                code="unknown-name",
                operation="optimizer",
                received=identifier,
                expected=", ".join(_OPTIMIZERS),
            )
        return _OPTIMIZERS[identifier]()
    return identifier() if isinstance(identifier, type) else identifier
