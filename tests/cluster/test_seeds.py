"""Sharing of a client's input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tfe_bench.cluster import seeds
from tfe_bench.protocols.session import words

Ring = np.ndarray[Any, np.dtype[np.int64]]
_EDGES = [0, 1, -1, 2**31, 2**63 - 1, -(2**63), 2**62 + 1, -(2**62) - 1]


def _reconstruct_values(seed1: bytes, seed2: bytes, m: Ring) -> Ring:
    with np.errstate(over="ignore"):
        return m - seeds.expand_seed(seed1, m.size) - seeds.expand_seed(seed2, m.size)


def test_edge_values_are_reconstructed() -> None:
    values = np.array(_EDGES, np.int64)
    np.testing.assert_array_equal(_reconstruct_values(*seeds.share_values_by_seeds(values)), values)


@given(hnp.arrays(np.int64, st.integers(0, 50)))
def test_any_values_are_reconstructed(values: Ring) -> None:
    np.testing.assert_array_equal(_reconstruct_values(*seeds.share_values_by_seeds(values)), values)


@pytest.mark.parametrize("shape", [(), (0,), (3, 4), (2, 0, 5)])
def test_any_shape_is_shared_flat(shape: tuple[int, ...]) -> None:
    values = np.full(shape, -7, np.int64)
    np.testing.assert_array_equal(
        _reconstruct_values(*seeds.share_values_by_seeds(values)), values.reshape(-1)
    )


def test_a_view_that_is_not_contiguous_is_shared_as_it_reads() -> None:
    values = np.arange(24, dtype=np.int64).reshape(4, 6)[::2, ::-3]
    np.testing.assert_array_equal(
        _reconstruct_values(*seeds.share_values_by_seeds(values)), values.reshape(-1)
    )


def test_every_sharing_has_fresh_seeds() -> None:
    shared = [seeds.share_values_by_seeds(np.zeros(4, np.int64)) for _ in range(50)]
    drawn = [seed for seed1, seed2, _ in shared for seed in (seed1, seed2)]
    assert {len(seed) for seed in drawn} == {seeds.SEED_BYTES}
    assert len(set(drawn)) == 100
    assert len({m.tobytes() for _, _, m in shared}) == 50


def test_a_seed_expands_to_the_same_words_whatever_their_number() -> None:
    seed = bytes(range(16))
    long = seeds.expand_seed(seed, 1000)
    assert long.size == 1000
    for count in (0, 1, 2, 3, 999):
        np.testing.assert_array_equal(seeds.expand_seed(seed, count), long[:count])


@pytest.mark.parametrize("more", [-1, 0, 1, 7])
def test_words_made_in_blocks_are_one_stream(more: int) -> None:
    count = 2 * seeds._BLOCK + more
    whole = Cipher(AES(b"s" * 16), CTR(bytes(16))).encryptor().update(bytes(8 * count))
    np.testing.assert_array_equal(
        seeds.expand_seed(b"s" * 16, count), np.frombuffer(whole, np.int64)
    )
    values = np.arange(count)
    one, two, m = seeds.share_values_by_seeds(values)
    np.testing.assert_array_equal(_reconstruct_values(one, two, m), values)


def test_different_seeds_expand_to_unrelated_words() -> None:
    one, other = seeds.expand_seed(b"a" * 16, 4096), seeds.expand_seed(b"b" * 16, 4096)
    assert not np.intersect1d(one, other).size
    assert np.unique(one).size == one.size


def _chi_square_of_bytes(words: Ring) -> float:
    counts = np.bincount(words.view(np.uint8), minlength=256)
    expected = words.nbytes / 256
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("value", [0, 1, -1, 2**63 - 1])
def test_what_each_worker_gets_is_uniform_whatever_the_input(value: int) -> None:
    seed1, seed2, m = seeds.share_values_by_seeds(np.full(1 << 16, value, np.int64))
    print(f"seeds {seed1.hex()} {seed2.hex()}")
    with np.errstate(over="ignore"):
        views = {
            "m": m,
            "l1": seeds.expand_seed(seed1, m.size),
            "l2": seeds.expand_seed(seed2, m.size),
            "m - l1": m - seeds.expand_seed(seed1, m.size),  # all that E1 has
            "m - l2": m - seeds.expand_seed(seed2, m.size),
        }
    for name, stream in views.items():
        # 255 degrees of freedom: mean 255, deviation 22.6; a random failure once in 10^9.
        assert _chi_square_of_bytes(stream) < 255 + 7 * 22.6, name
        ones = np.unpackbits(stream.view(np.uint8)).mean()
        assert abs(ones - 0.5) < 7 * 0.5 / np.sqrt(stream.size * 64), name


# ---- two words per element

_WIDE_EDGES = [0, 1, -1, 2**63, -(2**63), 2**64 - 1, 2**64, -(2**64), 2**127 - 1, -(2**127)]


def _reconstruct_wide(seed1: bytes, seed2: bytes, m: Ring) -> list[int]:
    """Reconstruct with Python's integers."""
    l1, l2 = seeds.expand_seed(seed1, m.size), seeds.expand_seed(seed2, m.size)
    whole = [words.integers_from_128bit_words(a.reshape(-1, 2)) for a in (m, l1, l2)]
    plain = words.integers_to_128bit_words(whole[0] - whole[1] - whole[2])
    return [int(v) for v in words.integers_from_128bit_words(plain)]


@given(st.lists(st.integers(-(2**127), 2**127 - 1), max_size=50))
@example(_WIDE_EDGES)
def test_any_wide_values_are_reconstructed(values: list[int]) -> None:
    ring = words.integers_to_128bit_words(values)
    seed1, seed2, m = seeds.share_values_by_seeds(ring, 2)
    assert m.shape == (2 * len(values),)
    assert _reconstruct_wide(seed1, seed2, m) == values
    l1, l2 = (seeds.expand_seed(seed, m.size) for seed in (seed1, seed2))
    np.testing.assert_array_equal(
        seeds.unmask_values(m, seeds.add_ring_words(l1, l2, 2), 2), ring.reshape(-1)
    )


@pytest.mark.parametrize("shape", [(2,), (0, 2), (3, 4, 2), (2, 0, 2)])
def test_wide_values_of_any_shape_are_shared_flat(shape: tuple[int, ...]) -> None:
    values = np.full(shape, -1, np.int64)
    seed1, seed2, m = seeds.share_values_by_seeds(values, 2)
    assert _reconstruct_wide(seed1, seed2, m) == [-1] * (values.size // 2)
