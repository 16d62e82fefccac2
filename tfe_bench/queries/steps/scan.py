"""The step `scan`: columns of a stored table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tfe_bench.protocols.tables.relation import Relation
from tfe_bench.queries.column_facts import ColumnFact
from tfe_bench.queries.plan_syntax import check_column_name, check_column_names
from tfe_bench.queries.relation_facts import Relation as Facts
from tfe_bench.queries.relation_facts import privacy_unit_column
from tfe_bench.queries.rights import ColumnUse, TableRecords, Tables
from tfe_bench.queries.steps.step import QueryStep, StepContext, declare_field


@dataclass(frozen=True)
class Scan(QueryStep):
    """Load columns of a stored table.

    Attributes:
        table: its alias in the plan.
        columns: names of its columns.
    """

    op = "scan"
    arity = (0, 0)
    in_place = keeps_units = True

    table: str = declare_field(check_column_name)
    columns: list[str] = declare_field(lambda value: check_column_names(value, 0))

    @property
    def scanned_alias(self) -> str:
        return self.table

    def derive_facts(self, inputs: Sequence[Facts], tables: Tables) -> Facts:
        alias = self.table
        schema = tables[alias].schema
        columns = {}
        for name in self.columns:
            schema_column = schema.column(name, f"table {tables[alias].name!r}")
            sources = frozenset([tables[alias].source(name, alias)])
            columns[f"{alias}.{name}"] = ColumnFact(
                schema_column.type, schema_column.nullable, sources, affine=True
            )
        unit, carried = schema.unit, ""
        if unit and not all(tables[alias].permits(ColumnUse.SHOW, name) for name in schema.columns):
            # (counted, but never revealed)
            carried = privacy_unit_column(alias)
            schema_column = schema.column(unit)
            sources = frozenset([tables[alias].source(unit, alias)])
            columns[carried] = ColumnFact(schema_column.type, schema_column.nullable, sources)
        records = {alias: TableRecords(not unit or unit in schema.unique, unit=carried)}
        unique = frozenset(f"{alias}.{name}" for name in schema.unique)
        unique &= set(columns)
        return Facts(
            schema.rows, columns, not schema.padded, records=records, unique=unique, home=alias
        )

    def run_protocol(self, context: StepContext) -> Relation:
        """Load the columns, and the unit column if units are counted."""
        setting = context.setting
        if not context.output_facts.records[self.table].unit:
            return setting.load_columns(self.table, self.columns)
        unit = setting.unit_of(self.table)
        all_columns = [*self.columns, *({unit} - set(self.columns))]
        rows = setting.load_columns(self.table, all_columns)
        return Relation(
            (*rows.columns[: len(self.columns)], rows.columns[all_columns.index(unit)]), rows.valid
        )

    def explain_step(self, inputs: Sequence[Facts], output: Facts) -> str:
        return f"scan {self.table} [{', '.join(self.columns)}]"

    def drop_columns(self, needed: set[str]) -> Scan:
        columns = [name for name in self.columns if f"{self.table}.{name}" in needed]
        return replace(self, columns=columns)
