"""Agreement of private predictions with plaintext predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError


@dataclass(frozen=True)
class Agreement:
    """Comparison of plaintext outputs with private outputs.

    Attributes:
        samples: number of compared samples.
        largest_error: largest absolute error of any output.
        relative_error: largest error, divided by the range of the plaintext outputs.
        top1: fraction of the samples whose largest output is the same.
        top5: fraction of the samples whose largest plaintext output is among the five largest
            private outputs, or among all of them if there are fewer.
    """

    samples: int
    largest_error: float
    relative_error: float
    top1: float
    top5: float

    def __str__(self) -> str:
        return (
            f"{self.samples} samples: largest error {self.largest_error:.3g} "
            f"({self.relative_error:.2g} of the range), top-1 {100 * self.top1:.1f} %, "
            f"top-5 {100 * self.top5:.1f} %"
        )


def compare_outputs(plain: Any, private: Any) -> Agreement:
    """Compare two arrays of outputs [samples, classes], or of one number per sample.

    Raises:
        UsageError: the shapes differ, or there are no samples.
    """
    if not all(hasattr(y, "shape") for y in (plain, private)):
        raise UsageError(
            "The comparison supports one output. Pass one of the model's outputs.",
            code="multiple-outputs",
        )
    a, b = np.asarray(plain, np.float64), np.asarray(private, np.float64)
    if a.shape != b.shape or a.ndim < 1 or a.size == 0:
        raise UsageError(
            f"Expected two arrays [samples, classes] of one shape. Received: {list(a.shape)} and "
            f"{list(b.shape)}.",
            code="shape-mismatch",
            received=[list(a.shape), list(b.shape)],
        )
    a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
    largest_error = float(np.abs(a - b).max())
    best_classes = a.argmax(1)
    top_five = np.argsort(-b, axis=1, kind="stable")[:, :5]
    output_range = float(a.max() - a.min())
    return Agreement(
        len(a),
        largest_error,
        largest_error / output_range if output_range else float("inf") if largest_error else 0.0,
        float((b.argmax(1) == best_classes).mean()),
        float((top_five == best_classes[:, None]).any(1).mean()),
    )
