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
from tfe_bench.models.graph import Layer
from tfe_bench.models.kinds import registry
from tfe_bench.models.ranges import MOST_REACH, Plan

Limits = Mapping[str, int | None]


def limits(plan: Plan, bounds: Mapping[str, float] | None = None) -> dict[str, int | None]:
    """The largest |v| of each value, in ring units at its scale; None where none is known.

    Args:
        bounds: on the inputs, as reals.
    """
    found: dict[str, int | None] = dict.fromkeys(plan.graph.inputs)
    if bounds is not None:
        found |= {n: math.ceil(bounds[n] * 2.0 ** plan.fraction_of(n)) for n in found}
    for x in plan.graph.layers:
        kind, given = registry.find(x.op), of_inputs(found, x)
        if given is None and not kind.bounded:
            found[x.name] = None
        else:
            found[x.name] = kind.limit(plan.node(x), given or [])
    return found


def reached(plan: Plan, bounds: Mapping[str, float]) -> Plan:
    """A plan that says of each sum what it can reach, from the weights' values.

    Args:
        bounds: on the inputs, as reals.
    """
    found, numbers = limits(plan, bounds), dict(plan.numbers)
    for x in plan.graph.layers:
        given = of_inputs(found, x)
        reach = 0 if given is None else registry.find(x.op).reach(plan.node(x), given)
        numbers[x.name] = replace(numbers[x.name], reach=min(reach, MOST_REACH))
    return replace(plan, numbers=numbers)


def of_inputs(found: Limits, x: Layer) -> list[int] | None:
    """The limits of a layer's inputs, None if one has none."""
    given = [limit for name in x.inputs if (limit := found[name]) is not None]
    return given if len(given) == len(x.inputs) else None


def compared(plan: Plan, x: Layer, found: Limits | None = None) -> int:
    """Bits of a layer's comparisons that no value within its limits can leave; 0 if unknown.

    Args:
        found: `limits` of the plan, if they are known.
    """
    given = of_inputs(limits(plan) if found is None else found, x)
    return 0 if given is None else registry.find(x.op).compared(plan.node(x), given)


def check(plan: Plan) -> None:
    """Refuses a plan that cannot be watched without a gap.

    Raises:
        UsageError: the layers that compare or multiply what may be too large for it, by name.
    """
    found = limits(plan)
    unfit = [
        x.name
        for x in plan.graph.layers
        if not registry.find(x.op).watchable(plan.node(x), of_inputs(found, x))
    ]
    if unfit:
        raise UsageError(
            "The values of this model cannot all be checked: what comes to "
            f"{', '.join(map(repr, unfit))} may be too large for it though nothing before left its "
            "range. Convert the model with samples or smaller ranges, or predict without the check."
        )
