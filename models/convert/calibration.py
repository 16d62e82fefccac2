"""Calibration: ranges of a model's values, and the fixed-point format of each layer.

A bound on |v| determines the width of comparisons and the number of fractional bits.  A value that
is too large for comparisons at the usual precision gets fewer fractional bits ("rescaled").
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.cluster.schema import (
    Header,
    Rule,
    declare_field,
    integer_rule,
    list_rule,
    mapping_rule,
    parsed_field,
)
from tfe_bench.errors import DataError, RangeError, UsageError, did_you_mean
from tfe_bench.models.convert import plaintext
from tfe_bench.models.convert.graph import Array, Graph, LayerSpec, replace_layers
from tfe_bench.models.convert.graph_header import MAX_LAYERS
from tfe_bench.models.layers.base import registry
from tfe_bench.models.layers.base.layer import FixedPointFormat, PlacedLayer
from tfe_bench.models.layers.base.planning import (
    FEWEST_WEIGHT_BITS,
    PRODUCT_BITS,
    LayerFormatPlanner,
)
from tfe_bench.protocols.ring import compare

# Values of fewer fixed-point steps are coarse: their error is 0.2 % of the largest value or more.
MIN_STEPS = 256
# Largest reach of a sum in a plan: larger reaches, beyond the exponents of doubles, are not
# distinguished.
MAX_REACH = 1024
# Factor by which a private input may exceed the range of the public samples.
MARGIN = 4.0
# Safety factor of the bounds that scaled samples reach.
HEADROOM = 1.125
# Operations that amplify differences of small values.
_STEEP_OPS = ("log", "sqrt", "rsqrt", "reciprocal", "divide")
# Largest relative rounding error of a public number that is added to a value.
_MAX_ROUNDING = 0.05


_BITS = integer_rule(0, 63)
_FORMAT = list_rule(integer_rule(0, MAX_REACH), 3, 5)


def _read_format(value: object) -> FixedPointFormat:
    row = _FORMAT.read(value)
    return FixedPointFormat(*map(_BITS.read, row[:4]), *row[4:])


@dataclass(frozen=True, eq=False)
class ModelPlan(
    Header, subject="A model's plan", error=DataError, code="invalid-plan", is_only_code=True
):
    """A model with its fixed-point formats, as sent to the three workers.

    A plan is public.  It contains the layers and, for each, the bits of its values, comparisons and
    products.  So it discloses, as powers of two, the ranges of the values on the samples, those of
    weights below 1/4 in magnitude, and for each sum the largest sum of its weights' magnitudes
    times the ranges of the values.

    Attributes:
        graph: the optimized graph.
        fraction: fractional bits of the inputs.
        numbers: format of each layer.
        inputs: fractional bits of inputs with other formats, because their values are small.
    """

    graph: Graph = parsed_field(Graph.from_header, Graph.to_header)
    fraction: int = declare_field(_BITS)
    numbers: Mapping[str, FixedPointFormat] = declare_field(
        mapping_rule(Rule(_read_format, FixedPointFormat.to_row), MAX_LAYERS)
    )
    inputs: Mapping[str, int] = declare_field(mapping_rule(_BITS, MAX_LAYERS), factory=dict)

    @classmethod
    def from_header(cls, header: object) -> ModelPlan:
        """Read the plan of a header from an untrusted source; its weights are zeros.

        Raises:
            DataError, UsageError: the header is invalid.
        """
        plan = super().from_header(header)
        names = {x.name for x in plan.graph.layers}
        if not plan.inputs.keys() <= plan.graph.inputs.keys() or set(plan.numbers) != names:
            raise DataError(
                "Expected three to five numbers from 0 to 63 for each layer of a plan.",
                code="invalid-plan",
                operation="numbers",
            )
        return plan

    def fraction_of(self, name: str) -> int:
        """Return the fractional bits of a layer's value or of an input."""
        if name in self.graph.inputs:
            return self.inputs.get(name, self.fraction)
        return self.numbers[name].fraction

    def place_layer(self, layer: LayerSpec) -> PlacedLayer:
        """Return a layer with its position and format."""
        scales = [self.fraction_of(name) for name in layer.inputs]
        return self.graph.place_layer(layer, self.numbers[layer.name], scales)

    def weight_bits(self, layer: LayerSpec, name: str) -> int:
        """Return the fractional bits of a layer's weights."""
        return registry.get_layer_kind(layer.op).weight_bits(self.place_layer(layer), name)


