"""Joins of rows that repeat keys on both sides, with a public bound of the number of pairs.

In the order of keys the partners of a left row are neighbors: the row holds the position of the
first one and their number. Each left row is copied once per partner (`expand_rows`), and each copy
takes the next partner (`gather_rows`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tfe_bench.protocols.order import sort
from tfe_bench.protocols.ring import arithmetic, equality, shapes, small_ring
from tfe_bench.protocols.ring.checks import check_choice
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange, bits, expand, joins, keys, windows
from tfe_bench.protocols.tables.arrange import cached_graph
from tfe_bench.protocols.tables.groups import row_count_bits
from tfe_bench.protocols.tables.relation import Column, Relation

KINDS = ("inner", "left")


def many_to_many_join(
    party: Party,
    left: Relation,
    right: Relation,
    on: joins.KeyPairs,
    bound: int,
    kind: str = "inner",
    *,
    profile: str = "local",
) -> tuple[Relation, Shared]:
    """Return all pairs of rows with equal keys: left's columns, then right's; `bound` rows.

    If there are more pairs, no row is valid: a part of the pairs would be a wrong answer.

    Args:
        on: pairs of columns, of left and of right.
        bound: public, 1 to 2^24.
        kind: "inner"; "left": left rows without a partner stay, once, with NULLs.

    Returns:
        The pairs, and [1] of Z_2: 1 if there are more.
    Rounds: those of keys.clear_keys, three sorts, and about 50. Bits sent: the sorts, of all rows
    by the keys and of each side's rows and `bound` more by numbers of log2 bits; two partitions, an
    equality, and four moves of the columns; for "left" an equality with 0 for each left row, and
    one bit that is moved with its columns.
    Raises:
        UsageError: no pairs of columns, columns of different types, another bound or kind.
        RangeError: a key is outside its column's bits.
    """
    expand.check_row_count_bound("many_join", bound)
    check_choice("kind", kind, KINDS, "many_join")
    if right.rows == 0:
        # An empty right side gets one invalid row, as gathering requires a row.
        right = right.with_parts([shapes.pad(p, [[0, 1]]) for p in right.parts])
    n, max_pairs = right.rows, left.rows * right.rows
    union = joins.sort_rows_of_all_sides(
        party, [right, left], joins.pair_join_keys([right, left], [(j, i) for i, j in on]), profile
    )
    (side,) = union.permutation.apply(joins.join_side_bits([right, left])[:1])

    def count_right_rows(parts: list[Shared], side: Shared) -> list[Shared]:
        first = bits.invert(keys.equals_previous(party, parts, union.widths))
        count = expand.accumulate_rows(bits.to_number(party, side))
        return [first, count, keys.shift_rows_down(count, 1)]

    rows = n + left.rows
    width = max(2, sort.sort_index_bits(rows))
    first, count, previous_count = cached_graph(party, "counted", count_right_rows, union.widths)(
        list(union.parts), side
    )
    (begin,) = windows.broadcast_flagged(party, first, [previous_count])

    def locate_join_partners(
        valid: Shared, side: Shared, count: Shared, begin: Shared
    ) -> list[Shared]:
        # Invalid rows follow all others, so that no valid row counts them.
        is_left = bits.all_of(party, [valid, bits.invert(side)])
        return [
            bits.multiply_by_bit(party, is_left, arithmetic.sub(count, begin)),
            small_ring.reduce_ring(arithmetic.add_constant(count, np.int64(-1)), width),
        ]

    multiplicities, right_ranks = cached_graph(party, "partners", locate_join_partners, rows)(
        union.valid, side, count, begin
    )
    multiplicities, begin, right_ranks = union.permutation.apply_inverse(
        [multiplicities, begin, right_ranks]
    )
    multiplicities, begin = (
        c.map(lambda a: tensor_ops.strided_slice(a, np.s_[n:])) for c in (multiplicities, begin)
    )

    def copy_partner_starts(multiplicities: Shared, begin: Shared) -> Shared:
        return arithmetic.sub(
            begin, keys.shift_rows_down(expand.accumulate_rows(multiplicities), 1)
        )

    left_parts = [*left.parts[:-1]]
    if kind == "left":
        is_unmatched, multiplicities = cached_graph(
            party, "lone", _make_unmatched_finder(party, n), n
        )(left.valid, multiplicities)
        left_parts.append(is_unmatched)
    start = cached_graph(party, "starts", copy_partner_starts)(multiplicities, begin)
    copied_parts, is_copy, overflow = expand.expand_rows(
        party, [start, *left_parts], multiplicities, max_pairs, bound, profile=profile
    )
    is_match = is_copy if kind == "inner" else None
    if is_match is None:
        *copied_parts, is_unmatched = copied_parts
        is_match = cached_graph(
            party, "match", lambda a, b: bits.all_of(party, [a, bits.invert(b)])
        )(is_copy, is_unmatched)

    def partner_row_positions(start: Shared, match: Shared) -> Shared:
        return bits.multiply_by_bit(
            party, match, arithmetic.add_constant(start, np.arange(bound, dtype=np.int64))
        )

    rank_permutation = arrange.permute_by_target(
        party, right_ranks.map(lambda a: tensor_ops.strided_slice(a, np.s_[:n]))
    )
    partner_parts = expand.gather_rows(
        party,
        rank_permutation.apply(right.parts[:-1]),
        cached_graph(party, "asked", partner_row_positions, bound)(copied_parts[0], is_match),
        profile=profile,
    )
    parts = iter([*copied_parts[1:], *partner_parts])
    columns = [
        c.with_parts([next(parts) for _ in c.parts]) for c in (*left.columns, *right.columns)
    ]
    if kind == "left":
        left_width = len(left.columns)
        nullable_columns = cached_graph(party, "nulls", _make_null_setter(party))(
            is_match, columns[left_width:]
        )
        columns[left_width:] = nullable_columns
    return invalidate_overflow(party, Relation(tuple(columns), is_copy), overflow), overflow


def _make_unmatched_finder(party: Party, n: int) -> Callable[[Shared, Shared], list[Shared]]:
    """Return a function that finds left rows without partners, and updates multiplicities."""

    def find_unmatched_rows(valid: Shared, multiplicities: Shared) -> list[Shared]:
        has_none = equality.are_shares_all_zero(
            party, [(multiplicities, row_count_bits(n))], [bits.to_masked(valid)]
        )
        is_unmatched = bits.from_masked(party, has_none)
        return [is_unmatched, arithmetic.add(multiplicities, bits.to_number(party, is_unmatched))]

    return find_unmatched_rows


def _make_null_setter(party: Party) -> Callable[[Shared, list[Column]], list[Column]]:
    """Return a function that sets columns to NULL in rows without a match."""

    def set_unmatched_nulls(match: Shared, columns: list[Column]) -> list[Column]:
        is_unmatched = bits.invert(match)
        null_columns = []
        for c in columns:
            null = is_unmatched if c.null is None else bits.any_of(party, [is_unmatched, c.null])
            null_columns.append(Column(c.values, c.bits, null))
        return null_columns

    return set_unmatched_nulls


def trim_rows(party: Party, relation: Relation, bound: int) -> tuple[Relation, Shared]:
    """Move the valid rows, in their order, to the front of `bound` rows.

    If there are more valid rows, no row is valid.

    Returns:
        The relation, and [1] of Z_2: 1 if there are more.
    Rounds: 8. Bits sent: those of arrange.partition_by_bit, a move of all columns, and an AND.
    Raises:
        UsageError: bound is not 1 to 2^24.
    """
    expand.check_row_count_bound("trim", bound)
    if bound >= relation.rows:
        return relation, bits.share_public_row_bits(relation.valid, np.zeros(1))
    partitioned_parts = arrange.partition_by_bit(party, relation.valid).apply(relation.parts)
    overflow = partitioned_parts[-1].map(
        lambda a: tensor_ops.strided_slice(a, np.s_[bound : bound + 1])
    )
    trimmed = relation.with_parts(
        [p.map(lambda a: tensor_ops.strided_slice(a, np.s_[:bound])) for p in partitioned_parts]
    )
    return invalidate_overflow(party, trimmed, overflow), overflow


def invalidate_overflow(party: Party, relation: Relation, overflow: Shared) -> Relation:
    """Invalidate all rows if the overflow bit is 1."""

    def clear_validity(valid: Shared, overflow: Shared) -> Shared:
        repeated_overflow = overflow.map(lambda a: tensor_ops.tile(a, [relation.rows]))
        return bits.all_of(party, [valid, bits.invert(repeated_overflow)])

    valid = cached_graph(party, "held", clear_validity, relation.rows)(relation.valid, overflow)
    return Relation(relation.columns, valid)
