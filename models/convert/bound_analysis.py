"""Bound analysis of a plan: the largest values in ring units, if no range check fails.

A monitored computation (ring/range_check.py) checks every sum.  All other bounds follow by interval
arithmetic: bounded inputs of a layer give a bounded value, and a comparison is as wide as the
bounds of its operands require.  So no further check is necessary.
An input has no bound here unless one is passed: its client checks the model's bounds before
sharing.
The weights determine the largest sum of bounded values before truncation.  A plan states it in
bits (`add_reach`), and no more bits are ever compared.  For a sum without this statement, because
the planner does not know the weights, 64 bits are compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tfe_bench.errors import UsageError
from tfe_bench.models.convert.calibration import MAX_REACH, ModelPlan
from tfe_bench.models.convert.graph import LayerSpec
from tfe_bench.models.layers.base import registry

Limits = Mapping[str, int | None]


def compute_layer_limits(
    plan: ModelPlan, bounds: Mapping[str, float] | None = None
) -> dict[str, int | None]:
    """Compute the largest |v| of each value in ring units at its scale; None if it is unknown.

    Args:
        bounds: bounds of the inputs, as reals.
    """
    value_limits: dict[str, int | None] = dict.fromkeys(plan.graph.inputs)
    if bounds is not None:
        value_limits |= {n: math.ceil(bounds[n] * 2.0 ** plan.fraction_of(n)) for n in value_limits}
    for x in plan.graph.layers:
        kind, known_limits = registry.get_layer_kind(x.op), input_limits(value_limits, x)
        if known_limits is None and not kind.is_bounded:
            value_limits[x.name] = None
        else:
            value_limits[x.name] = kind.bound_output(plan.place_layer(x), known_limits or [])
    return value_limits


def add_reach(plan: ModelPlan, bounds: Mapping[str, float]) -> ModelPlan:
    """Return the plan with the largest possible value of each sum, from the weights' values.

    Args:
        bounds: bounds of the inputs, as reals.
    """
    value_limits, numbers = compute_layer_limits(plan, bounds), dict(plan.numbers)
    for x in plan.graph.layers:
        known_limits = input_limits(value_limits, x)
        reach = (
            0
            if known_limits is None
            else registry.get_layer_kind(x.op).bound_sum_bits(plan.place_layer(x), known_limits)
        )
        numbers[x.name] = replace(numbers[x.name], reach=min(reach, MAX_REACH))
    return replace(plan, numbers=numbers)


def input_limits(value_limits: Limits, x: LayerSpec) -> list[int] | None:
    """Return the limits of a layer's inputs, None if one has no limit."""
    known_limits = [limit for name in x.inputs if (limit := value_limits[name]) is not None]
    return known_limits if len(known_limits) == len(x.inputs) else None


def layer_comparison_bits(plan: ModelPlan, x: LayerSpec, value_limits: Limits | None = None) -> int:
    """Return the bits of a layer's comparisons that suffice within the limits; 0 if unknown.

    Args:
        value_limits: `compute_layer_limits` of the plan, if already computed.
    """
    known_limits = input_limits(
        compute_layer_limits(plan) if value_limits is None else value_limits, x
    )
    return (
        0
        if known_limits is None
        else registry.get_layer_kind(x.op).bound_comparison_bits(plan.place_layer(x), known_limits)
    )


def check_monitorable_layers(plan: ModelPlan) -> None:
    """Reject a plan whose values cannot all be monitored.

    Raises:
        UsageError: the operands of some comparisons or products may be too large; the text names
            the layers.
    """
    value_limits = compute_layer_limits(plan)
    unbounded = [
        x.name
        for x in plan.graph.layers
        if not registry.get_layer_kind(x.op).can_check_range(
            plan.place_layer(x), input_limits(value_limits, x)
        )
    ]
    if unbounded:
        raise UsageError(
            "The values of this model cannot all be checked: the inputs of "
            f"{', '.join(map(repr, unbounded))} may be too large although no earlier value left "
            "its range. Convert the model with samples or smaller ranges, or predict without "
            "the check.",
            code="range-check-impossible",
            operation=unbounded[0],
            received=unbounded,
        )
