"""Relations ordered, grouped and delivered, by private arrangements of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfe_bench.models.queries.expressions import Fact
from tfe_bench.protocols.order.shuffle import shuffle
from tfe_bench.protocols.ring import arithmetic, full_range, relational, shapes
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange, bits
from tfe_bench.protocols.tables.relation import Column, Relation

_WORD = 64


@dataclass(frozen=True, eq=False)
class Grouped:
    """Groups: keys, what was added up in each, the extremes, and whether it is one."""

    keys: tuple[Column, ...]
    sums: tuple[Shared, ...]
    extremes: tuple[Shared, ...]
    valid: Shared


def all_of(party: Party, several: Sequence[Shared]) -> Shared:
    """AND of any number of bits."""
    while len(several) > 1:
        several = [bits.all_of(party, several[i : i + 6]) for i in range(0, len(several), 6)]
    return several[0]


def deliver(party: Party, rows: Relation, ordered: bool) -> Shared:
    """All words [words, n]: whether a row is one, its values, NULL bits; 0 where there is none.

    Rows in no order are shuffled first, as where a row was says which it was.  Every word leaves
    under a mask that is made here.
    """

    def made(rows: Relation) -> Shared:
        words = [bits.number(party, rows.valid)]
        for column in rows.columns:
            words += [_word(party, part) for part in column.parts]
        if not ordered and rows.rows > 1:
            moved = shuffle(party, [shapes.expand_dims(w, 0) for w in words])
            words = [w.map(lambda a: a[0]) for w in moved]
        # (a word that is 0 or 1 is its own bit modulo 2)
        valid = replace(words[0], bits=1)
        found, at = [bits.number(party, valid)], 1
        for column in rows.columns:
            there = valid
            parts = words[at : at + len(column.parts)]
            if column.null is not None:
                there = bits.all_of(party, [valid, bits.invert(replace(parts[1], bits=1))])
            found.append(bits.times(party, there, parts[0]))
            found += [bits.times(party, valid, part) for part in parts[1:]]
            at += len(column.parts)
        return shapes.stack(found, 0)

    result: Shared = party.function(made)(rows)
    return result


def _word(party: Party, part: Shared) -> Shared:
    return bits.number(party, part) if part.ring_bits == 1 else replace(part, fractional_bits=0)


Key = tuple[Column, bool]


def _keys(
    party: Party, valid: Shared, keys: Sequence[Key], last: Shared | None = None
) -> list[tuple[Shared, int]]:
    """Words to sort by: rows that are none last, NULLs behind values; what is no value is 0."""

    def made(valid: Shared, columns: list[Column]) -> list[Shared]:
        found = [bits.number(party, bits.invert(valid))]
        for column, (_, descending) in zip(columns, keys, strict=True):
            there = valid
            if column.null is not None:
                there = bits.all_of(party, [valid, bits.invert(column.null)])
                found.append(bits.number(party, bits.all_of(party, [valid, column.null])))
            value = column.values
            if value.ring_bits == 1:
                value = bits.number(party, value)
            if descending:  # ~v has the opposite order in any width
                top = -1 if column.bits == _WORD else (1 << column.bits) - 1
                value = arithmetic.moved(arithmetic.neg(value), np.int64(top))
            found.append(bits.times(party, there, replace(value, fractional_bits=0)))
        return found

    words = party.function(made)(valid, [column for column, _ in keys])
    widths = [1]
    for column, _ in keys:
        widths += [1, column.bits] if column.null is not None else [column.bits]
    return list(zip(words, widths, strict=True))


def order_by(party: Party, rows: Relation, keys: Sequence[Key], profile: str) -> Relation:
    """Rows sorted by columns, each ascending or (True) descending; rows that are none last."""
    arranged = arrange.by_keys(party, _keys(party, rows.valid, keys), profile=profile)
    return rows.with_parts(arranged.forward(rows.parts))


def gathered(party: Party, rows: Relation) -> Relation:
    """Valid rows first; where they were cannot be seen in their order."""

    def shuffled(rows: Relation) -> list[Shared]:
        words = [shapes.expand_dims(_word(party, part), 0) for part in rows.parts]
        moved = shuffle(party, words)
        return [
            replace(w.map(lambda a: a[0]), bits=part.bits)
            for w, part in zip(moved, rows.parts, strict=True)
        ]

    if rows.rows < 2:
        return rows
    mixed = rows.with_parts(party.function(shuffled)(rows))
    return rows.with_parts(arrange.by_bit(party, mixed.valid).forward(mixed.parts))


def groups(
    party: Party,
    keys: Relation,
    sums: Sequence[Shared],
    extremes: Sequence[tuple[str, Column, Fact]],
    profile: str = "local",
) -> Grouped:
    """Rows of equal keys together, n rows of which some are groups; NULLs are one group.

    Args:
        sums: numbers to add up in each group, 0 in rows that do not count.
        extremes: what to take the least or the largest of; each takes a sort of its own.
    """
    n = keys.rows
    found = _one_pass(party, keys, sums, None, profile)
    made = []
    for function, column, _ in extremes:
        by = (column, function == "max")
        made.append(_one_pass(party, keys, (), by, profile).extremes[0])
        assert int(made[-1].shape[0]) == n
    return replace(found, extremes=tuple(made))


def _one_pass(
    party: Party, keys: Relation, sums: Sequence[Shared], last: Key | None, profile: str
) -> Grouped:
    """One sort and one partition: sums, or the first value in each group by `last`."""
    n = keys.rows
    columns: list[Key] = [(column, False) for column in keys.columns]
    words = _keys(party, keys.valid, [*columns, *([] if last is None else [last])])
    arranged = arrange.by_keys(party, words, profile=profile)
    own = len(words) - (0 if last is None else len(_parts_of(last[0])))
    value = [] if last is None else [_as_word(party, last[0])]
    moved = arranged.forward([*(w for w, _ in words[:own]), *sums, *value, *keys.parts])
    at_sums, at_parts = own, own + len(sums) + len(value)
    widths = [width for _, width in words[:own]]

    def bounded(moved: list[Shared]) -> tuple[Shared, list[Shared]]:
        """The bit of each group's first row and of the end, and the columns with the end's."""
        same = [
            equal_to_before(party, word, width)
            for word, width in zip(moved[:own], widths, strict=True)
        ]
        first = [bits.public(moved[0], np.ones(1, np.int64))]
        if n > 1:
            first.append(bits.invert(all_of(party, same)))
        first.append(bits.public(moved[0], np.ones(1, np.int64)))
        ended = []
        for word in moved[at_sums : at_sums + len(sums)]:
            total = word.map(lambda a: local.cumsum(a, 0, False, False))
            zero = word.map(lambda a: 0 * a[:1])
            ended.append(shapes.concat([zero, total], 0))
        for word in moved[at_sums + len(sums) :]:
            ended.append(shapes.concat([word, word.map(lambda a: 0 * a[:1])], 0))
        return shapes.concat(first, 0), ended

    first, ended = party.function(bounded)(moved)
    parts = arrange.by_bit(party, first).forward([first, *ended])

    def cut(parts: list[Shared]) -> Grouped:
        begins = parts[1 : 1 + len(sums)]
        totals = [arithmetic.sub(p.map(lambda a: a[1:]), p.map(lambda a: a[:n])) for p in begins]
        rest = [p.map(lambda a: a[:n]) for p in (parts[0], *parts[1 + len(sums) :])]
        best = rest[1 : 1 + len(value)]
        named = keys.with_parts(rest[1 + len(value) :])
        # (the end is a first row too, behind all groups: its row is none)
        within = bits.all_of(party, [rest[0], named.valid])
        return Grouped(named.columns, tuple(totals), tuple(best), within)

    assert at_parts == own + len(sums) + len(value)
    result: Grouped = party.function(cut)(parts)
    return result


def _parts_of(column: Column) -> tuple[int, ...]:
    return (column.bits,) if column.null is None else (1, column.bits)


def _as_word(party: Party, column: Column) -> Shared:
    if column.values.ring_bits != 1:
        return column.values
    word: Shared = party.function(lambda x: bits.number(party, x))(column.values)
    return word


def equal_to_before(party: Party, word: Shared, width: int) -> Shared:
    """Whether each word but the first is the one before it."""
    one, two = word.map(lambda a: a[1:]), word.map(lambda a: a[:-1])
    if width >= _WORD - 1:
        return bits.of(party, full_range.equal(party, one, two))
    return bits.of(party, relational.equal(party, one, two, width + 1))


def dense(
    party: Party,
    keys: Relation,
    sums: Sequence[Shared],
    groups: int,
    facts: Sequence[Fact],
) -> Grouped:
    """A group for each public combination of codes: sums of what has it.

    Args:
        sums: numbers to add up, 0 in rows that do not count; the first counts rows.
    """

    def made(keys: Relation, sums: list[Shared]) -> Grouped:
        code = _code(party, keys, facts)
        n = keys.rows

        def added(a: Any) -> Any:
            return local.reduce_sum(local.reshape(a, [1, n]), [1], False)

        hot = []
        for group in range(groups):
            away = arithmetic.moved(code, np.int64(-group))
            zero = away.map(lambda a: 0 * a)
            hot.append(relational.equal(party, away, zero, groups.bit_length() + 2))
        totals = []
        bit = [bits.of(party, h) for h in hot]
        for word in sums:
            rows = []
            for b in bit:
                chosen = bits.times(party, b, word)
                rows.append(chosen.map(added))
            totals.append(shapes.concat(rows, 0))
        columns = _decoded(code, keys, facts, groups)
        nothing = arithmetic.moved(totals[0], np.int64(-1))
        empty = bits.of(party, relational.negative(party, nothing, n.bit_length() + 1))
        return Grouped(columns, tuple(totals), (), bits.invert(empty))

    result: Grouped = party.function(made)(keys, list(sums))
    return result


def _code(party: Party, keys: Relation, facts: Sequence[Fact]) -> Shared:
    code: Shared | None = None
    for column, fact in zip(keys.columns, facts, strict=True):
        word = column.values
        if word.ring_bits == 1:
            word = bits.number(party, word)
        if code is not None:
            scaled = arithmetic.mul_public(code, np.int64(fact.known.high + 1))
            word = arithmetic.add(scaled, word)
        code = word
    assert code is not None
    return code


def _decoded(
    like: Shared, keys: Relation, facts: Sequence[Fact], groups: int
) -> tuple[Column, ...]:
    """The keys of all groups, which are public."""
    codes = np.arange(groups, dtype=np.int64)
    found: list[Column] = []
    for column, fact in reversed(list(zip(keys.columns, facts, strict=True))):
        codes, own = np.divmod(codes, fact.known.high + 1)
        values: Any = arithmetic.public(like, own)
        if column.values.ring_bits == 1:
            values = replace(values, bits=1)
        found.append(Column(values, column.bits))
    return tuple(reversed(found))
