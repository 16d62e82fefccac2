"""Ranges of a model's values, and the fixed point that each layer gets from them.

A bound on |v| decides how many bits a comparison takes and how many fractional bits are left: a
value that is too large for the comparison at the usual precision gets fewer ("rescaled").
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.errors import DataError, RangeError, UsageError, did_you_mean
from tfe_bench.models import plain
from tfe_bench.models.graph import Array, Graph, Layer, replaced
from tfe_bench.protocols.ring import compare

# A private input may leave the range of the public samples by this factor.
MARGIN = 4.0
# Samples that are so much larger give the bounds that they reach and this much more.
HEADROOM = 1.125
# Comparisons take no more bits than this; larger values get fewer fractional bits.
MOST_BITS = 36
# Values that come without a product may take so many: what one opening compares, less 4.
MOST_COMPARED = 44
# Fewer fractional bits than these are worth nothing.
FEWEST_BITS = 6
FEWEST_WEIGHT_BITS = 8
# The largest weight of a layer keeps about as many significant bits.
SIGNIFICANT_BITS = 14
MOST_WEIGHT_BITS = 44
# Products stay below 2^62 before they are truncated (T3).
PRODUCT_BITS = 61
# An alpha of LeakyReLU, and the reciprocal of an average's count.
FACTOR_BITS = 24


@dataclass(frozen=True)
class Numbers:
    """The fixed point of a layer.

    Attributes:
        fraction: fractional bits of its value.
        scale: of a sum, those of the products before truncation; of a factor, its own.
        bits: of its comparisons.
    """

    fraction: int
    scale: int = 0
    bits: int = 0


@dataclass(frozen=True, eq=False)
class Plan:
    """A model with its fixed point: what the three workers are told.

    It is public: the layers, and for each how many bits its values, its comparisons and its
    products take.  That tells, as powers of two, the ranges of the values on the samples and of
    weights below 1/4 in magnitude.

    Attributes:
        graph: optimised.
        fraction: fractional bits of the inputs.
        numbers: by layer.
    """

    graph: Graph
    fraction: int
    numbers: Mapping[str, Numbers]

    def header(self) -> dict[str, Any]:
        """As JSON holds it, without the weights' values."""
        rows = {name: [n.fraction, n.scale, n.bits] for name, n in self.numbers.items()}
        return {"graph": self.graph.header(), "fraction": self.fraction, "numbers": rows}

    @classmethod
    def of(cls, header: Any) -> Plan:
        """The plan of a header, which may come from a stranger.

        Raises:
            DataError, UsageError: it is none.
        """
        try:
            graph = Graph.of(header["graph"])
            rows = {str(k): tuple(v) for k, v in header["numbers"].items()}
            fraction = header["fraction"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"This is no plan. Received: {type(error).__name__}: {error}."
            ) from None
        whole = all(
            len(row) == 3 and all(type(n) is int and 0 <= n < 64 for n in row)
            for row in [*rows.values(), (fraction, 0, 0)]
        )
        if not whole or set(rows) != {x.name for x in graph.layers}:
            raise DataError("A plan has three numbers from 0 to 63 for each layer.")
        return cls(graph, fraction, {name: Numbers(*row) for name, row in rows.items()})

    def fraction_of(self, name: str) -> int:
        """Fractional bits of a layer's value or of an input."""
        return self.fraction if name in self.graph.inputs else self.numbers[name].fraction

    def weight_bits(self, layer: Layer, term: int) -> int:
        """Fractional bits of the kernel of a sum's term."""
        return self.numbers[layer.name].scale - self.fraction_of(layer.inputs[term])


