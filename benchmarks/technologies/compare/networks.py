"""The models of the jobs: one network for inference by all, and what is trained."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import numpy as np

from tfe_bench.benchmarks.technologies.compare.tasks import Array, Inputs
from tfe_bench.benchmarks.technologies.homomorphic import model as square
from tfe_bench.benchmarks.technologies.homomorphic.model import Model

TRAINED: Final = "network-d"  # the inference network with ReLU in place of squares
_RATE: Final = 0.01
_MOMENTUM: Final = 0.9
_EPOCHS: Final = 1


class Networks:
    """Models and rows of MNIST, made when they are asked for.

    Args:
        folder: of MNIST's files.
    """

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs

    @cached_property
    def inference_model(self) -> Model:
        """Convolution, square, dense 100, square, dense 10; trained, weights of 8 bits."""
        return square.train_model(self._inputs.folder, epochs=_EPOCHS)

    def keras_inference(self) -> Any:
        """The same as a Keras model."""
        import keras

        layers, of = keras.layers, self.inference_model
        pictures = keras.Input((square.PIXELS, square.PIXELS, 1))
        x = layers.Conv2D(square.MAPS, square.KERNEL, square.STRIDE, "same")(pictures)
        x = layers.Flatten()(layers.Multiply()([x, x]))
        x = layers.Dense(square.HIDDEN)(x)
        x = layers.Dense(square.CLASSES)(layers.Multiply()([x, x]))
        made = keras.Model(pictures, x, name="square_network")
        kernels = of.kernels.reshape(square.KERNEL, square.KERNEL, 1, square.MAPS)
        hidden, output = of.hidden.T, of.output.T
        weights = (kernels, of.kernel_bias, hidden, of.hidden_bias, output, of.output_bias)
        made.set_weights([np.asarray(w, np.float32) for w in weights])
        return made

    def load_test(self, count: int) -> tuple[Array, Array]:
        """So many test pictures [n, 28, 28] from 0 to 1, and their labels."""
        data = self._inputs.pictures
        return data.test_images[:count] / 255.0, data.test_labels[:count].astype(np.int64)

    def load_sample(self) -> Array:
        """Public pictures, from which ranges are planned."""
        found: Array = self._inputs.pictures.train_images[:64, :, :, None] / 255.0
        return found

    def build_logistic(self) -> Any:
        """A Keras model that tells digits below 5 from others; not compiled."""
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
        """All training rows, with a label of 0 or 1."""
        data = self._inputs.pictures
        x = data.train_images[..., None].astype(np.float32) / np.float32(255)
        return x, (data.train_labels >= 5).astype(np.int64)

    def logistic_accuracy(self, model: Any) -> float:
        """Of such a model, on the test pictures."""
        data = self._inputs.pictures
        said = model.predict(data.test_images[..., None] / np.float32(255), verbose=0)
        return float(np.mean((said[:, 0] > 0) == (data.test_labels >= 5)))

    def build_trained(self) -> Any:
        """The network that a training step is measured of; not compiled."""
        from tfe_bench.models import zoo

        return zoo.build(TRAINED).keras

    def training_rows(self, count: int) -> tuple[Array, Array]:
        """The first training rows."""
        data = self._inputs.pictures
        x = data.train_images[:count, :, :, None].astype(np.float32) / np.float32(255)
        return x, data.train_labels[:count].astype(np.int64)


def build_optimizer() -> Any:
    """As published for these networks: SGD with momentum."""
    import keras

    return keras.optimizers.SGD(_RATE, _MOMENTUM)


def build_loss(binary: bool) -> Any:
    """Of logits."""
    import keras

    if binary:
        return keras.losses.BinaryCrossentropy(from_logits=True)
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
