"""The step `window`: values of each row computed from other rows of its partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfe_bench.cluster.stored import Source
from tfe_bench.errors import UsageError
from tfe_bench.protocols.tables import results
from tfe_bench.protocols.tables.keys import OrderKey
from tfe_bench.protocols.tables.relation import ANY_BITS, Column, Relation
from tfe_bench.protocols.tables.windows import EXTREMES, WindowFunction, compute_windows
from tfe_bench.queries.aggregate_types import aggregate_fact, check_window_extreme
from tfe_bench.queries.column_facts import ColumnFact
from tfe_bench.queries.division import compute_group_mean
from tfe_bench.queries.evaluate import ColumnValue, column_to_value, value_to_column
from tfe_bench.queries.plan_syntax import (
    NEIGHBORS,
    PLACES,
    check_choice,
    check_column_name,
    check_column_names,
    check_part_lists,
    check_row_count,
)
from tfe_bench.queries.relation_facts import Relation as Facts
from tfe_bench.queries.relation_facts import add_control_sources
from tfe_bench.queries.rights import ColumnUse, Tables
from tfe_bench.queries.steps.order import read_sort_keys
from tfe_bench.queries.steps.step import NeededColumns, QueryStep, StepContext, declare_field
from tfe_bench.queries.types import int_column_type

WINDOWS = (*PLACES, *NEIGHBORS, "sum", "count", "avg", "min", "max")
# Frames of a window's sum: up to this row, up to all rows equal in its order, or the partition.
FRAMES = ("rows", "range", "whole")


def _read_functions(value: object) -> list[list[Any]]:
    for name, function, argument, detail in (functions := check_part_lists(value, 4)):
        check_column_name(name)
        check_choice(function, WINDOWS, "A window function")
        if (argument is None) != (function in PLACES) and function != "count":
            raise UsageError(
                "A window function takes a column, unless it counts rows.",
                code="missing-argument",
                operation=function,
            )
        if argument is not None:
            check_column_name(argument)
        if function in PLACES:
            if detail is not None:
                raise UsageError(
                    "ROW_NUMBER, RANK and DENSE_RANK have no frame.",
                    code="invalid-plan",
                    operation=function,
                )
        elif function in NEIGHBORS:
            check_row_count(detail, 1)
        elif type(detail) is int and function not in ("min", "max"):
            check_row_count(detail)
        else:
            check_choice(detail, FRAMES, "A frame")
    return functions


@dataclass(frozen=True)
class Window(QueryStep):
    """Add a column for each window function.

    Attributes:
        partition: columns whose values define the partitions.
        order: sort keys in a partition.
        functions: name, function, column and frame, or number of rows, of each.
    """

    op = "window"
    keeps_names = True

    partition: list[str] = declare_field(lambda value: check_column_names(value, 0))
    order: list[list[str]] = declare_field(
        lambda value: read_sort_keys(value) if value != [] else []
    )
    functions: list[list[Any]] = declare_field(_read_functions)

    def check_fields(self) -> None:
        check_column_names([name for name, _, _, _ in self.functions])

    # ---- derive

    def derive_facts(self, inputs: Sequence[Facts], tables: Tables) -> Facts:
        """Derive facts: partition and order become control columns, and sources of all results."""
        [relation] = inputs
        by = relation.column_facts([name for name, _ in self.order])
        for name, fact in by.items():
            if not fact.value_type.ordered:
                raise UsageError(
                    f"A window by {name[:80]!r}: texts have no order.", code="unordered-type"
                )
        key_facts = [*by.values(), *relation.column_facts(self.partition).values()]
        keys = frozenset[Source]().union(*(fact.sources for fact in key_facts))
        # a row's values depend on the presence of other rows
        sources = keys | {source for source, _ in relation.control}
        columns = dict(relation.columns)
        for name, function, argument, detail in self.functions:
            if name in columns:
                raise UsageError(f"There is already a column {name[:80]!r}.", code="duplicate-name")
            if detail != "whole" and all(fact.constant is not None for fact in by.values()):
                raise UsageError(
                    f"{function.upper()} takes OVER (... ORDER BY columns): rows have no inherent "
                    "order.",
                    code="missing-order",
                )
            argument_fact = None if argument is None else relation.column_fact(argument)
            if argument_fact is not None and function in ("min", "max"):
                check_window_extreme(argument_fact.value_type, relation.rows)
            if function in PLACES:
                result_fact = ColumnFact(int_column_type(1, relation.rows))
            elif argument_fact is not None and function in NEIGHBORS:
                result_fact = ColumnFact(argument_fact.value_type, True)
            else:
                result_fact = aggregate_fact(function, argument_fact, relation.rows, True)
            argument_sources = argument_fact.sources if argument_fact else frozenset()
            columns[name] = replace(result_fact, sources=sources | argument_sources)
        control = add_control_sources(relation, keys, ColumnUse.CONDITION)
        return replace(relation, columns=columns, control=control, ordered=False, least={})

    def is_repeatable(self, facts: Facts) -> bool:
        """Return whether the order is unique, or no function depends on the order of equal rows."""
        return any(name in facts.unique for name, _ in self.order) or not any(
            function in ("row_number", *NEIGHBORS) or detail == "rows" or type(detail) is int
            for _, function, _, detail in self.functions
        )

    # ---- run

    def run_protocol(self, context: StepContext) -> Relation:
        """Compute the columns of the input, and one for each function."""
        party, [rows], [input_facts] = context.party, context.inputs, context.input_facts
        names = list(input_facts.columns)
        of_sums = [a for _, f, a, _ in self.functions if f in ("sum", "avg")]
        # rows that are equal in the order get a random one, which hides their places in the table
        shuffled = results.deliver_rows(party, rows)

        def with_elements(mixed: Relation) -> Relation:
            more = []
            for name in of_sums:
                column = mixed.columns[names.index(name)]
                element = column_to_value(column, input_facts.columns[name]).data
                more.append(Column(element, ANY_BITS, column.null))
            return Relation((*mixed.columns, *more), mixed.valid)

        partition = [names.index(name) for name in self.partition]
        order = [OrderKey(names.index(name), way == "desc") for name, way in self.order]
        calls, column_count = self._list_calls(names)
        whole = party.function(with_elements)(shuffled)
        result_rows = compute_windows(
            party, whole, partition, order, calls, profile=context.setting.profile
        )

        def build_columns(rows: Relation) -> list[Column]:
            computed = iter(rows.columns[column_count:])
            columns = []
            for name, function, argument, _ in self.functions:
                column, fact = next(computed), context.output_facts.columns[name]
                if function in (*NEIGHBORS, *EXTREMES):  # (stored in the column's encoding)
                    columns.append(column)
                    continue
                data = column.values
                if function == "avg":
                    kind = input_facts.columns[argument].value_type
                    count = next(computed).values
                    data = compute_group_mean(party, data, count, kind, input_facts.rows)
                null = False if column.null is None else column.null
                columns.append(value_to_column(ColumnValue(data, null, fact)))
            return columns

        return Relation(
            (*result_rows.columns[: len(names)], *party.function(build_columns)(result_rows)),
            result_rows.valid,
        )

    def _list_calls(self, names: Sequence[str]) -> tuple[list[WindowFunction], int]:
        """Return the functions to compute, and the number of columns before their results."""
        calls: list[WindowFunction] = []
        at = len(names)
        for _, function, argument, detail in self.functions:
            column = None if argument is None else names.index(argument)
            if function in PLACES:
                calls.append(WindowFunction(function))
            elif function in NEIGHBORS:
                calls.append(WindowFunction(function, column, detail))
            elif function in ("count", *EXTREMES):
                calls.append(WindowFunction(function, column, frame=detail))
            else:
                calls.append(WindowFunction("sum", at, frame=detail))
                at += 1
                if function == "avg":
                    calls.append(WindowFunction("count", column, frame=detail))
        return calls, at

    # ---- explain, needs

    def explain_step(self, inputs: Sequence[Facts], output: Facts) -> str:
        function_texts = ", ".join(
            f"{n} = {f}({a or ''})" + ("" if d is None else f" [{d}]")
            for n, f, a, d in self.functions
        )
        parted = f" of each {', '.join(self.partition)}" if self.partition else ""
        by = ", ".join(f"{n} {w}" for n, w in self.order)
        return f"window {self.input_text}{parted}{f' by {by}' if by else ''}: {function_texts}"

    def list_needs(self, needed: NeededColumns) -> list[NeededColumns]:
        if needed is None:
            return [None]
        window_columns = {*self.partition, *(name for name, _ in self.order)}
        window_columns |= {a for _, _, a, _ in self.functions if a is not None}
        return [(needed | window_columns) - {name for name, _, _, _ in self.functions}]

    def drop_columns(self, needed: set[str]) -> Window:
        functions = [each for each in self.functions if each[0] in needed]
        return replace(self, functions=functions or self.functions[:1])
