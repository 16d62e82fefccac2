"""Optimization of plans: unused columns are dropped, so that they are neither loaded nor moved."""

from __future__ import annotations

from dataclasses import replace

from tfe_bench.queries.plan import QueryPlan


def prune_columns(plan: QueryPlan) -> QueryPlan:
    """Return the same plan without unused columns and steps.

    The columns of a SELECT stay unchanged. A union keeps its columns, which match by position, and
    so does a distinct, in which all columns count.
    """
    steps = list(plan.steps)
    # None: all columns
    needed_by_step: dict[int, set[str] | None] = {plan.output: None}
    for number in range(len(steps) - 1, -1, -1):
        if number not in needed_by_step:
            continue
        needed = needed_by_step[number]
        if needed is not None:
            steps[number] = steps[number].drop_columns(needed)
        step = steps[number]
        for i, names in zip(step.inputs, step.list_needs(needed), strict=True):
            before = needed_by_step.get(i, set())
            needed_by_step[i] = None if names is None or before is None else before | names
    places = {old: new for new, old in enumerate(sorted(needed_by_step))}
    kept_steps = tuple(
        replace(steps[old], inputs=tuple(places[i] for i in steps[old].inputs)) for old in places
    )
    scanned = {step.scanned_alias for step in kept_steps}
    tables = {alias: about for alias, about in plan.tables.items() if alias in scanned}
    return QueryPlan(tables, kept_steps, places[plan.output])
