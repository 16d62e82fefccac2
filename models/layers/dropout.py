"""Dropout and noise: public random numbers in training, the identity in a prediction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.models.layers.elu import ALPHA, SCALE
from tfe_bench.protocols.session.sharing import Shared


def dropout_mask_key(layer: str) -> str:
    """Return the key of a layer's mask in a step's public values."""
    return f"kept:{layer}"


class RandomizedKind(L.Kind):
    """A layer with public random factors or addends, drawn afresh in each step: `public_values`."""

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        if not r.training:
            return call.inputs[0]
        return r.add_layer(call.name, self.op, call.inputs, None, **self.read_settings(call))

    def read_settings(self, call: L.LayerCall) -> Options:
        """Read the options of a Keras layer.

        Raises:
            UnsupportedLayer: it has other options.
        """
        return {"rate": float(call.layer.rate)}

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_options(options, "rate")
        rate = options["rate"]
        L.check_value(L.is_real(rate) and 0 <= rate < 1, "a rate below 1", rate)
        return L.check_single_input(input_shapes, weights)

    def prepare_inference(self, x: L.LayerSpec) -> L.LayerSpec:
        return replace(x, op="identity", options={})

    def forward_training(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        """Apply the random numbers in training; return the value itself in an evaluation."""
        (x,) = values
        return p.rescale_activation(self.apply_noise(p, node, x)) if p.is_training else x

    def apply_noise(self, p: L.ForwardContext, node: L.PlacedLayer, x: Shared) -> Shared:
        """Apply the noise to a value; the result has more fractional bits."""
        return self.apply_factor(p, node, x)

    def apply_factor(self, p: L.ForwardContext, node: L.PlacedLayer, x: Shared) -> Shared:
        """Multiply x by the layer's factors; the result has more fractional bits."""
        raise NotImplementedError

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        return [self.apply_factor(p, node, p.rescale_gradient(g, L.FACTOR_BITS))]

    def get_randomness(self, p: L.ForwardContext, node: L.PlacedLayer) -> Any:
        """Return the random numbers of a step, int64."""
        return p.public[dropout_mask_key(node.layer.name)]


class Dropout(RandomizedKind):
    """Random values become 0 in a step, the others are scaled up."""

    op = "dropout"
    keras_layers: ClassVar[tuple[str, ...]] = ("Dropout",)

    def read_settings(self, call: L.LayerCall) -> Options:
        if getattr(call.layer, "noise_shape", None) is not None:
            raise L.UnsupportedLayer("noise_shape; only masks of the input's shape are supported")
        return super().read_settings(call)

    def apply_factor(self, p: L.ForwardContext, node: L.PlacedLayer, x: Shared) -> Shared:
        """Return the kept part of x, times 1 / (1 - rate)."""
        factor = 1 / (1 - Fraction(node.layer.options["rate"]))
        return L.multiply_public(p.ops, p.ops.mul_public(x, self.get_randomness(p, node)), factor)

    def get_mask_shape(self, x: L.LayerSpec, shape: Shape) -> Shape:
        """Return the shape of the mask for values of a shape."""
        return shape

    def public_values(
        self, x: L.LayerSpec, shape: Shape, seed: int, step: int
    ) -> Mapping[str, Array]:
        mask_shape = self.get_mask_shape(x, shape)
        mask = L.draw_dropout_mask(seed, step, x.name, math.prod(mask_shape), x.options["rate"])
        return {dropout_mask_key(x.name): mask.reshape(mask_shape).astype(np.int64)}


class SpatialDropout(Dropout):
    """Random channels become 0 in a step, the others are scaled up."""

    op = "spatial_dropout"
    keras_layers = ("SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D")

    def read_settings(self, call: L.LayerCall) -> Options:
        first = getattr(call.layer, "data_format", None) == "channels_first"
        return {**super().read_settings(call), "axis": 1 if first else len(call.shapes[0])}

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = super().infer_shape(
            input_shapes, {k: v for k, v in options.items() if k != "axis"}, weights
        )
        L.read_axis({"axis": options.get("axis")}, len(x))
        return x

    def get_mask_shape(self, x: L.LayerSpec, shape: Shape) -> Shape:
        return tuple(n if i in (0, x.options["axis"]) else 1 for i, n in enumerate(shape))


