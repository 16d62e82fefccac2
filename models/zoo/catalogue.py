"""What the zoo has, by name, and where its weights come from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfe_bench.errors import DataError, UsageError, unknown_name
from tfe_bench.models.zoo import networks, seeded, transformers

IMAGENET, SEEDED = "imagenet", "seeded"
# The length of texts, unless it is said.
TOKENS = 128
_IMAGE = (224, 224, 3)
_DOWNLOADS = "https://storage.googleapis.com/tensorflow/keras-applications/"


@dataclass(frozen=True)
class Entry:
    """One model of the zoo.

    Attributes:
        name: on the command line.
        title: in tables.
        parameters: numbers in it, those of batch normalization included.
        input_shape: of a picture, without the batch; none for texts.
        preprocessing: which way images are prepared for it; see tfe_bench.models.images.
        classes: how many logits it gives.
    """

    name: str
    title: str
    parameters: int
    input_shape: tuple[int, ...]
    preprocessing: str
    classes: int

    @property
    def is_text(self) -> bool:
        """Whether it takes tokens, not pictures."""
        return not self.input_shape


@dataclass(frozen=True, eq=False)
class Model:
    """A built model.

    Attributes:
        entry: what it is.
        keras: the Keras model; it ends in logits, without a softmax.
        weights: for the record: "imagenet", a file's name, or how they were made up.
    """

    entry: Entry
    keras: Any
    weights: str


# keras.applications: the function there, its parameters, its way with images
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
    """All models."""
    return tuple(_ENTRIES)


def find_model(name: str) -> Entry:
    """The model of a name.

    Raises:
        UsageError: there is none.
    """
    if name not in _ENTRIES:
        raise unknown_name(f"The zoo has no model {name!r}.", name, _ENTRIES)
    return _ENTRIES[name]


def build(
    name: str, weights: str | os.PathLike[str] = SEEDED, seed: int = 1, tokens: int = TOKENS
) -> Model:
    """Builds a model.

    Args:
        weights: "imagenet" (downloaded once by keras), the path of a weights file (.h5, or
            .weights.h5 that `model.save_weights` wrote), or "seeded".
        seed: of seeded weights, and of what a network starts its training from.
        tokens: the length of texts, of models that take them.

    Raises:
        UsageError: there is no such model, or it has no such weights.
        DataError: the weights cannot be downloaded, or the file is no weights of this model.
    """
    entry = find_model(name)
    check_tokens(entry, tokens)
    if name in transformers.SIZES:
        if weights != SEEDED:
            raise UsageError(
                f"{entry.title} is here with seeded weights alone. Received: {str(weights)!r}. "
                "Trained ones are converted with the model of keras-hub that has them."
            )
        model = transformers.build_transformer(name, tokens, seed)
        return Model(entry, model, f"seeded, with outliers (seed {seed})")
    if name in networks.PARAMETERS:
        model = networks.network(name, seed)
        if weights == IMAGENET:
            raise UsageError(
                f"{name} is a network for MNIST. Received: weights 'imagenet'. Use 'seeded', or "
                "the path of a weights file."
            )
        weight_source = f"seeded (untrained, seed {seed})"
    elif weights == IMAGENET:
        return Model(entry, _download_weights(name), IMAGENET)
    else:
        model = _build_application(name, None)
        weight_source = f"seeded, calibrated (seed {seed})"
    if weights != SEEDED:
        _load_weights(entry, model, Path(weights))
        weight_source = Path(weights).name
    elif entry.name in _APPLICATIONS:
        seeded.fill_weights(model, samples(entry, seed), seed)
    return Model(entry, model, weight_source)


def check_tokens(entry: Entry, tokens: int) -> None:
    """Refuses a length of texts that a model does not take.

    Raises:
        UsageError: it is none from 2 to the positions that it has.
    """
    limit = transformers.MAX_TOKENS
    if entry.is_text and not (type(tokens) is int and 2 <= tokens <= limit):
        raise UsageError(f"{entry.title} takes 2 to {limit} tokens. Received: {tokens!r}.")


def samples(entry: Entry, seed: int = 1, count: int = 4, tokens: int = TOKENS) -> Any:
    """Made-up public inputs, prepared for a model, from which ranges can be taken.

    Pictures, or of a model of texts arrays by name.
    """
    from tfe_bench.models import images

    if entry.is_text:
        return transformers.generate_sentences(tokens, seed, count)
    return images.prepare_pixels(
        seeded.generate_images(entry.input_shape, seed, count), entry.preprocessing
    )


def _build_application(name: str, weights: str | None) -> Any:
    import keras

    make = getattr(keras.applications, _APPLICATIONS[name][0])
    return make(weights=weights, input_shape=_IMAGE, classifier_activation=None)


def _download_weights(name: str) -> Any:
    try:
        return _build_application(name, IMAGENET)
    except Exception as error:  # urllib's and keras's, according to what is in the way
        raise DataError(
            f"The ImageNet weights of {name} could not be downloaded from {_DOWNLOADS}. Received: "
            f"{type(error).__name__}. Connect to the network, or name a file of them (--weights "
            "PATH), or use made-up ones (--weights seeded): they cost the same."
        ) from error


def _load_weights(entry: Entry, model: Any, path: Path) -> None:
    """Loads a file of weights, all of them and nothing else.

    Raises:
        DataError: it is missing, damaged, of another model, or holds NaN or infinity.
    """
    import numpy as np

    if not path.is_file():
        raise DataError(
            f"There is no weights file {str(path)!r}. --weights is imagenet, seeded, or the path "
            "of an .h5 file."
        )
    if path.suffix != ".h5":
        raise DataError(
            f"Weights are in an .h5 file. Received: {path.name!r}. A whole model (.keras) is "
            "loaded by tfe_bench.convert, without the zoo."
        )
    try:
        model.load_weights(path)
    except Exception as error:  # h5py's and keras's; their texts name no weight
        raise DataError(
            f"{str(path)!r} is not a weights file of {entry.title}, or a damaged one. Received: "
            f"{type(error).__name__}. Download it again, or save it by model.save_weights."
        ) from error
    for layer in model.layers:
        if not all(np.all(np.isfinite(w)) for w in layer.get_weights()):
            raise DataError(
                f"{str(path)!r} holds NaN or infinity in the weights of layer {layer.name!r}."
            )
