"""Keys of rows for sorting and grouping, as few numbers of known width.

Invalid rows come last and have equal keys, whatever they hold; rows with NULL follow rows with
values. Keys are cleared before comparison: a sort opens comparisons, which must not depend on
values outside the promised range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfe_bench.protocols.ring import arithmetic, equality, shapes, small_ring
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared
from tfe_bench.protocols.tables import arrange, bits
from tfe_bench.protocols.tables.arrange import PrivatePermutation, cached_graph
from tfe_bench.protocols.tables.relation import ANY_BITS, Column

# A number and its bits; 64: any number.
KeyPart = tuple[Shared, int]
_MAX_PART_BITS = arrange.MAX_KEY_BITS - 1  # one bit is left for invalid rows


@dataclass(frozen=True)
class OrderKey:
    """A column to order by; rows without a value come last in both directions.

    Attributes:
        column: its number.
        descending: the largest first.
    """

    column: int
    descending: bool = False


@dataclass(frozen=True)
class _SortKeyFormat:
    """The static parts of a column's key: their widths."""

    widths: tuple[int, ...]
    descending: bool


def clear_keys(
    party: Party, valid: Shared, columns: Sequence[tuple[Column, bool]], mark_invalid: bool = True
) -> list[KeyPart]:
    """Convert columns, most significant first, to key parts of up to 62 bits, or of 64.

    Args:
        valid: of the rows.
        columns: each with its direction (True: descending).
        mark_invalid: the first part marks invalid rows, so that they come last.

    Rounds: 2 online, 3 in total, one less without NULL bits. Bits sent: an injection for each part
    and for each column with NULL bits, and the conversion of bits to numbers.
    """
    fields = [_derive_sort_key_format(c, descending) for c, descending in columns]
    width_groups = _group_key_widths([w for f in fields for w in f.widths])
    has_mark_part = mark_invalid and (not width_groups or sum(width_groups[0]) > _MAX_PART_BITS)

    def build_key_parts(valid: Shared, *key_columns: Column) -> list[Shared]:
        numbers = [
            n
            for c, f in zip(key_columns, fields, strict=True)
            for n in _key_column_numbers(party, c, f)
        ]
        part_values, at = [], 0
        for i, run in enumerate(width_groups):
            key = arrange.compose_sort_key(numbers[at : at + len(run)], run)
            at += len(run)
            invalid_value = (
                np.int64(1 << sum(run))
                if mark_invalid and i == 0 and not has_mark_part
                else np.int64(0)
            )
            cleared_key = bits.multiply_by_bit(
                party, valid, arithmetic.add_constant(key, -invalid_value)
            )
            part_values.append(arithmetic.add_constant(cleared_key, invalid_value))
        if has_mark_part:
            part_values.insert(0, bits.to_number(party, bits.invert(valid)))
        return part_values

    graph_key = ("parts", mark_invalid, tuple((f.widths, f.descending) for f in fields))
    part_values = cached_graph(party, *graph_key[:1], build_key_parts, *graph_key[1:])(
        valid, *(c for c, _ in columns)
    )
    widths = [sum(run) for run in width_groups]
    if has_mark_part:
        widths.insert(0, 1)
    elif mark_invalid:
        widths[0] += 1
    return list(zip(part_values, widths, strict=True))


def sort_rows_by_key_parts(
    party: Party, valid: Shared, parts: Sequence[KeyPart], profile: str = "local"
) -> PrivatePermutation:
    """Return the permutation that sorts by parts of `clear_keys` with a mark of invalid rows.

    Rounds and bits: those of arrange.sort_by_keys; and of arrange.partition_by_bit if the mark is a
    separate part.
    """
    if parts[0][1] > 1:
        return arrange.sort_by_keys(party, parts, profile=profile)
    if len(parts) == 1:
        return arrange.partition_by_bit(party, valid)
    permutation = arrange.sort_by_keys(party, parts[1:], profile=profile)
    (sorted_valid,) = permutation.apply([valid])
    return permutation.followed_by(arrange.partition_by_bit(party, sorted_valid))


def narrow_key_parts(parts: Sequence[KeyPart]) -> list[Shared]:
    """Reduce key parts to rings of their bits, in which they are compared and moved. Local."""
    return [x if k < 2 or k == ANY_BITS else small_ring.reduce_ring(x, k) for x, k in parts]


