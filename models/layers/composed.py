"""Activations that are made of other layers."""

from __future__ import annotations

from tfe_bench.models.kinds.layer import Options
from tfe_bench.models.kinds.reading import Call, Reader, Unfit
from tfe_bench.models.layers.identity import Composed


class TanhShrink(Composed):
    """x - tanh(x)."""

    op = "tanh_shrink"
    functions = ("tanh_shrink",)

    def activate(self, r: Reader, value: str, name: str, function: str, given: Options) -> str:
        tanh = r.emit(r.unique(f"{name}/tanh"), "tanh", [value])
        return r.emit(name, "subtract", [value, tanh])


class PRelu(Composed):
    """max(x, 0) - alpha max(-x, 0), with an alpha that is learned."""

    op = "prelu"
    keras = ("PReLU",)

    def read(self, r: Reader, call: Call) -> str:
        if not call.shapes[0]:
            raise Unfit("as the activation of another layer; put it behind that one")
        (x,), name = call.inputs, call.name
        above = r.emit(r.unique(f"{name}/above"), "relu", [x], None, max_value=None)
        low = r.emit(r.unique(f"{name}/below"), "subtract", [x, above])
        low = r.emit(r.unique(f"{name}/alpha"), "affine", [low], {"kernel": call.layer.alpha})
        return r.emit(name, "add", [above, low])
