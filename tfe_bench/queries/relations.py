"""Derivation of public facts about each step of a plan, and of the right to its result.

Client and workers each derive them independently from a plan and the headers of its tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.queries import privacy, rights
from tfe_bench.queries.plan import QueryPlan
from tfe_bench.queries.relation_facts import Relation, visible_columns
from tfe_bench.queries.rights import Tables
from tfe_bench.queries.steps.step import QueryStep

# Values of one relation in all its columns.
MAX_CELLS = 1 << 31
# Quantiles of values that may not be revealed.
MAX_RANKS = 10


def derive_relations(plan: QueryPlan, tables: Tables) -> list[Relation]:
    """Derive the relations of a plan's steps.

    Args:
        tables: tables that the client may use, by the plan's aliases.

    Raises:
        UsageError: a step does not fit its inputs.
        PolicyError: the client lacks a right; the text names column, right and owner.
    """
    relations: list[Relation] = []
    for number, step in enumerate(plan.steps):
        try:
            relation = derive_relation(step, [relations[i] for i in step.inputs], tables)
        except UsageError as error:
            raise error.with_text(f"Step {number} ({step.op}): {error}") from None
        if relation.rows * max(1, len(relation.columns)) > MAX_CELLS:
            raise UsageError(
                f"Step {number} ({step.op}) has {relation.rows} rows of "
                f"{len(relation.columns)} columns; at most {MAX_CELLS} values are supported.",
                code="too-large",
            )
        relations.append(relation)
    ranks = sum(
        step.count_quantiles()
        for step, relation in zip(plan.steps, relations, strict=True)
        if relation.least
    )
    if ranks > MAX_RANKS:
        raise UsageError(
            f"Expected at most {MAX_RANKS} quantiles of values that are not open. Received: "
            f"{ranks}.",
            code="too-many-quantiles",
        )
    last = relations[plan.output]
    shown = last.column_facts(visible_columns(last.columns))
    rights.check_rows_may_be_shown(tables, shown, last.control, last.records)
    return relations


def derive_relation(step: QueryStep, inputs: Sequence[Relation], tables: Tables) -> Relation:
    """Derive the relation of one step.

    Raises:
        UsageError, PolicyError: as `derive_relations`.
    """
    aliases = [privacy.budgeted_aliases(tables, r.columns, r.control, r.records) for r in inputs]
    others = [alias for each in aliases[1:] for alias in each]
    step.check_units(tables, aliases[0] if aliases else [], others)
    relation = step.derive_facts(inputs, tables)
    return replace(
        relation,
        home=relation.home if step.in_place else "",
        release=relation.release if step.adds_noise else None,
    )


def missing_table_error(name: str, known: Sequence[str]) -> UsageError:
    """Return the error for a table that does not exist for this client."""
    return UsageError(
        f"There is no table {name[:80]!r} that this client may "
        f"use.{did_you_mean(name, known)} See `python -m tfe_bench table list`.",
        code="table-not-found",
        received=name[:80],
    )
