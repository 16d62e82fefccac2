"""Features and labels as inputs of a job: checked by their owner, and large ones cut in chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tfe_bench.errors import RangeError, UsageError
from tfe_bench.models.datasets import MOST_ROWS, Array, Rows

if TYPE_CHECKING:
    from tfe_bench.cluster.client import LateInput, PrivateInput
    from tfe_bench.models.training.recipe import Recipe

# In place of an epoch, for a client's own shuffling (order.batch_rows).
SHUFFLED = -2
# Of labels; features have the cluster's fractional bits.
LABEL_BITS = 20
# A feature's magnitude: pictures have 1, standardised columns a few.
LARGEST = 2.0**12
# Of a chunk's features: 32 MB.
_CHUNK_ELEMENTS = 1 << 22
_AT_ONCE = 4096


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

    Raises:
        UsageError, RangeError: as `check_features`.
    """
    from tfe_bench.cluster.client import PrivateInput

    array = check_features(x, what)
    ring = np.empty(array.shape, np.int64)
    for begin in range(0, len(array), _AT_ONCE):  # float64 copies of all rows would be large
        part = array[begin : begin + _AT_ONCE].astype(np.float64)
        ring[begin : begin + _AT_ONCE] = np.rint(part * 2.0**fractional_bits)
    return PrivateInput(ring, fractional_bits)


def shared_targets(y: Any) -> PrivateInput:
    """Labels, one-hot or as numbers [rows, outputs], as their owner's input."""
    from tfe_bench.cluster.client import PrivateInput

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
        if not np.abs(labels).max() <= LARGEST:
            raise RangeError(f"A number to be learnt is at most {LARGEST:g}. Scale them.")
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


def shuffled(seed: int, x: Any, y: Any) -> tuple[Any, Any]:
    """Rows in an order of their own: chunks of sorted rows would be learnt one after the other."""
    from tfe_bench.models.training.order import permutation

    order = permutation(seed, SHUFFLED, len(x))
    return np.asarray(x)[order], np.asarray(y)[order]


def check_rows(recipe: Recipe, x: Any, y: Any) -> None:
    """Refuses rows that cannot be shared, before any of them leaves.

    Raises:
        UsageError, RangeError: as `shared_rows`.
    """
    check_counts(x, y)
    _targets(recipe, y, "labels")
    for begin in range(0, len(x), _AT_ONCE):
        part = _features(recipe, x[begin : begin + _AT_ONCE])
        check_features(part, "features", begin)


def late_rows(recipe: Recipe, x: Any, y: Any, chunk: int) -> dict[str, LateInput]:
    """Features and labels that `check_rows` has seen, as inputs that leave chunk by chunk."""
    from tfe_bench.cluster.client import LateInput

    targets = _targets(recipe, y, "labels")
    found: dict[str, LateInput] = {}
    for number, begin in enumerate(range(0, len(x), chunk)):
        cut = slice(begin, min(begin + chunk, len(x)))
        count = cut.stop - cut.start

        def features(cut: slice = cut) -> PrivateInput:
            return shared_features(_features(recipe, x[cut]), recipe.numbers.activation)

        def labels(cut: slice = cut) -> PrivateInput:
            return shared_targets(targets[cut])

        bits = recipe.numbers
        found[f"x{number}"] = LateInput((count, *recipe.input_shape), bits.activation, features)
        found[f"y{number}"] = LateInput((count, *recipe.output_shape), bits.gradient, labels)
    return found


def shared_rows(recipe: Recipe, x: Any, y: Any, prefix: str = "") -> dict[str, PrivateInput]:
    """Features and labels of one client as its inputs.

    Raises:
        UsageError, RangeError: shapes, counts, numbers or labels that do not fit.
    """
    check_counts(x, y)
    features = shared_features(_features(recipe, x), recipe.numbers.activation, f"{prefix}features")
    targets = _targets(recipe, y, f"{prefix}labels")
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


def _targets(recipe: Recipe, y: Any, what: str) -> Array:
    found: Array = recipe.targets(y, what)
    if not np.abs(found).max() <= LARGEST:
        raise RangeError(f"A number to be learnt is at most {LARGEST:g}. Scale them.")
    return found


def _features(recipe: Recipe, x: Any) -> Array:
    found: Array = recipe.features(x)
    return found
