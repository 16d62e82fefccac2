"""Max pooling that records the winning cell of each window, and its gradient.

Forward, a tree of comparisons reduces the cells of a window, and `relu` adds the comparison of the
winner with 0, all in a small ring Z_2^k; only the result is in Z_2^64. The bits of the comparisons,
exchanged under masks, are ANDed to one bit per cell in the last forward round. Backward, one
injection assigns each window's gradient to its cell and truncates it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic, masked, shapes, small_ring
from tfe_bench.protocols.ring.checks import check_private_64bit_tensor, check_private_word_tensor
from tfe_bench.protocols.ring.conv import Pair, pooling_positions
from tfe_bench.protocols.session import ops, slots, tensor_ops
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import EvaluatorBits, MaskedBits, Shared

MAX_CELLS = 128  # of a window: a cell's bit is an AND of up to 7 comparisons and the one with 0


@dataclass(frozen=True)
class PoolingGeometry:
    """The positions of the cells of each window in images [n, height, width, channels].

    Attributes:
        image: the images' shape.
        rows, columns: for each cell along that axis its position in each window; a position outside
            the image repeats one inside, so that it changes no maximum.
        order: the cells, counted row by row, in an order that keeps the two halves of every level
            of the tree contiguous and compares neighbors first.
    """

    image: tuple[int, int, int, int]
    rows: tuple[tuple[int, ...], ...]
    columns: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]

    @property
    def pooled_shape(self) -> tuple[int, int, int, int]:
        """Shape of the result."""
        return self.image[0], len(self.rows[0]), len(self.columns[0]), self.image[3]

    @property
    def window_count(self) -> int:
        """Number of windows, with channels counted separately."""
        return math.prod(self.pooled_shape)

    @property
    def padded_windows(self) -> int:
        """Number of windows in whole words of bits, so that each cell's bits begin a word."""
        return -(-self.window_count // 64) * 64

    @property
    def is_disjoint(self) -> bool:
        """True if no cell is in two windows."""
        along = ([i for cell in axis for i in cell] for axis in (self.rows, self.columns))
        return all(len(set(places)) == len(places) for places in along)

    @property
    def op_attributes(self) -> dict[str, Any]:
        """Attributes of the ops TakeCells and PlaceCells."""
        return {
            "image": list(self.image),
            "rows": [i for cell in self.rows for i in cell],
            "columns": [i for cell in self.columns for i in cell],
            "windows": [len(self.rows[0]), len(self.columns[0])],
            "cells": list(self.order),
            "width": self.padded_windows,
        }


def _pooling_tree_order(width: int) -> list[int]:
    """Order nodes 0 .. width - 1: even nodes with a neighbor, the neighbors, the unpaired one."""
    if width == 1:
        return [0]
    parents = _pooling_tree_order((width + 1) // 2)
    pairs = [i for i in parents if 2 * i + 1 < width]
    unpaired = [2 * i for i in parents if 2 * i + 1 == width]
    return [2 * i for i in pairs] + [2 * i + 1 for i in pairs] + unpaired


def pooling_window_geometry(
    name: str, shape: Any, ksize: Pair, strides: Pair, padding: str = "VALID"
) -> PoolingGeometry:
    """Return the cells of the windows of max or average pooling.

    Raises:
        UsageError: sizes are unknown or do not fit.
    """
    (batch, height, width, channels), kernel, places = pooling_positions(
        name, shape, ksize, strides, padding
    )
    cells = math.prod(kernel)
    if cells > MAX_CELLS:
        raise UsageError(
            f"{name} expects windows of at most {MAX_CELLS} cells. Received: windows {kernel}.",
            code="too-large",
            operation=name,
            received=kernel,
            expected=MAX_CELLS,
        )
    return PoolingGeometry(
        (batch, height, width, channels), places[0], places[1], tuple(_pooling_tree_order(cells))
    )


@dataclass(frozen=True, eq=False)
class PoolChoice:
    """The cell of each window that holds the maximum.

    Attributes:
        bits: [cells, width] one bit per cell in the geometry's order; at most one of a window is 1,
            exactly one without ReLU.
        geometry: of the windows.
        relu: True: a window whose maximum is not positive has no chosen cell.
    """

    bits: MaskedBits
    geometry: PoolingGeometry
    relu: bool


def _comparison_ring(x: Shared, bits: int) -> int:
    """Return k: all comparisons and selections run in Z_2^k."""
    return x.ring_bits if x.ring_bits < 64 else bits


def max_pool2d_with_choice(
    party: Party,
    x: Shared,
    ksize: Pair,
    strides: Pair,
    padding: str = "VALID",
    *,
    relu: bool = False,
    bits: int = compare.LAYER_BITS,
    profile: str = "local",
    exchanges: int | None = None,
) -> tuple[Shared, PoolChoice]:
    """Return each window's largest value over Z_2^64 (with relu at least 0), and its cell.

    Among equal cells the first one wins, as in TensorFlow. With relu a window whose largest value
    is 0 or less has no chosen cell: this is ReLU's derivative, 0 at 0.

    Args:
        x: [batch, height, width, channels] of a known shape, of a small ring Z_2^k as a result of
            products.exchange_truncated_sum, or of Z_2^64; then k is `bits`.
        ksize, strides, padding: as tf.nn.max_pool2d.
        profile: network profile. A tree is used for all of them: if bandwidth is the bottleneck, it
            is the dealer's, and all pairs send two and a half times its bits.
        exchanges: of each comparison, 1 to 3; None: the default of compare.plan_comparison.

    Domain: |x| < 2^(k-2) ring units, so that differences fit; beyond it the result is garbage.
    Rounds: ceil(log2 cells) (exchanges + 2), with relu exchanges + 2 more, and 1 more for k < 64
    (the choice's bits are exchanged in the same round as the last message).
    Raises:
        UsageError: shapes, windows or rings do not fit.
    """
    name = "max_pool2d_with_choice"
    check_private_word_tensor(name, x)
    extremes.choose_extreme_method("tree", 1, 1, profile)  # rejects an unknown profile
    if not isinstance(bits, int) or not 4 <= bits <= 64:
        raise UsageError(
            f"{name} compares 4 to 64 bits. Received: {bits!r}.",
            code="number-out-of-range",
            operation=name,
            received=bits,
            expected="4 to 64",
        )
    windows = pooling_window_geometry(name, x.shape, ksize, strides, padding)
    k = _comparison_ring(x, bits)
    nodes = small_ring.reduce_ring(x, k).map(lambda a: _take_cells(a, windows))
    bit_paths: list[list[tuple[MaskedBits, bool]]] = [[] for _ in windows.order]
    node_cells: list[list[int]] = [[i] for i in range(len(windows.order))]  # the cells of each node
    while len(node_cells) > 1:
        half = len(node_cells) // 2
        even, odd, unpaired = (
            nodes.map(lambda a, b=b, e=e: tensor_ops.strided_slice(a, np.s_[b:e]))
            for b, e in ((0, half), (half, 2 * half), (2 * half, len(node_cells)))
        )
        below = convert.mask_bits(
            party, compare.msb(party, arithmetic.sub(even, odd), k, exchanges)
        )
        nodes = small_ring.select(party, below, odd, even)
        if len(node_cells) % 2:
            nodes = shapes.concat([nodes, unpaired], 0)
        for i in range(half):
            bit = _pooling_bit_row(below, i, windows.padded_windows)
            for side, cells in ((False, node_cells[i]), (True, node_cells[half + i])):
                for cell in cells:
                    bit_paths[cell].append((bit, side))
        node_cells = [node_cells[i] + node_cells[half + i] for i in range(half)] + node_cells[
            2 * half :
        ]
    maxima = nodes.map(lambda a: tensor_ops.strided_slice(a, 0))
    if relu:
        below_one = arithmetic.add_constant(maxima, -1)
        is_not_positive = convert.mask_bits(party, compare.msb(party, below_one, k, exchanges))
        maxima = small_ring.zero_shares_where(party, is_not_positive, maxima)
        for cell_path in bit_paths:
            cell_path.append((is_not_positive, False))
    elif k < 64:
        maxima = small_ring.lift_signed(party, maxima)
    choice_bits = _and_pooling_winner_paths(party, bit_paths, windows, x)
    y = maxima.map(lambda a: tensor_ops.reshape(a[: windows.window_count], windows.pooled_shape))
    return y, PoolChoice(choice_bits, windows, relu)


def _take_cells(a: tensor_ops.Tensor, g: PoolingGeometry) -> tensor_ops.Tensor:
    """Return [cells, width]: each cell of each window, in the geometry's order."""
    if isinstance(a, tensor_ops.SymbolicTensor):
        return a.like([len(g.order), g.padded_windows])
    return ops.module().tfe_bench_take_cells(x=a, **g.op_attributes)


def _pooling_bit_row(bits: MaskedBits, i: int, width: int) -> MaskedBits:
    """Return row i of bits [rows, width], for a width in whole words."""
    words = slice(i * width // 64, (i + 1) * width // 64)
    masked_bits, beta = (None if a is None else a[words] for a in (bits.masked, bits.beta))
    return MaskedBits(masked_bits, beta, width, bits.dealer)


def _and_pooling_winner_paths(
    party: Party, bit_paths: list[list[tuple[MaskedBits, bool]]], g: PoolingGeometry, x: Shared
) -> MaskedBits:
    """AND the bits of each cell's path, each negated where its side is False."""
    cell_words: list[Any] = [None] * len(bit_paths)  # packed words by cell, masked or beta
    lengths = sorted({len(p) for p in bit_paths})
    dealer, is_dealer = x.dealer, x.m is None

    def pooling_path_words(bit: MaskedBits, side: bool) -> Any:
        if is_dealer:
            return bit.beta
        return bit.masked if side else tensor_ops.invert(bit.masked)

    shares, cells_of = [], []
    for length in lengths:
        cells = [i for i, p in enumerate(bit_paths) if len(p) == length]
        if length == 0:
            cell_words[cells[0]] = np.full(
                [g.padded_windows // 64], 0 if is_dealer else -1, np.int64
            )
        elif length == 1:
            for i in cells:
                cell_words[i] = pooling_path_words(*bit_paths[i][0])
        else:
            rows = [
                tensor_ops.concat([pooling_path_words(*bit_paths[i][j]) for i in cells], 0)
                for j in range(length)
            ]
            count = len(cells) * g.padded_windows
            share = logic.and_stacked_bit_rows(party, tensor_ops.stack(rows), length, count, dealer)
            shares.append(share.share)
            cells_of += cells
    if cells_of:
        count = len(cells_of) * g.padded_windows
        joined = None if is_dealer else tensor_ops.concat(shares, 0)
        joined_bits = convert.mask_bits(party, EvaluatorBits(joined, None, count, dealer))
        for at, i in enumerate(cells_of):
            part = _pooling_bit_row(joined_bits, at, g.padded_windows)
            cell_words[i] = part.beta if is_dealer else part.masked
    all_words = tensor_ops.concat(cell_words, 0)
    n = len(bit_paths) * g.padded_windows
    return MaskedBits(None if is_dealer else all_words, all_words if is_dealer else None, n, dealer)


def unpool_gradient(party: Party, choice: PoolChoice, g: Shared, drop: int) -> Shared:
    """Return the gradient of pooled images: each window's g / 2^drop at its cell, else 0.

    v = g / 2^drop = P + 2^(64-drop) W msb(r) - (r >> drop) as in truncation "safe", where P and W
    are known to the evaluators and r to D. So e v for a cell's bit e = o ^ beta requires shares of
    r >> drop and msb(r), once for each window, and of beta, beta (r >> drop), beta msb(r) for each
    cell. Contributions to one position of an image are added before they are exchanged.

    Args:
        choice: of `max_pool2d_with_choice`.
        g: of the pooled shape over Z_2^64, |g| < 2^62.
        drop: fractional bits to drop, 1 to 48.

    Returns:
        dx [batch, height, width, channels]. Error: below 1 ulp for each window that chose the
        position; a position that no window chose is exactly 0.
    Rounds: 1 online, 2 in total. Bits sent: D 64 + drop for each window and 128 + drop for each of
    its cells, E1, E2 64 for each position of an image.
    Security: D's fields are hidden by masks of K1 with separate numbers; the evaluators' sums by
    masks that the other evaluator cannot derive.
    Raises:
        UsageError: g does not fit the choice, or is not over Z_2^64.
    """
    windows = choice.geometry
    check_private_64bit_tensor("unpool", g)
    if not isinstance(drop, int) or not 1 <= drop <= 48:
        raise UsageError(
            f"unpool drops 1 to 48 bits. Received: {drop!r}.",
            code="number-out-of-range",
            operation="unpool",
            received=drop,
            expected="1 to 48",
        )
    if g.dealer != choice.bits.dealer or not g.shape.is_compatible_with(windows.pooled_shape):
        raise UsageError(
            f"unpool expects a gradient {list(windows.pooled_shape)} with dealer "
            f"{choice.bits.dealer}. Received: {g!r}.",
            code="dealer-mismatch" if g.dealer != choice.bits.dealer else "shape-mismatch",
            operation="unpool",
            received=repr(g),
            expected=list(windows.pooled_shape),
        )
    scale = g.fractional_bits - drop
    # (padded windows fill whole words, so that the fields of cells are packed as one)
    cells = len(windows.order)
    dealt_slot = slots.declare_dealt(64, drop, *[64, 64, drop] * cells)
    if isinstance(party, CostParty):
        dealt_bits = dealt_slot.count_bits(windows.padded_windows)
        return party.count_exchange(windows.image, dealt_bits, choice.bits, g, scale=scale)
    s = party.site(
        "unpool",
        drop,
        windows,
        dealer=g.dealer,
        slots={0: dealt_slot, 1: slots.declare_exchanged()},
    )
    kernels, share = ops.module(), None
    attributes = {"call": s.ctx, "site": s.number, "dealer": s.dealer, "drop": drop}
    attributes |= {"cells": cells, "width": windows.padded_windows}
    if s.is_dealer:
        message = kernels.tfe_bench_unpool_deal(
            beta=choice.bits.beta, l1=g.l1, l2=g.l2, **attributes
        )
        s.send(message, s.e2, 0, run_ahead=True)
    else:
        dealt = s.receive_dealt(windows.padded_windows)
        cell_shares = kernels.tfe_bench_unpool_share(
            masked_bits=choice.bits.masked, m=g.m, dealt=dealt, **attributes
        )
        share = kernels.tfe_bench_place_cells(x=cell_shares, **windows.op_attributes)
    return masked.exchange_masked(s, share, tf.constant(windows.image, tf.int64), 5, 1, scale=scale)
