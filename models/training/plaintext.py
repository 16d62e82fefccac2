"""The same training in plaintext, by Keras itself: the reference for accuracy.

It uses the same batches in the same order, and Dropout keeps the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.models.convert.graph import Array
from tfe_bench.models.layers.base import public_randomness as shuffling
from tfe_bench.models.layers.dropout import dropout_mask_key
from tfe_bench.models.layers.elu import ALPHA, SCALE
from tfe_bench.models.training import reader
from tfe_bench.models.training.optimizers.optimizer import Optimizer
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.models.training.schedules import KERAS, LearningRateSchedule
from tfe_bench.models.training.step import public_values

# Number of rows that are predicted at once.
_PREDICTED_ROWS = 1024


def _build_keras_schedule(schedule: LearningRateSchedule) -> Any:
    import keras

    if schedule.kind == "constant":
        return schedule.options["rate"]
    [name] = [name for name, kind in KERAS.items() if kind == schedule.kind]
    return getattr(keras.optimizers.schedules, name)(**schedule.options)


def build_keras_optimizer(optimizer: Optimizer) -> Any:
    """Build Keras' own optimizer with the same settings."""
    rate = _build_keras_schedule(optimizer.schedule)
    return optimizer.build_keras_optimizer(rate)


def _apply_layer_randomness(layer: Any, x: Any, drawn: Any) -> Any:
    """Apply a Keras layer's random numbers, which are public in a step, to x."""
    kind = type(layer).__name__
    if kind == "GaussianNoise":
        return x + drawn / 2**16
    if kind == "GaussianDropout":
        return x * drawn / 2**16
    if kind != "AlphaDropout":
        return x * drawn / (1 - layer.rate)
    low = -SCALE * ALPHA
    factor = ((1 - layer.rate) * (1 + layer.rate * low**2)) ** -0.5
    return factor * (x * drawn + low * (1 - drawn)) - factor * low * layer.rate


def _copy_model_with_randomness(model: Any, recipe: Recipe) -> tuple[Any, dict[str, Any]]:
    """Copy a model so that layers with public random numbers use given ones; returns them by name.

    A Dropout is such a layer: its numbers are a mask.
    """
    import keras

    numbers = public_values(recipe, 0)
    named = {x.name: numbers.get(dropout_mask_key(x.name)) for x in recipe.graph.layers}
    shapes = {name: value.shape for name, value in named.items() if value is not None}
    variables: dict[str, Any] = {}

    class Given(keras.layers.Layer):  # type: ignore[misc]  # (Keras is untyped)
        """A layer with given numbers."""

        def __init__(self, like: Any) -> None:
            super().__init__(name=like.name)
            self.like = like
            # (not a weight of the model)
            variables[like.name] = tf.Variable(tf.zeros(shapes[like.name]), trainable=False)

        def call(self, x: Any, training: Any = None) -> Any:
            return _apply_layer_randomness(self.like, x, variables[self.name]) if training else x

        def compute_output_shape(self, shape: Any) -> Any:
            return shape

    def clone_layer(layer: Any) -> Any:
        return Given(layer) if layer.name in shapes else reader.copy_keras_layer(layer)

    copy = reader.copy_keras_model(model, clone_function=clone_layer)
    if set(shapes) != set(variables):
        raise UsageError(
            "A plaintext run sets the masks of the model's own Dropout layers. Received: "
            f"{sorted(set(shapes) - set(variables))} within nested models.",
            code="unsupported-layer",
            operation="Dropout",
        )
    for copied_layer, layer in zip(copy.layers, model.layers, strict=True):
        copied_layer.trainable = layer.trainable
    return copy, variables


