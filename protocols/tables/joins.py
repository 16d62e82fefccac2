"""Joins by equal keys: the rows of all sides are sorted together, and compared with neighbors.

In the order of (invalid, key, side) the rows that belong to each other stand next to each other, as
sorts are stable and the sides come one after the other.  Rows without a key join nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.order import sort
from tfe_bench.protocols.ring import arithmetic, shapes
from tfe_bench.protocols.ring.checks import check_choice
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange, bits, expand, keys
from tfe_bench.protocols.tables.arrange import Arrangement, graph
from tfe_bench.protocols.tables.relation import Column, Relation

On = Sequence[tuple[int, int]]
KINDS = ("inner", "left", "semi", "anti")


@dataclass(frozen=True, eq=False)
class SortedUnion:
    """The rows of several sides in the order of their keys.

    Attributes:
        order: of all rows.
        parts: what is compared, in that order.
        widths: of the parts.
        valid: rows that count and have a key, in that order.
    """

    order: Arrangement
    parts: tuple[Shared, ...]
    widths: tuple[int, ...]
    valid: Shared


def lookup(
    party: Party,
    left: Relation,
    right: Relation,
    on: On,
    kind: str = "inner",
    *,
    unique: bool = False,
    profile: str = "local",
) -> Relation:
    """Left's rows, in their order, with the columns of right's row that has their key.

    Args:
        on: pairs of columns, of left and of right.
        right: of unique keys; of several with one key the last counts.
        kind: "inner": rows without a match are not valid; "left": they stay, and right's columns
            are NULL there; "semi" and "anti": left's columns alone, of rows with and without one.
        unique: left's keys are unique as well; of rows with one key one finds a match at most.

    Rounds: those of keys.cleared, keys.arranged, and about 20, or 10 of unique keys.  Bits sent:
    those, an equality and two moves of right's columns but the keys; unless keys are unique a
    partition, and two more moves of these and of the keys; "left" an injection for each word.
    Raises:
        UsageError: no pairs, columns of different kinds, an unknown kind.
        RangeError: a key is outside of its column's bits.
    """
    check_choice("kind of join", kind, KINDS, "lookup")
    if right.rows == 0:
        # one that is not valid: of no rows nothing can be copied
        right = right.with_parts([shapes.pad(p, [[0, 1]]) for p in right.parts])
    n, rows = right.rows, right.rows + left.rows
    of_keys = paired([right, left], [(j, i) for i, j in on])
    payload = payload_of(right, on, kind)
    stacked = [shapes.pad(p, [[0, rows - n]]) for p in payload]
    union = sorted_union(party, [right, left], of_keys, profile)
    *moved, side = union.order.forward([*stacked, sides_of([right, left])[0]])
    find = _before if unique else _copied_down
    back = union.order.back(find(party, union, moved, side, n), n)
    return answered(party, left, right, on, back, kind)


def payload_of(right: Relation, on: On, kind: str) -> list[Shared]:
    """What a match brings: of columns that are not compared, which left's rows have; narrow."""
    if kind in ("semi", "anti"):
        return []
    compared = {j for _, j in on}
    return [p for j, c in enumerate(right.columns) if j not in compared for p in c.narrow]


def answered(
    party: Party,
    left: Relation,
    right: Relation,
    on: On,
    answers: Sequence[Shared],
    kind: str,
) -> Relation:
    """The join of left's rows with what they have found.

    Args:
        answers: whether there was a match, and the parts that `payload_of` lists.

    Rounds: 2 (3 with dealing).  Bits sent: an AND, for "left" a product with a bit for each
    column, and what `bits.widened` takes.
    """
    given = () if kind in ("semi", "anti") else right.columns
    kinds = tuple((c.values.ring_bits, c.null is not None) for c in given)
    same = {j: i for i, j in on}

    def ended(left: Relation, match: Shared, *rest: Shared) -> list[Shared]:
        brought = iter(rest)
        found = []
        for j, c in enumerate(given):
            if j in same:
                # where keys match they are equal, and not NULL
                never = bits.public(match, np.zeros(left.rows))
                found += [left.column(same[j]).values, never][: len(c.parts)]
            else:
                found += [next(brought) for _ in c.parts]
        kept = left.valid
        if kind == "left":
            found = _or_null(party, given, match, found)
        else:
            here = bits.invert(match) if kind == "anti" else match
            kept = bits.all_of(party, [left.valid, here])
        return [*(bits.widened(party, x) for x in found), kept]

    about = (kind, kinds, tuple(same.items()))
    parts = graph(party, "ended", ended, *about)(left, *answers)
    columns, at = [], 0
    for j, column in enumerate(given):
        width = 2 if kind == "left" else len(column.parts)
        # (rows that are not valid hold any of left's keys)
        most = max(column.bits, left.column(same[j]).bits) if j in same else column.bits
        columns.append(Column(parts[at], most, parts[at + 1] if width == 2 else None))
        at += width
    return Relation((*left.columns, *columns), parts[at])


