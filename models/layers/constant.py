"""Weights that are added, or stand beside other values: position embeddings, a class token."""

from __future__ import annotations

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds.checks import held, need, only
from tfe_bench.models.kinds.kind import Kind, Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Pass
from tfe_bench.models.kinds.planning import MOST_COMPARED, Planner
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.session.sharing import Shared


class Constant(Kind):
    """Weights, the same for each sample, whatever comes.  Local."""

    op = "constant"
    bounded = True

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        need(len(given) == 1, "one input", len(given))
        only(options)
        held(weights, "bias")
        need(len(weights["bias"]) > 0, "an axis besides the batch", weights["bias"])
        return weights["bias"]

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        own = np.asarray(x.weights["bias"], np.float64)
        return np.broadcast_to(own, (len(values[0]), *own.shape))

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        f, m = planner.finest(x.name), planner.magnitude(x.name)
        largest = float(np.abs(x.weights["bias"]).max(initial=0.0))
        if f + 1 + m > MOST_COMPARED or largest > planner.bounds[x.name]:
            planner.lost(x, f"reaches {max(largest, 2.0**m):g}")
        return Numbers(f, f, max(1, min(f + 1 + m, MOST_COMPARED)))

    def check(self, node: Node) -> None:
        numbers = node.numbers
        if numbers.scale != numbers.fraction or not 1 <= numbers.bits <= MOST_COMPARED:
            raise UsageError(f"is {numbers.scale} fractional bits of {numbers.bits}.")

    def limit(self, node: Node, given: list[int]) -> int | None:
        return 1 << node.numbers.bits  # (its owner's numbers, as planned)

    def compared(self, node: Node, given: list[int]) -> int:
        return node.numbers.bits

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        shape = p.batched(node.shape, values[0])
        own = p.weight(node.layer, "bias")
        return p.ops.map(lambda v: shapes.broadcast_to(v, shape), own, shape)
