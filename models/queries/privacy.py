"""Tables with a privacy budget: what may leave of them with noise, and how much noise that takes.

Two tables are neighbors if one is the other without the rows of one unit (a person, say), which are
rows that are none then.  A release adds discrete Gaussian noise to the sums and numbers of public
groups; its loss is that of zero-concentrated differential privacy (Bun, Steinke 2016): one of
variance s^2 costs D^2 / (2 s^2), where D is the Euclidean distance of what neighbors have.  All
groups of one sum are one vector, in which a unit's rows make at most (rows of a unit) * (the
largest value) of difference, however they are spread; several sums share the loss equally.

Steps before a release are such that a row depends on a unit of each table alone: scans, conditions,
expressions, and joins that look rows up.  A unit that may be in several rows counts with its first
ones, as many as its table's owner says.  Everything else is refused, in words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from tfe_bench.cluster.ledger import UNIT, shown
from tfe_bench.errors import PolicyError, UsageError
from tfe_bench.models.queries.expressions import MOST_DIVISOR, Fact, ratio_type
from tfe_bench.models.queries.rights import Control, Records, Tables, Use
from tfe_bench.models.queries.summaries import MOST_TOLD
from tfe_bench.models.queries.types import NUMBER, Type, scaled, whole
from tfe_bench.protocols.tables.noise import LEAST_SIGMA, MOST_SIGMA

# What is noised: an aggregate's column, or None for rows; and its values' sum, or their number.
Label = tuple[str | None, str]
VALUES, COUNT = "values", "count"
NOISED = ("sum", "count", "avg")
# Noise is further away with a probability below 2^-120.
_TAIL = 16
# Steps of whose rows each depends on one unit of each table.
_LOCAL = ("scan", "filter", "project", "join", "group")
# Of a truncation that is exact.
_MOST_BITS = 61


@dataclass(frozen=True)
class Scale:
    """How one vector of a release is noised.

    Attributes:
        variance: s^2, in units of the ring; what two honest workers add has it.
        more: fractional bits that totals get before, so that s is 4 at least; rounded off after.
        tail: how far from the total the result may be, in its own units.
    """

    variance: int
    more: int
    tail: int

    @property
    def deviation(self) -> float:
        """Of what the three workers add, in the total's own units."""
        return math.sqrt(1.5 * self.variance) / (1 << self.more)


@dataclass(frozen=True)
class Release:
    """What leaves of one grouping.

    Attributes:
        loss: what it spends of each table, in billionths of rho.
        tables: their aliases.
        bounded: the one whose units may be in several rows; "" for none.
        most: how many rows of a unit of that one count.
        totals: what is noised.
    """

    loss: int
    tables: tuple[str, ...]
    bounded: str
    most: int
    totals: Mapping[Label, Scale]


def budgeted(tables: Tables, alias: str) -> bool:
    """Whether a table has a budget, which its own owner does not spend."""
    table = tables[alias]
    return table.schema.budget > 0 and table.client != table.owner


def guarded(
    tables: Tables,
    columns: Mapping[str, Fact],
    control: Control,
    records: Iterable[str],
) -> list[str]:
    """Aliases of the tables with a budget that a relation's rows depend on."""
    found = {source.alias for fact in columns.values() for source in fact.sources}
    found |= {source.alias for source, _ in control} | set(records)
    return sorted(alias for alias in found if budgeted(tables, alias))


def check_step(
    tables: Tables, op: str, kind: str, left: Sequence[str], right: Sequence[str]
) -> None:
    """Refuses a step after which a row may depend on other units of a table with a budget.

    Args:
        kind: of a join.
        left, right: the aliases that its first relation, and its others, depend on.

    Raises:
        PolicyError: naming the table and its owner.
    """
    several = [*left, *right]
    if op in _LOCAL:
        several = list(right) if kind in ("left", "anti") else []
    if several:
        what = f"A {kind} join that looks it up" if op == "join" else f"A step `{op}` of its rows"
        raise _refused(
            tables, several[0], f"{what} is not offered; what is made of noised results is"
        )