def _before(
    party: Party, union: SortedUnion, moved: Sequence[Shared], side: Shared, n: int
) -> list[Shared]:
    """Whether the row before is right's with this one's key, and what that holds."""

    def matched(parts: list[Shared], valid: Shared, side: Shared, *moved: Shared) -> list[Shared]:
        also = [valid, bits.invert(side), keys.shifted(side, 1)]
        match = _pairs(party, parts, union.widths, also, 1)
        return [match, *(keys.shifted(c, 1) for c in moved)]

    found: list[Shared] = graph(party, "matched", matched, union.widths)(
        list(union.parts), union.valid, side, *moved
    )
    return found


def _copied_down(
    party: Party, union: SortedUnion, moved: Sequence[Shared], side: Shared, n: int
) -> list[Shared]:
    """Whether the last of right's n rows above has this one's key, and what that holds."""
    rows = int(side.shape[0])
    split = arrange.by_bit(party, side)
    there = split.forward([*union.parts, *moved])

    def steps(*given: Shared) -> list[Shared]:
        # the first row of right's stands for its having come
        first = bits.public(union.valid, np.arange(rows) == 0)
        return [
            *(expand.steps(c.map(lambda a: local.at(a, np.s_[:n])), rows - n) for c in given),
            first,
        ]

    *copied, come = split.back(graph(party, "steps", steps, n, rows)(*there))

    def matched(parts: list[Shared], copied: list[Shared], valid: Shared, come: Shared) -> Any:
        found = [expand.sums(c) for c in copied]
        last = found[: len(parts)]
        also = [valid, expand.sums(come)]
        match = keys.equal(party, parts, last, union.widths, also)
        return [match, *found[len(parts) :]]

    answers: list[Shared] = graph(party, "looked up", matched, union.widths)(
        list(union.parts), copied, union.valid, come
    )
    return answers


@dataclass(frozen=True, eq=False)
class Alignment:
    """How to bring the common rows of several relations to the front, all in one order.

    Attributes:
        orders: for each relation; moves any columns of its rows.
        valid: which rows, after that, are common: of the relation with the fewest.
    """

    orders: tuple[Arrangement, ...]
    valid: Shared


def align(
    party: Party,
    relations: Sequence[Relation],
    on: Sequence[Sequence[int]],
    *,
    profile: str = "local",
) -> Alignment:
    """Where the rows of 2 to 8 relations go so that those with common keys come first, alike.

    Keys are unique in each relation; whoever repeats one finds some match for it, and what is
    opened is a permutation whatever was given.

    Args:
        on: the key's columns of each relation.

    Rounds: those of keys.cleared, keys.arranged, and about 24.  Bits sent: those, an equality,
    about 16 p (k + 2) bits for p = log2 of all rows, and an opening for each relation.
    Raises:
        UsageError: other numbers of relations or columns, or columns of different kinds.
        RangeError: a key is outside of its column's bits.
    """
    k = len(relations)
    if not 2 <= k <= 8 or len(on) != k:
        raise UsageError(f"align takes 2 to 8 relations, and the keys of each. Received: {k}.")
    sizes = [r.rows for r in relations]
    rows, width = sum(sizes), sort.index_bits(sum(sizes) + 1)
    columns = [[r.column(i) for i in some] for r, some in zip(relations, on, strict=True)]
    union = sorted_union(party, relations, _alike(columns), profile)
    sides = union.order.forward(sides_of(relations))

    def targets(parts: list[Shared], valid: Shared, *sides: Shared) -> list[Shared]:
        run = [keys.shifted(side, k - 1 - i) for i, side in enumerate(sides)]
        last = _pairs(party, parts, union.widths, [valid, *run], k - 1)
        # rows of a match: runs do not overlap, as each has one row of each side
        member = last
        for i in range(1, k):
            member = bits.xor(member, keys.later(last, i))
        ones = bits.number(party, last, width)
        before = ones.map(lambda a: local.cumsum(a, 0, False, False))
        count = before.map(lambda a: local.at(a, np.s_[rows - 1 :]))
        rank = bits.times(party, last, arithmetic.moved(before, np.int64(-1)))
        target = rank
        for i in range(1, k):
            target = arithmetic.add(target, keys.later(rank, i))
        for side in sides:
            alone = bits.all_of(party, [side, bits.invert(member)])
            ones = bits.number(party, alone, width)
            others = ones.map(lambda a: local.cumsum(a, 0, False, False))
            behind = arithmetic.moved(arithmetic.add(others, count), np.int64(-1))
            target = arithmetic.add(target, bits.times(party, alone, behind))
        return [target, member]

    found = graph(party, "align", targets, union.widths, tuple(sizes))(
        list(union.parts), union.valid, *sides
    )
    target, member = union.order.back(found)
    ends = list(itertools.accumulate(sizes))
    cuts = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    orders = tuple(
        arrange.by_target(party, target.map(lambda a, c=c: local.at(a, c))) for c in cuts
    )
    fewest = int(np.argmin(sizes))
    (valid,) = orders[fewest].forward([member.map(lambda a: a[cuts[fewest]])])
    return Alignment(orders, valid)


