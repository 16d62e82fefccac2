"""Pairs of words add and subtract like Python's integers modulo 2^128."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tfe_bench.protocols.session import words

RING = 1 << 128
EDGES = sorted(
    {(s * (1 << k) + d) % RING for s in (1, -1) for k in (0, 63, 64, 127) for d in (-1, 0, 1)}
)
elements = st.integers(0, RING - 1)


def _as_signed(value: int) -> int:
    value %= RING
    return value - RING if value >> 127 else value


def test_edge_values_add_subtract_and_negate_in_all_pairs() -> None:
    a, b = (np.array(g, object) for g in np.meshgrid(EDGES, EDGES, indexing="ij"))
    wide_a, wide_b = words.integers_to_128bit_words(a), words.integers_to_128bit_words(b)
    for got, exact in (
        (words.add_128bit_words(wide_a, wide_b), a + b),
        (words.subtract_128bit_words(wide_a, wide_b), a - b),
        (words.negate_128bit_words(wide_a), -a),
    ):
        expected = [_as_signed(int(v)) for v in exact.reshape(-1)]
        assert words.integers_from_128bit_words(got).reshape(-1).tolist() == expected


@given(elements, elements)
@example(RING - 1, RING - 1)
def test_any_two_elements_add_and_subtract(a: int, b: int) -> None:
    wide_a, wide_b = words.integers_to_128bit_words(a), words.integers_to_128bit_words(b)
    assert int(
        words.integers_from_128bit_words(words.add_128bit_words(wide_a, wide_b))[()]
    ) == _as_signed(a + b)
    assert int(
        words.integers_from_128bit_words(words.subtract_128bit_words(wide_a, wide_b))[()]
    ) == _as_signed(a - b)


def test_random_sums_of_many_elements_are_exact(rng: np.random.Generator) -> None:
    a, b = rng.integers(-(2**63), 2**63 - 1, (2, 10_000, 2), np.int64, endpoint=True)
    exact = (words.integers_from_128bit_words(a) + words.integers_from_128bit_words(b)).tolist()
    assert words.integers_from_128bit_words(words.add_128bit_words(a, b)).tolist() == [
        _as_signed(v) for v in exact
    ]
    assert np.array_equal(words.subtract_128bit_words(words.add_128bit_words(a, b), b), a)
    negative, size = words.split_128bit_sign(a)
    assert np.array_equal(negative, a[:, 1] < 0)
    assert (
        words.integers_from_128bit_words(size).tolist()
        == np.abs(words.integers_from_128bit_words(a)).tolist()
    )


def test_scalars_and_empty_arrays_keep_their_shape() -> None:
    assert words.integers_to_128bit_words(5).shape == (2,)
    assert words.integers_from_128bit_words(words.integers_to_128bit_words(-5))[()] == -5
    empty = np.zeros((0, 2), np.int64)
    assert words.add_128bit_words(empty, empty).shape == (0, 2)
    assert words.integers_from_128bit_words(empty).shape == (0,)
