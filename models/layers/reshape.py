"""Flatten and Reshape, and the identity: the same elements in the same order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tfe_bench.models.kinds.checks import alone, need, only, whole
from tfe_bench.models.kinds.kind import Kind, Mixes, Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Gradients, Pass, reshaped
from tfe_bench.models.kinds.reading import Call, Reader
from tfe_bench.models.kinds.turning import channels_last
from tfe_bench.protocols.session.sharing import Shared


class Reshape(Kind):
    """x in another shape."""

    op = "reshape"
    local = True
    keras = ("Reshape",)
    moves = True

    def read(self, r: Reader, call: Call) -> str:
        return r.emit(call.name, self.op, call.inputs, None, shape=[int(n) for n in call.shape])

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = alone(given, weights)
        only(options, "shape")
        new = options["shape"]
        fits = isinstance(new, (list, tuple)) and len(new) > 0 and all(whole(n) for n in new)
        need(fits and math.prod(new) == math.prod(x), f"a shape of {math.prod(x)} elements", new)
        return tuple(new)

    def positions(self, x: Layer, given: Sequence[Shape], axes: Sequence[int]) -> int:
        """The axis before and behind which as many elements lie."""
        (old,), (axis,), new = given, axes, self.shape(list(given), x.options, {})
        before, count = math.prod(old[: axis - 1]), old[axis - 1]
        for own, n in enumerate(new, 1):
            if n == count and math.prod(new[: own - 1]) == before:
                return own
        raise Mixes("puts several positions into one axis")

    def resized(self, x: Layer, axis: int, count: int) -> Layer:
        shape = list(x.options["shape"])
        shape[axis - 1] = count
        return replace(x, options={"shape": shape})

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return values[0].reshape(len(values[0]), *x.options["shape"])

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        return reshaped(p.ops, values[0], p.batched(node.shape, values[0]))

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        return [reshaped(p.ops, g, p.batched(node.given[0], g))]


class Flatten(Reshape):
    """x as one axis."""

    op = "flatten"
    keras = ("Flatten",)

    @channels_last
    def read(self, r: Reader, call: Call) -> str:
        return r.emit(call.name, self.op, call.inputs)

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        only(options)
        return (math.prod(alone(given, weights)),)

    def resized(self, x: Layer, axis: int, count: int) -> Layer:
        return x

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return values[0].reshape(len(values[0]), -1)
