"""Dropout: public masks in training, nothing in a prediction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np

from tfe_bench.models.kinds.checks import alone, need, only, real
from tfe_bench.models.kinds.kind import Kind
from tfe_bench.models.kinds.layer import Array, Layer, Node, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import FACTOR_BITS, Gradients, Pass, factored
from tfe_bench.models.kinds.reading import Call, Reader, Unfit
from tfe_bench.models.training.shuffling import kept
from tfe_bench.protocols.session.sharing import Shared


def mask_name(layer: str) -> str:
    """Of a layer's mask among a step's public values."""
    return f"kept:{layer}"


class Dropout(Kind):
    """Some values are 0 in a step, the others larger."""

    op = "dropout"
    keras = ("Dropout",)

    def read(self, r: Reader, call: Call) -> str:
        if not r.training:
            return call.inputs[0]
        if getattr(call.layer, "noise_shape", None) is not None:
            raise Unfit("noise_shape; only masks of the input's shape are supported")
        return r.emit(call.name, self.op, call.inputs, None, rate=float(call.layer.rate))

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        only(options, "rate")
        rate = options["rate"]
        need(real(rate) and 0 <= rate < 1, "a rate below 1", rate)
        return alone(given, weights)

    def predicted(self, x: Layer) -> Layer:
        return replace(x, op="identity", options={})

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        """In training, values that a public mask keeps."""
        (x,) = values
        return p.dropped(self._masked(p, node, x)) if p.learning else x

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        return [self._masked(p, node, p.settled(g, FACTOR_BITS))]

    def _masked(self, p: Pass, node: Node, x: Shared) -> Shared:
        """What is kept of x, times 1 / (1 - rate)."""
        factor = 1 / (1 - Fraction(node.layer.options["rate"]))
        return factored(p.ops, p.ops.times(x, p.public[mask_name(node.layer.name)]), factor)

    def public_values(self, x: Layer, shape: Shape, seed: int, step: int) -> Mapping[str, Array]:
        mask = kept(seed, step, x.name, math.prod(shape), x.options["rate"])
        return {mask_name(x.name): mask.reshape(shape).astype(np.int64)}
