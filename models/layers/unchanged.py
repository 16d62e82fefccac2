"""Layers of Keras that give what they take, in predictions at least."""

from __future__ import annotations

from typing import ClassVar

from tfe_bench.models.kinds.reading import Call, Reader, Unfit
from tfe_bench.models.layers.identity import Identity


class Same(Identity):
    """x, by the layer of that name."""

    op = "same"
    keras: ClassVar[tuple[str, ...]] = ("Identity",)

    def read(self, r: Reader, call: Call) -> str:
        return call.inputs[0]


class Unchanged(Same):
    """x: what is drawn or counted in training alone has no part in a prediction."""

    op = "unchanged"
    keras: ClassVar[tuple[str, ...]] = (
        *("ActivityRegularization", "AugMix", "CutMix", "MixUp", "RandAugment"),
        *("RandomBrightness", "RandomColorDegeneration", "RandomColorJitter", "RandomContrast"),
        *("RandomElasticTransform", "RandomErasing", "RandomFlip", "RandomGaussianBlur"),
        *("RandomGrayscale", "RandomHue", "RandomInvert", "RandomPerspective"),
        *("RandomPosterization", "RandomRotation", "RandomSaturation", "RandomSharpness"),
        *("RandomShear", "RandomTranslation", "RandomZoom"),
    )

    def read(self, r: Reader, call: Call) -> str:
        if r.training:
            raise Unfit("what it draws or adds in training; train without it")
        return super().read(r, call)
