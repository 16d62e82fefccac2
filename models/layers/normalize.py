"""LayerNormalization, RMSNormalization, GroupNormalization and UnitNormalization.

What is left of them when their gamma and beta are an affine map: y = u / sqrt(s + epsilon), of
which s is opened to nobody and costs one element for each row (a row is what one s is of).

How s is summed: kinds/row_scheme.py.  A constant row has u = 0, and so y = 0, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds.checks import alone, need, only, real, whole
from tfe_bench.models.kinds.kind import Kind, Mixes, Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Gradients, Pass, Precision, brought, summed
from tfe_bench.models.kinds.planning import PRODUCT_BITS, Planner
from tfe_bench.models.kinds.reading import Call, Reader, Unfit
from tfe_bench.models.kinds.reading import axis_of as axis_of_keras
from tfe_bench.models.kinds.row_scheme import (
    RATIO_BITS,
    Scheme,
    narrowed,
    planned,
    unrounded,
)
from tfe_bench.models.kinds.turning import axis_last, reshaped, turned
from tfe_bench.protocols.functions import roots
from tfe_bench.protocols.functions.normalize import shifted
from tfe_bench.protocols.ring import small_ring
from tfe_bench.protocols.ring.products import RING, Product, Two, elementwise
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.sharing import Shared

STATISTICS = ("variance", "mean_square", "sum")
_MOST_DROPPED = 48
# In training: of values, in front of the point, and of the reciprocal root over n, behind it.
TRAINED_BITS, _SLOPE_BITS = 14, 28
# What comes to a layer may exceed its bounds so far, in bits, before a check of ranges notices.
_SPARE = 2


def _product(scheme: Scheme, axes: Sequence[int]) -> Two:
    """The bilinear form of rows whose value of (u, u) is what is summed."""
    centered = scheme.by == "variance" and not scheme.own
    times = 1 if scheme.own else scheme.times

    def two(a: list[Any], b: list[Any]) -> Any:
        def sums(v: Any) -> Any:
            return local.reduce_sum(v, list(axes), keepdims=True)

        total = sums(elementwise(a, b))
        total = total * times if times > 1 else total
        if not centered:
            return total
        return total - elementwise([sums(v) for v in a], [sums(v) for v in b])

    return two


class Normalize(Kind):
    """Rows over the root of their variance, their mean square or their sum of squares."""

    op = "normalize"
    keras = (
        *("LayerNormalization", "RMSNormalization"),
        *("GroupNormalization", "UnitNormalization"),
    )
    heavy = True

    # ---- from Keras

    def read(self, r: Reader, call: Call) -> str:
        layer, rank = call.layer, len(call.shapes[0]) + 1
        if call.kind == "GroupNormalization":
            if layer.axis != -1 and layer.axis < 1:
                raise Unfit(f"axis {layer.axis}; -1 and axes from 1 on are supported")
            return axis_last(self._read_groups, r, call, axis_of_keras(layer.axis, rank))
        if getattr(layer, "rms_scaling", False):
            raise Unfit("rms_scaling=True, which divides by a deviation; use RMSNormalization")
        several = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
        axes = sorted(axis_of_keras(axis, rank) for axis in several)
        if len(set(axes)) < len(axes):
            raise Unfit(f"axis {layer.axis}; each axis once")
        if call.kind == "RMSNormalization" and axes != [*range(rank - len(axes), rank)]:
            raise Unfit(f"axis {layer.axis}; the last axes are supported")  # (Keras scales these)
        if call.kind == "UnitNormalization":
            options = {"axes": axes, "by": "sum", "epsilon": 0.0}
            return r.emit(call.name, self.op, call.inputs, None, **options)
        by = "mean_square" if call.kind == "RMSNormalization" else "variance"
        weights = {"kernel": getattr(layer, "scale" if by == "mean_square" else "gamma", None)}
        weights["bias"] = getattr(layer, "beta", None)
        if r.training and len(_held(weights)) > 0 and axes != [rank - 1]:
            raise Unfit("of other axes than the last, which is not trained")
        options = {"axes": axes, "by": by, "epsilon": float(layer.epsilon)}
        name = r.unique(f"{call.name}/normalized") if len(_held(weights)) > 0 else call.name
        found = r.emit(name, self.op, call.inputs, None, **options)
        return _scaled(r, call, found, axes, weights)

    def _read_groups(self, r: Reader, call: Call) -> str:
        layer, shape = call.layer, call.shapes[0]
        groups = shape[-1] if layer.groups == -1 else int(layer.groups)
        cut = reshaped(
            r, call.inputs[0], f"{call.name}/groups", (*shape[:-1], groups, shape[-1] // groups)
        )
        axes = [*range(1, len(shape)), len(shape) + 1]
        name = r.unique(f"{call.name}/normalized")
        options = {"axes": axes, "by": "variance", "epsilon": float(layer.epsilon)}
        found = r.emit(name, self.op, [cut], None, **options)
        found = reshaped(r, found, f"{call.name}/channels", shape)
        weights = {"kernel": layer.gamma, "bias": layer.beta}
        return _scaled(r, call, found, [len(shape)], weights)

    # ---- as data

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = alone(given, weights)
        only(options, "axes", "by", "epsilon")
        axes = options["axes"]
        fits = isinstance(axes, (list, tuple)) and len(axes) > 0 and all(map(whole, axes))
        fits = fits and len(set(axes)) == len(axes) and max(axes) <= len(x)
        need(fits, f"axes from 1 to {len(x)} (0 is the batch)", axes)
        need(options["by"] in STATISTICS, f"a statistic of {STATISTICS}", options["by"])
        epsilon = options["epsilon"]
        need(real(epsilon) and 0 <= epsilon <= 1024, "an epsilon from 0 to 1024", epsilon)
        return x

    def positions(self, x: Layer, given: Sequence[Shape], axes: Sequence[int]) -> int:
        if axes[0] in x.options["axes"]:
            raise Mixes("divides by a statistic of several positions")
        return axes[0]

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        (v,), axes, by = values, tuple(x.options["axes"]), x.options["by"]
        u = v - v.mean(axes, keepdims=True) if by == "variance" else v
        s = (u * u).sum(axes, keepdims=True)
        s = s if by == "sum" else s / math.prod(v.shape[a] for a in axes)
        root = np.sqrt(s + x.options["epsilon"])
        if by != "sum" and x.options["epsilon"] > 0:
            seen(f"{x.name}:root", root)
            seen(f"{x.name}:inverse", 1 / root)
        return np.asarray(np.divide(u, root, out=np.zeros_like(u), where=root > 0))

    # ---- in fixed point

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        given, m = planner.most(x)
        shape, most = planner.shapes[x.inputs[0]], m + _SPARE
        ends = [planner.bounds.get(f"{x.name}:{k}") for k in ("root", "inverse")]
        found = unrounded(x, shape, given, most, *ends)
        if found is None:
            rounded = planned(x, shape, given, most)
            if rounded is None:
                planner.lost(x, f"sums squares of values up to {2.0**m:g}")
            assert rounded is not None
            found = narrowed(rounded, *ends)
        fraction = min(planner.fraction, found.product - 1)
        return Numbers(fraction, found.own, found.bits, found.low)

    def _scheme(self, node: Node) -> Scheme:
        o, numbers = node.layer.options, node.numbers
        count = math.prod(node.given[0][axis - 1] for axis in o["axes"])
        bits = numbers.scale, numbers.bits, numbers.low
        found = Scheme(count, o["by"], float(o["epsilon"]), node.scales[0], *bits)
        if not found.exact:
            return found
        found = found.as_precise(node.numbers.fraction)
        least = self._dropped(found, node) + self._opened(node)
        if node.watched and not node.limits:
            return found.of_any(least)
        limit = node.limits[0] if node.limits else None
        return found.in_fewest(limit, least) or found

    @staticmethod
    def _dropped(scheme: Scheme, node: Node) -> int:
        """Bits that u times its root loses."""
        return scheme.product - node.numbers.fraction

    def _opened(self, node: Node) -> int:
        """The smallest ring for its result."""
        return min(self._largest(node).bit_length() + 2, node.wide)

    def check(self, node: Node) -> None:
        scheme = self._scheme(node)
        fits = scheme.own <= scheme.given and scheme.lowest + 2 <= scheme.bits <= PRODUCT_BITS
        fits = fits and (not scheme.low or scheme.lowest == scheme.low)
        if not fits or not 1 <= scheme.product - node.numbers.fraction <= _MOST_DROPPED:
            raise UsageError(f"has {node.numbers} for {scheme.count} values at a time.")

    def limit(self, node: Node, given: list[int]) -> int | None:
        """No element is more than a root of n deviations away."""
        return self._largest(node)

    def _largest(self, node: Node) -> int:
        count = math.prod(node.given[0][axis - 1] for axis in node.layer.options["axes"])
        return math.isqrt(count << (2 * node.numbers.fraction)) * 17 // 16 + 2

    def compared(self, node: Node, given: list[int]) -> int:
        """Where samples say what X is, it is watched, and compared as planned."""
        return node.numbers.bits if node.numbers.low else self._most(node, given)

    def watchable(self, node: Node, given: list[int] | None) -> bool:
        if given is None:
            return True
        scheme = self._scheme(node)
        if scheme.exact:
            return scheme.in_fewest(given[0]) is not None
        return self._most(node, given) <= PRODUCT_BITS

    def _most(self, node: Node, given: list[int]) -> int:
        return self._scheme(node).most(given[0].bit_length() - node.scales[0])

    # ---- in private

    def reads(self, node: Node, given: int) -> int:
        return self._scheme(node).read

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        return self._normalized(p, node, values[0], self._scheme(node))[0]

    def _normalized(self, p: Pass, node: Node, x: Shared, scheme: Scheme) -> tuple[Shared, Shared]:
        """The value, and the reciprocal root over n, if not by sum."""
        ops = p.ops
        axes = list(node.layer.options["axes"])
        x = replace(x, bits=0)  # (as many bits as are read are right)
        u = ops.times(x, scheme.times)
        if scheme.by == "variance":
            u = ops.sub(u, summed(ops, x, axes, keepdims=True))
        v = x
        if scheme.own:
            v = u if scheme.by == "variance" else x
            v = ops.truncate(v, scheme.lost) if scheme.lost else v
        two, beyond = _product(scheme, axes), RING - scheme.read
        s = ops.product([Product(v, v, two)])
        s = ops.add_public(s, scheme.ring(Fraction(scheme.epsilon)))
        if scheme.low:
            ends = (1 << scheme.low, (1 << scheme.bits) - 1)
            ops.note(ops.times(s, 1 << beyond), *(end << beyond for end in ends))
        if scheme.coarse:
            cut = replace(shifted(x, -scheme.coarse), bits=0)
            beyond += scheme.coarse
            second = ops.times(ops.product([Product(cut, cut, two)]), 1 << beyond)
            ops.note(second, 0, scheme.most_coarse << beyond)
        root = ops.call(
            roots.reciprocal_root,
            s,
            *(scheme.root, scheme.bits, scheme.lowest, scheme.precision),
            Fraction(scheme.ratio[0], 1 << RATIO_BITS),
        )
        factor = replace(root, fractional_bits=scheme.product - u.fractional_bits)
        return self._multiplied(p, node, u, factor, scheme.read), replace(
            root, fractional_bits=scheme.product - scheme.given
        )

    def _multiplied(self, p: Pass, node: Node, u: Shared, root: Shared, read: int) -> Shared:
        """u, of which so many bits are right, times the root of its row, which has a limit."""
        drop = u.fractional_bits + root.fractional_bits - node.numbers.fraction
        if self._largest(node).bit_length() + 3 > RING - drop:
            return p.ops.truncate(p.ops.mul(u, root), drop)
        # (a bit more of the ring is three bits sent, and four less of the lift)
        product, ring = Product(u, root, elementwise), min(node.wide, read - drop)
        return p.ops.call(small_ring.product, [product], None, drop, node.wide, ring)

    # ---- in training

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        """With values of any size that a training has."""
        f = p.precision.activation
        scheme = planned(node.layer, node.given[0], f, TRAINED_BITS)
        assert scheme is not None  # (see untrained)
        y, root = self._normalized(p, node, values[0], scheme)
        if p.learning:
            p.kept[node.output] = y, brought(p.ops, root, _SLOPE_BITS)
        return y

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """(g - the mean of g - y (the mean of g y)) over the root, or without the mean of g.

        By a sum that of g y is one, too, and the root is not over n.
        """
        ops, axes, by = p.ops, list(node.layer.options["axes"]), node.layer.options["by"]
        count = math.prod(node.given[0][axis - 1] for axis in axes) if by != "sum" else 1
        (y, root), g = p.kept[node.output], p.settled(g)
        along = p.settled(summed(ops, ops.mul(g, y), axes, keepdims=True))
        found = ops.times(g, count)
        if by == "variance":
            found = ops.sub(found, summed(ops, g, axes, keepdims=True))
        part = ops.mul(y, along)
        found = p.settled(ops.sub(ops.shifted(found, part.fractional_bits), part))
        return [ops.mul(found, root)]

    def untrained(self, x: Layer, given: list[Shape]) -> str:
        found = planned(x, given[0], Precision().activation, TRAINED_BITS)
        return "" if found is not None else f"{x.op} of too many values"


def _held(weights: dict[str, Any]) -> list[Any]:
    return [w for w in weights.values() if w is not None]


def _scaled(r: Reader, call: Call, found: str, axes: list[int], weights: dict[str, Any]) -> str:
    """gamma and beta of some axes, as a factor and a shift of those axes as one, which is last."""
    if not _held(weights):
        return found
    if r.training and weights["kernel"] is None:
        raise Unfit("of a beta without gamma, which is not trained")
    shape, rank = call.shapes[0], len(call.shapes[0])
    count = math.prod(shape[axis - 1] for axis in axes)
    arrays = {name: w for name, w in weights.items() if w is not None}
    if not r.training:  # (which knows the variables)
        arrays = {name: np.asarray(w).reshape(-1) for name, w in arrays.items()}
        arrays.setdefault("kernel", np.ones(count, np.float32))
    rest = [axis for axis in range(1, rank + 1) if axis not in axes]
    order = [*rest, *axes]
    if order != sorted(order):
        found = turned(r, found, f"{call.name}/axes_last", order)
    moved = tuple(shape[axis - 1] for axis in order)
    if len(axes) > 1:
        flat = (*moved[: len(rest)], count)
        found = reshaped(r, found, f"{call.name}/row", flat)
    found = r.emit(call.name, "affine", [found], arrays)
    if len(axes) > 1:
        found = reshaped(r, found, f"{call.name}/axes", moved)
    if order != sorted(order):
        back = [order.index(axis) + 1 for axis in range(1, rank + 1)]
        found = turned(r, found, f"{call.name}/axes_back", back)
    return found
