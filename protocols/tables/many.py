"""Joins of rows that repeat keys on both sides, with a public bound of how many pairs there are.

In the order of keys a left row's partners stand side by side: it knows where they begin, and how
many there are.  It is copied as often (`expand`), and each copy takes the next of them (`gather`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tfe_bench.protocols.order import sort
from tfe_bench.protocols.ring import arithmetic, equality, shapes, small_ring
from tfe_bench.protocols.ring.checks import check_choice
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange, bits, expand, joins, keys, windows
from tfe_bench.protocols.tables.arrange import graph
from tfe_bench.protocols.tables.groups import count_bits
from tfe_bench.protocols.tables.relation import Column, Relation

KINDS = ("inner", "left")


def many_join(
    party: Party,
    left: Relation,
    right: Relation,
    on: joins.On,
    bound: int,
    kind: str = "inner",
    *,
    profile: str = "local",
) -> tuple[Relation, Shared]:
    """All pairs of rows with equal keys: left's columns, then right's; `bound` rows.

    Where there are more pairs no row is valid: a part of them would be a wrong answer.

    Args:
        on: pairs of columns, of left and of right.
        bound: public, 1 to 2^24.
        kind: "inner"; "left": rows of left without a partner stay, once, with NULLs.

    Returns:
        The pairs, and [1] of Z_2: whether there are more.
    Rounds: those of keys.cleared, three sorts, and about 50.  Bits sent: the sorts, of all rows by
    the keys and of each side's rows and `bound` more by numbers of log2 bits; two partitions, an
    equality, and four moves of the columns; "left" an equality with 0 for each row of left, and one
    bit that is moved with its columns.
    Raises:
        UsageError: no pairs of columns, columns of different kinds, another bound or kind.
        RangeError: a key is outside of its column's bits.
    """
    expand.check_bound("many_join", bound)
    check_choice("kind", kind, KINDS, "many_join")
    if right.rows == 0:
        # one that is not valid: of no rows nothing can be taken
        right = right.with_parts([shapes.pad(p, [[0, 1]]) for p in right.parts])
    n, most = right.rows, left.rows * right.rows
    union = joins.sorted_union(
        party, [right, left], joins.paired([right, left], [(j, i) for i, j in on]), profile
    )
    (side,) = union.order.forward(joins.sides_of([right, left])[:1])

    def counted(parts: list[Shared], side: Shared) -> list[Shared]:
        first = bits.invert(keys.same_as_before(party, parts, union.widths))
        count = expand.sums(bits.number(party, side))
        return [first, count, keys.shifted(count, 1)]

    rows = n + left.rows
    width = max(2, sort.index_bits(rows))
    first, count, before = graph(party, "counted", counted, union.widths)(list(union.parts), side)
    (begin,) = windows.broadcast(party, first, [before])

    def partners(valid: Shared, side: Shared, count: Shared, begin: Shared) -> list[Shared]:
        # invalid rows are behind all others, so that no other row counts them
        asks = bits.all_of(party, [valid, bits.invert(side)])
        return [
            bits.times(party, asks, arithmetic.sub(count, begin)),
            small_ring.reduced(arithmetic.moved(count, np.int64(-1)), width),
        ]

    times, place = graph(party, "partners", partners, rows)(union.valid, side, count, begin)
    times, begin, place = union.order.back([times, begin, place])
    times, begin = (c.map(lambda a: local.at(a, np.s_[n:])) for c in (times, begin))

    def starts(times: Shared, begin: Shared) -> Shared:
        return arithmetic.sub(begin, keys.shifted(expand.sums(times), 1))

    own = [*left.parts[:-1]]
    if kind == "left":
        lone, times = graph(party, "lone", _lone(party, n), n)(left.valid, times)
        own.append(lone)
    start = graph(party, "starts", starts)(times, begin)
    copies, there, over = expand.expand(party, [start, *own], times, most, bound, profile=profile)
    match = there if kind == "inner" else None
    if match is None:
        *copies, lone = copies
        match = graph(party, "match", lambda a, b: bits.all_of(party, [a, bits.invert(b)]))(
            there, lone
        )

    def asked(start: Shared, match: Shared) -> Shared:
        return bits.times(party, match, arithmetic.moved(start, np.arange(bound, dtype=np.int64)))

    ranked = arrange.by_target(party, place.map(lambda a: local.at(a, np.s_[:n])))
    partner = expand.gather(
        party,
        ranked.forward(right.parts[:-1]),
        graph(party, "asked", asked, bound)(copies[0], match),
        profile=profile,
    )
    parts = iter([*copies[1:], *partner])
    columns = [
        c.with_parts([next(parts) for _ in c.parts]) for c in (*left.columns, *right.columns)
    ]
    if kind == "left":
        at = len(left.columns)
        nullable = graph(party, "nulls", _nulls(party))(match, columns[at:])
        columns[at:] = nullable
    return held(party, Relation(tuple(columns), there), over), over


def _lone(party: Party, n: int) -> Callable[[Shared, Shared], list[Shared]]:
    """Which rows of left have none of n partners; and how often each is to be there."""

    def found(valid: Shared, times: Shared) -> list[Shared]:
        none = equality.zero(party, [(times, count_bits(n))], [bits.masked_bits(valid)])
        lone = bits.of(party, none)
        return [lone, arithmetic.add(times, bits.number(party, lone))]

    return found


def _nulls(party: Party) -> Callable[[Shared, list[Column]], list[Column]]:
    """Columns that are NULL without a match, whatever is under that."""

    def made(match: Shared, columns: list[Column]) -> list[Column]:
        none = bits.invert(match)
        found = []
        for c in columns:
            null = none if c.null is None else bits.any_of(party, [none, c.null])
            found.append(Column(c.values, c.bits, null))
        return found

    return made


def trim(party: Party, relation: Relation, bound: int) -> tuple[Relation, Shared]:
    """The valid rows as the first ones of `bound` rows, in their order.

    Where there are more no row is valid.

    Returns:
        Them, and [1] of Z_2: whether there are more.
    Rounds: 8.  Bits sent: those of arrange.by_bit, a move of all columns, and an AND.
    Raises:
        UsageError: bound is not 1 to 2^24.
    """
    expand.check_bound("trim", bound)
    if bound >= relation.rows:
        return relation, bits.public(relation.valid, np.zeros(1))
    moved = arrange.by_bit(party, relation.valid).forward(relation.parts)
    over = moved[-1].map(lambda a: local.at(a, np.s_[bound : bound + 1]))
    kept = relation.with_parts([p.map(lambda a: local.at(a, np.s_[:bound])) for p in moved])
    return held(party, kept, over), over


def held(party: Party, relation: Relation, over: Shared) -> Relation:
    """No row is valid where a bit says that there are more than there is room for."""

    def kept(valid: Shared, over: Shared) -> Shared:
        alike = over.map(lambda a: local.tile(a, [relation.rows]))
        return bits.all_of(party, [valid, bits.invert(alike)])

    valid = graph(party, "held", kept, relation.rows)(relation.valid, over)
    return Relation(relation.columns, valid)
