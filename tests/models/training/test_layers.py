"""A step on shares changes the weights as Keras does, at the declared cost."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from tests.models.test_execute import list_activations
from tests.models.training.bench import Case, Result, batch_rows, train_cases
from tfe_bench.cluster.simulate import assert_costs
from tfe_bench.models.layers.base import registry
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


def activation_models() -> list[list[str]]:
    """Return the other activations with a gradient, several in a model."""
    kinds = {name: kind for name, kind in registry.map_keras_functions(keras).values()}
    own = [n for n in list_activations() if hasattr(keras.activations, n)]
    names = [n for n in own if kinds[n].can_train and n not in WITH_LAYERS]
    return [names[i::4] for i in range(4)]


def parallel_activations(names: list[str]) -> Any:
    """Return a model of parallel activations, each of its own values.

    The arguments of exp are small: an exponential of large ones causes steps that diverge.
    """
    x = keras.Input((6,))
    small = {"exponential": keras.initializers.RandomUniform(-0.1, 0.1)}
    parts = [L.Dense(4, n, kernel_initializer=small.get(n, "glorot_uniform"))(x) for n in names]
    return keras.Model(x, L.Dense(3)(L.Concatenate()(parts)))


def model_of(*layers: Any, shape: tuple[int, ...] = (6, 6, 2)) -> Any:
    return keras.Sequential([L.Input(shape), *layers])


def join_layers(layer: Any, *branches: Any) -> Any:
    x = keras.Input((6, 6, 2))
    y = layer([b(x) for b in branches])
    return keras.Model(x, L.Dense(3)(L.Flatten()(L.ReLU()(y))))


def output_layers() -> list[Any]:
    return [L.Flatten(), L.Dense(3)]


def make_conv(**options: Any) -> Any:
    return L.Conv2D(3, 3, **options)


def merged_layers() -> Any:
    """Return layers of several values, each of three convolutions in rotation."""
    x = keras.Input((6, 6, 2))
    p, q, r = (make_conv()(x) for _ in range(3))
    mean = L.GlobalAveragePooling2D(keepdims=True)
    every = [L.Maximum()([p, q]), L.Average()([p, q, r]), L.Subtract()([p, L.ReLU()(q)])]
    y = L.Concatenate()([*every, L.Add()([r, mean(p)]), L.Conv2D(2, 3, activation="relu")(x)])
    return keras.Model(x, L.Dense(3)(L.Flatten()(L.ReLU()(y))))


def piecewise_layers() -> Any:
    """Return parallel piecewise linear functions of a convolution."""
    x = keras.Input((6, 6, 2))
    y = make_conv()(x)
    large = keras.Sequential([L.Rescaling(4.0), make_conv(activation="relu6")])
    every = [
        keras.Sequential([L.Reshape((4, 12)), L.ReLU(), L.Reshape((4, 4, 3))])(y),
        L.LeakyReLU(0.2)(y),
        large(x),
        L.ReLU(0.75, 0.25, 0.125)(y),
        L.ELU(0.3)(y),
    ]
    return keras.Model(x, L.Dense(3)(L.Flatten()(L.Concatenate()(every))))


def binned_layers() -> Any:
    """Return bins of the inputs, and of weighted sums that are far from any boundary."""
    x = keras.Input((6,))
    sums = L.Dense(2)(x)
    codes = L.Flatten()(L.Discretization([-0.5, 0.25], output_mode="one_hot")(x))
    parts = [sums, codes, L.Discretization([-50.0, -25.0, 25.0])(sums)]
    return keras.Model(x, L.Dense(3)(L.Concatenate()(parts)))


def draw_initializers() -> dict[str, Any]:
    """Draw initializers of a BatchNormalization that has learned."""
    names = ("moving_mean", "moving_variance", "gamma", "beta")
    return {f"{name}_initializer": keras.initializers.RandomUniform(0.4, 1.6) for name in names}


def drawn_alpha() -> Any:
    return keras.initializers.RandomUniform(0.2, 0.9)


def channel_maximum() -> Any:
    """Return the maximum of each channel, [1, 1, channels]."""
    return keras.Sequential([make_conv(), L.GlobalMaxPooling2D(keepdims=True)])


def layer_models() -> dict[str, Any]:
    """Return models with one layer each whose gradient reaches the layers before it."""
    flat, x = (6,), keras.Input((6,))
    same = {"padding": "same"}
    return {
        "dense of images": model_of(
            L.Conv2D(2, 2),
            L.Dense(3, activation="relu"),
            L.MaxPooling2D(2),
            L.Flatten(),
            L.Dense(2),
        ),
        "dense": model_of(L.Dense(5, activation="relu"), L.Dense(3), shape=flat),
        "dense without bias": model_of(L.Dense(5, use_bias=False), L.Dense(3), shape=flat),
        "dense of rows": model_of(L.Dense(4, activation="relu"), *output_layers(), shape=(3, 6)),
        "conv2d": model_of(make_conv(activation="relu"), *output_layers()),
        "dilated": model_of(make_conv(dilation_rate=2), *output_layers()),
        "separable, strided, depthwise": model_of(
            L.SeparableConv2D(3, 3, **same),
            L.ReLU(),
            # (after a ReLU, all values of a window may lie at the edge of another)
            make_conv(strides=2, **same),
            L.DepthwiseConv2D(2, depth_multiplier=2),
            L.ReLU(),
            *output_layers(),
        ),
        "rows": model_of(
            L.Conv1D(3, 3, padding="causal", activation="relu"),
            L.ZeroPadding1D(1),
            L.MaxPooling1D(2),
            L.SeparableConv1D(4, 3, **same),
            L.Conv1DTranspose(2, 3, strides=2),
            L.AveragePooling1D(2),
            L.Conv1D(2, 2, groups=2),
            *output_layers(),
            shape=(8, 2),
        ),
        "groups, transposed, resized": model_of(
            L.Conv2D(4, 3, groups=2, strides=2, **same),
            L.Conv2DTranspose(3, 3, strides=2, activation="relu", **same),
            L.UpSampling2D(2, interpolation="bilinear"),
            L.Resizing(5, 4),
            *output_layers(),
        ),
        "channels first": model_of(
            L.Conv2D(3, 2, data_format="channels_first"),
            L.BatchNormalization(axis=1),
            L.MaxPooling2D(2, data_format="channels_first"),
            L.GlobalAveragePooling2D(data_format="channels_first"),
            L.Dense(3),
            shape=(2, 7, 7),
        ),
        "merged": merged_layers(),
        "bins": binned_layers(),
        "dot": join_layers(
            L.Dot((2, 1)),
            keras.Sequential([L.Reshape((12, 6)), L.Dense(3)]),
            keras.Sequential([L.Reshape((3, 24)), L.Dense(4)]),
        ),
        "bent": piecewise_layers(),
        **{
            f"activations, {i}": parallel_activations(names)
            for i, names in enumerate(activation_models())
        },
        "thresholds": model_of(
            make_conv(activation=THRESHOLD),
            L.ReLU(threshold=0.3),
            L.ReLU(None, 0.5, 0.5),
            *output_layers(),
        ),
        "sizes": keras.Model(x, L.Dense(3)(keras.ops.abs(L.Dense(5)(x)))),
        "prelu": model_of(
            make_conv(),
            L.PReLU(drawn_alpha(), shared_axes=[1, 2]),
            L.PReLU(drawn_alpha()),
            *output_layers(),
        ),
        "volumes": model_of(
            L.Conv3D(3, 2, (2, 1, 1), "same", activation="relu"),
            L.Conv3D(2, 2, dilation_rate=(2, 1, 1)),
            *output_layers(),
            shape=(5, 3, 4, 2),
        ),
        "batch norm": model_of(make_conv(), L.BatchNormalization(), L.ReLU(), *output_layers()),
        "batch norm, frozen": model_of(
            make_conv(),
            L.BatchNormalization(trainable=False, **draw_initializers()),
            L.ReLU(),
            *output_layers(),
        ),
        "batch norm, frozen alone": model_of(
            make_conv(),
            L.BatchNormalization(trainable=False, **draw_initializers()),
            *output_layers(),
        ),
        "batch norm alone": model_of(
            make_conv(),
            L.BatchNormalization(momentum=0.9, center=False, scale=False),
            L.AveragePooling2D(2),
            *output_layers(),
        ),
        "batch norm, max pool": model_of(
            make_conv(use_bias=False), L.BatchNormalization(), L.MaxPooling2D(2), *output_layers()
        ),
        "max pool": model_of(make_conv(), L.MaxPooling2D(2), *output_layers()),
        "max pool, relu": model_of(make_conv(), L.MaxPooling2D(2), L.ReLU(), *output_layers()),
        "relu, max pool": model_of(
            make_conv(activation="relu"), L.MaxPooling2D(2), *output_layers()
        ),
        "max pool alone": model_of(
            make_conv(), L.AveragePooling2D(1), L.MaxPooling2D(3, 1), *output_layers()
        ),
        "average pool": model_of(make_conv(), L.AveragePooling2D(2), *output_layers()),
        "average pool at edges": model_of(
            make_conv(), L.AveragePooling2D(3, 2, "same"), *output_layers()
        ),
        "global average": model_of(
            make_conv(activation="relu"), L.GlobalAveragePooling2D(), L.Dense(3)
        ),
        "global max": model_of(make_conv(), L.GlobalMaxPooling2D(), L.Dense(3)),
        "softmax": model_of(make_conv(), L.Softmax(2), *output_layers()),
        "multiply": join_layers(L.Multiply(), make_conv(), channel_maximum(), make_conv()),
        "layer norm": model_of(
            L.Dense(6),
            L.LayerNormalization(gamma_initializer="random_uniform"),
            *output_layers(),
            shape=flat,
        ),
        "rms norm": model_of(
            L.Dense(6), L.RMSNormalization(), L.ReLU(), *output_layers(), shape=(3, 6)
        ),
        "group norm": model_of(
            make_conv(), L.Conv2D(4, 1), L.GroupNormalization(2), *output_layers()
        ),
        "unit norm": model_of(
            L.Dense(5),
            L.UnitNormalization(),
            L.LayerNormalization(axis=(1, 2), center=False, scale=False),
            *output_layers(),
            shape=(3, 6),
        ),
        "einsum": model_of(
            L.EinsumDense("abc,cd->abd", (3, 4), bias_axes="d", activation="relu"),
            L.EinsumDense("abd,bf->adf", (4, 5)),
            *output_layers(),
            shape=(3, 6),
        ),
        "noise": model_of(
            L.Dense(5),
            L.GaussianNoise(0.5),
            L.GaussianDropout(0.3),
            L.AlphaDropout(0.4),
            *output_layers(),
            shape=(4, 3),
        ),
        "dropout of channels": model_of(
            make_conv(),
            L.SpatialDropout2D(0.4),
            L.SpatialDropout2D(0.5, "channels_first"),
            L.Reshape((4, 12)),
            L.SpatialDropout1D(0.3),
            *output_layers(),
        ),
        "moved": model_of(
            L.Rescaling(0.5, 0.1),
            make_conv(),
            L.Rescaling(0.3, offset=-0.5),
            L.ZeroPadding2D(((1, 0), (2, 1))),
            make_conv(),
            L.Identity(),
            L.Permute((3, 1, 2)),
            L.ReLU(),
            L.Cropping2D(((1, 0), (0, 2))),
            L.UpSampling2D((2, 3)),
            *output_layers(),
        ),
        "moved rows": model_of(
            L.Dense(3),
            L.RepeatVector(3),
            L.ReLU(),
            L.UpSampling1D(2),
            L.Cropping1D((1, 2)),
            *output_layers(),
            shape=flat,
        ),
        "dropout": model_of(
            make_conv(activation="relu"), L.Dropout(0.5), L.Dropout(0.3), *output_layers()
        ),
        "add": join_layers(L.Add(), make_conv(), make_conv()),
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
        cut = batch_rows(case, number)
        twin.train_step(case.x[cut], targets[cut])
    return twin


def weight_error(case: Case, result: Result, model: Any) -> float:
    """Return the largest error of a weight, by the largest change in its array (and 2^-6)."""
    before, after = model.get_weights(), twin_of(case, model).model.get_weights()
    actual = state.to_keras_weights(case.recipe, result.state)
    worst = 0.0
    for key, got, want, old in zip(case.recipe.order, actual, after, before, strict=True):
        largest_change = float(np.abs(want - old).max())
        assert largest_change > 0 or key in case.recipe.frozen, key
        worst = max(worst, float(np.abs(got - want).max()) / (largest_change + 2.0**-6))
    return worst


def learns_as_keras(model: Any, rng: np.random.Generator) -> Case:
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
    models = {
        name: model for name, model in layer_models().items() if (name in VARIANTS) == variants
    }
    far: dict[str, float] = {}
    for _ in range(3):
        some = {name: learns_as_keras(model, rng) for name, model in models.items()}
        results = dict(zip(some, train_cases(list(some.values()), dealer), strict=True))
        for name, case in some.items():
            try:
                cost = step.step_cost(case.recipe, case.setting)
                assert_costs(results[name].calls, cost, dealer)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from None
        far = {
            name: weight_error(some[name], results[name], model) for name, model in models.items()
        }
        models = {name: model for name, model in models.items() if far[name] > 2.0**-8}
        if not models:
            return
    raise AssertionError({name: far[name] for name in models})
