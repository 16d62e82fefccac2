"""Dense layers, activations, and changes of shape."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tfe_bench.tf_encrypted as tfe
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.tf_encrypted.keras import activations
from tfe_bench.tf_encrypted.keras.engine.base_layer import Layer, NotOffered, check_default


def initial_values(initializer: Any, shape: Any) -> Any:
    """Return an initializer's values, by TensorFlow's Keras."""
    return np.asarray(tf.keras.initializers.get(initializer)(shape), np.float64)


class Weighted(Layer):
    """Layers with a kernel, an optional bias, and an activation."""

    def __init__(
        self,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.use_bias = use_bias
        self.activation_identifier = activation
        self.activation = activations.get(activation)
        self.kernel_initializer, self.bias_initializer = kernel_initializer, bias_initializer

    def _add_weights(self, shape: list[int], outputs: int) -> None:
        """Add a kernel of a shape, and a bias."""
        self.kernel = self.add_weight(initial_values(self.kernel_initializer, shape))
        if self.use_bias:
            self.bias = self.add_weight(initial_values(self.bias_initializer, [outputs]))
        self.built = True


class Dense(Weighted):
    """x W + b and an activation; arguments after the units are those of Weighted."""

    def __init__(self, units: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.units = int(units)

    def build(self, input_shape: Any) -> None:
        """Create a kernel and a bias."""
        if len(input_shape) != 2:
            raise NotOffered(
                f"Dense takes [batch, features]. Received: {list(input_shape)}.",
                code="shape-mismatch",
                operation="input_shape",
                received=list(input_shape),
                expected="[batch, features]",
            )
        self._add_weights([int(input_shape[1]), self.units], self.units)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return [batch, units]."""
        return [input_shape[0], self.units]

    def call(self, inputs: Any) -> Any:
        """Return the activated x W + b."""
        self._x = inputs
        y = tfe.matmul(inputs, self.kernel.read_value())
        y = y + self.bias.read_value() if self.use_bias else y
        self._y = self.activation(y)
        return self._y

    def backward(self, d_y: Any) -> Any:
        """Return the gradients of kernel and bias, and of x."""
        d_y = activations.get_deriv(self.activation_identifier)(self._y, d_y)
        gradients = [tfe.matmul(self._x.transpose(), d_y)]
        if self.use_bias:
            gradients.append(d_y.reduce_sum(axis=0))
        if self.lazy_normalization:
            gradients = [g * (1 / int(self._x.shape[0])) for g in gradients]
        return gradients, tfe.matmul(d_y, self.kernel.read_value().transpose())


class Activation(Layer):
    """A function by name."""

    def __init__(self, activation: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.activation_identifier = activation
        self.activation = activations.get(activation)

    def call(self, inputs: Any) -> Any:
        """Return the function's values."""
        self._y = self.activation(inputs)
        return self._y

    def backward(self, d_y: Any) -> Any:
        """Return the gradient of the inputs."""
        return [], activations.get_deriv(self.activation_identifier)(self._y, d_y)


class ReLU(Layer):
    """max(x, 0)."""

    def __init__(
        self, max_value: Any = None, negative_slope: float = 0, threshold: float = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        check_default(
            "ReLU", max_value=max_value, negative_slope=negative_slope, threshold=threshold
        )

    def call(self, inputs: Any) -> Any:
        """Return max(x, 0)."""
        y, self._above = tfe.relu_with_cmp(inputs)
        return y

    def backward(self, d_y: Any) -> Any:
        """Return the gradient where x > 0, else 0."""
        return [], tfe.select(self._above, 0, d_y)


class Flatten(Layer):
    """All axes except the first as one."""

    def __init__(self, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data_format = data_format or "channels_last"

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return [batch, all]."""
        return [input_shape[0], math.prod(int(n) for n in list(input_shape)[1:])]

    def call(self, inputs: Any) -> Any:
        """Return [batch, all]; the channels last."""
        self._input_sizes = inputs.shape.as_list()
        if self.data_format == "channels_first" and len(self._input_sizes) > 2:
            inputs = inputs.transpose([0, *range(2, len(self._input_sizes)), 1])
        return inputs.reshape(self.compute_output_shape(self._input_sizes))

    def backward(self, d_y: Any) -> Any:
        """Return the gradient in the shape of the inputs."""
        rank = len(self._input_sizes)
        if self.data_format == "channels_first" and rank > 2:
            channels_last = [self._input_sizes[0], *self._input_sizes[2:], self._input_sizes[1]]
            return [], d_y.reshape(channels_last).transpose([0, rank - 1, *range(1, rank - 1)])
        return [], d_y.reshape(self._input_sizes)


class Reshape(Layer):
    """A new shape of each sample."""

    def __init__(self, target_shape: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.target_shape = tuple(target_shape)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return [batch, *target]."""
        element_count = math.prod(int(n) for n in list(input_shape)[1:])
        known_product = math.prod(n for n in self.target_shape if n >= 0)
        return [
            input_shape[0],
            *(element_count // known_product if n < 0 else n for n in self.target_shape),
        ]

    def call(self, inputs: Any) -> Any:
        """Return the inputs as [batch, *target]."""
        self._input_sizes = inputs.shape.as_list()
        return inputs.reshape(self.compute_output_shape(self._input_sizes))

    def backward(self, d_y: Any) -> Any:
        """Return the gradient in the shape of the inputs."""
        return [], d_y.reshape(self._input_sizes)
