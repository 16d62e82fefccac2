"""The way back of sums and averages over windows.  All of it is local.

A window's gradient goes to each of its cells inside the image, times the public 1 / count of an
average.  Where all counts are one power of two that is a matter of scale; else the factors are held
with a few fractional bits, which a truncation drops together with others: the multiplication before
it, or the bit injection of a ReLU (protocols/ring/backward.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import conv_gradients, reductions
from tfe_bench.protocols.ring.conv import Pair, Windows, pair_of
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.sharing import Shared

FACTOR_BITS = 12


def _images(name: str, image: Sequence[Any]) -> list[int]:
    sizes = image.as_list() if hasattr(image, "as_list") else list(image)
    if len(sizes) not in (3, 4) or not all(isinstance(n, int) for n in sizes[-3:]):
        raise UsageError(f"{name} wants images [height, width, channels]. Received: {sizes}.")
    return [int(n) for n in sizes[-3:]]


def _private(name: str, g: Any) -> None:
    if not isinstance(g, Shared) or g.limbs != 1:
        raise UsageError(f"{name} wants a private gradient of 64-bit words. Received: {g!r}.")


def sum_pool(
    g: Shared,
    image: Sequence[Any],
    ksize: Pair,
    strides: Pair | None = None,
    padding: Any = "VALID",
) -> Shared:
    """The gradient of reductions.sum_pool: each window's g at all of its cells inside.  Local.

    Args:
        g: [n, height', width', channels].
        image: shape of the images, [height, width, channels], the batch before it or not.

    Raises:
        UsageError: shapes that do not fit.
    """
    name = "sum_pool's gradient"
    _private(name, g)
    *_, channels = sizes = _images(name, image)
    kernel = pair_of(name, "ksize", ksize)
    windows = Windows.of(name, kernel if strides is None else strides, padding)
    spread = conv_gradients.input_gradient(windows, sizes, depthwise=True)
    ones = np.ones([*kernel, channels, 1], np.int64)
    return g.map(lambda a: spread([a], [ones]))


def avg_pool(
    g: Shared,
    image: Sequence[Any],
    ksize: Pair,
    strides: Pair | None = None,
    padding: Any = "VALID",
    factor_bits: int = FACTOR_BITS,
) -> Shared:
    """The gradient of reductions.avg_pool.  Local.

    Args:
        factor_bits: e of the factors round(2^e / count); the result has as many bits more than g,
            or log2(count) more where all windows have that count, a power of two.

    Error: 2^-(e+1) count of each term, none for powers of two.
    """
    name = "avg_pool's gradient"
    _private(name, g)
    height, width, _ = _images(name, image)
    kernel = pair_of(name, "ksize", ksize)
    windows = Windows.of(name, kernel if strides is None else strides, padding)
    counts = np.asarray(reductions.window_counts(windows, (height, width), kernel), np.int64)
    shift = _power_of_two(counts)
    if shift is None:
        public = _reciprocals(counts, factor_bits).reshape(*counts.shape, 1)
        g, shift = g.map(lambda a: a * public), factor_bits
    spread = sum_pool(g, image, kernel, strides, padding)
    return replace(spread, fractional_bits=g.fractional_bits + shift)


def global_avg_pool(g: Shared, image: Sequence[Any], factor_bits: int = FACTOR_BITS) -> Shared:
    """The gradient of reductions.global_avg_pool, from g [n, channels] or [n, 1, 1, channels].

    Scale and error as `avg_pool`.  Local.
    """
    name = "global_avg_pool's gradient"
    _private(name, g)
    height, width, channels = _images(name, image)
    count = np.asarray([height * width])
    shift, factor = _power_of_two(count), 1
    if shift is None:
        shift, factor = factor_bits, int(_reciprocals(count, factor_bits)[0])
    spread = _everywhere(g.map(lambda a: a * factor), (height, width, channels))
    return replace(spread, fractional_bits=g.fractional_bits + shift)


def global_sum_pool(g: Shared, image: Sequence[Any]) -> Shared:
    """The gradient of a sum over height and width: g [n, channels] everywhere.  Local."""
    _private("global_sum_pool's gradient", g)
    return _everywhere(g, _images("global_sum_pool's gradient", image))


def _everywhere(g: Shared, image: Sequence[int]) -> Shared:
    height, width, channels = image
    one = [-1, 1, 1, channels]
    return g.map(lambda a: local.tile(local.reshape(a, one), [1, height, width, 1]))


def _power_of_two(counts: Any) -> int | None:
    """log2 of a count that all share."""
    count = int(counts.flat[0]) if counts.size else 1
    same = bool((counts == count).all()) and count & (count - 1) == 0
    return count.bit_length() - 1 if same else None


def _reciprocals(counts: Any, bits: int) -> Any:
    """round(2^bits / count), in integers."""
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 40:
        raise UsageError(f"An average's gradient wants 1 to 40 factor bits. Received: {bits!r}.")
    return ((2 << bits) + counts) // (2 * counts)
