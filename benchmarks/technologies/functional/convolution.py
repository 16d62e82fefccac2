"""A convolution over one encrypted picture as inner products: a sparse row for each output.

The picture is encrypted once, as a vector of its pixels; each 5 x 5 window of each filter is a key
with 25 entries.  The gradient of the filters consists of inner products of the same pixels with
the gradient of the outputs.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tfe_bench.benchmarks.technologies.functional.curve import Numbers, Rows

SIDE: Final = 28
PIXELS: Final = SIDE * SIDE
KERNEL: Final = 5
TAPS: Final = KERNEL * KERNEL
FILTERS: Final = 6

Reals = npt.NDArray[np.float64]


def _list_pixel_tap_pairs() -> tuple[Numbers, Numbers, Numbers]:
    """List output position, pixel and tap of every product; the picture is padded with zeros."""
    i, j, a, b = np.indices((SIDE, SIDE, KERNEL, KERNEL)).reshape(4, -1)
    y, x = i + a - KERNEL // 2, j + b - KERNEL // 2
    inside = (y >= 0) & (y < SIDE) & (x >= 0) & (x < SIDE)
    grids = (i * SIDE + j, y * SIDE + x, a * KERNEL + b)
    position, pixel, tap = (part[inside].astype(np.int64) for part in grids)
    return position, pixel, tap


_POSITION, _PIXEL, _TAP = _list_pixel_tap_pairs()


def _group_function_key_rows(group: Numbers, groups: int, values: Numbers) -> Rows:
    """Build the rows (group, filter) from values [pairs, filters] of the pairs."""
    order = np.argsort(group, kind="stable")
    counts = np.repeat(np.bincount(group, minlength=groups), FILTERS)
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    edges = np.cumsum(np.bincount(group, minlength=groups))[:-1]
    parts = np.split(order, edges)
    index = np.concatenate([np.tile(_PIXEL[part], FILTERS) for part in parts])
    value = np.concatenate([values[part].T.reshape(-1) for part in parts])
    return Rows(start, index.astype(np.int32), np.ascontiguousarray(value), PIXELS)


def forward_function_key_rows(weights: Numbers) -> Rows:
    """Build the weights of the keys of all outputs: rows in the order [28, 28, filters].

    Args:
        weights: int64 [5, 5, filters].
    """
    return _group_function_key_rows(_POSITION, PIXELS, weights.reshape(TAPS, FILTERS)[_TAP])


def gradient_function_key_rows(delta: Numbers) -> Rows:
    """Build the weights for the filters' gradient of one picture: rows [5, 5, filters].

    Args:
        delta: int64 [28, 28, filters], the gradient of the outputs.
    """
    return _group_function_key_rows(_TAP, TAPS, delta.reshape(PIXELS, FILTERS)[_POSITION])


def quantize_values(values: npt.NDArray[np.floating], bits: int = 8) -> tuple[Numbers, float]:
    """Round values to whole numbers below 2^(bits - 1) in size; return them and their unit."""
    most = (1 << (bits - 1)) - 1
    scale = float(np.abs(values).max(initial=0.0)) / most or 1.0
    return np.rint(np.asarray(values, np.float64) / scale).astype(np.int64), scale
