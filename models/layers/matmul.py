"""Products of two private matrices, and Dot, which is made of them."""

from __future__ import annotations

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds.checks import held, need, only
from tfe_bench.models.kinds.kind import Kind, Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Gradients, Pass
from tfe_bench.models.kinds.planning import PRODUCT_BITS, Planner
from tfe_bench.models.kinds.reading import Call, Reader, axis_of
from tfe_bench.models.kinds.turning import reshaped, turned
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.ring.products import Product, matrix_product
from tfe_bench.protocols.session.sharing import Shared

_MOST_DROPPED = 48


class MatMul(Kind):
    """[..., m, k] times [..., k, n], of two values of one rank."""

    op = "matmul"
    keras = ("Dot",)

    def read(self, r: Reader, call: Call) -> str:
        """A Dot contracts an axis of each; what is left of the first comes before the second's."""
        axes, name, matrices = call.layer.axes, call.name, []
        several = axes if isinstance(axes, (list, tuple)) else [axes, axes]
        for i, (given, shape, own) in enumerate(
            zip(call.inputs, call.shapes, several, strict=True)
        ):
            rank, axis = len(shape), axis_of(own, len(shape) + 1)
            if call.layer.normalize:
                options = {"axes": [axis], "by": "sum", "epsilon": 0.0}
                unit = r.unique(f"{name}/unit{i}")
                given = r.emit(unit, "normalize", [given], None, **options)
            rest = [a for a in range(1, rank + 1) if a != axis]
            order = [axis, *rest] if i else [*rest, axis]
            if order != sorted(order):
                given = turned(r, given, f"{name}/turned{i}", order)
            depth = shape[axis - 1]
            count = int(np.prod([shape[a - 1] for a in rest], dtype=np.int64))
            matrix = (depth, count) if i else (count, depth)
            matrices.append(reshaped(r, given, f"{name}/matrix{i}", matrix))
        product = r.emit(r.unique(f"{name}/product"), self.op, matrices)
        return r.emit(name, "reshape", [product], None, shape=list(call.shape))

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        held(weights)
        only(options)
        need(len(given) == 2, "two inputs", len(given))
        x, y = given
        fits = len(x) == len(y) >= 2 and x[:-2] == y[:-2] and x[-1] == y[-2]
        need(fits, "[..., m, k] and [..., k, n]", [list(x), list(y)])
        return (*x[:-1], y[-1])

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return np.asarray(values[0] @ values[1])

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        product = sum(planner.of(i) for i in x.inputs)
        m = max(planner.magnitude(x.name), 0)
        if product + m > PRODUCT_BITS:
            planner.lost(x, f"multiplies to up to {2.0**m:g}")
        return Numbers(planner.most(x)[0], product)

    def check(self, node: Node) -> None:
        if not 0 <= sum(node.scales) - node.numbers.fraction <= _MOST_DROPPED:
            raise UsageError("has other fractional bits than its product can be given.")

    def limit(self, node: Node, given: list[int]) -> int | None:
        return (self._sum(node, given) >> (sum(node.scales) - node.numbers.fraction)) + 1

    def watchable(self, node: Node, given: list[int] | None) -> bool:
        return given is None or self._sum(node, given) < 1 << 62

    def _sum(self, node: Node, given: list[int]) -> int:
        return node.given[0][-1] * given[0] * given[1]

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        x, y = values
        z = p.ops.product([Product(x, y, matrix_product)])
        drop = z.fractional_bits - node.numbers.fraction
        return p.ops.truncate(z, drop) if drop else z

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        p.kept[node.output] = values
        x, y = values
        return p.dropped(p.ops.product([Product(x, y, matrix_product)]))

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """g y^T and x^T g."""
        x, y = (_transposed(p, v) for v in p.kept[node.output])
        g = p.settled(g)
        return [
            p.ops.product([Product(g, y, matrix_product)]),
            p.ops.product([Product(x, g, matrix_product)]),
        ]


def _transposed(p: Pass, x: Shared) -> Shared:
    shape = p.ops.shape(x)
    rank = len(shape)
    order = [*range(rank - 2), rank - 1, rank - 2]
    turned_shape = tuple(shape[i] for i in order)
    return p.ops.map(lambda v: shapes.transpose(v, order), x, turned_shape)
