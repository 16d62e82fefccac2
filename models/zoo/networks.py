"""Networks of the literature for small pictures, as Keras models that end in logits.

A: SecureML (Mohassel and Zhang, S&P 2017). B: MiniONN (Liu et al., CCS 2017). C: LeNet-5 with 20
and 50 channels. D: Chameleon (Riazi et al., AsiaCCS 2018). The layers equal those of tf-encrypted's
network_a to network_d and of MP-SPDZ's mnist_full_A to D, so that results can be compared.
All take [28, 28, 1] and flatten it themselves if necessary.

VGG16 for CIFAR-10, of [32, 32, 3]: 13 convolutions with average pooling and three dense layers, as
in PIGEON's flexNN (Harth-Kitzerow et al., PoPETs 2025) and CryptDough.
"""

from __future__ import annotations

from typing import Any

# Number of weights and biases of each network; a test counts them.
PARAMETERS = {"network-a": 118_282, "network-b": 33_542, "network-c": 431_080, "network-d": 99_240}
INPUT = (28, 28, 1)
VGG16_CIFAR, CIFAR_INPUT = "vgg16-cifar", (32, 32, 3)
VGG16_CIFAR_PARAMETERS = 14_914_378
# Filters and number of the convolutions of each block; a pooling follows each block.
_VGG16_BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
# Dense layers and 5x5 convolutions by number of outputs (and strides and padding), and the layers
# between.
_LAYERS = {
    "network-a": "flatten; dense 128; relu; dense 128; relu; dense 10",
    "network-b": "conv 16 1 valid; pool; relu; conv 16 1 valid; pool; relu; "
    "flatten; dense 100; relu; dense 10",
    "network-c": "conv 20 1 valid; pool; relu; conv 50 1 valid; pool; relu; "
    "flatten; dense 500; relu; dense 10",
    "network-d": "conv 5 2 same; relu; flatten; dense 100; relu; dense 10",
}


def network(name: str, seed: int = 1) -> Any:
    """Return the Keras model of a network, with the same weights for the same seed."""
    import keras

    def seeded_initializer(position: int) -> Any:
        # Glorot initialization, the default of Keras, with a fixed seed.
        return keras.initializers.GlorotUniform(seed=1000 * seed + position)

    layers: list[Any] = [keras.Input(INPUT)]
    for position, (kind, *options) in enumerate(map(str.split, _LAYERS[name].split("; "))):
        if kind == "dense":
            layer = keras.layers.Dense(
                int(options[0]), kernel_initializer=seeded_initializer(position)
            )
        elif kind == "conv":
            filters, strides, padding = options
            layer = keras.layers.Conv2D(
                int(filters),
                5,
                int(strides),
                padding,
                kernel_initializer=seeded_initializer(position),
            )
        else:
            plain = {"pool": keras.layers.MaxPooling2D, "relu": keras.layers.ReLU}
            layer = plain.get(kind, keras.layers.Flatten)()
        layers.append(layer)
    return keras.Sequential(layers, name=name.replace("-", "_"))


def build_vgg16_cifar() -> Any:
    """Return the Keras model of VGG16 for CIFAR-10, with initial weights."""
    import keras

    layers: list[Any] = [keras.Input(CIFAR_INPUT)]
    for filters, count in _VGG16_BLOCKS:
        for _ in range(count):
            layers += [keras.layers.Conv2D(filters, 3, padding="same"), keras.layers.ReLU()]
        layers.append(keras.layers.AveragePooling2D(2))
    layers.append(keras.layers.Flatten())
    for units in (256, 256):
        layers += [keras.layers.Dense(units), keras.layers.ReLU()]
    return keras.Sequential([*layers, keras.layers.Dense(10)], name="vgg16_cifar")
