"""The promise of calibration: private inputs up to `margin` times the samples give right results.

The models are random, with logits from 1e-3 to thousands, and those of the zoo.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.models.test_execute import make_case, run_all, shake_weights
from tests.refusals import Matching, raises
from tfe_bench.errors import RangeError
from tfe_bench.models import zoo
from tfe_bench.models.convert import calibration, optimize
from tfe_bench.models.convert.from_keras import from_keras
from tfe_bench.models.inference.private import PrivateModel, convert
from tfe_bench.models.zoo import seeded

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers
Array = np.ndarray[Any, Any]
# Factors of the samples: private inputs may be that much larger, and negated.
FACTORS = np.array([1, calibration.MARGIN, -calibration.MARGIN, -0.3])


def scale_sample(samples: Array) -> Array:
    """Return one sample times each of FACTORS."""
    return np.asarray(samples[: len(FACTORS)] * FACTORS.reshape(-1, *[1] * (samples.ndim - 1)))


def check_models(models: dict[str, PrivateModel], images: dict[str, Array], dealer: int) -> None:
    """Check that private results equal those of float64 up to rounding.

    A comparison that is too narrow gives errors as large as the values, or larger.
    """
    cases = [make_case(models[name], images[name]) for name in models]
    results = run_all(cases, dealer, again=False)
    wrong = {}
    for (name, model), (got, _) in zip(models.items(), results, strict=True):
        want = model.plain(images[name])
        largest, off = np.abs(want).max(), np.abs(got - want).max()
        if not off < 2.0**-9 * largest + 2.0**-10:
            wrong[name] = (off, largest)
    assert not wrong


# ---- random models


def random_model(rng: np.random.Generator, last: str) -> Any:
    """Build a small random model of layers in any order, with biases."""
    images = bool(rng.integers(2))
    x = entry = keras.Input((6, 6, 2) if images else (7,))
    for _ in range(int(rng.integers(1, 4))):
        kinds = [
            lambda y: L.ReLU()(linear(y)),
            lambda y: L.ReLU(6.0)(linear(y)),
            lambda y: L.ReLU(6.0)(L.Add()([linear(y), linear(y)])),
            lambda y: L.LeakyReLU(float(rng.choice([0.1, 0.3, 3.0])))(linear(y)),
            lambda y: L.Add()([y, linear(y)]),
            lambda y: L.Activation("sigmoid")(linear(y)),
            lambda y: L.Activation("tanh")(linear(y)),
            lambda y: L.Multiply()([y, L.Activation("sigmoid")(linear(y))]),
            lambda y: L.Multiply()([L.Activation("tanh")(linear(y)) for _ in range(3)]),
            lambda y: L.ReLU()(L.BatchNormalization()(linear(y))),
        ]
        if images:
            kinds += [
                lambda y: L.MaxPooling2D(2, 1, "same")(y),
                lambda y: L.AveragePooling2D(2, 1, "same")(y),
                lambda y: L.ReLU()(L.ZeroPadding2D(1)(y)),
            ]

        def linear(y: Any) -> Any:
            units = int(y.shape[-1])
            return L.Conv2D(units, 3, padding="same")(y) if len(y.shape) == 4 else L.Dense(units)(y)

        x = kinds[int(rng.integers(len(kinds)))](x)
    if len(x.shape) == 4:
        x = L.GlobalAveragePooling2D()(x) if rng.integers(2) else L.Flatten()(x)
    x = L.Dense(5, name="logits")(x)
    return keras.Model(entry, x if last == "linear" else L.Activation(last)(x))


def to_scale(model: Any, samples: Array, largest: float) -> None:
    """Scale the largest logit of the samples to the requested value."""
    logits = model.get_layer("logits")
    largest_logit = float(np.abs(keras.Model(model.input, logits.output)(samples)).max())
    for variable in (logits.kernel, logits.bias):
        variable.assign(variable * (largest / max(largest_logit, 1e-6)))


def check_promise(rng: np.random.Generator, behind: int = 4) -> None:
    """Check a random model at each scale of logits, with varying last layers.

    (For logits of thousands, a sigmoid discloses their rounding.)
    """
    keras.utils.set_random_seed(int(rng.integers(1 << 31)))
    models, images = {}, {}
    turns = itertools.cycle(("softmax", "sigmoid", "tanh", "linear"))
    for largest in (1e-3, 0.03, 0.2, 1.0, 8.0, 1000.0):
        for last in itertools.islice(turns, behind) if largest < 100 else ("linear",):
            model = shake_weights(random_model(rng, last), rng)
            samples = rng.normal(0, 1, (8, *model.input_shape[1:]))
            to_scale(model, samples, largest)
            name = f"{last} of {largest}"
            models[name] = convert(model, samples=samples)
            images[name] = scale_sample(samples)
    check_models(models, images, int(rng.integers(3)))


def test_drawn_models_are_right_up_to_the_margin(rng: np.random.Generator) -> None:
    check_promise(rng, behind=2)


@pytest.mark.slow
@pytest.mark.parametrize("again", range(6))
def test_many_drawn_models_are_right_up_to_the_margin(again: int, rng: np.random.Generator) -> None:
    check_promise(rng)


# ---- the zoo


@pytest.mark.parametrize(
    "name",
    [*("network-a", "network-b", "network-d"), pytest.param("network-c", marks=pytest.mark.slow)],
)
def test_networks_of_the_zoo_are_right_up_to_the_margin(name: str, seed: int) -> None:
    model = zoo.build(name)
    samples = zoo.samples(model.entry, seed)
    private = convert(model.keras, samples=samples)
    check_models({name: private}, {name: scale_sample(samples)}, seed % 3)


APPLICATIONS = ["MobileNetV2", "ResNet50", "ResNet50V2", "DenseNet121", "VGG19"]


@pytest.mark.slow
@pytest.mark.parametrize("name", APPLICATIONS)
def test_untrained_models_of_the_zoo_are_right_up_to_the_margin(name: str, seed: int) -> None:
    """Use Keras' initial weights: MobileNetV2's logits are below 1e-11."""
    make = getattr(keras.applications, name)
    model = make(weights=None, input_shape=(32, 32, 3), classes=10)
    samples = np.random.default_rng(seed).uniform(-1, 1, (4, 32, 32, 3))
    check_models({name: convert(model, samples=samples)}, {name: scale_sample(samples)}, seed % 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", APPLICATIONS)
def test_filled_models_of_the_zoo_are_right_up_to_the_margin(name: str, seed: int) -> None:
    """Use the zoo's weights, whose biases make logits 400 times those of the samples.

    64 images are used, as such a network distinguishes roundings for few of them.
    """
    make = getattr(keras.applications, name)
    shape = (32, 32, 3)
    model = make(weights=None, input_shape=shape, classes=10, classifier_activation=None)
    shown = seeded.generate_synthetic_images(shape, seed, 64) / 127.5 - 1
    seeded.fill_seeded_weights(model, shown, seed)
    private = convert(model, samples=shown[:4])
    images = scale_sample(shown)
    ((got, _),) = run_all([make_case(private, images)], seed % 3, again=False)
    want = private.plain(images)
    assert np.all(np.abs(got - want).max(1) < np.abs(want).max(1) / 16)


# ---- individual cases


ALONE: dict[str, tuple[Any, float]] = {
    # a cap above all values
    "relu6 of little": (lambda x: L.ReLU(6.0)(L.Add()([x, x])), 1e-2),
    # products of more than the values
    "steep leaky relu": (lambda x: L.LeakyReLU(60.0)(L.Add()([x, x])), 2.0**19),
    "three factors": (lambda x: L.Multiply()([x, x, x]), 2.0**7),
    "sigmoid of little": (lambda x: L.Activation("sigmoid")(x), 1e-3),
    "tanh of little": (lambda x: L.Activation("tanh")(x), 1e-3),
    "softmax of little": (lambda x: L.Softmax()(x), 1e-3),
}


def test_layers_alone_are_right_at_the_edge_of_their_ranges(rng: np.random.Generator) -> None:
    models, images = {}, {}
    for name, (layer, largest) in ALONE.items():
        x = keras.Input((16,))
        samples = rng.uniform(-largest, largest, (4, 16))
        models[name] = convert(keras.Model(x, layer(x)), samples=samples)
        images[name] = scale_sample(samples)
    check_models(models, images, int(rng.integers(3)))


def test_bounds_hold_what_larger_samples_give(rng: np.random.Generator) -> None:
    """Check a bias that cancels on the samples, but not on larger or negated ones."""
    x = keras.Input((1,), name="x")
    dense = L.Dense(1, activation="relu", name="d")
    model = keras.Model(x, dense(x))
    dense.set_weights([np.array([[1.0]]), np.array([-1.0])])
    graph = optimize.optimize_graph(from_keras(model))
    ranges = calibration.calibrate_ranges(graph, np.array([[1.0]]))
    assert ranges["d:sum"] >= 5.0 and ranges["x"] == calibration.MARGIN
    assert calibration.calibrate_ranges(graph, np.array([[1.0]]), margin=1.0)["d:sum"] >= 2.0


def test_a_product_that_fits_no_fixed_point_is_refused() -> None:
    x = keras.Input((2,))
    model = keras.Model(x, L.Multiply(name="squared")([x, x]))
    with raises(RangeError, "range-too-large", received=Matching("squared")):
        convert(model, samples=np.full((1, 2), 2.0**15))
