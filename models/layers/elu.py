"""ELU, SELU and CELU."""

from __future__ import annotations

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds.checks import alone, need, only, real
from tfe_bench.models.kinds.kind import Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Pass
from tfe_bench.models.kinds.reading import Call, Reader, Unfit
from tfe_bench.models.layers.smooth import Beside
from tfe_bench.protocols.nn import elu
from tfe_bench.protocols.session.sharing import Shared

# Klambauer et al., Self-normalizing neural networks, 2017.
SCALE = 1.0507009873554804934193349852946
ALPHA = 1.6732632423543772848170429916717


def _form(x: Layer) -> elu.Form:
    return elu.Form(**x.options)


class Elu(Beside):
    """positive max(x, 0) + negative (e^(min(x, 0) / decay) - 1)."""

    op = "elu"
    keras = ("ELU",)
    functions = ("elu", "selu", "celu")

    def read(self, r: Reader, call: Call) -> str:
        given = {"alpha": call.layer.alpha}
        return self.activate(r, call.inputs[0], call.name, "elu", given)

    def function(self, name: str, rank: int, given: Options) -> Options:
        positive = SCALE if name == "selu" else 1.0
        alpha = SCALE * ALPHA if name == "selu" else float(given["alpha"])
        form = {"positive": positive, "negative": alpha, "decay": alpha if name == "celu" else 1.0}
        try:
            elu.Form(**form)
        except UsageError as error:
            raise Unfit(f"its activation has alpha={alpha}: {error}") from None
        return form

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        only(options, "positive", "negative", "decay")
        need(all(real(v) for v in options.values()), "three numbers", options)
        elu.Form(**options)
        return alone(given, weights)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        (v,), own = values, _form(x)
        low = np.expm1(np.minimum(v, 0) / own.decay)
        return np.asarray(own.positive * np.maximum(v, 0) + own.negative * low)

    def limit(self, node: Node, given: list[int]) -> int | None:
        own = _form(node.layer)
        least = abs(own.negative) * 2**node.numbers.fraction
        return int(max(abs(own.positive) * node.moved(given)[0], least)) + 4

    def both(self, p: Pass, node: Node, x: Shared) -> tuple[Shared, Shared]:
        own, bits = _form(node.layer), node.numbers.bits
        if p.learning:
            return p.ops.call(elu.elu_with_slope, x, own, bits)
        y = p.ops.call(elu.elu, x, own, bits)
        return y, y
