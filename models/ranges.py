"""Ranges of a model's values, and the fixed point that each layer gets from them.

A bound on |v| decides how many bits a comparison takes and how many fractional bits are left: a
value that is too large for the comparison at the usual precision gets fewer ("rescaled").
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfe_bench.errors import DataError, RangeError, UsageError, did_you_mean
from tfe_bench.models import plaintext
from tfe_bench.models.graph import Array, Graph, Layer, replaced
from tfe_bench.models.kinds import registry
from tfe_bench.models.kinds.layer import Node, Numbers
from tfe_bench.models.kinds.planning import FEWEST_WEIGHT_BITS, PRODUCT_BITS, Planner
from tfe_bench.protocols.ring import compare

# Values of fewer steps of fixed point are held coarsely: off by 0.2 % of the largest or more.
FEW_STEPS = 256
# What a plan says of a sum: more than doubles can count is not told apart.
MOST_REACH = 1024
# A private input may leave the range of the public samples by this factor.
MARGIN = 4.0
# Samples that are so much larger give the bounds that they reach and this much more.
HEADROOM = 1.125
# What makes much of small values.
_STEEP = ("log", "sqrt", "rsqrt", "reciprocal", "divide")
# What fixed point may make of a public number that is added, as a part of it.
_MOST_OFF = 0.05


@dataclass(frozen=True, eq=False)
class Plan:
    """A model with its fixed point: what the three workers are told.

    It is public: the layers, and for each how many bits its values, its comparisons and its
    products take.  That tells, as powers of two, the ranges of the values on the samples, of
    weights below 1/4 in magnitude, and of each sum's weights the largest that a sum of their
    magnitudes times the values' ranges is.

    Attributes:
        graph: optimized.
        fraction: fractional bits of the inputs.
        numbers: by layer.
        inputs: fractional bits of the inputs that have others, because their values are small.
    """

    graph: Graph
    fraction: int
    numbers: Mapping[str, Numbers]
    inputs: Mapping[str, int] = field(default_factory=dict)

    def header(self) -> dict[str, Any]:
        """As JSON holds it, without the weights' values."""
        rows = {name: n.row() for name, n in self.numbers.items()}
        found = {"graph": self.graph.header(), "fraction": self.fraction, "numbers": rows}
        return {**found, "inputs": dict(self.inputs)} if self.inputs else found

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
            inputs = {str(k): v for k, v in header.get("inputs", {}).items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"This is no plan. Received: {type(error).__name__}: {error}."
            ) from None
        whole = all(
            3 <= len(row) <= 5
            and all(type(n) is int and 0 <= n < 64 for n in row[:4])
            and all(type(n) is int and 0 <= n <= MOST_REACH for n in row[4:])
            for row in [*rows.values(), (fraction, 0, 0), *((n, 0, 0) for n in inputs.values())]
        )
        known = inputs.keys() <= graph.inputs.keys()
        if not whole or not known or set(rows) != {x.name for x in graph.layers}:
            raise DataError("A plan has three to five numbers from 0 to 63 for each layer.")
        return cls(graph, fraction, {name: Numbers(*row) for name, row in rows.items()}, inputs)

    def fraction_of(self, name: str) -> int:
        """Fractional bits of a layer's value or of an input."""
        if name in self.graph.inputs:
            return self.inputs.get(name, self.fraction)
        return self.numbers[name].fraction

    def node(self, layer: Layer) -> Node:
        """A layer where it stands."""
        scales = [self.fraction_of(name) for name in layer.inputs]
        return self.graph.node(layer, self.numbers[layer.name], scales)

    def weight_bits(self, layer: Layer, name: str) -> int:
        """Fractional bits of a layer's weights."""
        return registry.find(layer.op).weight_bits(self.node(layer), name)


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
    inputs = plaintext.scaled(graph, samples)
    given = replaced(graph, graph.layers, scaling={})
    count = len(next(iter(inputs.values())))
    truths = {*graph.tokens, *graph.masks}
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
            some = {
                name: a[begin : begin + 16] * (1.0 if name in truths else factor)
                for name, a in inputs.items()
            }
            plaintext.evaluate(given, some, watch)
    # nothing of an input is computed, so that it needs no more
    found |= {name: margin * float(np.abs(a).max()) for name, a in inputs.items()}
    return found | dict.fromkeys(truths, 1.0)


