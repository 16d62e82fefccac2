"""Rescaling and Normalization by public numbers, done by the data owner where possible."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfe_bench.errors import RangeError
from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.protocols.session.sharing import Shared


def read_normalization_statistics(layer: Any, name: str) -> tuple[Array, Array]:
    """Return (factor, offset) of a Normalization, float64, one of each or one for each channel.

    Raises:
        UnsupportedLayer: the axis is not the last.
        RangeError: statistics are NaN, or a variance is negative.
    """
    mean, variance = (
        L.read_weights(name, k, w).astype(np.float64)
        for k, w in (("mean", layer.mean), ("variance", layer.variance))
    )
    if any(n != 1 for n in mean.shape[:-1]):
        raise L.UnsupportedLayer(f"axis {layer.axis}; only the last is supported, or none")
    if (variance < 0).any():
        raise RangeError(
            f"Expected a non-negative variance in layer {name!r}.",
            code="number-out-of-range",
            operation=name,
        )
    mean = mean.reshape(-1)
    deviation = np.maximum(np.sqrt(variance.reshape(-1)), 1e-7)  # as in Keras
    return (deviation, mean) if layer.invert else (1 / deviation, -mean / deviation)


def _read_rescale_numbers(value: Any) -> float | list[float]:
    array = np.asarray(value, np.float64)
    if array.ndim > 1:
        raise L.UnsupportedLayer("a number, or one for each channel, is supported")
    return float(array) if array.ndim == 0 else [float(v) for v in array]


class Rescale(L.Kind):
    """scale x + offset, of public numbers."""

    op = "rescale"
    keras_layers = ("Rescaling", "Normalization")

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        layer = call.layer
        if call.class_name == "Normalization":
            return self._convert_normalization(r, call)
        options = {
            "scale": _read_rescale_numbers(layer.scale),
            "offset": _read_rescale_numbers(layer.offset),
        }
        return r.add_layer(call.name, self.op, call.inputs, None, **options)

    def _convert_normalization(self, r: L.Reader, call: L.LayerCall) -> str:
        """Convert a Normalization: a coarse public scale, then the exact statistics as weights."""
        pair = read_normalization_statistics(call.layer, call.name)
        if r.training:
            r.private.add(call.name)
        if r.training or call.layer.invert:  # (optimize splits one at the model's end)
            return r.add_layer(
                call.name, self.op, call.inputs, None, **L.scales.as_rescale_options(pair)
            )
        first, then = L.scales.split_scale(*pair)
        rescaled = r.add_layer(
            call.name, self.op, call.inputs, None, **L.scales.as_rescale_options(first)
        )
        if L.scales.is_identity_scale(then):
            return rescaled
        channels = [np.broadcast_to(v, call.shapes[0][-1:]).copy() for v in then]
        weights: dict[str, Any] = dict(zip(("kernel", "bias"), channels, strict=True))
        return r.add_layer(r.make_unique(f"{call.name}/rest"), "affine", [rescaled], weights)

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = L.check_single_input(input_shapes, weights)
        L.check_options(options, "scale", "offset")
        for value in options.values():
            several = value if isinstance(value, (list, tuple)) else [value]
            fits = all(L.is_real(v) for v in several) and len(several) in (1, x[-1])
            L.check_value(fits, f"numbers, one or {x[-1]}", value)
        return x

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        scale, offset = np.asarray(x.options["scale"]), np.asarray(x.options["offset"])
        return np.asarray(values[0] * scale + offset)

    def forward_training(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        o, f = node.layer.options, p.precision.activation
        offset = np.rint(np.asarray(o["offset"], np.float64) * 2.0**f).astype(np.int64)
        return p.ops.add_public(
            p.rescale_activation(L.multiply_public(p.ops, values[0], o["scale"])), offset
        )

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        return [
            L.multiply_public(
                p.ops, p.rescale_gradient(g, L.FACTOR_BITS), node.layer.options["scale"]
            )
        ]
