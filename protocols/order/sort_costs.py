"""Average numbers of comparisons of a quicksort, which depend on its shuffle and cannot be counted.

Means over runs of SortPlan on random orders. From 2^12 elements on, orders of one size differ by a
few per cent; for fewer by up to a third, as the last level is sometimes not needed.
"""

from __future__ import annotations

import math

import numpy as np

# Number of elements, comparisons per element, levels.
_LOCAL = (
    (300, 42.6, 3), (500, 37.1, 3), (700, 42.8, 3), (1000, 46.9, 3), (1024, 53.6, 3),
    (1500, 35.3, 4), (2048, 28.8, 6), (3000, 30.1, 6), (4096, 25.8, 7), (6000, 22.4, 10),
    (8192, 22.5, 10), (12_000, 23.5, 11), (16_384, 22.5, 13), (24_000, 18.8, 18),
    (32_768, 18.4, 21), (65_536, 18.5, 25), (131_072, 19.7, 30), (262_144, 21.0, 36),
    (524_288, 22.0, 39), (1_048_576, 23.1, 42), (2_097_152, 24.3, 45),
)  # fmt: skip
_WAN = (
    (500, 249.5, 1), (632, 315.5, 1), (700, 80.6, 3), (1024, 56.4, 3), (1500, 64.2, 3),
    (2048, 89.9, 3), (3000, 46.7, 4), (4096, 52.7, 4), (6000, 37.4, 7), (8192, 35.1, 7),
    (12_000, 38.0, 7), (16_384, 34.5, 8), (24_000, 27.3, 11), (32_768, 28.1, 11),
    (65_536, 26.6, 14), (131_072, 21.0, 23), (262_144, 21.5, 27), (524_288, 21.8, 32),
    (1_048_576, 22.9, 35), (2_097_152, 23.9, 39),
)  # fmt: skip


def expected_quicksort_levels(n: int, profile: str) -> list[int]:
    """Return the average comparisons of each level of a quicksort of n elements, all equal."""
    sizes, comparisons_of, levels_of = np.array(_WAN if profile == "wan" else _LOCAL).T
    size = math.log2(max(2, n))
    # Beyond the last row, each doubling adds a comparison per element and 4 levels.
    over = max(0.0, size - math.log2(sizes[-1]))
    comparisons = float(np.interp(size, np.log2(sizes), comparisons_of)) + 1.2 * over
    levels = max(1, round(float(np.interp(size, np.log2(sizes), levels_of)) + 4 * over))
    return [round(n * min((n - 1) / 2, comparisons) / levels)] * levels
