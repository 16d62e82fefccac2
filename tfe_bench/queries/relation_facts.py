"""Public facts about the rows that a step of a plan computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tfe_bench.cluster.stored import Source
from tfe_bench.queries.column_facts import ColumnFact
from tfe_bench.queries.expressions import infer_expression_fact
from tfe_bench.queries.privacy import NoisyRelease
from tfe_bench.queries.rights import ColumnUse, Control, TableRecords


@dataclass(frozen=True)
class Relation:
    """Public facts about the rows of a step.

    Attributes:
        rows: number of rows, valid or not.
        columns: columns in order.
        valid: whether all rows are valid.
        control: columns that the validity or order of rows depends on, and the use of each.
        records: tables whose records the rows contain, by alias; none after a release.
        unique: columns without a repeated value among valid rows.
        ordered: whether the order of rows carries meaning.
        least: for a group, the tables whose records are counted, and the smallest number of
            records.
        home: alias of the table in whose order the rows are, one for each of its rows, with its
            columns under their names; "" for none.
        link: for a join, the table with a link (TableSchema.links) for it, and the link's number.
        release: for a group of tables with a privacy budget, the noise.
    """

    rows: int
    columns: Mapping[str, ColumnFact]
    valid: bool = True
    control: Control = frozenset()
    records: Mapping[str, TableRecords] = field(default_factory=dict)
    unique: frozenset[str] = frozenset()
    ordered: bool = False
    least: Mapping[str, int] = field(default_factory=dict)
    home: str = ""
    link: tuple[str, int] | None = None
    release: NoisyRelease | None = None

    def column_fact(self, name: str) -> ColumnFact:
        """Return a column's fact.

        Raises:
            UsageError: the column does not exist.
        """
        return infer_expression_fact(["col", name], self.columns)

    def column_facts(self, names: Sequence[str]) -> dict[str, ColumnFact]:
        """Return the facts of some columns."""
        return {name: self.column_fact(name) for name in names}


def add_control_sources(relation: Relation, sources: frozenset[Source], use: ColumnUse) -> Control:
    """Return a relation's control columns together with further ones and their use."""
    return relation.control | {(source, use) for source in sources}


def privacy_unit_column(alias: str) -> str:
    """Return the name of the column that identifies the unit of a row; queries cannot name it."""
    return f"{alias}?unit"


def visible_columns(columns: Iterable[str]) -> list[str]:
    """Return the columns that a query can name."""
    return [name for name in columns if "?" not in name]


def record_presence_column(alias: str) -> str:
    """Return the column that marks the rows with a table's records; queries cannot name it."""
    return f"{alias}?"
