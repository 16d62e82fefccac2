"""ZeroPadding of one, two or three axes."""

from __future__ import annotations

import numpy as np

from tfe_bench.models.kinds.checks import alone, need, only, pads
from tfe_bench.models.kinds.kind import Kind, Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Gradients, Pass
from tfe_bench.models.kinds.reading import Call, Reader
from tfe_bench.models.kinds.turning import channels_last, sides
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.session.sharing import Shared


def _pairs(x: Layer) -> list[tuple[int, int]]:
    """What is put before and behind each axis."""
    return [(0, 0), *((int(a), int(b)) for a, b in x.options["pads"]), (0, 0)]


class ZeroPad(Kind):
    """Zeros around rows, images or volumes."""

    op = "zero_pad"
    local = True
    keras = ("ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D")

    @channels_last
    def read(self, r: Reader, call: Call) -> str:
        pairs = sides(call.layer.padding)
        return r.emit(call.name, self.op, call.inputs, None, pads=pairs)

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = alone(given, weights)
        need(2 <= len(x) <= 4, "rows, images or volumes with channels", list(x))
        only(options, "pads")
        fits = pads(options["pads"], len(x) - 1)
        need(fits, "pads ((before, behind), ...) of each axis but the channels'", options["pads"])
        padded = zip(x, options["pads"], strict=False)
        return (*(n + before + behind for n, (before, behind) in padded), x[-1])

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
