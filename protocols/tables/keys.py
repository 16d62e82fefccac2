"""Keys of rows: what orders and groups them, as few numbers of known width.

Invalid rows come last and are all alike, whatever they hold; rows without a value follow those
that have one.  What is compared is cleared first: a sort opens comparisons, which must not depend
on what a range does not hold for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfe_bench.protocols.ring import arithmetic, equality, shapes, small_ring
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared
from tfe_bench.protocols.tables import arrange, bits
from tfe_bench.protocols.tables.arrange import Arrangement, graph
from tfe_bench.protocols.tables.relation import ANY, Column

# A number and how many bits it has; 64: any.
Part = tuple[Shared, int]
_MOST = arrange.MOST_BITS - 1  # and the bit of invalid rows


@dataclass(frozen=True)
class Key:
    """A column to order by; rows without a value come last either way.

    Attributes:
        column: its number.
        descending: the largest first.
    """

    column: int
    descending: bool = False


@dataclass(frozen=True)
class _Field:
    """What a column contributes: static, the widths of its parts."""

    widths: tuple[int, ...]
    descending: bool


def cleared(
    party: Party, valid: Shared, columns: Sequence[tuple[Column, bool]], marked: bool = True
) -> list[Part]:
    """Columns, the most significant first, as parts of up to 62 bits, or of 64.

    Args:
        valid: of the rows.
        columns: with whether they descend.
        marked: the first part says which rows are invalid, so that they come last.

    Rounds: 2 (3 with dealing), one less without NULL bits.  Bits sent: an injection for each part
    and for each column with NULL bits, and what turns bits into numbers.
    """
    fields = [_field(c, descending) for c, descending in columns]
    runs = _runs([w for f in fields for w in f.widths])
    alone = marked and (not runs or sum(runs[0]) > _MOST)

    def parts(valid: Shared, *given: Column) -> list[Shared]:
        numbers = [n for c, f in zip(given, fields, strict=True) for n in _numbers(party, c, f)]
        found, at = [], 0
        for i, run in enumerate(runs):
            key = arrange.composite(numbers[at : at + len(run)], run)
            at += len(run)
            top = np.int64(1 << sum(run)) if marked and i == 0 and not alone else np.int64(0)
            kept = bits.times(party, valid, arithmetic.moved(key, -top))
            found.append(arithmetic.moved(kept, top))
        if alone:
            found.insert(0, bits.number(party, bits.invert(valid)))
        return found

    name = ("parts", marked, tuple((f.widths, f.descending) for f in fields))
    found = graph(party, *name[:1], parts, *name[1:])(valid, *(c for c, _ in columns))
    widths = [sum(run) for run in runs]
    if alone:
        widths.insert(0, 1)
    elif marked:
        widths[0] += 1
    return list(zip(found, widths, strict=True))


def arranged(
    party: Party, valid: Shared, parts: Sequence[Part], profile: str = "local"
) -> Arrangement:
    """The order by parts that `cleared` made, the first of them marked.

    Rounds and bits: those of arrange.by_keys; and of arrange.by_bit where the mark has a part of
    its own.
    """
    if parts[0][1] > 1:
        return arrange.by_keys(party, parts, profile=profile)
    if len(parts) == 1:
        return arrange.by_bit(party, valid)
    first = arrange.by_keys(party, parts[1:], profile=profile)
    (moved,) = first.forward([valid])
    return first.followed_by(arrange.by_bit(party, moved))


def narrowed(parts: Sequence[Part]) -> list[Shared]:
    """Parts in rings of their bits, in which they are compared and travel.  Local."""
    return [x if k < 2 or k == ANY else small_ring.reduced(x, k) for x, k in parts]


def equal(
    party: Party,
    left: Sequence[Shared],
    right: Sequence[Shared],
    widths: Sequence[int],
    also: Sequence[Shared] = (),
) -> Shared:
    """[all parts are equal] AND all of some bits.  Inside of a graph.

    Rounds: 4 (5 with dealing).  Bits sent: those of equality.zero, and 1 to split.
    """
    differences = [(arithmetic.sub(a, b), k) for a, b, k in zip(left, right, widths, strict=True)]
    found: MaskedBits = equality.zero(party, differences, [bits.masked_bits(b) for b in also])
    return bits.of(party, found)


def without_nulls(party: Party, valid: Shared, columns: Sequence[Column]) -> Shared:
    """Valid, and with a value in all of some columns.

    Rounds: 1 (2 with dealing), or none.  Bits sent: those of bits.all_of.
    """
    nulls = [c.null for c in columns if c.null is not None]
    if not nulls:
        return valid
    both = graph(
        party,
        "without_nulls",
        lambda v, *given: bits.all_of(party, [v, *(bits.invert(b) for b in given)]),
    )
    found: Shared = both(valid, *nulls)
    return found


def shifted(x: Shared, by: int) -> Shared:
    """Row i holds what row i - by held; the first ones 0.  Local."""
    n = int(x.shape[0])
    by = min(by, n)
    return shapes.pad(x.map(lambda a: local.at(a, np.s_[: n - by])), [[by, 0]])


def later(x: Shared, by: int) -> Shared:
    """Row i holds what row i + by held; the last ones 0.  Local."""
    by = min(by, int(x.shape[0]))
    return shapes.pad(x.map(lambda a: local.at(a, np.s_[by:])), [[0, by]])


def same_as_before(party: Party, parts: Sequence[Shared], widths: Sequence[int]) -> Shared:
    """Whether a row has the keys of the one before it; never the first.  Inside of a graph.

    Rounds and bits: as `equal`, of n - 1 rows.
    """
    n = int(parts[0].shape[0])
    if n < 2:
        return bits.public(parts[0], np.zeros(n))
    found = equal(
        party,
        [p.map(lambda a: local.at(a, np.s_[1:])) for p in parts],
        [p.map(lambda a: local.at(a, np.s_[: n - 1])) for p in parts],
        widths,
    )
    return shapes.pad(found, [[1, 0]])


def _field(column: Column, descending: bool) -> _Field:
    # Numbers of 63 bits are compared like any others.
    width = 1 if column.values.ring_bits == 1 else column.bits
    width = ANY if width > _MOST else width
    return _Field(((1,) if column.null is not None else ()) + (width,), descending)


def _runs(widths: Sequence[int]) -> list[tuple[int, ...]]:
    """Neighbors that are one number together."""
    found: list[tuple[int, ...]] = []
    for width in widths:
        if found and sum(found[-1]) + width <= _MOST:
            found[-1] += (width,)
        else:
            found.append((width,))
    return found


def _numbers(party: Party, column: Column, field: _Field) -> list[Shared]:
    """The NULL bit, if there is one, and the value, 0 where it is NULL, as numbers."""
    x, width = column.values, field.widths[-1]
    if x.ring_bits == 1:
        if column.null is not None:
            x = bits.all_of(party, [x, bits.invert(column.null)])
        x = bits.number(party, x)
    else:
        x = Shared(x.m, x.l1, x.l2, x.dealer)
        if column.null is not None:
            x = bits.times(party, bits.invert(column.null), x)
    if field.descending:
        top = -1 if width == ANY else (1 << width) - 1
        x = arithmetic.moved(arithmetic.neg(x), np.int64(top))
    return [x] if column.null is None else [bits.number(party, column.null), x]