class PlaintextTwin:
    """A Keras model that is trained in plaintext by a recipe.

    Args:
        model: the Keras model of the recipe; it is copied and not changed.

    Raises:
        UsageError: a nested model contains Dropout, whose masks cannot be set.
    """

    def __init__(self, model: Any, recipe: Recipe) -> None:
        graph = reader.read_training_model(model).graph
        self.recipe = recipe
        self.model, self._masks = _copy_model_with_randomness(model, recipe)
        last = graph.by_name[graph.outputs[0]]
        self._logits = last.op != recipe.loss.folded_activation
        optimizer = build_keras_optimizer(recipe.optimizer)
        named = dict(zip(recipe.order, reader.list_weight_variables(self.model), strict=True))
        if recipe.optimizer.undecayed:
            optimizer.exclude_from_weight_decay([named[k] for k in recipe.optimizer.undecayed])
        # TensorFlow's own kernels support channels first on some processors only, XLA's on all.
        layers = self.model._flatten_layers()
        first = any(getattr(layer, "data_format", "") == "channels_first" for layer in layers)
        compiled = {"jit_compile": True} if first else {}
        self.model.compile(optimizer, recipe.loss.build_keras_loss(self._logits), **compiled)
        self._steps = 0

    def train_step(self, x: Any, y: Any, weights: Any = None) -> float:
        """Take one step on a batch of the model's features and recipe.encode_labels' targets.

        Args:
            weights: weights of the samples; None: 1 each.

        Returns the loss.
        """
        public = public_values(self.recipe, self._steps)
        for name, mask in self._masks.items():
            mask.assign(public[dropout_mask_key(name)].astype(np.float32))
        self._steps += 1
        return float(self.model.train_on_batch(x, y, sample_weight=weights))

    def measure_gradients(self, batches: Iterable[tuple[Any, Any, Any]]) -> dict[str, Array]:
        """Measure the largest mean gradients over some batches, by key, without a step.

        Args:
            batches: features, targets and weights of samples (None: 1 each), as in `train_step`.
        """
        public = public_values(self.recipe, 0)
        for name, mask in self._masks.items():
            mask.assign(public[dropout_mask_key(name)].astype(np.float32))
        keys = [key for key in self.recipe.order if key not in self.recipe.frozen]
        named = dict(zip(self.recipe.order, reader.list_weight_variables(self.model), strict=True))
        watched = [named[key].value for key in keys]
        loss, largest = self.recipe.loss.build_keras_loss(self._logits), dict[str, Array]()
        for x, y, weights in batches:
            with tf.GradientTape() as tape:
                output = self.model(x, training=True)
                mean_loss = loss(y, output, sample_weight=weights)
                total = tf.add_n([mean_loss, *self.model.losses])
            for key, g in zip(keys, tape.gradient(total, watched), strict=True):
                if g is not None:
                    size = np.abs(tf.convert_to_tensor(g).numpy())
                    largest[key] = np.maximum(largest.get(key, 0.0), size)
        return largest

    def finish_training(self) -> list[Array]:
        """Return the final weights of the training: their averages, if it has them."""
        self.model.optimizer.finalize_variable_values(self.model.trainable_weights)
        return list(self.model.get_weights())

    def count_correct(self, x: Any, targets: Array) -> int:
        """Count the right answers, as evaluate does."""
        batches = (x[i : i + _PREDICTED_ROWS] for i in range(0, len(x), _PREDICTED_ROWS))
        predictions = np.concatenate([self.model.predict_on_batch(rows) for rows in batches])
        if self.recipe.loss.is_categorical:
            return int((predictions.argmax(-1) == targets.argmax(-1)).sum())
        edge = 0.0 if self._logits else 0.5
        return int(((predictions > edge) == (targets > 0.5)).sum())


def count_labeled_answers(recipe: Recipe, rows: int) -> int:
    """Return the number of answers in this many rows."""
    return rows * recipe.loss.count_answers(recipe.output_shape)


def train_plaintext(
    model: Any,
    recipe: Recipe,
    x: Any,
    y: Any,
    epochs: int,
    seed: int,
    test: tuple[Any, Any] | None = None,
    on_epoch: Callable[[int, float], None] | None = None,
) -> tuple[list[float], list[Array]]:
    """Train in plaintext.

    Args:
        x, y: features and labels as the recipe accepts them.
        seed: seed of the order of samples (shuffling.draw_batches).
        test: features and labels for the share of right answers.
        on_epoch: callback with each epoch's number, from 0, and share.

    Returns:
        The shares of right answers after each epoch (none without test), and the weights.
    """
    twin = PlaintextTwin(model, recipe)
    targets = recipe.encode_labels(y)
    scores = []
    for epoch in range(epochs):
        for rows in shuffling.draw_epoch_batches(seed, epoch, len(x), recipe.batch):
            twin.train_step(x[rows], targets[rows])
        if test is not None:
            right = recipe.encode_labels(test[1])
            scores.append(
                twin.count_correct(test[0], right) / count_labeled_answers(recipe, len(right))
            )
            if on_epoch is not None:
                on_epoch(epoch, scores[-1])
    return scores, twin.finish_training()