class AlphaDropout(Dropout):
    """Random values become the minimum of a SELU in a step; mean and variance stay."""

    op = "alpha_dropout"
    keras_layers = ("AlphaDropout",)

    def apply_factor(self, p: L.ForwardContext, node: L.PlacedLayer, x: Shared) -> Shared:
        """Return the kept part of x."""
        return L.multiply_public(
            p.ops,
            p.ops.mul_public(x, self.get_randomness(p, node)),
            alpha_dropout_scale(node.layer.options),
        )

    def apply_noise(self, p: L.ForwardContext, node: L.PlacedLayer, x: Shared) -> Shared:
        """Return the kept part, replacements of the others, and a shift to restore the mean."""
        factor = alpha_dropout_scale(node.layer.options)
        y, low = self.apply_factor(p, node, x), -Fraction(SCALE) * Fraction(ALPHA)
        unit = 1 << y.fractional_bits
        lost, shift = round(factor * low * unit), round(-factor * low * unit * _dropout_rate(node))
        return p.ops.add_public(y, (1 - self.get_randomness(p, node)) * lost + shift)


def _dropout_rate(node: L.PlacedLayer) -> Fraction:
    return Fraction(node.layer.options["rate"])


def alpha_dropout_scale(options: Options) -> Fraction:
    """Return the factor of AlphaDropout, rounded so that all workers agree."""
    rate = Fraction(options["rate"])
    square = (1 - rate) * (1 + rate * (Fraction(SCALE) * Fraction(ALPHA)) ** 2)
    return Fraction(math.isqrt(int((1 << 80) / square)), 1 << 40)


class GaussianDropout(RandomizedKind):
    """Values times normal numbers around 1."""

    op = "gaussian_dropout"
    keras_layers = ("GaussianDropout",)

    def apply_factor(self, p: L.ForwardContext, node: L.PlacedLayer, x: Shared) -> Shared:
        return p.ops.mul_public(x, self.get_randomness(p, node), L.FACTOR_BITS)

    def public_values(
        self, x: L.LayerSpec, shape: Shape, seed: int, step: int
    ) -> Mapping[str, Array]:
        rate = Fraction(x.options["rate"])
        deviation = math.isqrt(int(rate / (1 - rate) * (1 << 32)))
        numbers = L.draw_layer_noise(seed, step, x.name, math.prod(shape)).reshape(shape)
        return {dropout_mask_key(x.name): (1 << L.FACTOR_BITS) + (numbers * deviation >> 16)}


class GaussianNoise(RandomizedKind):
    """Values plus normal numbers."""

    op = "gaussian_noise"
    keras_layers = ("GaussianNoise",)

    def read_settings(self, call: L.LayerCall) -> Options:
        return {"stddev": float(call.layer.stddev)}

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_options(options, "stddev")
        deviation = options["stddev"]
        L.check_value(
            L.is_real(deviation) and 0 <= deviation <= 1, "a deviation up to 1", deviation
        )
        return L.check_single_input(input_shapes, weights)

    def apply_noise(self, p: L.ForwardContext, node: L.PlacedLayer, x: Shared) -> Shared:
        return p.ops.add_public(x, self.get_randomness(p, node))

    def apply_factor(self, p: L.ForwardContext, node: L.PlacedLayer, x: Shared) -> Shared:
        return x

    def public_values(
        self, x: L.LayerSpec, shape: Shape, seed: int, step: int
    ) -> Mapping[str, Array]:
        deviation = round(Fraction(x.options["stddev"]) * (1 << 16))
        numbers = L.draw_layer_noise(seed, step, x.name, math.prod(shape)).reshape(shape)
        return {dropout_mask_key(x.name): numbers * deviation >> 16}
