"""AveragePooling and GlobalAveragePooling, and the sums that products make of them."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import ClassVar

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds import masks
from tfe_bench.models.kinds.checks import held, need, only
from tfe_bench.models.kinds.kind import Kind, Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import (
    FACTOR_BITS,
    Gradients,
    Pass,
    brought,
    factored,
    log2,
    reshaped,
    summed,
)
from tfe_bench.models.kinds.planning import PRODUCT_BITS, Planner
from tfe_bench.models.kinds.reading import Call, Given, Reader, Unfit
from tfe_bench.models.kinds.turning import turned
from tfe_bench.models.kinds.windows import Overall, Windowed, window_sums, windows_of
from tfe_bench.protocols.functions import reciprocal
from tfe_bench.protocols.ring import arithmetic, conv_gradients, reductions, shapes
from tfe_bench.protocols.ring.products import Product, matrix_product
from tfe_bench.protocols.session.sharing import Shared

# Of a count of steps and its reciprocal, and how many there may be.
_COUNT_BITS, _FEWEST_BITS, _MOST_STEPS = 24, 8, 1024


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


class MaskedMean(Kind):
    """The mean of the steps [n, channels] that a mask [n] shows; where it shows none, anything."""

    op = "masked_mean"

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        only(options)
        held(weights)
        fits = len(given) == 2 and len(given[0]) == 2 and given[1] == given[0][:1]
        need(fits, "steps [n, channels] and a mask [n]", [list(s) for s in given])
        need(given[0][0] <= _MOST_STEPS, f"{_MOST_STEPS} steps at most", given[0][0])
        return given[0][1:]

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        v, mask = values
        shown = (mask >= 0.5).astype(np.float64)[:, None]
        return np.asarray((shown @ v)[:, 0] / np.maximum(shown.sum(2), 1))

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        f, m = planner.of(x.inputs[0]), planner.magnitude(x.inputs[0])
        steps = planner.shapes[x.inputs[0]][0].bit_length()
        # (an ulp of the reciprocal is taken as often as there are steps)
        bits = min(_COUNT_BITS, PRODUCT_BITS - f - max(m, 0) - steps)
        if bits < steps + _FEWEST_BITS:
            planner.lost(x, f"adds values up to {2.0**m:g}")
        return Numbers(f, max(bits, steps + _FEWEST_BITS))

    def check(self, node: Node) -> None:
        super().check(node)
        steps = node.given[0][0].bit_length()
        if not steps + _FEWEST_BITS <= node.numbers.scale <= _COUNT_BITS:
            raise UsageError(f"counts steps with {node.numbers.scale} fractional bits.")

    def watchable(self, node: Node, given: list[int] | None) -> bool:
        steps = node.given[0][0].bit_length()
        return given is None or given[0] << steps + node.numbers.scale < 1 << 62

    def limit(self, node: Node, given: list[int]) -> int | None:
        return given[0] + (given[0] >> 8) + 16

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        x, mask = values
        ops, (steps, channels), bits = p.ops, node.given[0], node.numbers.scale
        row = reshaped(ops, mask, p.batched((1, steps), mask))
        total = ops.product([Product(row, x, matrix_product)])
        total = ops.truncate(total, mask.fractional_bits) if mask.fractional_bits else total
        total = reshaped(ops, total, p.batched((channels,), x))
        # the count as a part of 2^k steps: an ulp of its reciprocal is 2^k times smaller
        k = steps.bit_length()
        count = brought(ops, summed(ops, mask, [1], True), bits - k)
        ops.note(count, 1 << bits - k, steps << bits - k)
        part = replace(count, fractional_bits=bits)
        share = ops.call(reciprocal.reciprocal_in, part, 0.9 / 2**k, (steps + 0.1) / 2**k)
        mean = replace(ops.mul(total, share), fractional_bits=total.fractional_bits + bits + k)
        return ops.truncate(mean, bits + k)


class GlobalAvgPool2D(Overall, Average):
    """The mean of each channel."""

    masks = True
    arguments = ("inputs", "mask")

    op = "global_avg_pool2d"
    keras = tuple(f"GlobalAveragePooling{n}D" for n in (1, 2, 3))
    total = "global_sum_pool2d"

    def read(self, r: Reader, call: Call) -> str:
        value, mask = call.arguments["inputs"], call.arguments.get("mask")
        if mask is None and not value.mask:
            return super().read(r, replace(call, inputs=call.inputs[:1], shapes=call.shapes[:1]))
        layer, name = call.layer, call.name
        if call.kind != "GlobalAveragePooling1D":
            raise Unfit("of values with a mask; GlobalAveragePooling1D takes one")
        if mask is not None and not isinstance(mask, Given):
            raise Unfit("called with public numbers as a mask")
        own = value.mask if mask is None else masks.truth(r, mask.name)
        given, (steps, channels) = value.name, value.shape
        if layer.data_format == "channels_first":
            steps, channels = channels, steps
            given = turned(r, given, f"{name}/steps_first", [2, 1])
        if mask is not None and mask.shape != (steps,):
            raise Unfit(f"called with a mask {[None, *mask.shape]} of {steps} steps")
        bare = name if len(call.shape) == 1 else r.unique(f"{name}/mean")
        found = r.emit(bare, MaskedMean.op, [given, own])
        if bare == name:
            return found
        return r.emit(name, "reshape", [found], None, shape=list(call.shape))

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
    local = True

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return window_sums(values[0], x.options)

    def limit(self, node: Node, given: list[int]) -> int | None:
        return node.moved(given)[0] * math.prod(map(int, node.layer.options["ksize"]))

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        return _sums(p, node, values[0])


class GlobalSumPool2D(Overall):
    """The sum of each channel."""

    op = "global_sum_pool2d"
    local = True

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return np.asarray(values[0].sum((1, 2), keepdims=x.options["keepdims"]))

    def limit(self, node: Node, given: list[int]) -> int | None:
        return node.moved(given)[0] * math.prod(node.given[0][:2])

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        return _all_summed(p, node, values[0])
