"""GELU, in its exact form and in its tanh approximation, which is another function."""

from __future__ import annotations

import math

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Options
from tfe_bench.models.layers.smooth import Curve, GatedActivation
from tfe_bench.protocols.nn import gelu, gelu_tanh

_ERF = np.vectorize(math.erf, [np.float64])


class Gelu(GatedActivation):
    """x Phi(x)."""

    op = "gelu"
    keras_functions = ("gelu",)
    curve = Curve(gelu.gelu, gelu.slope, lambda v: v * (1 + _ERF(v / math.sqrt(2))) / 2)

    def convert_activation(
        self, r: L.Reader, value: str, name: str, function: str, arguments: Options
    ) -> str:
        op = GeluTanh.op if arguments["approximate"] else self.op
        return r.add_layer(name, op, [value])


class GeluTanh(GatedActivation):
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2."""

    op = "gelu_tanh"
    curve = Curve(
        gelu_tanh.gelu_tanh,
        gelu_tanh.slope,
        lambda v: v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) / 2,
    )
