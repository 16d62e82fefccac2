"""LayerNormalization, RMSNormalization, GroupNormalization and UnitNormalization.

Without gamma and beta, which become an affine map, they compute y = u / sqrt(s + epsilon). s is
never opened and costs one element for each row (a row is the set of values of one s).
base/row_scheme.py defines how s is summed. A constant row has u = 0, and so y = 0, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes, row_scheme
from tfe_bench.protocols.functions import roots
from tfe_bench.protocols.functions.normalize import shift_for_normalization
from tfe_bench.protocols.ring import small_ring
from tfe_bench.protocols.ring.products import (
    RING,
    BilinearMap,
    BilinearShareProduct,
    sum_elementwise_products,
)
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.sharing import Shared

STATISTICS = ("variance", "mean_square", "sum")
_MOST_DROPPED = 48
# In training: integer bits of values, and fractional bits of the reciprocal root over n.
TRAINED_BITS, _SLOPE_BITS = 14, 28
# Bits by which an input may exceed its bounds before a range check detects it.
_SPARE = 2


def _build_norm_statistic_map(
    scheme: row_scheme.NormalizationScheme, axes: Sequence[int]
) -> BilinearMap:
    """Build the bilinear map of rows whose value at (u, u) is the statistic's sum."""
    centered = scheme.statistic == "variance" and not scheme.rounded_scale
    times = 1 if scheme.rounded_scale else scheme.numerator_factor

    def compute_norm_statistic(a: list[Any], b: list[Any]) -> Any:
        def sum_norm_axes(v: Any) -> Any:
            return tensor_ops.reduce_sum(v, list(axes), keepdims=True)

        total = sum_norm_axes(sum_elementwise_products(a, b))
        total = total * times if times > 1 else total
        if not centered:
            return total
        return total - sum_elementwise_products(
            [sum_norm_axes(v) for v in a], [sum_norm_axes(v) for v in b]
        )

    return compute_norm_statistic


