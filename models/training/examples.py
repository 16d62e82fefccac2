"""Features and labels as inputs of a job: checked by their owner, large ones split into chunks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from tfe_bench.cluster.requests import LateInput, PrivateInput
from tfe_bench.csv_file import MAX_ROWS
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.models.datasets.readers import Array
from tfe_bench.models.datasets.sharing import (
    BLOCK_ROWS,
    check_training_features,
    share_training_features,
    share_training_targets,
)
from tfe_bench.models.datasets.sources import CombinedSchema
from tfe_bench.models.layers.base.public_randomness import draw_epoch_permutation
from tfe_bench.models.training.losses.loss import Loss
from tfe_bench.models.training.recipe import MOST_WEIGHT, Recipe

# Stands in for the epoch in the draw of a client's own shuffling (job.batch_rows).
SHUFFLED = -2
# Largest number of elements of a chunk's features: 32 MB.
_CHUNK_ELEMENTS = 1 << 22


class TrainingRowOrder(Protocol):
    """Properties of a training that determine the sharing of its rows (see TrainingJob)."""

    @property
    def recipe(self) -> Recipe:
        """Model and batch."""
        ...

    @property
    def seed(self) -> int:
        """Seed of the order of the rows."""
        ...

    @property
    def chunk(self) -> int:
        """Number of rows that are sent at once; 0 for all."""
        ...


class TrainingExamples(NamedTuple):
    """Rows of a client: features, labels, and weights of the samples if these differ."""

    x: Any
    y: Any
    weights: Array | None = None


def choose_training_chunk(recipe: Recipe, rows: int) -> int:
    """Choose the number of rows per chunk; 0 if all rows are few enough to share at once."""
    row_elements = max(1, int(np.prod(recipe.input_shape)))
    chunk = max(1, _CHUNK_ELEMENTS // row_elements // recipe.batch) * recipe.batch
    return chunk if chunk < rows else 0


def share_examples(
    job: TrainingRowOrder,
    train: TrainingExamples | None,
    test: TrainingExamples | None,
    scatter: bool = False,
) -> dict[str, PrivateInput | LateInput]:
    """Return a client's rows as inputs of its training: at once, or in chunks.

    Args:
        scatter: shuffle the rows by the seed before they are split into chunks: otherwise, training
            on sorted rows would learn one class after the other.

    Raises:
        UsageError, RangeError: as `share_training_rows`.
    """
    recipe = job.recipe
    inputs: dict[str, PrivateInput | LateInput] = {}
    if train is not None and not job.chunk:
        inputs |= share_training_rows(recipe, train)
    if test is not None:
        inputs |= share_training_rows(recipe, test, "test_")
    if train is not None and job.chunk:
        check_training_rows(recipe, train.x, train.y)
        ordered_examples = shuffle_examples(job.seed, train) if scatter else train
        inputs |= chunked_training_inputs(recipe, ordered_examples, job.chunk)
    return inputs


def shuffle_examples(seed: int, examples: TrainingExamples) -> TrainingExamples:
    """Shuffle rows by a seed."""
    order = draw_epoch_permutation(seed, SHUFFLED, len(examples.x))
    return TrainingExamples(
        *(None if rows is None else np.asarray(rows)[order] for rows in examples)
    )


def check_training_rows(recipe: Recipe, x: Any, y: Any) -> None:
    """Reject rows that cannot be shared, before any of them is sent.

    Raises:
        UsageError, RangeError: as `share_training_rows`.
    """
    check_counts(x, y)
    recipe.encode_labels(y, "labels")
    for begin in range(0, len(x), BLOCK_ROWS):
        part = recipe.encode_features(x[begin : begin + BLOCK_ROWS])
        check_training_features(part, "features", begin)


def chunked_training_inputs(
    recipe: Recipe, examples: TrainingExamples, chunk: int
) -> dict[str, LateInput]:
    """Return features and labels that passed `check_training_rows` as inputs sent chunk by
    chunk.
    """
    x, y, weights = examples
    targets = append_weights(recipe, recipe.encode_labels(y, "labels"), weights)
    inputs: dict[str, LateInput] = {}
    for number, begin in enumerate(range(0, len(x), chunk)):
        cut = slice(begin, min(begin + chunk, len(x)))
        count = cut.stop - cut.start

        def share_chunk_features(cut: slice = cut) -> PrivateInput:
            return share_training_features(
                recipe.encode_features(x[cut]), recipe.numbers.activation
            )

        def share_chunk_labels(cut: slice = cut) -> PrivateInput:
            return share_training_targets(targets[cut])

        bits = recipe.numbers
        inputs[f"x{number}"] = LateInput(
            (count, *recipe.input_shape), bits.activation, share_chunk_features
        )
        inputs[f"y{number}"] = LateInput(
            (count, *recipe.label_shape), bits.gradient, share_chunk_labels
        )
    return inputs


def share_training_rows(
    recipe: Recipe, examples: TrainingExamples, prefix: str = ""
) -> dict[str, PrivateInput]:
    """Encode features and labels of one client as its inputs.

    Raises:
        UsageError, RangeError: shapes, counts, numbers or labels are invalid.
    """
    x, y, weights = examples
    check_counts(x, y)
    features = share_training_features(
        recipe.encode_features(x), recipe.numbers.activation, f"{prefix}features"
    )
    targets = append_weights(recipe, recipe.encode_labels(y, f"{prefix}labels"), weights)
    return {f"{prefix}x": features, f"{prefix}y": share_training_targets(targets)}


def check_counts(x: Any, y: Any) -> None:
    """Reject features and labels with different numbers of rows.

    Raises:
        UsageError: the numbers differ, or there are no rows.
    """
    counts = [len(v) if hasattr(v, "__len__") else -1 for v in (x, y)]
    if counts[0] != counts[1] or not 0 < counts[0] <= MAX_ROWS:
        raise UsageError(
            f"Expected features and a label for every row. Received: {counts[0]} rows of "
            f"features and {counts[1]} labels.",
            code="row-count-mismatch",
            received=counts,
        )


def combine_weights(recipe: Recipe, y: Any, samples: Any, classes: Any) -> Array:
    """Return the weight of each sample: its own weight times that of its class.

    Args:
        samples: sample_weight as in Keras, [rows]; None: 1 each.
        classes: class_weight as in Keras, {class: weight}; None: 1 each.

    Raises:
        UsageError: a shape or class is invalid, or the loss has no classes.
        RangeError: weights are NaN, negative or too large.
    """
    weights = np.ones(len(y)) if samples is None else np.asarray(samples)
    if weights.dtype.kind not in "fiub" or weights.reshape(-1).shape != (len(y),):
        raise UsageError(
            f"Expected a number for each row, [{len(y)}], as sample_weight. Received: "
            f"{weights.dtype} {list(weights.shape)}.",
            code="shape-mismatch",
            operation="sample_weight",
            received=list(weights.shape),
        )
    weights = weights.reshape(-1).astype(np.float64)
    if classes is not None:
        targets = recipe.encode_labels(y)
        if recipe.loss.count_answers(recipe.output_shape) != 1 or not recipe.loss.counts_answers:
            raise UsageError(
                "class_weight requires a loss with one class for each row.",
                code="unsupported-argument",
                operation="class_weight",
            )
        count = recipe.output_shape[-1] if recipe.loss.is_categorical else 2
        names = classes if isinstance(classes, Mapping) else {}
        if not names or not all(k in range(count) and not isinstance(k, bool) for k in names):
            raise UsageError(
                f"Expected {{class: weight}} with classes 0 to {count - 1} as class_weight. "
                f"Received: {str(classes)[:80]}.",
                code="unknown-class",
                operation="class_weight",
                received=str(classes)[:80],
            )
        class_factors = np.array([float(names.get(k, 1.0)) for k in range(count)])
        flat = targets.reshape(len(y), -1)
        labels = flat.argmax(-1) if recipe.loss.is_categorical else np.rint(flat[:, 0])
        weights = weights * class_factors[labels.astype(np.int64)]
    if not (np.isfinite(weights).all() and (weights >= 0).all() and (weights <= MOST_WEIGHT).all()):
        raise RangeError(
            f"Expected numbers from 0 to {MOST_WEIGHT} as weights of samples. Received: others.",
            code="value-out-of-range",
            operation="sample_weight",
            expected=MOST_WEIGHT,
        )
    return weights


def with_weight_bound(recipe: Recipe, weights: Array) -> Recipe:
    """Return the recipe for weighted samples, with the power of two that bounds the weights."""
    return replace(recipe, weighted=1 << max(0, math.ceil(math.log2(max(1.0, weights.max())))))


def append_weights(recipe: Recipe, targets: Array, weights: Any) -> Array:
    """Append the samples' weights to the targets, if there are weights."""
    if weights is None:
        return targets
    weights = np.asarray(weights, np.float64) / recipe.weighted
    shape = (len(targets), *(1,) * (targets.ndim - 1))
    weight_column = np.broadcast_to(np.reshape(weights, shape), (*targets.shape[:-1], 1))
    return np.concatenate([targets, weight_column], -1)


