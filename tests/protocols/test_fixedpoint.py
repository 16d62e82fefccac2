"""Fixed-point encoding rounds to even, is exact where documented, and never prints a value."""

from __future__ import annotations

import contextlib
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.refusals import raises
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.protocols.session import words
from tfe_bench.protocols.session.fixedpoint import FixedPoint

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
EDGES = [0, 1, -1, 2**31, -(2**31), 2**53 - 1, 2**53 + 1, 2**62, INT64_MAX, INT64_MIN]


def exact_encoding(value: float, bits: int) -> int:
    scaled: Fraction = Fraction(value) * 2**bits
    return round(scaled)  # Python rounds a Fraction half to even


@settings(deadline=None, print_blob=True)
@example(value=0.0, bits=16)
@example(value=-0.0, bits=16)
@example(value=1.0, bits=16)
@example(value=-1.0, bits=16)
@example(value=2.0**-17, bits=16)
@example(value=-(2.0**-17), bits=16)
@example(value=3 * 2.0**-17, bits=16)
@example(value=float(np.nextafter(2.0**46, 0)), bits=16)
@example(value=-float(np.nextafter(2.0**46, 0)), bits=16)
@example(value=5e-324, bits=61)
@example(value=float(np.nextafter(2.0, 0)), bits=61)
@example(value=0.5, bits=0)
@example(value=1.5, bits=0)
@given(value=st.floats(-2, 2, exclude_min=True, exclude_max=True), bits=st.integers(0, 61))
def test_decode_of_encode_is_within_half_a_unit_and_matches_exact_arithmetic(
    value: float, bits: int
) -> None:
    point = FixedPoint(bits)
    encoded = point.encode(np.array([value]))
    assert encoded.dtype == np.int64
    assert int(encoded[0]) == exact_encoding(value, bits)
    back = point.decode(encoded)
    assert back.dtype == np.float64
    assert abs(Fraction(float(back[0])) - Fraction(value)) <= Fraction(1, 2 ** (bits + 1))


@settings(deadline=None, print_blob=True)
@example(word=0)
@example(word=1)
@example(word=-1)
@example(word=2**53)
@example(word=-(2**53))
@given(word=st.integers(-(2**53), 2**53))
def test_encode_of_decode_is_the_identity_on_words_that_float64_holds(word: int) -> None:
    for bits in (0, 1, 16, 61):
        point = FixedPoint(bits)
        words = np.array(word, np.int64)
        assert int(point.encode(point.decode(words))) == word


@settings(deadline=None, print_blob=True)
@example(value=0)
@example(value=INT64_MIN)
@example(value=INT64_MAX)
@example(value=2**53 + 1)
@given(value=st.integers(INT64_MIN, INT64_MAX))
def test_integers_without_fraction_are_exact_over_the_full_range(value: int) -> None:
    assert int(FixedPoint(0).encode(np.array(value, np.int64))) == value


def test_random_arrays_round_half_to_even_like_decimal_arithmetic() -> None:
    seed = 20240607
    print("seed", seed)
    values = np.random.default_rng(seed).integers(-(2**20), 2**20, 500) / 8
    encoded = FixedPoint(2).encode(values)
    expected = [int((Decimal(v) * 4).quantize(Decimal(1), ROUND_HALF_EVEN)) for v in values]
    assert encoded.tolist() == expected


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3, 4)])
def test_shapes_survive_both_ways(shape: tuple[int, ...]) -> None:
    point = FixedPoint()
    encoded = point.encode(np.ones(shape))
    assert isinstance(encoded, np.ndarray)
    assert encoded.shape == shape
    assert isinstance(point.decode(encoded), np.ndarray)
    assert point.decode(encoded).shape == shape


@pytest.mark.parametrize(
    "dtype", ["b1", "i1", "u1", "i2", "<u4", ">i4", ">i8", "u8", "f2", "f4", ">f8", "g"]
)
def test_every_real_type_encodes_one_alike(dtype: str) -> None:
    assert FixedPoint().encode(np.ones(2, dtype)).tolist() == [65536, 65536]


@pytest.mark.parametrize("bits", [0, 1, 16, 61])
def test_the_range_ends_exactly_where_it_says(bits: int) -> None:
    point = FixedPoint(bits)
    below = np.nextafter(point.limit, 0)
    point.encode(np.array([below, -below]))
    for sign in (1, -1):
        with raises(RangeError, "value-out-of-range", expected=f"|v| < 2^{62 - bits}"):
            point.encode(np.array([sign * point.limit]))
        if bits:
            whole = 2 ** (62 - bits)
            point.encode(np.array([sign * (whole - 1)], np.int64))
            with raises(RangeError, "value-out-of-range", expected=f"|v| < 2^{62 - bits}"):
                point.encode(np.array([sign * whole], np.int64))


