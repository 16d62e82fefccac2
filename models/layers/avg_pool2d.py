"""AveragePooling and GlobalAveragePooling, and their sums if a product absorbs the division."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import ClassVar

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.protocols.functions import reciprocal
from tfe_bench.protocols.ring import arithmetic, conv_gradients, reductions, shapes
from tfe_bench.protocols.ring.products import BilinearShareProduct, sum_matrix_products
from tfe_bench.protocols.session.sharing import Shared

# Fractional bits of a count of steps and its reciprocal, and the largest number of steps.
_COUNT_BITS, _FEWEST_BITS, _MOST_STEPS = 24, 8, 1024


class AveragePooling(L.Kind):
    """A mean of some values of each channel.

    Attributes:
        sum_op: the op of the sum kind.
    """

    sum_op: ClassVar[str]

    def count_cells(self, x: L.LayerSpec, input_shape: Shape) -> int | None:
        """Return the number of values of each mean, None if it differs."""
        raise NotImplementedError

    def plan_format(self, planner: L.LayerFormatPlanner, x: L.LayerSpec) -> L.FixedPointFormat:
        return planner.plan_factor(x)

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        return 2 * node.align_limits(input_limits)[0] + 1  # (the reciprocal is rounded)


def _sum_pooling_windows(p: L.ForwardContext, node: L.PlacedLayer, x: Shared) -> Shared:
    """Sum the cells of each window."""
    o = node.layer.options

    def sum_pooling_cells(v: Shared) -> Shared:
        return reductions.sum_pool(v, o["ksize"], o["strides"], o["padding"])

    return p.ops.apply_local(sum_pooling_cells, x, p.add_batch_axis(node.shape, x))


def _sum_image_channels(p: L.ForwardContext, node: L.PlacedLayer, x: Shared) -> Shared:
    return L.sum_axes(p.ops, x, [1, 2], node.layer.options["keepdims"])


def _list_reciprocal_pool_counts(node: L.PlacedLayer) -> Array:
    """Return 1 / the number of cells of each window, exactly, [height, width, 1]."""
    o = node.layer.options
    height, width, _ = node.input_shapes[0]
    counts = reductions.window_counts(L.parse_layer_windows(o), (height, width), tuple(o["ksize"]))
    reciprocals = np.empty(counts.shape, object)
    for place, n in np.ndenumerate(counts):
        reciprocals[place] = Fraction(1, int(n))
    return reciprocals.reshape(*counts.shape[:2], 1)


class AvgPool2D(L.WindowPooling, AveragePooling):
    """The mean of each window."""

    op = "avg_pool2d"
    keras_layers = (
        *(f"AveragePooling{n}D" for n in (1, 2, 3)),
        "AdaptiveAveragePooling3D",
    )
    sum_op = "sum_pool2d"

    def count_cells(self, x: L.LayerSpec, input_shape: Shape) -> int | None:
        return math.prod(x.options["ksize"]) if x.options["padding"] == "VALID" else None

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        (v,), o = values, x.options
        return np.asarray(
            L.sum_window_cells(v, o) / L.sum_window_cells(np.ones_like(v[:1, ..., :1]), o)
        )

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        (x,), o = values, node.layer.options
        windows = (o["ksize"], o["strides"], o["padding"], node.numbers.scale)
        return p.ops.run_protocol(reductions.avg_pool, x, *windows)

    def forward_training(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        return p.rescale_activation(
            L.multiply_public(
                p.ops, _sum_pooling_windows(p, node, values[0]), _list_reciprocal_pool_counts(node)
            )
        )

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        """Distribute each window's gradient over its cells, divided by their count."""
        o, shape = node.layer.options, p.add_batch_axis(node.input_shapes[0], g)
        input_gradient = conv_gradients.input_gradient(
            L.parse_layer_windows(o), shape[1:], depthwise=True
        )
        ones = np.ones([*o["ksize"], shape[3], 1], np.int64)

        def spread_to_cells(v: Shared) -> Shared:
            kernel = arithmetic.to_ring_tensor(self.op, ones)
            return v.map(lambda a: input_gradient([a], [kernel]))

        g = L.multiply_public(
            p.ops, p.rescale_gradient(g, L.FACTOR_BITS), _list_reciprocal_pool_counts(node)
        )
        return [p.ops.apply_local(spread_to_cells, g, shape)]


