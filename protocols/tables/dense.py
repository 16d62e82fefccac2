"""Groups that are public codes: sums and counts of few of them, without a sort.

A code is masked like any value: code = m - lam modulo G, a power of two.  D deals the one-hot row
of lam, H_j = [lam = j]; code = c exactly where lam = m - c, so that each evaluator's share of
[code = c] is the entry m - c of its row, which it finds by turning the row, by m, in steps of
powers of two that it takes or not: nothing that is read depends on m.  Shares of all rows are added
before they are exchanged, so that only D says anything about each row.

With x = m_x - lam_x also H_j lam_x is dealt, and x [code = c] is m_x H - (H lam_x) there.  The last
entry of each row is what the others leave of 1 and of lam_x, of which the evaluators have shares.

Invalid rows are put into the group of code 0 and taken away from it as a whole.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.order import sort
from tfe_bench.protocols.ring import arithmetic, convert, masked, relational, rotation, small_ring
from tfe_bench.protocols.ring.checks import is_from
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.cost import Cost, packed
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import bits
from tfe_bench.protocols.tables.arrange import graph
from tfe_bench.protocols.tables.groups import Aggregate, check_aggregates
from tfe_bench.protocols.tables.relation import ANY, Column, Relation

MOST_GROUPS = 32
MOST_COLUMNS = 8
# Rows of one graph call, each of which takes G words for each column.
_SLICE = 1 << 16
# Numbers of masks and messages: the one-hot row and its products first, then validity.
_VALID, _OUT = 16, 17


def dense_group(
    party: Party,
    relation: Relation,
    code: int,
    groups: int,
    aggregates: Sequence[Aggregate],
    *,
    least: int = 1,
) -> Relation:
    """A row for each public code from 0: the code, then sums and counts of its valid rows.

    Args:
        code: number of a column of 0 <= code < groups, never NULL.
        groups: 1 to 32.
        aggregates: "sum" and "count", of 8 columns with NULLs twice at most.
        least: groups of fewer rows are not valid.

    Rounds: 3, and what a comparison of each group takes.  Bits sent: for G groups as a power of two
    and a ring of R bits (64, or what sums of narrower columns need) G R per row and for each column
    again, of a third of the rows by each party.
    Raises:
        UsageError: other aggregates, too many columns or groups.
    """
    check_aggregates("dense_group", relation, aggregates)
    if not is_from(groups, 1, MOST_GROUPS) or not is_from(least, 1, 2**62):
        raise UsageError(
            f"dense_group takes 1 to {MOST_GROUPS} groups, of 1 row at least. "
            f"Received: {groups!r}, {least!r}."
        )
    if any(a.how not in ("sum", "count") for a in aggregates):
        raise UsageError(f"dense_group sums and counts. Received: {list(aggregates)}. Use group.")
    of_code = relation.column(code)
    if of_code.null is not None or of_code.values.ring_bits == 1:
        raise UsageError(
            f"dense_group wants a code in every row. Received: column {code}, of bits or with "
            "NULLs. Give what is not there a code of its own."
        )
    n = relation.rows
    numbers = [i for i in dict.fromkeys(a.column for a in aggregates) if i is not None]
    columns: list[Shared] = []
    place: dict[tuple[str, int], int] = {}
    narrow = [1]
    for i in numbers:
        column = relation.column(i)
        summed = any(a.column == i and a.how == "sum" for a in aggregates)
        if summed:
            place["sum", i] = 1 + len(columns)
            narrow.append(column.bits)
            columns.append(_value(party, column))
        if column.null is not None:
            place["count", i] = 1 + len(columns)
            there = graph(party, "there", lambda b: bits.number(party, bits.invert(b)))
            columns.append(there(column.null))
    if len(columns) > MOST_COLUMNS:
        raise UsageError(f"dense_group sums {MOST_COLUMNS} columns. Received: {len(columns)}.")
    turn = max(1, (groups - 1).bit_length())
    width = max(narrow) + sort.index_bits(max(2, n)) + 2
    width = 64 if width >= 64 else width
    totals = _totals(party, of_code.values, relation.valid, columns, turn, width)

    def found(totals: Shared) -> list[Shared]:
        if width < 64:
            # no sum of such columns is negative, or reaches half of the ring
            totals = small_ring.extend(party, totals)
        sums = [
            totals.map(lambda a, i=i: local.at(a, np.s_[i, :groups]))
            for i in range(1 + len(columns))
        ]
        longest = max(sort.index_bits(max(2, n)), int(least).bit_length()) + 2
        short = arithmetic.moved(sums[0], np.int64(-least))
        enough = bits.invert(bits.of(party, relational.negative(party, short, longest)))
        empty = [arithmetic.moved(sums[at], np.int64(-1)) for at in _counts(place)]
        nulls = [bits.of(party, relational.negative(party, e, longest)) for e in empty]
        return [*sums, enough, *nulls]

    key = (groups, len(columns), n, width, least, tuple(sorted(place.items())))
    parts = graph(party, "dense found", found, *key)(totals)
    nulls = dict(zip(_counts(place), parts[2 + len(columns) :], strict=True))
    codes = arithmetic.public_range(parts[0], groups)
    result = [Column(codes, of_code.bits)]
    for a in aggregates:
        counted = place.get(("count", a.column), 0) if a.column is not None else 0
        if a.how == "count":
            result.append(Column(parts[counted], max(1, n.bit_length())))
        else:
            assert a.column is not None
            scale = relation.column(a.column).values.fractional_bits
            values = replace(parts[place["sum", a.column]], fractional_bits=scale)
            result.append(Column(values, ANY, nulls.get(counted)))
    return Relation(tuple(result), parts[1 + len(columns)])


def _counts(place: dict[tuple[str, int], int]) -> list[int]:
    return [at for (how, _), at in place.items() if how == "count"]


def _value(party: Party, column: Column) -> Shared:
    """A column's values, 0 where they are NULL."""
    plain = replace(column.values, fractional_bits=0)
    if column.null is None:
        return plain
    cleared = graph(party, "value", lambda x, b: bits.times(party, bits.invert(b), x))
    found: Shared = cleared(plain, column.null)
    return found


