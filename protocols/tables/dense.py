"""Group sums and counts for groups with public codes, without a sort.

A code is masked like any value: code = m - lam modulo G, a power of two. D deals the one-hot row of
lam, H_j = [lam = j]. Because code = c exactly where lam = m - c, each evaluator's share of [code =
c] is the entry m - c of its row. It selects that entry by rotating the row by m, in steps of powers
of two that it takes or not: no memory access depends on m. Shares of all rows are added before they
are exchanged, so only D sends bits for each row.

For x = m_x - lam_x also H_j lam_x is dealt, and x [code = c] is m_x H - (H lam_x) at that entry.
The last entry of each row is the difference of the others from 1 or from lam_x, which the
evaluators hold in shares.

Invalid rows are put into the group of code 0, and their total is subtracted from it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.order import sort
from tfe_bench.protocols.ring import arithmetic, convert, masked, relational, rotation, small_ring
from tfe_bench.protocols.ring.checks import is_integer_between
from tfe_bench.protocols.session import slots, tensor_ops
from tfe_bench.protocols.session.cost import Cost, packed_bits
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import bits
from tfe_bench.protocols.tables.arrange import cached_graph
from tfe_bench.protocols.tables.groups import GroupAggregate, check_group_aggregates
from tfe_bench.protocols.tables.relation import ANY_BITS, Column, Relation

MAX_GROUPS = 32
MAX_COLUMNS = 8
# Rows of one graph call; each row takes G words for each column.
_SLICE_ROWS = 1 << 16
# Numbers of masks and messages: first the one-hot row and its products, then validity.
_VALID, _OUT = 16, 17


def group_by_code(
    party: Party,
    relation: Relation,
    code: int,
    groups: int,
    aggregates: Sequence[GroupAggregate],
    *,
    min_rows: int = 1,
) -> Relation:
    """Return a row for each public code from 0: the code, then sums and counts of its valid rows.

    Args:
        code: number of a column with 0 <= code < groups, never NULL.
        groups: 1 to 32.
        aggregates: "sum" and "count" of at most 8 columns; a column with NULLs counts twice.
        min_rows: groups with fewer rows are not valid.

    Rounds: 3, and those of a comparison of each group. Bits sent: for G groups, rounded up to a
    power of two, and a ring of R bits (64, or fewer for sums of narrower columns), G R per row and
    again for each column; each party sends those of a third of the rows.
    Raises:
        UsageError: other aggregates, too many columns or groups.
    """
    check_group_aggregates("dense_group", relation, aggregates)
    if not is_integer_between(groups, 1, MAX_GROUPS) or not is_integer_between(min_rows, 1, 2**62):
        raise UsageError(
            f"dense_group expects 1 to {MAX_GROUPS} groups of at least 1 row. Received: "
            f"{groups!r} groups, {min_rows!r} rows.",
            code="number-out-of-range",
            operation="dense_group",
            received=f"{groups!r}, {min_rows!r}",
        )
    if any(a.function not in ("sum", "count") for a in aggregates):
        raise UsageError(
            f"dense_group supports sums and counts. Received: {list(aggregates)}. Use group_rows.",
            code="unsupported-operation",
            operation="dense_group",
            received=list(aggregates),
            expected="sum, count",
        )
    code_column = relation.column(code)
    if code_column.null is not None or code_column.values.ring_bits == 1:
        raise UsageError(
            f"dense_group expects a code in every row. Received: column {code}, which "
            "has bits or NULLs. Assign a separate code to missing values.",
            code="unsupported-type",
            operation="dense_group",
            received=code,
        )
    n = relation.rows
    column_numbers = [i for i in dict.fromkeys(a.column for a in aggregates) if i is not None]
    columns: list[Shared] = []
    sum_places: dict[tuple[str, int], int] = {}
    column_widths = [1]
    for i in column_numbers:
        column = relation.column(i)
        is_summed = any(a.column == i and a.function == "sum" for a in aggregates)
        if is_summed:
            sum_places["sum", i] = 1 + len(columns)
            column_widths.append(column.bits)
            columns.append(_clear_nulls(party, column))
        if column.null is not None:
            sum_places["count", i] = 1 + len(columns)
            count_graph = cached_graph(
                party, "there", lambda b: bits.to_number(party, bits.invert(b))
            )
            columns.append(count_graph(column.null))
    if len(columns) > MAX_COLUMNS:
        raise UsageError(
            f"dense_group sums up to {MAX_COLUMNS} columns. Received: {len(columns)}.",
            code="too-large",
            operation="dense_group",
            received=len(columns),
            expected=MAX_COLUMNS,
        )
    code_bits = max(1, (groups - 1).bit_length())
    width = max(column_widths) + sort.sort_index_bits(max(2, n)) + 2
    width = 64 if width >= 64 else width
    totals = _sum_columns_by_group_code(
        party, code_column.values, relation.valid, columns, code_bits, width
    )

    def derive_group_columns(totals: Shared) -> list[Shared]:
        if width < 64:
            # No sum of these columns is negative or reaches half of the ring.
            totals = small_ring.extend_nonnegative(party, totals)
        sums = [
            totals.map(lambda a, i=i: tensor_ops.strided_slice(a, np.s_[i, :groups]))
            for i in range(1 + len(columns))
        ]
        comparison_bits = max(sort.sort_index_bits(max(2, n)), int(min_rows).bit_length()) + 2
        missing_rows = arithmetic.add_constant(sums[0], np.int64(-min_rows))
        is_large_enough = bits.invert(
            bits.from_masked(party, relational.is_negative(party, missing_rows, comparison_bits))
        )
        counts_less_one = [
            arithmetic.add_constant(sums[place], np.int64(-1))
            for place in _count_sum_columns(sum_places)
        ]
        nulls = [
            bits.from_masked(party, relational.is_negative(party, e, comparison_bits))
            for e in counts_less_one
        ]
        return [*sums, is_large_enough, *nulls]

    key = (groups, len(columns), n, width, min_rows, tuple(sorted(sum_places.items())))
    parts = cached_graph(party, "dense found", derive_group_columns, *key)(totals)
    nulls = dict(zip(_count_sum_columns(sum_places), parts[2 + len(columns) :], strict=True))
    codes = arithmetic.share_public_range(parts[0], groups)
    result = [Column(codes, code_column.bits)]
    for a in aggregates:
        count_place = sum_places.get(("count", a.column), 0) if a.column is not None else 0
        if a.function == "count":
            result.append(Column(parts[count_place], max(1, n.bit_length())))
        else:
            assert a.column is not None
            scale = relation.column(a.column).values.fractional_bits
            values = replace(parts[sum_places["sum", a.column]], fractional_bits=scale)
            result.append(Column(values, ANY_BITS, nulls.get(count_place)))
    return Relation(tuple(result), parts[1 + len(columns)])


def _count_sum_columns(sum_places: dict[tuple[str, int], int]) -> list[int]:
    return [place for (function, _), place in sum_places.items() if function == "count"]


def _clear_nulls(party: Party, column: Column) -> Shared:
    """Return a column's values, with 0 for NULL."""
    unscaled = replace(column.values, fractional_bits=0)
    if column.null is None:
        return unscaled
    clear_graph = cached_graph(
        party, "value", lambda x, b: bits.multiply_by_bit(party, bits.invert(b), x)
    )
    cleared_values: Shared = clear_graph(unscaled, column.null)
    return cleared_values


