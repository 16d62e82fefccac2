"""A sum of products and of values, truncated once: what products and residuals are fused into."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds.checks import bias, need, only
from tfe_bench.models.kinds.kind import Kind, Mixes, Watch, one_axis
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Pass, reshaped
from tfe_bench.models.kinds.planning import (
    FEWEST_BITS,
    FEWEST_WEIGHT_BITS,
    MOST_BITS,
    MOST_WEIGHT_BITS,
    PRODUCT_BITS,
    SIGNIFICANT_BITS,
    Planner,
)
from tfe_bench.models.layers.affine import Affine
from tfe_bench.models.layers.conv1d import Conv1D, DepthwiseConv1D, GroupedConv1D
from tfe_bench.models.layers.conv2d import Conv2D, DepthwiseConv2D, GroupedConv2D
from tfe_bench.models.layers.conv3d import Conv3D
from tfe_bench.models.layers.conv_transpose import Conv1DTranspose, Conv2DTranspose
from tfe_bench.models.layers.dense import Dense
from tfe_bench.models.layers.linear import Linear, biased
from tfe_bench.models.layers.relu import capped_at, check_most, rectified, relu
from tfe_bench.protocols.nn import linear
from tfe_bench.protocols.ring import small_ring
from tfe_bench.protocols.ring.products import RING, Product, truncated
from tfe_bench.protocols.session.sharing import Shared

_LINEAR: tuple[Linear, ...] = (
    *(Conv2D(), DepthwiseConv2D(), GroupedConv2D(), Conv2DTranspose()),
    *(Conv1D(), DepthwiseConv1D(), GroupedConv1D(), Conv1DTranspose()),
    *(Conv3D(), Dense(), Affine()),
)
TERMS: Mapping[str, Linear] = {kind.op: kind for kind in _LINEAR}
ACTIVATIONS = ("none", "relu")


def _magnitudes(weights: Any, bits: int) -> Array:
    """|weights| as ring elements of so many fractional bits."""
    return np.asarray(np.rint(np.abs(np.asarray(weights, np.float64)) * 2.0**bits))


def lifted(numbers: Numbers) -> int:
    """The ring Z_2^k of a sum that is not compared; right below 2^(k-2), a planned sum's bound."""
    return min(63 - (numbers.scale - numbers.fraction), numbers.bits + 1)


