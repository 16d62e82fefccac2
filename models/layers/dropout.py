"""Dropout and noise: public numbers in training, nothing in a prediction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from tfe_bench.models.kinds.checks import alone, axis_of, need, only, real
from tfe_bench.models.kinds.kind import Kind
from tfe_bench.models.kinds.layer import Array, Layer, Node, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import FACTOR_BITS, Gradients, Pass, factored
from tfe_bench.models.kinds.reading import Call, Reader, Unfit
from tfe_bench.models.layers.elu import ALPHA, SCALE
from tfe_bench.models.training.shuffling import kept, normal
from tfe_bench.protocols.session.sharing import Shared


def mask_name(layer: str) -> str:
    """Of a layer's mask among a step's public values."""
    return f"kept:{layer}"


class Drawn(Kind):
    """What a step multiplies by, or adds, is public and drawn anew: `public_values`."""

    def read(self, r: Reader, call: Call) -> str:
        if not r.training:
            return call.inputs[0]
        return r.emit(call.name, self.op, call.inputs, None, **self.settings(call))

    def settings(self, call: Call) -> Options:
        """The options of a layer of Keras.

        Raises:
            Unfit: it has others.
        """
        return {"rate": float(call.layer.rate)}

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        only(options, "rate")
        rate = options["rate"]
        need(real(rate) and 0 <= rate < 1, "a rate below 1", rate)
        return alone(given, weights)

    def predicted(self, x: Layer) -> Layer:
        return replace(x, op="identity", options={})

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        """In training, what the numbers make of a value."""
        (x,) = values
        return p.dropped(self.changed(p, node, x)) if p.learning else x

    def changed(self, p: Pass, node: Node, x: Shared) -> Shared:
        """A value with its noise, with more fractional bits."""
        return self.scaled(p, node, x)

    def scaled(self, p: Pass, node: Node, x: Shared) -> Shared:
        """x times what it is multiplied by, with more fractional bits."""
        raise NotImplementedError

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        return [self.scaled(p, node, p.settled(g, FACTOR_BITS))]

    def drawn(self, p: Pass, node: Node) -> Any:
        """The numbers of a step, int64."""
        return p.public[mask_name(node.layer.name)]


class Dropout(Drawn):
    """Some values are 0 in a step, the others larger."""

    op = "dropout"
    keras: ClassVar[tuple[str, ...]] = ("Dropout",)

    def settings(self, call: Call) -> Options:
        if getattr(call.layer, "noise_shape", None) is not None:
            raise Unfit("noise_shape; only masks of the input's shape are supported")
        return super().settings(call)

    def scaled(self, p: Pass, node: Node, x: Shared) -> Shared:
        """What is kept of x, times 1 / (1 - rate)."""
        factor = 1 / (1 - Fraction(node.layer.options["rate"]))
        return factored(p.ops, p.ops.times(x, self.drawn(p, node)), factor)

    def masked(self, x: Layer, shape: Shape) -> Shape:
        """The shape of a mask of values of a shape."""
        return shape

    def public_values(self, x: Layer, shape: Shape, seed: int, step: int) -> Mapping[str, Array]:
        own = self.masked(x, shape)
        mask = kept(seed, step, x.name, math.prod(own), x.options["rate"])
        return {mask_name(x.name): mask.reshape(own).astype(np.int64)}


class SpatialDropout(Dropout):
    """Some channels are 0 in a step, the others larger."""

    op = "spatial_dropout"
    keras = ("SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D")

    def settings(self, call: Call) -> Options:
        first = getattr(call.layer, "data_format", None) == "channels_first"
        return {**super().settings(call), "axis": 1 if first else len(call.shapes[0])}

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = super().shape(given, {k: v for k, v in options.items() if k != "axis"}, weights)
        axis_of({"axis": options.get("axis")}, len(x))
        return x

    def masked(self, x: Layer, shape: Shape) -> Shape:
        return tuple(n if i in (0, x.options["axis"]) else 1 for i, n in enumerate(shape))


class AlphaDropout(Dropout):
    """Some values are the least of a SELU in a step; mean and variance stay."""

    op = "alpha_dropout"
    keras = ("AlphaDropout",)

    def scaled(self, p: Pass, node: Node, x: Shared) -> Shared:
        """What is kept of x."""
        return factored(p.ops, p.ops.times(x, self.drawn(p, node)), alpha_scale(node.layer.options))

    def changed(self, p: Pass, node: Node, x: Shared) -> Shared:
        """That, what stands for the others, and what brings the mean back."""
        factor = alpha_scale(node.layer.options)
        y, low = self.scaled(p, node, x), -Fraction(SCALE) * Fraction(ALPHA)
        unit = 1 << y.fractional_bits
        lost, shift = round(factor * low * unit), round(-factor * low * unit * _rate(node))
        return p.ops.add_public(y, (1 - self.drawn(p, node)) * lost + shift)


def _rate(node: Node) -> Fraction:
    return Fraction(node.layer.options["rate"])


def alpha_scale(options: Options) -> Fraction:
    """By what AlphaDropout multiplies, with so many bits that all workers agree."""
    rate = Fraction(options["rate"])
    square = (1 - rate) * (1 + rate * (Fraction(SCALE) * Fraction(ALPHA)) ** 2)
    return Fraction(math.isqrt(int((1 << 80) / square)), 1 << 40)


class GaussianDropout(Drawn):
    """Values times normal numbers around 1."""

    op = "gaussian_dropout"
    keras = ("GaussianDropout",)

    def scaled(self, p: Pass, node: Node, x: Shared) -> Shared:
        return p.ops.times(x, self.drawn(p, node), FACTOR_BITS)

    def public_values(self, x: Layer, shape: Shape, seed: int, step: int) -> Mapping[str, Array]:
        rate = Fraction(x.options["rate"])
        deviation = math.isqrt(int(rate / (1 - rate) * (1 << 32)))
        numbers = normal(seed, step, x.name, math.prod(shape)).reshape(shape)
        return {mask_name(x.name): (1 << FACTOR_BITS) + (numbers * deviation >> 16)}


class GaussianNoise(Drawn):
    """Values and normal numbers."""

    op = "gaussian_noise"
    keras = ("GaussianNoise",)

    def settings(self, call: Call) -> Options:
        return {"stddev": float(call.layer.stddev)}

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        only(options, "stddev")
        deviation = options["stddev"]
        need(real(deviation) and 0 <= deviation <= 1, "a deviation up to 1", deviation)
        return alone(given, weights)

    def changed(self, p: Pass, node: Node, x: Shared) -> Shared:
        return p.ops.add_public(x, self.drawn(p, node))

    def scaled(self, p: Pass, node: Node, x: Shared) -> Shared:
        return x

    def public_values(self, x: Layer, shape: Shape, seed: int, step: int) -> Mapping[str, Array]:
        deviation = round(Fraction(x.options["stddev"]) * (1 << 16))
        numbers = normal(seed, step, x.name, math.prod(shape)).reshape(shape)
        return {mask_name(x.name): numbers * deviation >> 16}
