"""SiLU (also called swish), Mish, softplus and log-sigmoid."""

from __future__ import annotations

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.smooth import Curve, GatedActivation
from tfe_bench.protocols.nn import mish, silu, softplus


class Silu(GatedActivation):
    """x / (1 + e^-x)."""

    op = "silu"
    keras_functions = ("silu",)
    curve = Curve(silu.silu, silu.slope, lambda v: v * np.exp(-np.logaddexp(0, -v)))


class Mish(GatedActivation):
    """x tanh(log(1 + e^x))."""

    op = "mish"
    keras_functions = ("mish",)
    curve = Curve(mish.mish, mish.slope, lambda v: v * np.tanh(np.logaddexp(0, v)))


class Softplus(GatedActivation):
    """log(1 + e^x)."""

    op = "softplus"
    keras_functions = ("softplus",)
    curve = Curve(softplus.softplus, softplus.slope, lambda v: np.logaddexp(0, v))

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        return node.align_limits(input_limits)[0] + (1 << node.numbers.fraction) + 2


class LogSigmoid(Softplus):
    """log(1 / (1 + e^-x))."""

    op = "log_sigmoid"
    keras_functions = ("log_sigmoid",)
    curve = Curve(softplus.log_sigmoid, softplus.log_sigmoid_slope, lambda v: -np.logaddexp(0, -v))
