"""Sums, means and inner products of private tensors, with TensorFlow's names.

Sums are local. A mean is a sum times the public reciprocal of the count, held
with extra fractional bits and truncated: sum * round(2^e / count) / 2^e. Counts
that are powers of two have exact reciprocals and need the truncation only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.ring import arithmetic, checks, conv, masked, shapes
from tfe_bench.protocols.ring.checks import (
    check_private_rank_is_known,
    check_same_dealer_scale_ring,
    normalize_axes,
    normalize_axis,
)
from tfe_bench.protocols.ring.truncation import truncate
from tfe_bench.protocols.session import slots, tensor_ops
from tfe_bench.protocols.session.party import Party, Site
from tfe_bench.protocols.session.sharing import Shared

RECIPROCAL_BITS = 30
"""e: relative error count 2^-31 of a mean, and room for means below 2^32 units of the scale."""
MAX_RECIPROCAL_BITS = 48


def _sum_128bit_words(a: tf.Tensor, axes: list[int], keepdims: bool) -> tf.Tensor:
    """Sum fewer than 2^31 pairs of words mod 2^128; the halves of the low word carry separately."""
    if not tensor_ops.is_concrete(a):
        return tensor_ops.reduce_sum(a, axes, keepdims)
    half = tf.constant(32, tf.int64)

    def upper_half_of_words(b: tf.Tensor) -> tf.Tensor:
        return tf.bitcast(tf.bitwise.right_shift(tf.bitcast(b, tf.uint64), 32), tf.int64)

    def sum_words(b: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(b, axes, keepdims)

    lows = sum_words(tf.bitwise.bitwise_and(a[..., 0], tf.constant(2**32 - 1, tf.int64)))
    highs = sum_words(upper_half_of_words(a[..., 0]))
    carry = upper_half_of_words(highs + upper_half_of_words(lows))
    return tf.stack(
        [lows + tf.bitwise.left_shift(highs, half), sum_words(a[..., 1]) + carry], axis=-1
    )


def reduce_sum(x: Shared, axis: Any = None, keepdims: bool = False) -> Shared:
    """Sum over one axis, several or all (None). Local.

    Raises:
        UsageError: an axis is out of range or named twice.
    """
    axes = normalize_axes("reduce_sum", axis, check_private_rank_is_known("reduce_sum", x))
    if x.limbs == 2:
        return x.map(lambda a: _sum_128bit_words(a, axes, keepdims))
    return x.map(lambda a: tensor_ops.reduce_sum(a, axes, keepdims))


def add_n(values: Sequence[Shared]) -> Shared:
    """Sum tensors of one shape. Local.

    Raises:
        UsageError: no tensors, or other shapes, scales, rings or dealers.
    """
    return reduce_sum(shapes.stack(check_same_dealer_scale_ring("add_n", values)), 0)


def cumsum(x: Shared, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Shared:
    """Return running sums along an axis, without the element itself if exclusive. Local.

    Raises:
        UsageError: the axis is out of range, or the value is wide.
    """
    at = normalize_axis(
        "cumsum",
        axis,
        check_private_rank_is_known("cumsum", checks.check_private_word_tensor("cumsum", x)),
    )
    return x.map(lambda a: tensor_ops.cumsum(a, at, exclusive, reverse))


def _check_reciprocal_bits(operation: str, x: Any, bits: Any) -> int:
    checks.check_private_64bit_tensor(operation, x)
    if not checks.is_integer_between(bits, 1, MAX_RECIPROCAL_BITS):
        raise UsageError(
            f"{operation} expects 1 to {MAX_RECIPROCAL_BITS} reciprocal bits. Received: {bits!r}.",
            code="number-out-of-range",
            operation=operation,
            received=bits,
        )
    return bits


def _scale_shared_sum(
    party: Party, total: Shared, factor: Any, bits: int, extra_bits: int = 0
) -> Shared:
    """Return total * factor / 2^bits for a public integer factor (None: 1).

    Args:
        extra_bits: fractional bits that the result has beyond those of `total`.
    """
    if factor is not None:
        total = arithmetic.mul_public(total, factor, bits)
    else:
        total = replace(total, fractional_bits=total.fractional_bits + bits)
    if bits > extra_bits:
        return truncate(party, total, bits - extra_bits)
    return arithmetic.mul_public(total, np.int64(1 << (extra_bits - bits)), extra_bits - bits)


def divide_sum_by_public_counts(
    party: Party,
    total: Shared,
    counts: Any,
    reciprocal_bits: int = RECIPROCAL_BITS,
    extra_bits: int = 0,
) -> Shared:
    """Return total / counts for public counts of 1 or more.

    Args:
        counts: one, or [h, w] of images [n, h, w, channels].
        reciprocal_bits, extra_bits: as in `reduce_mean`.

    Error, domain, rounds and bits: those of a mean.
    """
    factors, dropped = _mean_reciprocal_factors(np.asarray(counts), reciprocal_bits)
    return _scale_shared_sum(party, total, factors, dropped, extra_bits)


def reduce_mean(
    party: Party,
    x: Shared,
    axis: Any = None,
    keepdims: bool = False,
    reciprocal_bits: int = RECIPROCAL_BITS,
    extra_bits: int = 0,
) -> Shared:
    """Return the mean over one axis, several or all (None), at the scale of x.

    Args:
        reciprocal_bits: e of the reciprocal round(2^e / count), 1 to 48.
        extra_bits: fractional bits that the mean has beyond those of x; its units are the smaller
            ones.

    Error: below 1 + |mean| count 2^-(e+1) units of the scale; below 1 if the count is a power of
    2.
    Domain: |mean| < 2^(61-e) units of the scale (|sum| < 2^62 if the count is a power of 2).
    Rounds and bits: those of truncation.truncate for e bits, or log2 of the count; none for one.
    Raises:
        UsageError: missing axes, no or an unknown number of elements, a ring other than Z_2^64.
    """
    e = _check_reciprocal_bits("reduce_mean", x, reciprocal_bits)
    axes = normalize_axes("reduce_mean", axis, check_private_rank_is_known("reduce_mean", x))
    sizes = [x.shape[i] for i in axes]
    if None in sizes or 0 in sizes:
        raise UsageError(
            f"reduce_mean expects a known number of elements, at least 1. Received: axes {axes} of "
            f"{x!r}. Sum and multiply by a reciprocal instead.",
            code="unknown-shape" if None in sizes else "empty-input",
            operation="reduce_mean",
            received=axes,
        )
    count = int(np.prod(sizes, dtype=np.int64))
    total = reduce_sum(x, axes, keepdims)
    return divide_sum_by_public_counts(party, total, count, e, extra_bits)


def _fixed_point_reciprocal(count: int, bits: int) -> int:
    """Return round(2^bits / count), in integers."""
    return ((2 << bits) + count) // (2 * count)


def square_shares(s: Site, x: Shared, tensor: int, slot: int) -> Any:
    """Return the evaluators' additive shares of x * x, before the exchange; None at the dealer.

    (m - lam)^2 = m^2 - 2 m (l1 + l2) + lam^2 and D deals lam^2 = G1 + G2:
    z1 = G1 - 2 m l1 at E1, z2 = G2 + m (m - 2 l2) at E2.

    Rounds: 0 online (1 total). Bits sent: D 64 per element.
    """
    squared = (x.l1 + x.l2) * (x.l1 + x.l2) if s.is_dealer else None
    gamma = masked.deal(s, squared, tensor_ops.dynamic_shape(x.any), tensor, slot)
    if s.is_dealer:
        return None
    if s.is_e1:
        return gamma - 2 * x.m * x.l1
    return gamma + x.m * (x.m - 2 * x.l2)


def square(party: Party, x: Shared) -> Shared:
    """Square elementwise, with less local work than mul(x, x); the scale doubles.

    Rounds: 1 online (2 total). Bits sent: D, E1, E2 64 per element each.
    Raises:
        UsageError: x is public, or not over Z_2^64.
    """
    checks.check_private_64bit_tensor("square", x)
    scale = 2 * x.fractional_bits
    s = party.site(
        "square",
        x.fractional_bits,
        dealer=x.dealer,
        slots={0: slots.declare_dealt(), 1: slots.declare_exchanged()},
    )
    z = square_shares(s, x, tensor=0, slot=0)
    return masked.exchange_masked(s, z, tensor_ops.dynamic_shape(x.any), 1, 1, scale=scale)


def tensordot(party: Party, x: Shared, y: Shared, axes: Any) -> Shared:
    """Sum products over paired axes as tf.tensordot; the scales add up.

    Args:
        axes: k for the last k axes of x with the first k of y, or a pair of lists of axes.

    The result has the remaining axes of x, then those of y. 0 axes give the outer product.
    Rounds: 1 online (2 total). Bits sent: D, E1, E2 64 per element of the result each.
    Raises:
        UsageError: axes that do not fit; sizes, except of one axis per operand, that are unknown.
    """
    checks.check_factors("tensordot", x, y)
    ranks = check_private_rank_is_known("tensordot", x), check_private_rank_is_known("tensordot", y)
    if isinstance(axes, int) and not isinstance(axes, bool):
        if not 0 <= axes <= min(ranks):
            raise UsageError(
                f"tensordot expects 0 to {min(ranks)} axes to sum over. Received: {axes}.",
                code="number-out-of-range",
                operation="tensordot",
                received=axes,
                expected=f"0 to {min(ranks)}",
            )
        over = [list(range(ranks[0] - axes, ranks[0])), list(range(axes))]
    else:
        if not isinstance(axes, (list, tuple, np.ndarray)) or len(axes) != 2:
            raise UsageError(
                f"tensordot expects a number of axes or a pair of lists. Received: {axes!r}.",
                code="wrong-type",
                operation="tensordot",
                received=axes,
            )
        both = [a if isinstance(a, (list, tuple, np.ndarray)) else [a] for a in axes]
        over = [
            [normalize_axis("tensordot", a, r) for a in b] for b, r in zip(both, ranks, strict=True)
        ]
    sizes = [[v.shape[a] for a in axis_list] for v, axis_list in zip((x, y), over, strict=True)]
    fits = len(over[0]) == len(over[1]) and all(len(set(o)) == len(o) for o in over)
    if not fits or any(None not in (a, b) and a != b for a, b in zip(*sizes, strict=True)):
        raise UsageError(
            f"tensordot expects axes of equal sizes, each once. Received: axes {axes!r} of {x!r} "
            "and "
            f"{y!r}.",
            code="shape-mismatch",
            operation="tensordot",
            received=axes,
        )
    left, kept_left = _reshape_for_tensordot(x, over[0], first=False)
    right, kept_right = _reshape_for_tensordot(y, over[1], first=True)
    z = arithmetic.matmul(party, left, right)
    return shapes.reshape(z, [*kept_left, *kept_right])


def _reshape_for_tensordot(x: Shared, over: list[int], first: bool) -> tuple[Shared, list[Any]]:
    """Return x as a matrix with the axes `over` first or last, and the sizes of the other axes."""
    sizes = conv.list_tensor_sizes(x.any)
    kept_axes = [i for i in range(len(sizes)) if i not in over]
    depth, rest = (
        _multiply_sizes([sizes[i] for i in over]),
        _multiply_sizes([sizes[i] for i in kept_axes]),
    )
    transposed = shapes.transpose(x, [*over, *kept_axes] if first else [*kept_axes, *over])
    matrix = shapes.reshape(transposed, [depth, rest] if first else [rest, depth])
    return matrix, [sizes[i] for i in kept_axes]


def _multiply_sizes(sizes: list[Any]) -> Any:
    result: Any = 1
    for size in sizes:
        result = result * size
    return result


def _sum_pooling_windows(operation: str, x: Shared, ksize: Any, windows: conv.Windows) -> Shared:
    kernel = conv.parse_window_pair(operation, "ksize", ksize)
    if check_private_rank_is_known(operation, x) != 4:
        raise UsageError(
            f"{operation} expects images [n, h, w, channels]. Received: {x!r}. Reshape them.",
            code="rank-mismatch",
            operation=operation,
            received=repr(x),
        )
    channels = checks.check_private_word_tensor(operation, x).shape[3]
    if channels is None:
        raise UsageError(
            f"{operation} expects a known number of channels. Received: {x!r}.",
            code="unknown-shape",
            operation=operation,
            received=repr(x),
        )
    ones = np.broadcast_to(np.int64(1), (*kernel, int(channels), 1))
    conv.check_conv_shapes(operation, x.shape, tensor_ops.static_shape(ones), windows)
    if (
        tensor_ops.is_concrete(x.any) and x.shape.num_elements() == 0
    ):  # (its kernel may be large nevertheless)
        sizes = x.shape.as_list()
        out = [windows.window_count(axis, sizes[1 + axis], kernel[axis]) for axis in range(2)]
        empty = arithmetic.share_public(x, np.zeros([sizes[0], *out, sizes[3]], np.int64))
        return replace(empty, fractional_bits=x.fractional_bits)
    pooled: Shared = x.map(
        lambda a: conv.convolve_ring_elements([a], [ones], windows, depthwise=True)
    )
    return pooled


def sum_pool(x: Shared, ksize: Any, strides: Any = None, padding: Any = "VALID") -> Shared:
    """Sum each window of images [n, h, w, channels]; cells outside count 0. Local.

    Args:
        ksize, strides: an integer, a pair or [1, height, width, 1]; strides None: as ksize.
        padding: as in `conv.Windows.from_arguments`.
    """
    windows = conv.Windows.from_arguments(
        "sum_pool", ksize if strides is None else strides, padding
    )
    return _sum_pooling_windows("sum_pool", x, ksize, windows)


def window_counts(windows: conv.Windows, image: Sequence[int], kernel: Sequence[int]) -> Any:
    """Return the number of image cells that each window covers, int64 [out_h, out_w]."""
    rows, columns = _pooling_window_lengths(windows, image, kernel)
    return rows[:, None] * columns[None, :]


def _pooling_window_lengths(
    windows: conv.Windows, image: Sequence[int], kernel: Sequence[int]
) -> list[Any]:
    """Return the image rows and columns that each window covers, int64 [out_h] and [out_w]."""
    along = []
    for axis in range(2):
        size, stride = image[axis], windows.strides[axis]
        out = windows.window_count(axis, size, kernel[axis])
        first = np.arange(out) * stride - windows.padding_before(axis, size, kernel[axis])
        last = np.minimum(first + kernel[axis], size)
        along.append(np.maximum(last - np.maximum(first, 0), 0))
    return along


def _mean_reciprocal_factors(counts: Any, bits: int) -> tuple[Any, int]:
    """Return public factors, for one count or one per window, and the bits to drop after them."""
    largest = int(counts.max())
    distinct, which = np.unique(counts, return_inverse=True)
    exact = all(int(c).bit_count() == 1 for c in distinct)
    dropped = largest.bit_length() - 1 if exact else bits
    if (counts == largest).all():
        return (None if exact else np.int64(_fixed_point_reciprocal(largest, dropped))), dropped
    table = np.array([_fixed_point_reciprocal(int(c), dropped) for c in distinct], np.int64)
    return table[which.reshape(counts.shape)][:, :, None], dropped


def avg_pool(
    party: Party,
    x: Shared,
    ksize: Any,
    strides: Any = None,
    padding: Any = "VALID",
    reciprocal_bits: int = RECIPROCAL_BITS,
    extra_bits: int = 0,
) -> Shared:
    """Return the mean of each window's cells that lie in the image, at the scale of x.

    As tf.nn.avg_pool2d.

    Args:
        x: images [n, h, w, channels] of known height and width.
        ksize, strides: an integer, a pair or [1, height, width, 1]; strides None: as ksize.
        padding: "SAME", "VALID" or explicit; cells outside the image are not counted.
        reciprocal_bits, extra_bits: as in `reduce_mean`.

    Error: below 1 + |mean| count 2^-(e+1) units of the scale; below 1 if every window's count is
        a power of 2.
    Domain: |mean| < 2^(61-e) units of the scale (if every count is a power of 2: |mean| times the
        largest count < 2^62).
    Rounds and bits: as `reduce_mean`.
    Raises:
        UsageError: no images, windows that do not fit or cover no cell, a ring other than Z_2^64.
    """
    e = _check_reciprocal_bits("avg_pool", x, reciprocal_bits)
    kernel = conv.parse_window_pair("avg_pool", "ksize", ksize)
    windows = conv.Windows.from_arguments(
        "avg_pool", kernel if strides is None else strides, padding
    )
    sizes = x.shape.as_list()
    total = _sum_pooling_windows("avg_pool", x, kernel, windows)
    rows, columns = _check_pooling_window_coverage("avg_pool", sizes, kernel, windows)
    if 0 in sizes:  # there is no mean to compute
        return replace(total, fractional_bits=total.fractional_bits + extra_bits)
    if len(np.unique(rows)) == len(np.unique(columns)) == 1:
        return divide_sum_by_public_counts(party, total, rows[0] * columns[0], e, extra_bits)
    return divide_sum_by_public_counts(
        party, total, rows[:, None] * columns[None, :], e, extra_bits
    )


def _check_pooling_window_coverage(
    operation: str, shape: Sequence[Any], kernel: tuple[int, int], windows: conv.Windows
) -> list[Any]:
    """Return `_pooling_window_lengths`, checked to be 1 or more."""
    if shape[1] is None or shape[2] is None:
        raise UsageError(
            f"{operation} expects images of known height and width. Received: {list(shape)}.",
            code="unknown-shape",
            operation=operation,
            received=list(shape),
        )
    windows.check_cell_count(operation, shape[1:3], kernel)
    lengths = _pooling_window_lengths(windows, shape[1:3], kernel)
    if any(along_axis.size == 0 or (along_axis == 0).any() for along_axis in lengths):
        raise UsageError(
            f"{operation} expects windows that cover a cell each. Received: images {list(shape)}, "
            f"{kernel} windows, {windows}. Pad less.",
            code="empty-window",
            operation=operation,
            received=f"{kernel} on {list(shape)}",
        )
    return lengths


def global_avg_pool(
    party: Party, x: Shared, keepdims: bool = False, reciprocal_bits: int = RECIPROCAL_BITS
) -> Shared:
    """Return the mean of each channel of images [n, h, w, channels], [n, channels].

    Error, domain, rounds, bits: as `reduce_mean` of h * w elements.
    """
    if check_private_rank_is_known("global_avg_pool", x) != 4:
        raise UsageError(
            f"global_avg_pool expects images [n, h, w, channels]. Received: {x!r}. Reshape them.",
            code="rank-mismatch",
            operation="global_avg_pool",
            received=repr(x),
        )
    return reduce_mean(party, x, (1, 2), keepdims, reciprocal_bits)
