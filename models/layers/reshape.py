"""Flatten and Reshape: the same elements in the same order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.protocols.session.sharing import Shared


class Reshape(L.Kind):
    """x in another shape."""

    op = "reshape"
    is_local = True
    keras_layers = ("Reshape",)
    is_reshape = True

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        return r.add_layer(
            call.name, self.op, call.inputs, None, shape=[int(n) for n in call.shape]
        )

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = L.check_single_input(input_shapes, weights)
        L.check_options(options, "shape")
        new = options["shape"]
        fits = isinstance(new, (list, tuple)) and len(new) > 0 and all(L.is_whole(n) for n in new)
        L.check_value(
            fits and math.prod(new) == math.prod(x), f"a shape of {math.prod(x)} elements", new
        )
        return tuple(new)

    def find_position_axis(
        self, x: L.LayerSpec, input_shapes: Sequence[Shape], axes: Sequence[int]
    ) -> int:
        """Return the axis of the new shape with as many elements before and after it."""
        (old,), (axis,), new = (
            input_shapes,
            axes,
            self.infer_shape(list(input_shapes), x.options, {}),
        )
        before, count = math.prod(old[: axis - 1]), old[axis - 1]
        for axis_number, n in enumerate(new, 1):
            if n == count and math.prod(new[: axis_number - 1]) == before:
                return axis_number
        raise L.NotPositionwise("puts several positions into one axis")

    def resize_positions(self, x: L.LayerSpec, axis: int, count: int) -> L.LayerSpec:
        shape = list(x.options["shape"])
        shape[axis - 1] = count
        return replace(x, options={"shape": shape})

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return values[0].reshape(len(values[0]), *x.options["shape"])

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        return L.reshape_value(p.ops, values[0], p.add_batch_axis(node.shape, values[0]))

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        return [L.reshape_value(p.ops, g, p.add_batch_axis(node.input_shapes[0], g))]


class Flatten(Reshape):
    """x as one axis."""

    op = "flatten"
    keras_layers = ("Flatten",)

    @L.accept_channels_first
    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        return r.add_layer(call.name, self.op, call.inputs)

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_options(options)
        return (math.prod(L.check_single_input(input_shapes, weights)),)

    def resize_positions(self, x: L.LayerSpec, axis: int, count: int) -> L.LayerSpec:
        return x

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return values[0].reshape(len(values[0]), -1)
