"""Fixed point: real numbers as words of the ring, v -> round(v * 2^f), and back.

NumPy only: clients encode their inputs and decode revealed results without TensorFlow. No error of
this module carries a value, only its kind and position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tfe_bench.errors import RangeError, UsageError, describe_array_position
from tfe_bench.protocols.session import words

RINGS = (64, 128)
MAGNITUDE_BITS = 62
"""In the ring of 64 bits an encoded value stays below 2^62, in that of 128 bits below 2^126:
truncation and comparison need the two bits above it."""

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """The fixed-point format of real numbers in the ring.

    Args:
        fractional_bits: f, the number of binary digits after the point, 0 to l - 3.
        ring_bits: l, 64 or 128. Encoded values are int64 words: one per value with 64 bits. With
            128 bits, a last axis of size 2 holds the two words of a value, low word first.

    Raises:
        UsageError: for any other f or l.
    """

    fractional_bits: int = 16
    ring_bits: int = 64

    def __post_init__(self) -> None:
        if type(self.ring_bits) is not int or self.ring_bits not in RINGS:
            raise UsageError(
                f"Expected a ring of 64 or 128 bits. Received: {self.ring_bits!r}.",
                code="unsupported-ring",
                operation="FixedPoint",
                received=self.ring_bits,
            )
        bits = self.fractional_bits
        if type(bits) is not int or not 0 <= bits < self.magnitude_bits:
            highest = self.magnitude_bits - 1
            raise UsageError(
                f"Expected fractional_bits as an integer from 0 to {highest}. Received: {bits!r}.",
                code="unsupported-scale",
                operation="FixedPoint",
                received=bits,
            )

    @property
    def limbs(self) -> int:
        """64-bit words per value, 1 or 2."""
        return self.ring_bits // 64

    @property
    def magnitude_bits(self) -> int:
        """Exponent of the bound: the magnitude of an encoded value stays below 2 to this power."""
        return self.ring_bits - 64 + MAGNITUDE_BITS

    @property
    def resolution(self) -> float:
        """Distance between neighboring values, 2^-f; the rounding error is at most half of it."""
        return 2.0**-self.fractional_bits

    @property
    def limit(self) -> float:
        """First magnitude that is refused, 2^(l-2-f) (integers with f = 0: see `encode`)."""
        return 2.0 ** (self.magnitude_bits - self.fractional_bits)

    def encode(self, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return round(v * 2^f) as int64; ties go to the even neighbor.

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
        array = _convert_to_float_array(values)
        if array.dtype.kind == "f":
            return self._encode_floats(array)
        return self._encode_integers(array)

    def decode(self, ring: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return x / 2^f as float64, of the same shape (without the axis of 2 words).

        float64 has 53 bits: larger integers are rounded to the nearest, ties to even. Read an
        integer result with f = 0 from `ring` itself, without decoding.

        Args:
            ring: int64 words, or uint64 words read as two's complement; any shape. In the ring of
                128 bits with a last axis of 2, low word first.

        Raises:
            UsageError: another type of array, or no axis of 2 words.
        """
        array = np.asarray(ring)
        if array.dtype.kind not in "iu" or array.dtype.itemsize != 8:
            raise UsageError(
                f"Expected ring words of type int64 or uint64. Received: {array.dtype}.",
                code="unsupported-type",
                operation="decode",
                received=array.dtype,
            )
        if self.limbs == 2:
            if array.ndim == 0 or array.shape[-1] != 2:
                raise UsageError(
                    "Expected values of the ring of 128 bits with a last axis of 2 words. "
                    "Received: shape "
                    f"{list(array.shape)}.",
                    code="shape-mismatch",
                    operation="decode",
                    received=list(array.shape),
                )
            return _round_scaled_128bit_words(array, -self.fractional_bits)
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
        # Split the magnitude: both of its words are exact, while the low word of -1 has 64 bits.
        size = np.abs(scaled)
        high = np.floor(np.ldexp(size, -64))
        low = np.asarray(size - np.ldexp(high, 64))
        return _make_signed_128bit_words(
            scaled < 0, low.astype(np.uint64), np.asarray(high).astype(np.uint64)
        )

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
        # A NumPy shift by 64 or more gives 0.
        low = size << np.uint64(bits)
        high = size >> np.uint64(64 - bits) if bits <= 64 else size << np.uint64(bits - 64)
        return _make_signed_128bit_words(negative, low, high)

    def _raise_range_error(self, array: npt.NDArray[Any], bad: npt.NDArray[np.bool_]) -> None:
        flat = int(np.argmax(bad))
        position = tuple(int(i) for i in np.unravel_index(flat, array.shape))
        bits = self.fractional_bits
        if array.dtype.kind == "f":
            kind = _describe_refused_float(array[position])
            admitted = f"|v| < 2^{self.magnitude_bits - bits}"
        else:
            kind = "too large"
            integer_range = "-2^63 <= v <= 2^63 - 1"
            admitted = f"|v| < 2^{self.magnitude_bits - bits}" if bits else integer_range
        count = int(np.count_nonzero(bad))
        count_note = f" ({count} such values in all)" if count > 1 else ""
        raise RangeError(
            f"A value does not fit fixed point with {bits} fractional bits: the admitted range "
            f"is {admitted}. Received: {kind}, {describe_array_position(position)}{count_note}. "
            "Scale or clean the data, or use fewer fractional bits.",
            position,
            code="value-out-of-range",
            received=kind,
            expected=admitted,
        )


