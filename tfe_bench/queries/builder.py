"""Base of the SQL compiler: builds the steps of a plan together with their public facts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.queries import relations
from tfe_bench.queries.plan import MAX_STEPS, QueryPlan
from tfe_bench.queries.relation_facts import Relation
from tfe_bench.queries.rights import TableAccess
from tfe_bench.queries.scalars import SqlScalarCompiler
from tfe_bench.queries.steps import parse_query_step
from tfe_bench.queries.steps.step import QueryStep

# Columns of a plan by alias and name in the query.
Names = dict[tuple[str, str], str]
# Steps before unused ones are removed.
_MAX_BUILT = 10 * MAX_STEPS


@dataclass
class CommonTable:
    """A query named by WITH.

    Attributes:
        node: its parsed query.
        visible_ctes: WITH queries that it may use.
        step, columns: step and columns of its first compilation.
        is_used: whether a step reads it.
    """

    node: Any
    visible_ctes: Mapping[str, CommonTable]
    step: int
    columns: list[str]
    is_used: bool = field(default=False)


CommonTables = Mapping[str, CommonTable]


class QueryPlanBuilder(ABC):
    """Builder of the steps of one query.

    Args:
        tables: tables that the client may use, by name.
        bound: largest number of rows of the result and of joins with repeated keys.
        loss: privacy loss of each grouping of tables with a budget.
    """

    def __init__(self, tables: Mapping[str, TableAccess], bound: int | None, loss: int) -> None:
        from sqlglot import exp

        self._exp = exp
        self._bound, self._loss = bound, loss
        # names of tables are case-insensitive, as in DuckDB; columns keep their owner's spelling
        self._tables = {name.lower(): table for name, table in tables.items()}
        self._scanned: dict[str, TableAccess] = {}
        self._steps: list[QueryStep] = []
        self._facts: list[Relation] = []
        self._fresh = 0

    @abstractmethod
    def compile_query(self, node: Any, ctes: CommonTables) -> tuple[int, list[str]]:
        """Compile a SELECT or a UNION; return its step and the names of its columns."""

    def build_plan(self, output: int) -> QueryPlan:
        """Return all steps as a plan with `output` as its result."""
        tables = {alias: (t.name, t.deployment) for alias, t in self._scanned.items()}
        return QueryPlan(tables, tuple(self._steps), output)

    def _add_step(self, op: str, inputs: Sequence[int], **about: Any) -> int:
        if len(self._steps) >= _MAX_BUILT:
            raise UsageError(
                f"A plan has at most {MAX_STEPS} steps. Use a WITH query less often.",
                code="plan-too-large",
                expected=MAX_STEPS,
            )
        step = parse_query_step({"op": op, "in": list(inputs), **about}, len(self._steps))
        self._facts.append(
            relations.derive_relation(step, [self._facts[i] for i in inputs], self._scanned)
        )
        self._steps.append(step)
        return len(self._steps) - 1

    def _fresh_name(self, like: str) -> str:
        self._fresh += 1
        return f"{like}_{self._fresh}"

    def _scalar_compiler(
        self, step: int, names: Names, more: Mapping[str, str] = {}
    ) -> SqlScalarCompiler:
        return SqlScalarCompiler(self._facts[step].columns, names, more)

    def _compile_ctes(self, node: Any, ctes: CommonTables) -> CommonTables:
        """Return the queries that a query may use: those of enclosing queries and of
        its own WITH.
        """
        visible = dict(ctes)
        for cte in (node.args.get("with_") or self._exp.With()).expressions:
            others = dict(visible)
            step, columns = self.compile_query(cte.this, others)
            visible[cte.alias] = CommonTable(cte.this, others, step, columns)
        return visible

    def _use_cte(self, table: CommonTable) -> tuple[int, list[str]]:
        """Return the step of a WITH query; compile it again if the query could otherwise not be
        joined with itself.

        A query with LIMIT, a random order or noise is computed once.
        """
        shared = not self._facts[table.step].records or not self._is_repeatable(table.step)
        if not table.is_used or shared:
            table.is_used = True
            return table.step, table.columns
        return self.compile_query(table.node, table.visible_ctes)

    def _is_repeatable(self, step: int) -> bool:
        """Return whether a step has the same rows in every execution."""
        pending, visited = [step], set[int]()
        while pending:
            if (number := pending.pop()) not in visited:
                visited.add(number)
                pending.extend(self._steps[number].inputs)
        return all(self._steps[i].is_repeatable(self._facts[i]) for i in visited)
