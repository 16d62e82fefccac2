"""The tables of docs/keras_layers.md: every class that Keras exports is tried, none is listed.

`python -m docs.samples --write docs/keras_layers.md` updates them.  A layer "predicts" if `convert`
accepts a model of it and the plaintext result agrees with Keras; it "trains" if
`trainable(...).compile` accepts a model with it.  Refusals have the text of their error.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

import tfe_bench as tfe
from tfe_bench.errors import RangeError, TfeBenchError

SEED = 7
# Relative to the largest value: Keras computes in float32, `compute_plaintext` in float64.
NEAR = 1e-4
# Refusals with no more information than the name.
NOTHING = "none"
# Input shapes without the batch, for layers without declared inputs.
IMAGE, SERIES, ROW, VOLUME = (6, 6, 3), (6, 4), (4,), (4, 4, 4, 2)
SHAPES = (IMAGE, SERIES, ROW, VOLUME)
_L = keras.layers

# Constructor arguments of layers that need some.
MADE: dict[str, Callable[[], Any]] = {
    "Activation": lambda: _L.Activation("relu"),
    "AdaptiveAveragePooling1D": lambda: _L.AdaptiveAveragePooling1D(2),
    "AdaptiveAveragePooling2D": lambda: _L.AdaptiveAveragePooling2D(2),
    "AdaptiveAveragePooling3D": lambda: _L.AdaptiveAveragePooling3D(2),
    "AdaptiveMaxPooling1D": lambda: _L.AdaptiveMaxPooling1D(2),
    "AdaptiveMaxPooling2D": lambda: _L.AdaptiveMaxPooling2D(2),
    "AdaptiveMaxPooling3D": lambda: _L.AdaptiveMaxPooling3D(2),
    "AlphaDropout": lambda: _L.AlphaDropout(0.5),
    "AveragePooling1D": lambda: _L.AveragePooling1D(2),
    "AveragePooling2D": lambda: _L.AveragePooling2D(2),
    "AveragePooling3D": lambda: _L.AveragePooling3D(2),
    "Bidirectional": lambda: _L.Bidirectional(_L.LSTM(2)),
    "CategoryEncoding": lambda: _L.CategoryEncoding(4),
    "CenterCrop": lambda: _L.CenterCrop(4, 4),
    "Conv1D": lambda: _L.Conv1D(3, 2),
    "Conv1DTranspose": lambda: _L.Conv1DTranspose(3, 2),
    "Conv2D": lambda: _L.Conv2D(3, 2),
    "Conv2DTranspose": lambda: _L.Conv2DTranspose(3, 2),
    "Conv3D": lambda: _L.Conv3D(3, 2),
    "Conv3DTranspose": lambda: _L.Conv3DTranspose(3, 2),
    "ConvLSTM1D": lambda: _L.ConvLSTM1D(2, 2),
    "ConvLSTM2D": lambda: _L.ConvLSTM2D(2, 2),
    "ConvLSTM3D": lambda: _L.ConvLSTM3D(2, 2),
    "Cropping1D": lambda: _L.Cropping1D(1),
    "Cropping2D": lambda: _L.Cropping2D(1),
    "Cropping3D": lambda: _L.Cropping3D(1),
    "Dense": lambda: _L.Dense(3),
    "DepthwiseConv1D": lambda: _L.DepthwiseConv1D(2),
    "DepthwiseConv2D": lambda: _L.DepthwiseConv2D(2),
    "Discretization": lambda: _L.Discretization([-1.0, 0.0, 1.0]),
    "Dot": lambda: _L.Dot(1),
    "Dropout": lambda: _L.Dropout(0.5),
    "EinsumDense": lambda: _L.EinsumDense("abc,cd->abd", (6, 3)),
    "Embedding": lambda: _L.Embedding(8, 3),
    "GRU": lambda: _L.GRU(3),
    "GaussianDropout": lambda: _L.GaussianDropout(0.5),
    "GaussianNoise": lambda: _L.GaussianNoise(0.5),
    "GroupNormalization": lambda: _L.GroupNormalization(1),
    "GroupQueryAttention": lambda: _L.GroupQueryAttention(2, 2, 1),
    "Hashing": lambda: _L.Hashing(4),
    "IntegerLookup": lambda: _L.IntegerLookup(vocabulary=[1, 2]),
    "LSTM": lambda: _L.LSTM(3),
    "Lambda": lambda: _L.Lambda(lambda x: 2 * x),
    "MultiHeadAttention": lambda: _L.MultiHeadAttention(2, 2),
    "Normalization": lambda: _L.Normalization(mean=0.5, variance=2.0),
    "Permute": lambda: _L.Permute((2, 1)),
    "Pipeline": lambda: _L.Pipeline([_L.Rescaling(0.5)]),
    "RNN": lambda: _L.RNN(_L.SimpleRNNCell(2)),
    "RandomBrightness": lambda: _L.RandomBrightness(0.5),
    "RandomColorDegeneration": lambda: _L.RandomColorDegeneration(0.5),
    "RandomContrast": lambda: _L.RandomContrast(0.5),
    "RandomCrop": lambda: _L.RandomCrop(4, 4),
    "RandomHue": lambda: _L.RandomHue(0.5),
    "RandomPosterization": lambda: _L.RandomPosterization(4),
    "RandomRotation": lambda: _L.RandomRotation(0.5),
    "RandomSaturation": lambda: _L.RandomSaturation(0.5),
    "RandomSharpness": lambda: _L.RandomSharpness(0.5),
    "RandomTranslation": lambda: _L.RandomTranslation(0.5, 0.5),
    "RandomZoom": lambda: _L.RandomZoom(0.5),
    "RepeatVector": lambda: _L.RepeatVector(2),
    "Rescaling": lambda: _L.Rescaling(0.5, 1.0),
    "Reshape": lambda: _L.Reshape((-1,)),
    "Resizing": lambda: _L.Resizing(4, 4),
    "ReversibleEmbedding": lambda: _L.ReversibleEmbedding(8, 3),
    "STFTSpectrogram": lambda: _L.STFTSpectrogram("log", 4, 2, 4),
    "SeparableConv1D": lambda: _L.SeparableConv1D(3, 2),
    "SeparableConv2D": lambda: _L.SeparableConv2D(3, 2),
    "SimpleRNN": lambda: _L.SimpleRNN(3),
    "SpatialDropout1D": lambda: _L.SpatialDropout1D(0.5),
    "SpatialDropout2D": lambda: _L.SpatialDropout2D(0.5),
    "SpatialDropout3D": lambda: _L.SpatialDropout3D(0.5),
    "SpectralNormalization": lambda: _L.SpectralNormalization(_L.Dense(3)),
    "StringLookup": lambda: _L.StringLookup(vocabulary=["a", "b"]),
    "TextVectorization": lambda: _L.TextVectorization(vocabulary=["a", "b"]),
    "TimeDistributed": lambda: _L.TimeDistributed(_L.Dense(3)),
}
# Inputs of layers that accept no numbers of SHAPES.
GIVEN: dict[str, tuple[tuple[int, ...], str]] = {
    **dict.fromkeys(("AdditiveAttention", "Attention"), (SERIES, "float32")),
    **{
        f"Adaptive{kind}Pooling{n}D": (shape, "float32")
        for kind in ("Average", "Max")
        for n, shape in ((1, SERIES), (2, IMAGE), (3, VOLUME))
    },
    "ConvLSTM1D": ((3, 6, 4), "float32"),
    "ConvLSTM2D": ((3, 6, 6, 4), "float32"),
    "ConvLSTM3D": ((3, 4, 4, 4, 2), "float32"),
    "EinsumDense": (SERIES, "float32"),
    **dict.fromkeys(
        ("CategoryEncoding", "Embedding", "Hashing", "IntegerLookup", "ReversibleEmbedding"),
        (ROW, "int32"),
    ),
    "STFTSpectrogram": ((16, 1), "float32"),
    "StringLookup": (ROW, "string"),
    "TextVectorization": ((1,), "string"),
}
# Layers of several tensors, as a list and as separate arguments.
LISTED = (
    *("Add", "Average", "Concatenate", "Dot", "Maximum", "Minimum", "Multiply", "Subtract"),
    *("AdditiveAttention", "Attention"),
)
TWICE = ("GroupQueryAttention", "MultiHeadAttention")
# Classes that models do not contain directly; they are not counted.
NO_LAYERS = {
    "Layer": "what layers inherit from",
    "Wrapper": "what layers inherit from",
    **dict.fromkeys(("GRUCell", "LSTMCell", "SimpleRNNCell", "StackedRNNCells"), "a part of RNN"),
    **dict.fromkeys(
        ("FlaxLayer", "JaxLayer", "TFSMLayer", "TorchModuleWrapper"), "another framework's code"
    ),
    "Equalization": "Keras builds no functional model of it",
    "MaxNumBoundingBoxes": "takes no tensor but boxes",
    "HashedCrossing": "takes texts, which no model computes with",
}
# Constructor calls of schedules and of optimizers with arguments.
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "PiecewiseConstantDecay": lambda kind: kind([2], [0.1, 0.05]),
    "ExponentialDecay": lambda kind: kind(0.1, 10, 0.5),
    "InverseTimeDecay": lambda kind: kind(0.1, 10, 0.5),
}
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "LossScaleOptimizer": lambda kind: kind(keras.optimizers.SGD()),
    "MultiOptimizer": lambda kind: kind([(keras.optimizers.SGD(), [])]),
}
# The smallest member of each family; pixels.
FAMILIES = {
    "ConvNeXt": ("ConvNeXtTiny", 64),
    "DenseNet": ("DenseNet121", 64),
    "EfficientNet": ("EfficientNetB0", 64),
    "EfficientNetV2": ("EfficientNetV2B0", 64),
    "Inception-ResNet": ("InceptionResNetV2", 75),
    "Inception": ("InceptionV3", 75),
    "MobileNet": ("MobileNet", 64),
    "MobileNetV2": ("MobileNetV2", 64),
    "MobileNetV3": ("MobileNetV3Small", 64),
    "NASNet": ("NASNetMobile", 64),
    "ResNet": ("ResNet50", 64),
    "ResNetV2": ("ResNet50V2", 64),
    "VGG": ("VGG16", 64),
    "Xception": ("Xception", 71),
}


@dataclass(frozen=True)
class TriedClass:
    """Result of trying one class.

    Attributes:
        name: of the class or function.
        predicts, trains: "yes", or the reason of the refusal.
    """

    name: str
    predicts: str
    trains: str = ""


# ---- exports of Keras


def list_exported(module: Any, base: type | None = None) -> dict[str, Any]:
    """Return the classes of a module below a base, or its functions; aliases once."""
    found = {}
    for alias, value in vars(module).items():
        if base is None:
            fits = inspect.isfunction(value) and alias not in ("get", "serialize", "deserialize")
        else:
            fits = inspect.isclass(value) and issubclass(value, base) and value is not base
        if fits and not alias.startswith("_"):
            own = value.__name__
            found[own if hasattr(module, own) else alias] = value
    return dict(sorted(found.items()))


def refusal_text(error: Exception, name: str) -> str:
    """Return the reason of a refusal as a cell of a table."""
    text = " ".join(str(error).split())
    if re.search(rf"(Received:|activation is) '?{name}'?\.?$", text.partition(" (Supported")[0]):
        return NOTHING
    text = re.sub(r"^Unsupported layers in '[^']*': ", "", text)
    text = re.sub(r"\.? \d+ layers of Keras are supported: .*$", "", text)
    text = re.sub(r" \(Did you mean \"\w+\"\?\)", "", text)
    text = re.sub(r"^Layers that cannot be trained: (.*?)\. Those that can: .*$", r"\1", text)
    text = re.sub(r"^\w+ '[\w/]+'( \((?P<why>.*)\))?$", lambda m: m["why"] or NOTHING, text)
    text = re.sub(r"^'[\w/]+' \((?P<why>.*)\)$", r"\g<why>", text)
    if re.fullmatch(r"its activation is '\w+'|[a-z]+[a-z0-9_]*", text):
        return NOTHING
    text = re.sub(r"'(\w+?)_\d+'", r"'\1'", text)  # (Keras numbers its layers)
    return text.replace("|", "\\|")[:200]


# ---- layers


def _build_layer(name: str, cls: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (input, output) of a layer for each kind of input that Keras accepts."""
    for shape, dtype in [GIVEN[name]] if name in GIVEN else [(s, "float32") for s in SHAPES]:
        x = keras.Input(shape, dtype=dtype)
        given = ([x, x],) if name in LISTED else (x, x) if name in TWICE else (x,)
        try:
            y = MADE.get(name, cls)()(*given)
            keras.Model(x, y)
        except Exception:  # try another rank
            continue
        yield x, y


