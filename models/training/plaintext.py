"""The same training in the clear, by Keras itself: the plaintext twin that accuracy is held
against.

It takes the same batches in the same order, and Dropout keeps the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.graph import Array
from tfe_bench.models.layers.dropout import mask_name
from tfe_bench.models.layers.elu import ALPHA, SCALE
from tfe_bench.models.training import reader, shuffling
from tfe_bench.models.training.optimizers.optimizer import Optimizer
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.models.training.schedules import KERAS, Schedule
from tfe_bench.models.training.step import public_values


def _build_keras_rate(schedule: Schedule) -> Any:
    import keras

    if schedule.kind == "constant":
        return schedule.options["rate"]
    [name] = [name for name, kind in KERAS.items() if kind == schedule.kind]
    return getattr(keras.optimizers.schedules, name)(**schedule.options)


def build_keras_optimizer(optimizer: Optimizer) -> Any:
    """Keras' own optimizer of the same settings."""
    rate = _build_keras_rate(optimizer.schedule)
    return optimizer.build_keras_optimizer(rate)


def _apply_randomness(layer: Any, x: Any, drawn: Any) -> Any:
    """What a layer of Keras makes of x in a step, with the numbers that are public there."""
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


def _copy_with_randomness(model: Any, recipe: Recipe) -> tuple[Any, dict[str, Any]]:
    """A copy of a model whose layers of the recipe's public numbers take given ones; those by name.

    A Dropout is such a layer: its numbers are a mask.
    """
    import keras
    import tensorflow as tf

    numbers = public_values(recipe, 0)
    named = {x.name: numbers.get(mask_name(x.name)) for x in recipe.graph.layers}
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
            return _apply_randomness(self.like, x, variables[self.name]) if training else x

        def compute_output_shape(self, shape: Any) -> Any:
            return shape

    def clone_layer(layer: Any) -> Any:
        return Given(layer) if layer.name in shapes else reader.copy_layer(layer)

    copy = reader.copy_model(model, clone_function=clone_layer)
    if set(shapes) != set(variables):
        raise UsageError(
            "A plaintext run sets the masks of Dropout layers of the model itself. Received: "
            f"{sorted(set(shapes) - set(variables))} within others."
        )
    for copied_layer, layer in zip(copy.layers, model.layers, strict=True):
        copied_layer.trainable = layer.trainable
    return copy, variables


class PlaintextTwin:
    """A Keras model that learns in the clear what a recipe says.

    Args:
        model: the Keras model of the recipe; it is copied and stays as it is.

    Raises:
        UsageError: Dropout inside of a model within the model, whose masks cannot be set.
    """

    def __init__(self, model: Any, recipe: Recipe) -> None:
        graph = reader.read_model(model).graph
        self.recipe = recipe
        self.model, self._masks = _copy_with_randomness(model, recipe)
        last = graph.by_name[graph.outputs[0]]
        self._logits = last.op != recipe.loss.folded_activation
        optimizer = build_keras_optimizer(recipe.optimizer)
        named = dict(zip(recipe.order, reader.list_variables(self.model), strict=True))
        if recipe.optimizer.undecayed:
            optimizer.exclude_from_weight_decay([named[k] for k in recipe.optimizer.undecayed])
        # TensorFlow's own kernels take channels first on some processors only, XLA's on all.
        layers = self.model._flatten_layers()
        first = any(getattr(layer, "data_format", "") == "channels_first" for layer in layers)
        compiled = {"jit_compile": True} if first else {}
        self.model.compile(optimizer, recipe.loss.build_keras_loss(self._logits), **compiled)
        self._steps = 0

    def train_step(self, x: Any, y: Any, weights: Any = None) -> float:
        """One step on a batch: features as the model takes them, targets as recipe.targets gives.

        Args:
            weights: of the samples; None: 1 each.

        Returns the loss.
        """
        public = public_values(self.recipe, self._steps)
        for name, mask in self._masks.items():
            mask.assign(public[mask_name(name)].astype(np.float32))
        self._steps += 1
        return float(self.model.train_on_batch(x, y, sample_weight=weights))

    def measure_gradients(self, batches: Iterable[tuple[Any, Any, Any]]) -> dict[str, Array]:
        """The largest magnitudes of mean gradients over some batches, by key; no step is taken.

        Args:
            batches: features, targets and weights of samples (None: 1 each), as `step` takes them.
        """
        import tensorflow as tf

        public = public_values(self.recipe, 0)
        for name, mask in self._masks.items():
            mask.assign(public[mask_name(name)].astype(np.float32))
        keys = [key for key in self.recipe.order if key not in self.recipe.frozen]
        named = dict(zip(self.recipe.order, reader.list_variables(self.model), strict=True))
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
        """The weights that the training ends with: their averages, if it has them."""
        self.model.optimizer.finalize_variable_values(self.model.trainable_weights)
        return list(self.model.get_weights())

    def count_correct(self, x: Any, targets: Array) -> int:
        """The number of right answers, as evaluate.correct counts them."""
        predictions = np.asarray(self.model.predict(x, batch_size=1024, verbose=0))
        if self.recipe.loss.is_categorical:
            return int((predictions.argmax(-1) == targets.argmax(-1)).sum())
        edge = 0.0 if self._logits else 0.5
        return int(((predictions > edge) == (targets > 0.5)).sum())


def count_answers(recipe: Recipe, rows: int) -> int:
    """How many answers there are to be right or wrong in so many rows."""
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
    """Trains in the clear.

    Args:
        x, y: features and labels as the recipe takes them.
        seed: of the order of samples (shuffling.batches).
        test: features and labels of which the share of right answers is counted.
        heard: is told of each epoch's number, from 0, and share.

    Returns:
        The shares of right answers after each epoch (none without test), and the weights.
    """
    twin = PlaintextTwin(model, recipe)
    targets = recipe.encode_labels(y)
    scores = []
    for epoch in range(epochs):
        for rows in shuffling.draw_batches(seed, epoch, len(x), recipe.batch):
            twin.train_step(x[rows], targets[rows])
        if test is not None:
            right = recipe.encode_labels(test[1])
            scores.append(twin.count_correct(test[0], right) / count_answers(recipe, len(right)))
            if on_epoch is not None:
                on_epoch(epoch, scores[-1])
    return scores, twin.finish_training()
