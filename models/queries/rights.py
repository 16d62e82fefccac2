"""Who may learn what: the rights that each step of a query needs, and what is released by it.

A relation carries the columns that its rows depend on: which of them are valid, matched, or first.
Rows may be shown if all of these and all columns shown are `open`.  What is not open leaves inside
aggregates over groups of at least `min_group` records of every table that is not open: sums, counts
and means of a column or of a * x + b with public a and b; and, by a right of their own, quantiles
with so many records at each side.  Once such a result is released, what is
made of it needs no right.  Workers decide this, each by itself, from the headers that they keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tfe_bench.errors import PolicyError
from tfe_bench.models.queries.expressions import Fact, Source
from tfe_bench.models.queries.plan import PARTS, quantile_of
from tfe_bench.models.queries.schema import (
    AGGREGATE,
    FILTER,
    GROUPED,
    MATCH,
    OPEN,
    QUANTILE,
    Schema,
)

# What rows depend on a column for: a condition; a match with another owner's table; a match with a
# table of the asking client, which could hold guesses; being left out of a match.
CONDITION, MATCHED, GUESSED, LEFT_OUT = range(4)


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

    @property
    def shown(self) -> bool:
        """Whether the client may know which of its rows there are: if any column is open."""
        return any(OPEN in self.allows(column) for column in self.schema.columns)


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
Control = frozenset[tuple[Source, int]]


def refused(tables: Tables, source: Source, right: str, what: str) -> PolicyError:
    """What a client is told that lacks a right."""
    table = tables[source[0]]
    return PolicyError(
        f"{what} takes the right {right!r} to the column {source[1]!r} of table {table.name!r}. "
        f"Received: {', '.join(sorted(table.allows(source[1]))) or 'none'}. Its owner, "
        f'{table.owner!r}, gives it with `table put ... --right "{source[1]}:{right}"`.'
    )


def is_open(tables: Tables, source: Source) -> bool:
    """Whether a column may be shown."""
    return OPEN in tables[source[0]].allows(source[1])


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
            if not is_open(tables, source):
                raise refused(tables, source, OPEN, f"Showing {name[:80]!r}")
    for source, use in sorted(control):
        if is_open(tables, source):
            continue
        if use == MATCHED and MATCH in tables[source[0]].allows(source[1]):
            continue
        right = MATCH if use == MATCHED else OPEN
        raise refused(tables, source, right, "Showing rows that depend on a column")
    for alias in sorted(records):
        if not tables[alias].shown:
            first = next(iter(tables[alias].schema.columns))
            raise refused(tables, (alias, first), OPEN, "Showing which rows there are")


def restricted(
    tables: Tables, sources: Iterable[Source], records: Mapping[str, Records]
) -> list[str]:
    """Aliases of the tables of whose records only aggregates may be told here."""
    closed = {source[0] for source in sources if not is_open(tables, source)}
    closed |= {alias for alias in records if not tables[alias].shown}
    return sorted(closed)


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
    for name, fact in keys.items():
        for source in sorted(fact.sources):
            if not tables[source[0]].allows(source[1]) & {OPEN, GROUPED}:
                raise refused(tables, source, GROUPED, f"Grouping by {name[:80]!r}")
    for name, function, argument in aggregates:
        if argument is None:
            continue
        for source in sorted(argument.sources):
            rights = tables[source[0]].allows(source[1])
            if OPEN in rights:
                continue
            what = f"The aggregate {name[:80]!r}"
            if function == "count" and FILTER in rights:  # (which rows have a value is a condition)
                continue
            needed = AGGREGATE
            if (quantile := quantile_of(function)) is not None and 0 < quantile[1] < PARTS:
                needed = QUANTILE
            elif function not in ("sum", "count", "avg"):
                raise refused(tables, source, OPEN, f"{what} ({function}: one record's value)")
            if needed not in rights:
                raise refused(tables, source, needed, what)
            if not (argument.affine or noised):
                what += " of other than a * x + b without rounding (divide the sum, not each value)"
                raise refused(tables, source, FILTER if function == "count" else OPEN, what)
    for source, use in sorted(control):
        rights = tables[source[0]].allows(source[1])
        enough = {OPEN} if use == LEFT_OUT else {OPEN, FILTER}
        if use in (MATCHED, GUESSED):
            enough.add(MATCH)
        if not rights & enough:
            right = {CONDITION: FILTER, LEFT_OUT: OPEN}.get(use, MATCH)
            raise refused(tables, source, right, "A condition or join on a column")


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
    held = {alias: own for alias, (own, _) in records.items()}
    for alias in restricted(tables, (source for source, _ in control), held):
        own, copies = records.get(alias, (None, 1))
        least = check_units(tables, alias, own) * copies
        if own is None or not own.single:
            raise PolicyError(
                f"Rows here may hold a record of table {tables[alias].name!r} several times, so "
                "that whether there are more than some number may depend on one of them. Join on "
                f"columns that are unique, or have its owner, {tables[alias].owner!r}, open them."
            )
        if bound < least:
            raise PolicyError(
                f"Whether there are more than {bound} rows may depend on fewer records of table "
                f"{tables[alias].name!r} than the rule of {tables[alias].owner!r} asks for. A "
                f"bound of {least} rows (--max-rows) does not."
            )


def least_for(function: str, least: int) -> int:
    """How many records an aggregate takes, so that so many are at each side of a quantile."""
    quantile = quantile_of(function)
    if quantile is None:
        return least
    side = min(quantile[1], PARTS - quantile[1])
    return -(-least * PARTS // side) if side else least


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
    if not any(table.allows(column) for column in table.schema.columns):
        raise refused(tables, (alias, next(iter(table.schema.columns))), FILTER, "Counting rows")
    repeated = records is not None and not records.single
    if repeated and any(map(quantile_of, functions)):
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
