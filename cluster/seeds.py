"""Sharing of a client's input by two seeds and one masked tensor.

x = m - (l1 + l2), mod 2^64 or (in two words each) mod 2^128; l1 and l2 are AES-128-CTR
streams of fresh 16-byte seeds, so that only m is sent at full size, to both evaluators.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tfe_bench.protocols.session import aligned_buffers
from tfe_bench.protocols.session import words as pairs

Ring = np.ndarray[Any, np.dtype[np.int64]]
SEED_BYTES = 16
_BLOCK = 1 << 15  # words


def expand_seed(seed: bytes, count: int) -> Ring:
    """Return `count` uniform words from a seed, which must have no other use.

    Two words form an element of Z_2^128.
    """
    out = aligned_buffers.allocate_words((count,))
    for begin, words in _stream(seed, count):
        out[begin : begin + words.size] = words
    return out


def _stream(seed: bytes, count: int) -> Iterator[tuple[int, Ring]]:
    """Yield the words in blocks, with each block's start: large models leave no room for a copy."""
    encryptor = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    zeros, room = bytes(8 * min(count, _BLOCK)), bytearray(8 * min(count, _BLOCK) + 16)
    for begin in range(0, count, _BLOCK):
        part = min(_BLOCK, count - begin)
        encryptor.update_into(memoryview(zeros)[: 8 * part], room)
        yield begin, np.frombuffer(room, np.int64, part)


def fresh() -> tuple[bytes, bytes]:
    """Return two random seeds for one value."""
    return os.urandom(SEED_BYTES), os.urandom(SEED_BYTES)


def share_values_by_seeds(
    values: Ring, limbs: int = 1, drawn_seeds: tuple[bytes, bytes] | None = None
) -> tuple[bytes, bytes, Ring]:
    """Share ring elements; return (seed of l1, seed of l2, the words of m).

    The seeds are OS randomness.

    Args:
        values: int64 words; with limbs 2, elements of Z_2^128 with a last axis of 2 words.
        drawn_seeds: seeds from `fresh`, drawn for these values before the values were known.
    """
    seed1, seed2 = fresh() if drawn_seeds is None else drawn_seeds
    flat = np.ascontiguousarray(values, np.int64).reshape(-1)
    if limbs == 1:
        m = expand_seed(seed1, flat.size)
        m += flat
        for begin, words in _stream(seed2, flat.size):
            m[begin : begin + words.size] += words
        return seed1, seed2, m
    l1, l2 = (expand_seed(seed, flat.size) for seed in (seed1, seed2))
    return seed1, seed2, mask_values(flat, l1, l2, limbs)


def add_ring_words(a: Ring, b: Ring, limbs: int = 1) -> Ring:
    """Return a + b mod 2^(64 limbs), per word or pair of words; l1 + l2 is the mask."""
    if limbs == 1:
        with np.errstate(over="ignore"):
            return a + b
    return pairs.add_128bit_words(_ring_word_pairs(a), _ring_word_pairs(b)).reshape(a.shape)


def mask_values(x: Ring, l1: Ring, l2: Ring, limbs: int = 1) -> Ring:
    """Return the masked value m = x + l1 + l2 mod 2^(64 limbs)."""
    return add_ring_words(add_ring_words(x, l1, limbs), l2, limbs)


def unmask_values(m: Ring, lam: Ring, limbs: int = 1) -> Ring:
    """Return x = m - lam mod 2^(64 limbs)."""
    if limbs == 1:
        with np.errstate(over="ignore"):
            return m - lam
    return pairs.subtract_128bit_words(_ring_word_pairs(m), _ring_word_pairs(lam)).reshape(m.shape)


def _ring_word_pairs(a: Ring) -> Ring:
    return a.reshape(-1, 2)