def _make_signed_128bit_words(
    negative: npt.NDArray[np.bool_], low: npt.NDArray[np.uint64], high: npt.NDArray[np.uint64]
) -> npt.NDArray[np.int64]:
    """Return the words of +-(low + 2^64 high)."""
    size = words.join_128bit_words(np.asarray(low), np.asarray(high))
    return np.where(np.asarray(negative)[..., None], words.negate_128bit_words(size), size)


def _round_scaled_128bit_words(ring: npt.NDArray[Any], exponent: int) -> npt.NDArray[np.float64]:
    """Return x * 2^exponent for words of x, correctly rounded."""
    negative, size = words.split_128bit_sign(ring)
    low, high = words.split_128bit_words(size)
    # The leading 64 bits of x, the last one set if any later bit is set: its conversion to float64
    # rounds as the whole number would. (frexp may return one bit too many where `high` rounds up
    # to a power of two; 63 bits are enough too.)
    _, length = np.frexp(high.astype(np.float64))
    after = np.asarray(length).astype(np.uint64)
    leading = high << (np.uint64(64) - after) | low >> after
    rest = (low << (np.uint64(64) - after) != 0) & (after > 0)
    value = np.ldexp((leading | rest.astype(np.uint64)).astype(np.float64), length + exponent)
    return np.asarray(np.where(negative, -value, value))


def _convert_to_float_array(values: npt.ArrayLike) -> npt.NDArray[Any]:
    if isinstance(values, np.ma.MaskedArray):
        raise UsageError(
            "Expected an array without masked cells, which would count as values. "
            "Received: a masked array.",
            code="masked-array",
            operation="encode",
        )
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError):
        array = None
    if array is None:
        raise UsageError(
            "Expected an array of real numbers. Received: a ragged sequence.",
            code="ragged-array",
            operation="encode",
        )
    if array.dtype.kind == "b":
        return array.astype(np.int64)
    if array.dtype.kind not in "iuf":
        raise UsageError(
            f"Expected integers, floats or booleans. Received: an array of {array.dtype}.",
            code="unsupported-type",
            operation="encode",
            received=array.dtype,
        )
    return array


def _describe_refused_float(value: np.floating[Any]) -> str:
    """Return the kind of a refused float, the only part of a secret that an error may contain."""
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "too large"