class Sum(Kind):
    """sum_i +-x_i . kernel_i + sum_j +-x_j + bias, and a ReLU of it."""

    op = "sum"
    bounded = True

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        need(len(given) > 0, "inputs", given)
        only(options, "terms", "activation", "max_value")
        terms = options["terms"]
        fits = isinstance(terms, (list, tuple)) and len(terms) == len(given)
        need(fits and all(isinstance(t, Mapping) for t in terms), "a term for each input", terms)
        need(options["activation"] in ACTIVATIONS, "a known activation", options["activation"])
        check_most(options["max_value"])
        result: Shape | None = None
        names = {"bias"} & set(weights)
        products = 0
        for i, (x, term) in enumerate(zip(given, terms, strict=True)):
            need(term.get("sign") in (1, -1), "terms with sign 1 or -1", term.get("sign"))
            op = term.get("op")
            if op == "skip":
                only(term, "op", "sign")
                shape = x
            else:
                need(op in TERMS, f"terms of {list(TERMS)} and skip", op)
                name = f"kernel{i}"
                need(name in weights, f"the weights {name!r}", sorted(weights))
                rest = {k: v for k, v in term.items() if k not in ("op", "sign")}
                shape = TERMS[str(op)].product_shape(x, rest, weights[name])
                names.add(name)
                products += 1
            need(result in (None, shape), "terms of one shape", [result, shape])
            result = shape
        need(products > 0, "a product among its terms", [t.get("op") for t in terms])
        need(names == set(weights), f"the weights {sorted(names)}", sorted(weights))
        assert result is not None
        bias(weights, result[-1])
        return result

    def label(self, x: Layer) -> str:
        terms = "+".join(dict.fromkeys(str(t["op"]) for t in x.options["terms"]))
        activation = x.options["activation"]
        return terms if activation == "none" else f"{terms}, {activation}"

    def positions(self, x: Layer, given: Sequence[Shape], axes: Sequence[int]) -> int:
        """Products with all channels of a position, or of each channel, are of it alone."""
        axis = one_axis(axes)
        for i, (shape, term) in enumerate(zip(given, x.options["terms"], strict=True)):
            if term["op"] not in ("skip", Dense.op, Affine.op) or axis == len(shape):
                raise Mixes("multiplies values of several positions")
            places = term["op"] == Affine.op and len(x.weights[f"kernel{i}"].shape) == len(shape)
            if places and x.weights[f"kernel{i}"].shape[axis - 1] != 1:
                raise Mixes("has a factor for each position")
        return axis

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        total: Any = 0.0
        for i, (value, term) in enumerate(zip(values, x.options["terms"], strict=True)):
            if term["op"] != "skip":
                kernel = np.asarray(x.weights[f"kernel{i}"], np.float64)
                value = TERMS[term["op"]].multiplied(value, kernel, term)
            total = total + term["sign"] * value
        total = biased(total, x)
        seen(f"{x.name}:sum", total)
        return total if x.options["activation"] == "none" else relu(total, x.options["max_value"])

    # ---- in fixed point

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        fused = x.options["activation"] != "none"
        m = planner.capped(x, planner.bounds[f"{x.name}:sum"])
        wanted = []
        for i, (name, term) in enumerate(zip(x.inputs, x.options["terms"], strict=True)):
            if term["op"] == "skip":
                wanted.append(planner.of(name) + 1)
                continue
            top = float(np.abs(x.weights[f"kernel{i}"]).max(initial=0.0))
            exact = SIGNIFICANT_BITS - math.floor(math.log2(top)) if top > 0 else 0
            wanted.append(planner.of(name) + min(max(planner.fraction, exact), MOST_WEIGHT_BITS))
        scale = min(max(wanted), PRODUCT_BITS - max(m, 0))
        if not fused and x.name in planner.outputs:
            self._fits(planner, x, scale, m)
            # nothing is left that would need a smaller value
            return Numbers(scale, scale, min(max(scale + m + 1, 2), 63))
        fraction = min(planner.finest(x.name), MOST_BITS - 1 - m)
        if fraction < FEWEST_BITS:
            planner.lost(x, f"reaches {2.0**m:g}")
        fraction = max(fraction, FEWEST_BITS)
        self._fits(planner, x, scale, m)
        scale = max(scale, fraction + 1)
        return Numbers(fraction, min(scale, fraction + 48), planner.width(x, fraction, m))

    def _fits(self, planner: Planner, x: Layer, scale: int, m: int) -> None:
        for name, term in zip(x.inputs, x.options["terms"], strict=True):
            least = 0 if term["op"] == "skip" else FEWEST_WEIGHT_BITS
            if scale - planner.of(name) < least:
                planner.lost(x, f"reaches {2.0**m:g}, which leaves its weights too few bits")
                return

    def check(self, node: Node) -> None:
        numbers = node.numbers
        if max(node.scales) > numbers.scale:
            raise UsageError("has fewer fractional bits than an input.")
        drop = numbers.scale - numbers.fraction
        fused = node.layer.options["activation"] != "none"
        fits = 0 <= drop <= 48 if not fused else drop >= 1 and drop + numbers.bits <= 64
        if not fits:
            raise UsageError(
                f"drops {drop} of {numbers.scale} fractional bits and compares {numbers.bits}."
            )

    def limit(self, node: Node, given: list[int]) -> int | None:
        numbers = node.numbers
        if numbers.scale == numbers.fraction:
            return None  # an output as it is
        most = 3 << (lifted(numbers) - 2)
        return most if node.layer.options["activation"] == "none" else capped_at(node, most)

    def reach(self, node: Node, given: list[int]) -> int:
        x, scale, total = node.layer, node.numbers.scale, 0.0
        for i, (limit, shape, term) in enumerate(
            zip(given, node.given, x.options["terms"], strict=True)
        ):
            if term["op"] == "skip":
                total += limit * 2.0 ** (scale - node.scales[i])
                continue
            ring = _magnitudes(x.weights[f"kernel{i}"], scale - node.scales[i])
            ones = np.ones((1, *shape))
            total += limit * float(TERMS[term["op"]].multiplied(ones, ring, term).max())
        if "bias" in x.weights:
            total += float(_magnitudes(x.weights["bias"], scale).max(initial=0.0))
        # (what is rounded in double precision is less than the unit in the last place)
        return math.ceil(math.log2(total * (1 + 2.0**-32) + 1)) + 1

    def compared(self, node: Node, given: list[int]) -> int:
        return 0  # what is in its range is planned for

    def watchable(self, node: Node, given: list[int] | None) -> bool:
        numbers = node.numbers
        if numbers.scale == numbers.fraction:
            return True
        return lifted(numbers) >= 3 and numbers.reach <= RING - 1

    # ---- in private

    def reads(self, node: Node, given: int) -> int:
        numbers, fused = node.numbers, node.layer.options["activation"] != "none"
        drop = self.drop(node)
        if not drop:
            return RING
        if node.watched:
            read, _ = self._watched(node, drop)
        else:
            read = drop + (self._opened(node, drop) if fused else self._ring(node, drop))
        skipped = node.layer.options["terms"][given]["op"] == "skip"
        return read - (numbers.scale - node.scales[given] if skipped else 0)

    def drop(self, node: Node) -> int:
        """Fractional bits that its truncation drops."""
        return node.numbers.scale - node.numbers.fraction

    @staticmethod
    def whole(node: Node, least: int) -> int:
        """The bits of a watched sum that tell whether its lowest are all that there is of it."""
        reach = node.numbers.reach or RING
        # (one more where the largest could be rounded up to what lifts no more)
        return min(max(reach + (reach == least), least), RING)

    def _watched(self, node: Node, drop: int) -> tuple[int, int]:
        """(the bits of a watched sum that are read, the ring in which it is opened).

        Twice as large as planned, as what is lifted has to be, and twice again where the value
        stays there to be compared; or all that is read of the value, where the sum says it anyway:
        that sends no more than a lift (and less than its round, where a ReLU follows).
        """
        fused = node.layer.options["activation"] != "none"
        ring = lifted(node.numbers) + fused
        whole = self.whole(node, drop + ring)
        more = node.wide - ring
        sent = 2 * more * math.prod(node.shape) if fused else 0
        if 0 < more <= whole - drop - ring and sent <= node.round_bits:
            return whole, node.wide
        return whole, ring

    def _ring(self, node: Node, drop: int) -> int:
        """The ring in which a sum is opened that nothing bends; it is lifted if more is read.

        A bit more of it saves a bit of each value, and costs three and more of each that comes in;
        where all that is read is opened, a round is saved.
        """
        most = min(node.wide, RING - drop)
        small = min(most, lifted(node.numbers))
        saved = (3 * self._given(node) - math.prod(node.shape)) * (most - small)
        return small if saved > (node.round_bits if most == node.wide else 0) else most

    def _opened(self, node: Node, drop: int) -> int:
        """The ring in which what a ReLU is taken of is opened: what is compared, or its value's.

        A bit more costs three and more of each value and of what comes in; to open all that is read
        saves the round in which it is extended.
        """
        bits, most = node.numbers.bits, max(node.wide, node.numbers.bits)
        saved = 3 * (self._given(node) + math.prod(node.shape)) * (most - bits)
        return bits if saved > node.round_bits or most + drop > RING else most

    @staticmethod
    def _given(node: Node) -> int:
        """Elements that come in to be multiplied."""
        pairs = zip(node.given, node.layer.options["terms"], strict=True)
        return sum(math.prod(shape) for shape, term in pairs if term["op"] != "skip")

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        ops, x, numbers = p.ops, node.layer, node.numbers
        products: list[Product] = []
        addend: Shared | None = None
        flat = any(t["op"] == Dense.op for t in x.options["terms"]) and len(node.shape) > 1
        for i, (value, term) in enumerate(zip(values, x.options["terms"], strict=True)):
            value = replace(value, bits=0)  # (as many bits as the sum is read modulo are right)
            if flat:  # matrix products are of rank 2
                value = reshaped(ops, value, Dense().rows(ops.shape(value)))
            if term["op"] == "skip":
                part = ops.shifted(value, numbers.scale)
                part = part if term["sign"] > 0 else ops.neg(part)
                addend = part if addend is None else ops.add(addend, part)
            else:
                two = TERMS[term["op"]].bilinear(term)
                products.append(Product(value, p.weight(x, f"kernel{i}"), two))
        offset = p.weight_or_none(x, "bias")
        if offset is not None:
            addend = offset if addend is None else ops.add(addend, offset)
        y = self._exchanged(p, node, products, addend)
        return reshaped(ops, y, p.batched(node.shape, values[0])) if flat else y

    def _exchanged(
        self, p: Pass, node: Node, products: list[Product], addend: Shared | None
    ) -> Shared:
        ops, x, numbers = p.ops, node.layer, node.numbers
        drop = numbers.scale - numbers.fraction
        fused = x.options["activation"] != "none"
        if ops.watch is not None and drop:
            bits, (whole, ring) = lifted(numbers), self._watched(node, drop)
            small, own = ops.call(truncated, "truncated_sum", products, addend, drop, ring, whole)
            # (of what is rectified beside the comparison)
            to = ring if fused else node.wide
            y = ops.call(linear.watched_lift, ops.watch, small, own, whole - drop, to, bits)
            return rectified(p, node, y, bits + 1) if fused else y
        if fused:
            small = ops.truncated_product(products, addend, drop, self._opened(node, drop))
            return rectified(p, node, small)
        if not drop:
            return ops.product(products, addend)
        ring = self._ring(node, drop)
        return ops.call(small_ring.product, products, addend, drop, node.wide, ring)
