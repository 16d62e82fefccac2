"""Models of the zoo by name, and the sources of their weights."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfe_bench.errors import DataError, UsageError, unknown_name_error
from tfe_bench.models.zoo import networks, seeded, transformers

IMAGENET, SEEDED = "imagenet", "seeded"
# Default length of texts.
TOKENS = 128
_IMAGE = (224, 224, 3)
_DOWNLOADS = "https://storage.googleapis.com/tensorflow/keras-applications/"


@dataclass(frozen=True)
class Entry:
    """One model of the zoo.

    Attributes:
        name: name on the command line.
        title: name in tables.
        parameters: number of parameters, including those of batch normalization.
        input_shape: shape of a picture, without the batch; empty for texts.
        preprocessing: preprocessing of its images; see tfe_bench.models.inference.images.
        classes: number of logits.
    """

    name: str
    title: str
    parameters: int
    input_shape: tuple[int, ...]
    preprocessing: str
    classes: int

    @property
    def is_text(self) -> bool:
        """True for a model of tokens, False for a model of pictures."""
        return not self.input_shape


@dataclass(frozen=True, eq=False)
class Model:
    """A built model.

    Attributes:
        entry: its entry in the zoo.
        keras: the Keras model; it ends in logits, without a softmax.
        weights: source of the weights for records: "imagenet", the name of a file, or a
            description.
    """

    entry: Entry
    keras: Any
    weights: str


# keras.applications: function, number of parameters, preprocessing
_APPLICATIONS = {
    "resnet50": ("ResNet50", 25_636_712, "caffe"),
    "resnet50v2": ("ResNet50V2", 25_613_800, "tf"),
    "vgg19": ("VGG19", 143_667_240, "caffe"),
    "densenet121": ("DenseNet121", 8_062_504, "torch"),
    "mobilenetv2": ("MobileNetV2", 3_538_984, "tf"),
}
_ENTRIES = {
    **{
        name: Entry(name, f"network {name[-1].upper()}", count, networks.INPUT, "unit", 10)
        for name, count in networks.PARAMETERS.items()
    },
    networks.VGG16_CIFAR: Entry(
        *(networks.VGG16_CIFAR, "VGG16 for CIFAR-10", networks.VGG16_CIFAR_PARAMETERS),
        *(networks.CIFAR_INPUT, "tf", 10),
    ),
    **{
        name: Entry(name, function, count, _IMAGE, preprocessing, 1000)
        for name, (function, count, preprocessing) in _APPLICATIONS.items()
    },
    **{
        name: Entry(
            *(name, size.title, size.parameters, () if size.is_text else _IMAGE),
            *("none" if size.is_text else "tf", transformers.CLASSES),
        )
        for name, size in transformers.SIZES.items()
    },
}


def list_models() -> tuple[str, ...]:
    """Return the names of all models."""
    return tuple(_ENTRIES)


def find_model(name: str) -> Entry:
    """Return the model of a name.

    Raises:
        UsageError: there is no such model.
    """
    if name not in _ENTRIES:
        raise unknown_name_error(f"The zoo has no model {name!r}.", name, _ENTRIES, operation="zoo")
    return _ENTRIES[name]


def build(
    name: str, weights: str | os.PathLike[str] = SEEDED, seed: int = 1, tokens: int = TOKENS
) -> Model:
    """Build a model.

    Args:
        weights: "imagenet" (downloaded once by keras), the path of a weights file (.h5, or
            .weights.h5 that `model.save_weights` wrote), or "seeded".
        seed: seed of seeded weights, and of a network's initial weights.
        tokens: length of texts, for models that take them.

    Raises:
        UsageError: there is no such model, or it has no such weights.
        DataError: the weights cannot be downloaded, or the file does not contain weights of this
            model.
    """
    entry = find_model(name)
    check_text_length(entry, tokens)
    if name in transformers.SIZES:
        if weights != SEEDED:
            raise UsageError(
                f"{entry.title} is available with seeded weights only. Received: "
                f"{str(weights)!r}. For trained weights, convert the model of keras-hub.",
                code="unsupported-argument",
                operation="weights",
                received=str(weights),
            )
        model = transformers.build_transformer(name, tokens, seed)
        return Model(entry, model, f"seeded, with outliers (seed {seed})")
    if entry.input_shape != _IMAGE and weights == IMAGENET:
        data = "MNIST" if name in networks.PARAMETERS else "CIFAR-10"
        raise UsageError(
            f"{name} is a network for {data}. Received: weights 'imagenet'. Use 'seeded', or "
            "the path of a weights file.",
            code="unsupported-argument",
            operation="weights",
            received="imagenet",
        )
    if name in networks.PARAMETERS:
        model = networks.network(name, seed)
        weight_source = f"seeded (untrained, seed {seed})"
    elif weights == IMAGENET:
        return Model(entry, _download_model_weights(name), IMAGENET)
    else:
        is_cifar = name == networks.VGG16_CIFAR
        model = networks.build_vgg16_cifar() if is_cifar else _build_keras_application(name, None)
        weight_source = f"seeded, calibrated (seed {seed})"
    if weights != SEEDED:
        _load_zoo_weights(entry, model, Path(weights))
        weight_source = Path(weights).name
    elif name not in networks.PARAMETERS:
        seeded.fill_seeded_weights(model, samples(entry, seed), seed)
    return Model(entry, model, weight_source)


def check_text_length(entry: Entry, tokens: int) -> None:
    """Reject a length of texts that a model does not accept.

    Raises:
        UsageError: the length is not between 2 and the model's positions.
    """
    limit = transformers.MAX_TOKENS
    if entry.is_text and not (type(tokens) is int and 2 <= tokens <= limit):
        raise UsageError(
            f"Expected 2 to {limit} tokens for {entry.title}. Received: {tokens!r}.",
            code="number-out-of-range",
            operation="tokens",
            received=tokens,
            expected=limit,
        )


def samples(entry: Entry, seed: int = 1, count: int = 4, tokens: int = TOKENS) -> Any:
    """Generate public inputs, prepared for a model, from which ranges can be derived.

    They are pictures or, for a model of texts, arrays by name.
    """
    from tfe_bench.models.inference import images

    if entry.is_text:
        return transformers.generate_token_sentences(tokens, seed, count)
    return images.prepare_pixels(
        seeded.generate_synthetic_images(entry.input_shape, seed, count), entry.preprocessing
    )


def _build_keras_application(name: str, weights: str | None) -> Any:
    import keras

    make = getattr(keras.applications, _APPLICATIONS[name][0])
    return make(weights=weights, input_shape=_IMAGE, classifier_activation=None)


def _download_model_weights(name: str) -> Any:
    try:
        return _build_keras_application(name, IMAGENET)
    except Exception as error:  # types of urllib and keras, depending on the cause
        raise DataError(
            f"The ImageNet weights of {name} could not be downloaded from {_DOWNLOADS}. "
            f"Received: {type(error).__name__}. Connect to the network, or pass a file of them "
            "(--weights PATH), or use seeded ones (--weights seeded) at the same cost.",
            code="download-failed",
            operation=name,
            received=type(error).__name__,
        ) from error


def _load_zoo_weights(entry: Entry, model: Any, path: Path) -> None:
    """Load a file with exactly the weights of the model.

    Raises:
        DataError: the file is missing, damaged, of another model, or contains NaN or infinity.
    """
    import numpy as np

    if not path.is_file():
        raise DataError(
            f"There is no weights file {str(path)!r}. Expected imagenet, seeded, or the path of "
            "an .h5 file as --weights.",
            code="file-not-found",
            operation=str(path),
        )
    if path.suffix != ".h5":
        raise DataError(
            f"Expected an .h5 file of weights. Received: {path.name!r}. Load a whole model "
            "(.keras) with tfe_bench.convert, without the zoo.",
            code="unsupported-file-type",
            operation=path.name,
        )
    try:
        model.load_weights(path)
    except Exception as error:  # types of h5py and keras; their texts contain no weight
        raise DataError(
            f"{str(path)!r} is not a weights file of {entry.title}, or is damaged. Received: "
            f"{type(error).__name__}. Download it again, or save it with model.save_weights.",
            code="invalid-model-file",
            operation=str(path),
            received=type(error).__name__,
        ) from error
    for layer in model.layers:
        if not all(np.all(np.isfinite(w)) for w in layer.get_weights()):
            raise DataError(
                f"{str(path)!r} contains NaN or infinity in the weights of layer {layer.name!r}.",
                code="not-finite",
                operation=layer.name,
            )
