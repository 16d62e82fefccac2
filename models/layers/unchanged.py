"""Keras layers that are the identity, at least in predictions."""

from __future__ import annotations

from typing import ClassVar

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.identity import Identity


class NamedIdentity(Identity):
    """x, by the Keras layer Identity."""

    op = "same"
    keras_layers: ClassVar[tuple[str, ...]] = ("Identity",)

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        return call.inputs[0]


class InferenceIdentity(NamedIdentity):
    """x: random draws and penalties of training have no effect on a prediction."""

    op = "unchanged"
    keras_layers: ClassVar[tuple[str, ...]] = (
        *("ActivityRegularization", "AugMix", "CutMix", "MixUp", "RandAugment"),
        *("RandomBrightness", "RandomColorDegeneration", "RandomColorJitter", "RandomContrast"),
        *("RandomElasticTransform", "RandomErasing", "RandomFlip", "RandomGaussianBlur"),
        *("RandomGrayscale", "RandomHue", "RandomInvert", "RandomPerspective"),
        *("RandomPosterization", "RandomRotation", "RandomSaturation", "RandomSharpness"),
        *("RandomShear", "RandomTranslation", "RandomZoom"),
    )

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        if r.training:
            raise L.UnsupportedLayer("training changes values at random; remove it to train")
        return super().convert_layer(r, call)