def declared(graph: Graph, ranges: float | Mapping[str, Any], default: float) -> dict[str, float]:
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
                f"optimization it has: {', '.join(known)}."
            )
        fits = isinstance(bound, (int, float)) and not isinstance(bound, bool)
        if not fits or not (math.isfinite(bound) and bound > 0):
            raise UsageError(f"A range is a positive number. Received: {name}={bound!r}.")
    found = {name: float(given.get(name, default)) for name in known} | dict.fromkeys(
        [*graph.tokens, *graph.masks], 1.0
    )
    found.update({f"{name}:sum": bound for name, bound in found.items()})
    return found


def default_bound(fraction: int) -> float:
    """What layers take if nothing is known: 2^14 at 16 fractional bits."""
    return float(2.0 ** (compare.LAYER_BITS - 1 - fraction) - 2.0 ** (1 - fraction))


def plan(graph: Graph, bounds: Mapping[str, float], fraction: int = 16) -> Plan:
    """The fixed point of every layer.

    Args:
        graph: optimized.
        bounds: on |v|, by layer and by "layer:sum", as `calibrate` and `declared` give them.
        fraction: fractional bits, where they fit.

    Raises:
        UsageError: fraction is not 8 to 20.
        RangeError: layers whose values fit no fixed point, all of them named.
    """
    if type(fraction) is not int or not 8 <= fraction <= 20:
        raise UsageError(f"A model has 8 to 20 fractional bits. Received: {fraction!r}.")
    uses = graph.uses()
    outputs = {name for name, takers in uses.items() if set(takers) == {""}}
    planner = Planner(graph.inputs, outputs, bounds, fraction, graph.shapes, _multiplied(graph))
    for name in graph.inputs:
        if planner.magnitude(name) + fraction > PRODUCT_BITS - FEWEST_WEIGHT_BITS:
            planner.unfit.append(f"input {name!r} reaches {bounds[name]:g}")
    for layer in graph.layers:
        planner.numbers[layer.name] = registry.find(layer.op).numbers(planner, layer)
    if planner.unfit:
        raise RangeError(
            f"Values do not fit {fraction} fractional bits even if rescaled: "
            f"{'; '.join(planner.unfit)}. Add batch normalization there, or declare other ranges "
            "(samples=, ranges=)."
        )
    inputs = {name: f for name in graph.inputs if (f := planner.of(name)) != fraction}
    return Plan(graph, fraction, planner.numbers, inputs)


def _multiplied(graph: Graph) -> set[str]:
    """Values that nothing but products with weights takes: those may be as fine as they like."""
    uses, found = graph.uses(), set[str]()

    def multiplies(taker: str, name: str) -> bool:
        x = graph.by_name.get(taker)
        if x is None:
            return False
        if x.op == "sum":
            terms = zip(x.inputs, x.options["terms"], strict=True)
            return all(term["op"] != "skip" for given, term in terms if given == name)
        if x.op == "normalize":
            return True
        return registry.find(x.op).moves and x.name in found

    for name in reversed([*graph.inputs, *(x.name for x in graph.layers)]):
        if uses[name] and all(multiplies(taker, name) for taker in uses[name]):
            found.add(name)
    return found


def vanishing(plan: Plan) -> list[str]:
    """In words, numbers that keep a logarithm, root or quotient from 0 and that are not held."""
    uses, by_name = plan.graph.uses(), plan.graph.by_name

    def steep(name: str) -> bool:
        takers = [by_name[taker] for taker in uses[name] if taker]
        return any(x.op in _STEEP or (registry.find(x.op).moves and steep(x.name)) for x in takers)

    added = [(x.name, x.options["offset"]) for x in plan.graph.layers if x.op == "shift"]
    added += [(name, v) for name, (_, v) in plan.graph.scaling.items()]
    found = []
    for name, offset in (pair for pair in added if steep(pair[0])):
        bits = plan.fraction_of(name)
        exact = np.asarray(offset, np.float64)
        held = np.rint(exact * 2.0**bits) * 2.0**-bits
        off = np.abs(held - exact) > _MOST_OFF * np.abs(exact)
        if off.any():
            first, kept = exact[off].flat[0], held[off].flat[0]
            found.append(f"{name!r} adds {first:g}, of which {bits} fractional bits make {kept:g}")
    return found


def rescaled(plan: Plan) -> dict[str, int]:
    """Layers whose values have fewer fractional bits than the inputs, with how many they have."""
    return {name: n.fraction for name, n in plan.numbers.items() if n.fraction < plan.fraction}
