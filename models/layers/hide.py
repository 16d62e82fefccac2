"""What a softmax is not to see: places of a value that a mask takes far below all others."""

from __future__ import annotations

import math

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds.checks import broadcast, held, need, only, real
from tfe_bench.models.kinds.kind import Kind, Watch, check_room
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Pass
from tfe_bench.models.kinds.planning import PRODUCT_BITS, Planner
from tfe_bench.protocols.session.sharing import Shared

# e^-32 of the largest term of a softmax is below 2^-46: less than any of its fractional bits.
GAP = 32.0


class Hide(Kind):
    """x - c (1 - m) of a value and a mask m of 0 and 1, in front of a softmax.

    Local.  c is the model's own number `least`, or less: what is twice the range of x and GAP
    below x changes no softmax with a place that is not hidden.  So the range stays small, whatever
    number the model has.  With `inverted` the mask is 1 where a place is hidden.
    """

    op = "hide"
    local = True
    pointwise = True

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        held(weights)
        need(len(given) == 2, "a value and a mask", len(given))
        only(options, "least", "inverted")
        least, inverted = options["least"], options["inverted"]
        need(real(least) and least > 0, "a positive number for least", least)
        need(isinstance(inverted, bool), "true or false for inverted", inverted)
        need(broadcast(given) == given[0], "a mask that broadcasts to its value", given)
        return given[0]

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        value, mask = values
        enough = 2 * float(np.abs(value).max(initial=0.0)) + GAP
        hidden = mask if x.options["inverted"] else 1 - mask
        return np.asarray(value - min(x.options["least"], enough) * hidden)

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        value, base = x.inputs[0], f"{x.inputs[0]}:seen"
        f, _ = planner.most(x)
        # (what is hidden already only gets further away)
        of = planner.bounds[base] if base in planner.bounds else planner.bounds[value]
        power = max(0, math.ceil(math.log2(2 * of + GAP)))
        planner.bounds[f"{x.name}:seen"] = of
        planner.bounds[x.name] = planner.bounds[value] + min(x.options["least"], 2.0**power)
        if f + 1 + planner.magnitude(x.name) > PRODUCT_BITS:
            planner.lost(x, f"hides values up to {of:g}")
        return Numbers(f, power)

    def check(self, node: Node) -> None:
        check_room(node)
        if node.numbers.fraction + node.numbers.scale > PRODUCT_BITS:
            raise UsageError(f"takes 2^{node.numbers.scale} from its value.")

    def _amount(self, node: Node) -> int:
        return math.ceil(min(float(node.layer.options["least"]), 2.0**node.numbers.scale))

    def limit(self, node: Node, given: list[int]) -> int | None:
        value, mask = node.moved(given)
        return value + self._amount(node) * max(mask, 1 << node.numbers.fraction)

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        value, mask = p.at_scale(values, node)
        taken, amount = p.ops.times(mask, self._amount(node)), self._amount(node)
        if node.layer.options["inverted"]:
            return p.ops.sub(value, taken)
        return p.ops.add_public(p.ops.add(value, taken), -amount << node.numbers.fraction)
