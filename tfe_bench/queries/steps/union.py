"""The step `union`: the rows of several relations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfe_bench.cluster.stored import Source
from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic
from tfe_bench.protocols.tables.relation import Column, Relation, union_rows
from tfe_bench.queries.column_facts import ColumnFact, column_scale_factor, common_column_type
from tfe_bench.queries.evaluate import ColumnValue, column_to_value, value_to_column
from tfe_bench.queries.relation_facts import Relation as Facts
from tfe_bench.queries.relation_facts import visible_columns
from tfe_bench.queries.rights import ColumnUse, TableRecords, Tables
from tfe_bench.queries.steps.step import QueryStep, StepContext
from tfe_bench.queries.types import BOOL, CATEGORY


@dataclass(frozen=True)
class Union(QueryStep):
    """Append the rows of relations; their columns match by position."""

    op = "union"
    arity = (2, 64)

    def derive_facts(self, inputs: Sequence[Facts], tables: Tables) -> Facts:
        """Derive facts: each column has the common type of all inputs."""
        first, *others = inputs
        names = visible_columns(first.columns)
        columns = first.column_facts(names)
        for other in others:
            listed = visible_columns(other.columns)
            if len(listed) != len(names):
                raise UsageError(
                    "Expected equally many columns of each side.", code="column-count-mismatch"
                )
            for name, fact in zip(names, other.column_facts(listed).values(), strict=True):
                one = columns[name]
                if fact.constant is not None and fact.value_type.kind == CATEGORY:
                    raise UsageError(
                        "UNION takes a category, not a lone word.", code="unsupported-type"
                    )
                columns[name] = ColumnFact(
                    common_column_type(replace(one, constant=None), fact),
                    one.nullable or fact.nullable,
                    one.sources | fact.sources,
                )
        # (the origin of a row's record is unknown from here on)
        records = {alias: TableRecords(False) for relation in inputs for alias in relation.records}
        control = frozenset[tuple[Source, ColumnUse]]().union(
            *(relation.control for relation in inputs)
        )
        rows, valid = sum(r.rows for r in inputs), all(r.valid for r in inputs)
        return Facts(rows, columns, valid, control, records)

    def run_protocol(self, context: StepContext) -> Relation:
        """Cast the columns of each input, and append the rows. Local."""
        targets = list(context.output_facts.columns.values())

        def concat_rows(relations: list[Relation]) -> Relation:
            casts = []
            for i, (rows, facts) in enumerate(zip(relations, context.input_facts, strict=True)):
                named = context.input_columns(rows, i)
                columns = [
                    _cast_column(named[name], facts.columns[name], target)
                    for name, target in zip(visible_columns(facts.columns), targets, strict=True)
                ]
                casts.append(Relation(tuple(columns), rows.valid))
            return union_rows(casts)

        result: Relation = context.party.function(concat_rows)(list(context.inputs))
        return result


def _cast_column(column: Column, fact: ColumnFact, target: ColumnFact) -> Column:
    """Cast a column to the type that it has in common with others. Local."""
    value = column_to_value(column, fact)
    data = value.data
    if target.value_type.kind != BOOL:
        data = arithmetic.mul_public(
            data, np.int64(column_scale_factor(fact.value_type, target.value_type))
        )
    return value_to_column(ColumnValue(data, value.null, target))
