"""Window functions: for each row its position, running sums and neighbors in its ordered partition.

After a sort, the first row of a partition is copied to all of its rows (`broadcast_flagged`): its
position and the running sums before it. Differences yield the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic, equality, relational, shapes
from tfe_bench.protocols.ring.checks import check_choice, is_integer_between
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange, bits, keys
from tfe_bench.protocols.tables.arrange import cached_graph
from tfe_bench.protocols.tables.groups import row_count_bits, row_position_column
from tfe_bench.protocols.tables.keys import OrderKey
from tfe_bench.protocols.tables.relation import ANY_BITS, Column, Relation

FUNCTIONS = ("row_number", "rank", "dense_rank", "sum", "count", "min", "max", "lag", "lead")
EXTREMES = ("min", "max")
# Frames of sums and counts begin at the partition's first row and end at this row, at the last row
# with equal order keys, or at the partition's last row.
ROWS, RANGE, WHOLE = FRAMES = ("rows", "range", "whole")
# Bits of a value and the number of its partition, which are compared as one number.
_MAX_BITS = 60


@dataclass(frozen=True)
class WindowFunction:
    """A window function.

    Attributes:
        function: "row_number", "rank" and "dense_rank" count from 1; "sum", "count", "min" and
            "max" aggregate the rows of a frame and skip rows without a value; "lag" and "lead"
            return the value `offset` rows before or behind, NULL where the partition has no such
            row.
        column: its argument; None for positions, and to count rows.
        offset: of "lag" and "lead", 1 or more.
        frame: of "sum", "count", "min" and "max", one of FRAMES; for sums and counts also a number
            of preceding rows.
    """

    function: str
    column: int | None = None
    offset: int = 1
    frame: str | int = ROWS


def broadcast_flagged(party: Party, flag: Shared, columns: Sequence[Shared]) -> list[Shared]:
    """Copy to each row the values of the last flagged row up to it; 0 before the first.

    A partition brings the flagged rows together, and each is replaced by its difference from the
    previous one. Back in their positions, running sums yield the copies.

    Args:
        flag: [n] of Z_2.
        columns: [n].

    Rounds: 10. Bits sent: those of arrange.partition_by_bit; and for each column two moves and an
    injection.
    """
    if not columns:
        return []
    partition = arrange.partition_by_bit(party, flag)
    *partitioned_columns, flagged = partition.apply([*columns, flag])

    def subtract_previous_flagged_rows(
        flagged: Shared, *partitioned_columns: Shared
    ) -> list[Shared]:
        differences = (arithmetic.sub(c, keys.shift_rows_down(c, 1)) for c in partitioned_columns)
        return [bits.multiply_by_bit(party, flagged, step) for step in differences]

    column_steps = partition.apply_inverse(
        cached_graph(party, "steps of flags", subtract_previous_flagged_rows)(
            flagged, *partitioned_columns
        )
    )
    return [c.map(lambda a: tensor_ops.cumsum(a, 0, False, False)) for c in column_steps]


def compute_windows(
    party: Party,
    relation: Relation,
    partition: Sequence[int],
    order: Sequence[OrderKey],
    functions: Sequence[WindowFunction],
    *,
    profile: str = "local",
) -> Relation:
    """Add a column for each window function; rows are in the order of the windows.

    Rows are sorted by (partition, order); invalid rows come last and count nowhere. Deliver the
    rows in another order unless this order may be revealed.

    Args:
        partition: columns whose keys define the partitions; none: all rows are one partition.
        order: at least one key, or none for sums and counts of whole partitions. Rows with equal
            order keys keep their order; for "rank" and "dense_rank" they are one.

    Rounds: those of keys.clear_keys, keys.sort_rows_by_key_parts, and about 24. Bits sent: those,
    two equalities, two partitions, and four moves of the copied columns; an equality for each
    "lag", "lead" and numeric frame; an additional partition for each kind of frame except "rows"; 2
    n maxima for each "min" and "max", in 2 log2(n) steps.
    Raises:
        UsageError: no order, unknown functions or columns, too wide a column for "min" or "max".
        RangeError: a key is outside its column's bits.
    """
    _check_window_functions(relation, order, functions)
    n = relation.rows
    partition_columns = [(relation.column(i), False) for i in partition]
    order_columns = [(relation.column(k.column), k.descending) for k in order]
    # Without a partition, only validity separates rows.
    parts = keys.clear_keys(party, relation.valid, partition_columns)
    order_parts = keys.clear_keys(party, relation.valid, order_columns, False)
    permutation = keys.sort_rows_by_key_parts(
        party, relation.valid, [*parts, *order_parts], profile
    )
    widths, order_widths = (tuple(k for _, k in key_parts) for key_parts in (parts, order_parts))
    sorted_parts = permutation.apply(
        [*keys.narrow_key_parts([*parts, *order_parts]), *relation.parts]
    )
    partition_keys, order_keys = (
        sorted_parts[: len(parts)],
        sorted_parts[len(parts) : len(parts) + len(order_parts)],
    )
    rows = relation.with_parts(sorted_parts[len(parts) + len(order_parts) :])

    def mark_partitions(
        partition_keys: list[Shared], order_keys: list[Shared], rows: Relation
    ) -> Any:
        same_partition = keys.equals_previous(party, partition_keys, widths)
        peers = keys.equals_previous(party, [*partition_keys, *order_keys], widths + order_widths)
        first, new = bits.invert(same_partition), bits.invert(peers)
        return first, new, [_running_window_values(party, f, rows, first, new) for f in functions]

    key = (n, widths, order_widths, tuple(functions))
    first, new, sums = cached_graph(party, "marked", mark_partitions, *key)(
        partition_keys, order_keys, rows
    )
    running_values, initial_values = (
        [value_pair[i] for key_parts in sums for value_pair in key_parts] for i in range(2)
    )
    frames = [f.frame for f, key_parts in zip(functions, sums, strict=True) for _ in key_parts]
    begin_positions, *start_values = broadcast_flagged(
        party, first, [row_position_column(first, n), *initial_values]
    )
    running_values = _take_window_frame_ends(
        party,
        _take_window_frame_ends(party, running_values, frames, RANGE, new),
        frames,
        WHOLE,
        first,
    )
    has_rank = any(f.function == "rank" for f in functions)
    peers = broadcast_flagged(party, new, [row_position_column(first, n)] if has_rank else [])

    def derive_window_columns(
        rows: Relation,
        partition_keys: list[Shared],
        places: list[Shared],
        running_values: list[Shared],
        initial_values: list[Shared],
        start_values: list[Shared],
    ) -> list[list[Shared]]:
        begin, *peers = places
        totals = iter(
            [
                arithmetic.sub(a, _frame_start(party, frame, partition_keys, widths, b, start))
                for a, frame, b, start in zip(
                    running_values, frames, initial_values, start_values, strict=True
                )
            ]
        )
        result = []
        for f in functions:
            if f.function in ("lag", "lead"):
                result.append(_partition_neighbor_value(party, f, rows, partition_keys, widths))
            elif f.function == "rank":
                result.append(
                    [arithmetic.add_constant(arithmetic.sub(peers[0], begin), np.int64(1))]
                )
            elif _is_row_number_function(f, rows):
                index = arithmetic.add_constant(arithmetic.neg(begin), np.arange(1, n + 1))
                result.append([index])
            elif f.function in EXTREMES:
                result.append(_window_extreme_value(party, f, rows, next(totals)))
            else:
                result.append([next(totals)])
                if f.function == "sum" and _is_window_result_nullable(f, rows):
                    has_none = equality.are_shares_all_zero(
                        party, [(next(totals), row_count_bits(n))]
                    )
                    result[-1].append(bits.from_masked(party, has_none))
        return result

    window_graph = cached_graph(party, "windows", derive_window_columns, *key)
    values = window_graph(
        rows,
        partition_keys,
        [begin_positions, *peers],
        running_values,
        initial_values,
        start_values,
    )
    columns = [
        _make_window_column(f, rows, function_parts)
        for f, function_parts in zip(functions, values, strict=True)
    ]
    return Relation((*rows.columns, *columns), rows.valid)


def _check_window_functions(
    relation: Relation, order: Sequence[OrderKey], functions: Sequence[WindowFunction]
) -> None:
    summed = ("sum", "count", *EXTREMES)
    is_unordered = all(f.function in summed and f.frame == WHOLE for f in functions)
    if not functions or not (order or is_unordered):
        raise UsageError(
            "windows expects an order and functions. Received: none.",
            code="empty-input",
            operation="windows",
        )
    for f in functions:
        if f.frame not in FRAMES and not is_integer_between(f.frame, 0, 2**62):
            raise UsageError(
                f"Expected a frame of {', '.join(FRAMES)}, or a number of rows. Received: "
                f"{f.frame!r}.",
                code="unknown-name",
                operation="frame",
                received=f.frame,
                expected=", ".join(FRAMES),
            )
        check_choice("function", f.function, FUNCTIONS, "windows")
        if not is_integer_between(f.offset, 1, 2**62):
            raise UsageError(
                f"Expected a window offset of 1 row or more. Received: {f.offset!r}.",
                code="number-out-of-range",
                operation="offset",
                received=f.offset,
            )
        if f.column is None:
            if f.function in ("sum", "lag", "lead", *EXTREMES):
                raise UsageError(
                    f"windows expects a column for {f.function}. Received: None.",
                    code="missing-argument",
                    operation="windows",
                    expected=f"column of {f.function}",
                )
        elif relation.column(f.column).values.ring_bits == 1 and f.function == "sum":
            raise UsageError(
                f"windows sums numbers. Received: column {f.column}, of bits. Convert bits "
                "to numbers (bits.to_number).",
                code="unsupported-type",
                operation="windows",
                received=f.column,
            )
        if f.function in EXTREMES:
            _check_window_extreme(relation, f)


def _check_window_extreme(relation: Relation, f: WindowFunction) -> None:
    column = relation.columns[f.column or 0]
    max_bits = _MAX_BITS - row_count_bits(relation.rows)
    if column.values.ring_bits == 1 or column.bits > max_bits:
        raise UsageError(
            f"windows computes {f.function} of numbers of at most {max_bits} bits among "
            f"{relation.rows} rows. Received: column {f.column} of {column.bits} bits. "
            "Declare a narrower range.",
            code="too-large",
            operation="windows",
            received=column.bits,
            expected=max_bits,
        )
    if f.frame not in FRAMES:
        raise UsageError(
            f"windows computes {f.function} of the frames {', '.join(FRAMES)}. Received: "
            f"{f.frame!r}.",
            code="unsupported-argument",
            operation="windows",
            received=f.frame,
            expected=", ".join(FRAMES),
        )


def _is_window_result_nullable(f: WindowFunction, rows: Relation) -> bool:
    return f.column is not None and rows.columns[f.column].null is not None


def _is_row_number_function(f: WindowFunction, rows: Relation) -> bool:
    """Return whether a function counts rows up to this one."""
    is_row_count = (
        f.function == "count" and f.frame == ROWS and not _is_window_result_nullable(f, rows)
    )
    return f.function == "row_number" or is_row_count


def _running_window_values(
    party: Party, f: WindowFunction, rows: Relation, first: Shared, new: Shared
) -> list[tuple[Shared, Shared]]:
    """Return values that grow from row to row, and their parts from before the partition."""
    if f.function in EXTREMES:
        return [_running_window_extremes(party, f, rows, first)]
    if f.function == "dense_rank":
        return [_running_row_sums(bits.to_number(party, new))]
    if f.function not in ("sum", "count") or _is_row_number_function(f, rows):
        return []
    column = None if f.column is None else rows.columns[f.column]
    if column is None or (f.function == "count" and column.null is None):
        index = row_position_column(rows.valid, rows.rows)
        return [(arithmetic.add_constant(index, np.int64(1)), index)]
    if column.null is None:
        return [_running_row_sums(column.values)]
    is_present = bits.invert(column.null)
    count = _running_row_sums(bits.to_number(party, is_present))
    if f.function == "count":
        return [count]
    return [_running_row_sums(bits.multiply_by_bit(party, is_present, column.values)), count]


def _running_window_extremes(
    party: Party, f: WindowFunction, rows: Relation, first: Shared
) -> tuple[Shared, Shared]:
    """Return running maxima of partition * 2^(b + 1) + v + 1, without v + 1 for NULL.

    Partition numbers increase, so a maximum of earlier partitions is below all values of this one:
    the scan does not depend on where partitions begin. For "min", v is replaced by 2^b - 1 - v.
    """
    assert f.column is not None
    column = rows.columns[f.column]
    values = replace(column.values, fractional_bits=0)
    if f.function == "min":
        values = arithmetic.add_constant(arithmetic.neg(values), np.int64((1 << column.bits) - 1))
    value_plus_one = arithmetic.add_constant(values, np.int64(1))
    if column.null is not None:
        value_plus_one = bits.multiply_by_bit(party, bits.invert(column.null), value_plus_one)
    number = bits.to_number(party, first).map(lambda a: tensor_ops.cumsum(a, 0, False, False))
    partition_base = arithmetic.mul_public(number, np.int64(2 << column.bits))
    width = column.bits + row_count_bits(rows.rows) + 3
    return _running_maximum(
        party, arithmetic.add(partition_base, value_plus_one), width
    ), partition_base


def _running_maximum(party: Party, x: Shared, width: int) -> Shared:
    """Return the largest value up to each row: join pairs recursively, then fill gaps.

    Rounds: those of `maximum` 2 log2(n) times. Bits sent: those of 2 n of them.
    Source: Brent and Kung 1982.
    """
    n = int(x.shape[0])
    if n <= 1:
        return x

    def gather_rows_at(y: Shared, places: Any) -> Shared:
        return y.map(lambda a: tensor_ops.gather(a, places))

    even, odd = gather_rows_at(x, np.arange(0, n, 2)), gather_rows_at(x, np.arange(1, n, 2))
    half = n // 2
    pairs = relational.maximum(party, gather_rows_at(even, np.arange(half)), odd, width)
    ends = _running_maximum(party, pairs, width)
    count = (n - 1) // 2  # values between two pairs
    maxima = [ends, gather_rows_at(even, np.arange(1))]
    if count:
        left_values, right_values = (
            gather_rows_at(ends, np.arange(count)),
            gather_rows_at(even, np.arange(1, count + 1)),
        )
        maxima.append(relational.maximum(party, left_values, right_values, width))
    # Ends come first, then the values between them.
    places = np.where(np.arange(n) % 2 == 1, np.arange(n) // 2, half + np.arange(n) // 2)
    return gather_rows_at(shapes.concat(maxima, 0), places)


def _running_row_sums(x: Shared) -> tuple[Shared, Shared]:
    """Return sums with and without each row. Local."""
    unscaled = replace(x, fractional_bits=0)
    inclusive_sums = unscaled.map(lambda a: tensor_ops.cumsum(a, 0, False, False))
    return inclusive_sums, arithmetic.sub(inclusive_sums, unscaled)


def _take_window_frame_ends(
    party: Party,
    running_values: Sequence[Shared],
    frames: Sequence[str | int],
    frame: str,
    flag: Shared,
) -> list[Shared]:
    """Replace a frame's values by those at the last row before the next flag (broadcast back)."""
    if frame not in frames or not int(flag.shape[0]):
        return list(running_values)
    is_last = shapes.pad(
        flag.map(lambda a: tensor_ops.strided_slice(a, np.s_[1:])), [[0, 1]], constant_values=1
    )
    reversed_values = [
        _reverse_rows(x)
        for x, value_frame in zip(running_values, frames, strict=True)
        if value_frame == frame
    ]
    end_values = iter(broadcast_flagged(party, _reverse_rows(is_last), reversed_values))
    return [
        _reverse_rows(next(end_values)) if value_frame == frame else x
        for x, value_frame in zip(running_values, frames, strict=True)
    ]


