"""Max pooling that remembers which cell of each window won, and the way back of its gradient.

Forward, the cells of a window meet in a tree of comparisons, and `relu` adds the comparison of the
winner with 0, all in a small ring Z_2^k; only the result goes to Z_2^64.  The bits that the
comparisons exchanged under masks are ANDed to one bit per cell, beside the last forward round.
Backward, one injection hands each window's gradient to its cell and truncates it at the same time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic, masked, shapes, small_ring
from tfe_bench.protocols.ring.checks import check_ring, check_word
from tfe_bench.protocols.ring.conv import Pair, pooled_places
from tfe_bench.protocols.session import local, ops
from tfe_bench.protocols.session.cost import packed
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import EvaluatorBits, MaskedBits, Shared

MOST_CELLS = 128  # of a window: a cell's bit is an AND of up to 7 comparisons and that with 0


@dataclass(frozen=True)
class Geometry:
    """Where the cells of each window lie in images [n, height, width, channels].

    Attributes:
        image: the images' shape.
        rows, columns: for each cell along that axis its place in each window; a place outside of
            the image repeats one inside of it, so that it changes no maximum.
        order: the cells, counted row by row, such that the two halves of every level of the tree
            lie side by side and neighbors meet first.
    """

    image: tuple[int, int, int, int]
    rows: tuple[tuple[int, ...], ...]
    columns: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]

    @property
    def pooled(self) -> tuple[int, int, int, int]:
        """Shape of the result."""
        return self.image[0], len(self.rows[0]), len(self.columns[0]), self.image[3]

    @property
    def windows(self) -> int:
        """Number of windows, channels apart."""
        return math.prod(self.pooled)

    @property
    def width(self) -> int:
        """Windows in whole words of bits: all bits of a cell start with a word of their own."""
        return -(-self.windows // 64) * 64

    @property
    def disjoint(self) -> bool:
        """Whether no cell lies in two windows."""
        along = ([i for cell in axis for i in cell] for axis in (self.rows, self.columns))
        return all(len(set(places)) == len(places) for places in along)

    @property
    def attributes(self) -> dict[str, Any]:
        """Of the ops TakeCells and PlaceCells."""
        return {
            "image": list(self.image),
            "rows": [i for cell in self.rows for i in cell],
            "columns": [i for cell in self.columns for i in cell],
            "windows": [len(self.rows[0]), len(self.columns[0])],
            "cells": list(self.order),
            "width": self.width,
        }


def _order(width: int) -> list[int]:
    """Of nodes 0 .. width - 1: the even ones that have a neighbor, those neighbors, the rest."""
    if width == 1:
        return [0]
    parents = _order((width + 1) // 2)
    pairs = [i for i in parents if 2 * i + 1 < width]
    rest = [2 * i for i in parents if 2 * i + 1 == width]
    return [2 * i for i in pairs] + [2 * i + 1 for i in pairs] + rest


def geometry(name: str, shape: Any, ksize: Pair, strides: Pair, padding: str = "VALID") -> Geometry:
    """The cells of max or average pooling's windows.

    Raises:
        UsageError: sizes that are unknown or do not fit, named by the operation.
    """
    (batch, height, width, channels), kernel, places = pooled_places(
        name, shape, ksize, strides, padding
    )
    cells = math.prod(kernel)
    if cells > MOST_CELLS:
        raise UsageError(
            f"{name} wants windows of {MOST_CELLS} cells at most. Received: windows {kernel}."
        )
    return Geometry((batch, height, width, channels), places[0], places[1], tuple(_order(cells)))


@dataclass(frozen=True, eq=False)
class Choice:
    """Which cell of each window the maximum is.

    Attributes:
        bits: [cells, width] one bit per cell in the geometry's order; at most one of a window is 1,
            exactly one without ReLU.
        geometry: of the windows.
        relu: whether a window whose maximum is not positive has no chosen cell.
    """

    bits: MaskedBits
    geometry: Geometry
    relu: bool


def _ring(x: Shared, bits: int) -> int:
    """k: all comparisons and choices are made in Z_2^k."""
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
) -> tuple[Shared, Choice]:
    """(the largest of each window over Z_2^64, which cell it is); with relu max(largest, 0).

    Of equal cells the first wins, as in TensorFlow.  With relu a window whose largest value is 0 or
    less has no chosen cell: that is ReLU's derivative, 0 at 0.

    Args:
        x: [batch, height, width, channels] of a known shape, of a small ring Z_2^k as
            products.truncated gives it, or of Z_2^64; then k is `bits`.
        ksize, strides, padding: as tf.nn.max_pool2d.
        profile: of the network.  A tree is taken for all of them: where a line is waited for, it
            is the dealer's, and all pairs take two and a half times its bits.
        exchanges: of each comparison, 1 to 3; None as compare.recipe takes it.

    Domain: |x| < 2^(k-2) ring units, so that differences fit; beyond it the result is garbage.
    Rounds: ceil(log2 cells) (exchanges + 2), with relu exchanges + 2 more, and 1 more for k < 64
        (the choice's bits are exchanged beside the last).
    Raises:
        UsageError: shapes, windows or rings that do not fit.
    """
    name = "max_pool2d_with_choice"
    check_word(name, x)
    extremes.choose("tree", 1, 1, profile)  # refuses an unknown one
    if not isinstance(bits, int) or not 4 <= bits <= 64:
        raise UsageError(f"{name} compares 4 to 64 bits. Received: {bits!r}.")
    g = geometry(name, x.shape, ksize, strides, padding)
    k = _ring(x, bits)
    nodes = small_ring.reduced(x, k).map(lambda a: _cells(a, g))
    path: list[list[tuple[MaskedBits, bool]]] = [[] for _ in g.order]
    under: list[list[int]] = [[i] for i in range(len(g.order))]  # the cells of each node
    while len(under) > 1:
        half = len(under) // 2
        even, odd, rest = (
            nodes.map(lambda a, b=b, e=e: local.at(a, np.s_[b:e]))
            for b, e in ((0, half), (half, 2 * half), (2 * half, len(under)))
        )
        below = convert.mask_bits(
            party, compare.msb(party, arithmetic.sub(even, odd), k, exchanges)
        )
        nodes = small_ring.select(party, below, odd, even)
        if len(under) % 2:
            nodes = shapes.concat([nodes, rest], 0)
        for i in range(half):
            bit = _part(below, i, g.width)
            for side, cells in ((False, under[i]), (True, under[half + i])):
                for cell in cells:
                    path[cell].append((bit, side))
        under = [under[i] + under[half + i] for i in range(half)] + under[2 * half :]
    best = nodes.map(lambda a: local.at(a, 0))
    if relu:
        below_one = arithmetic.moved(best, -1)
        none = convert.mask_bits(party, compare.msb(party, below_one, k, exchanges))
        best = small_ring.rectified(party, none, best)
        for each in path:
            each.append((none, False))
    elif k < 64:
        best = small_ring.lift(party, best)
    hot = _all_of(party, path, g, x)
    y = best.map(lambda a: local.reshape(a[: g.windows], g.pooled))
    return y, Choice(hot, g, relu)


def _cells(a: local.Tensor, g: Geometry) -> local.Tensor:
    """[cells, width]: each cell of each window, in the geometry's order."""
    if isinstance(a, local.Abstract):
        return a.like([len(g.order), g.width])
    return ops.module().tfe_bench_take_cells(x=a, **g.attributes)


def _part(bits: MaskedBits, i: int, width: int) -> MaskedBits:
    """Row i of bits [rows, width], width in whole words."""
    words = slice(i * width // 64, (i + 1) * width // 64)
    masked_bits, beta = (None if a is None else a[words] for a in (bits.masked, bits.beta))
    return MaskedBits(masked_bits, beta, width, bits.dealer)


def _all_of(
    party: Party, path: list[list[tuple[MaskedBits, bool]]], g: Geometry, x: Shared
) -> MaskedBits:
    """For each cell the AND of the bits of its path, each negated where its side is False."""
    held: list[Any] = [None] * len(path)  # packed words by cell, masked or beta
    lengths = sorted({len(p) for p in path})
    dealer, is_dealer = x.dealer, x.m is None

    def words(bit: MaskedBits, side: bool) -> Any:
        if is_dealer:
            return bit.beta
        return bit.masked if side else local.invert(bit.masked)

    shares, cells_of = [], []
    for length in lengths:
        cells = [i for i, p in enumerate(path) if len(p) == length]
        if length == 0:
            held[cells[0]] = np.full([g.width // 64], 0 if is_dealer else -1, np.int64)
        elif length == 1:
            for i in cells:
                held[i] = words(*path[i][0])
        else:
            rows = [local.concat([words(*path[i][j]) for i in cells], 0) for j in range(length)]
            count = len(cells) * g.width
            share = logic.all_of_rows(party, local.stack(rows), length, count, dealer)
            shares.append(share.share)
            cells_of += cells
    if cells_of:
        count = len(cells_of) * g.width
        joined = None if is_dealer else local.concat(shares, 0)
        won = convert.mask_bits(party, EvaluatorBits(joined, None, count, dealer))
        for at, i in enumerate(cells_of):
            part = _part(won, at, g.width)
            held[i] = part.beta if is_dealer else part.masked
    words_of = local.concat(held, 0)
    n = len(path) * g.width
    return MaskedBits(None if is_dealer else words_of, words_of if is_dealer else None, n, dealer)


def unpool(party: Party, choice: Choice, g: Shared, drop: int) -> Shared:
    """The gradient of the pooled images: each window's g / 2^drop at its chosen cell, else 0.

    v = g / 2^drop = P + 2^(64-drop) W msb(r) - (r >> drop) as in truncation "safe", P and W known
    to the evaluators, r to D; so e v for a cell's bit e = o ^ beta needs shares of r >> drop and
    msb(r), once for each window, and of beta, beta (r >> drop), beta msb(r) for each cell.
    Contributions to one place of an image are added before they are exchanged.

    Args:
        choice: of `max_pool2d_with_choice`.
        g: of the pooled shape over Z_2^64, |g| < 2^62.
        drop: fractional bits to drop, 1 to 48.

    Returns dx [batch, height, width, channels].  Off by less than 1 ulp for each window that the
    place was chosen in; a place that none chose is exactly 0.
    Rounds: 1 (2 with dealing).  Bits sent: D 64 + drop for each window and 128 + drop for each of
        its cells, E1, E2 64 for each place of an image.
    Security: D's fields are padded by masks of K1, each number its own; the evaluators' sums by
        masks that the other cannot make.
    Raises:
        UsageError: g does not fit the choice, or is not over Z_2^64.
    """
    geo = choice.geometry
    check_ring("unpool", g)
    if not isinstance(drop, int) or not 1 <= drop <= 48:
        raise UsageError(f"unpool drops 1 to 48 bits. Received: {drop!r}.")
    if g.dealer != choice.bits.dealer or not g.shape.is_compatible_with(geo.pooled):
        raise UsageError(
            f"unpool wants a gradient {list(geo.pooled)} with dealer {choice.bits.dealer}. "
            f"Received: {g!r}."
        )
    scale = g.fractional_bits - drop
    if isinstance(party, Counting):
        return party.exchanged(geo.image, _dealt(geo, drop), choice.bits, g, scale=scale)
    import tensorflow as tf

    s = party.site("unpool", drop, geo, dealer=g.dealer)
    kernels, share = ops.module(), None
    named = {"call": s.ctx, "site": s.number, "dealer": s.dealer, "drop": drop}
    named |= {"cells": len(geo.order), "width": geo.width}
    if s.is_dealer:
        message = kernels.tfe_bench_unpool_deal(beta=choice.bits.beta, l1=g.l1, l2=g.l2, **named)
        s.send(message, s.e2, 0, run_ahead=True)
    else:
        dealt = s.dealt(_dealt(geo, drop) // 8, 0, tf.uint8)
        of_cells = kernels.tfe_bench_unpool_share(
            masked_bits=choice.bits.masked, m=g.m, dealt=dealt, **named
        )
        share = kernels.tfe_bench_place_cells(x=of_cells, **geo.attributes)
    return masked.exchanged(s, share, tf.constant(geo.image, tf.int64), 5, 1, scale=scale)


def _dealt(g: Geometry, drop: int) -> int:
    """Bits of the dealer's message."""
    n = len(g.order) * g.width
    return 64 * g.width + packed(g.width, drop) + 2 * 64 * n + packed(n, drop)
