"""Products of two private matrices, and Dot, which consists of them."""

from __future__ import annotations

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.layers.base.checks import check_options, check_value, check_weights
from tfe_bench.models.layers.base.kind import Kind, Observer
from tfe_bench.models.layers.base.layer import (
    Array,
    FixedPointFormat,
    LayerSpec,
    Options,
    PlacedLayer,
    Shape,
    Shapes,
)
from tfe_bench.models.layers.base.layout import add_reshape_layer, add_transpose_layer
from tfe_bench.models.layers.base.passes import ForwardContext, Gradients
from tfe_bench.models.layers.base.planning import PRODUCT_BITS, LayerFormatPlanner
from tfe_bench.models.layers.base.reading import LayerCall, Reader, canonicalize_axis
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.ring.products import BilinearShareProduct, sum_matrix_products
from tfe_bench.protocols.session.sharing import Shared

_MOST_DROPPED = 48


class MatMul(Kind):
    """[..., m, k] times [..., k, n], of two values of one rank."""

    op = "matmul"
    keras_layers = ("Dot",)

    def convert_layer(self, r: Reader, call: LayerCall) -> str:
        """Convert a Dot, which contracts an axis of each input; the first's other axes lead."""
        axes, name, matrices = call.layer.axes, call.name, []
        both_axes = axes if isinstance(axes, (list, tuple)) else [axes, axes]
        for i, (input_name, shape, axis_of_input) in enumerate(
            zip(call.inputs, call.shapes, both_axes, strict=True)
        ):
            rank, axis = len(shape), canonicalize_axis(axis_of_input, len(shape) + 1)
            if call.layer.normalize:
                options = {"axes": [axis], "by": "sum", "epsilon": 0.0}
                unit = r.make_unique(f"{name}/unit{i}")
                input_name = r.add_layer(unit, "normalize", [input_name], None, **options)
            other_axes = [a for a in range(1, rank + 1) if a != axis]
            order = [axis, *other_axes] if i else [*other_axes, axis]
            if order != sorted(order):
                input_name = add_transpose_layer(r, input_name, f"{name}/turned{i}", order)
            depth = shape[axis - 1]
            count = int(np.prod([shape[a - 1] for a in other_axes], dtype=np.int64))
            matrix = (depth, count) if i else (count, depth)
            matrices.append(add_reshape_layer(r, input_name, f"{name}/matrix{i}", matrix))
        product = r.add_layer(r.make_unique(f"{name}/product"), self.op, matrices)
        return r.add_layer(name, "reshape", [product], None, shape=list(call.shape))

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        check_weights(weights)
        check_options(options)
        check_value(len(input_shapes) == 2, "two inputs", len(input_shapes))
        x, y = input_shapes
        fits = len(x) == len(y) >= 2 and x[:-2] == y[:-2] and x[-1] == y[-2]
        check_value(fits, "[..., m, k] and [..., k, n]", [list(x), list(y)])
        return (*x[:-1], y[-1])

    def compute_plaintext(self, x: LayerSpec, values: list[Array], observe: Observer) -> Array:
        return np.asarray(values[0] @ values[1])

    def plan_format(self, planner: LayerFormatPlanner, x: LayerSpec) -> FixedPointFormat:
        product = sum(planner.get_fractional_bits(i) for i in x.inputs)
        m = max(planner.get_magnitude(x.name), 0)
        if product + m > PRODUCT_BITS:
            planner.report_unfit(x, f"multiplies to up to {2.0**m:g}")
        return FixedPointFormat(planner.get_input_format(x)[0], product)

    def check_format(self, node: PlacedLayer) -> None:
        if not 0 <= sum(node.input_scales) - node.numbers.fraction <= _MOST_DROPPED:
            raise UsageError(
                "has fractional bits that its product cannot have.",
                code="invalid-fixed-point-format",
            )

    def bound_output(self, node: PlacedLayer, input_limits: list[int]) -> int | None:
        return (
            self._bound_products(node, input_limits)
            >> (sum(node.input_scales) - node.numbers.fraction)
        ) + 1

    def can_check_range(self, node: PlacedLayer, input_limits: list[int] | None) -> bool:
        return input_limits is None or self._bound_products(node, input_limits) < 1 << 62

    def _bound_products(self, node: PlacedLayer, input_limits: list[int]) -> int:
        return node.input_shapes[0][-1] * input_limits[0] * input_limits[1]

    def forward(self, p: ForwardContext, node: PlacedLayer, *values: Shared) -> Shared:
        x, y = values
        z = p.ops.sum_products([BilinearShareProduct(x, y, sum_matrix_products)])
        drop = z.fractional_bits - node.numbers.fraction
        return p.ops.truncate(z, drop) if drop else z

    def forward_training(self, p: ForwardContext, node: PlacedLayer, *values: Shared) -> Shared:
        p.saved[node.output] = values
        x, y = values
        return p.rescale_activation(
            p.ops.sum_products([BilinearShareProduct(x, y, sum_matrix_products)])
        )

    def backward(
        self, p: ForwardContext, node: PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> Gradients:
        """Return g y^T and x^T g."""
        x, y = (_transpose_matrices(p, v) for v in p.saved[node.output])
        g = p.rescale_gradient(g)
        return [
            p.ops.sum_products([BilinearShareProduct(g, y, sum_matrix_products)]),
            p.ops.sum_products([BilinearShareProduct(x, g, sum_matrix_products)]),
        ]


def _transpose_matrices(p: ForwardContext, x: Shared) -> Shared:
    shape = p.ops.get_shape(x)
    rank = len(shape)
    order = [*range(rank - 2), rank - 1, rank - 2]
    turned_shape = tuple(shape[i] for i in order)
    return p.ops.apply_local(lambda v: shapes.transpose(v, order), x, turned_shape)
