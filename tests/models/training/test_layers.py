"""A step on shares moves the weights as Keras does, and costs what is declared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.models.training.bench import Case, rows, train
from tfe_bench.cluster.simulate import assert_costs
from tfe_bench.models.training import plain, state, step
from tfe_bench.models.training.recipe import Recipe

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers
Array = np.ndarray[Any, Any]
BATCH = 8
RATE = 0.125


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


def cases() -> dict[str, Any]:
    """Models with a layer each whose gradient is looked at through those before it."""
    flat = (6,)
    same = {"padding": "same"}
    return {
        "dense": of(L.Dense(5, activation="relu"), L.Dense(3), shape=flat),
        "dense without bias": of(L.Dense(5, use_bias=False), L.Dense(3), shape=flat),
        "dense of rows": of(L.Dense(4, activation="relu"), *ends(), shape=(3, 6)),
        "conv2d": of(conv(activation="relu"), *ends()),
        "strided": of(conv(strides=2, activation="relu", **same), conv(**same), *ends()),
        "dilated": of(conv(dilation_rate=2), *ends()),
        "depthwise": of(conv(), L.DepthwiseConv2D(2, depth_multiplier=2), L.ReLU(), *ends()),
        "separable": of(L.SeparableConv2D(3, 3, **same), L.ReLU(), *ends()),
        "relu": of(conv(), L.Reshape((4, 12)), L.ReLU(), *ends()),
        "leaky relu": of(conv(), L.LeakyReLU(0.2), *ends()),
        "sigmoid": of(L.Dense(5, activation="sigmoid"), L.Dense(3), shape=flat),
        "tanh": of(L.Dense(5, activation="tanh"), L.Dense(3), shape=flat),
        "average pool": of(conv(), L.AveragePooling2D(2), *ends()),
        "average pool at edges": of(conv(), L.AveragePooling2D(3, 2, "same"), *ends()),
        "global average": of(conv(activation="relu"), L.GlobalAveragePooling2D(), L.Dense(3)),
        "zero padding": of(conv(), L.ZeroPadding2D(((1, 0), (2, 1))), conv(), *ends()),
        "dropout": of(conv(activation="relu"), L.Dropout(0.5), L.Dropout(0.3), *ends()),
        "rescaling": of(L.Rescaling(0.5, 0.1), conv(), L.Rescaling(0.3, offset=-0.5), *ends()),
        "add": joined(L.Add(), conv(), conv()),
        "add of a channel's number": joined(
            L.Add(),
            conv(),
            keras.Sequential([conv(), L.GlobalAveragePooling2D(keepdims=True)]),
        ),
        "subtract": joined(L.Subtract(), conv(), keras.Sequential([conv(), L.ReLU()])),
        "concatenate": joined(L.Concatenate(), conv(), L.Conv2D(2, 3, activation="relu")),
    }


def twin_of(case: Case, model: Any) -> Any:
    """The Keras model after the steps."""
    twin = plain.Twin(model, case.recipe)
    targets = case.recipe.targets(case.y)
    for number in range(case.steps):
        cut = rows(case, number)
        twin.step(case.x[cut], targets[cut])
    return twin


def check(name: str, case: Case, result: Any, model: Any, tolerance: float) -> None:
    before = model.get_weights()
    twin = twin_of(case, model)
    found = state.trained(case.recipe, result.state)
    for key, got, want, old in zip(
        case.recipe.order, found, twin.model.get_weights(), before, strict=True
    ):
        moved = np.abs(want - old).max()
        print(name, key, np.abs(got - want).max() / moved, moved)
        assert moved > 0 or key in case.recipe.frozen, (name, key)
        assert np.abs(got - want).max() < tolerance * (moved + 2.0**-6), (name, key)


def test_every_layer_learns_as_keras_does_and_costs_what_is_declared(
    rng: np.random.Generator,
) -> None:
    """Two steps with mean squared error; weights agree within 2^-8 of the largest move."""
    keras.utils.set_random_seed(int(rng.integers(1 << 31)))
    dealer = int(rng.integers(3))
    models, some = cases(), []
    for model in models.values():
        x = rng.normal(0, 1, (2 * BATCH, *model.input_shape[1:])).clip(-3, 3).astype(np.float32)
        y = rng.normal(0, 1, (2 * BATCH, *model.output_shape[1:]))
        recipe = Recipe.build(model, keras.optimizers.SGD(RATE), "mse", BATCH, seed=3)
        some.append(Case(recipe, x, y, 2))
    for (name, model), case, result in zip(models.items(), some, train(some, dealer), strict=True):
        check(name, case, result, model, 2.0**-8)
        try:
            assert_costs(result.calls, step.step_cost(case.recipe, case.setting), dealer)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None