def _refused(tables: Tables, alias: str, what: str) -> PolicyError:
    table = tables[alias]
    return PolicyError(
        f"Table {table.name!r} of {table.owner!r} has a privacy budget: only sums, counts and "
        "averages leave it, with noise, of all rows or of groups by categories and bools. "
        f"{what}."
    )


def labels_of(
    aggregates: Iterable[tuple[str, str, str | None]], columns: Mapping[str, Fact]
) -> list[Label]:
    """What the aggregates of a step take, each once."""
    found: dict[Label, None] = {}
    for _, function, argument in aggregates:
        if function != "count":
            found[argument, VALUES] = None
        if function != "sum":
            found[counted(argument, columns)] = None
    return list(found)


def counted(argument: str | None, columns: Mapping[str, Fact]) -> Label:
    """The number of a column's values, which is that of rows where there is one in each."""
    return (argument if argument is not None and columns[argument].nullable else None), COUNT


def release(
    tables: Tables,
    closed: Sequence[str],
    aggregates: Sequence[tuple[str, str, str | None]],
    columns: Mapping[str, Fact],
    records: Mapping[str, Records],
    loss: int,
    groups: int,
    rows: int,
) -> Release | None:
    """What is told of a grouping, if a table with a budget is in it.

    Args:
        closed: aliases of the tables of whose records only aggregates may be told.
        columns, records, rows: of the relation that is grouped.
        loss: that the query may spend here; 0: it does not say.
        groups: how many there are, if they are public; else 0.

    Raises:
        PolicyError: naming the table, its owner, and what is not offered.
        UsageError: the query does not say what it spends, or too little for a number of 62 bits.
    """
    private = [alias for alias in closed if budgeted(tables, alias)]
    if not private:
        if loss:
            raise UsageError(
                "No table that is grouped here has a privacy budget: a query of it spends no "
                f"privacy. Received: rho {shown(loss)}."
            )
        return None
    first = tables[private[0]]
    if others := [alias for alias in closed if alias not in private]:
        other = tables[others[0]]
        raise _refused(
            tables,
            private[0],
            f"Table {other.name!r} of {other.owner!r} has none, and its rule of "
            f"{other.schema.min_group} records in a group would tell exact numbers of both",
        )
    for alias in private:
        table = tables[alias]
        if not any(table.permits(Use.HOLD, column) for column in table.schema.columns):
            table.check(Use.CONDITION, next(iter(table.schema.columns)), "Counting rows")
    if len({tables[alias].name for alias in private}) < len(private):
        raise _refused(tables, private[0], "It is read twice here")
    for _, function, _ in aggregates:
        if function not in NOISED:
            name = function.partition(":")[0].upper()
            raise _refused(tables, private[0], f"Received: {name}")
    if not groups or not aggregates:
        raise _refused(
            tables,
            private[0],
            f"Received: groups by other keys than categories and bools with {MOST_TOLD} "
            "combinations at most, whose being there would tell of records, or nothing that is "
            "counted",
        )
    bounded = [alias for alias in private if not _checked(tables, alias, records).single]
    if len(bounded) > 1:
        names = " and ".join(repr(tables[alias].name) for alias in bounded)
        raise _refused(
            tables, bounded[0], f"Units of {names} both repeat in the rows of this query"
        )
    if not loss:
        raise UsageError(
            f"Table {first.name!r} has a privacy budget, set by {first.owner!r}: say how much the "
            f"query may spend of it (--rho 0.05). Left: "
            f"{shown(max(0, first.schema.budget - first.spent))} of {shown(first.schema.budget)}."
        )
    most = tables[bounded[0]].schema.contributions if bounded else 1
    # (a row that leaves lets in another one of a unit whose rows are counted off)
    times = max(most, 2) if bounded and len(private) > 1 else most
    labels = labels_of(aggregates, columns)
    totals = {
        label: _scale(_largest(label, columns) * times, loss, len(labels)) for label in labels
    }
    return Release(loss, tuple(private), bounded[0] if bounded else "", most, totals)


