"""Values that come to stand elsewhere, or several times: Permute, Cropping, nearest UpSampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tfe_bench.models.kinds.checks import alone, need, only, whole
from tfe_bench.models.kinds.kind import Kind, Mixes, Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Gradients, Pass, reshaped, summed
from tfe_bench.models.kinds.reading import Call, Reader, Unfit
from tfe_bench.models.kinds.turning import channels_last, sides
from tfe_bench.models.kinds.turning import reshaped as in_shape
from tfe_bench.models.layers import resize
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.session.sharing import Shared

_MOST_REPEATS = 1 << 16


class Permute(Kind):
    """The axes in another order."""

    op = "permute"
    local = True
    keras = ("Permute",)

    def read(self, r: Reader, call: Call) -> str:
        order = [int(axis) for axis in call.layer.dims]
        return r.emit(call.name, self.op, call.inputs, None, order=order)

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = alone(given, weights)
        only(options, "order")
        order = options["order"]
        fits = isinstance(order, (list, tuple)) and all(whole(axis) for axis in order)
        need(fits and sorted(order) == [*range(1, len(x) + 1)], f"{len(x)} axes", order)
        return tuple(x[axis - 1] for axis in order)

    def positions(self, x: Layer, given: Sequence[Shape], axes: Sequence[int]) -> int:
        return list(x.options["order"]).index(axes[0]) + 1

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return values[0].transpose(0, *x.options["order"])

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        order = [0, *node.layer.options["order"]]
        shape = p.batched(node.shape, values[0])
        return p.ops.map(lambda v: shapes.transpose(v, order), values[0], shape)

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        back = [int(axis) for axis in np.argsort([0, *node.layer.options["order"]])]
        shape = p.batched(node.given[0], g)
        return [p.ops.map(lambda v: shapes.transpose(v, back), g, shape)]


class Crop(Kind):
    """What is left when so many places are cut off before and behind."""

    op = "crop"
    local = True
    keras = ("Cropping1D", "Cropping2D", "Cropping3D", "CenterCrop")

    @channels_last
    def read(self, r: Reader, call: Call) -> str:
        centered = call.kind == "CenterCrop"
        cut = self._centered(call) if centered else sides(call.layer.cropping)
        return r.emit(call.name, self.op, call.inputs, None, sides=[*cut, [0, 0]])

    def _centered(self, call: Call) -> list[list[int]]:
        """What a CenterCrop cuts off."""
        size = call.layer.height, call.layer.width
        over = [n - k for n, k in zip(call.shapes[0][:2], size, strict=True)]
        if len(call.shapes[0]) != 3 or min(over) < 0:
            raise Unfit(f"it enlarges images of {list(call.shapes[0])}; use Resizing before it")
        return [[n // 2, n - n // 2] for n in over]

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = alone(given, weights)
        only(options, "sides")
        sides = options["sides"]
        fits = isinstance(sides, (list, tuple)) and len(sides) == len(x)
        fits = fits and all(isinstance(s, (list, tuple)) and len(s) == 2 for s in sides)
        fits = fits and all(whole(n, 0) for side in sides for n in side)
        need(fits, f"what is cut off at both sides of {len(x)} axes", sides)
        left = tuple(n - a - b for n, (a, b) in zip(x, sides, strict=True))
        need(min(left, default=1) > 0, "sides that leave something", sides)
        return left

    def positions(self, x: Layer, given: Sequence[Shape], axes: Sequence[int]) -> int:
        if any(x.options["sides"][axes[0] - 1]):
            raise Mixes("drops positions")
        return axes[0]

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        sides = zip(values[0].shape[1:], x.options["sides"], strict=True)
        return values[0][(slice(None), *(slice(a, n - b) for n, (a, b) in sides))]

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        begin = [0, *(a for a, _ in node.layer.options["sides"])]
        shape = p.batched(node.shape, values[0])
        return p.ops.map(lambda v: shapes.slice(v, begin, shape), values[0], shape)

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """g with zeros around."""
        pairs = [(0, 0), *((a, b) for a, b in node.layer.options["sides"])]
        shape = p.batched(node.given[0], g)
        return [p.ops.map(lambda v: shapes.pad(v, pairs), g, shape)]


class Take(Kind):
    """The values at some places along an axis, in any order."""

    op = "take"
    local = True

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = alone(given, weights)
        only(options, "axis", "places")
        axis, places = options["axis"], options["places"]
        need(whole(axis) and axis <= len(x), f"an axis from 1 to {len(x)}", axis)
        fits = isinstance(places, (list, tuple)) and 0 < len(places) <= _MOST_REPEATS
        fits = fits and all(whole(n, 0) and n < x[axis - 1] for n in places)
        need(fits, f"1 to {_MOST_REPEATS} places from 0 to {x[axis - 1] - 1}", places)
        return (*x[: axis - 1], len(places), *x[axis:])

    def positions(self, x: Layer, given: Sequence[Shape], axes: Sequence[int]) -> int:
        if x.options["axis"] == axes[0]:
            raise Mixes("takes some positions; a language model gives logits of each")
        return axes[0]

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return np.asarray(np.take(values[0], x.options["places"], x.options["axis"]))

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        places = np.asarray(node.layer.options["places"])
        shape = p.batched(node.shape, values[0])
        return p.ops.map(_gathered(places, node.layer.options["axis"]), values[0], shape)

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """The sum of what came of each: of its first copy, its second, and so on."""
        axis, places = node.layer.options["axis"], np.asarray(node.layer.options["places"])
        shape = p.batched(node.given[0], g)
        # one place more, of zeros, for what has no copy
        more = [(0, int(i == axis)) for i in range(len(shape))]
        wide = (*node.shape[: axis - 1], len(places) + 1, *node.shape[axis:])
        padded = p.ops.map(lambda v: shapes.pad(v, more), g, p.batched(wide, g))
        total = None
        for copy in range(int(np.bincount(places).max())):
            back = np.full(shape[axis], len(places))
            for own in np.unique(places):
                at = np.flatnonzero(places == own)
                back[own] = at[copy] if copy < len(at) else len(places)
            part = p.ops.map(_gathered(back, axis), padded, shape)
            total = part if total is None else p.ops.add(total, part)
        return [total]


def _gathered(places: Array, axis: int) -> Callable[[Shared], Shared]:
    return lambda v: shapes.gather(v, places, axis)


class Repeat(Kind):
    """Each value so many times along each axis, one behind the other."""

    op = "repeat"
    local = True
    keras = ("RepeatVector", "UpSampling1D", "UpSampling2D", "UpSampling3D")

    @channels_last
    def read(self, r: Reader, call: Call) -> str:
        layer, given = call.layer, call.inputs
        if call.kind == "RepeatVector":
            row = in_shape(r, given[0], f"{call.name}/row", (1, call.shape[1]))
            return r.emit(call.name, self.op, [row], None, times=[int(layer.n), 1])
        if getattr(layer, "interpolation", "nearest") != "nearest":
            return resize.emit(r, call, str(layer.interpolation))
        size = layer.size if isinstance(layer.size, (list, tuple)) else [layer.size]
        return r.emit(call.name, self.op, given, None, times=[*(int(n) for n in size), 1])

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = alone(given, weights)
        only(options, "times")
        times = options["times"]
        fits = isinstance(times, (list, tuple)) and len(times) == len(x)
        fits = fits and all(whole(n) for n in times) and math.prod(times) <= _MOST_REPEATS
        need(fits, f"how often, for {len(x)} axes, {_MOST_REPEATS} times in all at most", times)
        return tuple(n * k for n, k in zip(x, times, strict=True))

    def positions(self, x: Layer, given: Sequence[Shape], axes: Sequence[int]) -> int:
        if x.options["times"][axes[0] - 1] != 1:
            raise Mixes("repeats positions")
        return axes[0]

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        (v,) = values
        for axis, k in enumerate(x.options["times"], 1):
            v = np.repeat(v, k, axis)
        return v

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        (x,) = values
        shape = list(p.ops.shape(x))
        for axis, k in enumerate(node.layer.options["times"], 1):
            if k > 1:
                places = np.repeat(np.arange(shape[axis]), k)
                shape[axis] *= k
                x = p.ops.map(_gathered(places, axis), x, tuple(shape))
        return x

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """The sum of what came of each."""
        given, times = node.given[0], node.layer.options["times"]
        apart = [part for pair in zip(given, times, strict=True) for part in pair]
        g = reshaped(p.ops, g, p.batched(tuple(apart), g))
        return [summed(p.ops, g, [*range(2, 2 * len(given) + 1, 2)])]
