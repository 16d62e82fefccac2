"""Secret shuffle: Chida et al. 2019 (ePrint 2019/695), algorithm 9.

The permutation is the composition of three factors, each known to two parties, so no single party
knows it. Each row of a matrix gets its own permutation: one permutation for all rows would reveal
which rows have equal order.

A worker can keep the factors that it knows (`ShuffleFactors`), to apply the same permutation to
other columns (`apply_permutation`) and to undo it (`apply_inverse`): a permutation serves many
columns, a mask only one. Kept factors must not outlive their purpose, and at most one vector may be
opened among all columns that they permute (tables/arrange.py ensures that).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.ring import masked
from tfe_bench.protocols.session import ops, sizes, slots, tensor_ops, wide
from tfe_bench.protocols.session.cost import Cost, packed_bits
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.packing import pack_ring_words, receive_packed_ring_words
from tfe_bench.protocols.session.party import K1, K2, K3, Party, Site
from tfe_bench.protocols.session.sharing import Shared

# Mask numbers of a column c: a0, a1 and the mask of the result.
_FIRST, _PER_COLUMN = 3, 3
MAX_COLUMNS = (256 - _FIRST) // _PER_COLUMN


@dataclass(frozen=True, repr=False, eq=False)
class ShuffleFactors:
    """The two factors that this worker knows, of the permutation p2 after p1 after p0.

    Attributes:
        p0: int32 [rows, n], known to D and E2.
        p1: known to D and E1.
        p2: known to E1 and E2.
        dealer: of the columns that they permute.
    """

    p0: Any
    p1: Any
    p2: Any
    dealer: int

    def __repr__(self) -> str:
        return f"Factors(dealer={self.dealer})"


def _permute_rows(x: tf.Tensor, permutation: tf.Tensor) -> tf.Tensor:
    return ops.module().tfe_bench_permute(x=x, permutation=permutation)


def _compose_positions(p2: Any, positions: Any) -> Any:
    if p2 is None or positions is None:
        return p2
    composed = ops.module().tfe_bench_compose(p=_single_row(p2), q=positions)
    return tensor_ops.expand_dims(composed, 0)


def _single_row(p: tf.Tensor) -> tf.Tensor:
    """Return a permutation [1, n] as [n]."""
    return tensor_ops.reshape(p, [-1])


def _replace_row_length(shape: Any, n: Any) -> Any:
    """Return a shape with n in place of its second size, [rows, n, ...], an int64 tensor."""
    static_shape = tf.get_static_value(shape)
    if static_shape is not None and isinstance(n, int):
        return tensor_ops.constant([int(static_shape[0]), n, *map(int, static_shape[2:])])
    return tf.concat([shape[:1], tf.reshape(tf.cast(n, tf.int64), [1]), shape[2:]], 0)


def _row_count_and_length(x: tf.Tensor) -> Any:
    """Return the shape's first two sizes, an int64 tensor."""
    static_sizes = tensor_ops.static_shape(x)[:2]
    return (
        tensor_ops.constant(static_sizes.as_list())
        if static_sizes.is_fully_defined()
        else tensor_ops.dynamic_shape(x)[:2]
    )


def _draw_permutation_factors(s: Site, shape: Any) -> ShuffleFactors:
    return ShuffleFactors(
        None if s.is_e1 else s.permutation(K2, 0, shape),
        None if s.is_e2 else s.permutation(K1, 1, shape),
        None if s.is_dealer else s.permutation(K3, 2, shape),
        s.dealer,
    )


def draw_permutation(party: Party, rows: int, n: int, dealer: int) -> ShuffleFactors:
    """Draw a secret permutation of n for each row. Rounds: 0. Bits sent: none."""
    if isinstance(party, CostParty):
        return ShuffleFactors(None, None, None, dealer)
    return _draw_permutation_factors(
        party.site("order", rows, n, dealer=dealer), tensor_ops.constant([rows, n])
    )


def shuffle(party: Party, columns: Sequence[Shared]) -> list[Shared]:
    """Permute the elements of each row at random, all columns of a row alike.

    Args:
        columns: private tensors [rows, n] of one dealer (wide ones as [rows, n, 2] words).

    Rounds: 2. Bits sent per 64-bit word: D 64, E1 64, E2 128; for a ring Z_2^k k, k and 2k, packed.
    Raises:
        UsageError: too many columns, or columns of several dealers.
    """
    return apply_permutation(party, None, columns)


