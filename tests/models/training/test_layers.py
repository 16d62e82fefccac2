"""A step on shares changes the weights as Keras does, at the declared cost."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from tests.models.test_execute import named
from tests.models.training.bench import Case, Result, rows, train
from tfe_bench.cluster.simulate import assert_costs
from tfe_bench.models.kinds import registry
from tfe_bench.models.training import plaintext, state, step
from tfe_bench.models.training.recipe import Recipe

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers
Array = np.ndarray[Any, Any]
BATCH = 8
RATE = 0.125


# Activations that have cases as layers, or none. (Keras cannot copy functions with arguments.)
WITH_LAYERS = ("relu", "relu6", "linear", "elu", "leaky_relu", "threshold")
THRESHOLD = functools.partial(keras.activations.threshold, threshold=0.3, default_value=-1.0)


def trained() -> list[list[str]]:
    """Return the other activations with a gradient, several in a model."""
    kinds = {name: kind for name, kind in registry.map_keras_functions(keras).values()}
    own = [n for n in named() if hasattr(keras.activations, n)]
    names = [n for n in own if kinds[n].can_train and n not in WITH_LAYERS]
    return [names[i::4] for i in range(4)]


def activated(names: list[str]) -> Any:
    """Return a model of parallel activations, each of its own values.

    The arguments of exp are small: an exponential of large ones causes steps that diverge.
    """
    x = keras.Input((6,))
    small = {"exponential": keras.initializers.RandomUniform(-0.1, 0.1)}
    parts = [L.Dense(4, n, kernel_initializer=small.get(n, "glorot_uniform"))(x) for n in names]
    return keras.Model(x, L.Dense(3)(L.Concatenate()(parts)))


def of(*layers: Any, shape: tuple[int, ...] = (6, 6, 2)) -> Any:
    return keras.Sequential([L.Input(shape), *layers])


def joined(layer: Any, *branches: Any) -> Any:
    x = keras.Input((6, 6, 2))
    y = layer([b(x) for b in branches])
    return keras.Model(x, L.Dense(3)(L.Flatten()(L.ReLU()(y))))


def ends() -> list[Any]:
    return [L.Flatten(), L.Dense(3)]


def conv(**options: Any) -> Any:
    return L.Conv2D(3, 3, **options)


def merged() -> Any:
    """Return layers of several values, each of three convolutions in rotation."""
    x = keras.Input((6, 6, 2))
    p, q, r = (conv()(x) for _ in range(3))
    mean = L.GlobalAveragePooling2D(keepdims=True)
    every = [L.Maximum()([p, q]), L.Average()([p, q, r]), L.Subtract()([p, L.ReLU()(q)])]
    y = L.Concatenate()([*every, L.Add()([r, mean(p)]), L.Conv2D(2, 3, activation="relu")(x)])
    return keras.Model(x, L.Dense(3)(L.Flatten()(L.ReLU()(y))))


def bent() -> Any:
    """Return parallel piecewise linear functions of a convolution."""
    x = keras.Input((6, 6, 2))
    y = conv()(x)
    large = keras.Sequential([L.Rescaling(4.0), conv(activation="relu6")])
    every = [
        keras.Sequential([L.Reshape((4, 12)), L.ReLU(), L.Reshape((4, 4, 3))])(y),
        L.LeakyReLU(0.2)(y),
        large(x),
        L.ReLU(0.75, 0.25, 0.125)(y),
        L.ELU(0.3)(y),
    ]
    return keras.Model(x, L.Dense(3)(L.Flatten()(L.Concatenate()(every))))


def drawn() -> dict[str, Any]:
    """Draw initializers of a BatchNormalization that has learned."""
    names = ("moving_mean", "moving_variance", "gamma", "beta")
    return {f"{name}_initializer": keras.initializers.RandomUniform(0.4, 1.6) for name in names}


def drawn_alpha() -> Any:
    return keras.initializers.RandomUniform(0.2, 0.9)


def most() -> Any:
    """Return the maximum of each channel, [1, 1, channels]."""
    return keras.Sequential([conv(), L.GlobalMaxPooling2D(keepdims=True)])


def cases() -> dict[str, Any]:
    """Return models with one layer each whose gradient reaches the layers before it."""
    flat, x = (6,), keras.Input((6,))
    same = {"padding": "same"}
    return {
        "dense of images": of(
            L.Conv2D(2, 2),
            L.Dense(3, activation="relu"),
            L.MaxPooling2D(2),
            L.Flatten(),
            L.Dense(2),
        ),
        "dense": of(L.Dense(5, activation="relu"), L.Dense(3), shape=flat),
        "dense without bias": of(L.Dense(5, use_bias=False), L.Dense(3), shape=flat),
        "dense of rows": of(L.Dense(4, activation="relu"), *ends(), shape=(3, 6)),
        "conv2d": of(conv(activation="relu"), *ends()),
        "dilated": of(conv(dilation_rate=2), *ends()),
        "separable, strided, depthwise": of(
            L.SeparableConv2D(3, 3, **same),
            L.ReLU(),
            # (after a ReLU, all values of a window may lie at the edge of another)
            conv(strides=2, **same),
            L.DepthwiseConv2D(2, depth_multiplier=2),
            L.ReLU(),
            *ends(),
        ),
        "rows": of(
            L.Conv1D(3, 3, padding="causal", activation="relu"),
            L.ZeroPadding1D(1),
            L.MaxPooling1D(2),
            L.SeparableConv1D(4, 3, **same),
            L.Conv1DTranspose(2, 3, strides=2),
            L.AveragePooling1D(2),
            L.Conv1D(2, 2, groups=2),
            *ends(),
            shape=(8, 2),
        ),
        "groups, transposed, resized": of(
            L.Conv2D(4, 3, groups=2, strides=2, **same),
            L.Conv2DTranspose(3, 3, strides=2, activation="relu", **same),
            L.UpSampling2D(2, interpolation="bilinear"),
            L.Resizing(5, 4),
            *ends(),
        ),
        "channels first": of(
            L.Conv2D(3, 2, data_format="channels_first"),
            L.BatchNormalization(axis=1),
            L.MaxPooling2D(2, data_format="channels_first"),
            L.GlobalAveragePooling2D(data_format="channels_first"),
            L.Dense(3),
            shape=(2, 7, 7),
        ),
        "merged": merged(),
        "dot": joined(
            L.Dot((2, 1)),
            keras.Sequential([L.Reshape((12, 6)), L.Dense(3)]),
            keras.Sequential([L.Reshape((3, 24)), L.Dense(4)]),
        ),
        "bent": bent(),
        **{f"activations, {i}": activated(names) for i, names in enumerate(trained())},
        "thresholds": of(
            conv(activation=THRESHOLD), L.ReLU(threshold=0.3), L.ReLU(None, 0.5, 0.5), *ends()
        ),
        "sizes": keras.Model(x, L.Dense(3)(keras.ops.abs(L.Dense(5)(x)))),
        "prelu": of(
            conv(), L.PReLU(drawn_alpha(), shared_axes=[1, 2]), L.PReLU(drawn_alpha()), *ends()
        ),
        "volumes": of(
            L.Conv3D(3, 2, (2, 1, 1), "same", activation="relu"),
            L.Conv3D(2, 2, dilation_rate=(2, 1, 1)),
            *ends(),
            shape=(5, 3, 4, 2),
        ),
        "batch norm": of(conv(), L.BatchNormalization(), L.ReLU(), *ends()),
        "batch norm, frozen": of(
            conv(), L.BatchNormalization(trainable=False, **drawn()), L.ReLU(), *ends()
        ),
        "batch norm, frozen alone": of(
            conv(), L.BatchNormalization(trainable=False, **drawn()), *ends()
        ),
        "batch norm alone": of(
            conv(),
            L.BatchNormalization(momentum=0.9, center=False, scale=False),
            L.AveragePooling2D(2),
            *ends(),
        ),
        "batch norm, max pool": of(
            conv(use_bias=False), L.BatchNormalization(), L.MaxPooling2D(2), *ends()
        ),
        "max pool": of(conv(), L.MaxPooling2D(2), *ends()),
        "max pool, relu": of(conv(), L.MaxPooling2D(2), L.ReLU(), *ends()),
        "relu, max pool": of(conv(activation="relu"), L.MaxPooling2D(2), *ends()),
        "max pool alone": of(conv(), L.AveragePooling2D(1), L.MaxPooling2D(3, 1), *ends()),
        "average pool": of(conv(), L.AveragePooling2D(2), *ends()),
        "average pool at edges": of(conv(), L.AveragePooling2D(3, 2, "same"), *ends()),
        "global average": of(conv(activation="relu"), L.GlobalAveragePooling2D(), L.Dense(3)),
        "global max": of(conv(), L.GlobalMaxPooling2D(), L.Dense(3)),
        "softmax": of(conv(), L.Softmax(2), *ends()),
        "multiply": joined(L.Multiply(), conv(), most(), conv()),
        "layer norm": of(
            L.Dense(6),
            L.LayerNormalization(gamma_initializer="random_uniform"),
            *ends(),
            shape=flat,
        ),
        "rms norm": of(L.Dense(6), L.RMSNormalization(), L.ReLU(), *ends(), shape=(3, 6)),
        "group norm": of(conv(), L.Conv2D(4, 1), L.GroupNormalization(2), *ends()),
        "unit norm": of(
            L.Dense(5),
            L.UnitNormalization(),
            L.LayerNormalization(axis=(1, 2), center=False, scale=False),
            *ends(),
            shape=(3, 6),
        ),
        "einsum": of(
            L.EinsumDense("abc,cd->abd", (3, 4), bias_axes="d", activation="relu"),
            L.EinsumDense("abd,bf->adf", (4, 5)),
            *ends(),
            shape=(3, 6),
        ),
        "noise": of(
            L.Dense(5),
            L.GaussianNoise(0.5),
            L.GaussianDropout(0.3),
            L.AlphaDropout(0.4),
            *ends(),
            shape=(4, 3),
        ),
        "dropout of channels": of(
            conv(),
            L.SpatialDropout2D(0.4),
            L.SpatialDropout2D(0.5, "channels_first"),
            L.Reshape((4, 12)),
            L.SpatialDropout1D(0.3),
            *ends(),
        ),
        "moved": of(
            L.Rescaling(0.5, 0.1),
            conv(),
            L.Rescaling(0.3, offset=-0.5),
            L.ZeroPadding2D(((1, 0), (2, 1))),
            conv(),
            L.Identity(),
            L.Permute((3, 1, 2)),
            L.ReLU(),
            L.Cropping2D(((1, 0), (0, 2))),
            L.UpSampling2D((2, 3)),
            *ends(),
        ),
        "moved rows": of(
            L.Dense(3),
            L.RepeatVector(3),
            L.ReLU(),
            L.UpSampling1D(2),
            L.Cropping1D((1, 2)),
            *ends(),
            shape=flat,
        ),
        "dropout": of(conv(activation="relu"), L.Dropout(0.5), L.Dropout(0.3), *ends()),
        "add": joined(L.Add(), conv(), conv()),
    }


# Layers that occur in another case, too.
VARIANTS = (
    *("dense", "dense of rows", "dense without bias", "conv2d", "dilated", "global average"),
    *("batch norm alone", "batch norm, max pool"),
    *("max pool", "max pool alone", "relu, max pool", "average pool", "add"),
    *("batch norm, frozen alone", "global max"),
)


def twin_of(case: Case, model: Any) -> Any:
    """Train the Keras model; the steps are too few to compile a graph."""
    twin = plaintext.PlaintextTwin(model, case.recipe)
    twin.model.run_eagerly = twin.model.jit_compile is not True
    targets = case.recipe.encode_labels(case.y)
    for number in range(case.steps):
        cut = rows(case, number)
        twin.train_step(case.x[cut], targets[cut])
    return twin


def distance(case: Case, result: Result, model: Any) -> float:
    """Return the largest error of a weight, by the largest change in its array (and 2^-6)."""
    before, after = model.get_weights(), twin_of(case, model).model.get_weights()
    actual = state.to_keras_weights(case.recipe, result.state)
    worst = 0.0
    for key, got, want, old in zip(case.recipe.order, actual, after, before, strict=True):
        largest_change = float(np.abs(want - old).max())
        assert largest_change > 0 or key in case.recipe.frozen, key
        worst = max(worst, float(np.abs(got - want).max()) / (largest_change + 2.0**-6))
    return worst


def learned(model: Any, rng: np.random.Generator) -> Case:
    """Run two steps with mean squared error on random data."""
    x = rng.normal(0, 1, (2 * BATCH, *model.input_shape[1:])).clip(-3, 3).astype(np.float32)
    y = rng.normal(0, 1, (2 * BATCH, *model.output_shape[1:]))
    return Case(Recipe.build(model, keras.optimizers.SGD(RATE), "mse", BATCH, seed=3), x, y, 2)


@pytest.mark.parametrize(
    "variants", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["each", "variants"]
)
def test_every_layer_learns_as_keras_does_and_costs_what_is_declared(
    variants: bool, rng: np.random.Generator
) -> None:
    """Check that weights agree within 2^-8 of the largest change, or 4 units in the last place.

    (A product of three values, whose gradients are products too, reaches 3 of them.) A value within
    rounding of a ReLU's edge, or of another value in its window, selects the other branch, and no
    tolerance covers that: about one run of a case in fifty, so each has three tries.
    """
    keras.utils.set_random_seed(int(rng.integers(1 << 31)))
    dealer = int(rng.integers(3))
    models = {name: model for name, model in cases().items() if (name in VARIANTS) == variants}
    for _ in range(3):
        some = {name: learned(model, rng) for name, model in models.items()}
        results = dict(zip(some, train(list(some.values()), dealer), strict=True))
        for name, case in some.items():
            try:
                cost = step.step_cost(case.recipe, case.setting)
                assert_costs(results[name].calls, cost, dealer)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from None
        far = {name: distance(some[name], results[name], model) for name, model in models.items()}
        models = {name: model for name, model in models.items() if far[name] > 2.0**-8}
        if not models:
            return
    raise AssertionError({name: far[name] for name in models})
