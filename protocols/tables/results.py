"""Filters, orders and delivered rows; and the checks of ranges and keys that operators rely on."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import RangeError, UsageError
from tfe_bench.protocols.order import select, shuffle
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic, refresh, shapes
from tfe_bench.protocols.ring.checks import check_private_64bit_tensor, is_integer_between
from tfe_bench.protocols.session import sizes, tensor_ops
from tfe_bench.protocols.session.cost import words_for_bits
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.io import reveal_bits
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared
from tfe_bench.protocols.tables import arrange, bits, keys
from tfe_bench.protocols.tables.arrange import cached_graph
from tfe_bench.protocols.tables.keys import OrderKey
from tfe_bench.protocols.tables.relation import Relation, limit_rows

_RADIX = 4  # arity of an AND of all rows: 5 bits for each


def filter_rows(party: Party, relation: Relation, bit: Shared) -> Relation:
    """Keep the rows valid that have the bit, [n] of Z_2.

    Rounds: 1 online, 2 in total. Bits sent: those of bits.all_of.
    """
    conjunction_graph = cached_graph(party, "filtered", lambda a, b: bits.all_of(party, [a, b]))
    return Relation(relation.columns, conjunction_graph(relation.valid, bit))


def order_by(
    party: Party, relation: Relation, by: Sequence[OrderKey], *, profile: str = "local"
) -> Relation:
    """Sort rows by keys, the first key most significant; rows with equal keys keep their order.

    Invalid rows come last, and among the others those without a value. Rounds and bits: those of
    keys.clear_keys, keys.sort_rows_by_key_parts, and of shuffle.apply_permutation for all columns.
    Raises:
        UsageError: there are no keys, or a column does not exist.
        RangeError: a key is outside its column's bits.
    """
    if not by:
        raise UsageError(
            "order_by expects keys. Received: none.", code="empty-input", operation="order_by"
        )
    columns = [(relation.column(k.column), k.descending) for k in by]
    parts = keys.clear_keys(party, relation.valid, columns)
    permutation = keys.sort_rows_by_key_parts(party, relation.valid, parts, profile)
    return relation.with_parts(permutation.apply(relation.parts))


def top_rows(
    party: Party, relation: Relation, by: Sequence[OrderKey], count: int, *, profile: str = "local"
) -> Relation:
    """Return the first `count` rows of `order_by`, or all.

    Args:
        count: public, at least 1.

    Rounds and bits: those of keys.clear_keys, arrange.select_first and of shuffle.apply_permutation
    for all columns, if a selection is expected to compare less than a sort and the keys are one
    number of up to 62 bits with the mark of invalid rows; otherwise those of `order_by`.
    Raises:
        UsageError, RangeError: as order_by; count is out of range.
    """
    if not by or not is_integer_between(count, 1, 2**31):
        raise UsageError(
            f"top expects keys, and at least 1 row. Received: {list(by)}, {count!r}.",
            code="number-out-of-range" if by else "empty-input",
            operation="top",
            received=count,
        )
    n = relation.rows
    if count >= n or not select.is_selection_cheaper(n, count, profile):
        return limit_rows(order_by(party, relation, by, profile=profile), count)
    columns = [(relation.column(k.column), k.descending) for k in by]
    parts = keys.clear_keys(party, relation.valid, columns)
    if len(parts) > 1:
        permutation = keys.sort_rows_by_key_parts(party, relation.valid, parts, profile)
        return limit_rows(relation.with_parts(permutation.apply(relation.parts)), count)
    [(key, width)] = parts
    secret_shuffle, positions = arrange.select_first(party, key, width, count, profile=profile)
    return relation.with_parts(secret_shuffle.apply(relation.parts, positions))


def deliver_rows(party: Party, relation: Relation, *, is_ordered: bool = False) -> Relation:
    """Prepare rows for delivery: in random order, invalid rows and NULLs 0, freshly masked.

    The position of a row is data too: only a requested order (`order_by`) may remain.

    Args:
        is_ordered: the rows have such an order.

    Rounds: 5 online, 6 in total; 2 without the shuffle. Bits sent: those of
    shuffle.apply_permutation, a product with a bit for each word, in a ring of its column's bits,
    and an AND for each bit.
    """

    def clear_and_shuffle(relation: Relation) -> Relation:
        delivered_parts = list(relation.parts)
        if not is_ordered and relation.rows > 1:
            delivered_parts = [
                *(part for c in relation.columns for part in c.narrow_parts),
                relation.valid,
            ]
            factors = shuffle.draw_permutation(party, 1, relation.rows, relation.valid.dealer)
            rows = [shapes.expand_dims(part, 0) for part in delivered_parts]
            step = shuffle.MAX_COLUMNS
            batches = [rows[i : i + step] for i in range(0, len(rows), step)]
            shuffled_parts = [
                c for batch in batches for c in shuffle.apply_permutation(party, factors, batch)
            ]
            delivered_parts = [c.map(lambda a: tensor_ops.squeeze(a, [0])) for c in shuffled_parts]
        *shuffled_parts, valid = delivered_parts
        remaining_parts, parts = iter(shuffled_parts), []
        for column in relation.columns:
            values, is_present = next(remaining_parts), valid
            null = None if column.null is None else next(remaining_parts)
            if null is not None:
                is_present = bits.all_of(party, [valid, bits.invert(null)])
            parts.append(
                bits.extend_column_values(party, bits.multiply_by_bit(party, is_present, values))
            )
            if null is not None:
                parts.append(bits.all_of(party, [valid, null]))
        return relation.with_parts([*parts, refresh.refresh(party, valid)])

    delivered: Relation = cached_graph(party, "deliver", clear_and_shuffle, is_ordered)(relation)
    return delivered


def check_range(party: Party, x: Shared, low: int, high: int, *, name: str = "A column") -> None:
    """Check that every element of [n] is from low to high: opens that one bit.

    All rows are checked, valid or not, whichever client shared them: only then may operators rely
    on the range.

    Args:
        low, high: in ring units, at most 2^63 - 1 apart.
        name: for the error.

    Rounds: 4 online, 5 in total, and one for each AND of 4. Bits sent: two comparisons of 64 bits,
    and about 1 byte per row for the AND.
    Raises:
        UsageError: the bounds are invalid.
        RangeError: an element is outside.
    """
    check_private_64bit_tensor("check_range", x, known=True)
    if not (
        is_integer_between(low, -(2**63), 2**63 - 1)
        and is_integer_between(high, low, min(low + 2**63, 2**63) - 1)
    ):
        raise UsageError(
            f"check_range expects bounds less than 2^63 apart. Received: {low!r} and {high!r}.",
            code="invalid-range",
            operation="check_range",
            received=f"{low!r} and {high!r}",
        )
    n = int(np.prod(x.shape))

    def open_all_rows_in_range(x: Shared) -> Any:
        # 0 <= v and 0 <= high - low - v, for v = x - low: both tests are exact, as v is below 2^63
        # then.
        offset = (2**63 - low) % 2**64 - 2**63
        v = arithmetic.add_constant(x.map(lambda a: tensor_ops.reshape(a, [n])), np.int64(offset))
        # Padding rows fill the last word; they are inside the range.
        v = shapes.pad(v, [[0, -n % 64]])
        distance_to_high = arithmetic.add_constant(arithmetic.neg(v), np.int64(high - low))
        signs = compare.msb(party, shapes.concat([v, distance_to_high], 0))
        return _open_and_of_row_bits(party, logic.invert_bits(convert.mask_bits(party, signs)))

    if n and not _is_opened_row_bit_set(
        party, cached_graph(party, "check_range", open_all_rows_in_range, low, high, n)(x)
    ):
        raise RangeError(
            f"{name} holds a number outside its declared range, {low} to {high} in ring "
            "units. Declare a wider range, or none.",
            code="outside-declared-range",
            operation=name,
            expected=f"{low} to {high}",
        )


def check_unique(
    party: Party, relation: Relation, by: Sequence[int], *, profile: str = "local"
) -> None:
    """Check that no two valid rows have the same key: opens that one bit.

    A client that adds rows could use the answer to query other rows: check the stored rows of one
    owner only, once. Rows with NULL in a key count as different.

    Rounds and bits: those of keys.clear_keys, keys.sort_rows_by_key_parts and keys.compare_keys,
    and of an AND of all rows.
    Raises:
        RangeError: two rows have the same key.
    """
    columns = [relation.column(i) for i in by]
    n = relation.rows
    if n < 2:
        return
    valid = keys.exclude_nulls(party, relation.valid, columns)
    parts = keys.clear_keys(party, valid, [(replace(c, null=None), False) for c in columns])
    permutation = keys.sort_rows_by_key_parts(party, valid, parts, profile)
    widths = tuple(k for _, k in parts)
    *sorted_parts, sorted_valid = permutation.apply([*keys.narrow_key_parts(parts), valid])

    def open_all_keys_unique(sorted_valid: Shared, *sorted_keys: Shared) -> Any:
        is_repeated = keys.equals_previous(party, sorted_keys, widths)
        valid_repeats = shapes.pad(bits.all_of(party, [is_repeated, sorted_valid]), [[0, -n % 64]])
        return _open_and_of_row_bits(party, bits.to_masked(bits.invert(valid_repeats)))

    if not _is_opened_row_bit_set(
        party,
        cached_graph(party, "check_unique", open_all_keys_unique, widths)(
            sorted_valid, *sorted_parts
        ),
    ):
        raise RangeError(
            "A key that is declared unique is repeated. Remove the repeated rows.",
            code="duplicate-key",
            operation="check_unique",
        )


def _open_and_of_row_bits(party: Party, ones: MaskedBits) -> Any:
    """Open the AND of all bits, whose number is a multiple of 64. Call it inside a graph."""
    width = words_for_bits(int(sizes.static_value(ones.n)))
    packed_words = tensor_ops.reshape(ones.beta if ones.masked is None else ones.masked, [width])
    while width > 1:
        count = -(-width // _RADIX)
        # Missing bits are 1, with masks of 0.
        missing = count * _RADIX - width
        padding = packed_words.like([missing]) if not tensor_ops.is_concrete(packed_words) else None
        if padding is None:
            padding = np.full(missing, 0 if ones.masked is None else -1, np.int64)
        rows = tensor_ops.reshape(tensor_ops.concat([packed_words, padding], 0), [_RADIX, count])
        conjunction = logic.and_stacked_bit_rows(party, rows, _RADIX, 64 * count, ones.dealer)
        ones = convert.mask_bits(party, conjunction)
        width = count
        packed_words = tensor_ops.reshape(
            ones.beta if ones.masked is None else ones.masked, [width]
        )
    n, remaining_bits = 64, replace(ones, n=64)
    while True:
        n //= _RADIX
        parts = [slice(n * i, n * (i + 1)) for i in range(_RADIX)]
        groups = [
            logic.rearrange_private_bits(
                remaining_bits, (n * _RADIX,), operator.itemgetter(part), n
            )
            for part in parts
        ]
        conjunction_bits = logic.and_bits(party, groups)
        if n == 1:
            return reveal_bits(party, conjunction_bits, "checks of stored tables")
        remaining_bits = convert.mask_bits(party, conjunction_bits)


def _is_opened_row_bit_set(party: Party, opened_bit: Any) -> bool:
    return isinstance(party, CostParty) or bool(int(opened_bit.numpy()[0]) & 1)
