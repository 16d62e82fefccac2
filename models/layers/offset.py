"""Private numbers that are added, one for each element: a table of positions, say."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds.checks import held, need, only
from tfe_bench.models.kinds.kind import Kind, Watch, check_room
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Pass
from tfe_bench.models.kinds.planning import PRODUCT_BITS, Planner
from tfe_bench.protocols.session.sharing import Shared


class Offset(Kind):
    """x + bias, of x's shape.  Local."""

    op = "offset"
    pointwise = True
    placed = True

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        only(options)
        held(weights, "bias")
        need(len(given) == 1 and weights["bias"] == given[0], "a bias of its input's shape", given)
        return given[0]

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return values[0] + np.asarray(x.weights["bias"], np.float64)

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        f, _ = planner.most(x)
        f = max(f, planner.fraction)  # a number has bits that its input may lack
        largest = float(np.abs(x.weights["bias"]).max(initial=0.0))
        planner.check_added(x, largest)
        bits = f + max(math.ceil(math.log2(largest + 2.0**-f)), 1 - f)
        if max(bits, f + planner.magnitude(x.name)) > PRODUCT_BITS:
            planner.lost(x, f"adds numbers up to {largest:g}")
        return Numbers(f, f, min(bits, PRODUCT_BITS))

    def check(self, node: Node) -> None:
        check_room(node)
        if node.numbers.scale != node.numbers.fraction:
            raise UsageError("adds numbers of another scale than its own.")

    def limit(self, node: Node, given: list[int]) -> int | None:
        """The numbers are the model owner's, who says how large they may be."""
        return node.moved(given)[0] + (1 << node.numbers.bits)

    def watchable(self, node: Node, given: list[int] | None) -> bool:
        return True

    def reads(self, node: Node, given: int) -> int:
        return node.wide

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        (x,) = p.at_scale(values, node)
        x = replace(x, bits=0)  # (as many bits as are read are right)
        return p.ops.add(x, p.weight(node.layer, "bias"))