def calibrate(graph: Graph, samples: Any, margin: float = MARGIN) -> dict[str, float]:
    """Bounds on the magnitude of every value, from a few public samples.

    Every value may be `margin` times the largest that it is on the samples, and what it is on the
    samples times margin and times -margin, which a bias keeps from being the same.

    Args:
        samples: as the model takes them, with a batch.
        margin: private inputs may exceed the samples' range by this factor.

    Raises:
        UsageError: samples that the model does not take.
        RangeError: the model gives NaN or infinity on them; the first such layer is named.
    """
    found: dict[str, float] = {}
    inputs = plain.scaled(graph, samples)
    given = replaced(graph, graph.layers, scaling={})
    count = len(next(iter(inputs.values())))
    for factor, spread in ((1.0, margin), (margin, HEADROOM), (-margin, HEADROOM)):

        def watch(name: str, value: Array, factor: float = factor, spread: float = spread) -> None:
            largest = float(np.abs(value).max(initial=0.0))
            if not math.isfinite(largest):
                times = "" if factor == 1 else f" times {factor:g}"
                raise RangeError(
                    f"Layer {name!r} gives NaN or infinite values on the samples{times}."
                )
            found[name] = max(found.get(name, 0.0), spread * largest)

        for begin in range(0, count, 16):
            some = {name: factor * a[begin : begin + 16] for name, a in inputs.items()}
            plain.evaluate(given, some, watch)
    # nothing of an input is computed, so that it needs no more
    return found | {name: margin * float(np.abs(a).max()) for name, a in inputs.items()}


def declared(graph: Graph, ranges: Any, default: float) -> dict[str, float]:
    """Bounds that somebody states: one for all values, or by layer with `default` for the rest.

    Raises:
        UsageError: unknown layers, or bounds that are no positive numbers.
    """
    known = [*graph.inputs, *(x.name for x in graph.layers)]
    given = ranges if isinstance(ranges, Mapping) else dict.fromkeys(known, ranges)
    for name, bound in given.items():
        if name not in known:
            raise UsageError(
                f"The model has no layer {name!r}.{did_you_mean(str(name), known)} After "
                f"optimisation it has: {', '.join(known)}."
            )
        fits = isinstance(bound, (int, float)) and not isinstance(bound, bool)
        if not fits or not (math.isfinite(bound) and bound > 0):
            raise UsageError(f"A range is a positive number. Received: {name}={bound!r}.")
    found = {name: float(given.get(name, default)) for name in known}
    found.update({f"{name}:sum": bound for name, bound in found.items()})
    return found


def default_bound(fraction: int) -> float:
    """What layers take if nothing is known: 2^14 at 16 fractional bits."""
    return float(2.0 ** (compare.LAYER_BITS - 1 - fraction) - 2.0 ** (1 - fraction))


def _magnitude(bound: float, fraction: int) -> int:
    """m with bound + 2^(1 - fraction) <= 2^m: what is rounded up still fits."""
    return max(math.ceil(math.log2(bound + 2.0 ** (1 - fraction))), 4 - fraction)