def _reverse_rows(x: Shared) -> Shared:
    n = int(x.shape[0])
    return x.map(lambda a: tensor_ops.gather(a, np.arange(n - 1, -1, -1)))


def _frame_start(
    party: Party,
    frame: str | int,
    compared: Sequence[Shared],
    widths: Sequence[int],
    before: Shared,
    start: Shared,
) -> Shared:
    """Return the running value before a frame's first row."""
    if isinstance(frame, str):
        return start
    offset = min(frame, int(before.shape[0]))
    has_neighbor = _has_neighbor(party, compared, widths, offset, "lag")
    difference = arithmetic.sub(keys.shift_rows_down(before, offset), start)
    return arithmetic.add(start, bits.multiply_by_bit(party, has_neighbor, difference))


def _has_neighbor(
    party: Party, compared: Sequence[Shared], widths: Sequence[int], offset: int, function: str
) -> Shared:
    """Return bits of rows whose row `offset` before or behind is in the same partition."""
    n = int(compared[0].shape[0])
    if offset >= n:
        return bits.share_public_row_bits(compared[0], np.zeros(n))
    current = [p.map(lambda a: tensor_ops.strided_slice(a, np.s_[offset:])) for p in compared]
    neighbor = [p.map(lambda a: tensor_ops.strided_slice(a, np.s_[: n - offset])) for p in compared]
    is_equal = keys.compare_keys(party, current, neighbor, widths)
    return shapes.pad(is_equal, [[offset, 0]] if function == "lag" else [[0, offset]])


