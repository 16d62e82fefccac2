"""Features and labels as inputs of a job: checked by their owner, and large ones cut in chunks."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from tfe_bench.cluster.requests import LateInput, PrivateInput
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.models.csv_file import MOST_ROWS
from tfe_bench.models.datasets import Array, Rows
from tfe_bench.models.ranges import FEW_STEPS
from tfe_bench.models.training.losses.loss import LARGEST as LARGEST_LABEL
from tfe_bench.models.training.recipe import MOST_WEIGHT, Recipe
from tfe_bench.models.training.shuffling import permutation

# In place of an epoch, for a client's own shuffling (job.batch_rows).
SHUFFLED = -2
# Of labels; features have the cluster's fractional bits.
LABEL_BITS = 20
# A feature's magnitude: pictures have 1, standardized columns a few.
LARGEST = 2.0**12
# Of a chunk's features: 32 MB.
_CHUNK_ELEMENTS = 1 << 22
_AT_ONCE = 4096


class Order(Protocol):
    """What an order of a training says of a client's rows (training_job.TrainingJob)."""

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
        """Rows that are sent at once; 0 for all."""
        ...


class Examples(NamedTuple):
    """A client's rows: features, labels, and what its samples count if they do not count alike."""

    x: Any
    y: Any
    weights: Array | None = None


def check_features(x: Any, what: str = "features", first: int = 0) -> Any:
    """Refuses features that fixed point does not hold.

    Args:
        first: number of the first row, in errors.

    Raises:
        UsageError: no numbers [rows, ...].
        RangeError: NaN, or larger than 2^12; the row is named, the value is not.
    """
    array = np.asarray(x)
    if array.dtype.kind not in "fiub" or array.ndim < 2 or not array.size:
        raise UsageError(
            f"The {what} are numbers [rows, ...]. Received: {array.dtype} {list(array.shape)}."
        )
    for begin in range(0, len(array), _AT_ONCE):
        part = array[begin : begin + _AT_ONCE]
        with np.errstate(invalid="ignore"):
            bad = ~(np.abs(part) <= LARGEST).reshape(len(part), -1).all(1)
        if bad.any():
            row = first + begin + int(np.flatnonzero(bad)[0])
            raise RangeError(
                f"The {what} are numbers from -{LARGEST:g} to {LARGEST:g}. Received: NaN or a "
                f"larger one in row {row} (from 0). Scale them, as to mean 0 and deviation 1."
            )
    return array


def shared_features(x: Any, fractional_bits: int, what: str = "features") -> PrivateInput:
    """Features as their owner's input.

    A warning counts the columns (of images: all pixels together) whose values are all so small that
    fixed point holds them coarsely.

    Raises:
        UsageError, RangeError: as `check_features`.
    """
    array = check_features(x, what)
    ring = np.empty(array.shape, np.int64)
    largest = np.zeros(array.shape[1] if array.ndim == 2 else 1, np.int64)
    for begin in range(0, len(array), _AT_ONCE):  # float64 copies of all rows would be large
        part = array[begin : begin + _AT_ONCE].astype(np.float64)
        ring[begin : begin + _AT_ONCE] = np.rint(part * 2.0**fractional_bits)
        steps = np.abs(ring[begin : begin + _AT_ONCE]).reshape(-1, len(largest))
        largest = np.maximum(largest, steps.max(0))
    if coarse := int(((largest > 0) & (largest < FEW_STEPS)).sum()):
        warnings.warn(
            f"{coarse} of {len(largest)} columns of the {what} have no value beyond "
            f"{FEW_STEPS * 2.0**-fractional_bits:.2g}, which {fractional_bits} fractional bits "
            "hold coarsely. Scale them, as to mean 0 and deviation 1.",
            stacklevel=2,
        )
    return PrivateInput(ring, fractional_bits)


def shared_targets(y: Any) -> PrivateInput:
    """Labels, one-hot or as numbers [rows, outputs], as their owner's input."""
    return PrivateInput(
        np.rint(np.asarray(y, np.float64) * 2.0**LABEL_BITS).astype(np.int64), LABEL_BITS
    )