def calibrate_ranges(graph: Graph, samples: Any, margin: float = MARGIN) -> dict[str, float]:
    """Derive bounds on the magnitude of every value from a few public samples.

    A bound is the largest of two: margin times the largest magnitude on the samples, and the
    largest magnitude on samples scaled by margin and by -margin.  These differ because of biases.

    Args:
        samples: inputs of the model, with a batch.
        margin: factor by which private inputs may exceed the samples' range.

    Raises:
        UsageError: the model does not accept the samples.
        RangeError: a value on the samples is NaN or infinite; the text names the first such layer.
    """
    bounds: dict[str, float] = {}
    inputs = plaintext.scale_owner_inputs(graph, samples)
    unscaled_graph = replace_layers(graph, graph.layers, scaling={})
    count = len(next(iter(inputs.values())))
    boolean_inputs = {*graph.tokens, *graph.masks}
    for factor, spread in ((1.0, margin), (margin, HEADROOM), (-margin, HEADROOM)):

        def record_bound(
            name: str, value: Array, factor: float = factor, spread: float = spread
        ) -> None:
            largest = float(np.abs(value).max(initial=0.0))
            if not math.isfinite(largest):
                times = "" if factor == 1 else f" times {factor:g}"
                raise RangeError(
                    f"Layer {name!r} returns NaN or infinite values on the samples{times}.",
                    code="not-finite",
                    operation=name,
                )
            bounds[name] = max(bounds.get(name, 0.0), spread * largest)

        for begin in range(0, count, 16):
            sample_batch = {
                name: a[begin : begin + 16] * (1.0 if name in boolean_inputs else factor)
                for name, a in inputs.items()
            }
            plaintext.evaluate_graph(unscaled_graph, sample_batch, record_bound)
    # inputs are not computed, so that they need no headroom
    bounds |= {name: margin * float(np.abs(a).max()) for name, a in inputs.items()}
    return bounds | dict.fromkeys(boolean_inputs, 1.0)


def declare_layer_ranges(
    graph: Graph, ranges: float | Mapping[str, Any], default: float
) -> dict[str, float]:
    """Return declared bounds: one for all values, or by layer with `default` for the rest.

    Raises:
        UsageError: a layer is unknown, or a bound is not a positive number.
    """
    known_names = [*graph.inputs, *(x.name for x in graph.layers)]
    stated_bounds = ranges if isinstance(ranges, Mapping) else dict.fromkeys(known_names, ranges)
    for name, bound in stated_bounds.items():
        if name not in known_names:
            raise UsageError(
                f"The model has no layer {name!r}.{did_you_mean(str(name), known_names)} After "
                f"optimization its layers are: {', '.join(known_names)}.",
                code="unknown-layer",
                operation="ranges",
                received=name,
            )
        fits = isinstance(bound, (int, float)) and not isinstance(bound, bool)
        if not fits or not (math.isfinite(bound) and bound > 0):
            raise UsageError(
                f"Expected a positive number as range. Received: {name}={bound!r}.",
                code="number-out-of-range",
                operation="ranges",
                received=bound,
            )
    bounds = {
        name: float(stated_bounds.get(name, default)) for name in known_names
    } | dict.fromkeys([*graph.tokens, *graph.masks], 1.0)
    bounds.update({f"{name}:sum": bound for name, bound in bounds.items()})
    return bounds


def default_layer_bound(fraction: int) -> float:
    """Return the bound of layers without other information: 2^14 at 16 fractional bits."""
    return float(2.0 ** (compare.LAYER_BITS - 1 - fraction) - 2.0 ** (1 - fraction))


