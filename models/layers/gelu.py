"""GELU, in its exact form and in its approximation by tanh, which is another function."""

from __future__ import annotations

import math

import numpy as np

from tfe_bench.models.kinds.kind import Watch
from tfe_bench.models.kinds.layer import Array, Layer, Options
from tfe_bench.models.kinds.reading import Reader
from tfe_bench.models.layers.smooth import Gated
from tfe_bench.protocols.nn import gelu, gelu_tanh

_ERF = np.vectorize(math.erf, [np.float64])


class Gelu(Gated):
    """x Phi(x)."""

    op = "gelu"
    functions = ("gelu",)
    protocol = staticmethod(gelu.gelu)
    derivative = staticmethod(gelu.slope)

    def activate(self, r: Reader, value: str, name: str, function: str, given: Options) -> str:
        op = GeluTanh.op if given["approximate"] else self.op
        return r.emit(name, op, [value])

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        (v,) = values
        return np.asarray(v * (1 + _ERF(v / math.sqrt(2))) / 2)


class GeluTanh(Gated):
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2."""

    op = "gelu_tanh"
    protocol = staticmethod(gelu_tanh.gelu_tanh)
    derivative = staticmethod(gelu_tanh.slope)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        (v,) = values
        return np.asarray(v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) / 2)