# ---- the union of several sides


def sorted_union(
    party: Party, relations: Sequence[Relation], columns: Sequence[Sequence[Column]], profile: str
) -> SortedUnion:
    """Rows of all relations, sorted by keys."""
    valid = shapes.concat(
        [
            keys.without_nulls(party, r.valid, some)
            for r, some in zip(relations, columns, strict=True)
        ],
        0,
    )
    of_keys = []
    for several in zip(*columns, strict=True):
        values = shapes.concat([c.values for c in several], 0)
        of_keys.append((Column(values, max(c.bits for c in several)), False))
    parts = keys.cleared(party, valid, of_keys)
    order = keys.arranged(party, valid, parts, profile)
    *moved, there = order.forward([*keys.narrowed(parts), valid])
    return SortedUnion(order, tuple(moved), tuple(k for _, k in parts), there)


def paired(relations: Sequence[Relation], on: On) -> list[list[Column]]:
    """The key columns of each side.

    Raises:
        UsageError: no pairs, or columns that cannot be compared.
    """
    if not on:
        raise UsageError("A join wants pairs of columns with equal keys. Received: none.")
    return _alike([[r.column(pair[i]) for pair in on] for i, r in enumerate(relations)])


def _alike(columns: list[list[Column]]) -> list[list[Column]]:
    """The columns of each side, if they can be compared.

    Raises:
        UsageError: they cannot.
    """
    if not columns[0] or len({len(some) for some in columns}) > 1:
        raise UsageError(
            "A join wants as many key columns of each side. "
            f"Received: {[len(some) for some in columns]}."
        )
    for several in zip(*columns, strict=True):
        kinds = {(c.values.ring_bits, c.values.fractional_bits, c.values.dealer) for c in several}
        # a number of fewer bits begins at 0, one of 64 may be negative: both are what they are
        if len(kinds) > 1:
            raise UsageError(
                "A join compares columns of one kind, scale and dealer. "
                f"Received: {[c.values for c in several]!r}."
            )
    return columns


def sides_of(relations: Sequence[Relation]) -> list[Shared]:
    """For each relation the bits that say which rows of the union are its own; public."""
    of = np.repeat(np.arange(len(relations)), [r.rows for r in relations])
    like = relations[0].valid
    return [bits.public(like, of == i) for i in range(len(relations))]


def _pairs(
    party: Party, parts: Sequence[Shared], widths: Sequence[int], also: Sequence[Shared], by: int
) -> Shared:
    """[a row has the keys of the row `by` before it] AND all of some bits; not the first `by`."""
    n = int(parts[0].shape[0])
    if n <= by:
        return bits.public(parts[0], np.zeros(n))
    here = [p.map(lambda a: local.at(a, np.s_[by:])) for p in parts]
    before = [p.map(lambda a: local.at(a, np.s_[: n - by])) for p in parts]
    found = keys.equal(
        party, here, before, widths, [b.map(lambda a: local.at(a, np.s_[by:])) for b in also]
    )
    return shapes.pad(found, [[by, 0]])


# ---- columns


def _or_null(
    party: Party, columns: Sequence[Column], match: Shared, found: Sequence[Shared]
) -> list[Shared]:
    """Values and NULL bits of columns, NULL without a match."""
    result, at = [], 0
    for column in columns:
        values = bits.times(party, match, found[at])
        if column.null is None:
            null = bits.invert(match)
        else:
            null = bits.invert(bits.all_of(party, [match, bits.invert(found[at + 1])]))
        result += [values, null]
        at += len(column.parts)
    return result
