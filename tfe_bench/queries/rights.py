"""Rights that each step of a query requires, and rules of release.

A relation carries its control columns: columns that decide which rows are valid, matched or first.
Rows may be revealed if all control columns and all revealed columns are `open`. Other columns
leave only in aggregates over groups of at least `min_group` records of every table that is not
open. These are sums, counts and means of a column, or of a * x + b with public a and b. With a
separate right they are also quantiles with that many records on each side. Values derived from a
released result require no right. Each worker decides independently, from the headers that it
stores.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tfe_bench.cluster.stored import TABLE, Source
from tfe_bench.errors import PolicyError
from tfe_bench.queries.column_facts import ColumnFact
from tfe_bench.queries.plan_syntax import PARTS, parse_quantile
from tfe_bench.queries.schema import (
    AGGREGATE,
    FILTER,
    GROUPED,
    MATCH,
    OPEN,
    QUANTILE,
    RIGHTS,
    TRAIN,
    TableSchema,
)


class ColumnUse(enum.Enum):
    """Uses of a column of a stored table.

    In aggregates only: CONDITION and LEFT_OUT (rows depend on it by a condition, or by exclusion
    from a match), MATCHED and GUESSED (rows depend on it by a match with another owner's table, or
    with a table of the requesting client, which could hold guesses). ROWS and ROWS_MATCHED are the
    same for revealed rows. ANY_SUM, ANY_COUNT and ANY_QUANTILE are for expressions that are not
    exactly a * x + b.
    """

    SHOW = enum.auto()
    EXTREME = enum.auto()
    SUM = enum.auto()
    ANY_SUM = enum.auto()
    COUNT = enum.auto()
    ANY_COUNT = enum.auto()
    QUANTILE = enum.auto()
    ANY_QUANTILE = enum.auto()
    GROUP = enum.auto()
    CONDITION = enum.auto()
    LEFT_OUT = enum.auto()
    MATCHED = enum.auto()
    GUESSED = enum.auto()
    ROWS = enum.auto()
    ROWS_MATCHED = enum.auto()
    KEY = enum.auto()
    TRAIN = enum.auto()
    ALIGNED = enum.auto()
    HOLD = enum.auto()


# Rights of which one suffices, besides `open`; an error names the first one.
_SUFFICIENT: Mapping[ColumnUse, tuple[str, ...]] = {
    ColumnUse.SHOW: (),
    ColumnUse.EXTREME: (),
    ColumnUse.SUM: (AGGREGATE,),
    ColumnUse.ANY_SUM: (),
    ColumnUse.COUNT: (AGGREGATE, FILTER),
    ColumnUse.ANY_COUNT: (FILTER,),
    ColumnUse.QUANTILE: (QUANTILE,),
    ColumnUse.ANY_QUANTILE: (),
    ColumnUse.GROUP: (GROUPED,),
    ColumnUse.CONDITION: (FILTER,),
    ColumnUse.LEFT_OUT: (),
    ColumnUse.MATCHED: (MATCH, FILTER),
    ColumnUse.GUESSED: (MATCH, FILTER),
    ColumnUse.ROWS: (),
    ColumnUse.ROWS_MATCHED: (MATCH,),
    ColumnUse.KEY: (MATCH,),
    ColumnUse.TRAIN: (TRAIN,),
    # (each column of a linked set was a key or learned from, and its right was checked at linkage)
    ColumnUse.ALIGNED: (TRAIN, MATCH),
    ColumnUse.HOLD: RIGHTS,
}


@dataclass(frozen=True)
class TableAccess:
    """A table as one client sees it.

    Attributes:
        name, owner, deployment: identity of the stored table.
        schema: its header.
        client: the requesting client.
        spent: spent part of its privacy budget as far as known, in billionths of rho.
        used: the rights on which `check` has relied, as "column:right".
    """

    name: str
    owner: str
    deployment: str
    schema: TableSchema
    client: str
    spent: int = 0
    used: set[str] = field(default_factory=set, compare=False, repr=False)

    def allows(self, column: str) -> frozenset[str]:
        """Return the client's rights to a column."""
        return self.schema.allows(self.client, self.owner, column)

    def permits(self, use: ColumnUse, column: str) -> bool:
        """Return whether the client may use a column in this way; every decision on a stored
        column is made here.
        """
        return not self.allows(column).isdisjoint((OPEN, *_SUFFICIENT[use]))

    def check(self, use: ColumnUse, column: str, action: str) -> None:
        """Reject a use for which a right is missing.

        Args:
            action: a description of the use for error texts.

        Raises:
            PolicyError: naming column, right and owner.
        """
        if self.permits(use, column):
            rights = self.allows(column)
            right = next(r for r in (*_SUFFICIENT[use], OPEN) if r in rights)
            self.used.add(f"{column}:{right}")
            return
        right = (*_SUFFICIENT[use], OPEN)[0]
        right_text = "a right" if use is ColumnUse.HOLD else f"the right {right!r}"
        raise PolicyError(
            f"{action} requires {right_text} to the column {column!r} of table {self.name!r}. "
            f"Received: {', '.join(sorted(self.allows(column))) or 'none'}. Its owner, "
            f'{self.owner!r}, grants it with `table put ... --right "{column}:{right}"`.',
            code="missing-right",
            operation=column,
            expected=right,
        )

    def source(self, column: str, alias: str = "") -> Source:
        """Return a column as a source of derived values."""
        return Source(TABLE.infix, self.name, self.deployment, self.owner, column, alias)

    @property
    def shown(self) -> bool:
        """True if the client may learn which of its rows exist: if any column is open."""
        return any(self.permits(ColumnUse.SHOW, column) for column in self.schema.columns)


