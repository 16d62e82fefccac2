"""Who may learn what: the rights that each step of a query needs, and what is released by it.

A relation carries the columns that its rows depend on: which of them are valid, matched, or first.
Rows may be shown if all of these and all columns shown are `open`.  What is not open leaves inside
aggregates over groups of at least `min_group` records of every table that is not open: sums, counts
and means of a column or of a * x + b with public a and b; and, by a right of their own, quantiles
with so many records at each side.  Once such a result is released, what is
made of it needs no right.  Workers decide this, each by itself, from the headers that they keep.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tfe_bench.cluster.stored import TABLE, Source
from tfe_bench.errors import PolicyError
from tfe_bench.models.queries.expressions import Fact
from tfe_bench.models.queries.plan import PARTS, parse_quantile
from tfe_bench.models.queries.schema import (
    AGGREGATE,
    FILTER,
    GROUPED,
    MATCH,
    OPEN,
    QUANTILE,
    RIGHTS,
    TRAIN,
    Schema,
)


class Use(enum.Enum):
    """What is done with a column of a stored table.

    In aggregates alone: CONDITION and LEFT_OUT (rows depend on it by a condition, or by being left
    out of a match), MATCHED and GUESSED (by a match with another owner's table, or with one of the
    asking client, which could hold guesses).  The same of rows that are shown: ROWS,
    ROWS_MATCHED.  ANY_SUM, ANY_COUNT and ANY_QUANTILE are of expressions that are not exactly
    a * x + b.
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


# The rights of which one is enough, beside `open`; the first is named where none is there.
_SUFFICIENT: Mapping[Use, tuple[str, ...]] = {
    Use.SHOW: (),
    Use.EXTREME: (),
    Use.SUM: (AGGREGATE,),
    Use.ANY_SUM: (),
    Use.COUNT: (AGGREGATE, FILTER),
    Use.ANY_COUNT: (FILTER,),
    Use.QUANTILE: (QUANTILE,),
    Use.ANY_QUANTILE: (),
    Use.GROUP: (GROUPED,),
    Use.CONDITION: (FILTER,),
    Use.LEFT_OUT: (),
    Use.MATCHED: (MATCH, FILTER),
    Use.GUESSED: (MATCH, FILTER),
    Use.ROWS: (),
    Use.ROWS_MATCHED: (MATCH,),
    Use.KEY: (MATCH,),
    Use.TRAIN: (TRAIN,),
    # (each column of an aligned set was a key or learned from, and asked for when it was made)
    Use.ALIGNED: (TRAIN, MATCH),
    Use.HOLD: RIGHTS,
}


@dataclass(frozen=True)
class Table:
    """A table as one client sees it.

    Attributes:
        name, owner, deployment: as it is kept.
        schema: its header.
        client: who asks.
        spent: of its privacy budget, as far as is known, in billionths of rho.
    """

    name: str
    owner: str
    deployment: str
    schema: Schema
    client: str
    spent: int = 0

    def allows(self, column: str) -> frozenset[str]:
        """The client's rights to a column."""
        return self.schema.allows(self.client, self.owner, column)

    def permits(self, use: Use, column: str) -> bool:
        """Whether the client may use a column so: every decision on a stored column is this one."""
        return not self.allows(column).isdisjoint((OPEN, *_SUFFICIENT[use]))

    def check(self, use: Use, column: str, action: str) -> None:
        """Refuses a use that a right is missing for.

        Args:
            what: is done, in words.

        Raises:
            PolicyError: naming column, right and owner.
        """
        if self.permits(use, column):
            return
        right = (*_SUFFICIENT[use], OPEN)[0]
        right_text = "a right" if use is Use.HOLD else f"the right {right!r}"
        raise PolicyError(
            f"{action} takes {right_text} to the column {column!r} of table {self.name!r}. "
            f"Received: {', '.join(sorted(self.allows(column))) or 'none'}. Its owner, "
            f'{self.owner!r}, gives it with `table put ... --right "{column}:{right}"`.'
        )

    def source(self, column: str, alias: str = "") -> Source:
        """A column as what values derive from."""
        return Source(TABLE.infix, self.name, self.deployment, self.owner, column, alias)

    @property
    def shown(self) -> bool:
        """Whether the client may know which of its rows there are: if any column is open."""
        return any(self.permits(Use.SHOW, column) for column in self.schema.columns)


@dataclass(frozen=True)
class Records:
    """A table's records in a relation.

    Attributes:
        single: each unit of the table (a person, say) is in at most one row.
        present: the column of bits that says in which rows it is; "" for all that are valid.
        unit: the column that says whose record it is, to count units by where they repeat; "":
            there is none.
    """

    single: bool
    present: str = ""
    unit: str = ""


Tables = Mapping[str, Table]
Control = frozenset[tuple[Source, Use]]


def check_use(tables: Tables, source: Source, use: Use, action: str) -> None:
    """Refuses a use of a plan's column that a right is missing for.

    Raises:
        PolicyError: as Table.check.
    """
    tables[source.alias].check(use, source.part, action)


def check_shown(
    tables: Tables, shown: Mapping[str, Fact], control: Control, records: Iterable[str]
) -> None:
    """Refuses to show rows that a right is missing for.

    Args:
        shown: the columns.
        records: aliases of the tables whose rows they are made of.

    Raises:
        PolicyError: naming column, right and owner.
    """
    for name, fact in shown.items():
        for source in sorted(fact.sources):
            check_use(tables, source, Use.SHOW, f"Showing {name[:80]!r}")
    for source, use in _sort_control(control):
        rows = Use.ROWS_MATCHED if use is Use.MATCHED else Use.ROWS
        check_use(tables, source, rows, "Showing rows that depend on a column")
    for alias in sorted(records):
        if not tables[alias].shown:
            first = next(iter(tables[alias].schema.columns))
            tables[alias].check(Use.SHOW, first, "Showing which rows there are")


