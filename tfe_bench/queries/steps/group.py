"""The step `group`: aggregates of all rows, or of the rows with equal keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfe_bench.cluster.ledger import MOST
from tfe_bench.cluster.stored import Source
from tfe_bench.errors import UsageError
from tfe_bench.protocols.tables.relation import Relation
from tfe_bench.queries import grouping, privacy, rights
from tfe_bench.queries.aggregate_types import (
    aggregate_fact,
    max_group_count,
    public_code_group_count,
    public_key_combination_count,
)
from tfe_bench.queries.plan_syntax import (
    QUANTILES,
    check_choice,
    check_column_name,
    check_column_names,
    check_part_lists,
    parse_quantile,
)
from tfe_bench.queries.privacy import NoisyRelease
from tfe_bench.queries.relation_facts import Relation as Facts
from tfe_bench.queries.rights import TableRecords, Tables
from tfe_bench.queries.steps.step import NeededColumns, QueryStep, StepContext, declare_field

AGGREGATES = ("sum", "count", "avg", "min", "max")


def _missing_aggregates_error() -> UsageError:
    return UsageError(
        "A group step has keys or aggregates.", code="invalid-plan", operation="group"
    )


def _read_aggregates(value: object) -> list[list[Any]]:
    aggregates = check_part_lists(value, 3) if value else []
    if not isinstance(value, list):
        raise _missing_aggregates_error()
    for name, function, argument in aggregates:
        check_column_name(name)
        if parse_quantile(function) is None:
            check_choice(function, (*AGGREGATES, *QUANTILES), "An aggregate")
        if argument is None and function != "count":
            raise UsageError(
                "Only count takes no column.", code="missing-argument", operation=function
            )
        if argument is not None:
            check_column_name(argument)
    return aggregates


def _read_loss(value: object) -> int:
    if type(value) is not int or not 1 <= value <= MOST:
        raise UsageError(
            "A group spends 1 to 10^15 billionths of rho.",
            code="number-out-of-range",
            operation="loss",
        )
    return value


@dataclass(frozen=True)
class Group(QueryStep):
    """Aggregate the rows with equal keys; without keys, all rows.

    Attributes:
        keys: columns whose values define the groups.
        aggregates: name, function and column of each aggregate; no column: it counts rows.
        loss: privacy loss of a release with noise, in billionths of rho; 0: no noise.
    """

    op = "group"
    keeps_units = adds_noise = True

    keys: list[str] = declare_field(lambda value: check_column_names(value, 0))
    aggregates: list[list[Any]] = declare_field(_read_aggregates)
    loss: int = declare_field(_read_loss, default=0)

    def check_fields(self) -> None:
        if not (self.keys or self.aggregates):
            raise _missing_aggregates_error()
        check_column_names([*self.keys, *(name for name, _, _ in self.aggregates)])

    # ---- derive

    def derive_facts(self, inputs: Sequence[Facts], tables: Tables) -> Facts:
        """Derive the facts of the groups, and check the rights to their release."""
        [relation] = inputs
        keys = relation.column_facts(self.keys)
        aggregates = [
            (name, function, None if argument is None else relation.column_fact(argument))
            for name, function, argument in self.aggregates
        ]
        columns = dict(keys)
        for name, function, fact in aggregates:
            columns[name] = aggregate_fact(function, fact, relation.rows, bool(keys))
        key_facts, functions = list(keys.values()), [function for _, function, _ in aggregates]
        dense = public_code_group_count(key_facts, functions)
        rows = (dense or max_group_count(key_facts, relation.rows)) if keys else 1
        value_sources = frozenset[Source]().union(*(f.sources for f in columns.values()))
        sources = value_sources | {source for source, _ in relation.control}
        unique = frozenset(keys) if len(keys) == 1 else frozenset[str]()
        closed_aliases = rights.closed_aliases(tables, sources, relation.records)
        # (all groups of a table with a budget are released)
        count = public_key_combination_count(key_facts) if keys else 1
        release = privacy.plan_release(
            *(tables, closed_aliases, self.aggregates, relation.columns, relation.records),
            *(self.loss, count, relation.rows),
        )
        if release is not None:
            rights.check_released_aggregates(
                tables, keys, aggregates, relation.control, noised=True
            )
            return self._derive_noised_groups(relation, release, count)
        if not closed_aliases:
            open_columns = {name: replace(fact, affine=False) for name, fact in columns.items()}
            repeated_records = {alias: TableRecords(False) for alias in relation.records}
            return Facts(rows, open_columns, not keys, relation.control, repeated_records, unique)
        rights.check_released_aggregates(tables, keys, aggregates, relation.control)
        least = {
            alias: rights.check_group_privacy_units(
                tables, alias, relation.records.get(alias), functions
            )
            for alias in closed_aliases
        }
        released = {
            name: replace(fact, sources=frozenset[Source](), affine=False)
            for name, fact in columns.items()
        }
        return Facts(rows, released, False, unique=unique, least=least)

    def _derive_noised_groups(self, relation: Facts, release: NoisyRelease, rows: int) -> Facts:
        """Derive the facts of groups with noise: all possible groups."""
        columns = {
            name: privacy.released_column_fact(f)
            for name, f in relation.column_facts(self.keys).items()
        }
        for name, function, argument in self.aggregates:
            columns[name] = privacy.noised_fact(
                function, argument, relation.columns, release, relation.rows
            )
        unique = frozenset(self.keys) if len(self.keys) == 1 else frozenset[str]()
        return Facts(rows, columns, unique=unique, release=release)

    @property
    def is_total(self) -> bool:
        return not self.keys

    def count_quantiles(self) -> int:
        return sum(parse_quantile(function) is not None for _, function, _ in self.aggregates)

    def is_repeatable(self, facts: Facts) -> bool:
        """Return False for a release with noise."""
        return not self.loss

    # ---- run, explain, needs

    def run_protocol(self, context: StepContext) -> Relation:
        [rows], [input_facts] = context.inputs, context.input_facts
        return grouping.group_rows(
            *(context.party, self.keys, self.aggregates, rows.valid, context.input_columns(rows)),
            *(input_facts, context.output_facts, context.setting.profile, context.noise),
        )

    def explain_step(self, inputs: Sequence[Facts], output: Facts) -> str:
        functions = [function for _, function, _ in self.aggregates]
        listed = ", ".join(f"{n} = {f}({a or '*'})" for n, f, a in self.aggregates)
        keys = [inputs[0].columns[name] for name in self.keys]
        if not keys:
            return f"aggregate {self.input_text}: {listed}"
        how = "public codes" if public_code_group_count(keys, functions) else "sorted"
        by = ", ".join(self.keys)
        return f"group {self.input_text} by {by} ({how}): {listed or 'distinct'}"

    def list_needs(self, needed: NeededColumns) -> list[NeededColumns]:
        return [{a for _, _, a in self.aggregates if a is not None} | set(self.keys)]

    def drop_columns(self, needed: set[str]) -> Group:
        aggregates = [each for each in self.aggregates if each[0] in needed]
        return replace(self, aggregates=aggregates or ([] if self.keys else self.aggregates[:1]))
