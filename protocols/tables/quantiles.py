"""Quantiles of groups: the values at public fractions of each group's private number of rows.

After a sort by (key, value) a group's rows stand in the order of their values.  The rows at its
wanted places are found by small equalities of positions, and the sums of what is left of all others
are the values: in the running sums of a group each wanted row counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic, equality, shapes
from tfe_bench.protocols.ring.checks import check_choice, is_from
from tfe_bench.protocols.ring.truncation import truncate
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange, bits, keys
from tfe_bench.protocols.tables.arrange import graph
from tfe_bench.protocols.tables.groups import count_bits, places, running
from tfe_bench.protocols.tables.keys import Key
from tfe_bench.protocols.tables.relation import ANY, Column, Relation

# A fraction is a number of these.
PARTS = 1000
LOWER, DISC, CONT = HOW = ("lower", "disc", "cont")
MOST_ROWS = 1 << 24


def quantiles(
    party: Party,
    relation: Relation,
    by: Sequence[int],
    column: int,
    fractions: Sequence[int],
    *,
    how: str = LOWER,
    profile: str = "local",
) -> Relation:
    """For each group the columns `by` and, for each fraction q, the value at its rank.

    Rows without a value are passed over; a group of nothing else gets 0.  Rows and validity are
    those of groups.group, in its order.

    Args:
        by: the key's columns; none: all valid rows are one group.
        fractions: in thousandths, 0 to 1000: 500 is the median.
        how: "lower" takes rank q (size - 1), rounded down (numpy's "lower"); "disc" the first value
            that a part q of the others does not exceed, rank ceil(q size) - 1 (SQL's
            PERCENTILE_DISC); "cont" 1000 times what lies between the ranks beside q (size - 1)
            (PERCENTILE_CONT), modulo 2^64.

    Rounds: those of keys.cleared and keys.arranged, and about 30.  Bits sent: those, a partition,
    and for each fraction an exact truncation, an equality and an injection; "cont" two of the
    latter, and a product.
    Raises:
        UsageError: no fractions, or such a column.
        RangeError: a key is outside of its column's bits.
    """
    of = relation.column(column)
    if of.values.ring_bits == 1:
        raise UsageError(f"quantiles wants numbers. Received: column {column}, of bits.")
    check_choice("how", how, HOW, "quantiles")
    if not fractions or not all(is_from(q, 0, PARTS) for q in fractions):
        raise UsageError(
            f"quantiles wants fractions from 0 to {PARTS} thousandths. Received: {fractions!r}."
        )
    n = relation.rows
    if n > MOST_ROWS:
        raise UsageError(f"quantiles takes {MOST_ROWS} rows at most. Received: {n}.")
    of_key = [relation.column(i) for i in by]
    parts = keys.cleared(party, relation.valid, [(c, False) for c in of_key])
    more = keys.cleared(party, relation.valid, [(of, False)], False)
    order = keys.arranged(party, relation.valid, [*parts, *more], profile)
    widths = tuple(k for _, k in parts)
    key_parts = [p for c in of_key for p in c.parts]
    nulls = [] if of.null is None else [of.null]
    travel = [*keys.narrowed(parts), *key_parts, of.values, relation.valid, *nulls]
    moved = order.forward(travel)
    at = len(parts) + len(key_parts) + 1
    compared, columns, (valid, *nulls) = moved[: len(parts)], moved[len(parts) : at], moved[at:]

    def beginnings(compared: list[Shared], valid: Shared, *nulls: Shared) -> Any:
        first = bits.invert(keys.same_as_before(party, compared, widths))
        counted = bits.all_of(party, [first, valid])
        return (
            shapes.pad(first, [[0, 1]], constant_values=1),
            shapes.pad(counted, [[0, 1]]),
            places(valid, n + 1),
            # (those with a value come first in each group)
            *(running(bits.number(party, bits.invert(null))) for null in nulls),
        )

    key = (n, widths, tuple(fractions), how)
    made = graph(party, "quantile beginnings", beginnings, *key)(compared, valid, *nulls)
    flag, counted, *index = made
    split = arrange.by_bit(party, flag)
    counted, flagged, *begins = split.forward([counted, flag, *index])

    def wanted(flagged: Shared, begin: Shared, *counts: Shared) -> Any:
        # the rank of each group's wanted rows among all rows
        before = counts[0] if counts else begin
        size = arithmetic.sub(keys.later(before, 1), before)
        last = arithmetic.moved(size, np.int64(-1))
        found, rests = [], []
        for q in fractions:
            if how == DISC:
                rank = _share_of(party, size, q, n, 1 if q else 0)
            else:
                rank = _share_of(party, last, q, n)
            found.append(arithmetic.add(begin, rank))
            if how == CONT:
                found.append(arithmetic.moved(found[-1], np.int64(1)))
                whole = arithmetic.mul_public(rank, np.int64(PARTS))
                rests.append(arithmetic.sub(arithmetic.mul_public(last, np.int64(q)), whole))
        steps = (arithmetic.sub(c, keys.shifted(c, 1)) for c in found)
        return [bits.times(party, flagged, step) for step in steps], rests

    ranks, rests = graph(party, "quantile ranks", wanted, *key)(flagged, *begins)
    back = split.back(ranks)

    def chosen(value: Shared, nulls: list[Shared], *back: Shared) -> list[Shared]:
        index, found = places(value, n), []
        # (a group of no value has its first place all the same)
        values = [bits.invert(null) for null in nulls]
        for steps in back:
            rank = running(steps).map(lambda a: local.at(a, np.s_[1 : n + 1]))
            there = equality.zero(party, [(arithmetic.sub(rank, index), count_bits(n))])
            bit = bits.all_of(party, [bits.of(party, there), *values])
            found.append(running(bits.times(party, bit, value)))
        return found

    sums = graph(party, "quantile values", chosen, *key)(columns[-1], nulls, *back)
    ends = split.forward([*(shapes.pad(c, [[0, 1]]) for c in columns[:-1]), *sums])
    found, at = [], 0
    for c in of_key:
        own = [p.map(lambda a: local.at(a, np.s_[:n])) for p in ends[at : at + len(c.parts)]]
        found.append(c.with_parts(own))
        at += len(c.parts)
    values = [
        arithmetic.sub(keys.later(t, 1), t).map(lambda a: local.at(a, np.s_[:n]))
        for t in ends[at : at + len(ranks)]
    ]
    if how == CONT:
        rests = [r.map(lambda a: local.at(a, np.s_[:n])) for r in rests]
        values = graph(party, "between", lambda v, r: _between(party, v, r), *key)(values, rests)
    width = ANY if how == CONT else of.bits
    found += [Column(value, width) for value in values]
    return Relation(tuple(found), counted.map(lambda a: local.at(a, np.s_[:n])))


def _between(party: Party, values: Sequence[Shared], rests: Sequence[Shared]) -> list[Shared]:
    """PARTS times what lies so far between each two values."""
    found = []
    for low, high, rest in zip(values[::2], values[1::2], rests, strict=True):
        more = arithmetic.mul(party, arithmetic.sub(high, low), rest)
        found.append(arithmetic.add(arithmetic.mul_public(low, np.int64(PARTS)), more))
    return found


def at_ranks(
    party: Party, relation: Relation, by: Key, ranks: Sequence[int], *, profile: str = "local"
) -> Relation:
    """The rows of some public ranks in the order of a key, without a sort of the others.

    Invalid rows come last, and before them those without a value: the median of all rows is at
    rank (rows - 1) // 2 only where all of them are known to be valid.  Which of equal keys has a
    rank is as random as their order.

    Args:
        by: of 61 bits or less; by wider ones all rows are sorted.
        ranks: each from 0 to rows - 1.

    Rounds and bits: those of keys.cleared, arrange.at_ranks, and of shuffle.move for all columns.
    Raises:
        UsageError: ranks that are not there.
        RangeError: a key is outside of its column's bits.
    """
    n = relation.rows
    if not ranks or not all(is_from(r, 0, n - 1) for r in ranks):
        raise UsageError(f"at_ranks wants ranks of {n} rows. Received: {list(ranks)!r}.")
    columns = [(relation.column(by.column), by.descending)]
    parts = keys.cleared(party, relation.valid, columns)
    if len(parts) > 1 or n < 2:
        order = keys.arranged(party, relation.valid, parts, profile)
        at = np.asarray(ranks, np.int64)
        moved = order.forward(relation.parts)
        return relation.with_parts([c.map(lambda a: local.gather(a, at)) for c in moved])
    (key, width), *_ = parts
    secret, positions = arrange.at_ranks(party, key, width, ranks, profile=profile)
    return relation.with_parts(secret.again(relation.parts, positions))


def _share_of(party: Party, size: Shared, q: int, n: int, less: int = 0) -> Shared:
    """floor((q size - less) / 1000), exact for 0 <= size <= n <= 2^24 and less of 0 or 1.

    For |size| <= n it is off by one at most.
    """
    if q in (0, PARTS):
        return arithmetic.moved(arithmetic.mul_public(size, np.int64(q // PARTS)), np.int64(-less))
    # With 2^drop > 1000 (n + 1) what is rounded up adds less than 1/1000 to a quotient.
    drop = n.bit_length() + 10
    product = arithmetic.mul_public(size, np.int64(-(-q * (1 << drop) // PARTS)), drop)
    product = arithmetic.moved(product, np.int64(-(less << drop) // PARTS + less))
    # rounds to the nearest: down, of half less
    return truncate(party, arithmetic.moved(product, np.int64(-(1 << drop - 1))), drop, "exact")