def try_layer(name: str, cls: Any) -> TriedClass:
    """Try one class of layers, with the first input that Keras and conversion accept."""
    refused = None
    for x, y in _build_layer(name, cls):
        model = keras.Model(x, y)
        try:
            _check_plaintext(model)
        except TfeBenchError as error:
            refused = refused or TriedClass(name, refusal_text(error, name))
            continue
        return TriedClass(name, "yes", _try_training(name, x, y))
    if refused is None:
        raise LookupError(f"Say in docs/keras_page.py how {name} is made, and what it takes.")
    return refused


def _check_plaintext(model: Any) -> None:
    """Check that the plaintext result of a converted model agrees with Keras.

    Raises:
        TfeBenchError: the model is not converted.
        ArithmeticError: the results differ.
    """
    rng = np.random.default_rng(SEED)
    shape = (2, *model.inputs[0].shape[1:])
    given: Any = rng.normal(size=shape).astype("float32")
    try:
        private = tfe.convert(model)
    except RangeError:  # an exponential of unbounded inputs
        private = tfe.convert(model, samples=given)
    if private.graph.tokens:
        given = rng.integers(0, min(private.graph.tokens.values()), shape)
    theirs = np.asarray(model(given, training=False))
    ours = private.plain(given)
    if not np.abs(ours - theirs).max() <= NEAR * max(1.0, np.abs(theirs).max()):
        raise ArithmeticError(f"A model of {model.layers[-1].name} differs from Keras.")


