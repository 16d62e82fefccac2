"""Filters, orders and what leaves; and what must be made sure of before others rely on it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import RangeError, UsageError
from tfe_bench.protocols.order import select, shuffle
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic, refresh, shapes
from tfe_bench.protocols.ring.checks import check_ring, is_from
from tfe_bench.protocols.session import local, sizes
from tfe_bench.protocols.session.cost import words
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.io import reveal_bits
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared
from tfe_bench.protocols.tables import arrange, bits, keys
from tfe_bench.protocols.tables.arrange import graph
from tfe_bench.protocols.tables.keys import Key
from tfe_bench.protocols.tables.relation import Relation, limit

_RADIX = 4  # of an AND of all rows: 5 bits for each


def filtered(party: Party, relation: Relation, bit: Shared) -> Relation:
    """The rows that have the bit, [n] of Z_2, stay valid.

    Rounds: 1 (2 with dealing).  Bits sent: those of bits.all_of.
    """
    both = graph(party, "filtered", lambda a, b: bits.all_of(party, [a, b]))
    return Relation(relation.columns, both(relation.valid, bit))


def order_by(
    party: Party, relation: Relation, by: Sequence[Key], *, profile: str = "local"
) -> Relation:
    """Rows in order, the first key the most significant; equal ones stay as they are.

    Invalid rows come last, and among the others those without a value.  Rounds and bits: those of
    keys.cleared, keys.arranged, and of shuffle.move for all columns.
    Raises:
        UsageError: no keys, or a column that is not there.
        RangeError: a key is outside of its column's bits.
    """
    if not by:
        raise UsageError("order_by wants keys. Received: none.")
    columns = [(relation.column(k.column), k.descending) for k in by]
    parts = keys.cleared(party, relation.valid, columns)
    order = keys.arranged(party, relation.valid, parts, profile)
    return relation.with_parts(order.forward(relation.parts))


def top(
    party: Party, relation: Relation, by: Sequence[Key], count: int, *, profile: str = "local"
) -> Relation:
    """The first rows of `order_by`, as many as count or all.

    Args:
        count: public, at least 1.

    Rounds and bits: where a selection is expected to compare less than a sort, and the keys are one
    number of up to 62 bits with the mark of invalid rows, those of keys.cleared, arrange.first and
    of shuffle.move for all columns; else those of `order_by`.
    Raises:
        UsageError, RangeError: as order_by; another count.
    """
    if not by or not is_from(count, 1, 2**31):
        raise UsageError(f"top wants keys, and at least 1 row. Received: {list(by)}, {count!r}.")
    n = relation.rows
    if count >= n or not select.saves(n, count, profile):
        return limit(order_by(party, relation, by, profile=profile), count)
    columns = [(relation.column(k.column), k.descending) for k in by]
    parts = keys.cleared(party, relation.valid, columns)
    if len(parts) > 1:
        order = keys.arranged(party, relation.valid, parts, profile)
        return limit(relation.with_parts(order.forward(relation.parts)), count)
    [(key, width)] = parts
    secret, positions = arrange.first(party, key, width, count, profile=profile)
    return relation.with_parts(secret.again(relation.parts, positions))


def deliver(party: Party, relation: Relation, *, ordered: bool = False) -> Relation:
    """What may leave: rows in a random order, invalid ones and NULLs 0, all under new masks.

    The place of a row is data too: only an order that was asked for (`order_by`) may stay.

    Args:
        ordered: the rows have such an order.

    Rounds: 5 (6 with dealing), 2 without the shuffle.  Bits sent: those of shuffle.move, a product
        with a bit for each word, in a ring of its column's bits, and an AND for each bit.
    """

    def cleared(relation: Relation) -> Relation:
        found = list(relation.parts)
        if not ordered and relation.rows > 1:
            found = [*(part for c in relation.columns for part in c.narrow), relation.valid]
            factors = shuffle.draw(party, 1, relation.rows, relation.valid.dealer)
            rows = [shapes.expand_dims(part, 0) for part in found]
            step = shuffle.MAX_COLUMNS
            cut = [rows[i : i + step] for i in range(0, len(rows), step)]
            moved = [c for some in cut for c in shuffle.move(party, factors, some)]
            found = [c.map(lambda a: local.squeeze(a, [0])) for c in moved]
        *moved, valid = found
        given, parts = iter(moved), []
        for column in relation.columns:
            values, there = next(given), valid
            null = None if column.null is None else next(given)
            if null is not None:
                there = bits.all_of(party, [valid, bits.invert(null)])
            parts.append(bits.widened(party, bits.times(party, there, values)))
            if null is not None:
                parts.append(bits.all_of(party, [valid, null]))
        return relation.with_parts([*parts, refresh.refresh(party, valid)])

    delivered: Relation = graph(party, "deliver", cleared, ordered)(relation)
    return delivered


def check_range(party: Party, x: Shared, low: int, high: int, *, what: str = "A column") -> None:
    """Makes sure that every element of [n] is from low to high: opens that one bit.

    All rows are asked, valid or not, whoever has shared them: only then may others rely on it.

    Args:
        low, high: in ring units, at most 2^63 - 1 apart.
        what: for the error.

    Rounds: 4 (5 with dealing) and one for each AND of 4.  Bits sent: two comparisons of 64 bits,
        and about 1 byte per row for the AND.
    Raises:
        UsageError: bounds that are none.
        RangeError: an element is outside.
    """
    check_ring("check_range", x, known=True)
    if not (is_from(low, -(2**63), 2**63 - 1) and is_from(high, low, min(low + 2**63, 2**63) - 1)):
        raise UsageError(
            "check_range wants bounds that are less than 2^63 apart. "
            f"Received: {low!r} and {high!r}."
        )
    n = int(np.prod(x.shape))

    def inside(x: Shared) -> Any:
        # 0 <= v and 0 <= high - low - v, for v = x - low: both are exact, as v is below 2^63 then
        offset = (2**63 - low) % 2**64 - 2**63
        v = arithmetic.moved(x.map(lambda a: local.reshape(a, [n])), np.int64(offset))
        # rows that fill the last word, and are inside
        v = shapes.pad(v, [[0, -n % 64]])
        rest = arithmetic.moved(arithmetic.neg(v), np.int64(high - low))
        signs = compare.msb(party, shapes.concat([v, rest], 0))
        return _open_all(party, logic.invert(convert.mask_bits(party, signs)))

    if n and not _opened(party, graph(party, "check_range", inside, low, high, n)(x)):
        raise RangeError(
            f"{what} holds a number outside of what is declared for it, {low} to {high} in ring "
            "units. Declare a wider range, or none."
        )


def check_unique(
    party: Party, relation: Relation, by: Sequence[int], *, profile: str = "local"
) -> None:
    """Makes sure that no two valid rows have the same key: opens that one bit.

    It answers whatever may be asked of a relation by planting rows: for what an owner has stored
    alone, once.  Rows without a value in a key count as different.

    Rounds and bits: those of keys.cleared, keys.arranged and keys.equal, and of an AND of all rows.
    Raises:
        RangeError: two have.
    """
    columns = [relation.column(i) for i in by]
    n = relation.rows
    if n < 2:
        return
    valid = keys.without_nulls(party, relation.valid, columns)
    parts = keys.cleared(party, valid, [(replace(c, null=None), False) for c in columns])
    order = keys.arranged(party, valid, parts, profile)
    widths = tuple(k for _, k in parts)
    *moved, there = order.forward([*keys.narrowed(parts), valid])

    def once(there: Shared, *moved: Shared) -> Any:
        same = keys.same_as_before(party, moved, widths)
        twice = shapes.pad(bits.all_of(party, [same, there]), [[0, -n % 64]])
        return _open_all(party, bits.masked_bits(bits.invert(twice)))

    if not _opened(party, graph(party, "check_unique", once, widths)(there, *moved)):
        raise RangeError("A key that is declared unique comes twice. Remove what repeats it.")


def _open_all(party: Party, ones: MaskedBits) -> Any:
    """Opens the AND of all bits, whose number is a multiple of 64.  Inside of a graph."""
    width = words(int(sizes.known(ones.n)))
    held = local.reshape(ones.beta if ones.masked is None else ones.masked, [width])
    while width > 1:
        count = -(-width // _RADIX)
        # what is missing is 1: masked by 0
        missing = count * _RADIX - width
        fill = held.like([missing]) if not local.known(held) else None
        if fill is None:
            fill = np.full(missing, 0 if ones.masked is None else -1, np.int64)
        rows = local.reshape(local.concat([held, fill], 0), [_RADIX, count])
        both = logic.all_of_rows(party, rows, _RADIX, 64 * count, ones.dealer)
        ones = convert.mask_bits(party, both)
        width = count
        held = local.reshape(ones.beta if ones.masked is None else ones.masked, [width])
    n, left = 64, replace(ones, n=64)
    while True:
        n //= _RADIX
        parts = [slice(n * i, n * (i + 1)) for i in range(_RADIX)]
        groups = [
            logic.rearrange(left, (n * _RADIX,), operator.itemgetter(part), n) for part in parts
        ]
        found = logic.all_of(party, groups)
        if n == 1:
            return reveal_bits(party, found)
        left = convert.mask_bits(party, found)


def _opened(party: Party, found: Any) -> bool:
    return isinstance(party, Counting) or bool(int(found.numpy()[0]) & 1)