def _sort_control(control: Control) -> list[tuple[Source, Use]]:
    return sorted(control, key=lambda each: (each[0], each[1].value))


def closed_aliases(
    tables: Tables, sources: Iterable[Source], records: Mapping[str, Records]
) -> list[str]:
    """Aliases of the tables of whose records only aggregates may be told here."""
    aliases = {s.alias for s in sources if not tables[s.alias].permits(Use.SHOW, s.part)}
    aliases |= {alias for alias in records if not tables[alias].shown}
    return sorted(aliases)


def _aggregate_use(function: str, exact: bool) -> Use:
    """What an aggregate does with its argument.

    Args:
        exact: that is a * x + b, or leaves with noise, which hides what an expression chooses.
    """
    quantile = parse_quantile(function)
    if quantile is not None and 0 < quantile[1] < PARTS:
        return Use.QUANTILE if exact else Use.ANY_QUANTILE
    match function:
        case "count":
            return Use.COUNT if exact else Use.ANY_COUNT
        case "sum" | "avg":
            return Use.SUM if exact else Use.ANY_SUM
    return Use.EXTREME


_WHY = {
    Use.EXTREME: " (one record's value)",
    **dict.fromkeys(
        (Use.ANY_SUM, Use.ANY_COUNT, Use.ANY_QUANTILE),
        " in more than a * x + b without rounding (divide the sum, not each value)",
    ),
}


def check_released(
    tables: Tables,
    keys: Mapping[str, Fact],
    aggregates: Iterable[tuple[str, str, Fact | None]],
    control: Control,
    noised: bool = False,
) -> None:
    """Refuses aggregates that a right is missing for.

    Args:
        aggregates: name, function and argument of each.
        noised: they leave with noise, which hides what an expression chooses, too.

    Raises:
        PolicyError: naming column, right and owner.
    """
    for fact in keys.values():
        for source in sorted(fact.sources):
            check_use(tables, source, Use.GROUP, f"Grouping by {source.part!r}")
    for _, function, argument in aggregates:
        if argument is None:
            continue
        use = _aggregate_use(function, argument.affine or noised)
        for source in sorted(argument.sources):
            action = f"{function.partition(':')[0].upper()} of {source.part!r}{_WHY.get(use, '')}"
            check_use(tables, source, use, action)
    for source, use in _sort_control(control):
        check_use(tables, source, use, "A condition or join on a column")


def check_bound(
    tables: Tables, bound: int, control: Control, records: Mapping[str, tuple[Records, int]]
) -> None:
    """Refuses to tell whether there are more rows than a public bound.

    Rows that may be shown may be counted.  Of others the answer is an exact count, asked often
    enough: it must not depend on fewer records than an owner wants in a group.

    Args:
        records: by alias, and how many rows one row of them may be in.

    Raises:
        PolicyError: naming what is missing.
    """
    try:
        check_shown(tables, {}, control, records)
    except PolicyError:
        check_released(tables, {}, [], control)
    else:
        return
    held_records = {alias: alias_records for alias, (alias_records, _) in records.items()}
    for alias in closed_aliases(tables, (source for source, _ in control), held_records):
        alias_records, copies = records.get(alias, (None, 1))
        min_bound = check_units(tables, alias, alias_records) * copies
        if alias_records is None or not alias_records.single:
            raise PolicyError(
                f"Rows here may hold a record of table {tables[alias].name!r} several times, so "
                "that whether there are more than some number may depend on one of them. Join on "
                f"columns that are unique, or have its owner, {tables[alias].owner!r}, open them."
            )
        if bound < min_bound:
            raise PolicyError(
                f"Whether there are more than {bound} rows may depend on fewer records of table "
                f"{tables[alias].name!r} than the rule of {tables[alias].owner!r} asks for. A "
                f"bound of {min_bound} rows (--max-rows) does not."
            )


def min_records_for(function: str, min_records: int) -> int:
    """How many records an aggregate takes, so that so many are at each side of a quantile."""
    quantile = parse_quantile(function)
    if quantile is None:
        return min_records
    side = min(quantile[1], PARTS - quantile[1])
    return -(-min_records * PARTS // side) if side else min_records


def check_units(
    tables: Tables, alias: str, records: Records | None, functions: Iterable[str] = ()
) -> int:
    """The least number of a table's units in a group.

    Args:
        functions: the aggregates.

    Raises:
        PolicyError: a unit may be in several rows, and no column says which these are.
    """
    table = tables[alias]
    if not any(table.permits(Use.HOLD, column) for column in table.schema.columns):
        table.check(Use.CONDITION, next(iter(table.schema.columns)), "Counting rows")
    repeated = records is not None and not records.single
    if repeated and any(map(parse_quantile, functions)):
        raise PolicyError(
            f"Groups of this query may hold a unit of table {table.name!r} several times, so that "
            "a quantile could be one unit's. Have its owner, "
            f"{table.owner!r}, open the columns, or ask for averages."
        )
    if records is None or not (records.single or records.unit):
        raise PolicyError(
            f"Groups of this query may hold a record of table {table.name!r} several times, so "
            f"that the rule of {table.owner!r} (at least {table.schema.min_group} of them in a "
            "group) cannot be kept by counting rows. Join on columns that are unique in both "
            "tables, ask without UNION, or have its owner say whose records they are (table put "
            "--unit) or open the columns."
        )
    return table.schema.min_group
