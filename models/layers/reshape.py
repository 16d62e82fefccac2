"""Flatten and Reshape: the same elements in the same order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tfe_bench.models.layers.base.checks import (
    check_options,
    check_single_input,
    check_value,
    is_whole,
)
from tfe_bench.models.layers.base.kind import Kind, NotPositionwise, Observer
from tfe_bench.models.layers.base.layer import Array, LayerSpec, Options, PlacedLayer, Shape, Shapes
from tfe_bench.models.layers.base.layout import accept_channels_first
from tfe_bench.models.layers.base.passes import ForwardContext, Gradients, reshape_value
from tfe_bench.models.layers.base.reading import LayerCall, Reader
from tfe_bench.protocols.session.sharing import Shared


class Reshape(Kind):
    """x in another shape."""

    op = "reshape"
    is_local = True
    keras_layers = ("Reshape",)
    is_reshape = True

    def convert_layer(self, r: Reader, call: LayerCall) -> str:
        return r.add_layer(
            call.name, self.op, call.inputs, None, shape=[int(n) for n in call.shape]
        )

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = check_single_input(input_shapes, weights)
        check_options(options, "shape")
        new = options["shape"]
        fits = isinstance(new, (list, tuple)) and len(new) > 0 and all(is_whole(n) for n in new)
        check_value(
            fits and math.prod(new) == math.prod(x), f"a shape of {math.prod(x)} elements", new
        )
        return tuple(new)

    def find_position_axis(
        self, x: LayerSpec, input_shapes: Sequence[Shape], axes: Sequence[int]
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
        raise NotPositionwise("puts several positions into one axis")

    def resize_positions(self, x: LayerSpec, axis: int, count: int) -> LayerSpec:
        shape = list(x.options["shape"])
        shape[axis - 1] = count
        return replace(x, options={"shape": shape})

    def compute_plaintext(self, x: LayerSpec, values: list[Array], observe: Observer) -> Array:
        return values[0].reshape(len(values[0]), *x.options["shape"])

    def forward(self, p: ForwardContext, node: PlacedLayer, *values: Shared) -> Shared:
        return reshape_value(p.ops, values[0], p.add_batch_axis(node.shape, values[0]))

    def backward(
        self, p: ForwardContext, node: PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> Gradients:
        return [reshape_value(p.ops, g, p.add_batch_axis(node.input_shapes[0], g))]


class Flatten(Reshape):
    """x as one axis."""

    op = "flatten"
    keras_layers = ("Flatten",)

    @accept_channels_first
    def convert_layer(self, r: Reader, call: LayerCall) -> str:
        return r.add_layer(call.name, self.op, call.inputs)

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        check_options(options)
        return (math.prod(check_single_input(input_shapes, weights)),)

    def resize_positions(self, x: LayerSpec, axis: int, count: int) -> LayerSpec:
        return x

    def compute_plaintext(self, x: LayerSpec, values: list[Array], observe: Observer) -> Array:
        return values[0].reshape(len(values[0]), -1)
