"""How large the values of a plan can be, in ring units, where no check found fault.

A watched computation (ring/range_check.py) checks every sum.  From there on it is interval
arithmetic: what a layer makes of values below a limit has a limit, and a comparison takes as many
bits as what comes to it can need.  So nothing else has to be checked.

An input has no limit here unless it is given: its client keeps it within the model's bounds before
it is shared.  And a sum is taken to stay below 2^63 before it is truncated, as it does for operands
within their limits unless the magnitudes of its weights add up to more than a plan leaves room for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tfe_bench.errors import UsageError
from tfe_bench.models.graph import Layer
from tfe_bench.models.ranges import MOST_COMPARED, Numbers, Plan

_SAME = ("relu", "max_pool2d", "global_max_pool2d", "zero_pad2d", "flatten", "reshape", "identity")
_POINTWISE = ("sigmoid", "tanh", "softmax")
# Of products that are truncated.
_MOST_PRODUCT = 1 << 62


def lifted(numbers: Numbers) -> int:
    """The ring Z_2^k of a sum that is not compared; right below 2^(k-2), a planned sum's bound."""
    return min(63 - (numbers.scale - numbers.fraction), numbers.bits + 1)


def limits(plan: Plan, bounds: Mapping[str, float] | None = None) -> dict[str, int | None]:
    """The largest |v| of each value, in ring units at its scale; None where none is known.

    Args:
        bounds: on the inputs, as reals.
    """
    found: dict[str, int | None] = dict.fromkeys(plan.graph.inputs)
    if bounds is not None:
        found |= {name: math.ceil(bounds[name] * 2.0**plan.fraction) for name in found}
    for x in plan.graph.layers:
        given = [found[name] for name in x.inputs]
        known = [v for v in given if v is not None]
        found[x.name] = _limit(plan, x, known) if _bounded(x) or len(known) == len(given) else None
    return found


def _unplanned(plan: Plan, x: Layer) -> bool:
    numbers = plan.numbers[x.name]
    return numbers.scale > numbers.fraction and lifted(numbers) < 3


def _bounded(x: Layer) -> bool:
    """Whether a layer's values have a limit whatever comes to it."""
    return x.op == "sum" or x.op in _POINTWISE


def _limit(plan: Plan, x: Layer, given: list[int]) -> int | None:
    numbers, one = plan.numbers[x.name], 1 << plan.numbers[x.name].fraction
    if x.op == "sum":
        if numbers.scale == numbers.fraction:
            return None  # an output as it is
        if x.options["activation"] == "none":
            return 3 << (lifted(numbers) - 2)
        return _capped(x, (1 << (numbers.bits - 1)) - 1, one)
    if x.op in _POINTWISE:
        return one + 2
    moved = [
        v << max(0, numbers.fraction - plan.fraction_of(name))
        for v, name in zip(given, x.inputs, strict=True)
    ]
    if x.op == "multiply":
        return _multiplied(plan, x, given)[0]
    if x.op in ("add", "subtract"):
        return sum(moved)
    if x.op == "concat":
        return max(moved)
    if x.op == "leaky_relu":
        return moved[0] * max(1, math.ceil(float(x.options["alpha"]))) + 1
    if x.op in ("avg_pool2d", "global_avg_pool2d"):
        return 2 * moved[0] + 1  # (a reciprocal is rounded)
    if x.op == "sum_pool2d":
        return moved[0] * math.prod(map(int, x.options["ksize"]))
    if x.op == "global_sum_pool2d":
        return moved[0] * math.prod(plan.graph.shapes[x.inputs[0]][:2])
    assert x.op in _SAME, x.op
    return _capped(x, moved[0], one) if x.op == "relu" else moved[0]


def _multiplied(plan: Plan, x: Layer, given: list[int]) -> tuple[int, int]:
    """The limits of a product of several factors, and of the products before truncation."""
    fraction = plan.numbers[x.name].fraction
    scale, total, largest = plan.fraction_of(x.inputs[0]), given[0], 0
    for name, limit in zip(x.inputs[1:], given[1:], strict=True):
        largest = max(largest, total * limit)
        total = (total * limit >> max(0, scale + plan.fraction_of(name) - fraction)) + 1
        scale = fraction
    return total, largest


def _capped(x: Layer, limit: int, one: int) -> int:
    most = x.options["max_value"]
    return limit if most is None else min(limit, round(most * one) + 1)


def compared(plan: Plan, x: Layer) -> int:
    """Bits of a layer's comparisons that no value within its limits can leave; 0 if unknown."""
    limit = limits(plan)[x.inputs[0]]
    if limit is None:
        return 0
    limit <<= max(0, plan.numbers[x.name].fraction - plan.fraction_of(x.inputs[0]))
    if x.op == "relu" and x.options["max_value"] is not None:
        limit += round(x.options["max_value"] * 2 ** plan.numbers[x.name].fraction)
    # differences have one bit more
    more = 0 if x.op in ("relu", "leaky_relu") else 1
    return limit.bit_length() + 1 + more


def check(plan: Plan) -> None:
    """Refuses a plan that cannot be watched without a gap.

    Raises:
        UsageError: the layers that compare or multiply what may be too large for it, by name.
    """
    found, unfit = limits(plan), []
    for x in plan.graph.layers:
        if plan.numbers[x.name].bits and x.op != "sum" and compared(plan, x) > MOST_COMPARED:
            unfit.append(x.name)
        if x.op == "sum" and x.options["activation"] == "none" and _unplanned(plan, x):
            unfit.append(x.name)
        if x.op == "multiply":
            given = [v for v in (found[name] for name in x.inputs) if v is not None]
            if len(given) == len(x.inputs) and _multiplied(plan, x, given)[1] >= _MOST_PRODUCT:
                unfit.append(x.name)
    if unfit:
        raise UsageError(
            "The values of this model cannot all be checked: what comes to "
            f"{', '.join(map(repr, unfit))} may be too large for it though nothing before left its "
            "range. Convert the model with samples or smaller ranges, or predict without the check."
        )
