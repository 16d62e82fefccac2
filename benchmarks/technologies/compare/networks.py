"""The models of the jobs: one inference network for all technologies, and trained models."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import numpy as np

from tfe_bench.benchmarks.technologies.compare.tasks import Array, ComparisonInputs
from tfe_bench.benchmarks.technologies.homomorphic import model as square
from tfe_bench.benchmarks.technologies.homomorphic.model import MnistModel

TRAINED: Final = "network-d"  # the inference network with ReLU in place of squares
_RATE: Final = 0.01
_MOMENTUM: Final = 0.9
_EPOCHS: Final = 1


class Networks:
    """Models and rows of MNIST, built on first use.

    Args:
        inputs: the inputs of the jobs, with the folder of MNIST's files.
    """

    def __init__(self, inputs: ComparisonInputs) -> None:
        self._inputs = inputs

    @cached_property
    def inference_model(self) -> MnistModel:
        """Convolution, square, dense 100, square, dense 10: trained, with 8-bit weights."""
        return square.train_model(self._inputs.folder, epochs=_EPOCHS)

    def keras_inference(self) -> Any:
        """Build the inference network as a Keras model."""
        import keras

        layers, of = keras.layers, self.inference_model
        pictures = keras.Input((square.PIXELS, square.PIXELS, 1))
        x = layers.Conv2D(square.MAPS, square.KERNEL, square.STRIDE, "same")(pictures)
        x = layers.Flatten()(layers.Multiply()([x, x]))
        x = layers.Dense(square.HIDDEN)(x)
        x = layers.Dense(square.CLASSES)(layers.Multiply()([x, x]))
        model = keras.Model(pictures, x, name="square_network")
        kernels = of.kernels.reshape(square.KERNEL, square.KERNEL, 1, square.MAPS)
        hidden, output = of.hidden.T, of.output.T
        weights = (kernels, of.kernel_bias, hidden, of.hidden_bias, output, of.output_bias)
        model.set_weights([np.asarray(w, np.float32) for w in weights])
        return model

    def load_test(self, count: int) -> tuple[Array, Array]:
        """Return the first `count` test pictures [count, 28, 28] from 0 to 1, and their labels."""
        data = self._inputs.pictures
        return data.test_images[:count] / 255.0, data.test_labels[:count].astype(np.int64)

    def load_sample(self) -> Array:
        """Return public pictures [64, 28, 28, 1], from which ranges are planned."""
        sample: Array = self._inputs.pictures.train_images[:64, :, :, None] / 255.0
        return sample

    def build_logistic(self) -> Any:
        """Build a Keras model that separates digits below 5 from the others; not compiled."""
        import keras

        start = keras.initializers.GlorotUniform(seed=1)
        return keras.Sequential(
            [
                keras.Input((28, 28, 1)),
                keras.layers.Flatten(),
                keras.layers.Dense(1, kernel_initializer=start),
            ],
            name="logistic",
        )

    def logistic_rows(self) -> tuple[Array, Array]:
        """Return all training rows [n, 28, 28, 1], and labels of 0 or 1."""
        data = self._inputs.pictures
        x = data.train_images[..., None].astype(np.float32) / np.float32(255)
        return x, (data.train_labels >= 5).astype(np.int64)

    def logistic_accuracy(self, model: Any) -> float:
        """Compute the accuracy of a logistic model on the test pictures."""
        data = self._inputs.pictures
        outputs = model.predict(data.test_images[..., None] / np.float32(255), verbose=0)
        return float(np.mean((outputs[:, 0] > 0) == (data.test_labels >= 5)))

    def build_trained(self) -> Any:
        """Build the network whose training step is measured; not compiled."""
        from tfe_bench.models import zoo

        return zoo.build(TRAINED).keras

    def training_rows(self, count: int) -> tuple[Array, Array]:
        """Return the first `count` training rows [count, 28, 28, 1], and their labels."""
        data = self._inputs.pictures
        x = data.train_images[:count, :, :, None].astype(np.float32) / np.float32(255)
        return x, data.train_labels[:count].astype(np.int64)


def build_compared_optimizer() -> Any:
    """Build the optimizer published for these networks: SGD with momentum."""
    import keras

    return keras.optimizers.SGD(_RATE, _MOMENTUM)


def build_compared_loss(binary: bool) -> Any:
    """Build a loss of logits: binary or sparse categorical cross-entropy."""
    import keras

    if binary:
        return keras.losses.BinaryCrossentropy(from_logits=True)
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