def apply_permutation(
    party: Party,
    factors: ShuffleFactors | None,
    columns: Sequence[Shared],
    positions: Any = None,
) -> list[Shared]:
    """Shuffle columns by an existing permutation, under fresh masks.

    Args:
        positions: int32 [m], public, for one row: the result is the permuted row at these
            positions.

    Rounds and bits, errors: as `shuffle`; the evaluators exchange m elements.
    """
    dealer = _check_shuffled_columns(
        "shuffle", columns, None if factors is None else factors.dealer
    )
    if isinstance(party, CostParty):
        shapes = [_shuffled_shape(c.any.shape, positions) for c in columns]
        column_bits, result_bits = (
            _packed_shuffle_bits(columns, shape_list)
            for shape_list in ([c.any.shape for c in columns], shapes)
        )
        m = party.count_messages(
            Cost(column_bits, result_bits, column_bits + result_bits, rounds=2, with_dealing=2),
            max(shapes, key=math.prod),
            *columns,
        )
        return [replace(c, m=m.like(shape)) for c, shape in zip(columns, shapes, strict=True)]

    is_fresh = factors is None
    column_slots: dict[int, slots.Slot] = {}
    for c, x in enumerate(columns):
        width = _shuffled_element_bits(x)
        column_slots[3 * c] = slots.declare_dealt(width)
        column_slots[3 * c + 1] = slots.declare_sent((slots.E2, slots.E1), width=width)
        column_slots[3 * c + 2] = slots.declare_exchanged(width)
    s = party.site(
        "shuffle",
        is_fresh,
        tuple(c.ring_bits for c in columns),
        dealer=dealer,
        slots=column_slots,
    )
    known_factors = (
        _draw_permutation_factors(s, _row_count_and_length(columns[0].any))
        if factors is None
        else factors
    )
    # The last factor and the positions are composed into one permutation here, before masks are
    # added, which would have to be permuted too.
    last_factor = _compose_positions(known_factors.p2, positions)
    result = []
    for c, x in enumerate(columns):
        a0, a1, fresh = _number_column_masks(c)
        width = _shuffled_element_bits(x)
        add_name, subtract_name = (masked.mask_operation(name, width) for name in ("add", "sub"))
        shape = tensor_ops.dynamic_shape(x.any)
        y = None
        if s.is_dealer:
            mask_sum = tensor_ops.add(x.l1, x.l2) if x.limbs == 1 else wide.add(x.l1, x.l2)
            negated_mask = tensor_ops.neg(mask_sum) if x.limbs == 1 else wide.negate(mask_sum)
            inner = s.apply_mask(
                _permute_rows(negated_mask, known_factors.p0), K2, a0, subtract_name, sent=False
            )
            delta = s.apply_mask(_permute_rows(inner, known_factors.p1), K1, a1, subtract_name)
            s.send(pack_ring_words(delta, width), s.e2, 3 * c, run_ahead=True)
        elif s.is_e2:
            gamma = s.apply_mask(_permute_rows(x.m, known_factors.p0), K2, a0, add_name)
            s.send(pack_ring_words(gamma, width), s.e1, 3 * c + 1)
            y = _permute_rows(receive_packed_ring_words(s, shape, s.d, 3 * c, width), last_factor)
        else:
            gamma = receive_packed_ring_words(s, shape, s.e2, 3 * c + 1, width)
            y = _permute_rows(
                s.apply_mask(_permute_rows(gamma, known_factors.p1), K1, a1, add_name, sent=False),
                last_factor,
            )
        if positions is not None:
            shape = _replace_row_length(shape, sizes.tensor_size(positions))
        permuted = masked.exchange_masked(s, y, shape, fresh, 3 * c + 2, scale=x.fractional_bits)
        result.append(replace(permuted, bits=x.bits))
    return result