class MaskedMean(L.Kind):
    """The mean of the steps [n, channels] that a mask [n] selects; arbitrary if it selects none."""

    op = "masked_mean"

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_options(options)
        L.check_weights(weights)
        fits = (
            len(input_shapes) == 2
            and len(input_shapes[0]) == 2
            and input_shapes[1] == input_shapes[0][:1]
        )
        L.check_value(fits, "steps [n, channels] and a mask [n]", [list(s) for s in input_shapes])
        L.check_value(
            input_shapes[0][0] <= _MOST_STEPS, f"{_MOST_STEPS} steps at most", input_shapes[0][0]
        )
        return input_shapes[0][1:]

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        v, mask = values
        shown = (mask >= 0.5).astype(np.float64)[:, None]
        return np.asarray((shown @ v)[:, 0] / np.maximum(shown.sum(2), 1))

    def plan_format(self, planner: L.LayerFormatPlanner, x: L.LayerSpec) -> L.FixedPointFormat:
        f, m = planner.get_fractional_bits(x.inputs[0]), planner.get_magnitude(x.inputs[0])
        steps = planner.shapes[x.inputs[0]][0].bit_length()
        # (an ulp of the reciprocal counts once for each step)
        bits = min(_COUNT_BITS, L.PRODUCT_BITS - f - max(m, 0) - steps)
        if bits < steps + _FEWEST_BITS:
            planner.report_unfit(x, f"adds values up to {2.0**m:g}")
        return L.FixedPointFormat(f, max(bits, steps + _FEWEST_BITS))

    def check_format(self, node: L.PlacedLayer) -> None:
        super().check_format(node)
        steps = node.input_shapes[0][0].bit_length()
        if not steps + _FEWEST_BITS <= node.numbers.scale <= _COUNT_BITS:
            raise UsageError(
                f"does not support {node.numbers.scale} fractional bits for its count of steps.",
                code="invalid-fixed-point-format",
            )

    def can_check_range(self, node: L.PlacedLayer, input_limits: list[int] | None) -> bool:
        steps = node.input_shapes[0][0].bit_length()
        return input_limits is None or input_limits[0] << steps + node.numbers.scale < 1 << 62

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        return input_limits[0] + (input_limits[0] >> 8) + 16

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        x, mask = values
        ops, (steps, channels), bits = p.ops, node.input_shapes[0], node.numbers.scale
        row = L.reshape_value(ops, mask, p.add_batch_axis((1, steps), mask))
        total = ops.sum_products([BilinearShareProduct(row, x, sum_matrix_products)])
        total = ops.truncate(total, mask.fractional_bits) if mask.fractional_bits else total
        total = L.reshape_value(ops, total, p.add_batch_axis((channels,), x))
        # the count as a fraction of 2^k steps: an ulp of its reciprocal is 2^k times smaller
        k = steps.bit_length()
        count = L.convert_scale(ops, L.sum_axes(ops, mask, [1], True), bits - k)
        ops.check_range(count, 1 << bits - k, steps << bits - k)
        part = replace(count, fractional_bits=bits)
        share = ops.run_protocol(reciprocal.reciprocal_in, part, 0.9 / 2**k, (steps + 0.1) / 2**k)
        mean = replace(ops.mul(total, share), fractional_bits=total.fractional_bits + bits + k)
        return ops.truncate(mean, bits + k)


class GlobalAvgPool2D(L.GlobalPooling, AveragePooling):
    """The mean of each channel."""

    handles_masks = True
    call_arguments = ("inputs", "mask")

    op = "global_avg_pool2d"
    keras_layers = tuple(f"GlobalAveragePooling{n}D" for n in (1, 2, 3))
    sum_op = "global_sum_pool2d"

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        value, mask = call.arguments["inputs"], call.arguments.get("mask")
        if mask is None and not value.mask:
            return super().convert_layer(
                r, replace(call, inputs=call.inputs[:1], shapes=call.shapes[:1])
            )
        layer, name = call.layer, call.name
        if call.class_name != "GlobalAveragePooling1D":
            raise L.UnsupportedLayer("of values with a mask; GlobalAveragePooling1D supports one")
        if mask is not None and not isinstance(mask, L.CallValue):
            raise L.UnsupportedLayer("called with public numbers as a mask")
        mask_name = value.mask if mask is None else L.masks.check_sequence_mask(r, mask.name)
        input_name, (steps, channels) = value.name, value.shape
        if layer.data_format == "channels_first":
            steps, channels = channels, steps
            input_name = L.add_transpose_layer(r, input_name, f"{name}/steps_first", [2, 1])
        if mask is not None and mask.shape != (steps,):
            raise L.UnsupportedLayer(f"called with a mask {[None, *mask.shape]} of {steps} steps")
        mean_name = name if len(call.shape) == 1 else r.make_unique(f"{name}/mean")
        mean = r.add_layer(mean_name, MaskedMean.op, [input_name, mask_name])
        if mean_name == name:
            return mean
        return r.add_layer(name, "reshape", [mean], None, shape=list(call.shape))

    def count_cells(self, x: L.LayerSpec, input_shape: Shape) -> int | None:
        return math.prod(input_shape[:2])

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return np.asarray(values[0].mean((1, 2), keepdims=x.options["keepdims"]))

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        (x,), scale = values, node.numbers.scale
        keep = node.layer.options["keepdims"]
        return p.ops.run_protocol(reductions.global_avg_pool, x, keep, scale)

    def forward_training(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        _, height, width, _ = p.ops.get_shape(values[0])
        total = _sum_image_channels(p, node, values[0])
        return p.rescale_activation(L.multiply_public(p.ops, total, Fraction(1, height * width)))

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        """Distribute the gradient over all cells, divided by their count."""
        ops, shape = p.ops, p.add_batch_axis(node.input_shapes[0], g)
        batch, height, width, channels = shape
        g = L.reshape_value(ops, g, (batch, 1, 1, channels))
        factor = Fraction(1, height * width)
        g = L.multiply_public(
            ops,
            g if L.find_negative_log2(factor) is not None else p.rescale_gradient(g, L.FACTOR_BITS),
            factor,
        )
        return [ops.apply_local(lambda v: shapes.broadcast_to(v, shape), g, shape)]


class SumPool2D(L.WindowPooling):
    """The sum of each window: an average whose division a product has absorbed."""

    op = "sum_pool2d"
    is_local = True

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return L.sum_window_cells(values[0], x.options)

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        return node.align_limits(input_limits)[0] * math.prod(map(int, node.layer.options["ksize"]))

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        return _sum_pooling_windows(p, node, values[0])


class GlobalSumPool2D(L.GlobalPooling):
    """The sum of each channel."""

    op = "global_sum_pool2d"
    is_local = True

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return np.asarray(values[0].sum((1, 2), keepdims=x.options["keepdims"]))

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        return node.align_limits(input_limits)[0] * math.prod(node.input_shapes[0][:2])

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        return _sum_image_channels(p, node, values[0])
