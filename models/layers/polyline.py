"""Piecewise linear functions: hard sigmoid, shrinking, thresholds, and all ReLU variants.

With slopes s_i, knots k_i and jumps j_i there,

    y = start + s_0 (x - k_0) + sum_i (s_(i+1) - s_i) max(x - k_i, 0) + j_i [x >= k_i],

and every slope is rounded once, so that an error does not grow from one knot to the next.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.protocols.functions.exp_one_round import to_signed_word
from tfe_bench.protocols.nn import linear
from tfe_bench.protocols.ring import convert, logic, shapes
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

_MOST_KNOTS = 8
_LARGEST_SLOPE = 64
_LARGEST_KNOT = 1 << 20
# Fractional bits of slopes in training.
_TRAINED_BITS = 20


@dataclass(frozen=True)
class PiecewiseLine:
    """A piecewise linear function, as a layer's options describe it.

    Attributes:
        knots: in ascending order.
        slopes: before, between and after the knots.
        jumps: at each knot, relative to the line before it.
        strict: whether the jump is after the knot itself.
        start: the value at the first knot, without its jump.
    """

    knots: Sequence[float]
    slopes: Sequence[float]
    jumps: Sequence[float]
    strict: Sequence[bool]
    start: float

    @property
    def has_integer_slopes(self) -> bool:
        """True if all slopes are integers."""
        return all(float(s).is_integer() for s in self.slopes)

    def bound_value(self, max_input: float) -> float:
        """Bound |y| for |x| up to `max_input`."""
        outer_length = max_input + max(map(abs, self.knots))
        lengths = [outer_length, *(b - a for a, b in itertools.pairwise(self.knots)), outer_length]
        rises = (abs(s) * length for s, length in zip(self.slopes, lengths, strict=True))
        return abs(self.start) + sum(rises) + sum(map(abs, self.jumps))

    def list_edges(self, f: int) -> list[int]:
        """List the first ring element after each knot; where the line only bends, the knot."""
        edges = []
        for knot, jump, strict in zip(self.knots, self.jumps, self.strict, strict=True):
            ring = Fraction(knot) * (1 << f)
            jumps = math.floor(ring) + 1 if strict else math.ceil(ring)
            edges.append(jumps if jump else round(ring))
        return edges

    def to_options(self) -> dict[str, Any]:
        """Return the function as options of a header."""
        return {
            "knots": [float(v) for v in self.knots],
            "slopes": [float(v) for v in self.slopes],
            "jumps": [float(v) for v in self.jumps],
            "strict": list(self.strict),
            "start": float(self.start),
        }


def read_piecewise_line(x: L.LayerSpec) -> PiecewiseLine:
    """Read the piecewise linear function of a layer."""
    return PiecewiseLine(**x.options)


def _make_piecewise_line(
    knots: Sequence[float],
    slopes: Sequence[float],
    start: float = 0.0,
    jumps: Sequence[float] = (),
    strict: Sequence[bool] = (),
) -> PiecewiseLine:
    count = len(knots)
    return PiecewiseLine(knots, slopes, jumps or [0.0] * count, strict or [False] * count, start)


def capped_relu_line(max_value: float) -> PiecewiseLine:
    """Return min(max(x, 0), max_value)."""
    return _make_piecewise_line([0.0, max_value], [0.0, 1.0, 0.0])


def convert_relu_options(slope: float, max_value: float | None, threshold: float) -> dict[str, Any]:
    """Return the options of keras.activations.relu with any of its arguments.

    Up to the threshold it is slope (x - threshold); above it is x, limited to 0 to max_value.
    """
    if max_value is None:
        line = _make_piecewise_line([threshold], [slope, 1.0], jumps=[threshold], strict=[True])
    elif threshold >= max_value:
        line = _make_piecewise_line([threshold], [slope, 0.0], jumps=[max_value], strict=[True])
    elif threshold >= 0:
        line = _make_piecewise_line(
            [threshold, max_value], [slope, 1.0, 0.0], 0.0, [threshold, 0.0], [True, False]
        )
    elif max_value:
        line = _make_piecewise_line([threshold, 0.0, max_value], [slope, 0.0, 1.0, 0.0])
    else:
        line = _make_piecewise_line([threshold], [slope, 0.0])
    return line.to_options()


def _find_activation_line(name: str, arguments: Options) -> PiecewiseLine | None:
    """Return the function of a Keras activation; None for the identity."""
    if name == "hard_sigmoid":
        return _make_piecewise_line([-3.0, 3.0], [0.0, 1 / 6, 0.0])
    if name == "sparse_sigmoid":
        return _make_piecewise_line([-1.0, 1.0], [0.0, 0.5, 0.0])
    if name == "hard_tanh":
        return _make_piecewise_line([-1.0, 1.0], [0.0, 1.0, 0.0], -1.0)
    edge = arguments["threshold"]
    if name == "threshold":
        least = arguments["default_value"]
        return _make_piecewise_line([edge], [0.0, 1.0], least, [edge - least], [True])
    if name == "hard_shrink":
        if edge <= 0:
            return None
        return _make_piecewise_line(
            [-edge, edge], [1.0, 0.0, 1.0], -edge, [edge, edge], [False, True]
        )
    if edge < 0:
        raise L.UnsupportedLayer(f"its activation has threshold={edge}; 0 or more is supported")
    return _make_piecewise_line([-edge, edge], [1.0, 0.0, 1.0]) if edge else None


class Polyline(L.Kind):
    """Straight lines between public knots, with optional jumps there."""

    op = "polyline"
    is_pointwise = True
    keras_functions = (
        *("hard_sigmoid", "sparse_sigmoid", "hard_tanh"),
        *("hard_shrink", "soft_shrink", "threshold"),
    )

    def convert_activation(
        self, r: L.Reader, value: str, name: str, function: str, arguments: Options
    ) -> str:
        line = _find_activation_line(function, arguments)
        return (
            value
            if line is None
            else r.add_layer(name, self.op, [value], None, **line.to_options())
        )

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_options(options, "knots", "slopes", "jumps", "strict", "start")
        lists = {name: options[name] for name in ("knots", "slopes", "jumps", "strict")}
        for name, value in lists.items():
            L.check_value(isinstance(value, (list, tuple)), f"{name} as a list", value)
        knots, slopes, jumps, strict = lists.values()
        count = len(knots)
        sizes = (len(slopes) - 1, len(jumps), len(strict))
        L.check_value(1 <= count <= _MOST_KNOTS and set(sizes) == {count}, "up to 8 knots", lists)
        bounded = [options["start"], *knots, *jumps]
        fits = all(L.is_real(v) and abs(v) <= _LARGEST_KNOT for v in bounded)
        L.check_value(fits, f"knots, jumps and a start up to {_LARGEST_KNOT}", bounded)
        fits = all(L.is_real(v) and abs(v) <= _LARGEST_SLOPE for v in slopes)
        L.check_value(fits, f"slopes up to {_LARGEST_SLOPE}", slopes)
        L.check_value(all(isinstance(v, bool) for v in strict), "strict as true or false", strict)
        L.check_value(all(a < b for a, b in itertools.pairwise(knots)), "ascending knots", knots)
        return L.check_single_input(input_shapes, weights)

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        (v,), line = values, read_piecewise_line(x)
        y = line.start + line.slopes[0] * (v - line.knots[0])
        for i, knot in enumerate(line.knots):
            y = y + (line.slopes[i + 1] - line.slopes[i]) * np.maximum(v - knot, 0)
            y = y + line.jumps[i] * (v > knot if line.strict[i] else v >= knot)
        return np.asarray(y)

    def plan_format(self, planner: L.LayerFormatPlanner, x: L.LayerSpec) -> L.FixedPointFormat:
        (f, m), line = planner.get_input_format(x), read_piecewise_line(x)
        top = math.ceil(math.log2(line.bound_value(2.0**m) + 1))
        e = 0 if line.has_integer_slopes else min(L.MOST_FACTOR_BITS, L.PRODUCT_BITS - f - top)
        if e < 0 or f + top > L.PRODUCT_BITS or (not line.has_integer_slopes and e < 8):
            planner.report_unfit(x, f"takes values up to {2.0**m:g}")
        return L.FixedPointFormat(f, max(e, 0), planner.choose_comparison_bits(x, f, m + 1))

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        line, f = read_piecewise_line(node.layer), node.numbers.fraction
        return math.ceil(line.bound_value(node.align_limits(input_limits)[0] / 2.0**f) * 2.0**f) + 2

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        numbers = node.numbers
        return evaluate_line(
            p, values[0], read_piecewise_line(node.layer), numbers.scale, numbers.bits
        )[0]

    def forward_training(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        return train_activation_line(p, node, values[0], read_piecewise_line(node.layer))

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        """Multiply g by the slope; a jump has no gradient."""
        return [backpropagate_activation_line(p, node, g, read_piecewise_line(node.layer))]


def evaluate_line(
    p: L.ForwardContext, x: Shared, line: PiecewiseLine, scale: int, bits: int
) -> tuple[Shared, list[MaskedBits]]:
    """Evaluate a piecewise linear function; also returns where x is below each knot.

    Args:
        scale: fractional bits of the slopes; 0 if they are integers.
    """
    ops, f, shape = p.ops, x.fractional_bits, p.ops.get_shape(x)
    n, edges = math.prod(shape), line.list_edges(x.fractional_bits)
    high, masked_bits = ops.run_protocol(linear.relu_at_knots, x, edges, bits)
    below_knots = [
        logic.rearrange_private_bits(masked_bits, (len(edges), n), operator.itemgetter(i), n)
        for i in range(len(edges))
    ]
    slopes = [round(Fraction(s) * (1 << scale)) for s in line.slopes]
    first = round(Fraction(line.knots[0]) * (1 << f))
    offset = round(Fraction(line.start) * (1 << (f + scale))) - slopes[0] * first
    y = ops.mul_public(x, slopes[0], scale)
    for i, edge in enumerate(edges):
        part = ops.apply_local(functools.partial(shapes.getitem, key=i), high, shape)
        steeper = slopes[i + 1] - slopes[i]
        y = ops.add(y, ops.mul_public(part, steeper, scale))
        if line.jumps[i]:
            jump = Fraction(line.jumps[i]) * (1 << (f + scale))
            jump += steeper * (edge - Fraction(line.knots[i]) * (1 << f))
            ones = ops.run_protocol(convert.b2a, below_knots[i], list(shape))
            y = ops.sub(y, ops.mul_public(ones, to_signed_word(round(jump)), f + scale))
            offset += round(jump)
    y = ops.add_public(y, np.int64(to_signed_word(offset)))
    return (ops.truncate(y, scale) if scale else y), below_knots


def train_activation_line(
    p: L.ForwardContext, node: L.PlacedLayer, x: Shared, line: PiecewiseLine
) -> Shared:
    """Evaluate the function in a step; the positions of x relative to the knots go to p.saved."""
    scale = 0 if line.has_integer_slopes else _TRAINED_BITS
    y, p.saved[node.output] = evaluate_line(p, x, line, scale, node.numbers.bits)
    return y


def backpropagate_activation_line(
    p: L.ForwardContext, node: L.PlacedLayer, g: Shared, line: PiecewiseLine
) -> Shared:
    """Multiply g by the slope at x."""
    ops, below_knots = p.ops, p.saved[node.output]
    # 1 on [k_i, k_(i+1)): not below k_i, but below k_(i+1)
    between = [logic.xor_bits(a, b) for a, b in itertools.pairwise(below_knots)]
    where = [*between, logic.invert_bits(below_knots[-1])]
    drop = max(0, g.fractional_bits - p.precision.gradient)
    first = Fraction(line.slopes[0])
    parts = [L.multiply_public(ops, p.rescale_gradient(g), first)] if first else []
    for bits, slope in zip(where, line.slopes[1:], strict=True):
        more = Fraction(slope) - first
        if more:
            parts.append(L.multiply_public(ops, ops.inject_truncated(bits, g, drop), more))
    if not parts:
        return ops.mul_public(p.rescale_gradient(g), 0)
    total, *others = parts
    for part in others:
        total = L.add_aligned(ops, total, part)
    return total