def apply_inverse(
    party: Party,
    factors: ShuffleFactors,
    columns: Sequence[Shared],
    positions: Any = None,
    begin: int = 0,
) -> list[Shared]:
    """Return columns to their order before `apply_permutation`, under fresh masks.

    x = m - l1 - l2 reads, with E1 as the dealer, as m' - l1' - l2' with m' = -l2, l1' = l1, l2' =
    -m, and D and E2 as the evaluators. The inverse factors are applied in the reverse order, and
    each of the three parties lacks one of them: this is the shuffle with these roles.

    Args:
        columns: [1, n], of one word.
        positions: those of `apply_permutation`, all n of them.
        begin: the first element of the result; elements before it are not returned.

    Rounds: 2. Bits sent for a ring Z_2^k: E1 k per element, D k per element of the result; E2 both.
    Raises:
        UsageError: as `shuffle`; several rows or wide columns.
    """
    dealer = _check_shuffled_columns("undo", columns, factors.dealer)
    if any(c.limbs != 1 or c.shape[0] != 1 for c in columns):
        raise UsageError(
            f"Expected one row of words. Received: {list(columns)}.",
            code="shape-mismatch",
            operation="apply_inverse",
            received=repr(list(columns)),
        )
    if isinstance(party, CostParty):
        shapes = [[1, c.shape[1] - begin] for c in columns]
        column_bits, result_bits = (
            _packed_shuffle_bits(columns, shape_list)
            for shape_list in ([c.shape for c in columns], shapes)
        )
        m = party.count_messages(
            Cost(result_bits, column_bits, column_bits + result_bits, rounds=2, with_dealing=2),
            max(shapes, key=math.prod),
            *columns,
            dealer_learns=True,
        ).with_exchanged_masks()
        return [replace(c, m=m.like(shape)) for c, shape in zip(columns, shapes, strict=True)]
    routes = (
        [(slots.E1, slots.E2)],
        [(slots.E2, slots.D)],
        [(slots.E2, slots.D), (slots.D, slots.E2)],
    )
    s = party.site(
        "undo",
        tuple(c.ring_bits for c in columns),
        begin,
        dealer=dealer,
        slots={
            3 * c + i: slots.declare_sent(*route, width=x.ring_bits)
            for c, x in enumerate(columns)
            for i, route in enumerate(routes)
        },
    )
    q0, q1, q2 = (
        None
        if p is None
        else tensor_ops.expand_dims(ops.module().tfe_bench_invert(p=_single_row(p)), 0)
        for p in (factors.p0, factors.p1, _compose_positions(factors.p2, positions))
    )
    q0 = q0 if q0 is None or not begin else q0[:, begin:]
    result = []
    for c, x in enumerate(columns):
        a0, a1, fresh = _number_column_masks(c)
        width = x.ring_bits
        shape = tensor_ops.dynamic_shape(x.any)
        result_shape = _replace_row_length(shape, sizes.tensor_size(x.any) - begin)
        # delta depends on a message that has just arrived: it cannot be sent ahead.
        if s.is_e1:
            inner = s.apply_mask(_permute_rows(x.m - x.l1, q2), K3, a0, "sub", sent=False)
            delta = s.apply_mask(_permute_rows(inner, q1), K1, a1, "sub")
            s.send(pack_ring_words(delta, width), s.e2, 3 * c)
            restored = Shared(
                -s.mask(K3, fresh, result_shape), s.mask(K1, fresh, result_shape), None, s.dealer
            )
        else:
            if s.is_e2:
                gamma = s.apply_mask(_permute_rows(-x.l2, q2), K3, a0, "add")
                s.send(pack_ring_words(gamma, width), s.d, 3 * c + 1)
                y = _permute_rows(receive_packed_ring_words(s, shape, s.e1, 3 * c, width), q0)
            else:
                gamma = receive_packed_ring_words(s, shape, s.e2, 3 * c + 1, width)
                y = _permute_rows(
                    s.apply_mask(_permute_rows(gamma, q1), K1, a1, "add", sent=False), q0
                )
            key, peer = (K3, s.d) if s.is_e2 else (K1, s.e2)
            sent_value = pack_ring_words(s.apply_mask(y, key, fresh, "add"), width)
            s.send(sent_value, peer, 3 * c + 2)
            received_value = s.recv(
                tf.shape(sent_value, out_type=tf.int64), peer, 3 * c + 2, sent_value.dtype
            )
            l2 = -masked.add_messages(sent_value, received_value, result_shape, width)
            mask = s.mask(key, fresh, result_shape)
            restored = (
                Shared(-mask, None, l2, s.dealer) if s.is_e2 else Shared(None, mask, l2, s.dealer)
            )
        result.append(replace(restored, fractional_bits=x.fractional_bits, bits=x.bits))
    return result


def _number_column_masks(column: int) -> list[int]:
    return [_FIRST + _PER_COLUMN * column + i for i in range(_PER_COLUMN)]


def _shuffled_element_bits(x: Shared) -> int:
    """Return the transferred bits of an element."""
    return 64 * x.limbs if x.limbs == 2 else x.ring_bits


def _shuffled_shape(shape: Any, positions: Any) -> Any:
    return shape if positions is None else [shape[0], positions.shape[0], *shape[2:]]


def _packed_shuffle_bits(columns: Sequence[Shared], shapes: Sequence[Any]) -> int:
    return sum(
        packed_bits(shape[0] * shape[1], _shuffled_element_bits(c))
        for c, shape in zip(columns, shapes, strict=True)
    )


def _check_shuffled_columns(name: str, columns: Sequence[Shared], dealer: int | None) -> int:
    if not columns or len(columns) > MAX_COLUMNS:
        raise UsageError(
            f"{name} expects 1 to {MAX_COLUMNS} columns. Received: {len(columns)}.",
            code="number-out-of-range",
            operation=name,
            received=len(columns),
            expected=f"1 to {MAX_COLUMNS}",
        )
    dealer = columns[0].dealer if dealer is None else dealer
    if any(c.dealer != dealer for c in columns):
        raise UsageError(
            f"{name} expects columns of one dealer.", code="dealer-mismatch", operation=name
        )
    return dealer
