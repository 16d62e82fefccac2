"""Add and Subtract, what is made of them, and what is added that is public."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tfe_bench.models.kinds.checks import alone, broadcast, held, need, only, real
from tfe_bench.models.kinds.kind import Kind, Watch, check_room
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Gradients, Pass, spread
from tfe_bench.models.kinds.planning import Planner
from tfe_bench.models.kinds.reading import Call, Reader
from tfe_bench.models.kinds.turning import reshaped
from tfe_bench.protocols.session.sharing import Shared


class Broadcast(Kind):
    """Something of several values, broadcast, without options and weights.

    Attributes:
        most: how many.
    """

    most: ClassVar[int] = 64
    pointwise = True

    def read(self, r: Reader, call: Call) -> str:
        return r.emit(call.name, self.op, of_one_rank(r, call))

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        held(weights)
        need(2 <= len(given) <= self.most, f"2 to {self.most} inputs", len(given))
        only(options)
        return broadcast(given)


def of_one_rank(r: Reader, call: Call) -> list[str]:
    """The inputs of a call, those of fewer axes with axes of 1 before them, as Keras has it."""
    rank = max(map(len, call.shapes))
    found = []
    for i, (given, shape) in enumerate(zip(call.inputs, call.shapes, strict=True)):
        more = (1,) * (rank - len(shape))
        name = f"{call.name}/input{i}"
        found.append(reshaped(r, given, name, (*more, *shape)) if more else given)
    return found


class Add(Broadcast):
    """The sum of several values, broadcast."""

    op = "add"
    local = True
    keras: ClassVar[tuple[str, ...]] = ("Add", "Average")

    def read(self, r: Reader, call: Call) -> str:
        if call.kind != "Average":
            return super().read(r, call)
        total = r.emit(r.unique(f"{call.name}/sum"), self.op, of_one_rank(r, call))
        share = {"scale": 1 / len(call.inputs), "offset": 0.0}
        return r.emit(call.name, "rescale", [total], None, **share)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return np.asarray(sum(values))

    def check(self, node: Node) -> None:
        check_room(node)

    def limit(self, node: Node, given: list[int]) -> int | None:
        return sum(node.moved(given))

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        total, *others = p.at_scale(values, node)
        for x in others:
            total = p.ops.add(total, x)
        return total

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """g for each."""
        return [spread(p.ops, g, p.batched(shape, g)) for shape in node.given]


class Subtract(Add):
    """The difference of two values, broadcast."""

    op = "subtract"
    keras = ("Subtract", "Maximum", "Minimum")
    most = 2

    def read(self, r: Reader, call: Call) -> str:
        """max(x, y) = y + relu(x - y), min(x, y) = y - relu(y - x); of more, those of pairs."""
        if call.kind == "Subtract":
            return r.emit(call.name, self.op, of_one_rank(r, call))
        left, number = of_one_rank(r, call), 0
        while len(left) > 1:
            pairs = list(zip(left[::2], left[1::2], strict=False))
            found = []
            for x, y in pairs:
                last = len(left) == 2
                name = call.name if last else r.unique(f"{call.name}/pair{number}")
                number += 1
                larger = call.kind == "Maximum"
                apart = r.emit(r.unique(f"{name}/apart"), self.op, [x, y] if larger else [y, x])
                bent = r.emit(r.unique(f"{name}/relu"), "relu", [apart], None, max_value=None)
                found.append(r.emit(name, "add" if larger else self.op, [y, bent]))
            left = [*found, *left[2 * len(pairs) :]]
        return left[0]

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return np.asarray(values[0] - values[1])

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        return p.ops.sub(*p.at_scale(values, node))

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """g, and -g."""
        both = zip((g, p.ops.neg(g)), node.given, strict=True)
        return [spread(p.ops, part, p.batched(shape, g)) for part, shape in both]


class Shift(Kind):
    """x or -x, and a public number.  Local."""

    op = "shift"
    pointwise = True

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        only(options, "sign", "offset")
        need(options["sign"] in (1, -1), "a sign 1 or -1", options["sign"])
        need(real(options["offset"]), "a number", options["offset"])
        return alone(given, weights)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return np.asarray(x.options["sign"] * values[0] + x.options["offset"])

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        f, _ = planner.most(x)
        planner.check_added(x, abs(x.options["offset"]))
        return Numbers(max(f, planner.fraction))  # a number has bits that its input may lack

    def check(self, node: Node) -> None:
        check_room(node)

    def _ring(self, node: Node) -> int:
        offset = float(node.layer.options["offset"])
        return round(offset * (1 << node.numbers.fraction))

    def limit(self, node: Node, given: list[int]) -> int | None:
        return node.moved(given)[0] + abs(self._ring(node))

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        (x,) = p.at_scale(values, node)
        x = x if node.layer.options["sign"] > 0 else p.ops.neg(x)
        return p.ops.add_public(x, self._ring(node))
