"""Groups of rows with equal keys: a sort, one equality with the row before, and one partition.

Sums and counts are differences of running sums at the beginnings of groups, smallest and largest
values stand at their ends, so that no scan is needed, whatever the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.order import sort
from tfe_bench.protocols.ring import arithmetic, equality, relational, shapes
from tfe_bench.protocols.ring.checks import check_choice, is_from
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange, bits, keys
from tfe_bench.protocols.tables.arrange import graph
from tfe_bench.protocols.tables.relation import ANY, Column, Relation

HOW = ("sum", "count", "min", "max")


@dataclass(frozen=True)
class Aggregate:
    """What is computed of a group.

    Attributes:
        how: "sum" (modulo 2^64), "count", "min" or "max"; rows without a value are passed over.
        column: of which; None counts rows.
    """

    how: str
    column: int | None = None


def check_aggregates(name: str, relation: Relation, aggregates: Sequence[Aggregate]) -> None:
    """Refuses what is no aggregate of a relation's columns.

    Raises:
        UsageError: an unknown one, or a column that is not there or of bits.
    """
    for each in aggregates:
        check_choice("aggregate", each.how, HOW, name)
        if each.column is None:
            if each.how != "count":
                raise UsageError(f"{name} wants the column of {each.how}. Received: None.")
        elif relation.column(each.column).values.ring_bits == 1 and each.how != "count":
            raise UsageError(
                f"{name} takes {each.how} of numbers. Received: column {each.column}, of bits. "
                "Make numbers of them (bits.number)."
            )


def distinct(
    party: Party, relation: Relation, by: Sequence[int], *, profile: str = "local"
) -> Relation:
    """One row for each key; the columns `by` alone.  Rounds, bits, errors: as `group`."""
    return group(party, relation, by, (), profile=profile)


def group(
    party: Party,
    relation: Relation,
    by: Sequence[int],
    aggregates: Sequence[Aggregate],
    *,
    least: int = 1,
    profile: str = "local",
) -> Relation:
    """A row for each group of valid rows with equal keys: the columns `by`, then the aggregates.

    There are as many rows as before, of which those of groups come first and are valid; the others
    hold anything.  Rows without a key are one group.  The sum, least and largest of no value are
    NULL.

    Args:
        by: numbers of the key's columns, one at least.
        least: groups of fewer rows are not valid.  Their place is still among the others': deliver
            the result in another order.

    Rounds: those of keys.cleared and keys.arranged, and about 16.  Bits sent: those, an equality,
    a partition, and two moves of each column; again for each column of a "min" or "max" but the
    first.
    Raises:
        UsageError: no or unknown columns, unknown aggregates, least below 1.
        RangeError: a key is outside of its column's bits.
    """
    check_aggregates("group", relation, aggregates)
    if not by or not is_from(least, 1, 2**62):
        raise UsageError(f"group wants keys, and 1 row at least. Received: {by!r}, {least!r}.")
    for i in by:
        relation.column(i)
    found: list[Column | None] = [None] * len(aggregates)
    result: Relation | None = None
    sorts: list[tuple[int | None, bool]] = [*_sorts(relation, aggregates)]
    for last, descending in sorts or [(None, False)]:
        wanted = [
            i
            for i, a in enumerate(aggregates)
            if (_sorted_by(relation, a) or (last if result is None else -1, descending))
            == (last, descending)
        ]
        some = [aggregates[i] for i in wanted]
        one = _grouped(party, relation, by, last, descending, some, least, profile)
        for i, column in zip(wanted, one.columns[len(by) :], strict=True):
            found[i] = column
        result = one if result is None else result
    assert result is not None
    columns = (*result.columns[: len(by)], *(c for c in found if c is not None))
    return Relation(columns, result.valid)


def _sorted_by(relation: Relation, aggregate: Aggregate) -> tuple[int, bool] | None:
    """The column that a least or largest value is found by, and whether it descends."""
    if aggregate.how not in ("min", "max") or aggregate.column is None:
        return None
    nullable = relation.column(aggregate.column).null is not None
    # the largest is the last, unless rows without a value are
    return aggregate.column, aggregate.how == "max" and nullable


def _sorts(relation: Relation, aggregates: Sequence[Aggregate]) -> list[tuple[int, bool]]:
    found = [_sorted_by(relation, a) for a in aggregates]
    return list(dict.fromkeys(f for f in found if f is not None))


def _grouped(
    party: Party,
    relation: Relation,
    by: Sequence[int],
    last: int | None,
    descending: bool,
    aggregates: Sequence[Aggregate],
    least: int,
    profile: str,
) -> Relation:
    """`group` for "min" and "max" of one column alone."""
    n = relation.rows
    of_key = [relation.column(i) for i in by]
    of = [None if a.column is None else relation.column(a.column) for a in aggregates]
    parts = keys.cleared(party, relation.valid, [(c, False) for c in of_key])
    more = []
    if last is not None:
        more = keys.cleared(party, relation.valid, [(relation.column(last), descending)], False)
    order = keys.arranged(party, relation.valid, [*parts, *more], profile)
    widths = tuple(k for _, k in parts)
    columns = list(dict.fromkeys([*by, *(a.column for a in aggregates if a.column is not None)]))
    taken = [relation.column(i) for i in columns]
    moved = order.forward(
        [*keys.narrowed(parts), *(p for c in taken for p in c.parts), relation.valid]
    )
    place = {column: i for i, column in enumerate(columns)}

    def beginnings(compared: list[Shared], taken: list[Column], valid: Shared) -> Any:
        first = bits.invert(keys.same_as_before(party, compared, widths))
        counted = bits.all_of(party, [first, valid])
        # one more row, which ends the last group
        flag = shapes.pad(first, [[0, 1]], constant_values=1)
        columns = [shapes.pad(p, [[0, 1]]) for i in by for p in taken[place[i]].parts]
        columns.append(places(valid, n + 1))
        for a in aggregates:
            columns += _measured(party, a, None if a.column is None else taken[place[a.column]])
        return flag, [*columns, shapes.pad(counted, [[0, 1]])]

    def ends(given: list[Shared]) -> list[Shared]:
        here = [c.map(lambda a: local.at(a, np.s_[:n])) for c in given]
        then = [c.map(lambda a: local.at(a, np.s_[1:])) for c in given]
        at = sum(len(c.parts) for c in of_key)
        found = here[:at]
        count = arithmetic.sub(then[at], here[at])
        at += 1
        for a, column in zip(aggregates, of, strict=True):
            if a.how == "count" and (column is None or column.null is None):
                found.append(count)
            elif a.how in ("sum", "count"):
                found.append(arithmetic.sub(then[at], here[at]))
                at += 1
                if a.how == "sum" and column is not None and column.null is not None:
                    there = arithmetic.sub(then[at], here[at])
                    at += 1
                    width = sort.index_bits(n) + 1
                    found.append(bits.of(party, equality.zero(party, [(there, width)])))
            else:
                end = then if a.how == "max" and not descending else here
                width = 1 if column is None or column.null is None else 2
                found += end[at : at + width]
                at += width
        valid = here[at]
        if least > 1:
            width = max(sort.index_bits(n), int(least).bit_length()) + 2
            short = relational.negative(party, arithmetic.moved(count, np.int64(-least)), width)
            enough = bits.invert(bits.of(party, short))
            valid = bits.all_of(party, [valid, enough])
        return [*found, valid]

    kinds = tuple((a.how, a.column) for a in aggregates)
    key = (n, widths, tuple(by), tuple(columns), kinds, descending)
    compared, rest = moved[: len(parts)], moved[len(parts) : -1]
    held, at = [], 0
    for column in taken:
        held.append(column.with_parts(rest[at : at + len(column.parts)]))
        at += len(column.parts)
    flag, behind = graph(party, "beginnings", beginnings, *key)(compared, held, moved[-1])
    there = arrange.by_bit(party, flag).forward(behind)
    nullable = tuple(c is not None and c.null is not None for c in [*of_key, *of])
    parts_found = graph(party, "ends", ends, *key, nullable, least)(there)
    return _result(relation, of_key, aggregates, of, parts_found, n)


def _result(
    relation: Relation,
    of_key: Sequence[Column],
    aggregates: Sequence[Aggregate],
    of: Sequence[Column | None],
    parts: list[Shared],
    n: int,
) -> Relation:
    found, at = [], 0
    for column in of_key:
        found.append(column.with_parts(parts[at : at + len(column.parts)]))
        at += len(column.parts)
    for a, source in zip(aggregates, of, strict=True):
        null = None
        values = parts[at]
        at += 1
        if a.how != "count" and source is not None and source.null is not None:
            null = parts[at]
            at += 1
        if a.how == "count":
            found.append(Column(replace(values, fractional_bits=0), count_bits(n)))
        else:
            assert source is not None
            found.append(Column(values, ANY if a.how == "sum" else source.bits, null))
    return Relation(tuple(found), parts[at])


def count_bits(n: int) -> int:
    """Bits of a number of rows."""
    return max(1, n.bit_length())


def places(like: Shared, n: int) -> Shared:
    """0 .. n-1, which is public, as a column."""
    return arithmetic.public_range(like, n)


def running(x: Shared) -> Shared:
    """The sum before each row, and behind the last.  Local."""
    return shapes.pad(x.map(lambda a: local.cumsum(a, 0, False, False)), [[1, 0]])


def _measured(party: Party, aggregate: Aggregate, column: Column | None) -> list[Shared]:
    """Columns of one row more, of which an aggregate is found at the beginnings of groups."""
    if column is None:
        return []
    if aggregate.how in ("min", "max"):
        return [_end(p, aggregate.how, column.null is not None) for p in column.parts]
    if column.null is None:
        return [] if aggregate.how == "count" else [running(column.values)]
    there = bits.invert(column.null)
    count = running(bits.number(party, there))
    if aggregate.how == "count":
        return [count]
    return [running(bits.times(party, there, column.values)), count]


def _end(x: Shared, how: str, nullable: bool) -> Shared:
    """What stands at a group's first row, or before the next group's."""
    behind = how == "max" and not nullable
    return shapes.pad(x, [[1, 0]] if behind else [[0, 1]])