def _sum_columns_by_group_code(
    party: Party,
    code: Shared,
    valid: Shared,
    columns: Sequence[Shared],
    code_bits: int,
    width: int,
) -> Shared:
    """Return counts of valid rows and sums per code, [1 + columns, 2^code_bits] of Z_2^width."""
    n, groups, first = int(valid.shape[0]), 1 << code_bits, valid.dealer

    def clear_invalid_rows(code: Shared, valid: Shared) -> Shared:
        reduced_code = small_ring.reduce_ring(replace(code, fractional_bits=0), max(2, code_bits))
        zeros = reduced_code.map(tensor_ops.zeros_like)
        return small_ring.select(party, bits.to_masked(valid), reduced_code, zeros)

    def exchange_group_sums(share: Any, dealer: int) -> Shared:
        shape = [1 + len(columns), groups]
        s = party.site(
            "dense_totals", width, dealer=dealer, slots={0: slots.declare_exchanged(width)}
        )
        return masked.exchange_masked(s, share, shape, 0)

    def join_group_sum_shares(shares: list[list[Any]]) -> Shared:
        totals = []
        for i, share_parts in enumerate(shares):
            share = None if share_parts[0] is None else sum(share_parts[1:], share_parts[0])
            totals.append(
                rotation.relabel_dealer(party, exchange_group_sums(share, (first + i) % 3), first)
            )
        return functools.reduce(arithmetic.add, totals)

    code = cached_graph(party, "dense codes", clear_invalid_rows, code_bits)(code, valid)
    # Each party is the dealer of a third of the rows, as the dealer sends nearly all bits.
    bounds = [0, n // 3, 2 * n // 3, n] if n >= 3 else [0, n]
    shares: list[list[Any]] = [[] for _ in bounds[1:]]
    # The thirds alternate, so that all three links are busy at a time.
    for begin in range(0, max(1, n - bounds[-2]), _SLICE_ROWS):
        for i, (start, end) in enumerate(itertools.pairwise(bounds)):

            def sum_row_slice(*slice_columns: Shared, dealer: int = (first + i) % 3) -> Any:
                renamed = [rotation.relabel_dealer(party, c, dealer) for c in slice_columns]
                return share_group_code_sums(
                    party, renamed[0], renamed[1], renamed[2:], code_bits, width
                )

            row_slice = slice(start + begin, min(end, start + begin + _SLICE_ROWS))
            if row_slice.start < row_slice.stop or not begin:
                part = [
                    c.map(lambda a, s=row_slice: tensor_ops.strided_slice(a, s))
                    for c in (code, valid, *columns)
                ]
                shares[i].append(
                    cached_graph(party, "dense", sum_row_slice, i, code_bits, width)(*part)
                )
    total: Shared = cached_graph(
        party, "dense joined", join_group_sum_shares, first, len(columns), code_bits, width
    )(shares)
    return total


def share_group_code_sums(
    party: Party, code: Shared, valid: Shared, columns: Sequence[Shared], code_bits: int, width: int
) -> Any:
    """Return the evaluators' shares [1 + columns, 2^code_bits] of counts and sums; None at D.

    The shares are not exchanged yet.

    Args:
        code: [n] modulo 2^code_bits; 0 in invalid rows.
        valid: [n] of Z_2.
        columns: [n] of Z_2^64 each.

    Rounds: 0 online, 1 in total. Bits sent: D 2^code_bits width per row, and again for each column.
    """
    n, groups = int(valid.shape[0]), 1 << code_bits
    if isinstance(party, CostParty):
        row = packed_bits(n * (groups - 1), width) + packed_bits(n, width)
        cost = Cost((1 + len(columns)) * row, 0, 0, rounds=0, with_dealing=1)
        # An evaluator rotates rows in steps of two maps and adds them; half of that for each of its
        # shares.
        party.add_moved_words(
            n * groups * ((2 * code_bits + 3) + (2 * code_bits + 6) * len(columns)) // 2
        )
        return party.count_messages(cost, [1 + len(columns), groups], code, valid, *columns)
    column_slots = [number for i in range(len(columns)) for number in (1 + i, _OUT + i)]
    s = party.site(
        "dense_sums",
        n,
        code_bits,
        width,
        len(columns),
        dealer=code.dealer,
        slots=dict.fromkeys([0, _VALID, *column_slots], slots.declare_dealt(width)),
    )
    table_shape, row_shape = (tf.constant(shape, tf.int64) for shape in ([n, groups - 1], [n]))
    hot = None
    if s.is_dealer:
        mask_sum = tensor_ops.low_bits(code.l1 + code.l2, code_bits)
        hot = tf.one_hot(mask_sum, groups, dtype=tf.int64)[:, : groups - 1]
    rows = masked.deal(s, hot, table_shape, 0)
    # b = o + (1 - 2 o) beta, and b x analogously: only their sums are exchanged.
    ones = convert.unpack_bits_to_ring_elements(bits.to_masked(valid), row_shape)
    beta = masked.deal(s, ones, row_shape, _VALID, _VALID)
    rotate = None if s.is_dealer else _GroupCodeRotation(code.m, code_bits)
    shares, hot_shares = [], None
    if rotate is not None:
        hot_shares = rotate(_append_row_remainder(rows, tf.ones_like(code.m) if s.is_e2 else None))
        valid_shares = (1 - 2 * ones) * beta + (ones if s.is_e2 else 0)
        invalid = (n if s.is_e2 else 0) - tf.reduce_sum(valid_shares)
        shares.append(_subtract_from_first_sum(tf.reduce_sum(hot_shares, axis=0), invalid))
    for i, x in enumerate(columns):
        mask_sum = x.l1 + x.l2 if s.is_dealer else None
        of_group = None if mask_sum is None else hot * mask_sum[:, None]
        of_valid = None if mask_sum is None else ones * mask_sum
        dealt = masked.deal(s, of_group, table_shape, 1 + i, 1 + i)
        out = masked.deal(s, of_valid, row_shape, _OUT + i, _OUT + i)
        if rotate is not None:
            lam_rows = rotate(_append_row_remainder(dealt, x.l1 if s.is_e1 else x.l2))
            sums = tf.reduce_sum(x.m[:, None] * hot_shares - lam_rows, axis=0)
            value_share = x.m - x.l2 if s.is_e2 else -x.l1
            valid_values = ones * value_share + (1 - 2 * ones) * (x.m * beta - out)
            shares.append(_subtract_from_first_sum(sums, tf.reduce_sum(value_share - valid_values)))
    return tf.stack(shares) if shares else None


class _GroupCodeRotation:
    """A rotation of rows [n, 2^code_bits] whose entry c is the input's entry m - c."""

    def __init__(self, m: Any, code_bits: int) -> None:
        self._step_bits = [
            tensor_ops.low_bits(tensor_ops.logical_shift(m, j), 1)[:, None] > 0
            for j in range(code_bits)
        ]

    def __call__(self, rows: Any) -> Any:
        rotated = tf.roll(tf.reverse(rows, [1]), 1, 1)
        for j, step_bit in enumerate(self._step_bits):
            rotated = tf.where(step_bit, tf.roll(rotated, 1 << j, 1), rotated)
        return rotated


def _append_row_remainder(rows: Any, total: Any) -> Any:
    """Append one entry to each row, so that each row adds up to a share of the total."""
    remainder = -tf.reduce_sum(rows, axis=1)
    return tf.concat([rows, (remainder if total is None else remainder + total)[:, None]], 1)


def _subtract_from_first_sum(sums: Any, number: Any) -> Any:
    """Subtract a number from the first of some sums."""
    return tf.concat([sums[:1] - number, sums[1:]], 0)