@dataclass(frozen=True)
class TableRecords:
    """Records of a table in a relation.

    Attributes:
        single: whether each unit of the table (a person, for example) is in at most one row.
        present: column of bits that marks the rows with its records; "" for all valid rows.
        unit: column that identifies the unit of a record, to count repeated units; "": none.
    """

    single: bool
    present: str = ""
    unit: str = ""


Tables = Mapping[str, TableAccess]
Control = frozenset[tuple[Source, ColumnUse]]


def check_column_use(tables: Tables, source: Source, use: ColumnUse, action: str) -> None:
    """Reject a use of a plan's column for which a right is missing.

    Raises:
        PolicyError: as Table.check.
    """
    tables[source.alias].check(use, source.part, action)


def check_rows_may_be_shown(
    tables: Tables, shown: Mapping[str, ColumnFact], control: Control, records: Iterable[str]
) -> None:
    """Reject a release of rows for which a right is missing.

    Args:
        shown: columns to reveal.
        records: aliases of the tables whose records the rows contain.

    Raises:
        PolicyError: naming column, right and owner.
    """
    for name, fact in shown.items():
        for source in sorted(fact.sources):
            check_column_use(tables, source, ColumnUse.SHOW, f"Showing {name[:80]!r}")
    for source, use in _sort_control(control):
        rows = ColumnUse.ROWS_MATCHED if use is ColumnUse.MATCHED else ColumnUse.ROWS
        check_column_use(tables, source, rows, "Showing rows that depend on a column")
    for alias in sorted(records):
        if not tables[alias].shown:
            first = next(iter(tables[alias].schema.columns))
            tables[alias].check(ColumnUse.SHOW, first, "Showing which rows there are")


def _sort_control(control: Control) -> list[tuple[Source, ColumnUse]]:
    return sorted(control, key=lambda each: (each[0], each[1].value))


def closed_aliases(
    tables: Tables, sources: Iterable[Source], records: Mapping[str, TableRecords]
) -> list[str]:
    """Return the aliases of tables of which only aggregates of records may be released here."""
    aliases = {s.alias for s in sources if not tables[s.alias].permits(ColumnUse.SHOW, s.part)}
    aliases |= {alias for alias in records if not tables[alias].shown}
    return sorted(aliases)


def _aggregate_use(function: str, exact: bool) -> ColumnUse:
    """Return the use that an aggregate makes of its argument.

    Args:
        exact: whether the argument is a * x + b, or the result has noise, which hides the choice
            of an expression.
    """
    quantile = parse_quantile(function)
    if quantile is not None and 0 < quantile[1] < PARTS:
        return ColumnUse.QUANTILE if exact else ColumnUse.ANY_QUANTILE
    match function:
        case "count":
            return ColumnUse.COUNT if exact else ColumnUse.ANY_COUNT
        case "sum" | "avg":
            return ColumnUse.SUM if exact else ColumnUse.ANY_SUM
    return ColumnUse.EXTREME


_WHY = {
    ColumnUse.EXTREME: " (one record's value)",
    **dict.fromkeys(
        (ColumnUse.ANY_SUM, ColumnUse.ANY_COUNT, ColumnUse.ANY_QUANTILE),
        " of more than a * x + b without rounding (divide the sum, not each value)",
    ),
}


