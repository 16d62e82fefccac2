"""ZeroPadding2D."""

from __future__ import annotations

import numpy as np

from tfe_bench.models.kinds.checks import alone, image, need, only, pads
from tfe_bench.models.kinds.kind import Kind, Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Gradients, Pass
from tfe_bench.models.kinds.reading import Call, Reader, channels_last
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.session.sharing import Shared


def _pairs(x: Layer) -> list[tuple[int, int]]:
    """What is put before and behind each axis."""
    return [(0, 0), *((int(a), int(b)) for a, b in x.options["pads"]), (0, 0)]


class ZeroPad2D(Kind):
    """Zeros around images."""

    op = "zero_pad2d"
    keras = ("ZeroPadding2D",)

    def read(self, r: Reader, call: Call) -> str:
        channels_last(call.layer)
        sides = [[int(n) for n in side] for side in call.layer.padding]
        return r.emit(call.name, self.op, call.inputs, None, pads=sides)

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = alone(given, weights)
        image(x)
        only(options, "pads")
        need(pads(options["pads"]), "pads ((top, bottom), (left, right))", options["pads"])
        (top, bottom), (left, right) = options["pads"]
        return x[0] + top + bottom, x[1] + left + right, x[2]

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return np.pad(values[0], _pairs(x))

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        pairs, shape = _pairs(node.layer), p.batched(node.shape, values[0])
        return p.ops.map(lambda v: shapes.pad(v, pairs), values[0], shape)

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """The part that is not padding."""
        begin = [before for before, _ in _pairs(node.layer)]
        shape = p.batched(node.given[0], g)
        return [p.ops.map(lambda v: shapes.slice(v, begin, shape), g, shape)]
