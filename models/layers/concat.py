"""Concatenate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tfe_bench.models.kinds import checks, reading
from tfe_bench.models.kinds.checks import held, need
from tfe_bench.models.kinds.kind import Kind, Mixes, Watch, check_room, one_axis
from tfe_bench.models.kinds.layer import Array, Layer, Node, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Gradients, Pass
from tfe_bench.models.kinds.reading import Call, Reader
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.session.sharing import Shared


class Concat(Kind):
    """Values behind each other along an axis."""

    op = "concat"
    local = True
    keras = ("Concatenate",)

    def read(self, r: Reader, call: Call) -> str:
        axis = reading.axis_of(call.layer.axis, len(call.shape) + 1)
        return r.emit(call.name, self.op, call.inputs, None, axis=axis)

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        held(weights)
        need(len(given) > 0, "inputs", given)
        axis = checks.axis_of(options, len(given[0])) - 1
        alike = {(*s[:axis], *s[axis + 1 :]) for s in given}
        need(len(alike) == 1, "inputs that differ in that axis only", given)
        first = given[0]
        return (*first[:axis], sum(s[axis] for s in given), *first[axis + 1 :])

    def positions(self, x: Layer, given: Sequence[Shape], axes: Sequence[int]) -> int:
        if x.options["axis"] in axes:
            raise Mixes("puts positions behind each other")
        return one_axis(axes)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return np.concatenate(values, x.options["axis"])

    def check(self, node: Node) -> None:
        check_room(node)

    def limit(self, node: Node, given: list[int]) -> int | None:
        return max(node.moved(given))

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        return p.ops.concat(p.at_scale(values, node), node.layer.options["axis"])

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """Each input's part of g."""
        axis, start, found = node.layer.options["axis"], 0, []
        for own in node.given:
            shape = p.batched(own, g)
            found.append(p.ops.map(_part(axis, start, shape), g, shape))
            start += shape[axis]
        return found


def _part(axis: int, start: int, shape: Shape) -> Callable[[Shared], Shared]:
    """The map to one input's part."""
    begin = [start if i == axis else 0 for i in range(len(shape))]
    return lambda v: shapes.slice(v, begin, shape)