def split_validation(
    examples: TrainingExamples, fraction: object
) -> tuple[TrainingExamples, TrainingExamples]:
    """Split off the last part of the rows, as validation_split of Keras does.

    Raises:
        UsageError: the part is not between 0 and 1, or leaves no rows for training or for
            validation.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 < fraction < 1:
        raise UsageError(
            f"Expected a number between 0 and 1 as validation_split. Received: {fraction!r}.",
            code="number-out-of-range",
            operation="validation_split",
            received=fraction,
        )
    x, y, weights = examples
    at = math.floor(len(x) * (1.0 - fraction))
    if not 0 < at < len(x):
        raise UsageError(
            f"validation_split={fraction} of {len(x)} rows leaves no rows for training, or none "
            "for validation.",
            code="too-few-rows",
            operation="validation_split",
            received=len(x),
        )
    training_weights = None if weights is None else weights[:at]
    return TrainingExamples(x[:at], y[:at], training_weights), TrainingExamples(x[at:], y[at:])


def check_training_labels(joined: CombinedSchema, loss: Loss) -> None:
    """Reject labels that a loss does not support; as they are secret, nothing else detects this.

    Raises:
        UsageError: the loss does not support the labels.
    """
    if joined.target not in loss.label_kinds:
        expected = (
            f"labels of type {' or '.join(loss.label_kinds)}"
            if loss.label_kinds
            else "x and y of your own"
        )
        raise UsageError(
            f"The loss {loss.name} requires {expected}. Received: owners' labels of type "
            f"{joined.target!r}.",
            code="unsupported-labels",
            operation=loss.name,
            received=joined.target,
        )
