"""Products of two private matrices, and Dot, which consists of them."""

from __future__ import annotations

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.ring.products import BilinearShareProduct, sum_matrix_products
from tfe_bench.protocols.session.sharing import Shared

_MOST_DROPPED = 48


class MatMul(L.Kind):
    """[..., m, k] times [..., k, n], of two values of one rank."""

    op = "matmul"
    keras_layers = ("Dot",)

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        """Convert a Dot, which contracts an axis of each input; the first's other axes lead."""
        axes, name, matrices = call.layer.axes, call.name, []
        both_axes = axes if isinstance(axes, (list, tuple)) else [axes, axes]
        for i, (input_name, shape, axis_of_input) in enumerate(
            zip(call.inputs, call.shapes, both_axes, strict=True)
        ):
            rank, axis = len(shape), L.canonicalize_axis(axis_of_input, len(shape) + 1)
            if call.layer.normalize:
                options = {"axes": [axis], "by": "sum", "epsilon": 0.0}
                unit = r.make_unique(f"{name}/unit{i}")
                input_name = r.add_layer(unit, "normalize", [input_name], None, **options)
            other_axes = [a for a in range(1, rank + 1) if a != axis]
            order = [axis, *other_axes] if i else [*other_axes, axis]
            if order != sorted(order):
                input_name = L.add_transpose_layer(r, input_name, f"{name}/turned{i}", order)
            depth = shape[axis - 1]
            count = int(np.prod([shape[a - 1] for a in other_axes], dtype=np.int64))
            matrix = (depth, count) if i else (count, depth)
            matrices.append(L.add_reshape_layer(r, input_name, f"{name}/matrix{i}", matrix))
        product = r.add_layer(r.make_unique(f"{name}/product"), self.op, matrices)
        return r.add_layer(name, "reshape", [product], None, shape=list(call.shape))

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_weights(weights)
        L.check_options(options)
        L.check_value(len(input_shapes) == 2, "two inputs", len(input_shapes))
        x, y = input_shapes
        fits = len(x) == len(y) >= 2 and x[:-2] == y[:-2] and x[-1] == y[-2]
        L.check_value(fits, "[..., m, k] and [..., k, n]", [list(x), list(y)])
        return (*x[:-1], y[-1])

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return np.asarray(values[0] @ values[1])

    def plan_format(self, planner: L.LayerFormatPlanner, x: L.LayerSpec) -> L.FixedPointFormat:
        product = sum(planner.get_fractional_bits(i) for i in x.inputs)
        m = max(planner.get_magnitude(x.name), 0)
        if product + m > L.PRODUCT_BITS:
            planner.report_unfit(x, f"multiplies to up to {2.0**m:g}")
        return L.FixedPointFormat(planner.get_input_format(x)[0], product)

    def check_format(self, node: L.PlacedLayer) -> None:
        if not 0 <= sum(node.input_scales) - node.numbers.fraction <= _MOST_DROPPED:
            raise UsageError(
                "has fractional bits that its product cannot have.",
                code="invalid-fixed-point-format",
            )

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        return (
            self._bound_products(node, input_limits)
            >> (sum(node.input_scales) - node.numbers.fraction)
        ) + 1

    def can_check_range(self, node: L.PlacedLayer, input_limits: list[int] | None) -> bool:
        return input_limits is None or self._bound_products(node, input_limits) < 1 << 62

    def _bound_products(self, node: L.PlacedLayer, input_limits: list[int]) -> int:
        return node.input_shapes[0][-1] * input_limits[0] * input_limits[1]

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        x, y = values
        z = p.ops.sum_products([BilinearShareProduct(x, y, sum_matrix_products)])
        drop = z.fractional_bits - node.numbers.fraction
        return p.ops.truncate(z, drop) if drop else z

    def forward_training(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        p.saved[node.output] = values
        x, y = values
        return p.rescale_activation(
            p.ops.sum_products([BilinearShareProduct(x, y, sum_matrix_products)])
        )

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        """Return g y^T and x^T g."""
        x, y = (_transpose_matrices(p, v) for v in p.saved[node.output])
        g = p.rescale_gradient(g)
        return [
            p.ops.sum_products([BilinearShareProduct(g, y, sum_matrix_products)]),
            p.ops.sum_products([BilinearShareProduct(x, g, sum_matrix_products)]),
        ]


def _transpose_matrices(p: L.ForwardContext, x: Shared) -> Shared:
    shape = p.ops.get_shape(x)
    rank = len(shape)
    order = [*range(rank - 2), rank - 1, rank - 2]
    turned_shape = tuple(shape[i] for i in order)
    return p.ops.apply_local(lambda v: shapes.transpose(v, order), x, turned_shape)
