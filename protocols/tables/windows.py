"""Windows: what a row is told of its partition, in an order: places, running sums, neighbors.

After a sort, what a partition begins with is brought to all of its rows (`broadcast`): its position
and the running sums before it.  Differences do the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic, equality, relational, shapes
from tfe_bench.protocols.ring.checks import check_choice, is_from
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange, bits, keys
from tfe_bench.protocols.tables.arrange import graph
from tfe_bench.protocols.tables.groups import count_bits, places
from tfe_bench.protocols.tables.keys import Key
from tfe_bench.protocols.tables.relation import ANY, Column, Relation

HOW = ("row_number", "rank", "dense_rank", "sum", "count", "min", "max", "lag", "lead")
EXTREMES = ("min", "max")
# Of sums and counts, from the partition's first row: to this one, to the last that the order does
# not tell apart from it, to the partition's last.
ROWS, RANGE, WHOLE = FRAMES = ("rows", "range", "whole")
# Of a value and the number of its partition, which are compared as one.
_MOST_BITS = 60


@dataclass(frozen=True)
class Window:
    """What is computed for each row.

    Attributes:
        how: "row_number", "rank" and "dense_rank" count from 1; "sum" and "count" are of the rows
            of a frame, those without a value passed over; "min" and "max" likewise; "lag" and
            "lead" are the value `offset` rows before or behind, NULL where the partition has none.
        column: of which; None for places, and to count rows.
        offset: of "lag" and "lead", 1 or more.
        frame: of "sum", "count", "min" and "max", one of FRAMES; of sums and counts also a number,
            of rows before this one that count with it.
    """

    how: str
    column: int | None = None
    offset: int = 1
    frame: str | int = ROWS


def broadcast(party: Party, flag: Shared, columns: Sequence[Shared]) -> list[Shared]:
    """Each row gets what the last flagged row up to it holds; 0 before the first.

    A partition brings the flagged rows together, where the difference of each from the one before
    is taken; back in their places running sums are what was asked for.

    Args:
        flag: [n] of Z_2.
        columns: [n].

    Rounds: 10.  Bits sent: those of arrange.by_bit; and for each column two moves and an injection.
    """
    if not columns:
        return []
    order = arrange.by_bit(party, flag)
    *there, flagged = order.forward([*columns, flag])

    def steps(flagged: Shared, *given: Shared) -> list[Shared]:
        every = (arithmetic.sub(c, keys.shifted(c, 1)) for c in given)
        return [bits.times(party, flagged, step) for step in every]

    back = order.back(graph(party, "steps of flags", steps)(flagged, *there))
    return [c.map(lambda a: local.cumsum(a, 0, False, False)) for c in back]


def windows(
    party: Party,
    relation: Relation,
    partition: Sequence[int],
    order: Sequence[Key],
    functions: Sequence[Window],
    *,
    profile: str = "local",
) -> Relation:
    """The relation with a column more for each function, its rows in the order of the windows.

    Rows are sorted by (partition, order), invalid ones last, where nothing counts.  Deliver them in
    another order unless this one may be seen.

    Args:
        partition: columns whose keys rows of one partition share; none: all rows are one.
        order: at least one key, or none for sums and counts of whole partitions.  Rows that it does
            not tell apart stay as they were; to "rank" and "dense_rank" they are one.

    Rounds: those of keys.cleared, keys.arranged, and about 24.  Bits sent: those, two equalities,
    two partitions, and four moves of what is brought to all rows; an equality for each "lag",
    "lead" and frame of a number; a partition more for each kind of frame but "rows"; 2 n maxima
    for each "min" and "max", in 2 log2(n) steps.
    Raises:
        UsageError: no order, unknown functions or columns, too wide a column for "min" or "max".
        RangeError: a key is outside of its column's bits.
    """
    _check(relation, order, functions)
    n = relation.rows
    of_part = [(relation.column(i), False) for i in partition]
    of_order = [(relation.column(k.column), k.descending) for k in order]
    # without a partition only validity parts rows
    parts = keys.cleared(party, relation.valid, of_part)
    more = keys.cleared(party, relation.valid, of_order, False)
    arranged = keys.arranged(party, relation.valid, [*parts, *more], profile)
    widths, finer = (tuple(k for _, k in some) for some in (parts, more))
    moved = arranged.forward([*keys.narrowed([*parts, *more]), *relation.parts])
    compared, ordered = moved[: len(parts)], moved[len(parts) : len(parts) + len(more)]
    rows = relation.with_parts(moved[len(parts) + len(more) :])

    def marked(compared: list[Shared], ordered: list[Shared], rows: Relation) -> Any:
        same = keys.same_as_before(party, compared, widths)
        peers = keys.same_as_before(party, [*compared, *ordered], widths + finer)
        first, new = bits.invert(same), bits.invert(peers)
        return first, new, [_running(party, f, rows, first, new) for f in functions]

    key = (n, widths, finer, tuple(functions))
    first, new, sums = graph(party, "marked", marked, *key)(compared, ordered, rows)
    now, before = ([pair[i] for some in sums for pair in some] for i in range(2))
    frames = [f.frame for f, some in zip(functions, sums, strict=True) for _ in some]
    begin, *starts = broadcast(party, first, [places(first, n), *before])
    now = _at_ends(party, _at_ends(party, now, frames, RANGE, new), frames, WHOLE, first)
    ranked = any(f.how == "rank" for f in functions)
    peers = broadcast(party, new, [places(first, n)] if ranked else [])

    def found(
        rows: Relation,
        compared: list[Shared],
        places: list[Shared],
        now: list[Shared],
        before: list[Shared],
        starts: list[Shared],
    ) -> list[list[Shared]]:
        begin, *peers = places
        totals = iter(
            [
                arithmetic.sub(a, _start(party, frame, compared, widths, b, start))
                for a, frame, b, start in zip(now, frames, before, starts, strict=True)
            ]
        )
        result = []
        for f in functions:
            if f.how in ("lag", "lead"):
                result.append(_neighbor(party, f, rows, compared, widths))
            elif f.how == "rank":
                result.append([arithmetic.moved(arithmetic.sub(peers[0], begin), np.int64(1))])
            elif _is_place(f, rows):
                index = arithmetic.moved(arithmetic.neg(begin), np.arange(1, n + 1))
                result.append([index])
            elif f.how in EXTREMES:
                result.append(_extreme(party, f, rows, next(totals)))
            else:
                result.append([next(totals)])
                if f.how == "sum" and _nullable(f, rows):
                    none = equality.zero(party, [(next(totals), count_bits(n))])
                    result[-1].append(bits.of(party, none))
        return result

    step = graph(party, "windows", found, *key)
    values = step(rows, compared, [begin, *peers], now, before, starts)
    columns = [_column(f, rows, each) for f, each in zip(functions, values, strict=True)]
    return Relation((*rows.columns, *columns), rows.valid)


def _check(relation: Relation, order: Sequence[Key], functions: Sequence[Window]) -> None:
    summed = ("sum", "count", *EXTREMES)
    plain = all(f.how in summed and f.frame == WHOLE for f in functions)
    if not functions or not (order or plain):
        raise UsageError("windows wants an order and functions. Received: none.")
    for f in functions:
        if f.frame not in FRAMES and not is_from(f.frame, 0, 2**62):
            raise UsageError(
                f"A frame is one of {', '.join(FRAMES)}, or a number of rows. "
                f"Received: {f.frame!r}."
            )
        check_choice("function", f.how, HOW, "windows")
        if not is_from(f.offset, 1, 2**62):
            raise UsageError(f"A window looks 1 row or more away. Received: {f.offset!r}.")
        if f.column is None:
            if f.how in ("sum", "lag", "lead", *EXTREMES):
                raise UsageError(f"windows wants the column of {f.how}. Received: None.")
        elif relation.column(f.column).values.ring_bits == 1 and f.how == "sum":
            raise UsageError(
                f"windows adds numbers. Received: column {f.column}, of bits. Make numbers of them "
                "(bits.number)."
            )
        if f.how in EXTREMES:
            _check_extreme(relation, f)


def _check_extreme(relation: Relation, f: Window) -> None:
    own = relation.columns[f.column or 0]
    most = _MOST_BITS - count_bits(relation.rows)
    if own.values.ring_bits == 1 or own.bits > most:
        raise UsageError(
            f"windows takes {f.how} of numbers of at most {most} bits among {relation.rows} rows. "
            f"Received: column {f.column} of {own.bits} bits. Declare a narrower range."
        )
    if f.frame not in FRAMES:
        raise UsageError(
            f"windows takes {f.how} of the frames {', '.join(FRAMES)}. Received: {f.frame!r}."
        )


def _nullable(f: Window, rows: Relation) -> bool:
    return f.column is not None and rows.columns[f.column].null is not None


def _is_place(f: Window, rows: Relation) -> bool:
    """Whether a function counts rows up to this one."""
    counts = f.how == "count" and f.frame == ROWS and not _nullable(f, rows)
    return f.how == "row_number" or counts


def _running(
    party: Party, f: Window, rows: Relation, first: Shared, new: Shared
) -> list[tuple[Shared, Shared]]:
    """What grows from row to row, and what of it was there before a partition's first row."""
    if f.how in EXTREMES:
        return [_largest(party, f, rows, first)]
    if f.how == "dense_rank":
        return [_sums(bits.number(party, new))]
    if f.how not in ("sum", "count") or _is_place(f, rows):
        return []
    column = None if f.column is None else rows.columns[f.column]
    if column is None or (f.how == "count" and column.null is None):
        index = places(rows.valid, rows.rows)
        return [(arithmetic.moved(index, np.int64(1)), index)]
    if column.null is None:
        return [_sums(column.values)]
    there = bits.invert(column.null)
    count = _sums(bits.number(party, there))
    if f.how == "count":
        return [count]
    return [_sums(bits.times(party, there, column.values)), count]


