"""Tables with a privacy budget: permitted releases, and the noise that they require.

Two tables are neighbors if one is the other without the rows of one unit (a person, for example);
these rows become padding rows. A release adds discrete Gaussian noise to the sums and counts of
public groups. Its loss is that of zero-concentrated differential privacy (Bun, Steinke 2016):
noise of variance s^2 costs D^2 / (2 s^2), where D is the Euclidean distance between the totals of
neighbors. All groups of one sum form one vector. A unit's rows change it by at most (rows of a
unit) * (largest value), however they are spread over groups; several sums share the loss equally.

Before a release only steps are permitted after which each row depends on one unit of each table:
scans, conditions, expressions, and lookup joins. A unit that may have several rows counts with its
first ones, up to its table's contribution bound. Everything else is refused with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from tfe_bench.cluster.ledger import UNIT, format_privacy_loss
from tfe_bench.errors import PolicyError, UsageError
from tfe_bench.protocols.tables.noise import MAX_SIGMA, MIN_SIGMA
from tfe_bench.queries.aggregate_types import MAX_RELEASED
from tfe_bench.queries.column_facts import ColumnFact
from tfe_bench.queries.expressions import MAX_DIVISOR, ratio_type
from tfe_bench.queries.rights import ColumnUse, Control, TableRecords, Tables
from tfe_bench.queries.types import NUMBER, ColumnType, int_column_type, rescaled_column_type

# Labels of totals: a column, or None for rows; and the sum of its values, or their number.
Label = tuple[str | None, str]
VALUES, COUNT = "values", "count"
NOISED = ("sum", "count", "avg")
# Noise exceeds this many deviations with a probability below 2^-120.
_TAIL = 16
# Bits of an exact truncation.
_MAX_BITS = 61


@dataclass(frozen=True)
class DpNoiseScale:
    """Noise of one vector of a release.

    Attributes:
        variance: s^2, in ring units; the sum of two honest workers' noise has it.
        extra_bits: fractional bits added to totals before the noise, so that s is at least 4; the
            result is rounded to drop them.
        tail: largest distance of the result from the total, in units of the total.
    """

    variance: int
    extra_bits: int
    tail: int

    @property
    def deviation(self) -> float:
        """Standard deviation of the three workers' noise, in units of the total."""
        return math.sqrt(1.5 * self.variance) / (1 << self.extra_bits)


@dataclass(frozen=True)
class NoisyRelease:
    """Release of one grouping.

    Attributes:
        loss: privacy loss of each table, in billionths of rho.
        tables: aliases of the tables.
        bounded_alias: alias of the table whose units may have several rows; "" for none.
        max_unit_rows: number of rows of a unit of that table that count.
        totals: totals with noise.
    """

    loss: int
    tables: tuple[str, ...]
    bounded_alias: str
    max_unit_rows: int
    totals: Mapping[Label, DpNoiseScale]


def has_budget(tables: Tables, alias: str) -> bool:
    """Return whether a table has a budget that this client spends; owners do not
    spend their own.
    """
    table = tables[alias]
    return table.schema.budget > 0 and table.client != table.owner


def budgeted_aliases(
    tables: Tables,
    columns: Mapping[str, ColumnFact],
    control: Control,
    records: Iterable[str],
) -> list[str]:
    """Return the aliases of tables with a budget that a relation's rows depend on."""
    aliases = {source.alias for fact in columns.values() for source in fact.sources}
    aliases |= {source.alias for source, _ in control} | set(records)
    return sorted(alias for alias in aliases if has_budget(tables, alias))


def reject_repeated_units(tables: Tables, aliases: Sequence[str], subject: str) -> None:
    """Reject a step after which a row may depend on further units of tables with a budget.

    Args:
        aliases: aliases of these tables.
        subject: description of the step.

    Raises:
        PolicyError: naming the first table and its owner.
    """
    if aliases:
        reason = f"{subject} is not supported before a release, but after it"
        raise _budget_error(tables, aliases[0], reason)


def _budget_error(tables: Tables, alias: str, reason: str) -> PolicyError:
    table = tables[alias]
    return PolicyError(
        f"Table {table.name!r} of {table.owner!r} has a privacy budget: only sums, counts and "
        "averages leave it, with noise, over all rows or over groups by categories and "
        f"bools. {reason}.",
        code="budget-restriction",
        operation=table.name,
        received=reason,
    )


