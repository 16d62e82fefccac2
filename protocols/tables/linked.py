"""Lookups in a table whose owner has placed its rows in bins, by an owner who knows which to ask.

A row with a key stands in one of three bins that the key hashes to (cuckoo hashing).  Who owns the
asking rows knows their bins: the order in which each bin is followed by those that ask for it is
its owner's to share, as a private permutation.  Columns of the bins move there as differences,
with zeros for who asks, are added up, and move back: no key is sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.order import sort
from tfe_bench.protocols.ring import arithmetic, shapes, small_ring
from tfe_bench.protocols.ring.checks import check_choice
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange, bits, expand, joins, keys
from tfe_bench.protocols.tables.arrange import Arrangement, graph
from tfe_bench.protocols.tables.relation import Relation

# Bins that each row asks.
ASKED = 3
# Keys of fewer bits have room for one that is none.
_MARKED = 62


def arranged(party: Party, target: Shared) -> Arrangement:
    """The order of bins and of who asks them.

    Rounds and bits: those of arrange.by_target, for numbers of log2 n bits.
    Raises:
        ProtocolError: target is no permutation, which must have been made sure of.
    """
    width = max(2, sort.index_bits(max(2, int(target.shape[0]))))
    return arrange.by_target(party, small_ring.reduced(target, width))


def lookup(
    party: Party,
    left: Relation,
    right: Relation,
    on: tuple[int, int],
    target: Shared,
    kind: str = "inner",
) -> Relation:
    """`joins.lookup` of one key, without a sort.

    Each row finds one match at most, whatever the bins hold and whichever are asked.

    Args:
        left: n rows.
        right: of unique keys, a row for each of b bins; those of empty ones are not valid.
        on: the column of left, and of right.
        target: [b + 3 n] of Z_2^64: where each bin stands, then where the first request of each
            of left's rows does, the second, and the third; a permutation, which must be a fact.

    Rounds: about 17.  Bits sent: for each of b + 3 n rows those of arrange.by_target for log2 of
    these, and two moves of right's columns; for each of left's rows three equalities, and three
    injections of each word of right's other columns.
    Raises:
        UsageError: another size of the permutation, columns of different kinds, an unknown kind.
    """
    check_choice("kind of join", kind, joins.KINDS, "lookup")
    n, bins = left.rows, right.rows
    if list(target.shape) != [bins + ASKED * n] or target.ring_bits != 64:
        raise UsageError(
            f"A link of {n} rows and {bins} bins has {bins + ASKED * n} places. "
            f"Received: {target!r}."
        )
    (asks,), (holds,) = joins.paired([left, right], [on])
    width = max(asks.bits, holds.bits)
    valid = keys.without_nulls(party, left.valid, [asks])
    used = keys.without_nulls(party, right.valid, [holds])
    payload = joins.payload_of(right, [on], kind)
    key, own = (replace(c.values, fractional_bits=0) for c in (asks, holds))
    marked = width < _MARKED and key.ring_bits == 64
    if marked:
        # keys from 1, and 0 in empty bins: a column less to move
        key, own = (arithmetic.moved(c, np.int64(1)) for c in (key, own))
        width += 1
    key, own = keys.narrowed([(key, width), (own, width)])
    if marked:
        own = graph(party, "marked bins", lambda u, c: bits.times(party, u, c))(used, own)
    held = [own, *([] if marked else [used]), *payload]
    order = arranged(party, target)

    def placed(*held: Shared) -> list[Shared]:
        return [expand.steps(c, ASKED * n) for c in held]

    def copied(*moved: Shared) -> list[Shared]:
        return [expand.sums(c) for c in moved]

    there = order.forward(graph(party, "placed in bins", placed, n)(*held))
    back = order.back(graph(party, "copied in bins", copied)(*there), bins)

    def matched(key: Shared, valid: Shared, last: Shared, *rest: Shared) -> list[Shared]:
        found = list(rest)
        also = [_thrice(valid), *([] if marked else [found.pop(0)])]
        every = keys.equal(party, [_thrice(key)], [last], [width], also)
        first, second, third = _each(every, n)
        # one of them at most, though an owner may have stored a key twice, or asked a bin twice
        second = bits.all_of(party, [second, bits.invert(first)])
        third = bits.all_of(party, [third, bits.invert(first), bits.invert(second)])
        once = shapes.concat([first, second, third], 0)
        of_all = [_total(bits.times(party, once, c), n) for c in found]
        return [_total(once, n), *of_all]

    answers = graph(party, "matched in bins", matched, n, marked, width)(key, valid, *back)
    return joins.answered(party, left, right, [on], answers, kind)


def _thrice(x: Shared) -> Shared:
    return x.map(lambda a: local.tile(a, [ASKED]))


def _each(x: Shared, n: int) -> Sequence[Shared]:
    return [x.map(lambda a, i=i: local.at(a, np.s_[i * n : (i + 1) * n])) for i in range(ASKED)]


def _total(x: Shared, n: int) -> Shared:
    first, *others = _each(x, n)
    for other in others:
        first = arithmetic.add(first, other)
    return first
