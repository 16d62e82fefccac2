"""How many comparisons a quicksort makes, on average: what follows its shuffle cannot be counted.

Runs of SortPlan on one random order each; orders of one size differ by about 1 %, a test says.
"""

from __future__ import annotations

import math

import numpy as np

# By network profile: of 2^9, 2^10, .. 2^21 elements the comparisons of each, and the levels.
_FIRST = 9
_COMPARISONS = {
    "local": (35.6, 53.2, 30.6, 20.7, 22.6, 23.1, 18.5, 18.5, 19.7, 21.0, 22.0, 23.1, 24.3),
    "wan": (255.5, 56.8, 87.6, 62.4, 38.6, 37.1, 30.1, 26.6, 21.0, 21.5, 21.8, 22.9, 23.9),
}
_LEVELS = {
    "local": (3, 3, 6, 8, 10, 13, 21, 25, 30, 36, 39, 42, 45),
    "wan": (1, 3, 3, 4, 7, 8, 11, 14, 23, 27, 32, 35, 39),
}


def expected_levels(n: int, profile: str) -> list[int]:
    """The comparisons of each level of a quicksort of n elements, all alike."""
    kind = "wan" if profile == "wan" else "local"
    size = math.log2(max(2, n))
    sizes = np.arange(len(_LEVELS[kind])) + _FIRST
    # beyond the last: a comparison and 4 levels more for each doubling
    over = max(0.0, size - sizes[-1])
    each = min((n - 1) / 2, float(np.interp(size, sizes, _COMPARISONS[kind])) + 1.2 * over)
    levels = max(1, round(float(np.interp(size, sizes, _LEVELS[kind])) + 4 * over))
    return [round(n * each / levels)] * levels