def compare_keys(
    party: Party,
    left: Sequence[Shared],
    right: Sequence[Shared],
    widths: Sequence[int],
    conditions: Sequence[Shared] = (),
) -> Shared:
    """Return [all parts are equal] AND some bits. Call it inside a graph.

    Rounds: 4 online, 5 in total. Bits sent: those of equality.are_shares_all_zero, and 1 to split.
    """
    differences = [(arithmetic.sub(a, b), k) for a, b, k in zip(left, right, widths, strict=True)]
    is_equal: MaskedBits = equality.are_shares_all_zero(
        party, differences, [bits.to_masked(b) for b in conditions]
    )
    return bits.from_masked(party, is_equal)


def exclude_nulls(party: Party, valid: Shared, columns: Sequence[Column]) -> Shared:
    """Return the bits of valid rows that have a value in each of some columns.

    Rounds: 1 online, 2 in total, or none. Bits sent: those of bits.all_of.
    """
    nulls = [c.null for c in columns if c.null is not None]
    if not nulls:
        return valid
    conjunction_graph = cached_graph(
        party,
        "without_nulls",
        lambda v, *null_bits: bits.all_of(party, [v, *(bits.invert(b) for b in null_bits)]),
    )
    is_present: Shared = conjunction_graph(valid, *nulls)
    return is_present


def shift_rows_down(x: Shared, offset: int) -> Shared:
    """Move the values of row i - offset to row i; the first rows are 0. Local."""
    n = int(x.shape[0])
    offset = min(offset, n)
    return shapes.pad(
        x.map(lambda a: tensor_ops.strided_slice(a, np.s_[: n - offset])), [[offset, 0]]
    )


def shift_rows_up(x: Shared, offset: int) -> Shared:
    """Move the values of row i + offset to row i; the last rows are 0. Local."""
    offset = min(offset, int(x.shape[0]))
    return shapes.pad(x.map(lambda a: tensor_ops.strided_slice(a, np.s_[offset:])), [[0, offset]])


def equals_previous(party: Party, parts: Sequence[Shared], widths: Sequence[int]) -> Shared:
    """Return bits of rows with the keys of the previous row; 0 for the first. Inside graphs.

    Rounds and bits: as `compare_keys`, for n - 1 rows.
    """
    n = int(parts[0].shape[0])
    if n < 2:
        return bits.share_public_row_bits(parts[0], np.zeros(n))
    is_equal = compare_keys(
        party,
        [p.map(lambda a: tensor_ops.strided_slice(a, np.s_[1:])) for p in parts],
        [p.map(lambda a: tensor_ops.strided_slice(a, np.s_[: n - 1])) for p in parts],
        widths,
    )
    return shapes.pad(is_equal, [[1, 0]])


def _derive_sort_key_format(column: Column, descending: bool) -> _SortKeyFormat:
    # 63-bit numbers are compared like 64-bit numbers.
    width = 1 if column.values.ring_bits == 1 else column.bits
    width = ANY_BITS if width > _MAX_PART_BITS else width
    return _SortKeyFormat(((1,) if column.null is not None else ()) + (width,), descending)


def _group_key_widths(widths: Sequence[int]) -> list[tuple[int, ...]]:
    """Group neighboring widths that fit one number."""
    width_groups: list[tuple[int, ...]] = []
    for width in widths:
        if width_groups and sum(width_groups[-1]) + width <= _MAX_PART_BITS:
            width_groups[-1] += (width,)
        else:
            width_groups.append((width,))
    return width_groups


def _key_column_numbers(party: Party, column: Column, field: _SortKeyFormat) -> list[Shared]:
    """Return a column's NULL bit, if it has one, and its value, 0 where it is NULL, as numbers."""
    x, width = column.values, field.widths[-1]
    if x.ring_bits == 1:
        if column.null is not None:
            x = bits.all_of(party, [x, bits.invert(column.null)])
        x = bits.to_number(party, x)
    else:
        x = Shared(x.m, x.l1, x.l2, x.dealer)
        if column.null is not None:
            x = bits.multiply_by_bit(party, bits.invert(column.null), x)
    if field.descending:
        largest_value = -1 if width == ANY_BITS else (1 << width) - 1
        x = arithmetic.add_constant(arithmetic.neg(x), np.int64(largest_value))
    return [x] if column.null is None else [bits.to_number(party, column.null), x]
