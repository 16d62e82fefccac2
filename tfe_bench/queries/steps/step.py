"""Interface of the steps of a plan: a class for each step, in a module of this package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from tfe_bench.cluster.schema import Request, parsed_field
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables.relation import Column, Relation
from tfe_bench.queries import privacy
from tfe_bench.queries.dp_noise import NoiseDraw
from tfe_bench.queries.execution_context import QueryExecutionContext
from tfe_bench.queries.plan_syntax import check_row_bound, check_sql_expression
from tfe_bench.queries.relation_facts import Relation as Facts
from tfe_bench.queries.rights import Tables

# Columns that a step requires of one input; None: all.
NeededColumns = set[str] | None


def declare_field(read: Callable[[Any], Any], **default: Any) -> Any:
    """Declare a field of a step.

    Args:
        read: returns the valid JSON value of an untrusted one, or raises a UsageError.
        default: the field's default, if plans may lack it.
    """
    return parsed_field(read, lambda value: value, **default)


def expression_field() -> Any:
    """Declare a field for an expression."""
    return declare_field(check_sql_expression)


def bound_field() -> Any:
    """Declare a field for a public bound of a private number of rows."""
    return declare_field(check_row_bound)


@dataclass(frozen=True)
class StepContext:
    """Inputs and options of one step while it runs.

    Attributes:
        inputs, input_facts: relations of its inputs, and their public facts.
        output_facts: public facts of its output.
        over: bits of bounded steps; the step appends its own.
        noise: noise that this worker drew for the step.
    """

    party: Party
    inputs: Sequence[Relation]
    input_facts: Sequence[Facts]
    output_facts: Facts
    setting: QueryExecutionContext
    over: list[Shared]
    noise: NoiseDraw | None = None

    def input_columns(self, rows: Relation, index: int = 0) -> dict[str, Column]:
        """Return the columns of an input by name.

        Args:
            rows: the input's rows, or the same columns inside of a graph.
        """
        return dict(zip(self.input_facts[index].columns, rows.columns, strict=True))


@dataclass(frozen=True)
class QueryStep(Request):
    """One step of a plan.

    A subclass is a frozen dataclass. It declares its fields by `declare_field` and the like: these
    are the fields of its JSON object besides "op" and "in".

    Attributes:
        op: the name of the step in plans.
        arity: smallest and largest number of inputs.
        in_place: whether its rows are those of its first input, in the same places and under the
            same names.
        keeps_names: whether it keeps its input's columns under the same names.
        keeps_units: whether each row of its output depends on one row of its first input, or the
            step bounds the contribution of each privacy unit.
        adds_noise: whether it may release rows with noise.
        over_subject: subject of the error for more rows than `row_bound`.
        inputs: numbers of earlier steps.
    """

    op: ClassVar[str]
    arity: ClassVar[tuple[int, int]] = (1, 1)
    in_place: ClassVar[bool] = False
    keeps_names: ClassVar[bool] = False
    keeps_units: ClassVar[bool] = False
    adds_noise: ClassVar[bool] = False
    over_subject: ClassVar[str] = "The result"

    inputs: tuple[int, ...] = field(default=(), kw_only=True)

    def to_header(self) -> dict[str, Any]:
        """Return the step as JSON."""
        return {"op": self.op, "in": list(self.inputs), **self.to_parameters()}

    # ---- check

    def check_fields(self) -> None:
        """Reject fields that do not fit each other.

        Raises:
            UsageError: naming the fault.
        """

    # ---- derive: facts, rights and lineage

    def derive_facts(self, inputs: Sequence[Facts], tables: Tables) -> Facts:
        """Derive the public facts of the output, with its sources and control columns.

        Args:
            inputs: the facts of its inputs.
            tables: tables that the client may use, by the plan's aliases.

        Raises:
            UsageError: the step does not fit its inputs.
            PolicyError: the client lacks a right; the text names column, right and owner.
        """
        raise NotImplementedError

    def check_units(self, tables: Tables, first: Sequence[str], others: Sequence[str]) -> None:
        """Reject a step after which a row may depend on further units of a table with a budget.

        Args:
            first, others: aliases of tables with a budget that the first input, and the other
                inputs, depend on.

        Raises:
            PolicyError: naming the table and its owner.
        """
        if not self.keeps_units:
            privacy.reject_repeated_units(
                tables, [*first, *others], f"A step `{self.op}` of its rows"
            )

    @property
    def row_bound(self) -> int | None:
        """Bound that a private number of rows may exceed; None: there is no such bound."""
        return None

    @property
    def is_total(self) -> bool:
        """True if the output is one row of aggregates of all rows."""
        return False

    def count_quantiles(self) -> int:
        """Return the number of quantiles among its aggregates."""
        return 0

    def is_repeatable(self, facts: Facts) -> bool:
        """Return whether neither a free choice nor noise affects the output.

        Args:
            facts: the facts of the output.
        """
        return True

    def keeps_single_row(self) -> bool:
        """Return whether the only row of an input is the only row of the output."""
        return False

    def unchanged_columns(self, names: Mapping[str, str]) -> Mapping[str, str]:
        """Return the columns of the inputs that a result holds unchanged, and their names there.

        Args:
            names: the same for the columns of the output.
        """
        return names if self.keeps_names else {}

    # ---- run

    def run_protocol(self, context: StepContext) -> Relation:
        """Run the step at one of the three workers; return its rows."""
        raise NotImplementedError

    # ---- explain

    def explain_step(self, inputs: Sequence[Facts], output: Facts) -> str:
        """Describe the step in one line."""
        return f"{self.op} {self.input_text}"

    @property
    def input_text(self) -> str:
        """Numbers of the inputs, for descriptions."""
        return ", ".join(map(str, self.inputs))

    # ---- needs: what must be loaded and held

    @property
    def scanned_alias(self) -> str:
        """Alias of the table that the step reads; "" for none."""
        return ""

    def list_needs(self, needed: NeededColumns) -> list[NeededColumns]:
        """Return the columns that the step requires of each input.

        Args:
            needed: required columns of its output.
        """
        return [None for _ in self.inputs]

    def drop_columns(self, needed: set[str]) -> Self:
        """Return the step without columns of its own that nothing needs."""
        return self
