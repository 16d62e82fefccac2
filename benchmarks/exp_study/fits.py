"""y = a n + b by ordinary unweighted least squares, as in the published fits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tfe_bench.errors import UsageError


@dataclass(frozen=True)
class Fit:
    """A fitted line.

    Attributes:
        a: cost per element.
        b: fixed cost.
        r2: the share of the variance that the line explains; 1 without variance.
        points: number of points.
    """

    a: float
    b: float
    r2: float
    points: int


def fit_line(n: npt.ArrayLike, y: npt.ArrayLike) -> Fit:
    """Return the least-squares line through (n, y).

    Raises:
        UsageError: fewer than two different n, or lists of two lengths.
    """
    xs, ys = np.asarray(n, np.float64), np.asarray(y, np.float64)
    if xs.shape != ys.shape or np.unique(xs).size < 2:
        raise UsageError(
            "A line requires two different sizes, and one value for each size. Received: "
            f"{xs.size} n, {ys.size} y.",
            code="too-few-points",
            received=f"{xs.size} n, {ys.size} y",
        )
    centered = xs - xs.mean()
    a = float(centered @ (ys - ys.mean()) / (centered @ centered))
    b = float(ys.mean() - a * xs.mean())
    total = float(((ys - ys.mean()) ** 2).sum())
    rest = float(((ys - a * xs - b) ** 2).sum())
    return Fit(a, b, 1.0 if total == 0 else 1 - rest / total, len(xs))
