"""How large the values of a plan can be, in ring units, where no check found fault.

A watched computation (ring/range_check.py) checks every sum.  From there on it is interval
arithmetic: what a layer makes of values below a limit has a limit, and a comparison takes as many
bits as what comes to it can need.  So nothing else has to be checked.

An input has no limit here unless it is given: its client keeps it within the model's bounds before
it is shared.  What a sum of values within their limits can reach before it is truncated, its
weights tell: a plan says that in bits (`reached`), and only so many are ever looked at.  Of a sum
of which it does not, as weights are unknown to who plans, 64 are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tfe_bench.errors import UsageError
from tfe_bench.models.calibration import MAX_REACH, Plan
from tfe_bench.models.graph import LayerSpec
from tfe_bench.models.kinds import registry

Limits = Mapping[str, int | None]


def compute_limits(plan: Plan, bounds: Mapping[str, float] | None = None) -> dict[str, int | None]:
    """The largest |v| of each value, in ring units at its scale; None where none is known.

    Args:
        bounds: on the inputs, as reals.
    """
    value_limits: dict[str, int | None] = dict.fromkeys(plan.graph.inputs)
    if bounds is not None:
        value_limits |= {n: math.ceil(bounds[n] * 2.0 ** plan.fraction_of(n)) for n in value_limits}
    for x in plan.graph.layers:
        kind, known_limits = registry.get_kind(x.op), input_limits(value_limits, x)
        if known_limits is None and not kind.is_bounded:
            value_limits[x.name] = None
        else:
            value_limits[x.name] = kind.bound_output(plan.place_layer(x), known_limits or [])
    return value_limits


def add_reach(plan: Plan, bounds: Mapping[str, float]) -> Plan:
    """A plan that says of each sum what it can reach, from the weights' values.

    Args:
        bounds: on the inputs, as reals.
    """
    value_limits, numbers = compute_limits(plan, bounds), dict(plan.numbers)
    for x in plan.graph.layers:
        known_limits = input_limits(value_limits, x)
        reach = (
            0
            if known_limits is None
            else registry.get_kind(x.op).bound_sum_bits(plan.place_layer(x), known_limits)
        )
        numbers[x.name] = replace(numbers[x.name], reach=min(reach, MAX_REACH))
    return replace(plan, numbers=numbers)


def input_limits(value_limits: Limits, x: LayerSpec) -> list[int] | None:
    """The limits of a layer's inputs, None if one has none."""
    known_limits = [limit for name in x.inputs if (limit := value_limits[name]) is not None]
    return known_limits if len(known_limits) == len(x.inputs) else None


def comparison_bits(plan: Plan, x: LayerSpec, value_limits: Limits | None = None) -> int:
    """Bits of a layer's comparisons that no value within its limits can leave; 0 if unknown.

    Args:
        found: `limits` of the plan, if they are known.
    """
    known_limits = input_limits(compute_limits(plan) if value_limits is None else value_limits, x)
    return (
        0
        if known_limits is None
        else registry.get_kind(x.op).bound_comparison_bits(plan.place_layer(x), known_limits)
    )


def check_monitorable(plan: Plan) -> None:
    """Refuses a plan that cannot be watched without a gap.

    Raises:
        UsageError: the layers that compare or multiply what may be too large for it, by name.
    """
    value_limits = compute_limits(plan)
    unbounded = [
        x.name
        for x in plan.graph.layers
        if not registry.get_kind(x.op).can_check_range(
            plan.place_layer(x), input_limits(value_limits, x)
        )
    ]
    if unbounded:
        raise UsageError(
            "The values of this model cannot all be checked: what comes to "
            f"{', '.join(map(repr, unbounded))} may be too large for it though nothing before left its "
            "range. Convert the model with samples or smaller ranges, or predict without the check."
        )
