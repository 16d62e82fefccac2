"""Public scales: powers of two and halves, which disclose little more than a column's magnitude.

The scale of a table's columns, or of a model's Normalization, is a fact about the rows that gave
it.  So it is split: the coarse scale is public, and the owner of a row in plaintext applies it.
The rest lies near 1 and 0 and is a weight like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.errors import RangeError
from tfe_bench.models.layers.base.layer import Array

# Largest exponent of a factor: float32 holds it with room to spare.
_MAX_EXPONENT = 60
# A deviation below this fraction of the largest value is the rounding of a constant.
_CONSTANT_TOLERANCE = 1e-9


@dataclass(frozen=True)
class ColumnScale:
    """The map x * factor + offset for each column.

    Attributes:
        factor, offset: one number for each column.
    """

    factor: tuple[float, ...]
    offset: tuple[float, ...]

    @classmethod
    def identity(cls, count: int) -> ColumnScale:
        """Return the scale that leaves columns unchanged."""
        return cls((1.0,) * count, (0.0,) * count)

    def apply(self, x: Any) -> Array:
        """Return the scaled columns in float64."""
        return np.asarray(np.asarray(x, np.float64) * self.factor + self.offset)

    def to_header(self) -> list[list[float]]:
        """Return the scale as JSON: factors and offsets."""
        return [list(self.factor), list(self.offset)]

    def inverse(self) -> ColumnScale:
        """Return the inverse scale; it is exact, as factors are powers of two."""
        pairs = zip(self.factor, self.offset, strict=True)
        return ColumnScale(tuple(1 / f for f in self.factor), tuple(-o / f for f, o in pairs))


def fit_column_scale(x: Array, names: tuple[str, ...]) -> ColumnScale:
    """Fit the coarse scale of columns: deviations become 0.7 to 1.5, means lie within 1/4 of 0.

    Constant columns become 0.

    Raises:
        RangeError: no scale brings a column's values there; the text names it.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean, spread = x.mean(0), x.std(0)
    bad = ~(np.isfinite(mean) & np.isfinite(spread))
    is_constant = spread <= _CONSTANT_TOLERANCE * np.abs(x).max(0)
    steps = np.log2(np.where(bad | is_constant, 1.0, spread))
    bad |= np.abs(steps) > _MAX_EXPONENT
    if bad.any():
        name = names[int(np.flatnonzero(bad)[0])]
        raise RangeError(
            f"The column {name!r} has numbers too large or too small to be scaled: expected a "
            f"deviation of 2^-{_MAX_EXPONENT} to 2^{_MAX_EXPONENT}. Change its unit, or exclude "
            "it (--drop).",
            code="value-out-of-range",
            operation=name,
        )
    factor = 2.0 ** -np.rint(steps)
    offset = np.where(is_constant, -mean, -np.rint(2 * mean * factor) / 2)
    return ColumnScale(tuple(factor.tolist()), tuple((offset + 0.0).tolist()))


def split_scale(factor: Any, offset: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Split x * factor + offset into two scales (first, then); `first` is coarse and public.

    Args:
        factor, offset: a number, or one for each channel.
    """
    factor, offset = (np.asarray(v, np.float64) for v in (factor, offset))
    size = np.abs(factor)
    usual = np.isfinite(size) & (size > 0)
    public = 2.0 ** np.clip(
        np.rint(np.log2(np.where(usual, size, 1.0))), -_MAX_EXPONENT, _MAX_EXPONENT
    )
    public_offset = np.rint(2 * offset * public / np.where(usual, factor, 1.0)) / 2 + 0.0
    rest = factor / public
    return (public, public_offset), (rest, offset - public_offset * rest)


def split_scale_last(factor: Any, offset: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Split x * factor + offset into two scales (first, then); `then` is coarse and public."""
    factor, offset = (np.asarray(v, np.float64) for v in (factor, offset))
    (public, _), (rest, _) = split_scale(factor, 0.0)
    public_offset = public * np.rint(2 * offset / public) / 2 + 0.0
    return (rest, (offset - public_offset) / public), (public, public_offset)


def is_identity_scale(pair: tuple[Any, Any]) -> bool:
    """Return whether a scale leaves values unchanged."""
    return bool((np.asarray(pair[0]) == 1.0).all() and not np.asarray(pair[1]).any())


def as_rescale_options(pair: tuple[Any, Any]) -> dict[str, Any]:
    """Return a scale as the options of a layer "rescale"."""
    factor, offset = (np.asarray(v, np.float64) for v in pair)
    if not (np.isfinite(factor).all() and np.isfinite(offset).all()):
        raise RangeError("A scale is NaN or infinite.", code="not-finite", operation="rescale")
    return {"scale": factor.tolist(), "offset": offset.tolist()}
