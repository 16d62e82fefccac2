"""Further pooling: positions of maxima, and windows derived from the size of the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.api import operands
from tfe_bench.protocols.nn import pool
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import arithmetic, compare, conv, reductions, shapes
from tfe_bench.protocols.session.party import current_party
from tfe_bench.protocols.session.sharing import Shared

LAYER_BITS = compare.LAYER_BITS

Window: TypeAlias = "int | Sequence[int]"
Spans: TypeAlias = "list[tuple[int, int]]"


@operands.check_arguments("input", max_bits=64)
def max_pool_with_argmax(
    input: Shared,
    ksize: Window,
    strides: Window | None = None,
    padding: str = "VALID",
    include_batch_in_index: bool = False,
    bits: int = LAYER_BITS,
) -> tuple[Shared, Shared]:
    """Return each window's maximum and its first position.

    The function is that of tf.nn.max_pool_with_argmax.

    Args:
        input: images [n, h, w, channels].
        ksize, strides: an integer, a pair or [1, height, width, 1]; strides None: as ksize.
        padding: "VALID" or "SAME".
        include_batch_in_index: positions are ((b h + y) w + x) channels + c, else without b h.
        bits: right while differences within a window are below 2^(bits-1) ring units.

    Positions are private integers. Exact. Rounds: those of `maximum` for each binary digit of the
    cells of a window minus one. Bits sent: those of a comparison and two selections for each cell
    but one of every window.
    """
    name = "max_pool_with_argmax"
    kernel = conv.parse_window_pair(name, "ksize", ksize)
    steps = kernel if strides is None else conv.parse_window_pair(name, "strides", strides)
    chosen_padding = padding.upper() if isinstance(padding, str) else padding
    return pool.max_pool_with_argmax(
        current_party(),
        input,
        kernel,
        steps,
        chosen_padding,
        with_batch=include_batch_in_index,
        bits=bits,
    )


def _adaptive_windows(name: str, x: Shared, output_size: Window) -> list[Spans]:
    """Return the [begin, end) of each window along both axes."""
    sizes = operands.sizes(name, x)
    if len(sizes) != 4:
        raise UsageError(
            f"{name} expects images [n, h, w, channels]. Received: {x!r}. Reshape them.",
            code="rank-mismatch",
            operation=name,
            received=repr(x),
            expected="[n, h, w, channels]",
        )
    output_sizes = conv.parse_window_pair(name, "output_size", output_size)
    if any(n > size for n, size in zip(output_sizes, sizes[1:3], strict=True)):
        raise UsageError(
            f"{name} expects an output_size of at most the images' {sizes[1:3]}. "
            f"Received: {output_sizes}.",
            code="too-large",
            operation=name,
            received=output_sizes,
            expected=sizes[1:3],
        )
    return [
        [(i * size // n, -(-(i + 1) * size // n)) for i in range(n)]
        for n, size in zip(output_sizes, sizes[1:3], strict=True)
    ]


@operands.check_arguments(known=True)
def adaptive_avg_pool2d(x: Shared, output_size: Window) -> Shared:
    """Return means of windows that divide images [n, h, w, channels] into output_size parts.

    Args:
        output_size: of the result, an integer or (height, width), at most that of the images;
            window i of n reaches from floor(i h / n) to ceil((i + 1) h / n), as in Keras and
            PyTorch.

    Error, domain, rounds and bits: those of `reduce_mean` of the largest window.
    """
    spans = _adaptive_windows("adaptive_avg_pool2d", x, output_size)
    counts = np.ones((1, 1), np.int64)
    for axis, axis_spans in enumerate(spans, 1):
        begins, ends = np.array(axis_spans, np.int64).reshape(-1, 2).T
        # The sum of a window is a difference of running sums.
        paddings = [(1 if i == axis else 0, 0) for i in range(4)]
        sums = shapes.pad(reductions.cumsum(x, axis), paddings)
        x = arithmetic.sub(shapes.gather(sums, ends, axis), shapes.gather(sums, begins, axis))
        if 0 not in x.shape.as_list():
            lengths = ends - begins
            counts = lengths[:, None] if axis == 1 else counts * lengths[None, :]
    extra_bits = 0 if x.fractional_bits else operands.WEIGHT_BITS
    if 0 in x.shape.as_list():  # no mean to compute
        return replace(x, fractional_bits=x.fractional_bits + extra_bits)
    return reductions.divide_sum_by_public_counts(current_party(), x, counts, extra_bits=extra_bits)


@operands.check_arguments(max_bits=64, known=True)
def adaptive_max_pool2d(x: Shared, output_size: Window, bits: int = LAYER_BITS) -> Shared:
    """Return the largest value of each window, exact; windows as in `adaptive_avg_pool2d`.

    Args:
        bits: right while differences within a window are below 2^(bits-1) ring units.

    Rounds and bits: those of `reduce_max` along both axes, one after the other.
    """
    spans = _adaptive_windows("adaptive_max_pool2d", x, output_size)
    for axis, axis_spans in enumerate(spans, 1):
        longest = max(end - begin for begin, end in axis_spans)
        # Shorter windows repeat their last cell.
        places = np.array([[min(b + k, e - 1) for b, e in axis_spans] for k in range(longest)])
        cells = shapes.gather(x, places, axis)
        x = extremes.reduce_max(current_party(), cells, axis, bits=bits)
    return x
