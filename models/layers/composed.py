"""Activations that are made of other layers."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tfe_bench.models.kinds.layer import Options
from tfe_bench.models.kinds.reading import Call, Reader, Unfit, array_of
from tfe_bench.models.layers.identity import Identity


class TanhShrink(Identity):
    """x - tanh(x)."""

    op = "tanh_shrink"
    keras: ClassVar[tuple[str, ...]] = ()
    functions = ("tanh_shrink",)
    nothing = False

    def activate(self, r: Reader, value: str, name: str, function: str, given: Options) -> str:
        tanh = r.emit(r.unique(f"{name}/tanh"), "tanh", [value])
        return r.emit(name, "subtract", [value, tanh])


class PRelu(Identity):
    """max(x, 0) - alpha max(-x, 0), with an alpha that is learned."""

    op = "prelu"
    keras = ("PReLU",)
    functions: ClassVar[tuple[str, ...]] = ()
    nothing = False

    @property
    def trains(self) -> bool:
        return False

    def read(self, r: Reader, call: Call) -> str:
        if r.training:
            raise Unfit("its alpha is not trained; use LeakyReLU")
        if not call.shapes[0]:
            raise Unfit("as the activation of another layer; put it behind that one")
        (x,), shape, name = call.inputs, call.shapes[0], call.name
        alpha = np.asarray(array_of(name, "alpha", call.layer.alpha))
        above = r.emit(r.unique(f"{name}/above"), "relu", [x], None, max_value=None)
        low = r.emit(r.unique(f"{name}/below"), "subtract", [x, above])
        apart = any(n != 1 for n in alpha.shape[:-1])
        if apart:  # one for each place: all of them are channels of a row
            low = r.emit(r.unique(f"{name}/row"), "flatten", [low])
        wanted = shape if apart else shape[-1:]
        kernel = np.broadcast_to(alpha if apart else alpha.reshape(-1), wanted).reshape(-1).copy()
        low = r.emit(r.unique(f"{name}/alpha"), "affine", [low], {"kernel": kernel})
        if apart:
            low = r.emit(r.unique(f"{name}/shape"), "reshape", [low], None, shape=list(shape))
        return r.emit(name, "add", [above, low])
