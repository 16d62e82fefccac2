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
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange, bits, expand, keys
from tfe_bench.protocols.tables.arrange import PrivatePermutation, cached_graph
from tfe_bench.protocols.tables.relation import Column, Relation

KeyPairs = Sequence[tuple[int, int]]
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

    permutation: PrivatePermutation
    parts: tuple[Shared, ...]
    widths: tuple[int, ...]
    valid: Shared


def lookup_join(
    party: Party,
    left: Relation,
    right: Relation,
    on: KeyPairs,
    kind: str = "inner",
    *,
    is_unique: bool = False,
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
    key_columns = pair_keys([right, left], [(j, i) for i, j in on])
    payload = list_payload(right, on, kind)
    padded_payload = [shapes.pad(p, [[0, rows - n]]) for p in payload]
    union = sort_union(party, [right, left], key_columns, profile)
    *sorted_payload, side = union.permutation.apply([*padded_payload, side_bits([right, left])[0]])
    find_matches = _match_previous if is_unique else _match_last
    answers = union.permutation.apply_inverse(
        find_matches(party, union, sorted_payload, side, n), n
    )
    return build_join(party, left, right, on, answers, kind)


def list_payload(right: Relation, on: KeyPairs, kind: str) -> list[Shared]:
    """What a match brings: of columns that are not compared, which left's rows have; narrow."""
    if kind in ("semi", "anti"):
        return []
    key_numbers = {j for _, j in on}
    return [p for j, c in enumerate(right.columns) if j not in key_numbers for p in c.narrow_parts]


def build_join(
    party: Party,
    left: Relation,
    right: Relation,
    on: KeyPairs,
    answers: Sequence[Shared],
    kind: str,
) -> Relation:
    """The join of left's rows with what they have found.

    Args:
        answers: whether there was a match, and the parts that `payload_of` lists.

    Rounds: 2 (3 with dealing).  Bits sent: an AND, for "left" a product with a bit for each
    column, and what `bits.widened` takes.
    """
    right_columns = () if kind in ("semi", "anti") else right.columns
    kinds = tuple((c.values.ring_bits, c.null is not None) for c in right_columns)
    left_key_numbers = {j: i for i, j in on}

    def combine_sides(left: Relation, match: Shared, *matched_parts: Shared) -> list[Shared]:
        remaining_parts = iter(matched_parts)
        right_parts = []
        for j, c in enumerate(right_columns):
            if j in left_key_numbers:
                # where keys match they are equal, and not NULL
                no_nulls = bits.public_bits(match, np.zeros(left.rows))
                right_parts += [left.column(left_key_numbers[j]).values, no_nulls][: len(c.parts)]
            else:
                right_parts += [next(remaining_parts) for _ in c.parts]
        is_valid = left.valid
        if kind == "left":
            right_parts = _null_unmatched(party, right_columns, match, right_parts)
        else:
            is_kept = bits.invert(match) if kind == "anti" else match
            is_valid = bits.all_of(party, [left.valid, is_kept])
        return [*(bits.extend_values(party, x) for x in right_parts), is_valid]

    key_parts = (kind, kinds, tuple(left_key_numbers.items()))
    parts = cached_graph(party, "ended", combine_sides, *key_parts)(left, *answers)
    columns, at = [], 0
    for j, column in enumerate(right_columns):
        width = 2 if kind == "left" else len(column.parts)
        # (rows that are not valid hold any of left's keys)
        max_bits = (
            max(column.bits, left.column(left_key_numbers[j]).bits)
            if j in left_key_numbers
            else column.bits
        )
        columns.append(Column(parts[at], max_bits, parts[at + 1] if width == 2 else None))
        at += width
    return Relation((*left.columns, *columns), parts[at])


def _match_previous(
    party: Party, union: SortedUnion, sorted_payload: Sequence[Shared], side: Shared, n: int
) -> list[Shared]:
    """Whether the row before is right's with this one's key, and what that holds."""

    def match_rows(
        parts: list[Shared], valid: Shared, side: Shared, *sorted_payload: Shared
    ) -> list[Shared]:
        conditions = [valid, bits.invert(side), keys.shift_down(side, 1)]
        match = _match_offset(party, parts, union.widths, conditions, 1)
        return [match, *(keys.shift_down(c, 1) for c in sorted_payload)]

    answers: list[Shared] = cached_graph(party, "matched", match_rows, union.widths)(
        list(union.parts), union.valid, side, *sorted_payload
    )
    return answers


def _match_last(
    party: Party, union: SortedUnion, sorted_payload: Sequence[Shared], side: Shared, n: int
) -> list[Shared]:
    """Whether the last of right's n rows above has this one's key, and what that holds."""
    rows = int(side.shape[0])
    partition = arrange.partition_by_bit(party, side)
    partitioned = partition.apply([*union.parts, *sorted_payload])

    def difference_columns(*side_columns: Shared) -> list[Shared]:
        # the first row of right's stands for its having come
        first_row = bits.public_bits(union.valid, np.arange(rows) == 0)
        return [
            *(
                expand.difference_rows(
                    c.map(lambda a: tensor_ops.strided_slice(a, np.s_[:n])), rows - n
                )
                for c in side_columns
            ),
            first_row,
        ]

    *column_steps, first_steps = partition.apply_inverse(
        cached_graph(party, "steps", difference_columns, n, rows)(*partitioned)
    )

    def match_rows(
        parts: list[Shared], column_steps: list[Shared], valid: Shared, first_steps: Shared
    ) -> Any:
        copied_columns = [expand.accumulate_rows(c) for c in column_steps]
        last_keys = copied_columns[: len(parts)]
        conditions = [valid, expand.accumulate_rows(first_steps)]
        match = keys.compare_keys(party, parts, last_keys, union.widths, conditions)
        return [match, *copied_columns[len(parts) :]]

    answers: list[Shared] = cached_graph(party, "looked up", match_rows, union.widths)(
        list(union.parts), column_steps, union.valid, first_steps
    )
    return answers


@dataclass(frozen=True, eq=False)
class RecordLinkage:
    """How to bring the common rows of several relations to the front, all in one order.

    Attributes:
        orders: for each relation; moves any columns of its rows.
        valid: which rows, after that, are common: of the relation with the fewest.
    """

    permutations: tuple[PrivatePermutation, ...]
    valid: Shared


def link_records(
    party: Party,
    relations: Sequence[Relation],
    on: Sequence[Sequence[int]],
    *,
    profile: str = "local",
) -> RecordLinkage:
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
    columns = [
        [r.column(i) for i in key_numbers] for r, key_numbers in zip(relations, on, strict=True)
    ]
    union = sort_union(party, relations, _check_comparable(columns), profile)
    sides = union.permutation.apply(side_bits(relations))

    def compute_targets(parts: list[Shared], valid: Shared, *sides: Shared) -> list[Shared]:
        side_rows = [keys.shift_down(side, k - 1 - i) for i, side in enumerate(sides)]
        last_of_match = _match_offset(party, parts, union.widths, [valid, *side_rows], k - 1)
        # rows of a match: runs do not overlap, as each has one row of each side
        member = last_of_match
        for i in range(1, k):
            member = bits.xor(member, keys.shift_up(last_of_match, i))
        ones = bits.to_number(party, last_of_match, width)
        running_count = ones.map(lambda a: tensor_ops.cumsum(a, 0, False, False))
        count = running_count.map(lambda a: tensor_ops.strided_slice(a, np.s_[rows - 1 :]))
        rank = bits.multiply_by_bit(
            party, last_of_match, arithmetic.add_constant(running_count, np.int64(-1))
        )
        target = rank
        for i in range(1, k):
            target = arithmetic.add(target, keys.shift_up(rank, i))
        for side in sides:
            is_unmatched = bits.all_of(party, [side, bits.invert(member)])
            ones = bits.to_number(party, is_unmatched, width)
            unmatched_count = ones.map(lambda a: tensor_ops.cumsum(a, 0, False, False))
            unmatched_target = arithmetic.add_constant(
                arithmetic.add(unmatched_count, count), np.int64(-1)
            )
            target = arithmetic.add(
                target, bits.multiply_by_bit(party, is_unmatched, unmatched_target)
            )
        return [target, member]

    targets_and_members = cached_graph(party, "align", compute_targets, union.widths, tuple(sizes))(
        list(union.parts), union.valid, *sides
    )
    target, member = union.permutation.apply_inverse(targets_and_members)
    side_ends = list(itertools.accumulate(sizes))
    side_slices = [slice(end - size, end) for end, size in zip(side_ends, sizes, strict=True)]
    permutations = tuple(
        arrange.permute_by_target(party, target.map(lambda a, c=c: tensor_ops.strided_slice(a, c)))
        for c in side_slices
    )
    smallest_side = int(np.argmin(sizes))
    (valid,) = permutations[smallest_side].apply(
        [member.map(lambda a: a[side_slices[smallest_side]])]
    )
    return RecordLinkage(permutations, valid)


# ---- the union of several sides


def sort_union(
    party: Party, relations: Sequence[Relation], columns: Sequence[Sequence[Column]], profile: str
) -> SortedUnion:
    """Rows of all relations, sorted by keys."""
    valid = shapes.concat(
        [
            keys.exclude_nulls(party, r.valid, side_columns)
            for r, side_columns in zip(relations, columns, strict=True)
        ],
        0,
    )
    key_columns = []
    for same_columns in zip(*columns, strict=True):
        values = shapes.concat([c.values for c in same_columns], 0)
        key_columns.append((Column(values, max(c.bits for c in same_columns)), False))
    parts = keys.clear_keys(party, valid, key_columns)
    permutation = keys.sort_by_parts(party, valid, parts, profile)
    *sorted_parts, sorted_valid = permutation.apply([*keys.narrow_parts(parts), valid])
    return SortedUnion(permutation, tuple(sorted_parts), tuple(k for _, k in parts), sorted_valid)


def pair_keys(relations: Sequence[Relation], on: KeyPairs) -> list[list[Column]]:
    """The key columns of each side.

    Raises:
        UsageError: no pairs, or columns that cannot be compared.
    """
    if not on:
        raise UsageError("A join wants pairs of columns with equal keys. Received: none.")
    return _check_comparable([[r.column(pair[i]) for pair in on] for i, r in enumerate(relations)])


def _check_comparable(columns: list[list[Column]]) -> list[list[Column]]:
    """The columns of each side, if they can be compared.

    Raises:
        UsageError: they cannot.
    """
    if not columns[0] or len({len(side_columns) for side_columns in columns}) > 1:
        raise UsageError(
            "A join wants as many key columns of each side. "
            f"Received: {[len(side_columns) for side_columns in columns]}."
        )
    for same_columns in zip(*columns, strict=True):
        kinds = {
            (c.values.ring_bits, c.values.fractional_bits, c.values.dealer) for c in same_columns
        }
        # a number of fewer bits begins at 0, one of 64 may be negative: both are what they are
        if len(kinds) > 1:
            raise UsageError(
                "A join compares columns of one kind, scale and dealer. "
                f"Received: {[c.values for c in same_columns]!r}."
            )
    return columns


def side_bits(relations: Sequence[Relation]) -> list[Shared]:
    """For each relation the bits that say which rows of the union are its own; public."""
    side_numbers = np.repeat(np.arange(len(relations)), [r.rows for r in relations])
    template = relations[0].valid
    return [bits.public_bits(template, side_numbers == i) for i in range(len(relations))]


def _match_offset(
    party: Party,
    parts: Sequence[Shared],
    widths: Sequence[int],
    conditions: Sequence[Shared],
    offset: int,
) -> Shared:
    """[a row has the keys of the row `by` before it] AND all of some bits; not the first `by`."""
    n = int(parts[0].shape[0])
    if n <= offset:
        return bits.public_bits(parts[0], np.zeros(n))
    current = [p.map(lambda a: tensor_ops.strided_slice(a, np.s_[offset:])) for p in parts]
    previous = [p.map(lambda a: tensor_ops.strided_slice(a, np.s_[: n - offset])) for p in parts]
    is_equal = keys.compare_keys(
        party,
        current,
        previous,
        widths,
        [b.map(lambda a: tensor_ops.strided_slice(a, np.s_[offset:])) for b in conditions],
    )
    return shapes.pad(is_equal, [[offset, 0]])


# ---- columns


def _null_unmatched(
    party: Party, columns: Sequence[Column], match: Shared, matched_parts: Sequence[Shared]
) -> list[Shared]:
    """Values and NULL bits of columns, NULL without a match."""
    result, at = [], 0
    for column in columns:
        values = bits.multiply_by_bit(party, match, matched_parts[at])
        if column.null is None:
            null = bits.invert(match)
        else:
            null = bits.invert(bits.all_of(party, [match, bits.invert(matched_parts[at + 1])]))
        result += [values, null]
        at += len(column.parts)
    return result
