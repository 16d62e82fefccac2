"""Optimization of plans: unused columns are dropped, so that they are neither loaded nor moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfe_bench.queries.plan import used_columns


def prune_columns(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same plan without unused columns and steps.

    The columns of a SELECT stay unchanged. A union keeps its columns, which match by position, and
    so does a distinct, in which all columns count.
    """
    steps = [dict(step) for step in plan["steps"]]
    output = plan["output"]
    # None: all columns
    needed_by_step: dict[int, set[str] | None] = {output: None}
    for number in range(len(steps) - 1, -1, -1):
        if number not in needed_by_step:
            continue
        step, needed = steps[number], needed_by_step[number]
        if needed is not None:
            _drop_columns(step, needed)
        for i, names in zip(step["in"], _input_columns(step, needed), strict=True):
            before = needed_by_step.get(i, set())
            needed_by_step[i] = None if names is None or before is None else before | names
    places = {old: new for new, old in enumerate(sorted(needed_by_step))}
    kept_steps = [
        {**steps[old], "in": [places[i] for i in steps[old]["in"]]}
        for old in sorted(needed_by_step)
    ]
    scanned = {step["table"] for step in kept_steps if step["op"] == "scan"}
    tables = {alias: about for alias, about in plan["tables"].items() if alias in scanned}
    return {"tables": tables, "steps": kept_steps, "output": places[output]}


def _input_columns(step: Mapping[str, Any], needed: set[str] | None) -> list[set[str] | None]:
    """Return the columns that a step requires of each input, given the required
    columns of its output.
    """
    match step["op"]:
        case "filter":
            return [None if needed is None else needed | used_columns(step["where"])]
        case "project":
            return [set[str]().union(*(used_columns(e) for _, e in step["columns"]))]
        case "group":
            names = {a for name, _, a in step["aggregates"] if a is not None}
            return [names | set(step["keys"])]
        case "order" | "top":
            return [None if needed is None else needed | {name for name, _ in step["by"]}]
        case "limit" | "trim":
            return [needed]
        case "window":
            if needed is None:
                return [None]
            window_columns = {*step["partition"], *(name for name, _ in step["order"])}
            window_columns |= {a for _, _, a, _ in step["functions"] if a is not None}
            return [(needed | window_columns) - {name for name, _, _, _ in step["functions"]}]
        case "join" | "many_join":
            left = {name for name, _ in step["on"]}
            right = {name for _, name in step["on"]}
            wide = step.get("kind", "inner") in ("inner", "left")
            if needed is None:
                return [None, None if wide else right]
            # (a name of the other side is not in this side: `_drop_columns` ignores it)
            return [needed | left, (needed | right) if wide else right]
        case _:
            return [None for _ in step["in"]]


def _drop_columns(step: dict[str, Any], needed: set[str]) -> None:
    if step["op"] == "scan":
        prefix = f"{step['table']}."
        step["columns"] = [name for name in step["columns"] if prefix + name in needed]
    elif step["op"] == "project":
        used_items = [pair for pair in step["columns"] if pair[0] in needed]
        # (a relation without columns still has rows, and no table's column is read for them)
        step["columns"] = used_items or [[step["columns"][0][0], ["int", 1]]]
    elif step["op"] == "group":
        used_items = [each for each in step["aggregates"] if each[0] in needed]
        step["aggregates"] = used_items or ([] if step["keys"] else step["aggregates"][:1])
    elif step["op"] == "window":
        used_items = [each for each in step["functions"] if each[0] in needed]
        step["functions"] = used_items or step["functions"][:1]