def _try_training(name: str, x: Any, y: Any) -> str:
    """Return the result of training a model with a layer."""
    end = keras.layers.Dense(1)(y if len(y.shape) == 2 else keras.layers.Flatten()(y))
    try:
        tfe.trainable(keras.Model(x, end)).compile("sgd", "mse")
        return "yes"
    except TfeBenchError as error:
        refused = refusal_text(error, name)
    own = y._keras_history.operation
    for loss in ("categorical_crossentropy", "binary_crossentropy"):
        try:
            again = type(own).from_config(own.get_config())
            network = keras.Sequential([keras.Input(ROW), keras.layers.Dense(3), again])
            tfe.trainable(network).compile("sgd", loss)
            return "as the last"
        except (TfeBenchError, ValueError, TypeError):  # or Keras refuses the model
            pass
    return "no" if refused == NOTHING else f"no: {refused}"


def try_layers() -> list[TriedClass]:
    """Try all classes of keras.layers that are layers."""
    found = list_exported(keras.layers, keras.layers.Layer)
    del found["InputLayer"]  # part of every model
    return [try_layer(name, cls) for name, cls in found.items() if name not in NO_LAYERS]


# ---- classes other than layers


# Arguments without defaults.
FUNCTIONS = {
    "threshold": functools.partial(keras.activations.threshold, threshold=0.5, default_value=0.0)
}


