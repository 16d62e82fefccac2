"""Keys to sort: generated from a seed, and users' numbers as integers of the same order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tfe_bench.errors import UsageError, check_known

KINDS = ("int64", "few", "float", "sorted", "reversed")

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]

_INT64 = np.iinfo(np.int64)


def generate_sort_keys(n: int, seed: int, kind: str = "int64") -> Numbers:
    """Return `n` generated keys, shape (n,); the same seed gives the same keys.

    Args:
        n: number of keys, 0 or more.
        seed: 0 or more.
        kind: "int64" (uniform over the whole int64 range), "few" (integers 0 to 9, of which
            many are equal), "float" (uniform reals in [-1000, 1000), float64), "sorted" and
            "reversed" (the keys of "int64" in rising and falling order).

    Raises:
        UsageError: another kind, or a negative `n` or `seed`.
    """
    check_known("kind of keys", kind, KINDS)
    if n < 0 or seed < 0:
        raise UsageError(
            f"Expected n and seed of at least 0. Received: n={n}, seed={seed}.",
            code="number-out-of-range",
            operation="n, seed",
            received=f"{n}, {seed}",
        )
    draw = np.random.default_rng(seed)
    if kind == "few":
        return draw.integers(0, 10, n, np.int64)
    if kind == "float":
        return draw.uniform(-1000, 1000, n)
    keys = draw.integers(_INT64.min, _INT64.max, n, np.int64, endpoint=True)
    if kind == "int64":
        return keys
    keys.sort()
    return keys if kind == "sorted" else np.ascontiguousarray(keys[::-1])


def to_sortable_integers(values: Numbers) -> npt.NDArray[np.int64]:
    """Map values to int64 so that the order of values is kept.

    A float64 is read as a 64-bit integer: non-negative values are in order already, negative ones
    are reversed. Nothing is rounded.
    """
    if values.dtype.kind != "f":
        return values.astype(np.int64)
    words = (values + 0.0).view(np.int64)  # -0.0 becomes 0.0: they are equal
    return words ^ ((words >> 63) & np.int64(_INT64.max))
