"""The four MNIST networks of the literature, as Keras models that end in logits.

A: SecureML (Mohassel and Zhang, S&P 2017). B: MiniONN (Liu et al., CCS 2017). C: LeNet-5 with 20
and 50 channels. D: Chameleon (Riazi et al., AsiaCCS 2018). The same layers as tf-encrypted's
network_a to network_d and MP-SPDZ's mnist_full_A to D, so that figures can be compared.

All take [28, 28, 1] and flatten it themselves where they have to.
"""

from __future__ import annotations

from typing import Any

# Weights and biases of each; a test counts them.
PARAMETERS = {"network-a": 118_282, "network-b": 33_542, "network-c": 431_080, "network-d": 99_240}
INPUT = (28, 28, 1)


def network_a(seed: int = 1) -> Any:
    """784-128-128-10, ReLU after both hidden layers."""
    return _sequential(
        "network_a",
        seed,
        ("flatten",),
        ("dense", 128),
        ("relu",),
        ("dense", 128),
        ("relu",),
        ("dense", 10),
    )


def network_b(seed: int = 1) -> Any:
    """Two convolutions 5x5 of 16 channels, each with max-pool 2 and ReLU; 256-100-10."""
    return _sequential(
        "network_b",
        seed,
        ("conv", 16, 1, "valid"),
        ("pool",),
        ("relu",),
        ("conv", 16, 1, "valid"),
        ("pool",),
        ("relu",),
        ("flatten",),
        ("dense", 100),
        ("relu",),
        ("dense", 10),
    )


def network_c(seed: int = 1) -> Any:
    """Convolutions 5x5 of 20 and 50 channels, each with max-pool 2 and ReLU; 800-500-10."""
    return _sequential(
        "network_c",
        seed,
        ("conv", 20, 1, "valid"),
        ("pool",),
        ("relu",),
        ("conv", 50, 1, "valid"),
        ("pool",),
        ("relu",),
        ("flatten",),
        ("dense", 500),
        ("relu",),
        ("dense", 10),
    )


def network_d(seed: int = 1) -> Any:
    """One convolution 5x5 of 5 channels with stride 2 and same padding, ReLU; 980-100-10."""
    return _sequential(
        "network_d",
        seed,
        ("conv", 5, 2, "same"),
        ("relu",),
        ("flatten",),
        ("dense", 100),
        ("relu",),
        ("dense", 10),
    )


def _sequential(name: str, seed: int, *parts: tuple[Any, ...]) -> Any:
    import keras

    def seeded(position: int) -> Any:
        # Glorot, as keras does by default, but the same at every start.
        return keras.initializers.GlorotUniform(seed=1000 * seed + position)

    layers: list[Any] = [keras.Input(INPUT)]
    for position, (kind, *options) in enumerate(parts):
        if kind == "dense":
            layer = keras.layers.Dense(*options, kernel_initializer=seeded(position))
        elif kind == "conv":
            filters, strides, padding = options
            layer = keras.layers.Conv2D(
                filters, 5, strides, padding, kernel_initializer=seeded(position)
            )
        else:
            plain = {"pool": keras.layers.MaxPooling2D, "relu": keras.layers.ReLU}
            layer = plain.get(kind, keras.layers.Flatten)()
        layers.append(layer)
    return keras.Sequential(layers, name=name)
