"""Fixed point: real numbers as words of the ring, v -> round(v * 2^f), and back.

NumPy only: clients encode their inputs and decode what is revealed to them
without TensorFlow.  No error of this module carries a value, only its kind and place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tfe_bench.errors import RangeError, UsageError

RINGS = (64, 128)
MAGNITUDE_BITS = 62
"""An encoded value stays below 2^62: truncation and comparison need the two bits above it."""

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """How reals are written into the ring.

    Args:
        fractional_bits: f, the number of binary digits after the point, 0 to 61.
        ring_bits: l, 64 or 128. Encoded values are int64 either way, because
            |v * 2^f| < 2^62 in both; the 128-bit ring extends their sign.

    Raises:
        UsageError: for any other f or l.
    """

    fractional_bits: int = 16
    ring_bits: int = 64

    def __post_init__(self) -> None:
        if type(self.ring_bits) is not int or self.ring_bits not in RINGS:
            raise UsageError(f"The ring has 64 or 128 bits. Received: {self.ring_bits!r}.")
        bits = self.fractional_bits
        if type(bits) is not int or not 0 <= bits < MAGNITUDE_BITS:
            raise UsageError(
                f"fractional_bits is an integer from 0 to {MAGNITUDE_BITS - 1}. Received: {bits!r}."
            )

    @property
    def resolution(self) -> float:
        """The distance between neighbouring values, 2^-f; rounding errs by half of it at most."""
        return 2.0**-self.fractional_bits

    @property
    def limit(self) -> float:
        """The first magnitude that is refused, 2^(62-f) (integers with f = 0: see `encode`)."""
        return 2.0 ** (MAGNITUDE_BITS - self.fractional_bits)

    def encode(self, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Returns round(v * 2^f) as int64, of the same shape; ties go to the even neighbour.

        Integers are scaled exactly. With f = 0 they pass through unchanged over the
        whole int64 range, -2^63 to 2^63 - 1. Booleans count as 0 and 1.

        Args:
            values: real numbers of any shape: integers, floats or booleans.

        Raises:
            RangeError: a value is NaN, infinite, or |v * 2^f| >= 2^62. The text gives the
                range and the first such position, counted from 0, never the value.
            UsageError: complex numbers, text, objects, dates, masked arrays.
        """
        array = _real_array(values)
        if array.dtype.kind == "f":
            return self._encode_floats(array)
        return self._encode_integers(array)

    def decode(self, ring: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Returns x / 2^f as float64, of the same shape.

        float64 has 53 bits: larger integers are rounded, so an integer result with
        f = 0 is read from `ring` itself, without decoding.

        Args:
            ring: int64 words, or uint64 words read as two's complement; any shape.

        Raises:
            UsageError: another type of array.
        """
        array = np.asarray(ring)
        if array.dtype.kind not in "iu" or array.dtype.itemsize != 8:
            raise UsageError(f"Ring words are int64 or uint64. Received: {array.dtype}.")
        words = array.astype(np.int64)
        return np.asarray(np.ldexp(words.astype(np.float64), -self.fractional_bits))

    def _encode_floats(self, array: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        if array.dtype.itemsize < 8:  # float16 * 2^16 would overflow
            array = array.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = np.rint(np.ldexp(array, self.fractional_bits))
            fits = np.abs(scaled) < 2.0**MAGNITUDE_BITS  # False for NaN
        if not np.all(fits):
            self._refuse(array, ~fits)
        return np.asarray(scaled).astype(np.int64)

    def _encode_integers(self, array: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        if self.fractional_bits == 0:
            fits = array <= np.uint64(_INT64_MAX) if array.dtype == np.uint64 else np.True_
        else:
            limit = 1 << (MAGNITUDE_BITS - self.fractional_bits)
            fits = (array > -limit) & (array < limit)
        if not np.all(fits):
            self._refuse(array, ~np.asarray(fits))
        return np.asarray(array.astype(np.int64) << self.fractional_bits)

    def _refuse(self, array: npt.NDArray[Any], bad: npt.NDArray[np.bool_]) -> None:
        flat = int(np.argmax(bad))
        position = tuple(int(i) for i in np.unravel_index(flat, array.shape))
        bits = self.fractional_bits
        if array.dtype.kind == "f":
            kind = _kind(array[position])
            admitted = f"|v| < 2^{MAGNITUDE_BITS - bits}"
        else:
            kind = "too large"
            whole = "-2^63 <= v <= 2^63 - 1"
            admitted = f"|v| < 2^{MAGNITUDE_BITS - bits}" if bits else whole
        count = int(np.count_nonzero(bad))
        more = f" ({count} such values in all)" if count > 1 else ""
        raise RangeError(
            f"A value does not fit fixed point with {bits} fractional bits: the admitted range "
            f"is {admitted}. Received: {kind}, {_place(position)}{more}. "
            "Scale or clean the data, or use fewer fractional bits."
        )


def _real_array(values: npt.ArrayLike) -> npt.NDArray[Any]:
    if isinstance(values, np.ma.MaskedArray):
        raise UsageError("Masked arrays are not encoded: the masked cells would count as values.")
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError):
        array = None
    if array is None:
        raise UsageError("Values form an array of real numbers. Received: a ragged sequence.")
    if array.dtype.kind == "b":
        return array.astype(np.int64)
    if array.dtype.kind not in "iuf":
        raise UsageError(
            f"Values are integers, floats or booleans. Received: an array of {array.dtype}."
        )
    return array


def _kind(value: Any) -> str:
    """The kind of a refused float: this much may be said of a secret."""
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "too large"


def _place(position: tuple[int, ...]) -> str:
    match position:
        case ():
            return "the only value"
        case (index,):
            return f"at index {index} (counted from 0)"
        case (row, column):
            return f"at row {row}, column {column} (counted from 0)"
        case _:
            return f"at index {position} (counted from 0)"