def encoded_labels(rows: Rows) -> Any:
    """The labels of some rows as [n, outputs]: one-hot for classes, else one number.

    Raises:
        RangeError: a label outside of the classes, or too large.
    """
    labels = rows.y
    assert labels is not None
    if rows.target == "number":
        if not np.abs(labels).max() <= LARGEST_LABEL:
            raise RangeError(f"A number to be learned is at most {LARGEST_LABEL:g}. Scale them.")
        return labels.astype(np.float64)[:, None]
    if labels.min() < 0 or labels.max() >= rows.classes:
        raise RangeError(f"Labels are classes 0 to {rows.classes - 1}. Received: others.")
    if rows.target == "binary":
        return labels.astype(np.float64)[:, None]
    return np.eye(rows.classes)[labels]


def chunk_of(recipe: Recipe, rows: int) -> int:
    """Rows that are shared at once; 0 where there is too little to share for that to matter."""
    each = max(1, int(np.prod(recipe.input_shape)))
    chunk = max(1, _CHUNK_ELEMENTS // each // recipe.batch) * recipe.batch
    return chunk if chunk < rows else 0


def shared_examples(
    job: Order, train: Examples | None, test: Examples | None, scatter: bool = False
) -> dict[str, PrivateInput | LateInput]:
    """A client's rows as inputs of its training: at once, or in the chunks that the order says.

    Args:
        scatter: chunks take rows in another order than they are given, by the seed: sorted ones
            would be learned one after the other.

    Raises:
        UsageError, RangeError: as `shared_rows`.
    """
    recipe = job.recipe
    found: dict[str, PrivateInput | LateInput] = {}
    if train is not None and not job.chunk:
        found |= shared_rows(recipe, train)
    if test is not None:
        found |= shared_rows(recipe, test, "test_")
    if train is not None and job.chunk:
        check_rows(recipe, train.x, train.y)
        given = shuffled(job.seed, train) if scatter else train
        found |= late_rows(recipe, given, job.chunk)
    return found


def shuffled(seed: int, given: Examples) -> Examples:
    """Rows in an order of their own."""
    order = permutation(seed, SHUFFLED, len(given.x))
    return Examples(*(None if rows is None else np.asarray(rows)[order] for rows in given))


def check_rows(recipe: Recipe, x: Any, y: Any) -> None:
    """Refuses rows that cannot be shared, before any of them leaves.

    Raises:
        UsageError, RangeError: as `shared_rows`.
    """
    check_counts(x, y)
    recipe.targets(y, "labels")
    for begin in range(0, len(x), _AT_ONCE):
        part = recipe.features(x[begin : begin + _AT_ONCE])
        check_features(part, "features", begin)


def late_rows(recipe: Recipe, given: Examples, chunk: int) -> dict[str, LateInput]:
    """Features and labels that `check_rows` has seen, as inputs that leave chunk by chunk."""
    x, y, weights = given
    targets = with_weights(recipe, recipe.targets(y, "labels"), weights)
    found: dict[str, LateInput] = {}
    for number, begin in enumerate(range(0, len(x), chunk)):
        cut = slice(begin, min(begin + chunk, len(x)))
        count = cut.stop - cut.start

        def features(cut: slice = cut) -> PrivateInput:
            return shared_features(recipe.features(x[cut]), recipe.numbers.activation)

        def labels(cut: slice = cut) -> PrivateInput:
            return shared_targets(targets[cut])

        bits = recipe.numbers
        found[f"x{number}"] = LateInput((count, *recipe.input_shape), bits.activation, features)
        found[f"y{number}"] = LateInput((count, *recipe.label_shape), bits.gradient, labels)
    return found


def shared_rows(recipe: Recipe, given: Examples, prefix: str = "") -> dict[str, PrivateInput]:
    """Features and labels of one client as its inputs.

    Raises:
        UsageError, RangeError: shapes, counts, numbers or labels that do not fit.
    """
    x, y, weights = given
    check_counts(x, y)
    features = shared_features(recipe.features(x), recipe.numbers.activation, f"{prefix}features")
    targets = with_weights(recipe, recipe.targets(y, f"{prefix}labels"), weights)
    return {f"{prefix}x": features, f"{prefix}y": shared_targets(targets)}


def check_counts(x: Any, y: Any) -> None:
    """Refuses features and labels of different numbers of rows.

    Raises:
        UsageError: they differ, or there are none.
    """
    counts = [len(v) if hasattr(v, "__len__") else -1 for v in (x, y)]
    if counts[0] != counts[1] or not 0 < counts[0] <= MOST_ROWS:
        raise UsageError(
            f"Every row has features and a label. Received: {counts[0]} rows of features and "
            f"{counts[1]} labels."
        )


def sample_weights(recipe: Recipe, y: Any, samples: Any, classes: Any) -> Array:
    """The weight of each sample: what is given of it times that of its class.

    Args:
        samples: sample_weight as Keras takes it, [rows]; None: 1 each.
        classes: class_weight as Keras takes it, {class: weight}; None: 1 each.

    Raises:
        UsageError: other shapes, classes that a label does not have, or a loss without classes.
        RangeError: weights that are NaN, negative or too large.
    """
    found = np.ones(len(y)) if samples is None else np.asarray(samples)
    if found.dtype.kind not in "fiub" or found.reshape(-1).shape != (len(y),):
        raise UsageError(
            f"sample_weight is a number for each row, [{len(y)}]. Received: {found.dtype} "
            f"{list(found.shape)}."
        )
    found = found.reshape(-1).astype(np.float64)
    if classes is not None:
        targets = recipe.targets(y)
        if recipe.loss.answers(recipe.output_shape) != 1 or not recipe.loss.counted:
            raise UsageError("class_weight goes with one class for each row.")
        count = recipe.output_shape[-1] if recipe.loss.categorical else 2
        names = classes if isinstance(classes, Mapping) else {}
        if not names or not all(k in range(count) and not isinstance(k, bool) for k in names):
            raise UsageError(
                f"class_weight is {{class: weight}} of classes 0 to {count - 1}. Received: "
                f"{str(classes)[:80]}."
            )
        each = np.array([float(names.get(k, 1.0)) for k in range(count)])
        flat = targets.reshape(len(y), -1)
        labels = flat.argmax(-1) if recipe.loss.categorical else np.rint(flat[:, 0])
        found = found * each[labels.astype(np.int64)]
    if not (np.isfinite(found).all() and (found >= 0).all() and (found <= MOST_WEIGHT).all()):
        raise RangeError(
            f"Weights of samples are numbers from 0 to {MOST_WEIGHT}. Received: others."
        )
    return found


def weighted(recipe: Recipe, weights: Array) -> Recipe:
    """The recipe for samples with weights: it tells the power of two that bounds them."""
    return replace(recipe, weighted=1 << max(0, math.ceil(math.log2(max(1.0, weights.max())))))


def with_weights(recipe: Recipe, targets: Array, weights: Any) -> Array:
    """Targets with their samples' weights behind them, if there are any."""
    if weights is None:
        return targets
    weights = np.asarray(weights, np.float64) / recipe.weighted
    shape = (len(targets), *(1,) * (targets.ndim - 1))
    each = np.broadcast_to(np.reshape(weights, shape), (*targets.shape[:-1], 1))
    return np.concatenate([targets, each], -1)


def split(given: Examples, part: object) -> tuple[Examples, Examples]:
    """All but the last part of some rows, and that part, as Keras' validation_split has it.

    Raises:
        UsageError: no part between 0 and 1, or one that leaves nothing to learn or to test.
    """
    if isinstance(part, bool) or not isinstance(part, (int, float)) or not 0 < part < 1:
        raise UsageError(f"validation_split is a part between 0 and 1. Received: {part!r}.")
    x, y, weights = given
    at = math.floor(len(x) * (1.0 - part))
    if not 0 < at < len(x):
        raise UsageError(
            f"validation_split={part} of {len(x)} rows leaves none to learn from, or none to test."
        )
    left = None if weights is None else weights[:at]
    return Examples(x[:at], y[:at], left), Examples(x[at:], y[at:])
