"""ReLU, with or without a maximum."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.models.layers.polyline import (
    Polyline,
    backpropagate_activation_line,
    capped_relu_line,
    convert_relu_options,
    train_activation_line,
)
from tfe_bench.protocols.nn import linear
from tfe_bench.protocols.nn import relu as protocol
from tfe_bench.protocols.session.sharing import Shared

# Bits that an injection which extends a ring of k bits sends for each element, besides 3 k.
INJECTED = 256 + 3 * 64


def check_relu_max_value(value: Any) -> None:
    """Check the maximum of a ReLU."""
    L.check_value(
        value is None or (L.is_real(value) and value > 0), "max_value above 0 or none", value
    )


def compute_plaintext_relu(x: Array, max_value: float | None) -> Array:
    """Compute a ReLU in plaintext."""
    return np.asarray(np.maximum(x, 0) if max_value is None else np.clip(x, 0, max_value))


def find_relu_max_value(x: L.LayerSpec, fraction: int) -> int | None:
    """Return the maximum of a ReLU, in ring units."""
    max_value = x.options.get("max_value")
    return None if max_value is None else round(max_value * 2**fraction)


def cap_relu_limit(node: L.PlacedLayer, limit: int) -> int:
    """Bound a ReLU of values within a limit."""
    max_value = find_relu_max_value(node.layer, node.numbers.fraction)
    return limit if max_value is None else min(limit, max_value + 1)


def rectify_value(p: L.ForwardContext, node: L.PlacedLayer, x: Shared, bits: int = 0) -> Shared:
    """Compute a node's ReLU of a value over Z_2^64 or a small ring.

    Args:
        bits: bits of the comparison; 0: those of the node's format.
    """
    ops, ring, bits = p.ops, x.ring_bits, bits or node.numbers.bits
    # a value that is used partially stays in its ring, or is extended to the bits that are used
    to = max(node.used_bits, ring)
    saved = (INJECTED - 3 * ring - 4 * to) * math.prod(node.shape)
    in_small_ring = ring < 64 and saved > (node.round_bits if to > ring else 0)
    max_value, n = find_relu_max_value(node.layer, x.fractional_bits), math.prod(ops.get_shape(x))
    if max_value is None:
        count = ops.setting.choose_exchanges(n, bits)
        if in_small_ring:
            return ops.run_protocol(protocol.relu_in, x, bits, count, to)
        return ops.run_protocol(protocol.relu, x, bits, count)
    count = ops.setting.choose_exchanges(2 * n, bits)
    return ops.run_protocol(
        linear.capped_relu, x, max_value, bits, count, to if in_small_ring else None
    )


class Relu(L.Kind):
    """max(x, 0), and at most max_value."""

    op = "relu"
    is_pointwise = True
    keras_layers = ("ReLU",)
    keras_functions = ("relu", "relu6")

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        names = ("negative_slope", "max_value", "threshold")
        arguments = {name: getattr(call.layer, name) for name in names}
        return self.convert_activation(r, call.inputs[0], call.name, "relu", arguments)

    def convert_activation(
        self, r: L.Reader, value: str, name: str, function: str, arguments: Options
    ) -> str:
        if function == "relu6":
            arguments = {"max_value": 6.0}
        slope, max_value = float(arguments.get("negative_slope") or 0), arguments.get("max_value")
        threshold = float(arguments.get("threshold") or 0)
        if max_value is not None and max_value < 0:
            raise L.UnsupportedLayer(f"max_value={max_value}; 0 or more is supported")
        if threshold or max_value == 0 or (slope and max_value is not None):
            return r.add_layer(
                name,
                Polyline.op,
                [value],
                None,
                **convert_relu_options(slope, max_value, threshold),
            )
        if slope:
            return r.add_layer(name, "leaky_relu", [value], None, alpha=slope)
        max_value = None if max_value is None else float(max_value)
        return r.add_layer(name, self.op, [value], None, max_value=max_value)

    @classmethod
    def is_plain_relu(cls, x: L.LayerSpec) -> bool:
        """Return whether a layer is a ReLU without a maximum."""
        return x.op == cls.op and x.options["max_value"] is None

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_options(options, "max_value")
        check_relu_max_value(options["max_value"])
        return L.check_single_input(input_shapes, weights)

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return compute_plaintext_relu(values[0], x.options["max_value"])

    def plan_format(self, planner: L.LayerFormatPlanner, x: L.LayerSpec) -> L.FixedPointFormat:
        f, _ = planner.get_input_format(x)
        m = planner.cap_magnitude(x, planner.bounds[x.inputs[0]])
        return L.FixedPointFormat(f, 0, planner.choose_comparison_bits(x, f, m))

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        return cap_relu_limit(node, node.align_limits(input_limits)[0])

    def bound_comparison_bits(self, node: L.PlacedLayer, input_limits: list[int]) -> int:
        max_value = find_relu_max_value(node.layer, node.numbers.fraction) or 0
        return (node.align_limits(input_limits)[0] + max_value).bit_length() + 1

    def count_input_bits(self, node: L.PlacedLayer, input_index: int) -> int:
        bits, max_bits = node.numbers.bits, max(node.used_bits, node.numbers.bits)
        saved = 3 * math.prod(node.shape) * (max_bits - bits)
        return bits if max_bits < 64 and saved > node.round_bits else max_bits

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        return rectify_value(p, node, values[0])

    def forward_training(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        if node.layer.options["max_value"] is not None:
            return train_activation_line(
                p, node, values[0], capped_relu_line(node.layer.options["max_value"])
            )
        y, p.saved[node.output] = p.ops.relu_with_derivative(values[0])
        return y

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        """Pass g where x is between 0 and the maximum."""
        if node.layer.options["max_value"] is not None:
            return [
                backpropagate_activation_line(
                    p, node, g, capped_relu_line(node.layer.options["max_value"])
                )
            ]
        return [p.select_positive(node, g)]
