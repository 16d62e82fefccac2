"""Max pooling over NHWC images.

Windows of 3 and more are reduced along one axis and then along the other, which shares comparisons
among overlapping windows. ReLU commutes with max: pool first, so that fewer values are compared
with 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import arithmetic, checks, compare, shapes
from tfe_bench.protocols.ring.conv import Pair, pooling_positions
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

# A cell of each window: its positions along both axes, None for all.
Cells: TypeAlias = "list[tuple[Sequence[int] | None, Sequence[int] | None]]"


def max_pool2d(
    party: Party,
    x: Shared,
    ksize: Pair,
    strides: Pair,
    padding: str = "VALID",
    *,
    bits: int = compare.LAYER_BITS,
    profile: str = "local",
) -> Shared:
    """Return each window's maximum, as tf.nn.max_pool2d; exact for differences < 2^(bits-1).

    Args:
        x: [batch, height, width, channels] over Z_2^64.
        ksize, strides: of both axes, or (vertical, horizontal).
        padding: "VALID" or "SAME" (cells outside the image never win).

    Rounds and bits: those of extremes.reduce_max, twice for windows of 3 and more.
    Raises:
        UsageError: ranks, sizes or padding do not fit.
    """
    checks.check_private_64bit_tensor("max_pool2d", x)
    _, kernel, (rows, columns) = pooling_positions("max_pool2d", x.shape, ksize, strides, padding)
    steps: list[Cells] = [[(r, c) for r in rows for c in columns]]
    if max(kernel) >= 3:
        steps = [[(None, c) for c in columns], [(r, None) for r in rows]]
    for cells in steps:
        x = _max_of_pooling_windows(party, x, cells, bits, profile)
    return x


def max_pool_with_argmax(
    party: Party, x: Shared, ksize: Pair, strides: Pair, padding: str, with_batch: bool, bits: int
) -> tuple[Shared, Shared]:
    """Return each window's maximum and its first position, as tf.nn.max_pool_with_argmax.

    Args:
        x, ksize, strides, padding, bits: as for `max_pool2d`.
        with_batch: positions count through the whole batch, else through each image.

    Rounds and bits: those of extremes.reduce_labeled of windows times cells.
    """
    name = "max_pool_with_argmax"
    checks.check_private_64bit_tensor(name, x)
    image, _, (rows, columns) = pooling_positions(name, x.shape, ksize, strides, padding)
    cells: Cells = [(r, c) for r in rows for c in columns]
    sizes = [image[0], len(rows[0]), len(columns[0]), image[3]]
    cell_labels = np.broadcast_to(np.int64(0), [len(cells), math.prod(sizes)])
    if tensor_ops.is_concrete(x.any):
        labels = np.arange(np.prod(image), dtype=np.int64).reshape(image)
        if not with_batch:
            labels %= max(1, int(np.prod(image[1:])))
        cell_labels = np.stack([labels[:, r][:, :, c] for r, c in cells]).reshape(len(cells), -1)
    values = x.map(lambda a: _gather_cells(a, cells))
    places = arithmetic.share_public(x, cell_labels)
    maxima, positions = extremes.reduce_labeled(party, values, places, bits)
    assert positions is not None
    return shapes.reshape(maxima, sizes), shapes.reshape(positions, sizes)


def _gather_cells(a: tensor_ops.Tensor, cells: Cells) -> tensor_ops.Tensor:
    """Return the cells of all windows, [cells, windows]."""
    gathered = []
    for rows, columns in cells:
        cell = a if rows is None else tensor_ops.gather(a, rows, 1)
        gathered.append(cell if columns is None else tensor_ops.gather(cell, columns, 2))
    return tensor_ops.reshape(tensor_ops.stack(gathered), [len(gathered), -1])


def _max_of_pooling_windows(
    party: Party, x: Shared, cells: Cells, bits: int, profile: str
) -> Shared:
    """Return one value per window, for cells given by positions along both axes (None: all)."""
    sizes = x.shape.as_list()
    for axis, places in enumerate(cells[0], 1):
        sizes[axis] = sizes[axis] if places is None else len(places)
    values = x.map(lambda a: _gather_cells(a, cells))
    maxima = extremes.reduce_max(party, values, 0, bits=bits, profile=profile)
    return maxima.map(lambda a: tensor_ops.reshape(a, sizes))
