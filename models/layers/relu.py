"""ReLU, with or without a largest value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfe_bench.models.kinds.checks import alone, need, only, real
from tfe_bench.models.kinds.kind import Kind, Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Gradients, Pass
from tfe_bench.models.kinds.planning import Planner
from tfe_bench.models.kinds.reading import Call, Reader, Unfit
from tfe_bench.models.layers.polyline import Polyline, capped, of_relu, train_bent, unbent
from tfe_bench.protocols.nn import linear
from tfe_bench.protocols.nn import relu as protocol
from tfe_bench.protocols.session.sharing import Shared

# Bits that an injection which extends a ring of k sends for each element, but for 3 k.
INJECTED = 256 + 3 * 64


def check_most(value: Any) -> None:
    """Checks a largest value."""
    need(value is None or (real(value) and value > 0), "max_value above 0 or none", value)


def relu(x: Array, most: float | None) -> Array:
    """In the clear."""
    return np.asarray(np.maximum(x, 0) if most is None else np.clip(x, 0, most))


def largest(x: Layer, fraction: int) -> int | None:
    """The largest value of a ReLU, in ring units."""
    most = x.options.get("max_value")
    return None if most is None else round(most * 2**fraction)


def capped_at(node: Node, limit: int) -> int:
    """The limit of a ReLU of values within a limit."""
    most = largest(node.layer, node.numbers.fraction)
    return limit if most is None else min(limit, most + 1)


def rectified(p: Pass, node: Node, x: Shared, bits: int = 0) -> Shared:
    """The ReLU that a node's options say, of a value over Z_2^64 or of a small ring.

    Args:
        bits: of the comparison; 0: those of the node's numbers.
    """
    ops, ring, bits = p.ops, x.ring_bits, bits or node.numbers.bits
    # what is not read whole stays in its ring, or is extended as far as it is read
    to = max(node.wide, ring)
    saved = (INJECTED - 3 * ring - 4 * to) * math.prod(node.shape)
    own = ring < 64 and saved > (node.round_bits if to > ring else 0)
    most, n = largest(node.layer, x.fractional_bits), math.prod(ops.shape(x))
    if most is None:
        count = ops.setting.exchanges(n, bits)
        if own:
            return ops.call(protocol.relu_in, x, bits, count, to)
        return ops.call(protocol.relu, x, bits, count)
    count = ops.setting.exchanges(2 * n, bits)
    return ops.call(linear.capped_relu, x, most, bits, count, to if own else None)


class Relu(Kind):
    """max(x, 0), and at most max_value."""

    op = "relu"
    pointwise = True
    keras = ("ReLU",)
    functions = ("relu", "relu6")

    def read(self, r: Reader, call: Call) -> str:
        names = ("negative_slope", "max_value", "threshold")
        given = {name: getattr(call.layer, name) for name in names}
        return self.activate(r, call.inputs[0], call.name, "relu", given)

    def activate(self, r: Reader, value: str, name: str, function: str, given: Options) -> str:
        if function == "relu6":
            given = {"max_value": 6.0}
        slope, most = float(given.get("negative_slope") or 0), given.get("max_value")
        threshold = float(given.get("threshold") or 0)
        if most is not None and most < 0:
            raise Unfit(f"max_value={most}; 0 or more is supported")
        if threshold or most == 0 or (slope and most is not None):
            return r.emit(name, Polyline.op, [value], None, **of_relu(slope, most, threshold))
        if slope:
            return r.emit(name, "leaky_relu", [value], None, alpha=slope)
        most = None if most is None else float(most)
        return r.emit(name, self.op, [value], None, max_value=most)

    @classmethod
    def plainly(cls, x: Layer) -> bool:
        """Whether a layer is a ReLU without a largest value."""
        return x.op == cls.op and x.options["max_value"] is None

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        only(options, "max_value")
        check_most(options["max_value"])
        return alone(given, weights)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return relu(values[0], x.options["max_value"])

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        f, _ = planner.most(x)
        m = planner.capped(x, planner.bounds[x.inputs[0]])
        return Numbers(f, 0, planner.width(x, f, m))

    def limit(self, node: Node, given: list[int]) -> int | None:
        return capped_at(node, node.moved(given)[0])

    def compared(self, node: Node, given: list[int]) -> int:
        most = largest(node.layer, node.numbers.fraction) or 0
        return (node.moved(given)[0] + most).bit_length() + 1

    def reads(self, node: Node, given: int) -> int:
        bits, most = node.numbers.bits, max(node.wide, node.numbers.bits)
        saved = 3 * math.prod(node.shape) * (most - bits)
        return bits if most < 64 and saved > node.round_bits else most

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        return rectified(p, node, values[0])

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        if node.layer.options["max_value"] is not None:
            return train_bent(p, node, values[0], capped(node.layer.options["max_value"]))
        y, p.kept[node.output] = p.ops.relu_with_derivative(values[0])
        return y

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """g where x is not negative, nor above the largest value."""
        if node.layer.options["max_value"] is not None:
            return [unbent(p, node, g, capped(node.layer.options["max_value"]))]
        return [p.where_positive(node, g)]