def test_the_most_negative_integer_is_refused_when_scaled() -> None:
    with pytest.raises(RangeError):
        FixedPoint(16).encode(np.array([INT64_MIN], np.int64))


def test_longdouble_does_not_round_up_to_the_end_of_the_range() -> None:
    below = np.nextafter(np.longdouble(2) ** 62, np.longdouble(0))
    with contextlib.suppress(RangeError):
        assert abs(int(FixedPoint(0).encode(np.array([below]))[0])) < 2**62


def test_unsigned_integers_above_int64_are_refused() -> None:
    point = FixedPoint(0)
    assert point.encode(np.array([INT64_MAX], np.uint64)).tolist() == [INT64_MAX]
    for value in (2**63, 2**64 - 1):
        with raises(RangeError, "value-out-of-range", expected="-2^63 <= v <= 2^63 - 1"):
            point.encode(np.array([0, value], np.uint64))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (np.nan, "NaN"),
        (np.inf, "+Inf"),
        (-np.inf, "-Inf"),
        (1.7e308, "too large"),
        (-1.2345e40, "too large"),
    ],
)
def test_a_refused_value_is_told_by_kind_and_place_and_never_by_value(
    value: float, kind: str
) -> None:
    point = FixedPoint()
    for shape, index, place in [
        ((), (), "the only value"),
        ((5,), (3,), "index 3 (counted from 0)"),
        ((4, 5), (2, 1), "row 2, column 1 (counted from 0)"),
        ((2, 2, 2), (1, 0, 1), "index (1, 0, 1)"),
    ]:
        values = np.zeros(shape)
        values[index] = value
        with raises(RangeError, "value-out-of-range", received=kind, names=(place,)) as error:
            point.encode(values)
        assert error.value.position == index
        text = str(error.value)
        for digits in ("1.7", "1.2345", "e+", "12345"):
            assert digits not in text
        assert error.value.exit_code == 40


def test_the_first_of_several_offenders_is_named_with_their_count() -> None:
    with raises(RangeError, "value-out-of-range", received="NaN", names=("at index 1 ", "2 such")):
        FixedPoint().encode(np.array([0, np.nan, 1, np.inf]))


def test_float_overflow_raises_no_numpy_warning() -> None:
    with np.errstate(all="raise"), pytest.raises(RangeError):
        FixedPoint().encode(np.array([1.7e308]))
    with np.errstate(all="raise"):
        assert FixedPoint().encode(np.array([6e4], np.float16)).tolist() == [60000 << 16]


@pytest.mark.parametrize(
    "values",
    [
        np.array([1j]),
        np.array([object()]),
        np.array(["1"]),
        np.array([b"1"]),
        np.array([2**70]),
        np.array(["2020-01-01"], "datetime64[D]"),
        np.zeros(2, [("a", "f8")]),
        np.ma.masked_array([1, 2], [True, False]),
        [[1], [1, 2]],
    ],
)
def test_other_types_are_usage_errors(values: Any) -> None:
    with pytest.raises(UsageError):
        FixedPoint().encode(values)


def test_decode_reads_unsigned_words_as_twos_complement_and_refuses_floats() -> None:
    point = FixedPoint(1)
    assert point.decode(np.array([2**64 - 1], np.uint64)).tolist() == [-0.5]
    assert point.decode(np.array(EDGES, np.int64)).tolist() == [v / 2 for v in EDGES]
    for bad in (np.zeros(1), np.zeros(1, np.int32), np.zeros(1, bool)):
        with raises(UsageError, "unsupported-type"):
            point.decode(bad)


@pytest.mark.parametrize("arguments", [(-1,), (62,), (16.0,), (True,), (16, 32), (16, 64.0)])
def test_parameters_outside_the_design_are_usage_errors(arguments: tuple[Any, ...]) -> None:
    code = "unsupported-scale" if len(arguments) == 1 else "unsupported-ring"
    with raises(UsageError, code):
        FixedPoint(*arguments)


def test_defaults_are_sixteen_bits_in_a_ring_of_sixty_four_and_frozen() -> None:
    assert FixedPoint() == FixedPoint(16, 64)
    assert FixedPoint().resolution == 2.0**-16
    assert FixedPoint().limit == 2.0**46
    with pytest.raises(AttributeError):
        FixedPoint().fractional_bits = 3  # type: ignore[misc]


# ---- two words per value


def wide_format(bits: int) -> FixedPoint:
    return FixedPoint(bits, 128)


def whole_numbers(encoded: Any) -> list[int]:
    return [int(v) for v in words.integers_from_128bit_words(encoded).reshape(-1)]


