"""Quantiles of groups: values at public fractions of each group's private number of rows.

After a sort by (key, value), a group's rows are in the order of their values. Small equalities of
positions find the rows at the requested ranks, and all other values are set to 0. In the running
sums of a group each requested row then counts once, so differences of these sums are the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic, equality, shapes
from tfe_bench.protocols.ring.checks import check_choice, is_integer_between
from tfe_bench.protocols.ring.truncation import truncate
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange, bits, keys
from tfe_bench.protocols.tables.arrange import cached_graph
from tfe_bench.protocols.tables.groups import row_count_bits, row_position_column, row_prefix_sums
from tfe_bench.protocols.tables.keys import OrderKey
from tfe_bench.protocols.tables.relation import ANY_BITS, Column, Relation

# Fractions are multiples of 1 / DENOMINATOR.
DENOMINATOR = 1000
LOWER, DISC, CONT = METHODS = ("lower", "disc", "cont")
MAX_ROWS = 1 << 24


def group_quantiles(
    party: Party,
    relation: Relation,
    by: Sequence[int],
    column: int,
    fractions: Sequence[int],
    *,
    method: str = LOWER,
    profile: str = "local",
) -> Relation:
    """Return, for each group, the columns `by` and, for each fraction q, the value at its rank.

    Rows without a value are skipped; a group without any value gets 0. Rows and validity are those
    of groups.group_rows, in its order.

    Args:
        by: the key columns; none: all valid rows are one group.
        fractions: in thousandths, 0 to 1000: 500 is the median.
        method: "lower" takes rank q (size - 1), rounded down (numpy's "lower"); "disc" the first
            value whose cumulative fraction is at least q, rank ceil(q size) - 1 (SQL's
            PERCENTILE_DISC); "cont" 1000 times the interpolation between the ranks next to q (size
            - 1) (PERCENTILE_CONT), modulo 2^64.

    Rounds: those of keys.clear_keys and keys.sort_rows_by_key_parts, and about 30. Bits sent:
    those, a partition, and for each fraction an exact truncation, an equality and an injection; for
    "cont" two equalities and two injections, and a product.
    Raises:
        UsageError: no fractions, or an unsupported column.
        RangeError: a key is outside its column's bits.
    """
    value_column = relation.column(column)
    if value_column.values.ring_bits == 1:
        raise UsageError(
            f"quantiles expects numbers. Received: column {column}, of bits.",
            code="unsupported-type",
            operation="quantiles",
            received=repr(column),
        )
    check_choice("how", method, METHODS, "quantiles")
    if not fractions or not all(is_integer_between(q, 0, DENOMINATOR) for q in fractions):
        raise UsageError(
            f"quantiles expects fractions from 0 to {DENOMINATOR} thousandths. Received: "
            f"{fractions!r}.",
            code="number-out-of-range",
            operation="quantiles",
            received=fractions,
            expected=f"0 to {DENOMINATOR}",
        )
    n = relation.rows
    if n > MAX_ROWS:
        raise UsageError(
            f"quantiles expects at most {MAX_ROWS} rows. Received: {n}.",
            code="too-large",
            operation="quantiles",
            received=n,
            expected=MAX_ROWS,
        )
    key_columns = [relation.column(i) for i in by]
    parts = keys.clear_keys(party, relation.valid, [(c, False) for c in key_columns])
    value_parts = keys.clear_keys(party, relation.valid, [(value_column, False)], False)
    permutation = keys.sort_rows_by_key_parts(
        party, relation.valid, [*parts, *value_parts], profile
    )
    widths = tuple(k for _, k in parts)
    key_column_parts = [p for c in key_columns for p in c.parts]
    nulls = [] if value_column.null is None else [value_column.null]
    moved_parts = [
        *keys.narrow_key_parts(parts),
        *key_column_parts,
        value_column.values,
        relation.valid,
        *nulls,
    ]
    sorted_parts = permutation.apply(moved_parts)
    at = len(parts) + len(key_column_parts) + 1
    sorted_keys, columns, (valid, *nulls) = (
        sorted_parts[: len(parts)],
        sorted_parts[len(parts) : at],
        sorted_parts[at:],
    )

    def mark_group_beginnings(sorted_keys: list[Shared], valid: Shared, *nulls: Shared) -> Any:
        first = bits.invert(keys.equals_previous(party, sorted_keys, widths))
        valid_first = bits.all_of(party, [first, valid])
        return (
            shapes.pad(first, [[0, 1]], constant_values=1),
            shapes.pad(valid_first, [[0, 1]]),
            row_position_column(valid, n + 1),
            # Rows with a value come first in each group.
            *(row_prefix_sums(bits.to_number(party, bits.invert(null))) for null in nulls),
        )

    key = (n, widths, tuple(fractions), method)
    beginning_parts = cached_graph(party, "quantile beginnings", mark_group_beginnings, *key)(
        sorted_keys, valid, *nulls
    )
    flag, valid_first, *index = beginning_parts
    partition = arrange.partition_by_bit(party, flag)
    valid_first, flagged, *begin_positions = partition.apply([valid_first, flag, *index])

    def rank_rows(flagged: Shared, begin: Shared, *counts: Shared) -> Any:
        # The rank of each group's requested rows among all rows.
        counts_before = counts[0] if counts else begin
        size = arithmetic.sub(keys.shift_rows_up(counts_before, 1), counts_before)
        last = arithmetic.add_constant(size, np.int64(-1))
        ranks, remainders = [], []
        for q in fractions:
            if method == DISC:
                rank = _quantile_rank_in_group(party, size, q, n, 1 if q else 0)
            else:
                rank = _quantile_rank_in_group(party, last, q, n)
            ranks.append(arithmetic.add(begin, rank))
            if method == CONT:
                ranks.append(arithmetic.add_constant(ranks[-1], np.int64(1)))
                scaled_rank = arithmetic.mul_public(rank, np.int64(DENOMINATOR))
                remainders.append(
                    arithmetic.sub(arithmetic.mul_public(last, np.int64(q)), scaled_rank)
                )
        steps = (arithmetic.sub(c, keys.shift_rows_down(c, 1)) for c in ranks)
        return [bits.multiply_by_bit(party, flagged, step) for step in steps], remainders

    ranks, remainders = cached_graph(party, "quantile ranks", rank_rows, *key)(
        flagged, *begin_positions
    )
    rank_steps = partition.apply_inverse(ranks)

    def sum_rows_at_ranks(value: Shared, nulls: list[Shared], *rank_steps: Shared) -> list[Shared]:
        index, value_sums = row_position_column(value, n), []
        # A group without values still has its first rank.
        values = [bits.invert(null) for null in nulls]
        for steps in rank_steps:
            rank = row_prefix_sums(steps).map(
                lambda a: tensor_ops.strided_slice(a, np.s_[1 : n + 1])
            )
            is_at_rank = equality.are_shares_all_zero(
                party, [(arithmetic.sub(rank, index), row_count_bits(n))]
            )
            bit = bits.all_of(party, [bits.from_masked(party, is_at_rank), *values])
            value_sums.append(row_prefix_sums(bits.multiply_by_bit(party, bit, value)))
        return value_sums

    sums = cached_graph(party, "quantile values", sum_rows_at_ranks, *key)(
        columns[-1], nulls, *rank_steps
    )
    group_ends = partition.apply([*(shapes.pad(c, [[0, 1]]) for c in columns[:-1]), *sums])
    result_columns, at = [], 0
    for c in key_columns:
        key_parts = [
            p.map(lambda a: tensor_ops.strided_slice(a, np.s_[:n]))
            for p in group_ends[at : at + len(c.parts)]
        ]
        result_columns.append(c.with_parts(key_parts))
        at += len(c.parts)
    values = [
        arithmetic.sub(keys.shift_rows_up(t, 1), t).map(
            lambda a: tensor_ops.strided_slice(a, np.s_[:n])
        )
        for t in group_ends[at : at + len(ranks)]
    ]
    if method == CONT:
        remainders = [r.map(lambda a: tensor_ops.strided_slice(a, np.s_[:n])) for r in remainders]
        values = cached_graph(
            party, "between", lambda v, r: _interpolate_group_quantiles(party, v, r), *key
        )(values, remainders)
    width = ANY_BITS if method == CONT else value_column.bits
    result_columns += [Column(value, width) for value in values]
    return Relation(
        tuple(result_columns), valid_first.map(lambda a: tensor_ops.strided_slice(a, np.s_[:n]))
    )


def _interpolate_group_quantiles(
    party: Party, values: Sequence[Shared], remainders: Sequence[Shared]
) -> list[Shared]:
    """Return DENOMINATOR times the interpolation between each two values."""
    interpolated = []
    for low, high, remainder in zip(values[::2], values[1::2], remainders, strict=True):
        addition = arithmetic.mul(party, arithmetic.sub(high, low), remainder)
        interpolated.append(
            arithmetic.add(arithmetic.mul_public(low, np.int64(DENOMINATOR)), addition)
        )
    return interpolated


def rows_at_ranks(
    party: Party, relation: Relation, by: OrderKey, ranks: Sequence[int], *, profile: str = "local"
) -> Relation:
    """Return the rows at some public ranks in the order of a key, without sorting the others.

    Invalid rows come last, and before them rows without a value: the median of all rows is at rank
    (rows - 1) // 2 only if all rows are known to be valid. Equal keys have ranks in a random order.

    Args:
        by: of 61 bits or less; for wider keys all rows are sorted.
        ranks: each from 0 to rows - 1.

    Rounds and bits: those of keys.clear_keys, arrange.shuffle_rows_and_select_ranks, and of
    shuffle.apply_permutation for all columns.
    Raises:
        UsageError: ranks are out of range.
        RangeError: a key is outside its column's bits.
    """
    n = relation.rows
    if not ranks or not all(is_integer_between(r, 0, n - 1) for r in ranks):
        raise UsageError(
            f"at_ranks expects ranks of {n} rows. Received: {list(ranks)!r}.",
            code="number-out-of-range",
            operation="at_ranks",
            received=list(ranks),
            expected=f"0 to {n - 1}",
        )
    columns = [(relation.column(by.column), by.descending)]
    parts = keys.clear_keys(party, relation.valid, columns)
    if len(parts) > 1 or n < 2:
        permutation = keys.sort_rows_by_key_parts(party, relation.valid, parts, profile)
        rank_array = np.asarray(ranks, np.int64)
        sorted_parts = permutation.apply(relation.parts)
        return relation.with_parts(
            [c.map(lambda a: tensor_ops.gather(a, rank_array)) for c in sorted_parts]
        )
    (key, width), *_ = parts
    secret_shuffle, positions = arrange.shuffle_rows_and_select_ranks(
        party, key, width, ranks, profile=profile
    )
    return relation.with_parts(secret_shuffle.apply(relation.parts, positions))


def _quantile_rank_in_group(party: Party, size: Shared, q: int, n: int, offset: int = 0) -> Shared:
    """Return floor((q size - offset) / 1000), exact for 0 <= size <= n <= 2^24 and offset 0 or 1.

    For |size| <= n the error is at most one.
    """
    if q in (0, DENOMINATOR):
        return arithmetic.add_constant(
            arithmetic.mul_public(size, np.int64(q // DENOMINATOR)), np.int64(-offset)
        )
    # With 2^drop > 1000 (n + 1), rounding up adds less than 1/1000 to a quotient.
    drop = n.bit_length() + 10
    product = arithmetic.mul_public(size, np.int64(-(-q * (1 << drop) // DENOMINATOR)), drop)
    product = arithmetic.add_constant(product, np.int64(-(offset << drop) // DENOMINATOR + offset))
    # Truncation rounds to the nearest; subtracting half rounds down.
    return truncate(
        party, arithmetic.add_constant(product, np.int64(-(1 << drop - 1))), drop, "exact"
    )
