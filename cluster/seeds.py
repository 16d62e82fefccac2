"""Sharing of a client's input: two seeds and one masked tensor.

x = m - (l1 + l2); l1 and l2 are AES-128-CTR streams of fresh 16-byte seeds, so that
only m travels at full size: to both evaluators.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

Ring = np.ndarray[Any, np.dtype[np.int64]]
SEED_BYTES = 16


def expand(seed: bytes, count: int) -> Ring:
    """`count` uniform ring elements from a seed that is used for nothing else."""
    encryptor = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    out = bytearray(count * 8 + 16)
    written = encryptor.update_into(bytes(count * 8), out)
    return np.frombuffer(out, np.int64, count=written // 8)


def share(values: Ring) -> tuple[bytes, bytes, Ring]:
    """(seed of l1, seed of l2, m) for int64 ring elements; seeds from OS randomness."""
    seed1, seed2 = os.urandom(SEED_BYTES), os.urandom(SEED_BYTES)
    flat = np.ascontiguousarray(values, np.int64).reshape(-1)
    with np.errstate(over="ignore"):
        m = flat + expand(seed1, flat.size) + expand(seed2, flat.size)
    return seed1, seed2, m