@settings(deadline=None, print_blob=True)
@example(value=0.0, bits=40)
@example(value=-(2.0**-41), bits=40)
@example(value=3 * 2.0**-41, bits=40)
@example(value=-(2.0**-40), bits=40)
@example(value=float(np.nextafter(2.0**86, 0)), bits=40)
@example(value=-float(np.nextafter(2.0**86, 0)), bits=40)
@example(value=2.0**24, bits=40)
@example(value=-(2.0**24), bits=40)
@example(value=-(2.0**64), bits=0)
@example(value=5e-324, bits=125)
@given(value=st.floats(-(2.0**85), 2.0**85), bits=st.integers(0, 40))
def test_wide_encoding_matches_exact_arithmetic_and_comes_back(value: float, bits: int) -> None:
    point = wide_format(bits)
    encoded = point.encode(np.array([value]))
    assert encoded.dtype == np.int64 and encoded.shape == (1, 2)
    assert whole_numbers(encoded) == [exact_encoding(value, bits)]
    back = point.decode(encoded)
    assert back.dtype == np.float64 and back.shape == (1,)
    assert abs(Fraction(float(back[0])) - Fraction(value)) <= Fraction(1, 2 ** (bits + 1))


@settings(deadline=None, print_blob=True)
@example(word=2**127 - 1)
@example(word=-(2**127))
@example(word=2**64 + 1)
@example(word=2**117 - 1)
@example(word=2**64 + 2**11)
@example(word=2**64 + 2**11 + 1)
@example(word=2**64 + 3 * 2**11)
@example(word=2**54 + 2)
@example(word=2**63 + 2**10)
@example(word=-(2**63))
@given(word=st.integers(-(2**127), 2**127 - 1))
def test_wide_decoding_rounds_every_word_as_python_does(word: int) -> None:
    assert float(wide_format(0).decode(words.integers_to_128bit_words([word]))[0]) == float(word)
    assert float(wide_format(40).decode(words.integers_to_128bit_words([word]))[0]) == word / 2**40


def test_wide_decoding_of_random_words_is_correctly_rounded(rng: np.random.Generator) -> None:
    ring = rng.integers(INT64_MIN, INT64_MAX, (20_000, 2), np.int64, endpoint=True)
    ring[:, 1] >>= rng.integers(0, 64, 20_000)  # of every length
    exact = [v / 2**40 for v in whole_numbers(ring)]
    assert wide_format(40).decode(ring).tolist() == exact
    assert wide_format(40).decode(ring.view(np.uint64)).tolist() == exact


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3, 4)])
def test_wide_values_have_a_last_axis_of_two_words(shape: tuple[int, ...]) -> None:
    point = wide_format(40)
    encoded = point.encode(np.full(shape, -1.5))
    assert encoded.shape == (*shape, 2)
    assert point.decode(encoded).shape == shape
    assert (point.decode(encoded) == -1.5).all()


@pytest.mark.parametrize("dtype", ["b1", "i1", "u1", "<u4", ">i4", ">i8", "u8", "f2", "f4", "g"])
def test_every_real_type_encodes_one_alike_in_two_words(dtype: str) -> None:
    assert wide_format(40).encode(np.ones(2, dtype)).tolist() == [[1 << 40, 0]] * 2
    assert wide_format(70).encode(np.ones(2, dtype)).tolist() == [[0, 64]] * 2


@pytest.mark.parametrize("bits", [0, 1, 40, 63, 64, 65, 125])
def test_the_wide_range_ends_exactly_where_it_says(bits: int) -> None:
    point = wide_format(bits)
    assert point.limit == 2.0 ** (126 - bits)
    below = np.nextafter(point.limit, 0)
    assert whole_numbers(point.encode(np.array([below, -below]))) == [
        exact_encoding(v, bits) for v in (below, -below)
    ]
    for sign in (1, -1):
        with raises(RangeError, "value-out-of-range", expected=f"|v| < 2^{126 - bits}"):
            point.encode(np.array([sign * point.limit]))
    least, most = max(INT64_MIN, 1 - (1 << (126 - bits))), min(INT64_MAX, (1 << (126 - bits)) - 1)
    assert whole_numbers(point.encode(np.array([least, most]))) == [least << bits, most << bits]
    if bits > 62:
        for value in (least - 1, most + 1):
            with pytest.raises(RangeError):
                point.encode(np.array([value]))
    else:
        assert (
            whole_numbers(point.encode(np.array([2**63, 2**64 - 1], np.uint64)))[1]
            == (2**64 - 1) << bits
        )


def test_wide_words_of_another_type_or_shape_are_usage_errors() -> None:
    for bad in (np.zeros(3, np.int64), np.zeros((2, 3), np.int64), np.array(1), np.zeros((1, 2))):
        with raises(UsageError, "unsupported-type", "shape-mismatch"):
            wide_format(40).decode(bad)
    for bits in (-1, 126, True, 40.0):
        with raises(UsageError, "unsupported-scale"):
            wide_format(bits)  # type: ignore[arg-type]
    with raises(RangeError, "value-out-of-range", received="NaN", names=("row 0, column 1",)):
        wide_format(40).encode(np.array([[0, np.nan]]))
