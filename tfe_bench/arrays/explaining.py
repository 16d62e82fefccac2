"""Description of an expression before anything is sent: its steps, costs and disclosures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tfe_bench.arrays import plan as plans
from tfe_bench.arrays.array_spec import BITS, ArraySpec
from tfe_bench.arrays.building import BuiltExpressionPlan, build
from tfe_bench.arrays.node import ExpressionNode
from tfe_bench.arrays.plan import HANDLE, INPUT, REVEAL, ExpressionLeaf
from tfe_bench.arrays.price import ExpressionPrice, count_plan_messages, price_expression_plan
from tfe_bench.cluster import profiles
from tfe_bench.cluster.pricing import predict_work_seconds
from tfe_bench.protocols.session.openings import describe_openings

_WORD = 8
_MAX_SHOWN = 12


Counted = tuple[Sequence[str], Sequence[ExpressionNode]]


def price_array_reveal(
    node: ExpressionNode, counts: Sequence[ExpressionNode] = ()
) -> tuple[BuiltExpressionPlan, ExpressionPrice]:
    """Return the plan that reveals an array and its violation counts, and its price."""
    nodes = [node, *counts]
    built = build(nodes, [(REVEAL, {})] * len(nodes))
    return built, price_expression_plan(built.plan)


def explain_array(node: ExpressionNode, profile: str, counted: Counted = ((), ())) -> str:
    """Return a readable description of an expression.

    Args:
        profile: network profile.
        counted: texts and numbers of violations, which must be 0 for a correct value.

    Raises:
        UsageError: the profile does not exist, or too many operations.
    """
    built, price = price_array_reveal(node, counted[1])
    plan = built.plan
    name = profiles.get_profile(profile).name
    rows = [("step", "", "makes", "from", "to", "MB sent")]
    for number, leaf in enumerate(plan.leaves):
        spec = _leaf_spec(leaf)
        ends = _element_range_text(built, number, spec)
        rows.append((str(number), _leaf_source_text(leaf), _spec_text(spec), *ends, ""))
    for number, step in enumerate(plan.steps, len(plan.leaves)):
        at = number - len(plan.leaves)
        result_texts = ", ".join(_spec_text(each) for each in price.step_specs[at])
        ends = _element_range_text(built, number, price.step_specs[at][0])
        rows.append(
            (
                str(number),
                _expression_step_text(step),
                result_texts,
                *ends,
                f"{price.steps[at] / 8e6:,.3f}",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    lines = [
        "  ".join(
            cell.ljust(width) if i in (1, 2) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    if any(plan.outputs_to_refresh):
        lines.append("The result gets fresh masks before it leaves.")
    seconds = predict_work_seconds(price.cost, price.moved, name, count_plan_messages(plan))
    input_elements = sum(_element_count(leaf) for leaf in plan.leaves if leaf.source == INPUT)
    lines += [
        f"All: {price.sent_bytes / 1e6:,.3f} MB among the workers, {price.cost.rounds} rounds, "
        f"about {seconds:,.3f} s over {name}; this client sends "
        f"{input_elements * 2 * _WORD / 1e6:,.3f} "
        f"MB. The largest array has {price.largest * _WORD / 1e6:,.3f} MB.",
        "The workers learn this list, the shapes and the public numbers in it, but no element. "
        f"Only this client learns the last value ({_spec_text(price.output_specs[0])}).",
        f"The job {describe_openings(price.openings)}.",
    ]
    if counted[0]:
        lines.append(
            "It also learns how often a value left the range of an operation; the result is then "
            f"refused: {'; '.join(counted[0])}."
        )
    for leaf in plan.leaves:
        if leaf.source not in (INPUT, HANDLE):
            lines.append(
                f"It derives from {leaf.about[1]!r}, whose owner must permit that it is revealed: "
                "each worker checks this independently."
            )
    return "\n".join(lines)


def _element_count(leaf: ExpressionLeaf) -> int:
    return _leaf_spec(leaf).elements


def _leaf_spec(leaf: ExpressionLeaf) -> ArraySpec:
    return ArraySpec(leaf.kind, leaf.shape, leaf.scale)


def _element_range_text(
    built: BuiltExpressionPlan, number: int, spec: ArraySpec
) -> tuple[str, str]:
    """Return the bounds of a value, as texts of numbers."""
    bounds = built.bounds.get(number)
    if bounds is None or spec.kind == BITS:
        return "", ""
    return tuple(f"{end / (1 << spec.scale):.3g}" for end in bounds)  # type: ignore[return-value]


def _spec_text(spec: ArraySpec) -> str:
    scale = f".{spec.scale}" if spec.scale else ""
    return f"{spec.kind}{scale} {list(spec.shape)}"


def _leaf_source_text(leaf: ExpressionLeaf) -> str:
    if leaf.source == INPUT:
        return "private input"
    if leaf.source == HANDLE:
        return "held at the workers"
    return " ".join(["stored", repr(leaf.about[1]), *filter(None, [leaf.about[3]])])


def _expression_step_text(step: plans.ExpressionStep) -> str:
    args = [*map(_step_argument_text, step.args)]
    args += [f"{name}={_step_argument_text(each)}" for name, each in step.named.items()]
    body_text = "" if step.body is None else f" of {_loop_body_text(step.body)}"
    return f"{step.op}({', '.join(args)}){body_text}"


def _loop_body_text(body: plans.LoopBody) -> str:
    """Return the operations of one iteration, as many as fit a line."""
    names = [step.op for step in body.steps]
    return ", ".join(names[:_MAX_SHOWN]) + (", .." if len(names) > _MAX_SHOWN else "")


def _step_argument_text(value: Any) -> str:
    match value:
        case ["ref", number]:
            return f"[{number}]"
        case ["ref", number, place]:
            return f"[{number}.{place}]"
        case ["list" | "tuple", list(items)]:
            return f"({', '.join(map(_step_argument_text, items))})"
        case ["slice", *bounds]:
            return ":".join("" if b is None else str(b) for b in bounds)
        case ["ellipsis"]:
            return "..."
        case ["array", dtype, shape, _]:
            return f"public {dtype} {shape}"
        case _:
            return json.dumps(value)