def distinct_total_labels(
    aggregates: Iterable[Sequence[Any]], columns: Mapping[str, ColumnFact]
) -> list[Label]:
    """Return the distinct totals that the aggregates of a step require."""
    labels: dict[Label, None] = {}
    for _, function, argument in aggregates:
        if function != "count":
            labels[argument, VALUES] = None
        if function != "sum":
            labels[column_count_label(argument, columns)] = None
    return list(labels)


def column_count_label(argument: str | None, columns: Mapping[str, ColumnFact]) -> Label:
    """Return the label of the number of a column's values; that of rows if the
    column is never NULL.
    """
    return (argument if argument is not None and columns[argument].nullable else None), COUNT


def plan_release(
    tables: Tables,
    closed: Sequence[str],
    aggregates: Sequence[Sequence[Any]],
    columns: Mapping[str, ColumnFact],
    records: Mapping[str, TableRecords],
    loss: int,
    groups: int,
    rows: int,
) -> NoisyRelease | None:
    """Plan the release of a grouping, if it contains a table with a budget.

    Args:
        closed: aliases of the tables of which only aggregates of records may be released.
        columns, records, rows: columns, records and row count of the grouped relation.
        loss: privacy loss that the query may spend here; 0: not stated.
        groups: number of groups if public, else 0.

    Raises:
        PolicyError: naming the table, its owner and the unsupported operation.
        UsageError: the query states no loss, or one too small for a number of 62 bits.
    """
    budgeted = [alias for alias in closed if has_budget(tables, alias)]
    if not budgeted:
        if loss:
            raise UsageError(
                "Expected no rho, as no grouped table has a privacy budget. Received: rho "
                f"{format_privacy_loss(loss)}.",
                code="unexpected-rho",
                received=format_privacy_loss(loss),
            )
        return None
    first = tables[budgeted[0]]
    if others := [alias for alias in closed if alias not in budgeted]:
        other = tables[others[0]]
        raise _budget_error(
            tables,
            budgeted[0],
            f"Table {other.name!r} of {other.owner!r} has none, and its rule of "
            f"{other.schema.min_group} records in a group would release exact numbers of both",
        )
    for alias in budgeted:
        table = tables[alias]
        if not any(table.permits(ColumnUse.HOLD, column) for column in table.schema.columns):
            table.check(ColumnUse.CONDITION, next(iter(table.schema.columns)), "Counting rows")
    if len({tables[alias].name for alias in budgeted}) < len(budgeted):
        raise _budget_error(tables, budgeted[0], "It is read twice here")
    for _, function, _ in aggregates:
        if function not in NOISED:
            name = function.partition(":")[0].upper()
            raise _budget_error(tables, budgeted[0], f"Received: {name}")
    if not groups or not aggregates:
        raise _budget_error(
            tables,
            budgeted[0],
            f"Received: groups by other keys than categories and bools with {MAX_RELEASED} "
            "combinations at most, whose presence would leak information about records, or "
            "nothing that is counted",
        )
    bounded = [
        alias for alias in budgeted if not _check_budgeted_records(tables, alias, records).single
    ]
    if len(bounded) > 1:
        names = " and ".join(repr(tables[alias].name) for alias in bounded)
        raise _budget_error(
            tables, bounded[0], f"Units of {names} both repeat in the rows of this query"
        )
    if not loss:
        raise UsageError(
            f"Table {first.name!r} has a privacy budget, set by {first.owner!r}: state how "
            "much of it the query may spend (--rho 0.05). Remaining: "
            f"{format_privacy_loss(max(0, first.schema.budget - first.spent))} of "
            f"{format_privacy_loss(first.schema.budget)}.",
            code="missing-rho",
            operation=first.name,
        )
    max_unit_rows = tables[bounded[0]].schema.contributions if bounded else 1
    # (removing a row may add another row of a unit whose contribution is bounded)
    times = max(max_unit_rows, 2) if bounded and len(budgeted) > 1 else max_unit_rows
    labels = distinct_total_labels(aggregates, columns)
    totals = {
        label: _vector_noise_scale(_largest_change(label, columns) * times, loss, len(labels))
        for label in labels
    }
    return NoisyRelease(loss, tuple(budgeted), bounded[0] if bounded else "", max_unit_rows, totals)


def _check_budgeted_records(
    tables: Tables, alias: str, records: Mapping[str, TableRecords]
) -> TableRecords:
    alias_records = records.get(alias)
    if (
        alias_records is None
        or alias_records.present
        or not (alias_records.single or alias_records.unit)
    ):
        raise _budget_error(
            tables,
            alias,
            "Rows of this query may depend on a record of it in other ways than by its presence, "
            "or contain one several times. Join on columns that are unique in both tables, or ask "
            "its owner to declare the unit column (table put --unit)",
        )
    return alias_records


