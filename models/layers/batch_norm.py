"""BatchNormalization: by the batch's statistics in a step, by the running ones in an evaluation.

In a prediction it is a factor and a shift for each channel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import RangeError
from tfe_bench.models.kinds.checks import held, need, only, real
from tfe_bench.models.kinds.kind import Kind
from tfe_bench.models.kinds.layer import Array, Layer, Node, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Gradients, Pass
from tfe_bench.models.kinds.reading import Call, Reader, array_of, axis_of
from tfe_bench.models.kinds.turning import axis_last
from tfe_bench.models.layers.linear import bend, unbend
from tfe_bench.protocols.functions import roots
from tfe_bench.protocols.nn import batch_norm as protocol
from tfe_bench.protocols.ring.products import Product, elementwise
from tfe_bench.protocols.session.sharing import Shared

# Of the running variance's reciprocal root.
ROOT_PRECISION = 16


class BatchNorm(Kind):
    """gamma (x - mean) / sqrt(variance + epsilon) + beta."""

    op = "batch_norm"
    keras = ("BatchNormalization",)
    fuses = True

    def read(self, r: Reader, call: Call) -> str:
        axis = call.layer.axis
        (axis,) = axis if isinstance(axis, (list, tuple)) and len(axis) == 1 else (axis,)
        return axis_last(self._read, r, call, axis_of(axis, len(call.shapes[0]) + 1))

    def _read(self, r: Reader, call: Call) -> str:
        layer = call.layer
        weights = {"moving_mean": layer.moving_mean, "moving_variance": layer.moving_variance}
        if layer.scale:
            weights["gamma"] = layer.gamma
        if layer.center:
            weights["beta"] = layer.beta
        if r.training:
            numbers = {"momentum": float(layer.momentum), "epsilon": float(layer.epsilon)}
            frozen = not layer.trainable
            return r.emit(call.name, self.op, call.inputs, weights, frozen=frozen, **numbers)
        arrays = {name: array_of(call.name, name, w) for name, w in weights.items()}
        return r.emit(call.name, "affine", call.inputs, _affine(call.name, arrays, layer.epsilon))

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        need(len(given) == 1, "one input", len(given))
        (x,) = given
        only(options, "momentum", "epsilon", "frozen")
        need(isinstance(options["frozen"], bool), "frozen true or false", options["frozen"])
        held(weights, "moving_mean", "moving_variance", optional=["gamma", "beta"])
        for name, own in weights.items():
            need(own == (x[-1],), f"{name} [{x[-1]}]", list(own))
        momentum, epsilon = options["momentum"], options["epsilon"]
        need(real(momentum) and 0 <= momentum <= 1, "a momentum from 0 to 1", momentum)
        need(real(epsilon) and 1e-5 <= epsilon <= 1, "an epsilon from 1e-5 to 1", epsilon)
        return x

    def predicted(self, x: Layer) -> Layer:
        """A factor and a shift for each channel.

        Raises:
            RangeError: a running variance that is not positive.
        """
        weights = _affine(x.name, x.weights, x.options["epsilon"])
        return replace(x, op="affine", options={}, weights=weights)

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        """With what follows at once; a frozen one is what it is in predictions, as Keras has it."""
        (x,), ops, layer, f = values, p.ops, node.layer, protocol.FACTOR
        means, variances = (p.weight(layer, f"moving_{what}") for what in ("mean", "variance"))
        gamma, beta = (p.weight_or_none(layer, name) for name in ("gamma", "beta"))
        if gamma is None:
            gamma = ops.add_public(ops.times(means, 0), 1 << f)
        found = None
        if p.learning and not layer.options["frozen"]:
            found = ops.call(protocol.normalize, x, gamma, epsilon=layer.options["epsilon"])
            centered, factor = found.centered, found.factor
            momentum = layer.options["momentum"]
            new = ops.call(protocol.running, found, means, variances, momentum)
            for what, value in zip(("mean", "variance"), new, strict=True):
                p.renewed[f"{layer.name}/moving_{what}"] = value
        else:
            factor = ops.truncate(ops.mul(gamma, self._root(p, layer, variances)), f)
            # (the values have fewer bits than the running mean)
            mean = ops.truncate(means, f - x.fractional_bits)
            centered = ops.sub(x, mean)
        addend = None if beta is None else ops.shifted(beta, f + x.fractional_bits)
        if node.bent:
            products = [Product(centered, factor, elementwise)]
            small = p.narrowed(node, products, addend, f)
            y, chosen = bend(p, node, small)
        else:
            y = ops.mul(centered, factor)
            y, chosen = ops.truncate(y if addend is None else ops.add(y, addend), f), None
        p.kept[node.output] = (factor if found is None else found, chosen)
        return y

    def _root(self, p: Pass, layer: Layer, variances: Shared) -> Shared:
        """1 / sqrt(variance + epsilon) by the running variance."""
        raised = p.ops.add_public(variances, round(layer.options["epsilon"] * 2**protocol.FACTOR))
        bits = protocol.VARIANCE_BITS
        return p.ops.call(roots.rsqrt, raised, bits, ROOT_PRECISION)

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """Gradients of the input, of gamma and of beta."""
        found, chosen = p.kept[node.output]
        if node.layer.options["frozen"]:
            return [p.ops.mul(unbend(p, node, g, chosen), found)] if wanted else [None]
        back = p.ops.call(protocol.backward, found, unbend(p, node, g, chosen))
        for name, gradient in (("gamma", back.gamma), ("beta", back.beta)):
            if p.learns(node.layer, name):
                p.found[f"{node.layer.name}/{name}"] = gradient
        return [back.x]


def _affine(name: str, weights: Any, epsilon: float) -> dict[str, Array]:
    """The factor and the shift that running statistics are.

    Raises:
        RangeError: a running variance that is not positive; the layer is named.
    """
    mean, variance = (np.asarray(weights[f"moving_{k}"], np.float64) for k in ("mean", "variance"))
    if (variance + epsilon <= 0).any():
        raise RangeError(f"Layer {name!r} has a variance that is not positive.")
    factor = np.asarray(weights.get("gamma", 1.0), np.float64) / np.sqrt(variance + epsilon)
    shift = np.asarray(weights.get("beta", 0.0), np.float64) - mean * factor
    return {"kernel": factor, "bias": shift}
