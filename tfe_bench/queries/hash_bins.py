"""Cuckoo hashing at owners' clients: rows in hash bins, and the bins that each row of another
table requests.

A key hashes to one bin in each third of a table with 3/2 as many bins as rows; its row is stored
in one of these three. The hash function and its seed are public, the keys are not.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from tfe_bench.errors import DataError

Ring = np.ndarray[Any, np.dtype[np.int64]]
HASH_COUNT = 3
# Bins of a small table, so that a seed fails with a probability below 2^-40.
MIN_BINS = 3 * 342
_SEEDS, _ROUNDS = 20, 500


def cuckoo_bin_count(rows: int) -> int:
    """Return the number of bins for a public number of rows."""
    return max(MIN_BINS, HASH_COUNT * -(-rows // 2))


def draw_hash_bin_seed() -> int:
    """Draw a seed of the hash function, from 0 to 2^62 - 1."""
    return secrets.randbits(62)


def hash_keys_to_bins(keys: Ring, bins: int, seed: int) -> Ring:
    """Compute the three bins of each key, [3, n], one in each third.

    Args:
        keys: elements, or their distances from a public number.
    """
    third = np.uint64(bins // HASH_COUNT)
    bins_of_keys = []
    for j in range(HASH_COUNT):
        salt = (seed * 0x9E3779B97F4A7C15 + j * 0xD1B54A32D192ED03 + 1) % (1 << 64)
        h = keys.astype(np.int64).view(np.uint64) ^ np.uint64(salt)
        # the finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), twice
        for _ in range(2):
            h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            h = (h ^ (h >> np.uint64(31))) + np.uint64(salt)
        bins_of_keys.append((h % third + np.uint64(j) * third).astype(np.int64))
    return np.stack(bins_of_keys)


def place_rows_in_hash_bins(keys: Ring, bins: int) -> tuple[int, Ring]:
    """Draw a seed and assign rows to bins.

    Args:
        keys: distinct keys of the rows.

    Returns:
        the seed, and for each bin the number of its row, -1 for an empty bin.

    Raises:
        DataError: no seed succeeded, which happens if keys repeat.
    """
    for _ in range(_SEEDS):
        drawn_seed = draw_hash_bin_seed()
        rows_by_bin = _try_cuckoo_placement(hash_keys_to_bins(keys, bins, drawn_seed), bins)
        if rows_by_bin is not None:
            return drawn_seed, rows_by_bin
    raise DataError(
        "Expected unique keys. Received: rows that no seed places in hash bins.",
        code="bins-not-placed",
    )


def _try_cuckoo_placement(at: Ring, bins: int) -> Ring | None:
    """Assign rows to bins: all rows try one of their bins at once, and displaced
    rows try another.
    """
    rng = np.random.default_rng(secrets.randbits(128))
    rows_by_bin = np.full(bins, -1, np.int64)
    waiting = np.arange(at.shape[1])
    for _ in range(_ROUNDS):
        if not len(waiting):
            return rows_by_bin
        free = rows_by_bin[at[:, waiting]] < 0
        choice = np.where(free.any(0), free.argmax(0), rng.integers(0, HASH_COUNT, len(waiting)))
        chosen_bins = at[choice, waiting]
        evicted = rows_by_bin[chosen_bins]
        rows_by_bin[chosen_bins] = waiting
        missed = rows_by_bin[chosen_bins] != waiting
        # (several rows may have chosen one bin: its earlier row is displaced once)
        waiting = np.unique(np.concatenate([waiting[missed], evicted[evicted >= 0]]))
    return None


def bin_request_targets(requested_bins: Ring, bins: int) -> Ring:
    """Return the target positions of all bins and requests, [bins + 3 n]: each request follows its
    bin.

    Args:
        requested_bins: requested bins, [3, n].
    """
    requests = 2 * requested_bins.reshape(-1) + 1
    order = np.argsort(np.concatenate([2 * np.arange(bins), requests]), kind="stable")
    target_positions = np.empty(len(order), np.int64)
    target_positions[order] = np.arange(len(order))
    return target_positions


def draw_random_hash_bins(count: int, bins: int) -> Ring:
    """Draw arbitrary bins for rows without a key, [3, count]."""
    rng = np.random.default_rng(secrets.randbits(128))
    return rng.integers(0, bins, (HASH_COUNT, count))
