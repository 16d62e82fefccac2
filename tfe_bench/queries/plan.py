"""Plans of queries: steps as closed JSON data that workers check and never execute as code.

A plan names the tables that it reads by aliases, and lists steps; a step takes relations of
earlier steps by number. A plan states no types, rows or rights: every worker derives them from the
headers that it stores (relations.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfe_bench.cluster.stored import check_deployment_identifier, check_name
from tfe_bench.errors import UsageError
from tfe_bench.queries.plan_syntax import check_column_name, check_object_fields
from tfe_bench.queries.steps import parse_query_step
from tfe_bench.queries.steps.step import QueryStep

MAX_STEPS, MAX_TABLES = 200, 16


@dataclass(frozen=True)
class QueryPlan:
    """A checked plan.

    Attributes:
        tables: name and deployment of each table, by alias.
        steps: steps in order.
        output: number of the step with the result.
    """

    tables: Mapping[str, tuple[str, str]]
    steps: tuple[QueryStep, ...]
    output: int

    @classmethod
    def from_header(cls, value: object) -> QueryPlan:
        """Parse a plan from untrusted JSON.

        Raises:
            UsageError: the plan is invalid.
        """
        plan = check_object_fields(value, {"tables", "steps", "output"}, "A plan")
        tables = plan["tables"]
        if not isinstance(tables, Mapping) or not 1 <= len(tables) <= MAX_TABLES:
            raise UsageError(
                f"A plan reads 1 to {MAX_TABLES} tables.", code="invalid-plan", operation="tables"
            )
        tables_by_alias: dict[str, tuple[str, str]] = {}
        for alias, about in tables.items():
            check_column_name(alias)
            about = check_object_fields(about, {"name", "deployment"}, "A table of a plan")
            check_name(about["name"], "A table's name")
            check_deployment_identifier(about["deployment"])
            tables_by_alias[alias] = (about["name"], about["deployment"])
        steps = plan["steps"]
        if not isinstance(steps, list) or not 1 <= len(steps) <= MAX_STEPS:
            raise UsageError(
                f"A plan has 1 to {MAX_STEPS} steps.", code="invalid-plan", operation="steps"
            )
        parsed_steps = []
        for number, each in enumerate(steps):
            step = parse_query_step(each, number)
            if step.scanned_alias and step.scanned_alias not in tables_by_alias:
                raise UsageError(
                    "A plan scans only tables that it names.", code="invalid-plan", operation="scan"
                )
            parsed_steps.append(step)
        if type(plan["output"]) is not int or not 0 <= plan["output"] < len(parsed_steps):
            raise UsageError(
                "A plan's output is the number of a step.", code="invalid-plan", operation="output"
            )
        used = {plan["output"], *(i for step in parsed_steps for i in step.inputs)}
        if used != set(range(len(parsed_steps))):
            raise UsageError(
                "A plan has a step that no other step or the output uses.", code="unused-step"
            )
        return cls(tables_by_alias, tuple(parsed_steps), plan["output"])

    def to_header(self) -> dict[str, Any]:
        """Return the plan as JSON."""
        return {
            "tables": {
                alias: {"name": name, "deployment": deployment}
                for alias, (name, deployment) in self.tables.items()
            },
            "steps": [step.to_header() for step in self.steps],
            "output": self.output,
        }
