"""AveragePooling and GlobalAveragePooling, and the sums that products make of them."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import ClassVar

import numpy as np

from tfe_bench.models.kinds.kind import Kind, Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers, Shape
from tfe_bench.models.kinds.passes import (
    FACTOR_BITS,
    Gradients,
    Pass,
    factored,
    log2,
    reshaped,
    summed,
)
from tfe_bench.models.kinds.planning import Planner
from tfe_bench.models.kinds.windows import Overall, Windowed, window_sums, windows_of
from tfe_bench.protocols.ring import arithmetic, conv_gradients, reductions, shapes
from tfe_bench.protocols.session.sharing import Shared


class Average(Kind):
    """A mean of some values of each channel.

    Attributes:
        total: the kind of their sum.
    """

    total: ClassVar[str]

    def count(self, x: Layer, given: Shape) -> int | None:
        """How many values each mean is of, None if that differs."""
        raise NotImplementedError

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        return planner.factor(x)

    def limit(self, node: Node, given: list[int]) -> int | None:
        return 2 * node.moved(given)[0] + 1  # (a reciprocal is rounded)


def _sums(p: Pass, node: Node, x: Shared) -> Shared:
    """The sums of windows."""
    o = node.layer.options

    def sums(v: Shared) -> Shared:
        return reductions.sum_pool(v, o["ksize"], o["strides"], o["padding"])

    return p.ops.map(sums, x, p.batched(node.shape, x))


def _all_summed(p: Pass, node: Node, x: Shared) -> Shared:
    return summed(p.ops, x, [1, 2], node.layer.options["keepdims"])


def _shares(node: Node) -> Array:
    """1 / the number of cells of each window, exactly, [height, width, 1]."""
    o = node.layer.options
    height, width, _ = node.given[0]
    counts = reductions.window_counts(windows_of(o), (height, width), tuple(o["ksize"]))
    found = np.empty(counts.shape, object)
    for place, n in np.ndenumerate(counts):
        found[place] = Fraction(1, int(n))
    return found.reshape(*counts.shape[:2], 1)


class AvgPool2D(Windowed, Average):
    """The mean of each window."""

    op = "avg_pool2d"
    keras = (
        *(f"AveragePooling{n}D" for n in (1, 2, 3)),
        "AdaptiveAveragePooling3D",
    )
    total = "sum_pool2d"

    def count(self, x: Layer, given: Shape) -> int | None:
        return math.prod(x.options["ksize"]) if x.options["padding"] == "VALID" else None

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        (v,), o = values, x.options
        return np.asarray(window_sums(v, o) / window_sums(np.ones_like(v[:1, ..., :1]), o))

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        (x,), o = values, node.layer.options
        windows = (o["ksize"], o["strides"], o["padding"], node.numbers.scale)
        return p.ops.call(reductions.avg_pool, x, *windows)

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        return p.dropped(factored(p.ops, _sums(p, node, values[0]), _shares(node)))

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """Each window's gradient over its count, for each of its cells."""
        o, shape = node.layer.options, p.batched(node.given[0], g)
        back = conv_gradients.input_gradient(windows_of(o), shape[1:], depthwise=True)
        ones = np.ones([*o["ksize"], shape[3], 1], np.int64)

        def cells(v: Shared) -> Shared:
            kernel = arithmetic.ring_tensor(self.op, ones)
            return v.map(lambda a: back([a], [kernel]))

        g = factored(p.ops, p.settled(g, FACTOR_BITS), _shares(node))
        return [p.ops.map(cells, g, shape)]


class GlobalAvgPool2D(Overall, Average):
    """The mean of each channel."""

    op = "global_avg_pool2d"
    keras = tuple(f"GlobalAveragePooling{n}D" for n in (1, 2, 3))
    total = "global_sum_pool2d"

    def count(self, x: Layer, given: Shape) -> int | None:
        return math.prod(given[:2])

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return np.asarray(values[0].mean((1, 2), keepdims=x.options["keepdims"]))

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        (x,), scale = values, node.numbers.scale
        keep = node.layer.options["keepdims"]
        return p.ops.call(reductions.global_avg_pool, x, keep, scale)

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        _, height, width, _ = p.ops.shape(values[0])
        total = _all_summed(p, node, values[0])
        return p.dropped(factored(p.ops, total, Fraction(1, height * width)))

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """The gradient over the count, for each cell."""
        ops, shape = p.ops, p.batched(node.given[0], g)
        batch, height, width, channels = shape
        g = reshaped(ops, g, (batch, 1, 1, channels))
        factor = Fraction(1, height * width)
        g = factored(ops, g if log2(factor) is not None else p.settled(g, FACTOR_BITS), factor)
        return [ops.map(lambda v: shapes.broadcast_to(v, shape), g, shape)]


class SumPool2D(Windowed):
    """The sum of each window: an average whose division a product has taken over."""

    op = "sum_pool2d"

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return window_sums(values[0], x.options)

    def limit(self, node: Node, given: list[int]) -> int | None:
        return node.moved(given)[0] * math.prod(map(int, node.layer.options["ksize"]))

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        return _sums(p, node, values[0])


class GlobalSumPool2D(Overall):
    """The sum of each channel."""

    op = "global_sum_pool2d"

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return np.asarray(values[0].sum((1, 2), keepdims=x.options["keepdims"]))

    def limit(self, node: Node, given: list[int]) -> int | None:
        return node.moved(given)[0] * math.prod(node.given[0][:2])

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        return _all_summed(p, node, values[0])
