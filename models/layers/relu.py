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
from tfe_bench.protocols.nn import linear
from tfe_bench.protocols.nn import relu as protocol
from tfe_bench.protocols.session.sharing import Shared


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


def rectified(p: Pass, node: Node, x: Shared) -> Shared:
    """The ReLU that a node's options say, of a value over Z_2^64 or of a small ring."""
    ops, ring = p.ops, x.ring_bits
    bits, most = node.numbers.bits if ring == 64 else ring, largest(node.layer, x.fractional_bits)
    n = math.prod(ops.shape(x))
    if most is None:
        count = ops.setting.exchanges(n, bits)
        return ops.call(protocol.relu, x, bits, count)
    count = ops.setting.exchanges(2 * n, bits)
    return ops.call(linear.capped_relu, x, most, bits, count)


class Relu(Kind):
    """max(x, 0), and at most max_value."""

    op = "relu"
    pointwise = True
    keras = ("ReLU",)
    functions = ("relu", "relu6")

    def read(self, r: Reader, call: Call) -> str:
        layer = call.layer
        slope = float(layer.negative_slope or 0)
        most = None if layer.max_value is None else float(layer.max_value)
        if layer.threshold:
            raise Unfit(f"threshold={layer.threshold}; only 0 is supported")
        if slope and most is not None:
            raise Unfit("negative_slope together with max_value")
        if slope:
            return r.emit(call.name, "leaky_relu", call.inputs, None, alpha=slope)
        if most == 0:
            raise Unfit("max_value=0")
        return r.emit(call.name, self.op, call.inputs, None, max_value=most)

    def function(self, name: str, rank: int) -> Options:
        return {"max_value": 6.0 if name == "relu6" else None}

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

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        return rectified(p, node, values[0])

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        y, p.kept[node.output] = p.ops.relu_with_derivative(values[0])
        return y

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """g where x is not negative."""
        return [p.where_positive(node, g)]

    def untrained(self, x: Layer, given: list[Shape]) -> str:
        return "" if x.options["max_value"] is None else f"{x.op} with max_value"
