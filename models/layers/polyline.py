"""Functions made of straight lines: hard sigmoid, shrinking, thresholds, and ReLUs of all kinds.

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

from tfe_bench.models.kinds.checks import alone, need, only, real
from tfe_bench.models.kinds.kind import Kind, Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Gradients, Pass, factored, joined
from tfe_bench.models.kinds.planning import MOST_FACTOR_BITS, PRODUCT_BITS, Planner
from tfe_bench.models.kinds.reading import Reader, Unfit
from tfe_bench.protocols.functions.exp_one_round import word
from tfe_bench.protocols.nn import linear
from tfe_bench.protocols.ring import convert, logic, shapes
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

_MOST_KNOTS = 8
_LARGEST_SLOPE = 64
_LARGEST_KNOT = 1 << 20
# Fractional bits of slopes in training.
_TRAINED_BITS = 20


@dataclass(frozen=True)
class Line:
    """What a function is, as a layer's options say it.

    Attributes:
        knots: ascending.
        slopes: before, between and behind them.
        jumps: at each knot, from what the line before it comes to.
        strict: whether the jump is behind the knot itself.
        start: the value at the first knot, without its jump.
    """

    knots: Sequence[float]
    slopes: Sequence[float]
    jumps: Sequence[float]
    strict: Sequence[bool]
    start: float

    @property
    def whole(self) -> bool:
        """Whether all slopes are integers."""
        return all(float(s).is_integer() for s in self.slopes)

    def bound(self, most: float) -> float:
        """|y| for |x| up to `most`, or more."""
        far = most + max(map(abs, self.knots))
        lengths = [far, *(b - a for a, b in itertools.pairwise(self.knots)), far]
        rises = (abs(s) * length for s, length in zip(self.slopes, lengths, strict=True))
        return abs(self.start) + sum(rises) + sum(map(abs, self.jumps))

    def edges(self, f: int) -> list[int]:
        """The first ring element behind each knot; where the line only bends, the knot."""
        found = []
        for knot, jump, strict in zip(self.knots, self.jumps, self.strict, strict=True):
            ring = Fraction(knot) * (1 << f)
            jumps = math.floor(ring) + 1 if strict else math.ceil(ring)
            found.append(jumps if jump else round(ring))
        return found

    def options(self) -> dict[str, Any]:
        """As a header holds them."""
        return {
            "knots": [float(v) for v in self.knots],
            "slopes": [float(v) for v in self.slopes],
            "jumps": [float(v) for v in self.jumps],
            "strict": list(self.strict),
            "start": float(self.start),
        }


def line_of(x: Layer) -> Line:
    """The line of a layer."""
    return Line(**x.options)


def _line(
    knots: Sequence[float],
    slopes: Sequence[float],
    start: float = 0.0,
    jumps: Sequence[float] = (),
    strict: Sequence[bool] = (),
) -> Line:
    count = len(knots)
    return Line(knots, slopes, jumps or [0.0] * count, strict or [False] * count, start)


def capped(most: float) -> Line:
    """min(max(x, 0), most)."""
    return _line([0.0, most], [0.0, 1.0, 0.0])


def of_relu(slope: float, most: float | None, threshold: float) -> dict[str, Any]:
    """keras.activations.relu with any of its arguments.

    Up to the threshold it is slope (x - threshold); above it is x, but 0 to most if there is one.
    """
    if most is None:
        line = _line([threshold], [slope, 1.0], jumps=[threshold], strict=[True])
    elif threshold >= most:
        line = _line([threshold], [slope, 0.0], jumps=[most], strict=[True])
    elif threshold >= 0:
        line = _line([threshold, most], [slope, 1.0, 0.0], 0.0, [threshold, 0.0], [True, False])
    elif most:
        line = _line([threshold, 0.0, most], [slope, 0.0, 1.0, 0.0])
    else:
        line = _line([threshold], [slope, 0.0])
    return line.options()


def _named(name: str, given: Options) -> Line | None:
    """The line of an activation of Keras; None for the identity."""
    if name == "hard_sigmoid":
        return _line([-3.0, 3.0], [0.0, 1 / 6, 0.0])
    if name == "sparse_sigmoid":
        return _line([-1.0, 1.0], [0.0, 0.5, 0.0])
    if name == "hard_tanh":
        return _line([-1.0, 1.0], [0.0, 1.0, 0.0], -1.0)
    edge = given["threshold"]
    if name == "threshold":
        least = given["default_value"]
        return _line([edge], [0.0, 1.0], least, [edge - least], [True])
    if name == "hard_shrink":
        if edge <= 0:
            return None
        return _line([-edge, edge], [1.0, 0.0, 1.0], -edge, [edge, edge], [False, True])
    if edge < 0:
        raise Unfit(f"its activation has threshold={edge}; 0 or more is supported")
    return _line([-edge, edge], [1.0, 0.0, 1.0]) if edge else None


class Polyline(Kind):
    """Straight lines between public knots, which may jump there."""

    op = "polyline"
    pointwise = True
    functions = (
        *("hard_sigmoid", "sparse_sigmoid", "hard_tanh"),
        *("hard_shrink", "soft_shrink", "threshold"),
    )

    def activate(self, r: Reader, value: str, name: str, function: str, given: Options) -> str:
        line = _named(function, given)
        return value if line is None else r.emit(name, self.op, [value], None, **line.options())

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        only(options, "knots", "slopes", "jumps", "strict", "start")
        several = {name: options[name] for name in ("knots", "slopes", "jumps", "strict")}
        for name, value in several.items():
            need(isinstance(value, (list, tuple)), f"{name} as a list", value)
        knots, slopes, jumps, strict = several.values()
        count = len(knots)
        sizes = (len(slopes) - 1, len(jumps), len(strict))
        need(1 <= count <= _MOST_KNOTS and set(sizes) == {count}, "up to 8 knots", several)
        bounded = [options["start"], *knots, *jumps]
        fits = all(real(v) and abs(v) <= _LARGEST_KNOT for v in bounded)
        need(fits, f"knots, jumps and a start up to {_LARGEST_KNOT}", bounded)
        fits = all(real(v) and abs(v) <= _LARGEST_SLOPE for v in slopes)
        need(fits, f"slopes up to {_LARGEST_SLOPE}", slopes)
        need(all(isinstance(v, bool) for v in strict), "strict as true or false", strict)
        need(all(a < b for a, b in itertools.pairwise(knots)), "ascending knots", knots)
        return alone(given, weights)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        (v,), line = values, line_of(x)
        y = line.start + line.slopes[0] * (v - line.knots[0])
        for i, knot in enumerate(line.knots):
            y = y + (line.slopes[i + 1] - line.slopes[i]) * np.maximum(v - knot, 0)
            y = y + line.jumps[i] * (v > knot if line.strict[i] else v >= knot)
        return np.asarray(y)

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        (f, m), line = planner.most(x), line_of(x)
        top = math.ceil(math.log2(line.bound(2.0**m) + 1))
        e = 0 if line.whole else min(MOST_FACTOR_BITS, PRODUCT_BITS - f - top)
        if e < 0 or f + top > PRODUCT_BITS or (not line.whole and e < 8):
            planner.lost(x, f"takes values up to {2.0**m:g}")
        return Numbers(f, max(e, 0), planner.width(x, f, m + 1))

    def limit(self, node: Node, given: list[int]) -> int | None:
        line, f = line_of(node.layer), node.numbers.fraction
        return math.ceil(line.bound(node.moved(given)[0] / 2.0**f) * 2.0**f) + 2

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        numbers = node.numbers
        return bent(p, values[0], line_of(node.layer), numbers.scale, numbers.bits)[0]

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        return train_bent(p, node, values[0], line_of(node.layer))

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """g times the slope; a jump has none."""
        return [unbent(p, node, g, line_of(node.layer))]


def bent(p: Pass, x: Shared, line: Line, scale: int, bits: int) -> tuple[Shared, list[MaskedBits]]:
    """A line's value, and where x is below each of its knots.

    Args:
        scale: fractional bits of the slopes; 0 where they are integers.
    """
    ops, f, shape = p.ops, x.fractional_bits, p.ops.shape(x)
    n, edges = math.prod(shape), line.edges(x.fractional_bits)
    high, below = ops.call(linear.above, x, edges, bits)
    under = [
        logic.rearrange(below, (len(edges), n), operator.itemgetter(i), n)
        for i in range(len(edges))
    ]
    slopes = [round(Fraction(s) * (1 << scale)) for s in line.slopes]
    first = round(Fraction(line.knots[0]) * (1 << f))
    offset = round(Fraction(line.start) * (1 << (f + scale))) - slopes[0] * first
    y = ops.times(x, slopes[0], scale)
    for i, edge in enumerate(edges):
        part = ops.map(functools.partial(shapes.getitem, key=i), high, shape)
        steeper = slopes[i + 1] - slopes[i]
        y = ops.add(y, ops.times(part, steeper, scale))
        if line.jumps[i]:
            jump = Fraction(line.jumps[i]) * (1 << (f + scale))
            jump += steeper * (edge - Fraction(line.knots[i]) * (1 << f))
            ones = ops.call(convert.b2a, under[i], list(shape))
            y = ops.sub(y, ops.times(ones, word(round(jump)), f + scale))
            offset += round(jump)
    y = ops.add_public(y, np.int64(word(offset)))
    return (ops.truncate(y, scale) if scale else y), under


def train_bent(p: Pass, node: Node, x: Shared, line: Line) -> Shared:
    """A line's value in a step; where x is goes to p.kept."""
    scale = 0 if line.whole else _TRAINED_BITS
    y, p.kept[node.output] = bent(p, x, line, scale, node.numbers.bits)
    return y


def unbent(p: Pass, node: Node, g: Shared, line: Line) -> Shared:
    """g times the line's slope where x is."""
    ops, under = p.ops, p.kept[node.output]
    # 1 on [k_i, k_(i+1)): below the one and not below the other
    between = [logic.xor(a, b) for a, b in itertools.pairwise(under)]
    where = [*between, logic.invert(under[-1])]
    drop = max(0, g.fractional_bits - p.precision.gradient)
    first = Fraction(line.slopes[0])
    parts = [factored(ops, p.settled(g), first)] if first else []
    for bits, slope in zip(where, line.slopes[1:], strict=True):
        more = Fraction(slope) - first
        if more:
            parts.append(factored(ops, ops.inject_truncated(bits, g, drop), more))
    if not parts:
        return ops.times(p.settled(g), 0)
    total, *others = parts
    for part in others:
        total = joined(ops, total, part)
    return total
