"""How large the values of a plan can be, in ring units, where no check found fault.

A watched computation (protocols/range_check.py) checks every sum.  From there on it is interval
arithmetic: what a layer makes of values below a limit has a limit, and a comparison takes as many
bits as what comes to it can need.  So nothing else has to be checked.

An input has no limit here: its client keeps it within the model's bounds before it is shared.  And
a sum is taken to stay below 2^63 before it is truncated, as it does for inputs within their limits
unless the magnitudes of its weights add up to more than what a plan leaves (`whole`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

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


def limits(plan: Plan) -> dict[str, int | None]:
    """The largest |v| of each value, in ring units at its scale; None where none is known."""
    found: dict[str, int | None] = dict.fromkeys(plan.graph.inputs)
    for x in plan.graph.layers:
        given = [found[name] for name in x.inputs]
        known = [v for v in given if v is not None]
        found[x.name] = _limit(plan, x, known) if _bounded(x) or len(known) == len(given) else None
    return found


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
        return math.prod(given) // 2 ** (numbers.scale - numbers.fraction) + len(given)
    if x.op in ("add", "subtract"):
        return sum(moved)
    if x.op == "concat":
        return max(moved)
    if x.op == "leaky_relu":
        return moved[0] * max(1, math.ceil(x.options["alpha"])) + 1
    if x.op in ("avg_pool2d", "global_avg_pool2d"):
        return 2 * moved[0] + 1  # (a reciprocal is rounded)
    if x.op == "sum_pool2d":
        return moved[0] * math.prod(x.options["ksize"])
    if x.op == "global_sum_pool2d":
        return moved[0] * math.prod(plan.graph.shapes[x.inputs[0]][:2])
    assert x.op in _SAME, x.op
    return _capped(x, moved[0], one) if x.op == "relu" else moved[0]


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
        if x.op == "multiply":
            given = [found[name] for name in x.inputs]
            if math.prod(v for v in given if v is not None) >= _MOST_PRODUCT:
                unfit.append(x.name)
    if unfit:
        raise UsageError(
            "The values of this model cannot all be checked: what comes to "
            f"{', '.join(map(repr, unfit))} may be too large for it though nothing before left its "
            "range. Convert the model with samples or smaller ranges, or predict without the check."
        )


def whole(plan: Plan, bounds: Mapping[str, float]) -> list[str]:
    """Sums that could leave Z_2^64 itself while everything before them is within its limits.

    Needs the weights, so it is for the model's owner.  What leaves the ring is seen too unless its
    residue modulo 2^64 is a small number by chance.

    Args:
        bounds: on the inputs.
    """
    found: dict[str, int | None] = limits(plan)
    for name in plan.graph.inputs:
        found[name] = math.ceil(bounds[name] * 2.0**plan.fraction)
    wide = []
    for x in plan.graph.layers:
        if x.op != "sum":
            continue
        scale, total = plan.numbers[x.name].scale, 0.0
        for i, (name, term) in enumerate(zip(x.inputs, x.options["terms"], strict=True)):
            limit = found[name]
            limit = (1 << 62) if limit is None else limit
            if term["op"] == "skip":
                total += float(limit << (scale - plan.fraction_of(name)))
                continue
            kernel = np.abs(np.asarray(x.weights[f"kernel{i}"], np.float64))
            kernel = np.rint(kernel * 2.0 ** plan.weight_bits(x, i))
            axes = tuple(range(kernel.ndim - 1)) if term["op"] != "depthwise_conv2d" else (0, 1)
            each = kernel if term["op"] == "affine" else kernel.sum(axis=axes)
            total += float(each.max(initial=0.0)) * limit
        if "bias" in x.weights:
            total += float(np.abs(x.weights["bias"]).max(initial=0.0)) * 2.0**scale
        if total >= 2.0**63:
            wide.append(x.name)
    return wide
