"""Max pooling over NHWC images.

The windows of 3 and more are taken along one axis and then along the other, which
shares comparisons among overlapping windows.  ReLU commutes with max: pool first,
and there are fewer values left to compare with 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import compare
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Pair = int | Sequence[int]


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
    """The largest of each window, as tf.nn.max_pool2d; exact for differences below 2^(bits-1).

    Args:
        x: [batch, height, width, channels] over Z_2^64.
        ksize, strides: of both axes, or (vertical, horizontal).
        padding: "VALID" or "SAME" (cells outside of the image never win).

    Rounds and bits: those of extremes.reduce_max, twice for windows of 3 and more.
    Raises:
        UsageError: ranks, sizes or padding that do not fit.
    """
    if not isinstance(x, Shared):
        raise UsageError(f"max_pool2d wants a private tensor. Received: {type(x).__name__}.")
    if x.limbs != 1 or x.ring_bits != 64:
        raise UsageError(f"max_pool2d works over Z_2^64. Received: {x!r}.")
    shape = None if x.shape.rank is None else x.shape.as_list()
    plan = _plan(shape, ksize, strides, padding)
    for step in plan.steps:
        x = _one_step(party, x, step, bits, profile)
    return x


class _Step:
    """Values of `cells` windows' places, each an index list per axis; -> one value per window."""

    def __init__(self, cells: list[tuple[Any, Any]], result: list[int]) -> None:
        self.cells = cells
        self.result = result


class _Plan:
    def __init__(self, steps: list[_Step]) -> None:
        self.steps = steps


def _plan(shape: Any, ksize: Pair, strides: Pair, padding: str) -> _Plan:
    if not isinstance(shape, list) or len(shape) != 4 or None in shape:
        raise UsageError(f"max_pool2d wants [batch, height, width, channels]. Received: {shape}.")
    if padding not in ("VALID", "SAME"):
        raise UsageError(f'max_pool2d knows padding "VALID" and "SAME". Received: {padding!r}.')
    kernel, stride = _pair("ksize", ksize), _pair("strides", strides)
    batch, *sizes, channels = (int(n) for n in shape)
    places = [_places(n, k, s, padding) for n, k, s in zip(sizes, kernel, stride, strict=True)]
    if not all(len(p[0]) for p in places):
        raise UsageError(
            f"max_pool2d wants windows no larger than the image. Received: windows {kernel} on "
            f"{sizes}."
        )
    rows, columns = places
    if max(kernel) >= 3:
        across = _Step([(None, c) for c in columns], [batch, sizes[0], len(columns[0]), channels])
        down = _Step([(r, None) for r in rows], [batch, len(rows[0]), len(columns[0]), channels])
        return _Plan([across, down])
    cells = [(r, c) for r in rows for c in columns]
    return _Plan([_Step(cells, [batch, len(rows[0]), len(columns[0]), channels])])


def _pair(name: str, value: Pair) -> tuple[int, int]:
    pair = tuple(value) if isinstance(value, (list, tuple)) else (value, value)
    whole = all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in pair)
    if len(pair) != 2 or not whole:
        raise UsageError(
            f"max_pool2d wants {name} as one or two positive integers. Received: {value!r}."
        )
    return pair[0], pair[1]


def _places(size: int, kernel: int, stride: int, padding: str) -> list[list[int]]:
    """For each cell of a window, its place in each window; outside ones repeat an inside one."""
    if padding == "SAME":
        count = -(-size // stride)
        before = max(0, (count - 1) * stride + kernel - size) // 2
    else:
        count, before = max(0, (size - kernel) // stride + 1), 0
    starts = [i * stride - before for i in range(count)]
    return [
        [min(max(start + cell, max(start, 0)), size - 1) for start in starts]
        for cell in range(kernel)
    ]


def _one_step(party: Party, x: Shared, step: _Step, bits: int, profile: str) -> Shared:
    def take(a: local.Tensor) -> local.Tensor:
        cells = []
        for rows, columns in step.cells:
            cell = a if rows is None else local.gather(a, rows, 1)
            cells.append(cell if columns is None else local.gather(cell, columns, 2))
        return local.reshape(local.stack(cells), [len(cells), -1])

    best = extremes.reduce_max(party, x.map(take), 0, bits=bits, profile=profile)
    return best.map(lambda a: local.reshape(a, step.result))
