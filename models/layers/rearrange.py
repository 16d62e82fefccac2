"""Rearrangement and repetition of elements: Permute, Cropping, nearest UpSampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers import resize
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.session.sharing import Shared

_MOST_REPEATS = 1 << 16


class Permute(L.Kind):
    """The axes in another order."""

    op = "permute"
    is_local = True
    keras_layers = ("Permute",)

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        order = [int(axis) for axis in call.layer.dims]
        return r.add_layer(call.name, self.op, call.inputs, None, order=order)

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = L.check_single_input(input_shapes, weights)
        L.check_options(options, "order")
        order = options["order"]
        fits = isinstance(order, (list, tuple)) and all(L.is_whole(axis) for axis in order)
        L.check_value(fits and sorted(order) == [*range(1, len(x) + 1)], f"{len(x)} axes", order)
        return tuple(x[axis - 1] for axis in order)

    def find_position_axis(
        self, x: L.LayerSpec, input_shapes: Sequence[Shape], axes: Sequence[int]
    ) -> int:
        return list(x.options["order"]).index(axes[0]) + 1

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return values[0].transpose(0, *x.options["order"])

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        order = [0, *node.layer.options["order"]]
        shape = p.add_batch_axis(node.shape, values[0])
        return p.ops.apply_local(lambda v: shapes.transpose(v, order), values[0], shape)

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        inverse_order = [int(axis) for axis in np.argsort([0, *node.layer.options["order"]])]
        shape = p.add_batch_axis(node.input_shapes[0], g)
        return [p.ops.apply_local(lambda v: shapes.transpose(v, inverse_order), g, shape)]


class Crop(L.Kind):
    """The part that remains after cutting both ends of each axis."""

    op = "crop"
    is_local = True
    keras_layers = ("Cropping1D", "Cropping2D", "Cropping3D", "CenterCrop")

    @L.accept_channels_first
    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        centered = call.class_name == "CenterCrop"
        cut = (
            self._read_center_crop(call) if centered else L.parse_padding_sides(call.layer.cropping)
        )
        return r.add_layer(call.name, self.op, call.inputs, None, sides=[*cut, [0, 0]])

    def _read_center_crop(self, call: L.LayerCall) -> list[list[int]]:
        """Return the cuts of a CenterCrop."""
        size = call.layer.height, call.layer.width
        over = [n - k for n, k in zip(call.shapes[0][:2], size, strict=True)]
        if len(call.shapes[0]) != 3 or min(over) < 0:
            raise L.UnsupportedLayer(
                f"it enlarges images of {list(call.shapes[0])}; use Resizing before it"
            )
        return [[n // 2, n - n // 2] for n in over]

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = L.check_single_input(input_shapes, weights)
        L.check_options(options, "sides")
        sides = options["sides"]
        fits = isinstance(sides, (list, tuple)) and len(sides) == len(x)
        fits = fits and all(isinstance(s, (list, tuple)) and len(s) == 2 for s in sides)
        fits = fits and all(L.is_whole(n, 0) for side in sides for n in side)
        L.check_value(fits, f"cuts of both sides of {len(x)} axes", sides)
        remaining = tuple(n - a - b for n, (a, b) in zip(x, sides, strict=True))
        L.check_value(min(remaining, default=1) > 0, "cuts that leave at least one element", sides)
        return remaining

    def find_position_axis(
        self, x: L.LayerSpec, input_shapes: Sequence[Shape], axes: Sequence[int]
    ) -> int:
        if any(x.options["sides"][axes[0] - 1]):
            raise L.NotPositionwise("drops positions")
        return axes[0]

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        sides = zip(values[0].shape[1:], x.options["sides"], strict=True)
        return values[0][(slice(None), *(slice(a, n - b) for n, (a, b) in sides))]

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        begin = [0, *(a for a, _ in node.layer.options["sides"])]
        shape = p.add_batch_axis(node.shape, values[0])
        return p.ops.apply_local(lambda v: shapes.slice(v, begin, shape), values[0], shape)

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        """Pad g with zeros."""
        pairs = [(0, 0), *((a, b) for a, b in node.layer.options["sides"])]
        shape = p.add_batch_axis(node.input_shapes[0], g)
        return [p.ops.apply_local(lambda v: shapes.pad(v, pairs), g, shape)]


class TakePositions(L.Kind):
    """The values at some places along an axis, in any order."""

    op = "take"
    is_local = True

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = L.check_single_input(input_shapes, weights)
        L.check_options(options, "axis", "places")
        axis, places = options["axis"], options["places"]
        L.check_value(L.is_whole(axis) and axis <= len(x), f"an axis from 1 to {len(x)}", axis)
        fits = isinstance(places, (list, tuple)) and 0 < len(places) <= _MOST_REPEATS
        fits = fits and all(L.is_whole(n, 0) and n < x[axis - 1] for n in places)
        L.check_value(fits, f"1 to {_MOST_REPEATS} places from 0 to {x[axis - 1] - 1}", places)
        return (*x[: axis - 1], len(places), *x[axis:])

    def find_position_axis(
        self, x: L.LayerSpec, input_shapes: Sequence[Shape], axes: Sequence[int]
    ) -> int:
        if x.options["axis"] == axes[0]:
            raise L.NotPositionwise("selects some positions; a language model needs logits of each")
        return axes[0]

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return np.asarray(np.take(values[0], x.options["places"], x.options["axis"]))

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        places = np.asarray(node.layer.options["places"])
        shape = p.add_batch_axis(node.shape, values[0])
        return p.ops.apply_local(
            _build_axis_gather(places, node.layer.options["axis"]), values[0], shape
        )

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        """Sum the gradients of all copies of each element: of its first, its second, etc."""
        axis, places = node.layer.options["axis"], np.asarray(node.layer.options["places"])
        shape = p.add_batch_axis(node.input_shapes[0], g)
        # one more place, of zeros, for elements without a copy
        more = [(0, int(i == axis)) for i in range(len(shape))]
        wide = (*node.shape[: axis - 1], len(places) + 1, *node.shape[axis:])
        padded = p.ops.apply_local(lambda v: shapes.pad(v, more), g, p.add_batch_axis(wide, g))
        total = None
        for copy in range(int(np.bincount(places).max())):
            sources = np.full(shape[axis], len(places))
            for place in np.unique(places):
                at = np.flatnonzero(places == place)
                sources[place] = at[copy] if copy < len(at) else len(places)
            part = p.ops.apply_local(_build_axis_gather(sources, axis), padded, shape)
            total = part if total is None else p.ops.add(total, part)
        return [total]


def _build_axis_gather(places: Array, axis: int) -> Callable[[Shared], Shared]:
    return lambda v: shapes.gather(v, places, axis)


class Repeat(L.Kind):
    """Each value repeated along each axis, copies adjacent."""

    op = "repeat"
    is_local = True
    keras_layers = ("RepeatVector", "UpSampling1D", "UpSampling2D", "UpSampling3D")

    @L.accept_channels_first
    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        layer, inputs = call.layer, call.inputs
        if call.class_name == "RepeatVector":
            row = L.add_reshape_layer(r, inputs[0], f"{call.name}/row", (1, call.shape[1]))
            return r.add_layer(call.name, self.op, [row], None, times=[int(layer.n), 1])
        if getattr(layer, "interpolation", "nearest") != "nearest":
            return resize.add_resize_layer(r, call, str(layer.interpolation))
        size = layer.size if isinstance(layer.size, (list, tuple)) else [layer.size]
        return r.add_layer(call.name, self.op, inputs, None, times=[*(int(n) for n in size), 1])

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = L.check_single_input(input_shapes, weights)
        L.check_options(options, "times")
        times = options["times"]
        fits = isinstance(times, (list, tuple)) and len(times) == len(x)
        fits = fits and all(L.is_whole(n) for n in times) and math.prod(times) <= _MOST_REPEATS
        L.check_value(
            fits,
            f"numbers of repetitions of {len(x)} axes, {_MOST_REPEATS} times in all at most",
            times,
        )
        return tuple(n * k for n, k in zip(x, times, strict=True))

    def find_position_axis(
        self, x: L.LayerSpec, input_shapes: Sequence[Shape], axes: Sequence[int]
    ) -> int:
        if x.options["times"][axes[0] - 1] != 1:
            raise L.NotPositionwise("repeats positions")
        return axes[0]

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        (v,) = values
        for axis, k in enumerate(x.options["times"], 1):
            v = np.repeat(v, k, axis)
        return v

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        (x,) = values
        shape = list(p.ops.get_shape(x))
        for axis, k in enumerate(node.layer.options["times"], 1):
            if k > 1:
                places = np.repeat(np.arange(shape[axis]), k)
                shape[axis] *= k
                x = p.ops.apply_local(_build_axis_gather(places, axis), x, tuple(shape))
        return x

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        """Sum the gradients of all copies of each element."""
        input_shape, times = node.input_shapes[0], node.layer.options["times"]
        split_shape = [part for pair in zip(input_shape, times, strict=True) for part in pair]
        g = L.reshape_value(p.ops, g, p.add_batch_axis(tuple(split_shape), g))
        return [L.sum_axes(p.ops, g, [*range(2, 2 * len(input_shape) + 1, 2)])]
