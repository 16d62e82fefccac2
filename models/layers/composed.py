"""Activations that are composed of other layers."""

from __future__ import annotations

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Options
from tfe_bench.models.layers.identity import ComposedLayer


class TanhShrink(ComposedLayer):
    """x - tanh(x)."""

    op = "tanh_shrink"
    keras_functions = ("tanh_shrink",)

    def convert_activation(
        self, r: L.Reader, value: str, name: str, function: str, arguments: Options
    ) -> str:
        tanh = r.add_layer(r.make_unique(f"{name}/tanh"), "tanh", [value])
        return r.add_layer(name, "subtract", [value, tanh])


class ParametricRelu(ComposedLayer):
    """max(x, 0) - alpha max(-x, 0), with a learned alpha."""

    op = "prelu"
    keras_layers = ("PReLU",)

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        if not call.shapes[0]:
            raise L.UnsupportedLayer(
                "as the activation of another layer; add it as a layer after that one"
            )
        (x,), name = call.inputs, call.name
        above = r.add_layer(r.make_unique(f"{name}/above"), "relu", [x], None, max_value=None)
        low = r.add_layer(r.make_unique(f"{name}/below"), "subtract", [x, above])
        low = r.add_layer(
            r.make_unique(f"{name}/alpha"), "affine", [low], {"kernel": call.layer.alpha}
        )
        return r.add_layer(name, "add", [above, low])
