"""ELU, SELU and CELU."""

from __future__ import annotations

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.models.layers.smooth import JointSlopeActivation
from tfe_bench.protocols.nn import elu
from tfe_bench.protocols.session.sharing import Shared

# Klambauer et al., Self-normalizing neural networks, 2017.
SCALE = 1.0507009873554804934193349852946
ALPHA = 1.6732632423543772848170429916717


def _read_elu_form(x: L.LayerSpec) -> elu.EluForm:
    return elu.EluForm(**x.options)


class Elu(JointSlopeActivation):
    """positive max(x, 0) + negative (e^(min(x, 0) / decay) - 1)."""

    op = "elu"
    keras_layers = ("ELU",)
    keras_functions = ("elu", "selu", "celu")

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        arguments = {"alpha": call.layer.alpha}
        return self.convert_activation(r, call.inputs[0], call.name, "elu", arguments)

    def map_activation_options(self, name: str, rank: int, arguments: Options) -> Options:
        positive = SCALE if name == "selu" else 1.0
        alpha = SCALE * ALPHA if name == "selu" else float(arguments["alpha"])
        form = {"positive": positive, "negative": alpha, "decay": alpha if name == "celu" else 1.0}
        try:
            elu.EluForm(**form)
        except UsageError as error:
            raise L.UnsupportedLayer(f"its activation has alpha={alpha}: {error}") from None
        return form

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_options(options, "positive", "negative", "decay")
        L.check_value(all(L.is_real(v) for v in options.values()), "three numbers", options)
        elu.EluForm(**options)
        return L.check_single_input(input_shapes, weights)

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        (v,), form = values, _read_elu_form(x)
        low = np.expm1(np.minimum(v, 0) / form.decay)
        return np.asarray(form.positive * np.maximum(v, 0) + form.negative * low)

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        form = _read_elu_form(node.layer)
        least = abs(form.negative) * 2**node.numbers.fraction
        return int(max(abs(form.positive) * node.align_limits(input_limits)[0], least)) + 4

    def compute_with_slope(
        self, p: L.ForwardContext, node: L.PlacedLayer, x: Shared
    ) -> tuple[Shared, Shared]:
        form, bits = _read_elu_form(node.layer), node.numbers.bits
        if p.is_training:
            return p.ops.run_protocol(elu.elu_with_slope, x, form, bits)
        y = p.ops.run_protocol(elu.elu, x, form, bits)
        return y, y
