"""The small MNIST network with squares as activations, in plaintext.

Convolution 5x5 of stride 2, square, dense 100, square, dense 10: the shape of CryptoNets
(Gilad-Bachrach et al., ICML 2016); every layer is a polynomial.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tfe_bench.benchmarks.technologies.homomorphic.parties import Values, check_finite
from tfe_bench.errors import RangeError, UsageError

PIXELS: Final = 28
KERNEL: Final = 5
STRIDE: Final = 2
SIDE: Final = 14  # of a map, with the padding that Keras calls "same"
MAPS: Final = 5
HIDDEN: Final = 100
CLASSES: Final = 10
BEFORE: Final = 1  # rows and columns of padding above and left of a picture
SEED: Final = 13
EPOCHS: Final = 3
_BATCH: Final = 128
_RATE: Final = 2e-3
_DECAY: Final = 1e-4
_WEIGHT_BITS: Final = 8


@dataclass(frozen=True)
class MnistModel:
    """Weights of the network, held by the server.

    Args:
        kernels: [25, 5], taps row by row.
        kernel_bias: [5].
        hidden: [100, 980], inputs by row, column and map.
        hidden_bias: [100].
        output: [10, 100].
        output_bias: [10].

    Raises:
        UsageError: a weight has another shape.
        RangeError: a weight is NaN or infinite.
    """

    kernels: Values
    kernel_bias: Values
    hidden: Values
    hidden_bias: Values
    output: Values
    output_bias: Values

    def __post_init__(self) -> None:
        shapes = ((KERNEL**2, MAPS), (MAPS,), (HIDDEN, FEATURES), (HIDDEN,))
        for field, shape in zip(
            dataclasses.fields(self), (*shapes, (CLASSES, HIDDEN), (CLASSES,)), strict=True
        ):
            value = check_finite(getattr(self, field.name), f"A model's {field.name}")
            if value.shape != shape:
                raise UsageError(
                    f"A model's {field.name} is {list(shape)}. Received: {list(value.shape)}.",
                    code="shape-mismatch",
                    operation=field.name,
                    received=list(value.shape),
                    expected=list(shape),
                )
            object.__setattr__(self, field.name, value)

    def compute_logits(self, images: npt.ArrayLike) -> Values:
        """Compute outputs [n, 10] of images [n, 28, 28] with values from 0 to 1."""
        taps = extract_kernel_taps(images)  # [n, 25, 196]
        maps = np.einsum("ntp,tm->npm", taps, self.kernels) + self.kernel_bias
        inner = np.square(maps.reshape(len(maps), -1)) @ self.hidden.T + self.hidden_bias
        out: Values = np.square(inner) @ self.output.T + self.output_bias
        return out


FEATURES: Final = SIDE * SIDE * MAPS


def extract_kernel_taps(images: npt.ArrayLike) -> Values:
    """Extract the pixels of each tap of the kernel: [n, 25, 196] of images [n, 28, 28].

    Raises:
        UsageError, RangeError: as in `check_images`.
    """
    array = check_images(images)
    padded = np.pad(array, ((0, 0), (BEFORE, KERNEL), (BEFORE, KERNEL)))
    reach = STRIDE * SIDE
    taps = [
        padded[:, y : y + reach : STRIDE, x : x + reach : STRIDE].reshape(len(array), SIDE * SIDE)
        for y in range(KERNEL)
        for x in range(KERNEL)
    ]
    return np.stack(taps, axis=1)


def check_images(images: npt.ArrayLike) -> Values:
    """Check and return images [n, 28, 28] with pixels from 0 to 1.

    Raises:
        UsageError: the images have another shape.
        RangeError: a pixel is not from 0 to 1.
    """
    array = check_finite(images, "A picture")
    if array.ndim != 3 or array.shape[1:] != (PIXELS, PIXELS):
        raise UsageError(
            f"Pictures are [n, 28, 28]. Received: {list(array.shape)}.",
            code="shape-mismatch",
            operation="pictures",
            received=list(array.shape),
        )
    if array.size and not 0.0 <= float(array.min()) <= float(array.max()) <= 1.0:
        raise RangeError(
            "Pixels are from 0 to 1. Received: "
            f"{float(array.min()):.4g} to {float(array.max()):.4g}. Divide them by 255.",
            code="number-out-of-range",
            operation="pixels",
        )
    return array


def made_up_mnist_model(seed: int) -> MnistModel:
    """Draw weights from a seed, of the size of trained ones, for tests of correctness."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Values:
        return rng.normal(0, 1.0 / np.sqrt(shape[-1]), shape)

    return MnistModel(
        *(draw(KERNEL**2, MAPS) / 4, draw(MAPS) / 8),
        *(draw(HIDDEN, FEATURES), draw(HIDDEN) / 8),
        *(8 * draw(CLASSES, HIDDEN), draw(CLASSES) / 8),
    )


def train_model(folder: Path | None, seed: int = SEED, epochs: int = EPOCHS) -> MnistModel:
    """Train on MNIST with Keras, then round the weights of each layer to 8 bits.

    Args:
        folder: folder of the four IDX files; None for Keras' download.
        seed: seed of the initial weights and of the order of the pictures.
        epochs: passes over the 60,000 pictures.

    Raises:
        DataError: MNIST is missing or damaged.
    """
    from tfe_bench.models.datasets import mnist

    data = mnist.load(folder)
    pictures = data.train_images[..., None].astype(np.float32) / 255
    import keras

    keras.utils.set_random_seed(seed)
    layers = keras.layers

    def start(part: float) -> Any:
        return keras.initializers.VarianceScaling(part, seed=keras.random.SeedGenerator(seed))

    decay = keras.regularizers.L2(_DECAY)
    model = keras.Sequential(
        [
            keras.Input((PIXELS, PIXELS, 1)),
            layers.Conv2D(
                *(MAPS, KERNEL, STRIDE, "same"),
                kernel_initializer=start(1.0),
                kernel_regularizer=decay,
            ),
            layers.Lambda(keras.ops.square),
            layers.Flatten(),
            layers.Dense(HIDDEN, kernel_initializer=start(0.5), kernel_regularizer=decay),
            layers.Lambda(keras.ops.square),
            layers.Dense(CLASSES, kernel_initializer=start(0.5), kernel_regularizer=decay),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    steps = epochs * -(-len(pictures) // _BATCH)
    rate = keras.optimizers.schedules.CosineDecay(_RATE, steps)
    model.compile(keras.optimizers.Adam(rate, clipnorm=1.0), loss)
    model.fit(pictures, data.train_labels, batch_size=_BATCH, epochs=epochs, verbose=0)
    weights = [np.asarray(w, np.float64) for w in model.get_weights()]
    kernels, kernel_bias, hidden, hidden_bias, output, output_bias = weights
    return MnistModel(
        *(round_mnist_weights(kernels.reshape(KERNEL**2, MAPS)), kernel_bias),
        *(round_mnist_weights(hidden.T), hidden_bias),
        *(round_mnist_weights(output.T), output_bias),
    )


def round_mnist_weights(weights: Values) -> Values:
    """Round to the nearest 8-bit values, multiples of one step for the whole layer."""
    most = 2 ** (_WEIGHT_BITS - 1) - 1
    step = float(np.abs(weights).max(initial=0.0)) / most
    return np.round(weights / step) * step if step else weights
