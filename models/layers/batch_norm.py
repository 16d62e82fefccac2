"""BatchNormalization, by the batch's statistics in a step, by the running ones in an evaluation.

In a prediction it is a factor and a shift for each channel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import RangeError
from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.models.layers.linear import apply_fused_layers, backpropagate_fused_layers
from tfe_bench.protocols.functions import roots
from tfe_bench.protocols.nn import batch_norm as protocol
from tfe_bench.protocols.ring.products import BilinearShareProduct, sum_elementwise_products
from tfe_bench.protocols.session.sharing import Shared

# Precision in bits of the running variance's reciprocal root.
ROOT_PRECISION = 16


class BatchNorm(L.Kind):
    """gamma (x - mean) / sqrt(variance + epsilon) + beta."""

    op = "batch_norm"
    keras_layers = ("BatchNormalization",)
    can_fuse = True

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        axis = call.layer.axis
        (axis,) = axis if isinstance(axis, (list, tuple)) and len(axis) == 1 else (axis,)
        return L.convert_layer_axis_last(
            self._convert_last_axis, r, call, L.canonicalize_axis(axis, len(call.shapes[0]) + 1)
        )

    def _convert_last_axis(self, r: L.Reader, call: L.LayerCall) -> str:
        layer = call.layer
        weights = {"moving_mean": layer.moving_mean, "moving_variance": layer.moving_variance}
        if layer.scale:
            weights["gamma"] = layer.gamma
        if layer.center:
            weights["beta"] = layer.beta
        if r.training:
            numbers = {"momentum": float(layer.momentum), "epsilon": float(layer.epsilon)}
            frozen = not layer.trainable
            return r.add_layer(call.name, self.op, call.inputs, weights, frozen=frozen, **numbers)
        arrays = {name: L.read_weights(call.name, name, w) for name, w in weights.items()}
        return r.add_layer(
            call.name,
            "affine",
            call.inputs,
            _fold_batch_statistics(call.name, arrays, layer.epsilon),
        )

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_value(len(input_shapes) == 1, "one input", len(input_shapes))
        (x,) = input_shapes
        L.check_options(options, "momentum", "epsilon", "frozen")
        L.check_value(
            isinstance(options["frozen"], bool), "frozen true or false", options["frozen"]
        )
        L.check_weights(weights, "moving_mean", "moving_variance", optional=["gamma", "beta"])
        for name, weight_shape in weights.items():
            L.check_value(weight_shape == (x[-1],), f"{name} [{x[-1]}]", list(weight_shape))
        momentum, epsilon = options["momentum"], options["epsilon"]
        L.check_value(
            L.is_real(momentum) and 0 <= momentum <= 1, "a momentum from 0 to 1", momentum
        )
        L.check_value(
            L.is_real(epsilon) and 1e-5 <= epsilon <= 1, "an epsilon from 1e-5 to 1", epsilon
        )
        return x

    def prepare_inference(self, x: L.LayerSpec) -> L.LayerSpec:
        """Fold the statistics into a factor and a shift for each channel.

        Raises:
            RangeError: a running variance is not positive.
        """
        weights = _fold_batch_statistics(x.name, x.weights, x.options["epsilon"])
        return replace(x, op="affine", options={}, weights=weights)

    def forward_training(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        """Normalize, and run the fused layers after it.

        A frozen layer computes its inference form, as in Keras.
        """
        (x,), ops, layer, f = values, p.ops, node.layer, protocol.FACTOR
        means, variances = (
            p.get_weight(layer, f"moving_{statistic}") for statistic in ("mean", "variance")
        )
        gamma, beta = (p.get_optional_weight(layer, name) for name in ("gamma", "beta"))
        if gamma is None:
            gamma = ops.add_public(ops.mul_public(means, 0), 1 << f)
        normalized = None
        if p.is_training and not layer.options["frozen"]:
            normalized = ops.run_protocol(
                protocol.normalize_batch, x, gamma, epsilon=layer.options["epsilon"]
            )
            centered, factor = normalized.centered, normalized.factor
            momentum = layer.options["momentum"]
            new = ops.run_protocol(protocol.update_running, normalized, means, variances, momentum)
            for statistic, value in zip(("mean", "variance"), new, strict=True):
                p.new_statistics[f"{layer.name}/moving_{statistic}"] = value
        else:
            factor = ops.truncate(ops.mul(gamma, self._inverse_deviation(p, layer, variances)), f)
            # (values have fewer fractional bits than the running mean)
            mean = ops.truncate(means, f - x.fractional_bits)
            centered = ops.sub(x, mean)
        addend = None if beta is None else ops.add_fractional_bits(beta, f + x.fractional_bits)
        if node.has_fused:
            products = [BilinearShareProduct(centered, factor, sum_elementwise_products)]
            small = p.truncate_to_small_ring(node, products, addend, f)
            y, chosen = apply_fused_layers(p, node, small)
        else:
            y = ops.mul(centered, factor)
            y, chosen = ops.truncate(y if addend is None else ops.add(y, addend), f), None
        p.saved[node.output] = (factor if normalized is None else normalized, chosen)
        return y

    def _inverse_deviation(
        self, p: L.ForwardContext, layer: L.LayerSpec, variances: Shared
    ) -> Shared:
        """Return 1 / sqrt(variance + epsilon) of the running variance."""
        raised = p.ops.add_public(variances, round(layer.options["epsilon"] * 2**protocol.FACTOR))
        bits = protocol.VARIANCE_BITS
        return p.ops.run_protocol(roots.rsqrt, raised, bits, ROOT_PRECISION)

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        """Compute the gradients of the input, of gamma and of beta."""
        normalized, chosen = p.saved[node.output]
        if node.layer.options["frozen"]:
            return (
                [p.ops.mul(backpropagate_fused_layers(p, node, g, chosen), normalized)]
                if needs_input_gradient
                else [None]
            )
        gradients = p.ops.run_protocol(
            protocol.batch_norm_gradients,
            normalized,
            backpropagate_fused_layers(p, node, g, chosen),
        )
        for name, gradient in (("gamma", gradients.gamma), ("beta", gradients.beta)):
            if p.is_trained(node.layer, name):
                p.weight_gradients[f"{node.layer.name}/{name}"] = gradient
        return [gradients.x]


def _fold_batch_statistics(name: str, weights: Any, epsilon: float) -> dict[str, Array]:
    """Convert running statistics to a factor and a shift.

    Raises:
        RangeError: a running variance is not positive; the text names the layer.
    """
    mean, variance = (np.asarray(weights[f"moving_{k}"], np.float64) for k in ("mean", "variance"))
    if (variance + epsilon <= 0).any():
        raise RangeError(
            f"Expected a positive variance in layer {name!r}.",
            code="number-out-of-range",
            operation=name,
        )
    factor = np.asarray(weights.get("gamma", 1.0), np.float64) / np.sqrt(variance + epsilon)
    shift = np.asarray(weights.get("beta", 0.0), np.float64) - mean * factor
    return {"kernel": factor, "bias": shift}
