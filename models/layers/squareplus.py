"""Squareplus."""

from __future__ import annotations

import numpy as np

from tfe_bench.models.kinds.checks import alone, need, only, real
from tfe_bench.models.kinds.kind import Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Pass, brought
from tfe_bench.models.kinds.planning import Planner
from tfe_bench.models.layers.smooth import Function, Sloped
from tfe_bench.protocols.functions import reciprocal
from tfe_bench.protocols.nn import squareplus
from tfe_bench.protocols.session.sharing import Shared


class Squareplus(Sloped):
    """(x + sqrt(x^2 + b)) / 2."""

    op = "squareplus"
    functions = ("squareplus",)
    fractions = (8, 16)

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        only(options, "b")
        b = options["b"]
        need(real(b) and 2.0**-8 <= b <= squareplus.LARGEST, "b from 2^-8 to 64", b)
        return alone(given, weights)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        (v,) = values
        return np.asarray((v + np.sqrt(v * v + x.options["b"])) / 2)

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        f, m = planner.most(x)
        f = min(max(f, self.fractions[0]), self.fractions[1])
        bits = planner.width(x, f, m)
        if bits > squareplus.most_bits(f):
            planner.lost(x, f"squares values up to {2.0**m:g}")
        return Numbers(f, 0, bits)

    def check(self, node: Node) -> None:
        Function.check(self, node)

    def limit(self, node: Node, given: list[int]) -> int | None:
        return node.moved(given)[0] + (8 << node.numbers.fraction)

    def compared(self, node: Node, given: list[int]) -> int:
        return node.moved(given)[0].bit_length() + 1

    def watchable(self, node: Node, given: list[int] | None) -> bool:
        most = squareplus.most_bits(node.numbers.fraction)
        return given is None or self.compared(node, given) <= most

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        x = brought(p.ops, values[0], node.numbers.fraction)
        return p.ops.call(squareplus.squareplus, x, node.layer.options["b"], node.numbers.bits)

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        """The slope is y over the root."""
        (x,), ops, bits = values, p.ops, node.numbers.bits
        y = self.forward(p, node, x)
        if p.learning:
            root, wide = ops.sub(ops.times(y, 2), x), bits + 1
            p.kept[node.output] = ops.call(reciprocal.divide, y, root, wide, numerator_bits=wide)
        return y
