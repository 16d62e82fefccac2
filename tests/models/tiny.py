"""A tiny model and its data, for the tests of private training."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfe_bench.models.trainable import Trainable, trainable
from tfe_bench.models.training import shuffling
from tfe_bench.models.training.plaintext import Twin

ROWS, FEATURES, BATCH = 200, 5, 32


def data(seed: int = 5) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1, (ROWS, FEATURES))
    y = (x @ np.linspace(-1, 1, FEATURES) + 0.1 * rng.normal(0, 1, ROWS) > 0).astype(np.int64)
    return x, y


def model_of(outputs: int = 1, end: str | None = "sigmoid", seed: int = 3) -> Any:
    import keras

    start = keras.initializers.GlorotUniform(seed=seed)
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(outputs, activation=end, kernel_initializer=start),
        ],
        name="tiny",
    )


def private_model(
    rate: float = 0.1, loss: Any = "binary_crossentropy", averaged: bool = False, **options: Any
) -> Trainable:
    import keras

    private = trainable(model_of(**options))
    more = {"weight_decay": 0.1, "use_ema": True, "ema_momentum": 0.5} if averaged else {}
    optimizer = keras.optimizers.SGD(rate, momentum=0.9, **more)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    private.compile(optimizer, loss)
    return private


def plain_twin(private: Trainable, x: Any, y: Any, steps: int, seed: int = 1) -> Any:
    """The same training in plaintext, with the mean loss of each epoch."""
    recipe = private.recipe(BATCH)
    twin: Any = Twin(private.initial_model(), recipe)
    targets = recipe.targets(y)
    per = len(x) // BATCH
    losses: list[list[float]] = []
    for step in range(steps):
        if step % per == 0:
            losses.append([])
        rows = shuffling.batches(seed, step // per, len(x), BATCH)[step % per]
        losses[-1].append(twin.step(x[rows], targets[rows]))
    twin.finish()
    twin.losses = [float(np.mean(each)) for each in losses]
    return twin


def assert_close(model: Any, twin: Any) -> None:
    for ours, theirs in zip(model.get_weights(), twin.model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-3)