def _largest(party: Party, f: Window, rows: Relation, first: Shared) -> tuple[Shared, Shared]:
    """Running maxima of partition * 2^(b + 1) + v + 1, without v + 1 where there is no value.

    Partitions follow each other, so that what was before one is less than all of it: no scan has to
    know where they begin.  Of a least value v is 2^b - 1 - v.
    """
    assert f.column is not None
    column = rows.columns[f.column]
    values = replace(column.values, fractional_bits=0)
    if f.how == "min":
        values = arithmetic.moved(arithmetic.neg(values), np.int64((1 << column.bits) - 1))
    one = arithmetic.moved(values, np.int64(1))
    if column.null is not None:
        one = bits.times(party, bits.invert(column.null), one)
    number = bits.number(party, first).map(lambda a: local.cumsum(a, 0, False, False))
    begin = arithmetic.mul_public(number, np.int64(2 << column.bits))
    width = column.bits + count_bits(rows.rows) + 3
    return _running_maximum(party, arithmetic.add(begin, one), width), begin


def _running_maximum(party: Party, x: Shared, width: int) -> Shared:
    """The largest value so far: pairs are joined, and joined again, and then what lies between.

    Rounds: those of `maximum` 2 log2(n) times.  Bits sent: those of 2 n of them.
    Source: Brent and Kung 1982.
    """
    n = int(x.shape[0])
    if n <= 1:
        return x

    def at(y: Shared, places: Any) -> Shared:
        return y.map(lambda a: local.gather(a, places))

    even, odd = at(x, np.arange(0, n, 2)), at(x, np.arange(1, n, 2))
    half = n // 2
    pairs = relational.maximum(party, at(even, np.arange(half)), odd, width)
    ends = _running_maximum(party, pairs, width)
    count = (n - 1) // 2  # of those between two pairs
    found = [ends, at(even, np.arange(1))]
    if count:
        before, own = at(ends, np.arange(count)), at(even, np.arange(1, count + 1))
        found.append(relational.maximum(party, before, own, width))
    # (ends stand first, then what is between them)
    places = np.where(np.arange(n) % 2 == 1, np.arange(n) // 2, half + np.arange(n) // 2)
    return at(shapes.concat(found, 0), places)


def _sums(x: Shared) -> tuple[Shared, Shared]:
    """Sums with and without each row.  Local."""
    plain = replace(x, fractional_bits=0)
    now = plain.map(lambda a: local.cumsum(a, 0, False, False))
    return now, arithmetic.sub(now, plain)


def _at_ends(
    party: Party,
    now: Sequence[Shared],
    frames: Sequence[str | int],
    frame: str,
    flag: Shared,
) -> list[Shared]:
    """What has this frame as it is at the last row before the next flag: `broadcast` backwards."""
    if frame not in frames or not int(flag.shape[0]):
        return list(now)
    last = shapes.pad(flag.map(lambda a: local.at(a, np.s_[1:])), [[0, 1]], constant_values=1)
    given = [_backwards(x) for x, own in zip(now, frames, strict=True) if own == frame]
    ends = iter(broadcast(party, _backwards(last), given))
    return [
        _backwards(next(ends)) if own == frame else x for x, own in zip(now, frames, strict=True)
    ]


def _backwards(x: Shared) -> Shared:
    n = int(x.shape[0])
    return x.map(lambda a: local.gather(a, np.arange(n - 1, -1, -1)))


def _start(
    party: Party,
    frame: str | int,
    compared: Sequence[Shared],
    widths: Sequence[int],
    before: Shared,
    start: Shared,
) -> Shared:
    """What there was before a frame's first row."""
    if isinstance(frame, str):
        return start
    by = min(frame, int(before.shape[0]))
    there = _has_neighbor(party, compared, widths, by, "lag")
    difference = arithmetic.sub(keys.shifted(before, by), start)
    return arithmetic.add(start, bits.times(party, there, difference))


def _has_neighbor(
    party: Party, compared: Sequence[Shared], widths: Sequence[int], by: int, how: str
) -> Shared:
    """Whether the row that many rows before or behind is of the same partition."""
    n = int(compared[0].shape[0])
    if by >= n:
        return bits.public(compared[0], np.zeros(n))
    here = [p.map(lambda a: local.at(a, np.s_[by:])) for p in compared]
    other = [p.map(lambda a: local.at(a, np.s_[: n - by])) for p in compared]
    found = keys.equal(party, here, other, widths)
    return shapes.pad(found, [[by, 0]] if how == "lag" else [[0, by]])


def _neighbor(
    party: Party, f: Window, rows: Relation, compared: Sequence[Shared], widths: Sequence[int]
) -> list[Shared]:
    """The value some rows away in the same partition, and whether there is none."""
    assert f.column is not None
    column, n = rows.columns[f.column], rows.rows
    by = min(f.offset, n)
    there = _has_neighbor(party, compared, widths, by, f.how)
    move = keys.shifted if f.how == "lag" else keys.later
    if column.null is not None:
        there = bits.all_of(party, [there, bits.invert(move(column.null, by))])
    return [bits.times(party, there, move(column.values, by)), bits.invert(there)]


def _extreme(party: Party, f: Window, rows: Relation, found: Shared) -> list[Shared]:
    """A value of what `_largest` made of it, and whether there is none."""
    assert f.column is not None
    width = rows.columns[f.column].bits
    value = arithmetic.moved(found, np.int64(-1))
    if f.how == "min":
        value = arithmetic.moved(arithmetic.neg(value), np.int64((1 << width) - 1))
    if not _nullable(f, rows):
        return [value]
    return [value, bits.of(party, equality.zero(party, [(found, width + 1)]))]


def _column(f: Window, rows: Relation, parts: Sequence[Shared]) -> Column:
    null = parts[1] if len(parts) == 2 else None
    if f.how in ("sum", "lag", "lead", *EXTREMES):
        assert f.column is not None
        of = rows.columns[f.column]
        if of.values.ring_bits == 1:
            return Column(parts[0], of.bits, null)
        values = replace(parts[0], fractional_bits=of.values.fractional_bits)
        return Column(values, ANY if f.how == "sum" else of.bits, null)
    return Column(parts[0], count_bits(rows.rows), null)
