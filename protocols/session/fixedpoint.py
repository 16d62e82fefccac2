"""Fixed point: real numbers as words of the ring, v -> round(v * 2^f), and back.

NumPy only: clients encode their inputs and decode what is revealed to them
without TensorFlow.  No error of this module carries a value, only its kind and place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tfe_bench.errors import RangeError, UsageError, describe_position
from tfe_bench.protocols.session import words

RINGS = (64, 128)
MAGNITUDE_BITS = 62
"""In the ring of 64 bits an encoded value stays below 2^62, in that of 128 bits below 2^126:
truncation and comparison need the two bits above it."""

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """How reals are written into the ring.

    Args:
        fractional_bits: f, the number of binary digits after the point, 0 to l - 3.
        ring_bits: l, 64 or 128. Encoded values are int64 words: one each with 64, and with 128 a
            last axis of 2 holds each value's, low word first.

    Raises:
        UsageError: for any other f or l.
    """

    fractional_bits: int = 16
    ring_bits: int = 64

    def __post_init__(self) -> None:
        if type(self.ring_bits) is not int or self.ring_bits not in RINGS:
            raise UsageError(f"The ring has 64 or 128 bits. Received: {self.ring_bits!r}.")
        bits = self.fractional_bits
        if type(bits) is not int or not 0 <= bits < self.magnitude_bits:
            highest = self.magnitude_bits - 1
            raise UsageError(
                f"fractional_bits is an integer from 0 to {highest}. Received: {bits!r}."
            )

    @property
    def limbs(self) -> int:
        """64-bit words per value, 1 or 2."""
        return self.ring_bits // 64

    @property
    def magnitude_bits(self) -> int:
        """An encoded value stays below 2 to this, in magnitude."""
        return self.ring_bits - 64 + MAGNITUDE_BITS

    @property
    def resolution(self) -> float:
        """The distance between neighboring values, 2^-f; rounding errs by half of it at most."""
        return 2.0**-self.fractional_bits

    @property
    def limit(self) -> float:
        """The first magnitude that is refused, 2^(l-2-f) (integers with f = 0: see `encode`)."""
        return 2.0 ** (self.magnitude_bits - self.fractional_bits)

    def encode(self, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Returns round(v * 2^f) as int64; ties go to the even neighbor.

        The shape is the same, with a last axis of 2 words in the ring of 128 bits. Integers are
        scaled exactly. With f = 0 they pass through unchanged over the whole int64 range,
        -2^63 to 2^63 - 1. Booleans count as 0 and 1.

        Args:
            values: real numbers of any shape: integers, floats or booleans.

        Raises:
            RangeError: a value is NaN, infinite, or |v * 2^f| >= 2^(l-2). The text gives the
                range and the first such position, counted from 0, never the value.
            UsageError: complex numbers, text, objects, dates, masked arrays.
        """
        array = _real_array(values)
        if array.dtype.kind == "f":
            return self._encode_floats(array)
        return self._encode_integers(array)

    def decode(self, ring: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Returns x / 2^f as float64, of the same shape (without the axis of 2 words).

        float64 has 53 bits: larger integers are rounded to the nearest, ties to even, so an
        integer result with f = 0 is read from `ring` itself, without decoding.

        Args:
            ring: int64 words, or uint64 words read as two's complement; any shape, in the ring of
                128 bits with a last axis of 2, low word first.

        Raises:
            UsageError: another type of array, or no axis of 2 words.
        """
        array = np.asarray(ring)
        if array.dtype.kind not in "iu" or array.dtype.itemsize != 8:
            raise UsageError(f"Ring words are int64 or uint64. Received: {array.dtype}.")
        if self.limbs == 2:
            if array.ndim == 0 or array.shape[-1] != 2:
                raise UsageError(
                    "Values of the ring of 128 bits have a last axis of 2 words. Received: shape "
                    f"{list(array.shape)}."
                )
            return _round_words(array, -self.fractional_bits)
        ones = array.astype(np.int64)
        return np.asarray(np.ldexp(ones.astype(np.float64), -self.fractional_bits))

    def _encode_floats(self, array: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        if array.dtype.itemsize < 8:  # float16 * 2^16 would overflow
            array = array.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = np.rint(np.ldexp(array, self.fractional_bits))
            fits = np.abs(scaled) < 2.0**self.magnitude_bits  # False for NaN
        if not np.all(fits):
            self._raise_range_error(array, ~fits)
        if self.limbs == 1:
            return np.asarray(scaled).astype(np.int64)
        # Of the magnitude: there both words are exact, while the low word of -1 has 64 bits.
        size = np.abs(scaled)
        high = np.floor(np.ldexp(size, -64))
        low = np.asarray(size - np.ldexp(high, 64))
        return _signed_words(scaled < 0, low.astype(np.uint64), np.asarray(high).astype(np.uint64))

    def _encode_integers(self, array: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        if self.limbs == 2:
            return self._encode_integers_wide(array)
        if self.fractional_bits == 0:
            fits = array <= np.uint64(_INT64_MAX) if array.dtype == np.uint64 else np.True_
        else:
            limit = 1 << (MAGNITUDE_BITS - self.fractional_bits)
            fits = (array > -limit) & (array < limit)
        if not np.all(fits):
            self._raise_range_error(array, ~np.asarray(fits))
        return np.asarray(array.astype(np.int64) << self.fractional_bits)

    def _encode_integers_wide(self, array: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        negative = array < 0
        with np.errstate(over="ignore"):
            words = array.astype(np.uint64)
            size = np.where(negative, np.uint64(0) - words, words)
        bits = self.fractional_bits
        room = self.magnitude_bits - bits
        if room < 64 and not np.all(fits := size < np.uint64(1 << room)):
            self._raise_range_error(array, ~np.asarray(fits))
        # NumPy shifts all bits out when told to shift by 64 or more.
        low = size << np.uint64(bits)
        high = size >> np.uint64(64 - bits) if bits <= 64 else size << np.uint64(bits - 64)
        return _signed_words(negative, low, high)

    def _raise_range_error(self, array: npt.NDArray[Any], bad: npt.NDArray[np.bool_]) -> None:
        flat = int(np.argmax(bad))
        position = tuple(int(i) for i in np.unravel_index(flat, array.shape))
        bits = self.fractional_bits
        if array.dtype.kind == "f":
            kind = _float_kind(array[position])
            admitted = f"|v| < 2^{self.magnitude_bits - bits}"
        else:
            kind = "too large"
            integer_range = "-2^63 <= v <= 2^63 - 1"
            admitted = f"|v| < 2^{self.magnitude_bits - bits}" if bits else integer_range
        count = int(np.count_nonzero(bad))
        count_note = f" ({count} such values in all)" if count > 1 else ""
        raise RangeError(
            f"A value does not fit fixed point with {bits} fractional bits: the admitted range "
            f"is {admitted}. Received: {kind}, {describe_position(position)}{count_note}. "
            "Scale or clean the data, or use fewer fractional bits.",
            position,
        )


def _signed_words(
    negative: npt.NDArray[np.bool_], low: npt.NDArray[np.uint64], high: npt.NDArray[np.uint64]
) -> npt.NDArray[np.int64]:
    """The words of +-(low + 2^64 high)."""
    size = words.join_words(np.asarray(low), np.asarray(high))
    return np.where(np.asarray(negative)[..., None], words.negate_words(size), size)


def _round_words(ring: npt.NDArray[Any], exponent: int) -> npt.NDArray[np.float64]:
    """x * 2^exponent for words of x, correctly rounded."""
    negative, size = words.split_sign(ring)
    low, high = words.split_words(size)
    # The leading 64 bits of x, the last one set if any bit after it is: converting that to
    # float64 rounds as the whole number would.  (frexp may find one bit too many where `high`
    # rounds up to a power of two; 63 bits are enough as well.)
    _, length = np.frexp(high.astype(np.float64))
    after = np.asarray(length).astype(np.uint64)
    leading = high << (np.uint64(64) - after) | low >> after
    rest = (low << (np.uint64(64) - after) != 0) & (after > 0)
    value = np.ldexp((leading | rest.astype(np.uint64)).astype(np.float64), length + exponent)
    return np.asarray(np.where(negative, -value, value))


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


def _float_kind(value: np.floating[Any]) -> str:
    """The kind of a refused float: this much may be said of a secret."""
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "too large"
