"""Layers that keras.applications has of its own, of ConvNeXt and Inception-ResNet."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

from tfe_bench.models.kinds.reading import Call, Reader
from tfe_bench.models.layers.identity import Composed


class Scaled(Composed):
    """x times a number for each channel."""

    op = "layer_scale"
    # The module within keras.src.applications, and the class.
    own: ClassVar[tuple[str, str]] = ("convnext", "LayerScale")

    def classes(self, keras: Any) -> list[type]:
        """The class that is its own, where this Keras has it."""
        module, name = self.own
        try:
            return [getattr(importlib.import_module(f"keras.src.applications.{module}"), name)]
        except (ImportError, AttributeError):
            return []

    def read(self, r: Reader, call: Call) -> str:
        return r.emit(call.name, "affine", call.inputs, {"kernel": call.layer.gamma})


class ScaledSum(Scaled):
    """x and a public number times y."""

    op = "scaled_sum"
    own = ("inception_resnet_v2", "CustomScaleLayer")

    def read(self, r: Reader, call: Call) -> str:
        x, y = call.inputs
        options = {"scale": float(call.layer.scale), "offset": 0.0}
        part = r.emit(r.unique(f"{call.name}/scaled"), "rescale", [y], None, **options)
        return r.emit(call.name, "add", [x, part])
