"""Multiply: of two private values or more, elementwise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfe_bench.models.kinds.kind import Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers
from tfe_bench.models.kinds.passes import Gradients, Pass, spread
from tfe_bench.models.kinds.planning import PRODUCT_BITS, Planner
from tfe_bench.models.layers.add import Broadcast
from tfe_bench.protocols.session.sharing import Shared

# Of products that are truncated.
_MOST_PRODUCT = 1 << 62


class Multiply(Broadcast):
    """The product of several values, broadcast."""

    op = "multiply"
    keras = ("Multiply",)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        result = values[0]
        for value in values[1:]:
            result = result * value
        return np.asarray(result)

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        # (of two, see optimize.products_of_two)
        product = sum(planner.of(i) for i in x.inputs)
        total = sum(max(planner.magnitude(i), 0) for i in x.inputs)
        if product + total > PRODUCT_BITS:
            planner.lost(x, f"multiplies to up to {2.0**total:g}")
        return Numbers(planner.most(x)[0], product)

    def check(self, node: Node) -> None:
        """Any scale will do."""

    def limit(self, node: Node, given: list[int]) -> int | None:
        return self._products(node, given)[0]

    def watchable(self, node: Node, given: list[int] | None) -> bool:
        return given is None or self._products(node, given)[1] < _MOST_PRODUCT

    def _products(self, node: Node, given: list[int]) -> tuple[int, int]:
        """The limits of the product, and of the products before truncation."""
        fraction, scale = node.numbers.fraction, node.scales[0]
        total, largest = given[0], 0
        for own, limit in zip(node.scales[1:], given[1:], strict=True):
            largest = max(largest, total * limit)
            total = (total * limit >> max(0, scale + own - fraction)) + 1
            scale = fraction
        return total, largest

    def _partial(self, p: Pass, node: Node, values: Sequence[Shared]) -> list[Shared]:
        """The products of the first one, two, ... values."""
        found = [values[0]]
        for value in values[1:]:
            product = p.ops.mul(found[-1], value)
            drop = product.fractional_bits - node.numbers.fraction
            found.append(p.ops.truncate(product, drop) if drop else product)
        return found

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        return self._partial(p, node, values)[-1]

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        products = self._partial(p, node, values)
        p.kept[node.output] = (values, products)
        return products[-1]

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """For each, the gradient times all others: those before it are multiplied already."""
        values, products = p.kept[node.output]
        found = []
        for value, before in zip(values[:0:-1], products[-2::-1], strict=True):
            g = p.settled(g)
            found.append(spread(p.ops, p.ops.mul(g, before), p.ops.shape(value)))
            g = p.ops.mul(g, value)
        return [spread(p.ops, g, p.ops.shape(values[0])), *found[::-1]]