class _Planner:
    def __init__(self, graph: Graph, bounds: Mapping[str, float], fraction: int) -> None:
        self.graph = graph
        self.bounds = dict(bounds)
        self.fraction = fraction
        self.numbers: dict[str, Numbers] = {}
        self.unfit: list[str] = []

    def of(self, name: str) -> int:
        return self.fraction if name in self.graph.inputs else self.numbers[name].fraction

    def magnitude(self, name: str) -> int:
        return _magnitude(self.bounds[name], self.fraction)

    def lost(self, layer: Layer, why: str) -> None:
        self.unfit.append(f"{layer.name!r} {why}")

    def layer(self, x: Layer) -> Numbers:
        f = max(self.of(i) for i in x.inputs)
        m = max(self.magnitude(i) for i in x.inputs)
        if x.op == "sum":
            return self.sum(x)
        if x.op == "relu":
            return Numbers(f, 0, self.width(x, f, self.capped(x, self.bounds[x.inputs[0]])))
        if x.op in ("max_pool2d", "global_max_pool2d", "softmax", "sigmoid", "tanh"):
            if x.op in ("softmax", "sigmoid", "tanh"):
                f = min(max(f, 8), 20)
            return Numbers(f, 0, self.width(x, f, m + 1))  # differences have one bit more
        if x.op in ("leaky_relu", "avg_pool2d", "global_avg_pool2d"):
            alpha = abs(x.options.get("alpha", 1.0))
            more = max(0, math.ceil(math.log2(alpha))) if alpha else 0
            e = min(FACTOR_BITS, PRODUCT_BITS - f - max(m, 0) - more)
            if e < FEWEST_WEIGHT_BITS:
                self.lost(x, f"takes values up to {2.0**m:g}")
            return Numbers(f, max(e, 1), self.width(x, f, m))
        if x.op == "multiply":  # of two, see optimise.products_of_two
            product = sum(self.of(i) for i in x.inputs)
            total = sum(max(self.magnitude(i), 0) for i in x.inputs)
            if product + total > PRODUCT_BITS:
                self.lost(x, f"multiplies to up to {2.0**total:g}")
            return Numbers(f, product)
        return Numbers(f)

    def capped(self, x: Layer, bound: float) -> int:
        """Magnitude of what a ReLU compares: 6 - v may be larger than v."""
        return _magnitude(bound + (x.options["max_value"] or 0.0), self.fraction)

    def width(self, x: Layer, f: int, m: int) -> int:
        """Bits of a comparison of values below 2^m with f fractional bits."""
        bits = max(f + 1 + m, 6)
        if bits > MOST_COMPARED:
            self.lost(x, f"compares values up to {2.0**m:g}")
        return min(bits, MOST_COMPARED)

    def sum(self, x: Layer) -> Numbers:
        fused = x.options["activation"] != "none"
        m = self.capped(x, self.bounds[f"{x.name}:sum"])
        wanted = []
        for i, (name, term) in enumerate(zip(x.inputs, x.options["terms"], strict=True)):
            if term["op"] == "skip":
                wanted.append(self.of(name) + 1)
                continue
            largest = float(np.abs(x.weights[f"kernel{i}"]).max(initial=0.0))
            exact = SIGNIFICANT_BITS - math.floor(math.log2(largest)) if largest > 0 else 0
            g = min(max(self.fraction, exact), MOST_WEIGHT_BITS)
            wanted.append(self.of(name) + g)
        scale = min(max(wanted), PRODUCT_BITS - max(m, 0))
        if not fused and set(self.graph.uses()[x.name]) == {""}:
            self._checked(x, scale, m)
            return Numbers(scale, scale)  # nothing is left that would need a smaller value
        fraction = min(self.fraction, MOST_BITS - 1 - m)
        if fraction < FEWEST_BITS:
            self.lost(x, f"reaches {2.0**m:g}")
        fraction = max(fraction, FEWEST_BITS)
        self._checked(x, scale, m)
        scale = max(scale, fraction + 1)
        return Numbers(fraction, min(scale, fraction + 48), self.width(x, fraction, m))

    def _checked(self, x: Layer, scale: int, m: int) -> None:
        for name, term in zip(x.inputs, x.options["terms"], strict=True):
            least = 0 if term["op"] == "skip" else FEWEST_WEIGHT_BITS
            if scale - self.of(name) < least:
                self.lost(x, f"reaches {2.0**m:g}, which leaves its weights too few bits")
                return


def plan(graph: Graph, bounds: Mapping[str, float], fraction: int = 16) -> Plan:
    """The fixed point of every layer.

    Args:
        graph: optimised.
        bounds: on |v|, by layer and by "layer:sum", as `calibrate` and `declared` give them.
        fraction: fractional bits, where they fit.

    Raises:
        UsageError: fraction is not 8 to 20.
        RangeError: layers whose values fit no fixed point, all of them named.
    """
    if type(fraction) is not int or not 8 <= fraction <= 20:
        raise UsageError(f"A model has 8 to 20 fractional bits. Received: {fraction!r}.")
    planner = _Planner(graph, bounds, fraction)
    for name in graph.inputs:
        if planner.magnitude(name) + fraction > PRODUCT_BITS - FEWEST_WEIGHT_BITS:
            planner.unfit.append(f"input {name!r} reaches {bounds[name]:g}")
    for layer in graph.layers:
        planner.numbers[layer.name] = planner.layer(layer)
    if planner.unfit:
        raise RangeError(
            f"Values do not fit {fraction} fractional bits even if rescaled: "
            f"{'; '.join(planner.unfit)}. Add batch normalisation there, or declare a smaller "
            "range."
        )
    return Plan(graph, fraction, planner.numbers)


def rescaled(plan: Plan) -> dict[str, int]:
    """Layers whose values have fewer fractional bits than the inputs, with how many they have."""
    return {name: n.fraction for name, n in plan.numbers.items() if n.fraction < plan.fraction}
