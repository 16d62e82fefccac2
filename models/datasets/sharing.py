"""Features and labels of an owner as private inputs: checked, and encoded in fixed point."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.cluster.stored import LABEL_BITS
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.models.convert.calibration import MIN_STEPS
from tfe_bench.models.datasets.readers import Rows

# Largest magnitude of a feature: pictures reach 1, standardized columns a few units.
MAX_FEATURE = 2.0**12
# Largest magnitude of a number to be learned, which losses rely on.
MAX_LABEL = 2.0**13
# Rows that are encoded at once.
BLOCK_ROWS = 4096


def check_training_features(x: Any, subject: str = "features", first: int = 0) -> Any:
    """Reject features that fixed point cannot hold.

    Args:
        subject: the subject of errors.
        first: number of the first row, for errors.

    Raises:
        UsageError: the features are not numbers [rows, ...].
        RangeError: a feature is NaN or exceeds 2^12; the text names the row, not the value.
    """
    array = np.asarray(x)
    if array.dtype.kind not in "fiub" or array.ndim < 2 or not array.size:
        raise UsageError(
            f"Expected numbers [rows, ...] as {subject}. Received: {array.dtype} "
            f"{list(array.shape)}.",
            code="shape-mismatch",
            operation=subject,
            received=list(array.shape),
        )
    for begin in range(0, len(array), BLOCK_ROWS):
        part = array[begin : begin + BLOCK_ROWS]
        with np.errstate(invalid="ignore"):
            bad = ~(np.abs(part) <= MAX_FEATURE).reshape(len(part), -1).all(1)
        if bad.any():
            row = first + begin + int(np.flatnonzero(bad)[0])
            raise RangeError(
                f"Expected numbers from -{MAX_FEATURE:g} to {MAX_FEATURE:g} as {subject}. "
                f"Received: NaN or a larger number in row {row} (from 0). Scale them, for "
                "example to mean 0 and deviation 1.",
                code="value-out-of-range",
                operation=subject,
                received=row,
            )
    return array


def share_training_features(
    x: Any, fractional_bits: int, subject: str = "features"
) -> PrivateInput:
    """Encode features as their owner's input.

    A warning counts columns (for images: all pixels together) whose values are all so small that
    fixed point holds them coarsely.

    Raises:
        UsageError, RangeError: as `check_training_features`.
    """
    array = check_training_features(x, subject)
    ring = np.empty(array.shape, np.int64)
    largest = np.zeros(array.shape[1] if array.ndim == 2 else 1, np.int64)
    # block by block, as float64 copies of all rows would be large
    for begin in range(0, len(array), BLOCK_ROWS):
        part = array[begin : begin + BLOCK_ROWS].astype(np.float64)
        ring[begin : begin + BLOCK_ROWS] = np.rint(part * 2.0**fractional_bits)
        steps = np.abs(ring[begin : begin + BLOCK_ROWS]).reshape(-1, len(largest))
        largest = np.maximum(largest, steps.max(0))
    if coarse := int(((largest > 0) & (largest < MIN_STEPS)).sum()):
        warnings.warn(
            f"{coarse} of {len(largest)} columns of the {subject} have no value beyond "
            f"{MIN_STEPS * 2.0 ** (-fractional_bits):.2g}, which is coarse with "
            f"{fractional_bits} fractional bits. Scale them, for example to mean 0 and deviation "
            "1.",
            stacklevel=2,
        )
    return PrivateInput(ring, fractional_bits)


def share_training_targets(y: Any) -> PrivateInput:
    """Encode labels, one-hot or as numbers [rows, outputs], as their owner's input."""
    return PrivateInput(
        np.rint(np.asarray(y, np.float64) * 2.0**LABEL_BITS).astype(np.int64), LABEL_BITS
    )


def encode_labels(rows: Rows) -> Any:
    """Return the labels of rows as [n, outputs]: one-hot for classes, otherwise one number.

    Raises:
        RangeError: a label is not one of the classes, or is too large.
    """
    labels = rows.y
    assert labels is not None
    if rows.target == "number":
        if not np.abs(labels).max() <= MAX_LABEL:
            raise RangeError(
                f"Expected numbers to be learned of at most {MAX_LABEL:g}. Scale them.",
                code="value-out-of-range",
                operation="labels",
                expected=MAX_LABEL,
            )
        return labels.astype(np.float64)[:, None]
    if labels.min() < 0 or labels.max() >= rows.classes:
        raise RangeError(
            f"Expected classes 0 to {rows.classes - 1} as labels. Received: others.",
            code="unknown-class",
            operation="labels",
            expected=rows.classes,
        )
    if rows.target == "binary":
        return labels.astype(np.float64)[:, None]
    return np.eye(rows.classes)[labels]
