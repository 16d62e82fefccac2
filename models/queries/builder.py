"""Steps of a plan as they are made, with the public facts of each: the base of the compiler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.models.queries import relations
from tfe_bench.models.queries.plan import MAX_STEPS, NEIGHBORS
from tfe_bench.models.queries.rights import Table
from tfe_bench.models.queries.scalars import ScalarCompiler

# Columns of a plan by the alias and the name that a query says.
Names = dict[tuple[str, str], str]
# Steps that are made before those that nothing uses are dropped.
_MAX_BUILT = 10 * MAX_STEPS


@dataclass
class CommonTable:
    """A query that WITH names.

    Attributes:
        node: the query.
        others: those that it may use.
        step, columns: as it was compiled first.
        is_used: whether something reads that step.
    """

    node: Any
    visible_ctes: Mapping[str, CommonTable]
    step: int
    columns: list[str]
    is_used: bool = field(default=False)


CommonTables = Mapping[str, CommonTable]


class PlanBuilder(ABC):
    """Makes the steps of one query.

    Args:
        tables: those that the client may use, by name.
        bound: the most rows that the result and a join of repeated keys have.
        loss: privacy that each grouping of tables with a budget spends.
    """

    def __init__(self, tables: Mapping[str, Table], bound: int | None, loss: int) -> None:
        from sqlglot import exp

        self._exp = exp
        self._bound, self._loss = bound, loss
        # names of tables are not told apart by case, as in DuckDB; columns keep their owner's
        self._tables = {name.lower(): table for name, table in tables.items()}
        self._scanned: dict[str, Table] = {}
        self._steps: list[dict[str, Any]] = []
        self._facts: list[relations.Relation] = []
        self._fresh = 0

    @abstractmethod
    def compile_query(self, node: Any, ctes: CommonTables) -> tuple[int, list[str]]:
        """Compile a SELECT or a UNION: its step, and the names of its columns."""

    def build_plan(self, output: int) -> dict[str, Any]:
        """All steps, as a plan whose relation `output` leaves."""
        tables = {
            alias: {"name": t.name, "deployment": t.deployment}
            for alias, t in self._scanned.items()
        }
        return {"tables": tables, "steps": self._steps, "output": output}

    def _add_step(self, op: str, inputs: Sequence[int], **about: Any) -> int:
        if len(self._steps) >= _MAX_BUILT:
            raise UsageError(f"A plan has at most {MAX_STEPS} steps. Use a WITH query less often.")
        step = {"op": op, "in": list(inputs), **about}
        self._facts.append(
            relations.derive_step(step, [self._facts[i] for i in inputs], self._scanned)
        )
        self._steps.append(step)
        return len(self._steps) - 1

    def _fresh_name(self, like: str) -> str:
        self._fresh += 1
        return f"{like}_{self._fresh}"

    def _scalar_compiler(
        self, step: int, names: Names, more: Mapping[str, str] = {}
    ) -> ScalarCompiler:
        return ScalarCompiler(self._facts[step].columns, names, more)

    def _compile_ctes(self, node: Any, ctes: CommonTables) -> CommonTables:
        """The queries that a query may use: those around it, and those of its own WITH."""
        visible = dict(ctes)
        for cte in (node.args.get("with_") or self._exp.With()).expressions:
            others = dict(visible)
            step, columns = self.compile_query(cte.this, others)
            visible[cte.alias] = CommonTable(cte.this, others, step, columns)
        return visible

    def _use_cte(self, table: CommonTable) -> tuple[int, list[str]]:
        """The step of a WITH query; compiled once more where it could not be joined with itself.

        One whose rows come by LIMIT, in a random order or with noise is computed once.
        """
        shared = not self._facts[table.step].records or not self._is_repeatable(table.step)
        if not table.is_used or shared:
            table.is_used = True
            return table.step, table.columns
        return self.compile_query(table.node, table.visible_ctes)

    def _is_repeatable(self, step: int) -> bool:
        """Whether a step has the same rows, however often it is carried out."""
        pending, seen = [step], set[int]()
        while pending:
            if (number := pending.pop()) not in seen:
                seen.add(number)
                pending.extend(self._steps[number]["in"])
        return all(self._is_deterministic(number) for number in seen)

    def _is_deterministic(self, step: int) -> bool:
        """Whether no choice or noise decides what a step makes of its relations."""
        about, unique = self._steps[step], self._facts[step].unique
        match about["op"]:
            case "limit" | "trim":
                return False
            case "top":
                return any(name in unique for name, _ in about["by"])
            case "window":
                return any(name in unique for name, _ in about["order"]) or not any(
                    function in ("row_number", *NEIGHBORS)
                    or detail == "rows"
                    or type(detail) is int
                    for _, function, _, detail in about["functions"]
                )
        return "loss" not in about
