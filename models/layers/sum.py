"""A sum of products and of values, truncated once, into which products and residuals are fused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.affine import Affine
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.models.layers.conv1d import Conv1D, DepthwiseConv1D, GroupedConv1D
from tfe_bench.models.layers.conv2d import Conv2D, DepthwiseConv2D, GroupedConv2D
from tfe_bench.models.layers.conv3d import Conv3D
from tfe_bench.models.layers.conv_transpose import Conv1DTranspose, Conv2DTranspose
from tfe_bench.models.layers.dense import Dense
from tfe_bench.models.layers.linear import WeightedProduct, add_layer_bias
from tfe_bench.models.layers.relu import (
    cap_relu_limit,
    check_relu_max_value,
    compute_plaintext_relu,
    rectify_value,
)
from tfe_bench.protocols.nn import linear
from tfe_bench.protocols.ring import small_ring
from tfe_bench.protocols.ring.products import RING, BilinearShareProduct, exchange_truncated_sum
from tfe_bench.protocols.session.sharing import Shared

_LINEAR: tuple[WeightedProduct, ...] = (
    *(Conv2D(), DepthwiseConv2D(), GroupedConv2D(), Conv2DTranspose()),
    *(Conv1D(), DepthwiseConv1D(), GroupedConv1D(), Conv1DTranspose()),
    *(Conv3D(), Dense(), Affine()),
)
TERMS: Mapping[str, WeightedProduct] = {kind.op: kind for kind in _LINEAR}
ACTIVATIONS = ("none", "relu")


def _find_weight_magnitudes(weights: Any, bits: int) -> Array:
    """Return |weights| as ring elements with this many fractional bits."""
    return np.asarray(np.rint(np.abs(np.asarray(weights, np.float64)) * 2.0**bits))


def find_lifted_sum_ring(numbers: L.FixedPointFormat) -> int:
    """Return the bits k of the ring of a sum without comparison; right below 2^(k-2), its bound."""
    return min(63 - (numbers.scale - numbers.fraction), numbers.bits + 1)


class SumOfProducts(L.Kind):
    """sum_i +-x_i . kernel_i + sum_j +-x_j + bias, and optionally its ReLU."""

    op = "sum"
    is_bounded = True

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_value(len(input_shapes) > 0, "inputs", input_shapes)
        L.check_options(options, "terms", "activation", "max_value")
        terms = options["terms"]
        fits = isinstance(terms, (list, tuple)) and len(terms) == len(input_shapes)
        L.check_value(
            fits and all(isinstance(t, Mapping) for t in terms), "a term for each input", terms
        )
        L.check_value(
            options["activation"] in ACTIVATIONS, "a known activation", options["activation"]
        )
        check_relu_max_value(options["max_value"])
        result: Shape | None = None
        names = {"bias"} & set(weights)
        products = 0
        for i, (x, term) in enumerate(zip(input_shapes, terms, strict=True)):
            L.check_value(term.get("sign") in (1, -1), "terms with sign 1 or -1", term.get("sign"))
            op = term.get("op")
            if op == "skip":
                L.check_options(term, "op", "sign")
                shape = x
            else:
                L.check_value(op in TERMS, f"terms of {list(TERMS)} and skip", op)
                name = f"kernel{i}"
                L.check_value(name in weights, f"the weights {name!r}", sorted(weights))
                rest = {k: v for k, v in term.items() if k not in ("op", "sign")}
                shape = TERMS[str(op)].infer_kernel_product_shape(x, rest, weights[name])
                names.add(name)
                products += 1
            L.check_value(result in (None, shape), "terms of one shape", [result, shape])
            result = shape
        L.check_value(products > 0, "a product among its terms", [t.get("op") for t in terms])
        L.check_value(names == set(weights), f"the weights {sorted(names)}", sorted(weights))
        assert result is not None
        L.check_bias(weights, result[-1])
        return result

    def describe_layer(self, x: L.LayerSpec) -> str:
        terms = "+".join(dict.fromkeys(str(t["op"]) for t in x.options["terms"]))
        activation = x.options["activation"]
        return terms if activation == "none" else f"{terms}, {activation}"

    def find_position_axis(
        self, x: L.LayerSpec, input_shapes: Sequence[Shape], axes: Sequence[int]
    ) -> int:
        """Return the positions' axis; products over the channels of a position keep it."""
        axis = L.get_common_axis(axes)
        for i, (shape, term) in enumerate(zip(input_shapes, x.options["terms"], strict=True)):
            if term["op"] not in ("skip", Dense.op, Affine.op) or axis == len(shape):
                raise L.NotPositionwise("multiplies values of several positions")
            places = term["op"] == Affine.op and len(x.weights[f"kernel{i}"].shape) == len(shape)
            if places and x.weights[f"kernel{i}"].shape[axis - 1] != 1:
                raise L.NotPositionwise("has a factor for each position")
        return axis

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        total: Any = 0.0
        for i, (value, term) in enumerate(zip(values, x.options["terms"], strict=True)):
            if term["op"] != "skip":
                kernel = np.asarray(x.weights[f"kernel{i}"], np.float64)
                value = TERMS[term["op"]].multiply_plaintext_kernel(value, kernel, term)
            total = total + term["sign"] * value
        total = add_layer_bias(total, x)
        observe(f"{x.name}:sum", total)
        return (
            total
            if x.options["activation"] == "none"
            else compute_plaintext_relu(total, x.options["max_value"])
        )

    # ---- fixed point

    def plan_format(self, planner: L.LayerFormatPlanner, x: L.LayerSpec) -> L.FixedPointFormat:
        is_fused = x.options["activation"] != "none"
        m = planner.cap_magnitude(x, planner.bounds[f"{x.name}:sum"])
        wanted_scales = []
        for i, (name, term) in enumerate(zip(x.inputs, x.options["terms"], strict=True)):
            if term["op"] == "skip":
                wanted_scales.append(planner.get_fractional_bits(name) + 1)
                continue
            top = float(np.abs(x.weights[f"kernel{i}"]).max(initial=0.0))
            exact = L.SIGNIFICANT_BITS - math.floor(math.log2(top)) if top > 0 else 0
            wanted_scales.append(
                planner.get_fractional_bits(name)
                + min(max(planner.fraction, exact), L.MOST_WEIGHT_BITS)
            )
        scale = min(max(wanted_scales), L.PRODUCT_BITS - max(m, 0))
        if not is_fused and x.name in planner.outputs:
            self._check_weight_bits(planner, x, scale, m)
            # no later layer needs a smaller value
            return L.FixedPointFormat(scale, scale, min(max(scale + m + 1, 2), 63))
        fraction = min(planner.choose_fractional_bits(x.name), L.planning.MOST_BITS - 1 - m)
        if fraction < L.FEWEST_BITS:
            planner.report_unfit(x, f"reaches {2.0**m:g}")
        fraction = max(fraction, L.FEWEST_BITS)
        self._check_weight_bits(planner, x, scale, m)
        scale = max(scale, fraction + 1)
        return L.FixedPointFormat(
            fraction, min(scale, fraction + 48), planner.choose_comparison_bits(x, fraction, m)
        )

    def _check_weight_bits(
        self, planner: L.LayerFormatPlanner, x: L.LayerSpec, scale: int, m: int
    ) -> None:
        for name, term in zip(x.inputs, x.options["terms"], strict=True):
            least = 0 if term["op"] == "skip" else L.FEWEST_WEIGHT_BITS
            if scale - planner.get_fractional_bits(name) < least:
                planner.report_unfit(
                    x, f"reaches {2.0**m:g}, which leaves its weights too few bits"
                )
                return

    def check_format(self, node: L.PlacedLayer) -> None:
        numbers = node.numbers
        if max(node.input_scales) > numbers.scale:
            raise UsageError(
                "has fewer fractional bits than an input.", code="invalid-fixed-point-format"
            )
        drop = numbers.scale - numbers.fraction
        is_fused = node.layer.options["activation"] != "none"
        fits = 0 <= drop <= 48 if not is_fused else drop >= 1 and drop + numbers.bits <= 64
        if not fits:
            raise UsageError(
                f"drops {drop} of {numbers.scale} fractional bits and compares {numbers.bits}, "
                "which do "
                "not fit.",
                code="invalid-fixed-point-format",
            )

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        numbers = node.numbers
        if numbers.scale == numbers.fraction:
            return None  # an output without truncation
        max_value = 3 << (find_lifted_sum_ring(numbers) - 2)
        return (
            max_value
            if node.layer.options["activation"] == "none"
            else cap_relu_limit(node, max_value)
        )

    def bound_sum_bits(self, node: L.PlacedLayer, input_limits: list[int]) -> int:
        x, scale, total = node.layer, node.numbers.scale, 0.0
        for i, (limit, shape, term) in enumerate(
            zip(input_limits, node.input_shapes, x.options["terms"], strict=True)
        ):
            if term["op"] == "skip":
                total += limit * 2.0 ** (scale - node.input_scales[i])
                continue
            ring = _find_weight_magnitudes(x.weights[f"kernel{i}"], scale - node.input_scales[i])
            ones = np.ones((1, *shape))
            total += limit * float(
                TERMS[term["op"]].multiply_plaintext_kernel(ones, ring, term).max()
            )
        if "bias" in x.weights:
            total += float(_find_weight_magnitudes(x.weights["bias"], scale).max(initial=0.0))
        # (rounding in double precision is less than one unit in the last place)
        return math.ceil(math.log2(total * (1 + 2.0**-32) + 1)) + 1

    def bound_comparison_bits(self, node: L.PlacedLayer, input_limits: list[int]) -> int:
        return 0  # values within the range are planned for

    def can_check_range(self, node: L.PlacedLayer, input_limits: list[int] | None) -> bool:
        numbers = node.numbers
        if numbers.scale == numbers.fraction:
            return True
        return find_lifted_sum_ring(numbers) >= 3 and numbers.reach <= RING - 1

    # ---- private inference

    def count_input_bits(self, node: L.PlacedLayer, input_index: int) -> int:
        numbers, is_fused = node.numbers, node.layer.options["activation"] != "none"
        drop = self.count_dropped_bits(node)
        if not drop:
            return RING
        if node.is_range_checked:
            read, _ = self._plan_checked_rings(node, drop)
        else:
            read = drop + (
                self._choose_relu_ring(node, drop)
                if is_fused
                else self._choose_plain_ring(node, drop)
            )
        skipped = node.layer.options["terms"][input_index]["op"] == "skip"
        return read - (numbers.scale - node.input_scales[input_index] if skipped else 0)

    def count_dropped_bits(self, node: L.PlacedLayer) -> int:
        """Return the fractional bits that its truncation drops."""
        return node.numbers.scale - node.numbers.fraction

    @staticmethod
    def count_checked_bits(node: L.PlacedLayer, least: int) -> int:
        """Return the bits of a checked sum that show whether its low bits are its value."""
        reach = node.numbers.reach or RING
        # (one more where rounding up the largest value could exceed the lift)
        return min(max(reach + (reach == least), least), RING)

    def _plan_checked_rings(self, node: L.PlacedLayer, drop: int) -> tuple[int, int]:
        """Return (the bits of a checked sum that are used, the ring in which it is opened).

        The ring is twice as large as planned, as a lift requires, and twice again if the value
        stays in it for a comparison. Or it holds all bits of the value that are used, if the sum
        determines them anyway: that sends no more than a lift (and less than its round, before a
        ReLU).
        """
        is_fused = node.layer.options["activation"] != "none"
        ring = find_lifted_sum_ring(node.numbers) + is_fused
        checked_bits = self.count_checked_bits(node, drop + ring)
        missing_bits = node.used_bits - ring
        sent = 2 * missing_bits * math.prod(node.shape) if is_fused else 0
        if 0 < missing_bits <= checked_bits - drop - ring and sent <= node.round_bits:
            return checked_bits, node.used_bits
        return checked_bits, ring

    def _choose_plain_ring(self, node: L.PlacedLayer, drop: int) -> int:
        """Choose the ring in which a sum without comparison is opened; a lift extends it.

        One more bit of it saves a bit of each value, and costs three and more of each input;
        opening all bits that are used saves a round.
        """
        max_bits = min(node.used_bits, RING - drop)
        lifted_bits = min(max_bits, find_lifted_sum_ring(node.numbers))
        saved = (3 * self._count_product_inputs(node) - math.prod(node.shape)) * (
            max_bits - lifted_bits
        )
        return (
            lifted_bits
            if saved > (node.round_bits if max_bits == node.used_bits else 0)
            else max_bits
        )

    def _choose_relu_ring(self, node: L.PlacedLayer, drop: int) -> int:
        """Choose the ring in which a ReLU's input is opened: the compared bits, or the value's.

        One more bit costs three and more of each value and of each input; opening all bits that are
        used saves the round in which the value is extended.
        """
        bits, max_bits = node.numbers.bits, max(node.used_bits, node.numbers.bits)
        saved = 3 * (self._count_product_inputs(node) + math.prod(node.shape)) * (max_bits - bits)
        return bits if saved > node.round_bits or max_bits + drop > RING else max_bits

    @staticmethod
    def _count_product_inputs(node: L.PlacedLayer) -> int:
        """Count the input elements of products."""
        pairs = zip(node.input_shapes, node.layer.options["terms"], strict=True)
        return sum(math.prod(shape) for shape, term in pairs if term["op"] != "skip")

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        ops, x, numbers = p.ops, node.layer, node.numbers
        products: list[BilinearShareProduct] = []
        addend: Shared | None = None
        flat = any(t["op"] == Dense.op for t in x.options["terms"]) and len(node.shape) > 1
        for i, (value, term) in enumerate(zip(values, x.options["terms"], strict=True)):
            value = replace(value, bits=0)  # (the bits of the sum's modulus are right)
            if flat:  # matrix products have rank 2
                value = L.reshape_value(ops, value, Dense().flatten_shape(ops.get_shape(value)))
            if term["op"] == "skip":
                part = ops.add_fractional_bits(value, numbers.scale)
                part = part if term["sign"] > 0 else ops.neg(part)
                addend = part if addend is None else ops.add(addend, part)
            else:
                two = TERMS[term["op"]].get_bilinear_map(term)
                products.append(BilinearShareProduct(value, p.get_weight(x, f"kernel{i}"), two))
        offset = p.get_optional_weight(x, "bias")
        if offset is not None:
            addend = offset if addend is None else ops.add(addend, offset)
        y = self._compute_sum(p, node, products, addend)
        return L.reshape_value(ops, y, p.add_batch_axis(node.shape, values[0])) if flat else y

    def _compute_sum(
        self,
        p: L.ForwardContext,
        node: L.PlacedLayer,
        products: list[BilinearShareProduct],
        addend: Shared | None,
    ) -> Shared:
        ops, x, numbers = p.ops, node.layer, node.numbers
        drop = numbers.scale - numbers.fraction
        fused = x.options["activation"] != "none"
        if ops.range_check is not None and drop:
            bits, (checked_bits, ring) = (
                find_lifted_sum_ring(numbers),
                self._plan_checked_rings(node, drop),
            )
            small, own_shares = ops.run_protocol(
                exchange_truncated_sum, "truncated_sum", products, addend, drop, ring, checked_bits
            )
            # (the bits that are rectified, besides the comparison)
            to = ring if fused else node.used_bits
            y = ops.run_protocol(
                linear.monitored_lift,
                ops.range_check,
                small,
                own_shares,
                checked_bits - drop,
                to,
                bits,
            )
            return rectify_value(p, node, y, bits + 1) if fused else y
        if fused:
            small = ops.sum_truncated_products(
                products, addend, drop, self._choose_relu_ring(node, drop)
            )
            return rectify_value(p, node, small)
        if not drop:
            return ops.sum_products(products, addend)
        ring = self._choose_plain_ring(node, drop)
        return ops.run_protocol(
            small_ring.truncated_product_sum, products, addend, drop, node.used_bits, ring
        )
