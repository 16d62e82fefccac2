"""A tiny model with its data for the tests of private training, and a language model."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfe_bench.models.inference.private import PrivateModel, convert
from tfe_bench.models.layers.base import public_randomness as shuffling
from tfe_bench.models.training.plaintext import PlaintextTwin
from tfe_bench.models.training.trainable import Trainable, trainable

ROWS, FEATURES, BATCH = 200, 5, 32


def draw_data(seed: int = 5) -> tuple[Any, Any]:
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


def picture_model(seed: int = 1, scale: float = 1.0, first_weight: float = 0.5) -> PrivateModel:
    """Return a converted convolution and a dense layer, with weights of a seed."""
    import keras

    rng = np.random.default_rng(seed)
    layers = [
        keras.Input((6, 6, 1)),
        keras.layers.Conv2D(2, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    ]
    model = keras.Sequential(layers, name="tiny")
    weights = [scale * rng.uniform(-1, 1, w.shape) for w in model.get_weights()]
    weights[0].reshape(-1)[0] = first_weight
    model.set_weights(weights)
    return convert(model, np.random.default_rng(2).uniform(0, 1, (8, 6, 6, 1)))


def draw_pictures(rng: np.random.Generator, batch: int = 1) -> Any:
    return rng.uniform(0, 1, (batch, 6, 6, 1))


def text_model(words: int = 5, length: int = 6) -> PrivateModel:
    """Return the smallest model for text generation: each token determines the next."""
    import keras

    tokens = keras.Input((length,), dtype="int32")
    x = keras.layers.Embedding(words, 2)(tokens)
    return convert(keras.Model(tokens, keras.layers.Dense(words)(x)))


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
    """Train the same model in plaintext; return also the mean loss of each epoch."""
    recipe = private.recipe(BATCH)
    twin: Any = PlaintextTwin(private.initial_model(), recipe)
    targets = recipe.encode_labels(y)
    per = len(x) // BATCH
    losses: list[list[float]] = []
    for step in range(steps):
        if step % per == 0:
            losses.append([])
        rows = shuffling.draw_epoch_batches(seed, step // per, len(x), BATCH)[step % per]
        losses[-1].append(twin.train_step(x[rows], targets[rows]))
    twin.finish_training()
    twin.losses = [float(np.mean(each)) for each in losses]
    return twin


def assert_close(model: Any, twin: Any) -> None:
    for ours, theirs in zip(model.get_weights(), twin.model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-3)
