"""ZeroPadding of one, two or three axes."""

from __future__ import annotations

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.session.sharing import Shared


def _list_zero_paddings(x: L.LayerSpec) -> list[tuple[int, int]]:
    """Return the zeros before and after each axis."""
    return [(0, 0), *((int(a), int(b)) for a, b in x.options["pads"]), (0, 0)]


class ZeroPad(L.Kind):
    """Zeros around rows, images or volumes."""

    op = "zero_pad"
    is_local = True
    keras_layers = ("ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D")

    @L.accept_channels_first
    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        pairs = L.parse_padding_sides(call.layer.padding)
        return r.add_layer(call.name, self.op, call.inputs, None, pads=pairs)

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = L.check_single_input(input_shapes, weights)
        L.check_value(2 <= len(x) <= 4, "rows, images or volumes with channels", list(x))
        L.check_options(options, "pads")
        fits = L.is_padding(options["pads"], len(x) - 1)
        L.check_value(
            fits, "pads ((before, behind), ...) of each axis but the channels'", options["pads"]
        )
        padded = zip(x, options["pads"], strict=False)
        return (*(n + before + behind for n, (before, behind) in padded), x[-1])

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return np.pad(values[0], _list_zero_paddings(x))

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        pairs, shape = _list_zero_paddings(node.layer), p.add_batch_axis(node.shape, values[0])
        return p.ops.apply_local(lambda v: shapes.pad(v, pairs), values[0], shape)

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        """Return the part of g without the padding."""
        begin = [before for before, _ in _list_zero_paddings(node.layer)]
        shape = p.add_batch_axis(node.input_shapes[0], g)
        return [p.ops.apply_local(lambda v: shapes.slice(v, begin, shape), g, shape)]