def _totals(
    party: Party,
    code: Shared,
    valid: Shared,
    columns: Sequence[Shared],
    turn: int,
    width: int,
) -> Shared:
    """[1 + columns, 2^turn] of Z_2^width: the number of valid rows of each code, and sums."""
    n, groups, first = int(valid.shape[0]), 1 << turn, valid.dealer

    def kept(code: Shared, valid: Shared) -> Shared:
        small = small_ring.reduced(replace(code, fractional_bits=0), max(2, turn))
        zeros = small.map(local.zeros_like)
        return small_ring.select(party, bits.masked_bits(valid), small, zeros)

    def added_up(share: Any, dealer: int) -> Shared:
        shape = [1 + len(columns), groups]
        if isinstance(party, Counting):
            return party.exchanged(shape, None, share, width=width, dealer=dealer)
        s = party.site("dense_totals", width, dealer=dealer)
        return masked.exchanged(s, share, shape, 0, width=width)

    def joined(shares: list[list[Any]]) -> Shared:
        found = []
        for i, several in enumerate(shares):
            share = None if several[0] is None else sum(several[1:], several[0])
            found.append(rotation.named(party, added_up(share, (first + i) % 3), first))
        return functools.reduce(arithmetic.add, found)

    code = graph(party, "dense codes", kept, turn)(code, valid)
    # each party deals for a third of the rows: the dealer sends nearly all that is sent
    ends = [0, n // 3, 2 * n // 3, n] if n >= 3 else [0, n]
    shares: list[list[Any]] = [[] for _ in ends[1:]]
    # in turns, so that all three lines are in use at a time
    for begin in range(0, max(1, n - ends[-2]), _SLICE):
        for i, (start, end) in enumerate(itertools.pairwise(ends)):

            def sliced(*given: Shared, dealer: int = (first + i) % 3) -> Any:
                own = [rotation.named(party, c, dealer) for c in given]
                return dense_sums(party, own[0], own[1], own[2:], turn, width)

            cut = slice(start + begin, min(end, start + begin + _SLICE))
            if cut.start < cut.stop or not begin:
                part = [c.map(lambda a, s=cut: local.at(a, s)) for c in (code, valid, *columns)]
                shares[i].append(graph(party, "dense", sliced, i, turn, width)(*part))
    total: Shared = graph(party, "dense joined", joined, first, len(columns), turn, width)(shares)
    return total


def dense_sums(
    party: Party, code: Shared, valid: Shared, columns: Sequence[Shared], turn: int, width: int
) -> Any:
    """The evaluators' shares [1 + columns, 2^turn] of counts and sums, not exchanged; None at D.

    Args:
        code: [n] modulo 2^turn; 0 in invalid rows.
        valid: [n] of Z_2.
        columns: [n] of Z_2^64 each.

    Rounds: 0 (1 with dealing).  Bits sent: D 2^turn width per row, and for each column again.
    """
    n, groups = int(valid.shape[0]), 1 << turn
    if isinstance(party, Counting):
        row = packed(n * (groups - 1), width) + packed(n, width)
        cost = Cost((1 + len(columns)) * row, 0, 0, rounds=0, with_dealing=1)
        # an evaluator turns rows in steps of two maps, and adds them up; half for each of its parts
        party.moves(n * groups * ((2 * turn + 3) + (2 * turn + 6) * len(columns)) // 2)
        return party.sent(cost, [1 + len(columns), groups], code, valid, *columns)
    import tensorflow as tf

    s = party.site("dense_sums", n, turn, width, len(columns), dealer=code.dealer)
    some, each = (tf.constant(shape, tf.int64) for shape in ([n, groups - 1], [n]))
    hot = None
    if s.is_dealer:
        lam = local.low_bits(code.l1 + code.l2, turn)
        hot = tf.one_hot(lam, groups, dtype=tf.int64)[:, : groups - 1]
    rows = masked.deal(s, hot, some, 0, 0, width)
    # b = o + (1 - 2 o) beta, and b x the same of x: of these only sums are exchanged
    ones = convert.unpacked(bits.masked_bits(valid), each)
    beta = masked.deal(s, ones, each, _VALID, _VALID, width)
    turned = None if s.is_dealer else _Turn(code.m, turn)
    shares, whole = [], None
    if turned is not None:
        whole = turned(_with_last(rows, tf.ones_like(code.m) if s.is_e2 else None))
        there = (1 - 2 * ones) * beta + (ones if s.is_e2 else 0)
        invalid = (n if s.is_e2 else 0) - tf.reduce_sum(there)
        shares.append(_less(tf.reduce_sum(whole, axis=0), invalid))
    for i, x in enumerate(columns):
        lam = x.l1 + x.l2 if s.is_dealer else None
        of_group = None if lam is None else hot * lam[:, None]
        of_valid = None if lam is None else ones * lam
        dealt = masked.deal(s, of_group, some, 1 + i, 1 + i, width)
        out = masked.deal(s, of_valid, each, _OUT + i, _OUT + i, width)
        if turned is not None:
            lam_rows = turned(_with_last(dealt, x.l1 if s.is_e1 else x.l2))
            sums = tf.reduce_sum(x.m[:, None] * whole - lam_rows, axis=0)
            own = x.m - x.l2 if s.is_e2 else -x.l1
            kept = ones * own + (1 - 2 * ones) * (x.m * beta - out)
            shares.append(_less(sums, tf.reduce_sum(own - kept)))
    return tf.stack(shares) if shares else None


class _Turn:
    """Turns rows [n, 2^turn] so that entry c is the one at m - c."""

    def __init__(self, m: Any, turn: int) -> None:
        self._taken = [
            local.low_bits(local.logical_shift(m, j), 1)[:, None] > 0 for j in range(turn)
        ]

    def __call__(self, rows: Any) -> Any:
        import tensorflow as tf

        found = tf.roll(tf.reverse(rows, [1]), 1, 1)
        for j, taken in enumerate(self._taken):
            found = tf.where(taken, tf.roll(found, 1 << j, 1), found)
        return found


def _with_last(rows: Any, total: Any) -> Any:
    """Rows with one more entry, so that they add up to a share of the total."""
    import tensorflow as tf

    last = -tf.reduce_sum(rows, axis=1)
    return tf.concat([rows, (last if total is None else last + total)[:, None]], 1)


def _less(sums: Any, by: Any) -> Any:
    """The first of some sums less a number."""
    import tensorflow as tf

    return tf.concat([sums[:1] - by, sums[1:]], 0)
