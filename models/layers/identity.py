"""The identity, the conversion of named activations that do nothing."""

from __future__ import annotations

from typing import ClassVar

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.protocols.session.sharing import Shared


class ComposedLayer(L.Kind):
    """A kind that is converted to other layers; by itself it is the identity."""

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_options(options)
        return L.check_single_input(input_shapes, weights)

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return values[0]

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        return values[0]

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        return [g]


class InferenceOnlyLayer(ComposedLayer):
    """A kind that is converted to other layers, for predictions alone."""

    @property
    def can_train(self) -> bool:
        return False

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        if r.training:
            raise L.UnsupportedLayer("training is not supported; train the layers after it")
        return self.convert_inference(r, call)

    def convert_inference(self, r: L.Reader, call: L.LayerCall) -> str:
        """Convert the layer for a prediction, as `convert_layer` does.

        Raises:
            UnsupportedLayer: it cannot be converted; the text states the reason.
        """
        raise NotImplementedError


class Identity(ComposedLayer):
    """x."""

    op = "identity"
    keras_layers: ClassVar[tuple[str, ...]] = ("Activation",)
    keras_functions = ("linear",)
    is_identity = True

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        return r.add_activation(call.layer.activation, call.inputs[0], call.name)
