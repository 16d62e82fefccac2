"""Joins by equal keys: the rows of all sides are sorted together and compared with their neighbors.

In the order of (invalid, key, side) matching rows are neighbors, as sorts are stable and the sides
are concatenated. Rows with NULL keys match nothing.
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
class SortedKeyUnion:
    """The rows of several sides in the order of their keys.

    Attributes:
        permutation: of all rows.
        parts: the compared key parts, in that order.
        widths: of the parts.
        valid: valid rows with a key, in that order.
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
    """Return the left rows, in their order, with the columns of the right row of the same key.

    Args:
        on: pairs of columns, of left and of right.
        right: with unique keys; among rows with equal keys the last one counts.
        kind: "inner": rows without a match are not valid; "left": they stay valid, with NULL in the
            right columns; "semi" and "anti": left columns alone, of rows with and without a match.
        is_unique: left's keys are unique as well; among rows with one key at most one finds a
            match.

    Rounds: those of keys.clear_keys, keys.sort_rows_by_key_parts, and about 20, or 10 for unique
    keys. Bits
    sent: those, an equality and two moves of right's non-key columns; unless keys are unique a
    partition, and two more moves of these and of the keys; for "left" an injection for each word.
    Raises:
        UsageError: no pairs, columns of different types, an unknown kind.
        RangeError: a key is outside its column's bits.
    """
    check_choice("kind of join", kind, KINDS, "lookup")
    if right.rows == 0:
        # An empty right side gets one invalid row, as copying requires a row.
        right = right.with_parts([shapes.pad(p, [[0, 1]]) for p in right.parts])
    n, rows = right.rows, right.rows + left.rows
    key_columns = pair_join_keys([right, left], [(j, i) for i, j in on])
    payload = list_join_payload(right, on, kind)
    padded_payload = [shapes.pad(p, [[0, rows - n]]) for p in payload]
    union = sort_rows_of_all_sides(party, [right, left], key_columns, profile)
    *sorted_payload, side = union.permutation.apply(
        [*padded_payload, join_side_bits([right, left])[0]]
    )
    find_matches = _match_previous if is_unique else _match_last
    answers = union.permutation.apply_inverse(
        find_matches(party, union, sorted_payload, side, n), n
    )
    return build_join(party, left, right, on, answers, kind)


def list_join_payload(right: Relation, on: KeyPairs, kind: str) -> list[Shared]:
    """Return the narrow parts of right's non-key columns, which a match copies to left rows."""
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
    """Join the left rows with the parts of their matches.

    Args:
        answers: a bit for each left row that has a match, and the parts of `list_join_payload`.

    Rounds: 2 online, 3 in total. Bits sent: an AND, for "left" a product with a bit for each
    column, and those of `bits.extend_column_values`.
    """
    right_columns = () if kind in ("semi", "anti") else right.columns
    kinds = tuple((c.values.ring_bits, c.null is not None) for c in right_columns)
    left_key_numbers = {j: i for i, j in on}

    def combine_join_sides(left: Relation, match: Shared, *matched_parts: Shared) -> list[Shared]:
        remaining_parts = iter(matched_parts)
        right_parts = []
        for j, c in enumerate(right_columns):
            if j in left_key_numbers:
                # Matching keys are equal and not NULL.
                no_nulls = bits.share_public_row_bits(match, np.zeros(left.rows))
                right_parts += [left.column(left_key_numbers[j]).values, no_nulls][: len(c.parts)]
            else:
                right_parts += [next(remaining_parts) for _ in c.parts]
        is_valid = left.valid
        if kind == "left":
            right_parts = _null_unmatched(party, right_columns, match, right_parts)
        else:
            is_kept = bits.invert(match) if kind == "anti" else match
            is_valid = bits.all_of(party, [left.valid, is_kept])
        return [*(bits.extend_column_values(party, x) for x in right_parts), is_valid]

    key_parts = (kind, kinds, tuple(left_key_numbers.items()))
    parts = cached_graph(party, "ended", combine_join_sides, *key_parts)(left, *answers)
    columns, at = [], 0
    for j, column in enumerate(right_columns):
        width = 2 if kind == "left" else len(column.parts)
        # Invalid rows hold arbitrary keys of the left side.
        max_bits = (
            max(column.bits, left.column(left_key_numbers[j]).bits)
            if j in left_key_numbers
            else column.bits
        )
        columns.append(Column(parts[at], max_bits, parts[at + 1] if width == 2 else None))
        at += width
    return Relation((*left.columns, *columns), parts[at])


