"""Scales that are public: powers of two and halves, which tell about a column little but its order.

What a table's columns, or a model's Normalization, are scaled by is a fact about the rows that
they were taken from.  So it is parted: the coarse scale is public, and whoever has a row in the
clear computes it; the rest lies near 1 and 0 and is a weight like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.errors import RangeError
from tfe_bench.models.kinds.layer import Array

# Of a factor, as a power of two: what float32 holds with room to spare.
_MAX_EXPONENT = 60
# A deviation below this share of the largest value is the rounding of a constant.
_CONSTANT_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Scale:
    """x * factor + offset, for each column.

    Attributes:
        factor, offset: one number for each column.
    """

    factor: tuple[float, ...]
    offset: tuple[float, ...]

    @classmethod
    def identity(cls, count: int) -> Scale:
        """That of so many columns as they are."""
        return cls((1.0,) * count, (0.0,) * count)

    def apply(self, x: Any) -> Array:
        """The scaled columns, float64."""
        return np.asarray(np.asarray(x, np.float64) * self.factor + self.offset)

    def header(self) -> list[list[float]]:
        """As JSON holds it: factors, and offsets."""
        return [list(self.factor), list(self.offset)]

    def inverse(self) -> Scale:
        """What gives the columns back; exact, as factors are powers of two."""
        pairs = zip(self.factor, self.offset, strict=True)
        return Scale(tuple(1 / f for f in self.factor), tuple(-o / f for f, o in pairs))


def fit_scale(x: Array, names: tuple[str, ...]) -> Scale:
    """The coarse scale of some columns: deviations from 0.7 to 1.5, means within 1/4 of 0.

    Constant columns become 0.

    Raises:
        RangeError: a column whose values no scale brings there; it is named.
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
            f"The column {name!r} has numbers too large or too small to be scaled: its deviation "
            f"is 2^-{_MAX_EXPONENT} to 2^{_MAX_EXPONENT}. Write it in another unit, or leave it out (--drop)."
        )
    factor = 2.0 ** -np.rint(steps)
    offset = np.where(is_constant, -mean, -np.rint(2 * mean * factor) / 2)
    return Scale(tuple(factor.tolist()), tuple((offset + 0.0).tolist()))


def split_scale(factor: Any, offset: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """(first, then) of x * factor + offset: two scales of which `first` is coarse and public.

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
    """(first, then) of the same, of which `then` is coarse and public."""
    factor, offset = (np.asarray(v, np.float64) for v in (factor, offset))
    (public, _), (rest, _) = split_scale(factor, 0.0)
    public_offset = public * np.rint(2 * offset / public) / 2 + 0.0
    return (rest, (offset - public_offset) / public), (public, public_offset)


def is_identity(pair: tuple[Any, Any]) -> bool:
    """Whether a scale leaves values as they are."""
    return bool((np.asarray(pair[0]) == 1.0).all() and not np.asarray(pair[1]).any())


def as_options(pair: tuple[Any, Any]) -> dict[str, Any]:
    """A scale as the options of a layer "rescale"."""
    factor, offset = (np.asarray(v, np.float64) for v in pair)
    if not (np.isfinite(factor).all() and np.isfinite(offset).all()):
        raise RangeError("A scale is NaN or infinite.")
    return {"scale": factor.tolist(), "offset": offset.tolist()}
