"""Add and Subtract, layers composed of them, and additions of public numbers."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.protocols.session.sharing import Shared


class BroadcastKind(L.Kind):
    """A function of several broadcast values, without options and weights.

    Attributes:
        max_inputs: the largest number of inputs.
    """

    max_inputs: ClassVar[int] = 64
    is_pointwise = True

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        return r.add_layer(call.name, self.op, align_broadcast_ranks(r, call))

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_weights(weights)
        L.check_value(
            2 <= len(input_shapes) <= self.max_inputs,
            f"2 to {self.max_inputs} inputs",
            len(input_shapes),
        )
        L.check_options(options)
        return L.broadcast_shapes(input_shapes)


def align_broadcast_ranks(r: L.Reader, call: L.LayerCall) -> list[str]:
    """Align the ranks of a call's inputs: add leading axes of 1, as Keras does."""
    rank = max(map(len, call.shapes))
    aligned = []
    for i, (input_name, shape) in enumerate(zip(call.inputs, call.shapes, strict=True)):
        leading_ones = (1,) * (rank - len(shape))
        name = f"{call.name}/input{i}"
        aligned.append(
            L.add_reshape_layer(r, input_name, name, (*leading_ones, *shape))
            if leading_ones
            else input_name
        )
    return aligned


class Add(BroadcastKind):
    """The sum of several values, broadcast."""

    op = "add"
    is_local = True
    keras_layers: ClassVar[tuple[str, ...]] = ("Add", "Average")

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        if call.class_name != "Average":
            return super().convert_layer(r, call)
        total = r.add_layer(
            r.make_unique(f"{call.name}/sum"), self.op, align_broadcast_ranks(r, call)
        )
        share = {"scale": 1 / len(call.inputs), "offset": 0.0}
        return r.add_layer(call.name, "rescale", [total], None, **share)

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return np.asarray(sum(values))

    def check_format(self, node: L.PlacedLayer) -> None:
        L.check_fractional_bits(node)

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        return sum(node.align_limits(input_limits))

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        total, *others = p.align_scales(values, node)
        for x in others:
            total = p.ops.add(total, x)
        return total

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        """Pass g to each input."""
        return [L.sum_to_shape(p.ops, g, p.add_batch_axis(shape, g)) for shape in node.input_shapes]


class Subtract(Add):
    """The difference of two values, broadcast."""

    op = "subtract"
    keras_layers = ("Subtract", "Maximum", "Minimum")
    max_inputs = 2

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        """Convert a difference, or a maximum or minimum of pairs.

        max(x, y) = y + relu(x - y), min(x, y) = y - relu(y - x).
        """
        if call.class_name == "Subtract":
            return r.add_layer(call.name, self.op, align_broadcast_ranks(r, call))
        remaining, number = align_broadcast_ranks(r, call), 0
        while len(remaining) > 1:
            pairs = list(zip(remaining[::2], remaining[1::2], strict=False))
            results = []
            for x, y in pairs:
                last = len(remaining) == 2
                name = call.name if last else r.make_unique(f"{call.name}/pair{number}")
                number += 1
                larger = call.class_name == "Maximum"
                difference = r.add_layer(
                    r.make_unique(f"{name}/apart"), self.op, [x, y] if larger else [y, x]
                )
                rectified = r.add_layer(
                    r.make_unique(f"{name}/relu"), "relu", [difference], None, max_value=None
                )
                results.append(r.add_layer(name, "add" if larger else self.op, [y, rectified]))
            remaining = [*results, *remaining[2 * len(pairs) :]]
        return remaining[0]

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return np.asarray(values[0] - values[1])

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        return p.ops.sub(*p.align_scales(values, node))

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        """Pass g to the first input, and -g to the second."""
        both = zip((g, p.ops.neg(g)), node.input_shapes, strict=True)
        return [L.sum_to_shape(p.ops, part, p.add_batch_axis(shape, g)) for part, shape in both]


class PublicShift(L.Kind):
    """x or -x, plus a public number. Local."""

    op = "shift"
    is_pointwise = True

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_options(options, "sign", "offset")
        L.check_value(options["sign"] in (1, -1), "a sign 1 or -1", options["sign"])
        L.check_value(L.is_real(options["offset"]), "a number", options["offset"])
        return L.check_single_input(input_shapes, weights)

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return np.asarray(x.options["sign"] * values[0] + x.options["offset"])

    def plan_format(self, planner: L.LayerFormatPlanner, x: L.LayerSpec) -> L.FixedPointFormat:
        f, _ = planner.get_input_format(x)
        planner.check_added(x, abs(x.options["offset"]))
        return L.FixedPointFormat(
            max(f, planner.fraction)
        )  # a constant may need bits that its input lacks

    def check_format(self, node: L.PlacedLayer) -> None:
        L.check_fractional_bits(node)

    def _offset_in_ring(self, node: L.PlacedLayer) -> int:
        offset = float(node.layer.options["offset"])
        return round(offset * (1 << node.numbers.fraction))

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        return node.align_limits(input_limits)[0] + abs(self._offset_in_ring(node))

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        (x,) = p.align_scales(values, node)
        x = x if node.layer.options["sign"] > 0 else p.ops.neg(x)
        return p.ops.add_public(x, self._offset_in_ring(node))