def check_released_aggregates(
    tables: Tables,
    keys: Mapping[str, ColumnFact],
    aggregates: Iterable[tuple[str, str, ColumnFact | None]],
    control: Control,
    noised: bool = False,
) -> None:
    """Reject aggregates for which a right is missing.

    Args:
        aggregates: name, function and argument of each.
        noised: whether they get noise, which also hides the choice of an expression.

    Raises:
        PolicyError: naming column, right and owner.
    """
    for fact in keys.values():
        for source in sorted(fact.sources):
            check_column_use(tables, source, ColumnUse.GROUP, f"Grouping by {source.part!r}")
    for _, function, argument in aggregates:
        if argument is None:
            continue
        use = _aggregate_use(function, argument.affine or noised)
        for source in sorted(argument.sources):
            action = f"{function.partition(':')[0].upper()} of {source.part!r}{_WHY.get(use, '')}"
            check_column_use(tables, source, use, action)
    for source, use in _sort_control(control):
        check_column_use(tables, source, use, "A condition or join on a column")


def check_rows_may_be_drawn(tables: Tables, records: Iterable[str]) -> None:
    """Reject a choice by no column among records of a table whose rows the client may not filter.

    The sum of all rows and that of all but one reveal one record's value.

    Args:
        records: aliases of the tables whose records the rows contain.

    Raises:
        PolicyError: naming column, right and owner.
    """
    for alias in sorted(records):
        table, columns = tables[alias], tables[alias].schema.columns
        if not any(table.permits(ColumnUse.CONDITION, column) for column in columns):
            table.check(ColumnUse.CONDITION, next(iter(columns)), "Leaving out rows")


def check_row_bound_disclosure(
    tables: Tables, bound: int, control: Control, records: Mapping[str, tuple[TableRecords, int]]
) -> None:
    """Reject a disclosure of whether there are more rows than a public bound.

    Rows that may be revealed may be counted. For other rows repeated answers give an exact count:
    the answer must not depend on fewer records than an owner's minimum group size.

    Args:
        records: records by alias, and the number of rows that one row of them may be in.

    Raises:
        PolicyError: naming the missing condition.
    """
    try:
        check_rows_may_be_shown(tables, {}, control, records)
    except PolicyError:
        check_released_aggregates(tables, {}, [], control)
    else:
        return
    held_records = {alias: alias_records for alias, (alias_records, _) in records.items()}
    for alias in closed_aliases(tables, (source for source, _ in control), held_records):
        alias_records, copies = records.get(alias, (None, 1))
        min_bound = check_group_privacy_units(tables, alias, alias_records) * copies
        if alias_records is None or not alias_records.single:
            raise PolicyError(
                f"Rows here may contain a record of table {tables[alias].name!r} several "
                "times, so that the answer whether there are more rows than a bound may "
                "depend on one record. Join on unique columns, or ask its owner, "
                f"{tables[alias].owner!r}, to open them.",
                code="repeated-records",
                operation=tables[alias].name,
            )
        if bound < min_bound:
            raise PolicyError(
                f"Whether there are more than {bound} rows may depend on fewer records of "
                f"table {tables[alias].name!r} than the rule of {tables[alias].owner!r} "
                f"requires. Use a bound of at least {min_bound} rows (--max-rows).",
                code="bound-too-small",
                operation=tables[alias].name,
                received=bound,
                expected=min_bound,
            )


def min_records_for_aggregate(function: str, min_records: int) -> int:
    """Return the number of records that an aggregate requires, so that each side of a quantile has
    the minimum.
    """
    quantile = parse_quantile(function)
    if quantile is None:
        return min_records
    side = min(quantile[1], PARTS - quantile[1])
    return -(-min_records * PARTS // side) if side else min_records


def check_group_privacy_units(
    tables: Tables, alias: str, records: TableRecords | None, functions: Iterable[str] = ()
) -> int:
    """Return the minimum number of a table's units in a group.

    Args:
        functions: the aggregates.

    Raises:
        PolicyError: a unit may be in several rows, and no column identifies units.
    """
    table = tables[alias]
    if not any(table.permits(ColumnUse.HOLD, column) for column in table.schema.columns):
        table.check(ColumnUse.CONDITION, next(iter(table.schema.columns)), "Counting rows")
    repeated = records is not None and not records.single
    if repeated and any(map(parse_quantile, functions)):
        raise PolicyError(
            f"Groups of this query may contain a unit of table {table.name!r} several times, "
            f"so that a quantile could belong to one unit. Ask its owner, {table.owner!r}, to "
            "open the columns, or query averages.",
            code="repeated-units",
            operation=table.name,
        )
    if records is None or not (records.single or records.unit):
        raise PolicyError(
            f"Groups of this query may contain a record of table {table.name!r} several "
            f"times, so that counting rows cannot enforce the rule of {table.owner!r} (at "
            f"least {table.schema.min_group} records in a group). Join on columns that are "
            "unique in both tables, query without UNION, or ask its owner to declare the "
            "unit column (table put --unit) or to open the columns.",
            code="repeated-records",
            operation=table.name,
        )
    return table.schema.min_group