def plan_fixed_point(graph: Graph, bounds: Mapping[str, float], fraction: int = 16) -> ModelPlan:
    """Choose the fixed-point format of every layer.

    Args:
        graph: an optimized graph.
        bounds: bounds of |v|, by layer and by "layer:sum", from `calibrate_ranges` or
            `declare_layer_ranges`.
        fraction: fractional bits of values that fit.

    Raises:
        UsageError: fraction is not 8 to 20.
        RangeError: values fit no fixed-point format; the text names all such layers.
    """
    if type(fraction) is not int or not 8 <= fraction <= 20:
        raise UsageError(
            f"Expected 8 to 20 fractional bits. Received: {fraction!r}.",
            code="number-out-of-range",
            operation="fractional_bits",
            received=fraction,
        )
    uses = graph.find_users()
    outputs = {name for name, takers in uses.items() if set(takers) == {""}}
    planner = LayerFormatPlanner(
        graph.inputs, outputs, bounds, fraction, graph.shapes, _find_weight_only_values(graph)
    )
    for name in graph.inputs:
        if planner.get_magnitude(name) + fraction > PRODUCT_BITS - FEWEST_WEIGHT_BITS:
            planner.unfit.append(f"input {name!r} reaches {bounds[name]:g}")
    for layer in graph.layers:
        planner.numbers[layer.name] = registry.get_layer_kind(layer.op).plan_format(planner, layer)
    if planner.unfit:
        raise RangeError(
            f"Values do not fit {fraction} fractional bits even if rescaled: "
            f"{'; '.join(planner.unfit)}. Add batch normalization there, or declare other ranges "
            "(samples=, ranges=).",
            code="range-too-large",
            operation="ranges",
            received="; ".join(planner.unfit),
        )
    inputs = {
        name: f for name in graph.inputs if (f := planner.get_fractional_bits(name)) != fraction
    }
    return ModelPlan(graph, fraction, planner.numbers, inputs)


def _find_weight_only_values(graph: Graph) -> set[str]:
    """Return values whose only uses are products with weights: these may have any fine scale."""
    uses, multiplied = graph.find_users(), set[str]()

    def is_multiplied_by(taker: str, name: str) -> bool:
        x = graph.by_name.get(taker)
        if x is None:
            return False
        if x.op == "sum":
            terms = zip(x.inputs, x.options["terms"], strict=True)
            return all(term["op"] != "skip" for term_input, term in terms if term_input == name)
        if x.op == "normalize":
            return True
        return registry.get_layer_kind(x.op).is_reshape and x.name in multiplied

    for name in reversed([*graph.inputs, *(x.name for x in graph.layers)]):
        if uses[name] and all(is_multiplied_by(taker, name) for taker in uses[name]):
            multiplied.add(name)
    return multiplied


def find_vanishing_constants(plan: ModelPlan) -> list[str]:
    """Describe constants that keep a logarithm, root or quotient from 0 but round to 0."""
    uses, by_name = plan.graph.find_users(), plan.graph.by_name

    def feeds_steep_op(name: str) -> bool:
        takers = [by_name[taker] for taker in uses[name] if taker]
        return any(
            x.op in _STEEP_OPS
            or (registry.get_layer_kind(x.op).is_reshape and feeds_steep_op(x.name))
            for x in takers
        )

    added = [(x.name, x.options["offset"]) for x in plan.graph.layers if x.op == "shift"]
    added += [(name, v) for name, (_, v) in plan.graph.scaling.items()]
    descriptions = []
    for name, offset in (pair for pair in added if feeds_steep_op(pair[0])):
        bits = plan.fraction_of(name)
        exact = np.asarray(offset, np.float64)
        rounded = np.rint(exact * 2.0**bits) * 2.0**-bits
        is_vanishing = np.abs(rounded - exact) > _MAX_ROUNDING * np.abs(exact)
        if is_vanishing.any():
            first, first_rounded = exact[is_vanishing].flat[0], rounded[is_vanishing].flat[0]
            descriptions.append(
                f"{name!r} adds {first:g}, of which {bits} fractional bits make {first_rounded:g}"
            )
    return descriptions


def rescaled_layers(plan: ModelPlan) -> dict[str, int]:
    """Return layers with fewer fractional bits than the inputs, with their fractional bits."""
    return {name: n.fraction for name, n in plan.numbers.items() if n.fraction < plan.fraction}
