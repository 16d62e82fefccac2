"""Softmax along one axis; a training takes it into its loss."""

from __future__ import annotations

import numpy as np

from tfe_bench.models.kinds import reading
from tfe_bench.models.kinds.checks import alone, axis_of
from tfe_bench.models.kinds.kind import Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Pass
from tfe_bench.models.kinds.reading import Call, Reader
from tfe_bench.models.layers.smooth import Bounded
from tfe_bench.protocols.nn import activations
from tfe_bench.protocols.session.sharing import Shared


class Softmax(Bounded):
    """e^x_i / sum_j e^x_j."""

    op = "softmax"
    pointwise = False
    keras = ("Softmax",)
    functions = ("softmax",)

    def read(self, r: Reader, call: Call) -> str:
        axis = reading.axis_of(call.layer.axis, r.rank)
        return r.emit(call.name, self.op, call.inputs, None, axis=axis)

    def function(self, name: str, rank: int) -> Options:
        return {"axis": rank - 1}

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = alone(given, weights)
        axis_of(options, len(x))
        return x

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        (v,), axis = values, x.options["axis"]
        e = np.exp(v - v.max(axis, keepdims=True))
        return np.asarray(e / e.sum(axis, keepdims=True))

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        f, bits, axis = node.numbers.fraction, node.numbers.bits, node.layer.options["axis"]
        x = p.ops.shifted(values[0], f)
        return p.ops.call(activations.softmax, x, axis, bits=bits, profile=p.ops.setting.profile)
