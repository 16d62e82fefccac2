"""Accuracy: six thresholds on [-40, 40], mean errors on [-20, 20], 10,000 equidistant points each.

AE is the absolute error |y - exp(x)|, APE the same divided by exp(x).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]

POINTS = 10_000
RANGE = (-40.0, 40.0)
ERROR_RANGE = (-20.0, 20.0)
APE_LIMITS = (0.05, 0.01, 0.0005)
AE_LIMITS = (5.0, 1.0, 0.05)
NAMES = ("ape_lt_5pct", "ape_lt_1pct", "ape_lt_0.05pct", "ae_lt_5", "ae_lt_1", "ae_lt_0.05")


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of a form.

    Attributes:
        shares: of the points of RANGE below each of the six thresholds, in the order of NAMES.
        mse, mae, mape: mean squared, absolute and relative error on ERROR_RANGE.
        max_ape: largest relative error within the declared range (and RANGE); NaN if that is empty.
        max_ae_below_zero: largest absolute error at x <= 0 within the declared range (and RANGE).
        first, last: the least and greatest x of RANGE with APE < 1 %; NaN if no point qualifies.
        x, y: the points of RANGE, and the results.
    """

    shares: tuple[float, ...]
    mse: float
    mae: float
    mape: float
    max_ape: float
    max_ae_below_zero: float
    first: float
    last: float
    x: Reals
    y: Reals

    @property
    def mean6(self) -> float:
        """Mean of the six shares."""
        return float(np.mean(self.shares))


def exp_grid_points(float32: bool = False) -> Reals:
    """Return the points of RANGE, then those of ERROR_RANGE, [2 * POINTS].

    Args:
        float32: rounded to float32 first, as the published benchmark fed them.
    """
    both = np.concatenate([np.linspace(*RANGE, POINTS), np.linspace(*ERROR_RANGE, POINTS)])
    return both.astype(np.float32).astype(np.float64) if float32 else both


def score_exp_accuracy(x: Reals, y: Any, declared: tuple[float, float]) -> Accuracy:
    """Score the results for `exp_grid_points()`.

    Args:
        x: exactly as encoded.
        y: the results, [2 * POINTS].
        declared: the form's valid range.
    """
    y = np.asarray(y, np.float64)
    exact = np.exp(x)
    ae = np.abs(y - exact)
    ape = ae / exact
    wide, narrow = slice(0, POINTS), slice(POINTS, None)
    shares = [float(np.mean(ape[wide] < limit)) for limit in APE_LIMITS]
    shares += [float(np.mean(ae[wide] < limit)) for limit in AE_LIMITS]
    good = x[wide][ape[wide] < APE_LIMITS[1]]
    inside = (x[wide] >= declared[0]) & (x[wide] <= declared[1])
    below = inside & (x[wide] <= 0)
    return Accuracy(
        shares=tuple(shares),
        mse=float(np.mean(ae[narrow] ** 2)),
        mae=float(np.mean(ae[narrow])),
        mape=float(np.mean(ape[narrow])),
        max_ape=_max_or_nan(ape[wide][inside]),
        max_ae_below_zero=_max_or_nan(ae[wide][below]),
        first=float(good.min()) if good.size else float("nan"),
        last=float(good.max()) if good.size else float("nan"),
        x=x[wide],
        y=y[wide],
    )


def _max_or_nan(values: Reals) -> float:
    return float(values.max()) if values.size else float("nan")