def _largest_change(label: Label, columns: Mapping[str, ColumnFact]) -> int:
    """Return the largest change of a total by one row."""
    argument, total_kind = label
    if total_kind == COUNT or argument is None:
        return 1
    kind = columns[argument].value_type
    if kind.kind != NUMBER:
        raise UsageError(
            f"SUM and AVG take numbers. Received: a {kind}.",
            code="type-mismatch",
            operation="sum",
            received=kind,
        )
    return max(1, kind.magnitude)


def _vector_noise_scale(difference: int, loss: int, count: int) -> DpNoiseScale:
    """Return the noise of a vector that one unit changes by at most a given difference.

    Args:
        loss: loss of all vectors together.
        count: number of vectors.
    """
    exact = Fraction(difference**2 * UNIT * count, 2 * loss)
    extra_bits = 0
    while exact * 4**extra_bits < MIN_SIGMA**2:
        extra_bits += 1
    # one more unit covers the distance between a sum of two discrete Gaussians and a discrete
    # Gaussian
    variance = math.ceil(exact * 4**extra_bits) + 1
    if variance > MAX_SIGMA**2:
        raise UsageError(
            "The noise of this query would have a standard deviation of "
            f"2^{variance.bit_length() // 2}. Spend more (--rho), or ask the owners to "
            "declare narrower ranges of its columns, as int[0,120].",
            code="noise-too-large",
            received=variance.bit_length() // 2,
        )
    tail = ((_TAIL * (math.isqrt(variance) + 1)) >> extra_bits) + 1
    return DpNoiseScale(variance, extra_bits, tail)


def noised_fact(
    function: str,
    argument: str | None,
    columns: Mapping[str, ColumnFact],
    release: NoisyRelease,
    rows: int,
) -> ColumnFact:
    """Return the fact about an aggregate with noise, which is never NULL.

    Args:
        columns, rows: columns and row count of the grouped relation.

    Raises:
        UsageError: the result may exceed 62 bits.
    """
    label = column_count_label(argument, columns)
    if function == "count":
        scale = release.totals[label]
        return ColumnFact(
            _check_room_for_noise(int_column_type(-scale.tail, rows + scale.tail), scale)
        )
    assert argument is not None
    kind, scale = columns[argument].value_type, release.totals[argument, VALUES]
    low, high = min(0, kind.low * rows) - scale.tail, max(0, kind.high * rows) + scale.tail
    total = _check_room_for_noise(
        rescaled_column_type(kind, low, high, kind.digits, kind.fraction), scale
    )
    if function == "sum":
        return ColumnFact(total)
    max_count = max_noised_count(release.totals[label], rows)
    if (kind.magnitude * max_count) >> 60 or max_count >> MAX_DIVISOR:
        raise UsageError(
            "AVG takes sums below 2^60 of fewer than 2^24 rows. Declare a range.",
            code="value-too-wide",
            operation="avg",
        )
    return ColumnFact(ratio_type(kind, Fraction(1)))


def max_noised_count(scale: DpNoiseScale, rows: int) -> int:
    """Return the largest count with noise."""
    return rows + scale.tail


def _check_room_for_noise(kind: ColumnType, scale: DpNoiseScale) -> ColumnType:
    if scale.extra_bits and (kind.magnitude << scale.extra_bits) >> _MAX_BITS:
        raise UsageError(
            f"A total of this query has {kind.magnitude.bit_length()} bits, and "
            f"{scale.extra_bits} more for its noise; at most {_MAX_BITS} are exact. Declare a "
            "narrower range, or spend less (--rho).",
            code="value-too-wide",
            operation="total",
        )
    return kind


def released_column_fact(fact: ColumnFact) -> ColumnFact:
    """Return the fact about a key or total after its release."""
    return replace(fact, sources=frozenset(), affine=False)


def total_privacy_losses(releases: Iterable[NoisyRelease | None], tables: Tables) -> dict[str, int]:
    """Return the privacy loss of a plan for each table, by name."""
    losses_by_table: dict[str, int] = {}
    for release in releases:
        for alias in release.tables if release is not None else ():
            name = tables[alias].name
            losses_by_table[name] = losses_by_table.get(name, 0) + release.loss  # type: ignore[union-attr]
    return losses_by_table


def privacy_epsilon(loss: int, delta: float) -> float:
    """Return epsilon of the (epsilon, delta)-differential privacy of a loss in
    billionths of rho.
    """
    rho = loss / UNIT
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))