class Normalize(L.Kind):
    """Rows divided by the root of their variance, their mean square or their sum of squares."""

    op = "normalize"
    keras_layers = (
        *("LayerNormalization", "RMSNormalization"),
        *("GroupNormalization", "UnitNormalization"),
    )
    is_memory_heavy = True

    # ---- conversion from Keras

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        layer, rank = call.layer, len(call.shapes[0]) + 1
        if call.class_name == "GroupNormalization":
            if layer.axis != -1 and layer.axis < 1:
                raise L.UnsupportedLayer(f"axis {layer.axis}; -1 and axes from 1 on are supported")
            return L.convert_layer_axis_last(
                self._read_groups, r, call, L.canonicalize_axis(layer.axis, rank)
            )
        if getattr(layer, "rms_scaling", False):
            raise L.UnsupportedLayer(
                "rms_scaling=True, which divides by a deviation; use RMSNormalization"
            )
        axis_list = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
        axes = sorted(L.canonicalize_axis(axis, rank) for axis in axis_list)
        if len(set(axes)) < len(axes):
            raise L.UnsupportedLayer(f"axis {layer.axis}; each axis once")
        if call.class_name == "RMSNormalization" and axes != [*range(rank - len(axes), rank)]:
            raise L.UnsupportedLayer(
                f"axis {layer.axis}; the last axes are supported"
            )  # (Keras scales these axes)
        if call.class_name == "UnitNormalization":
            options = {"axes": axes, "by": "sum", "epsilon": 0.0}
            return r.add_layer(call.name, self.op, call.inputs, None, **options)
        by = "mean_square" if call.class_name == "RMSNormalization" else "variance"
        weights = {"kernel": getattr(layer, "scale" if by == "mean_square" else "gamma", None)}
        weights["bias"] = getattr(layer, "beta", None)
        if r.training and len(_present_norm_weights(weights)) > 0 and axes != [rank - 1]:
            raise L.UnsupportedLayer("of other axes than the last, which is not trained")
        options = {"axes": axes, "by": by, "epsilon": float(layer.epsilon)}
        name = (
            r.make_unique(f"{call.name}/normalized")
            if len(_present_norm_weights(weights)) > 0
            else call.name
        )
        normalized = r.add_layer(name, self.op, call.inputs, None, **options)
        return _add_norm_affine_layer(r, call, normalized, axes, weights)

    def _read_groups(self, r: L.Reader, call: L.LayerCall) -> str:
        layer, shape = call.layer, call.shapes[0]
        groups = shape[-1] if layer.groups == -1 else int(layer.groups)
        cut = L.add_reshape_layer(
            r, call.inputs[0], f"{call.name}/groups", (*shape[:-1], groups, shape[-1] // groups)
        )
        axes = [*range(1, len(shape)), len(shape) + 1]
        name = r.make_unique(f"{call.name}/normalized")
        options = {"axes": axes, "by": "variance", "epsilon": float(layer.epsilon)}
        normalized = r.add_layer(name, self.op, [cut], None, **options)
        normalized = L.add_reshape_layer(r, normalized, f"{call.name}/channels", shape)
        weights = {"kernel": layer.gamma, "bias": layer.beta}
        return _add_norm_affine_layer(r, call, normalized, [len(shape)], weights)

    # ---- model description

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = L.check_single_input(input_shapes, weights)
        L.check_options(options, "axes", "by", "epsilon")
        axes = options["axes"]
        fits = isinstance(axes, (list, tuple)) and len(axes) > 0 and all(map(L.is_whole, axes))
        fits = fits and len(set(axes)) == len(axes) and max(axes) <= len(x)
        L.check_value(fits, f"axes from 1 to {len(x)} (0 is the batch)", axes)
        L.check_value(options["by"] in STATISTICS, f"a statistic of {STATISTICS}", options["by"])
        epsilon = options["epsilon"]
        L.check_value(
            L.is_real(epsilon) and 0 <= epsilon <= 1024, "an epsilon from 0 to 1024", epsilon
        )
        return x

    def find_position_axis(
        self, x: L.LayerSpec, input_shapes: Sequence[Shape], axes: Sequence[int]
    ) -> int:
        if axes[0] in x.options["axes"]:
            raise L.NotPositionwise("divides by a statistic of several positions")
        return axes[0]

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        (v,), axes, by = values, tuple(x.options["axes"]), x.options["by"]
        u = v - v.mean(axes, keepdims=True) if by == "variance" else v
        s = (u * u).sum(axes, keepdims=True)
        s = s if by == "sum" else s / math.prod(v.shape[a] for a in axes)
        root = np.sqrt(s + x.options["epsilon"])
        if by != "sum" and x.options["epsilon"] > 0:
            observe(f"{x.name}:root", root)
            observe(f"{x.name}:inverse", 1 / root)
        return np.asarray(np.divide(u, root, out=np.zeros_like(u), where=root > 0))

    # ---- fixed point

    def plan_format(self, planner: L.LayerFormatPlanner, x: L.LayerSpec) -> L.FixedPointFormat:
        input_scale, m = planner.get_input_format(x)
        shape, max_magnitude = planner.shapes[x.inputs[0]], m + _SPARE
        ends = [planner.bounds.get(f"{x.name}:{k}") for k in ("root", "inverse")]
        scheme = row_scheme.plan_exact_norm_scheme(x, shape, input_scale, max_magnitude, *ends)
        if scheme is None:
            rounded = row_scheme.plan_norm_scheme(x, shape, input_scale, max_magnitude)
            if rounded is None:
                planner.report_unfit(x, f"sums squares of values up to {2.0**m:g}")
            assert rounded is not None
            scheme = row_scheme.narrow_norm_scheme(rounded, *ends)
        fraction = min(planner.fraction, scheme.product_bits - 1)
        return L.FixedPointFormat(fraction, scheme.rounded_scale, scheme.bits, scheme.low)

    def _build_scheme(self, node: L.PlacedLayer) -> row_scheme.NormalizationScheme:
        o, numbers = node.layer.options, node.numbers
        count = math.prod(node.input_shapes[0][axis - 1] for axis in o["axes"])
        bits = numbers.scale, numbers.bits, numbers.low
        scheme = row_scheme.NormalizationScheme(
            count, o["by"], float(o["epsilon"]), node.input_scales[0], *bits
        )
        if not scheme.is_exact:
            return scheme
        scheme = scheme.limit_precision(node.numbers.fraction)
        least = self._count_dropped_bits(scheme, node) + self._choose_result_ring(node)
        if node.is_range_checked and not node.input_limits:
            return scheme.minimize_for_any_limit(least)
        limit = node.input_limits[0] if node.input_limits else None
        return scheme.minimize_bits(limit, least) or scheme

    @staticmethod
    def _count_dropped_bits(scheme: row_scheme.NormalizationScheme, node: L.PlacedLayer) -> int:
        """Return the bits that u times its root loses."""
        return scheme.product_bits - node.numbers.fraction

    def _choose_result_ring(self, node: L.PlacedLayer) -> int:
        """Return the smallest ring for the result."""
        return min(self._largest_output(node).bit_length() + 2, node.used_bits)

    def check_format(self, node: L.PlacedLayer) -> None:
        scheme = self._build_scheme(node)
        fits = (
            scheme.rounded_scale <= scheme.input_scale
            and scheme.lower_bits + 2 <= scheme.bits <= L.PRODUCT_BITS
        )
        fits = fits and (not scheme.low or scheme.lower_bits == scheme.low)
        if not fits or not 1 <= scheme.product_bits - node.numbers.fraction <= _MOST_DROPPED:
            raise UsageError(
                f"does not support {node.numbers} for rows of {scheme.count} values.",
                code="invalid-fixed-point-format",
            )

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        """Bound the output: no element is more than a root of n deviations away."""
        return self._largest_output(node)

    def _largest_output(self, node: L.PlacedLayer) -> int:
        count = math.prod(node.input_shapes[0][axis - 1] for axis in node.layer.options["axes"])
        return math.isqrt(count << (2 * node.numbers.fraction)) * 17 // 16 + 2

    def bound_comparison_bits(self, node: L.PlacedLayer, input_limits: list[int]) -> int:
        """Return the bits of X: the planned ones if samples bound X, which is range-checked."""
        return (
            node.numbers.bits
            if node.numbers.low
            else self._bound_statistic_bits(node, input_limits)
        )

    def can_check_range(self, node: L.PlacedLayer, input_limits: list[int] | None) -> bool:
        if input_limits is None:
            return True
        scheme = self._build_scheme(node)
        if scheme.is_exact:
            return scheme.minimize_bits(input_limits[0]) is not None
        return self._bound_statistic_bits(node, input_limits) <= L.PRODUCT_BITS

    def _bound_statistic_bits(self, node: L.PlacedLayer, input_limits: list[int]) -> int:
        return self._build_scheme(node).bound_bits(
            input_limits[0].bit_length() - node.input_scales[0]
        )

    # ---- private inference

    def count_input_bits(self, node: L.PlacedLayer, input_index: int) -> int:
        return self._build_scheme(node).read_bits

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        return self._normalize_rows(p, node, values[0], self._build_scheme(node))[0]

    def _normalize_rows(
        self,
        p: L.ForwardContext,
        node: L.PlacedLayer,
        x: Shared,
        scheme: row_scheme.NormalizationScheme,
    ) -> tuple[Shared, Shared]:
        """Return the value, and the reciprocal root over n (over 1 for a sum)."""
        ops = p.ops
        axes = list(node.layer.options["axes"])
        x = replace(x, bits=0)  # (the bits that are used are right)
        u = ops.mul_public(x, scheme.numerator_factor)
        if scheme.statistic == "variance":
            u = ops.sub(u, L.sum_axes(ops, x, axes, keepdims=True))
        v = x
        if scheme.rounded_scale:
            v = u if scheme.statistic == "variance" else x
            v = ops.truncate(v, scheme.dropped_bits) if scheme.dropped_bits else v
        two, beyond = _build_norm_statistic_map(scheme, axes), RING - scheme.read_bits
        s = ops.sum_products([BilinearShareProduct(v, v, two)])
        s = ops.add_public(s, scheme.to_ring(Fraction(scheme.epsilon)))
        if scheme.low:
            ends = (1 << scheme.low, (1 << scheme.bits) - 1)
            ops.check_range(ops.mul_public(s, 1 << beyond), *(end << beyond for end in ends))
        if scheme.coarse:
            cut = replace(shift_for_normalization(x, -scheme.coarse), bits=0)
            beyond += scheme.coarse
            second = ops.mul_public(
                ops.sum_products([BilinearShareProduct(cut, cut, two)]), 1 << beyond
            )
            ops.check_range(second, 0, scheme.coarse_bound << beyond)
        root = ops.run_protocol(
            roots.reciprocal_root,
            s,
            *(scheme.root_bits, scheme.bits, scheme.lower_bits, scheme.precision),
            Fraction(scheme.root_ratio[0], 1 << row_scheme.RATIO_BITS),
        )
        factor = replace(root, fractional_bits=scheme.product_bits - u.fractional_bits)
        return self._multiply_root(p, node, u, factor, scheme.read_bits), replace(
            root, fractional_bits=scheme.product_bits - scheme.input_scale
        )

    def _multiply_root(
        self, p: L.ForwardContext, node: L.PlacedLayer, u: Shared, root: Shared, read: int
    ) -> Shared:
        """Multiply u, with this many right bits, by the root of its row; the result is bounded."""
        drop = u.fractional_bits + root.fractional_bits - node.numbers.fraction
        if self._largest_output(node).bit_length() + 3 > RING - drop:
            return p.ops.truncate(p.ops.mul(u, root), drop)
        # (one more bit of the ring costs three bits, and saves four of the lift)
        product, ring = (
            BilinearShareProduct(u, root, sum_elementwise_products),
            min(node.used_bits, read - drop),
        )
        return p.ops.run_protocol(
            small_ring.truncated_product_sum, [product], None, drop, node.used_bits, ring
        )

    # ---- training

    def forward_training(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        """Normalize values of any size that a training has."""
        f = p.precision.activation
        scheme = row_scheme.plan_norm_scheme(node.layer, node.input_shapes[0], f, TRAINED_BITS)
        assert scheme is not None  # (see explain_untrainable)
        y, root = self._normalize_rows(p, node, values[0], scheme)
        if p.is_training:
            p.saved[node.output] = y, L.convert_scale(p.ops, root, _SLOPE_BITS)
        return y

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        """Return (g - mean of g - y (mean of g y)) times the root, or without the mean of g.

        For a sum, the mean of g y is a sum too, and the root is not divided by n.
        """
        ops, axes, by = p.ops, list(node.layer.options["axes"]), node.layer.options["by"]
        count = math.prod(node.input_shapes[0][axis - 1] for axis in axes) if by != "sum" else 1
        (y, root), g = p.saved[node.output], p.rescale_gradient(g)
        along = p.rescale_gradient(L.sum_axes(ops, ops.mul(g, y), axes, keepdims=True))
        gradient = ops.mul_public(g, count)
        if by == "variance":
            gradient = ops.sub(gradient, L.sum_axes(ops, g, axes, keepdims=True))
        part = ops.mul(y, along)
        gradient = p.rescale_gradient(
            ops.sub(ops.add_fractional_bits(gradient, part.fractional_bits), part)
        )
        return [ops.mul(gradient, root)]

    def explain_untrainable(self, x: L.LayerSpec, input_shapes: list[Shape]) -> str:
        scheme = row_scheme.plan_norm_scheme(
            x, input_shapes[0], L.TrainingPrecision().activation, TRAINED_BITS
        )
        return "" if scheme is not None else f"{x.op} of too many values"


def _present_norm_weights(weights: dict[str, Any]) -> list[Any]:
    return [w for w in weights.values() if w is not None]


def _add_norm_affine_layer(
    r: L.Reader, call: L.LayerCall, normalized: str, axes: list[int], weights: dict[str, Any]
) -> str:
    """Add gamma and beta of some axes: a factor and a shift of these axes, joined as the last."""
    if not _present_norm_weights(weights):
        return normalized
    if r.training and weights["kernel"] is None:
        raise L.UnsupportedLayer("of a beta without gamma, which is not trained")
    shape, rank = call.shapes[0], len(call.shapes[0])
    count = math.prod(shape[axis - 1] for axis in axes)
    arrays = {name: w for name, w in weights.items() if w is not None}
    if not r.training:  # (training needs the variables themselves)
        arrays = {name: np.asarray(w).reshape(-1) for name, w in arrays.items()}
        arrays.setdefault("kernel", np.ones(count, np.float32))
    rest = [axis for axis in range(1, rank + 1) if axis not in axes]
    order = [*rest, *axes]
    if order != sorted(order):
        normalized = L.add_transpose_layer(r, normalized, f"{call.name}/axes_last", order)
    moved_shape = tuple(shape[axis - 1] for axis in order)
    if len(axes) > 1:
        flat = (*moved_shape[: len(rest)], count)
        normalized = L.add_reshape_layer(r, normalized, f"{call.name}/row", flat)
    normalized = r.add_layer(call.name, "affine", [normalized], arrays)
    if len(axes) > 1:
        normalized = L.add_reshape_layer(r, normalized, f"{call.name}/axes", moved_shape)
    if order != sorted(order):
        inverse_order = [order.index(axis) + 1 for axis in range(1, rank + 1)]
        normalized = L.add_transpose_layer(r, normalized, f"{call.name}/axes_back", inverse_order)
    return normalized