def try_activations() -> list[TriedClass]:
    """Try all functions of keras.activations."""
    found = []
    for name in list_exported(keras.activations):
        x = keras.Input(SERIES)
        try:
            y = keras.layers.Activation(FUNCTIONS.get(name, name))(x)
            model = keras.Model(x, y)
            _check_plaintext(model)
            found.append(TriedClass(name, "yes", _try_training(name, x, y)))
        except TfeBenchError as error:
            found.append(TriedClass(name, refusal_text(error, name)))
    return found


def _try_compiled(name: str, ways: Iterator[tuple[Any, Any, Any]]) -> TriedClass:
    """Return whether training accepts one of some (model, optimizer, loss)."""
    refused = ""
    for model, optimizer, loss in ways:
        try:
            tfe.trainable(model).compile(optimizer, loss)
            return TriedClass(name, "", "yes")
        except TfeBenchError as error:
            refused = refused or refusal_text(error, name)
    return TriedClass(name, "", refused)


def _small_network(outputs: int, end: str | None = None, **options: Any) -> Any:
    dense = keras.layers.Dense(outputs, activation=end, **options)
    return keras.Sequential([keras.Input(ROW), dense])


def try_losses() -> list[TriedClass]:
    """Try all classes of keras.losses, with a model whose last layer fits."""
    ends = ((3, "softmax"), (1, "sigmoid"), (1, None), (1, "tanh"), (2, "relu"))

    def list_ways(cls: Any) -> Iterator[tuple[Any, Any, Any]]:
        for end in ends:
            yield _small_network(*end), "sgd", cls()

    return [
        _try_compiled(name, list_ways(cls))
        for name, cls in list_exported(keras.losses, keras.Loss).items()
    ]


def try_optimizers() -> list[TriedClass]:
    """Try all classes of keras.optimizers, with their defaults."""
    found = list_exported(keras.optimizers, keras.Optimizer)
    made = ((name, OPTIMIZERS.get(name, lambda kind: kind())(cls)) for name, cls in found.items())
    return [_try_compiled(name, iter([(_small_network(1), each, "mse")])) for name, each in made]