def _checked(tables: Tables, alias: str, records: Mapping[str, Records]) -> Records:
    own = records.get(alias)
    if own is None or own.present or not (own.single or own.unit):
        raise _refused(
            tables,
            alias,
            "Rows of this query may depend on a record of it in other ways than by being there, or "
            "hold one several times. Join on columns that are unique in both tables, or have its "
            "owner say whose records they are (table put --unit)",
        )
    return own


def _largest(label: Label, columns: Mapping[str, Fact]) -> int:
    """How much one row may add to a total."""
    argument, what = label
    if what == COUNT or argument is None:
        return 1
    kind = columns[argument].known
    if kind.kind != NUMBER:
        raise UsageError(f"SUM and AVG take numbers. Received: a {kind}.")
    return max(1, kind.magnitude)


def _scale(difference: int, loss: int, count: int) -> Scale:
    """The noise of a vector that one unit moves by at most so much.

    Args:
        loss: of all vectors together.
        count: how many there are.
    """
    exact = Fraction(difference**2 * UNIT * count, 2 * loss)
    more = 0
    while exact * 4**more < LEAST_SIGMA**2:
        more += 1
    # one unit more pays for what a sum of two discrete Gaussians is off a discrete Gaussian
    variance = math.ceil(exact * 4**more) + 1
    if variance > MOST_SIGMA**2:
        raise UsageError(
            f"The noise of this query would have a standard deviation of 2^"
            f"{variance.bit_length() // 2}. Spend more (--rho), or have the owners declare "
            "narrower ranges of its columns, as int[0,120]."
        )
    tail = ((_TAIL * (math.isqrt(variance) + 1)) >> more) + 1
    return Scale(variance, more, tail)


def noised(
    function: str, argument: str | None, columns: Mapping[str, Fact], of: Release, rows: int
) -> Fact:
    """The fact about an aggregate with noise: there is always one.

    Args:
        columns, rows: of the relation that is grouped.

    Raises:
        UsageError: it may leave 62 bits.
    """
    label = counted(argument, columns)
    if function == "count":
        scale = of.totals[label]
        return Fact(_roomy(whole(-scale.tail, rows + scale.tail), scale))
    assert argument is not None
    kind, scale = columns[argument].known, of.totals[argument, VALUES]
    low, high = min(0, kind.low * rows) - scale.tail, max(0, kind.high * rows) + scale.tail
    total = _roomy(scaled(kind, low, high, kind.digits, kind.fraction), scale)
    if function == "sum":
        return Fact(total)
    most = most_counted(of.totals[label], rows)
    if (kind.magnitude * most) >> 60 or most >> MOST_DIVISOR:
        raise UsageError("AVG takes sums below 2^60 of fewer than 2^24 rows. Declare a range.")
    return Fact(ratio_type(kind, Fraction(1)))


def most_counted(scale: Scale, rows: int) -> int:
    """The most that a number of rows is with its noise."""
    return rows + scale.tail


def _roomy(kind: Type, scale: Scale) -> Type:
    if scale.more and (kind.magnitude << scale.more) >> _MOST_BITS:
        raise UsageError(
            f"A total of this query has {kind.magnitude.bit_length()} bits, and {scale.more} more "
            f"for its noise; at most {_MOST_BITS} are right. Declare a narrower range, or spend "
            "less (--rho)."
        )
    return kind


def released(fact: Fact) -> Fact:
    """A key or a total that has left."""
    return replace(fact, sources=frozenset(), affine=False)


def losses(releases: Iterable[Release | None], tables: Tables) -> dict[str, int]:
    """What a plan spends of each table, by its name."""
    found: dict[str, int] = {}
    for each in releases:
        for alias in each.tables if each is not None else ():
            name = tables[alias].name
            found[name] = found.get(name, 0) + each.loss  # type: ignore[union-attr]
    return found


def epsilon(loss: int, delta: float) -> float:
    """(epsilon, delta)-differential privacy of a loss in billionths of rho."""
    rho = loss / UNIT
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))
