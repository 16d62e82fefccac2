"""MaxPooling and GlobalMaxPooling."""

from __future__ import annotations

import functools

import numpy as np

from tfe_bench.models.kinds.kind import Kind, Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers, Options, Shape
from tfe_bench.models.kinds.passes import Gradients, Pass, reshaped
from tfe_bench.models.kinds.planning import Planner
from tfe_bench.models.kinds.windows import Overall, Windowed, cells
from tfe_bench.protocols.nn import pool, pool_gradient
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.session.sharing import Shared


class Largest(Kind):
    """The largest of some values of each channel."""

    largest = True

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        return planner.differences(x)


class MaxPool2D(Windowed, Largest):
    """The largest value of each window."""

    op = "max_pool2d"
    keras = tuple(f"{kind}Pooling{n}D" for kind in ("Max", "AdaptiveMax") for n in (1, 2, 3))
    fuses = True

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        o = x.options
        found = (cell for _, _, cell in cells(values[0], o["ksize"], o, -np.inf))
        return functools.reduce(np.maximum, found)

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        (x,), o, profile = values, node.layer.options, p.ops.setting.pooling
        windows = (tuple(o["ksize"]), tuple(o["strides"]), o["padding"])
        bits = node.numbers.bits
        return p.ops.call(pool.max_pool2d, x, *windows, bits=bits, profile=profile)

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        """With a ReLU behind it, if there is one."""
        y, p.kept[node.output] = p.ops.max_pool(
            values[0], node.layer.options, node.activation is not None
        )
        return y

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        return _unpooled(p, node, g)

    def untrained(self, x: Layer, given: list[Shape]) -> str:
        return _fits(x.name, given[0], x.options)


class GlobalMaxPool2D(Overall, Largest):
    """The largest value of each channel."""

    op = "global_max_pool2d"
    keras = tuple(f"GlobalMaxPooling{n}D" for n in (1, 2, 3))

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return np.asarray(values[0].max((1, 2), keepdims=x.options["keepdims"]))

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        (x,), bits, setting = values, node.numbers.bits, p.ops.setting
        batch, height, width, channels = p.ops.shape(x)
        cells_first = reshaped(p.ops, x, (batch, height * width, channels))
        turned = (height * width, batch, channels)
        rows = p.ops.map(lambda v: shapes.transpose(v, [1, 0, 2]), cells_first, turned)
        columns = reshaped(p.ops, rows, (height * width, batch * channels))
        best = p.ops.call(extremes.reduce_max, columns, 0, bits=bits, profile=setting.pooling)
        return reshaped(p.ops, best, p.batched(node.shape, x))

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        """As the one window of a max pooling."""
        y, p.kept[node.output] = p.ops.max_pool(values[0], _whole(node.given[0]), False)
        return reshaped(p.ops, y, p.batched(node.shape, values[0]))

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """Each channel's gradient at the cell that won."""
        batch, channels = p.ops.shape(g)[0], node.shape[-1]
        return _unpooled(p, node, reshaped(p.ops, g, (batch, 1, 1, channels)))

    def untrained(self, x: Layer, given: list[Shape]) -> str:
        return _fits(x.name, given[0], _whole(given[0]))


def _whole(given: Shape) -> Options:
    """A window as large as an image."""
    return {"ksize": given[:2], "strides": given[:2], "padding": "VALID"}


def _unpooled(p: Pass, node: Node, g: Shared) -> Gradients:
    """Each window's gradient at the cell that won."""
    f = p.precision.gradient
    g = p.ops.shifted(g, max(g.fractional_bits, f + 1))
    return [p.ops.unpool(p.kept[node.output], g, f)]


def _fits(name: str, given: Shape, o: Options) -> str:
    """Refuses windows that no gradient goes through."""
    pool_gradient.geometry(name, [1, *given], o["ksize"], o["strides"], o["padding"])
    return ""