def try_schedules() -> list[TriedClass]:
    """Try all classes of keras.optimizers.schedules."""
    module = keras.optimizers.schedules
    found = []
    for name, cls in list_exported(module, module.LearningRateSchedule).items():
        rates = SCHEDULES.get(name, lambda kind: kind(0.1, 10))(cls)
        optimizer = keras.optimizers.SGD(rates)
        found.append(_try_compiled(name, iter([(_small_network(1), optimizer, "mse")])))
    return found


def try_regularizers() -> list[TriedClass]:
    """Try all classes of keras.regularizers, for a kernel."""
    found = list_exported(keras.regularizers, keras.Regularizer)
    made = ((name, _small_network(2, kernel_regularizer=cls())) for name, cls in found.items())
    return [_try_compiled(name, iter([(model, "sgd", "mse")])) for name, model in made]


def try_applications() -> list[TriedClass]:
    """Try the smallest member of each family of keras.applications, with random weights."""
    found = []
    for family, (name, size) in FAMILIES.items():
        keras.utils.set_random_seed(SEED)
        make = getattr(keras.applications, name)
        try:
            model = make(weights=None, input_shape=(size, size, 3), classes=10)
            _check_plaintext(model)
            status = "yes"
        except TfeBenchError as error:
            lacking = sorted(
                set(re.findall(r"[:;] (\w+) '", str(error).partition(". Supported")[0]))
            )
            status = f"lacks {', '.join(lacking)}" if lacking else refusal_text(error, name)
        found.append(TriedClass(f"{family}: `{name}`", status))
        keras.backend.clear_session()
    return found


# ---- tables


def _is_supported(cell: str) -> bool:
    return cell in ("yes", "as the last")


def _describe_fate(tried: TriedClass) -> str:
    """Describe the result of a class."""
    predicts, trains = tried.predicts, tried.trains
    if not _is_supported(predicts or trains):
        why = (predicts or trains).removeprefix("no: ")
        return "refused" if why == NOTHING else f"refused ({why})"
    if not predicts:
        return "train"
    if trains == "yes":
        return "predict and train"
    if trains == "as the last":
        return "predict, and train as the last layer"
    return f"predict, and do not train{f' ({trains[4:]})' if trains[4:] else ''}"


def _list_by_fate(tried: list[TriedClass]) -> str:
    """Group classes by their result, the best first."""
    fates: dict[str, list[str]] = {}
    for t in sorted(
        tried, key=lambda t: (not _is_supported(t.predicts or "yes"), not _is_supported(t.trains))
    ):
        fates.setdefault(_describe_fate(t), []).append(f"`{t.name}`")
    return "".join(f"- **{fate}:** {', '.join(names)}\n" for fate, names in fates.items())


def _count_supported(what: str, tried: list[TriedClass]) -> str:
    numbers = [sum(_is_supported(getattr(t, of)) for t in tried) for of in ("predicts", "trains")]
    predicts = str(numbers[0]) if any(t.predicts for t in tried) else ""
    return f"| {what} | {predicts} | {numbers[1]} | {len(tried)} |\n"


def tables() -> str:
    """Return the totals, and tables of everything except the applications."""
    all_tried = {
        "layers": try_layers(),
        "activations": try_activations(),
        "losses": try_losses(),
        "optimizers": try_optimizers(),
        "schedules": try_schedules(),
        "regularizers": try_regularizers(),
    }
    left = ", ".join(f"`{name}` ({why})" for name, why in sorted(NO_LAYERS.items()))
    parts = ["| of Keras' | predict | train | of |\n|---|---|---|---|\n"]
    parts += [_count_supported(what, tried) for what, tried in all_tried.items()]
    parts.append(f"\nNot counted are `InputLayer`, {left}.\n")
    for what, tried in all_tried.items():
        parts.append(f"\n### {what.capitalize()}\n\n{_list_by_fate(tried)}")
    return "".join(parts)


def applications_table() -> str:
    """Return the table of the families of keras.applications."""
    tried = try_applications()
    good = sum(_is_supported(t.predicts) for t in tried)
    head = f"{good} of {len(tried)} families predict.\n\n| family | predicts |\n|---|---|\n"
    return head + "".join(f"| {t.name} | {t.predicts} |\n" for t in tried)
