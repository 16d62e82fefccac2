"""Batch normalization with given moments."""

from __future__ import annotations

from typing import Any

import numpy as np

import tfe_bench.tf_encrypted as tfe
from tfe_bench.tf_encrypted.keras.engine.base_layer import Layer, NotOffered
from tfe_bench.tf_encrypted.keras.layers.core import initial_values
from tfe_bench.tf_encrypted.protocol.aby3 import ABY3Tensor


class BatchNormalization(Layer):
    """(x - mean) gamma / sqrt(variance + epsilon) + beta, as in inference.

    The weights are private; tf-encrypted's are public.
    """

    def __init__(
        self,
        axis: Any = 3,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        moving_mean_initializer: Any = "zeros",
        moving_variance_initializer: Any = "ones",
        *,
        fused: Any = None,
        trainable: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(trainable=trainable, **kwargs)
        self.axis = axis[0] if isinstance(axis, (list, tuple)) else axis
        self.epsilon, self.center, self.scale = epsilon, center, scale
        self._initial = {
            **({"gamma": gamma_initializer} if scale else {}),
            **({"beta": beta_initializer} if center else {}),
            "mean": moving_mean_initializer,
            "variance": moving_variance_initializer,
        }

    def build(self, input_shape: Any) -> None:
        """Create the moments and the learned parameters."""
        rank = len(input_shape)
        at = self.axis % rank if self.axis < rank else rank - 1
        size = int(input_shape[at])
        self._shape = [size if i == at else 1 for i in range(rank)]
        values = {
            name: initial_values(initializer, [size]) for name, initializer in self._initial.items()
        }
        self.weights = [tfe.define_private_variable(v) for v in values.values()]
        ones = np.ones([size])
        self._factor = tfe.define_private_variable(ones)
        self._offset = tfe.define_private_variable(ones)
        self._update_factors(list(values.values()))
        self.built = True

    def _update_factors(self, weights: list[Any]) -> None:
        """Combine public or private weights into one factor and one offset."""
        named = dict(zip(self._initial, weights, strict=True))
        is_known = not any(isinstance(w, ABY3Tensor) for w in weights)
        variance = named["variance"] + self.epsilon
        root = 1 / np.sqrt(variance) if is_known else tfe.inv_sqrt(variance)
        factor = root * named["gamma"] if self.scale else root
        offset = named["mean"] * factor
        offset = named["beta"] - offset if self.center else 0 - offset
        tfe.assign(self._factor, factor)
        tfe.assign(self._offset, offset)

    def set_weights(self, weights: Any) -> None:
        """Set the weights: those of gamma, beta, mean and variance that exist."""
        new_weights = [
            w if isinstance(w, ABY3Tensor) else np.asarray(w, np.float64).reshape(-1)
            for w in weights
        ]
        super().set_weights(new_weights)
        flat = [w.reshape([-1]) if isinstance(w, ABY3Tensor) else w for w in new_weights]
        self._update_factors(flat)

    def call(self, inputs: Any) -> Any:
        """Return the normalized inputs."""
        factor = self._factor.read_value().reshape(self._shape)
        return inputs * factor + self._offset.read_value().reshape(self._shape)

    def backward(self, d_y: Any) -> Any:
        """Refuse, as in tf-encrypted."""
        raise NotOffered(
            "BatchNormalization has no gradient here. tfe_bench.fit has one.",
            code="unsupported-operation",
            operation="backward",
        )
