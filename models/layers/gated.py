"""SiLU, which is also called swish, Mish, softplus and log-sigmoid."""

from __future__ import annotations

import numpy as np

from tfe_bench.models.kinds.layer import Node
from tfe_bench.models.layers.smooth import Curve, Gated
from tfe_bench.protocols.nn import mish, silu, softplus


class Silu(Gated):
    """x / (1 + e^-x)."""

    op = "silu"
    functions = ("silu",)
    curve = Curve(silu.silu, silu.slope, lambda v: v * np.exp(-np.logaddexp(0, -v)))


class Mish(Gated):
    """x tanh(log(1 + e^x))."""

    op = "mish"
    functions = ("mish",)
    curve = Curve(mish.mish, mish.slope, lambda v: v * np.tanh(np.logaddexp(0, v)))


class Softplus(Gated):
    """log(1 + e^x)."""

    op = "softplus"
    functions = ("softplus",)
    curve = Curve(softplus.softplus, softplus.slope, lambda v: np.logaddexp(0, v))

    def limit(self, node: Node, given: list[int]) -> int | None:
        return node.moved(given)[0] + (1 << node.numbers.fraction) + 2


class LogSigmoid(Softplus):
    """log(1 / (1 + e^-x))."""

    op = "log_sigmoid"
    functions = ("log_sigmoid",)
    curve = Curve(softplus.log_sigmoid, softplus.log_sigmoid_slope, lambda v: -np.logaddexp(0, -v))
