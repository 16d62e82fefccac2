"""Concatenate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.session.sharing import Shared


class Concat(L.Kind):
    """Concatenation of values along an axis."""

    op = "concat"
    is_local = True
    keras_layers = ("Concatenate",)

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        axis = L.canonicalize_axis(call.layer.axis, len(call.shape) + 1)
        return r.add_layer(call.name, self.op, call.inputs, None, axis=axis)

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_weights(weights)
        L.check_value(len(input_shapes) > 0, "inputs", input_shapes)
        axis = L.read_axis(options, len(input_shapes[0])) - 1
        other_sizes = {(*s[:axis], *s[axis + 1 :]) for s in input_shapes}
        L.check_value(len(other_sizes) == 1, "inputs that differ in that axis only", input_shapes)
        first = input_shapes[0]
        return (*first[:axis], sum(s[axis] for s in input_shapes), *first[axis + 1 :])

    def find_position_axis(
        self, x: L.LayerSpec, input_shapes: Sequence[Shape], axes: Sequence[int]
    ) -> int:
        if x.options["axis"] in axes:
            raise L.NotPositionwise("puts positions behind each other")
        return L.get_common_axis(axes)

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return np.concatenate(values, x.options["axis"])

    def check_format(self, node: L.PlacedLayer) -> None:
        L.check_fractional_bits(node)

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        return max(node.align_limits(input_limits))

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        return p.ops.concat(p.align_scales(values, node), node.layer.options["axis"])

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        """Slice g into each input's part."""
        axis, start, gradients = node.layer.options["axis"], 0, []
        for input_shape in node.input_shapes:
            shape = p.add_batch_axis(input_shape, g)
            gradients.append(
                p.ops.apply_local(_slice_concatenated_input(axis, start, shape), g, shape)
            )
            start += shape[axis]
        return gradients


def _slice_concatenated_input(axis: int, start: int, shape: Shape) -> Callable[[Shared], Shared]:
    """Return the map to one input's part."""
    begin = [start if i == axis else 0 for i in range(len(shape))]
    return lambda v: shapes.slice(v, begin, shape)
