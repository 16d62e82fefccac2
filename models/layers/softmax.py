"""Softmax along one axis, and its logarithm. Training folds a last softmax into its loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.models.layers.smooth import BoundedSmoothActivation, SmoothActivation
from tfe_bench.protocols.nn import activations
from tfe_bench.protocols.session.sharing import Shared


class _AxisActivation(SmoothActivation):
    """A function of all values along one axis."""

    is_pointwise = False

    def map_activation_options(self, name: str, rank: int, arguments: Options) -> Options:
        return {"axis": L.canonicalize_axis(arguments["axis"], rank)}

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = L.check_single_input(input_shapes, weights)
        L.read_axis(options, len(x))
        return x

    def find_position_axis(
        self, x: L.LayerSpec, input_shapes: Sequence[Shape], axes: Sequence[int]
    ) -> int:
        if x.options["axis"] == axes[0]:
            raise L.NotPositionwise("divides by a sum over positions")
        return axes[0]

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        bits, axis = node.numbers.bits, node.layer.options["axis"]
        x = L.convert_scale(p.ops, values[0], node.numbers.fraction)
        profile = p.ops.setting.profile
        return p.ops.run_protocol(self.protocol, x, axis, bits=bits, profile=profile)


class Softmax(_AxisActivation, BoundedSmoothActivation):
    """e^x_i / sum_j e^x_j."""

    op = "softmax"
    keras_layers = ("Softmax",)
    keras_functions = ("softmax",)
    protocol = staticmethod(activations.softmax)

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        axis = L.canonicalize_axis(call.layer.axis, r.rank)
        return r.add_layer(call.name, self.op, call.inputs, None, axis=axis)

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        (v,), axis = values, x.options["axis"]
        e = np.exp(v - v.max(axis, keepdims=True))
        return np.asarray(e / e.sum(axis, keepdims=True))

    def forward_training(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        p.saved[node.output] = y = self.forward(p, node, *values)
        return y

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        """Return y (g - the sum of g y)."""
        ops, y, axis = p.ops, p.saved[node.output], node.layer.options["axis"]
        part = ops.mul(p.rescale_gradient(g), y)
        every = p.rescale_gradient(L.sum_axes(ops, part, [axis], keepdims=True))
        return [ops.sub(part, ops.mul(y, every))]


class LogSoftmax(_AxisActivation):
    """x_i - log sum_j e^x_j."""

    op = "log_softmax"
    keras_functions = ("log_softmax",)
    protocol = staticmethod(activations.log_softmax)

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        (v,), axis = values, x.options["axis"]
        d = v - v.max(axis, keepdims=True)
        return np.asarray(d - np.log(np.exp(d).sum(axis, keepdims=True)))

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        """Bound the output: twice the largest input, plus the logarithm of the number of values."""
        classes = int(node.shape[node.layer.options["axis"] - 1])
        return (
            2 * node.align_limits(input_limits)[0]
            + (classes.bit_length() << node.numbers.fraction)
            + 2
        )

    def forward_training(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        """Compute the value, and the softmax for the backward pass."""
        (x,), axis, bits = values, node.layer.options["axis"], node.numbers.bits
        if p.is_training:
            profile = p.ops.setting.profile
            shares = p.ops.run_protocol(activations.softmax, x, axis, bits=bits, profile=profile)
            p.saved[node.output] = shares
        return self.forward(p, node, x)

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        """Return g less the softmax times the sum of g."""
        ops, y, axis = p.ops, p.saved[node.output], node.layer.options["axis"]
        g = p.rescale_gradient(g)
        part = ops.mul(y, L.sum_axes(ops, g, [axis], keepdims=True))
        return [ops.sub(ops.add_fractional_bits(g, part.fractional_bits), part)]
