"""Softmax along one axis, which a training takes into its loss at the end, and its logarithm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfe_bench.models.kinds import reading
from tfe_bench.models.kinds.checks import alone, axis_of
from tfe_bench.models.kinds.kind import Mixes, Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Gradients, Pass, brought, summed
from tfe_bench.models.kinds.reading import Call, Reader
from tfe_bench.models.layers.smooth import Bounded, Smooth
from tfe_bench.protocols.nn import activations
from tfe_bench.protocols.session.sharing import Shared


class _AlongAxis(Smooth):
    """A function of all values along one axis."""

    pointwise = False

    def function(self, name: str, rank: int, given: Options) -> Options:
        return {"axis": reading.axis_of(given["axis"], rank)}

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = alone(given, weights)
        axis_of(options, len(x))
        return x

    def positions(self, x: Layer, given: Sequence[Shape], axes: Sequence[int]) -> int:
        if x.options["axis"] == axes[0]:
            raise Mixes("divides by a sum over positions")
        return axes[0]

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        bits, axis = node.numbers.bits, node.layer.options["axis"]
        x = brought(p.ops, values[0], node.numbers.fraction)
        profile = p.ops.setting.profile
        return p.ops.call(self.protocol, x, axis, bits=bits, profile=profile)


class Softmax(_AlongAxis, Bounded):
    """e^x_i / sum_j e^x_j."""

    op = "softmax"
    keras = ("Softmax",)
    functions = ("softmax",)
    protocol = staticmethod(activations.softmax)

    def read(self, r: Reader, call: Call) -> str:
        axis = reading.axis_of(call.layer.axis, r.rank)
        return r.emit(call.name, self.op, call.inputs, None, axis=axis)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        (v,), axis = values, x.options["axis"]
        e = np.exp(v - v.max(axis, keepdims=True))
        return np.asarray(e / e.sum(axis, keepdims=True))

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        p.kept[node.output] = y = self.forward(p, node, *values)
        return y

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """y (g - the sum of g y)."""
        ops, y, axis = p.ops, p.kept[node.output], node.layer.options["axis"]
        part = ops.mul(p.settled(g), y)
        every = p.settled(summed(ops, part, [axis], keepdims=True))
        return [ops.sub(part, ops.mul(y, every))]


class LogSoftmax(_AlongAxis):
    """x_i - log sum_j e^x_j."""

    op = "log_softmax"
    functions = ("log_softmax",)
    protocol = staticmethod(activations.log_softmax)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        (v,), axis = values, x.options["axis"]
        d = v - v.max(axis, keepdims=True)
        return np.asarray(d - np.log(np.exp(d).sum(axis, keepdims=True)))

    def limit(self, node: Node, given: list[int]) -> int | None:
        """Twice the largest, and the logarithm of the number of values."""
        classes = int(node.shape[node.layer.options["axis"] - 1])
        return 2 * node.moved(given)[0] + (classes.bit_length() << node.numbers.fraction) + 2

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        """Its backward pass wants the softmax, which it does not give on the way."""
        (x,), axis, bits = values, node.layer.options["axis"], node.numbers.bits
        if p.learning:
            profile = p.ops.setting.profile
            shares = p.ops.call(activations.softmax, x, axis, bits=bits, profile=profile)
            p.kept[node.output] = shares
        return self.forward(p, node, x)

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """g less the softmax times the sum of g."""
        ops, y, axis = p.ops, p.kept[node.output], node.layer.options["axis"]
        g = p.settled(g)
        part = ops.mul(y, summed(ops, g, [axis], keepdims=True))
        return [ops.sub(ops.shifted(g, part.fractional_bits), part)]