def _partition_neighbor_value(
    party: Party,
    f: WindowFunction,
    rows: Relation,
    compared: Sequence[Shared],
    widths: Sequence[int],
) -> list[Shared]:
    """Return the value `offset` rows away in the same partition, and a NULL bit."""
    assert f.column is not None
    column, n = rows.columns[f.column], rows.rows
    offset = min(f.offset, n)
    has_neighbor = _has_neighbor(party, compared, widths, offset, f.function)
    shift_rows = keys.shift_rows_down if f.function == "lag" else keys.shift_rows_up
    if column.null is not None:
        has_neighbor = bits.all_of(
            party, [has_neighbor, bits.invert(shift_rows(column.null, offset))]
        )
    return [
        bits.multiply_by_bit(party, has_neighbor, shift_rows(column.values, offset)),
        bits.invert(has_neighbor),
    ]


def _window_extreme_value(
    party: Party, f: WindowFunction, rows: Relation, running_extreme: Shared
) -> list[Shared]:
    """Return the value contained in a result of `_running_window_extremes`, and a NULL bit if
    needed.
    """
    assert f.column is not None
    width = rows.columns[f.column].bits
    value = arithmetic.add_constant(running_extreme, np.int64(-1))
    if f.function == "min":
        value = arithmetic.add_constant(arithmetic.neg(value), np.int64((1 << width) - 1))
    if not _is_window_result_nullable(f, rows):
        return [value]
    return [
        value,
        bits.from_masked(
            party, equality.are_shares_all_zero(party, [(running_extreme, width + 1)])
        ),
    ]


def _make_window_column(f: WindowFunction, rows: Relation, parts: Sequence[Shared]) -> Column:
    null = parts[1] if len(parts) == 2 else None
    if f.function in ("sum", "lag", "lead", *EXTREMES):
        assert f.column is not None
        source = rows.columns[f.column]
        if source.values.ring_bits == 1:
            return Column(parts[0], source.bits, null)
        values = replace(parts[0], fractional_bits=source.values.fractional_bits)
        return Column(values, ANY_BITS if f.function == "sum" else source.bits, null)
    return Column(parts[0], row_count_bits(rows.rows), null)