def _match_previous(
    party: Party, union: SortedKeyUnion, sorted_payload: Sequence[Shared], side: Shared, n: int
) -> list[Shared]:
    """Match each row with the previous row, if that is a right row with the same key.

    Returns:
        The bits of rows with a match, and the payload of the matching rows.
    """

    def match_rows(
        parts: list[Shared], valid: Shared, side: Shared, *sorted_payload: Shared
    ) -> list[Shared]:
        conditions = [valid, bits.invert(side), keys.shift_rows_down(side, 1)]
        match = _match_join_row_at_offset(party, parts, union.widths, conditions, 1)
        return [match, *(keys.shift_rows_down(c, 1) for c in sorted_payload)]

    answers: list[Shared] = cached_graph(party, "matched", match_rows, union.widths)(
        list(union.parts), union.valid, side, *sorted_payload
    )
    return answers


def _match_last(
    party: Party, union: SortedKeyUnion, sorted_payload: Sequence[Shared], side: Shared, n: int
) -> list[Shared]:
    """Match each row with the last preceding right row, if that has the same key.

    Returns:
        The bits of rows with a match, and the payload of the matching rows.
    """
    rows = int(side.shape[0])
    partition = arrange.partition_by_bit(party, side)
    partitioned = partition.apply([*union.parts, *sorted_payload])

    def subtract_previous_join_rows(*side_columns: Shared) -> list[Shared]:
        # The first right row marks that a right row precedes.
        first_row = bits.share_public_row_bits(union.valid, np.arange(rows) == 0)
        return [
            *(
                expand.subtract_previous_rows(
                    c.map(lambda a: tensor_ops.strided_slice(a, np.s_[:n])), rows - n
                )
                for c in side_columns
            ),
            first_row,
        ]

    *column_steps, first_steps = partition.apply_inverse(
        cached_graph(party, "steps", subtract_previous_join_rows, n, rows)(*partitioned)
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
    """Permutations that bring the common rows of several relations to the front, in one order.

    Attributes:
        permutations: for each relation; they apply to any columns of its rows.
        valid: bits of common rows, after that, for the relation with the fewest rows.
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
    """Find the common rows of 2 to 8 relations, and permutations that put them first in one order.

    Keys are expected to be unique in each relation. If an owner repeats a key, it still finds some
    match, and the opened vectors are permutations for any input.

    Args:
        on: the key columns of each relation.

    Rounds: those of keys.clear_keys, keys.sort_rows_by_key_parts, and about 24. Bits sent: those,
    an equality, about 16 p (k + 2) bits for p = log2 of all rows, and an opening for each relation.
    Raises:
        UsageError: other numbers of relations or columns, or columns of different types.
        RangeError: a key is outside its column's bits.
    """
    k = len(relations)
    if not 2 <= k <= 8 or len(on) != k:
        raise UsageError(
            f"align expects 2 to 8 relations, and the keys of each. Received: {k}.",
            code="number-out-of-range",
            operation="align",
            received=k,
            expected="2 to 8",
        )
    sizes = [r.rows for r in relations]
    rows, width = sum(sizes), sort.sort_index_bits(sum(sizes) + 1)
    columns = [
        [r.column(i) for i in key_numbers] for r, key_numbers in zip(relations, on, strict=True)
    ]
    union = sort_rows_of_all_sides(party, relations, _check_comparable(columns), profile)
    sides = union.permutation.apply(join_side_bits(relations))

    def compute_linked_row_targets(
        parts: list[Shared], valid: Shared, *sides: Shared
    ) -> list[Shared]:
        side_rows = [keys.shift_rows_down(side, k - 1 - i) for i, side in enumerate(sides)]
        last_of_match = _match_join_row_at_offset(
            party, parts, union.widths, [valid, *side_rows], k - 1
        )
        # Rows of a match: runs do not overlap, as each has one row of each side.
        member = last_of_match
        for i in range(1, k):
            member = bits.xor(member, keys.shift_rows_up(last_of_match, i))
        ones = bits.to_number(party, last_of_match, width)
        running_count = ones.map(lambda a: tensor_ops.cumsum(a, 0, False, False))
        count = running_count.map(lambda a: tensor_ops.strided_slice(a, np.s_[rows - 1 :]))
        rank = bits.multiply_by_bit(
            party, last_of_match, arithmetic.add_constant(running_count, np.int64(-1))
        )
        target = rank
        for i in range(1, k):
            target = arithmetic.add(target, keys.shift_rows_up(rank, i))
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

    targets_and_members = cached_graph(
        party, "align", compute_linked_row_targets, union.widths, tuple(sizes)
    )(list(union.parts), union.valid, *sides)
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


# ---- union of several sides


def sort_rows_of_all_sides(
    party: Party, relations: Sequence[Relation], columns: Sequence[Sequence[Column]], profile: str
) -> SortedKeyUnion:
    """Sort the rows of all relations by keys."""
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
    permutation = keys.sort_rows_by_key_parts(party, valid, parts, profile)
    *sorted_parts, sorted_valid = permutation.apply([*keys.narrow_key_parts(parts), valid])
    return SortedKeyUnion(
        permutation, tuple(sorted_parts), tuple(k for _, k in parts), sorted_valid
    )


def pair_join_keys(relations: Sequence[Relation], on: KeyPairs) -> list[list[Column]]:
    """Return the key columns of each side.

    Raises:
        UsageError: there are no pairs, or columns are not comparable.
    """
    if not on:
        raise UsageError(
            "A join expects pairs of columns with equal keys. Received: none.",
            code="empty-input",
            operation="join",
        )
    return _check_comparable([[r.column(pair[i]) for pair in on] for i, r in enumerate(relations)])


def _check_comparable(columns: list[list[Column]]) -> list[list[Column]]:
    """Return the columns of each side if they are comparable.

    Raises:
        UsageError: they are not.
    """
    if not columns[0] or len({len(side_columns) for side_columns in columns}) > 1:
        raise UsageError(
            "A join expects the same number of key columns on each side. Received: "
            f"{[len(side_columns) for side_columns in columns]}.",
            code="shape-mismatch",
            operation="join",
            received=[len(side_columns) for side_columns in columns],
        )
    for same_columns in zip(*columns, strict=True):
        kinds = {
            (c.values.ring_bits, c.values.fractional_bits, c.values.dealer) for c in same_columns
        }
        # A column of fewer bits begins at 0, one of 64 bits may be negative; both hold their true
        # values, so they are comparable.
        if len(kinds) > 1:
            raise UsageError(
                "A join compares columns of one type, scale and dealer. Received: "
                f"{[c.values for c in same_columns]!r}.",
                code="unsupported-type",
                operation="join",
                received=repr([c.values for c in same_columns]),
            )
    return columns


def join_side_bits(relations: Sequence[Relation]) -> list[Shared]:
    """Return, for each relation, public bits that mark its rows in the union."""
    side_numbers = np.repeat(np.arange(len(relations)), [r.rows for r in relations])
    template = relations[0].valid
    return [bits.share_public_row_bits(template, side_numbers == i) for i in range(len(relations))]


def _match_join_row_at_offset(
    party: Party,
    parts: Sequence[Shared],
    widths: Sequence[int],
    conditions: Sequence[Shared],
    offset: int,
) -> Shared:
    """Return [a row has the keys of the row `offset` before] AND some bits; first rows are 0."""
    n = int(parts[0].shape[0])
    if n <= offset:
        return bits.share_public_row_bits(parts[0], np.zeros(n))
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
    """Return values and NULL bits of columns, with NULL for rows without a match."""
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
