"""Notes on a result: noise, dropped groups and withheld totals."""

from __future__ import annotations

from collections.abc import Sequence

from tfe_bench.queries import privacy
from tfe_bench.queries.plan import QueryPlan
from tfe_bench.queries.relation_facts import Relation
from tfe_bench.queries.rights import Tables
from tfe_bench.queries.steps.group import Group


def query_result_notes(plan: QueryPlan, facts: Sequence[Relation], tables: Tables) -> list[str]:
    """Return sentences on the rules that drop groups, and on the noise of columns."""
    lines = []
    for step, relation in zip(plan.steps, facts, strict=True):
        for alias, least in relation.least.items():
            table = tables[alias]
            threshold_text = f"fewer than {least} records of {table.name!r}"
            rule = f"a rule of {table.owner!r}"
            if step.is_total:
                lines.append(f"A total of {threshold_text} is withheld and shown as NULL ({rule}).")
            else:
                lines.append(f"Groups with {threshold_text} are left out ({rule}).")
    for column, parts in noise_deviations(plan, facts).items():
        off = " and ".join(
            f"{'' if part == 'value' else f'its {part} '}{deviation:,.4g}"
            for part, deviation in parts.items()
        )
        lines.append(f"Noise of {column}: a standard deviation of {off}, in each of its rows.")
    return lines


def noise_deviations(plan: QueryPlan, facts: Sequence[Relation]) -> dict[str, dict[str, float]]:
    """Return standard deviations of noise by result column; for an average of its number and sum.

    A column that the result only computes with is named as in the plan.
    """
    shown = _result_columns(plan, facts)
    deviations: dict[str, dict[str, float]] = {}
    for number, (step, relation) in enumerate(zip(plan.steps, facts, strict=True)):
        if (release := relation.release) is None or not isinstance(step, Group):
            continue
        before = facts[step.inputs[0]].columns
        for name, function, argument in step.aggregates:
            parts = deviations[shown[number].get(name) or str(name)] = {}
            if function != "sum":
                label = privacy.column_count_label(argument, before)
                of = "value" if function == "count" else "number"
                parts[of] = float(release.totals[label].deviation)
            if function != "count":
                unit = before[argument].value_type.denominator
                deviation = release.totals[(argument, privacy.VALUES)].deviation
                parts["value" if function == "sum" else "sum"] = float(deviation / unit)
    return deviations


def is_single_total_row(plan: QueryPlan, facts: Sequence[Relation]) -> bool:
    """Return whether a result is one row of aggregates that a rule may withhold; SQL
    returns this row.
    """
    number = plan.output
    while True:
        step = plan.steps[number]
        if step.is_total:
            return bool(facts[number].least)
        if not step.keeps_single_row():
            return False
        number = step.inputs[0]


def _result_columns(plan: QueryPlan, facts: Sequence[Relation]) -> list[dict[str, str]]:
    """Return, for each step, the result columns that hold its columns unchanged."""
    names_by_step: list[dict[str, str]] = [{} for _ in plan.steps]
    names_by_step[plan.output] = {name: name for name in facts[plan.output].columns}
    for number in range(plan.output, -1, -1):
        step = plan.steps[number]
        kept_names = step.unchanged_columns(names_by_step[number])
        for i in step.inputs:
            names_by_step[i] = {**kept_names, **names_by_step[i]}
    return names_by_step
