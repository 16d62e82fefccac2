"""Layers of keras.applications: of ConvNeXt and Inception-ResNet."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.identity import ComposedLayer


class LayerScale(ComposedLayer):
    """x times a number for each channel."""

    op = "layer_scale"
    # The module within keras.src.applications, and the class.
    application_class: ClassVar[tuple[str, str]] = ("convnext", "LayerScale")

    def find_keras_layers(self, keras: Any) -> list[type]:
        """Return the class in keras.src.applications, if this Keras has it."""
        module, name = self.application_class
        try:
            return [getattr(importlib.import_module(f"keras.src.applications.{module}"), name)]
        except (ImportError, AttributeError):
            return []

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        return r.add_layer(call.name, "affine", call.inputs, {"kernel": call.layer.gamma})


class ScaledSum(LayerScale):
    """x plus a public number times y."""

    op = "scaled_sum"
    application_class = ("inception_resnet_v2", "CustomScaleLayer")

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        x, y = call.inputs
        options = {"scale": float(call.layer.scale), "offset": 0.0}
        part = r.add_layer(r.make_unique(f"{call.name}/scaled"), "rescale", [y], None, **options)
        return r.add_layer(call.name, "add", [x, part])
