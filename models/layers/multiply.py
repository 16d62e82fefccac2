"""Multiply: the elementwise product of two or more private values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.add import BroadcastKind
from tfe_bench.models.layers.base import Array
from tfe_bench.protocols.session.sharing import Shared

# Bound on products that are truncated.
_MOST_PRODUCT = 1 << 62


class Multiply(BroadcastKind):
    """The product of several values, broadcast."""

    op = "multiply"
    keras_layers = ("Multiply",)

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        result = values[0]
        for value in values[1:]:
            result = result * value
        return np.asarray(result)

    def plan_format(self, planner: L.LayerFormatPlanner, x: L.LayerSpec) -> L.FixedPointFormat:
        # (products have two factors, see optimize)
        product = sum(planner.get_fractional_bits(i) for i in x.inputs)
        total = sum(max(planner.get_magnitude(i), 0) for i in x.inputs)
        if product + total > L.PRODUCT_BITS:
            planner.report_unfit(x, f"multiplies to up to {2.0**total:g}")
        return L.FixedPointFormat(planner.get_input_format(x)[0], product)

    def check_format(self, node: L.PlacedLayer) -> None:
        """Accept any scale."""

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        return self._bound_products(node, input_limits)[0]

    def can_check_range(self, node: L.PlacedLayer, input_limits: list[int] | None) -> bool:
        return input_limits is None or self._bound_products(node, input_limits)[1] < _MOST_PRODUCT

    def _bound_products(self, node: L.PlacedLayer, input_limits: list[int]) -> tuple[int, int]:
        """Bound the product, and the products before truncation."""
        fraction, scale = node.numbers.fraction, node.input_scales[0]
        total, largest = input_limits[0], 0
        for input_scale, limit in zip(node.input_scales[1:], input_limits[1:], strict=True):
            largest = max(largest, total * limit)
            total = (total * limit >> max(0, scale + input_scale - fraction)) + 1
            scale = fraction
        return total, largest

    def _partial_products(
        self, p: L.ForwardContext, node: L.PlacedLayer, values: Sequence[Shared]
    ) -> list[Shared]:
        """Return the products of the first one, two, ... values."""
        partial_products = [values[0]]
        for value in values[1:]:
            product = p.ops.mul(partial_products[-1], value)
            drop = product.fractional_bits - node.numbers.fraction
            partial_products.append(p.ops.truncate(product, drop) if drop else product)
        return partial_products

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        return self._partial_products(p, node, values)[-1]

    def forward_training(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        products = self._partial_products(p, node, values)
        p.saved[node.output] = (values, products)
        return products[-1]

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        """Multiply the gradient by all other values, with saved products of earlier ones."""
        values, products = p.saved[node.output]
        gradients = []
        for value, before in zip(values[:0:-1], products[-2::-1], strict=True):
            g = p.rescale_gradient(g)
            gradients.append(L.sum_to_shape(p.ops, p.ops.mul(g, before), p.ops.get_shape(value)))
            g = p.ops.mul(g, value)
        return [L.sum_to_shape(p.ops, g, p.ops.get_shape(values[0])), *gradients[::-1]]
