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
from tfe_bench.protocols.ring.checks import is_from
from tfe_bench.protocols.ring.truncation import truncate
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange, bits, keys
from tfe_bench.protocols.tables.arrange import graph
from tfe_bench.protocols.tables.groups import count_bits, places, running
from tfe_bench.protocols.tables.keys import Key
from tfe_bench.protocols.tables.relation import Column, Relation

# A fraction is a number of these.
PARTS = 1000
MOST_ROWS = 1 << 24


def quantiles(
    party: Party,
    relation: Relation,
    by: Sequence[int],
    column: int,
    fractions: Sequence[int],
    *,
    profile: str = "local",
) -> Relation:
    """For each group the columns `by` and, for each fraction q, the value at rank q (size - 1).

    Where that is no whole number the value below it is taken (as quantile_disc and numpy's "lower"
    do); the median of two is therefore the lower one.  Rows and validity are those of groups.group.

    Args:
        by: the key's columns; none: all valid rows are one group.
        column: without NULLs.
        fractions: in thousandths, 0 to 1000: 500 is the median.

    Rounds: those of keys.cleared and keys.arranged, and about 30.  Bits sent: those, a partition,
    and for each fraction an exact truncation, an equality and an injection.
    Raises:
        UsageError: no fractions, or such a column.
        RangeError: a key is outside of its column's bits.
    """
    of = relation.column(column)
    if of.null is not None or of.values.ring_bits == 1:
        raise UsageError(
            f"quantiles wants numbers without NULLs. Received: column {column}. Filter them first."
        )
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
    moved = order.forward([*keys.narrowed(parts), *key_parts, of.values, relation.valid])
    compared, columns, valid = moved[: len(parts)], moved[len(parts) : -1], moved[-1]

    def beginnings(compared: list[Shared], valid: Shared) -> Any:
        first = bits.invert(keys.same_as_before(party, compared, widths))
        counted = bits.all_of(party, [first, valid])
        return (
            shapes.pad(first, [[0, 1]], constant_values=1),
            shapes.pad(counted, [[0, 1]]),
            places(valid, n + 1),
        )

    key = (n, widths, tuple(fractions))
    flag, counted, index = graph(party, "quantile beginnings", beginnings, *key)(compared, valid)
    split = arrange.by_bit(party, flag)
    begin, counted, flagged = split.forward([index, counted, flag])

    def wanted(begin: Shared, flagged: Shared) -> list[Shared]:
        # the rank of each group's wanted rows among all rows
        size = arithmetic.sub(keys.later(begin, 1), begin)
        found = []
        for q in fractions:
            rank = _share_of(party, arithmetic.moved(size, np.int64(-1)), q, n)
            found.append(arithmetic.add(begin, rank))
        steps = (arithmetic.sub(c, keys.shifted(c, 1)) for c in found)
        return [bits.times(party, flagged, step) for step in steps]

    back = split.back(graph(party, "quantile ranks", wanted, *key)(begin, flagged))

    def chosen(value: Shared, *back: Shared) -> list[Shared]:
        index, found = places(value, n), []
        for steps in back:
            rank = running(steps).map(lambda a: a[1 : n + 1])
            there = equality.zero(party, [(arithmetic.sub(rank, index), count_bits(n))])
            found.append(running(bits.times(party, bits.of(party, there), value)))
        return found

    sums = graph(party, "quantile values", chosen, *key)(columns[-1], *back)
    ends = split.forward([*(shapes.pad(c, [[0, 1]]) for c in columns[:-1]), *sums])
    found, at = [], 0
    for c in of_key:
        own = [p.map(lambda a: a[:n]) for p in ends[at : at + len(c.parts)]]
        found.append(c.with_parts(own))
        at += len(c.parts)
    for total in ends[at:]:
        value = arithmetic.sub(keys.later(total, 1), total)
        found.append(Column(value.map(lambda a: a[:n]), of.bits))
    return Relation(tuple(found), counted.map(lambda a: a[:n]))


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


def _share_of(party: Party, size: Shared, q: int, n: int) -> Shared:
    """floor(q size / 1000), exact for |size| <= n <= 2^24."""
    if q in (0, PARTS):
        return arithmetic.mul_public(size, np.int64(q // PARTS))
    # With 2^drop > 1000 n the rounding up of q 2^drop / 1000 adds less than 1/1000 to a quotient.
    drop = n.bit_length() + 10
    product = arithmetic.mul_public(size, np.int64(-(-q * (1 << drop) // PARTS)), drop)
    # rounds to the nearest: down, of half less
    return truncate(party, arithmetic.moved(product, np.int64(-(1 << drop - 1))), drop, "exact")
