"""Private bits as values of Z_2: shared like numbers, so that rows carry them like numbers.

In `MaskedBits` the dealer knows beta, its part, as a whole. Here it is split in two, as in every
other value, each half held by the dealer and one evaluator: a shuffle, its inverse and a change of
dealers require this. Sums modulo 2 are XORs, so differences and running sums of bits are local too.

Call all functions inside graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic, convert, logic, masked, small_ring
from tfe_bench.protocols.session import ops, sizes, slots, tensor_ops
from tfe_bench.protocols.session.cost import Cost, words_for_bits
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import K1, Party
from tfe_bench.protocols.session.sharing import EvaluatorBits, MaskedBits, Shared


def from_masked(party: Party, bits: MaskedBits) -> Shared:
    """Convert private bits to values of Z_2, [n]: D deals fresh shares of its part.

    Rounds: 0 online, 1 in total. Bits sent: D 1 per bit, in whole words.
    """
    n = int(sizes.static_value(bits.n))
    if isinstance(party, CostParty):
        cost = Cost(64 * words_for_bits(n), 0, 0, rounds=0, with_dealing=1)
        return Shared(party.count_messages(cost, [n], bits), None, None, bits.dealer, bits=1)
    s = party.site(
        "split_bits", n, dealer=bits.dealer, slots={0: slots.declare_dealt(1, unit=slots.WORD)}
    )
    shape = sizes.vector_shape(words_for_bits(n))
    m = l1 = l2 = None
    if s.is_dealer:
        l1 = s.mask(K1, 0, shape)
        l2 = s.apply_mask(bits.beta, K1, 0, "xor")
        s.send(l2, s.e2, run_ahead=True)
    elif s.is_e1:
        m, l1 = bits.masked, s.mask(K1, 0, shape)
    else:
        m, l2 = bits.masked, s.recv(shape, s.d)
    m, l1, l2 = (None if p is None else _unpack_words(p, n) for p in (m, l1, l2))
    return Shared(m, l1, l2, bits.dealer, bits=1)


def exchange_bits(party: Party, bits: EvaluatorBits) -> Shared:
    """Convert XOR shares of the evaluators to values of Z_2 under a fresh mask, [n].

    Rounds: 1. Bits sent: E1, E2 1 per bit each, in whole bytes.
    """
    n = int(sizes.static_value(bits.n))
    if isinstance(party, CostParty):
        return party.count_exchange([n], None, bits, width=1)
    s = party.site("exchange_bits", n, dealer=bits.dealer, slots={0: slots.declare_exchanged(1)})
    if s.is_dealer and bits.top is not None:
        raise UsageError(
            "exchange_bits expects bits that the evaluators hold completely. Received: "
            "bits with a part at the dealer.",
            code="unsupported-type",
            operation="exchange_bits",
        )
    share = None if bits.share is None else _unpack_words(bits.share, n)
    return masked.exchange_masked(s, share, sizes.vector_shape(n), 0)


def to_masked(x: Shared) -> MaskedBits:
    """Convert values of Z_2 to bits whose part the dealer knows. Local."""
    _check_row_bits("masked_bits", [x])
    n = x.shape.num_elements()

    def pack_row_bit_part(a: Any) -> Any:
        return tensor_ops.squeeze(logic.pack_bits(tensor_ops.reshape(a, [1, n])), [0])

    if x.m is None:
        return MaskedBits(None, pack_row_bit_part(tensor_ops.add(x.l1, x.l2)), n, x.dealer, (n,))
    return MaskedBits(pack_row_bit_part(x.m), None, n, x.dealer, (n,))


def invert(x: Shared) -> Shared:
    """Return NOT x. Local."""
    _check_row_bits("invert", [x])
    return arithmetic.add_constant(x, np.int64(1))


def xor(x: Shared, y: Shared) -> Shared:
    """Return x XOR y. Local."""
    _check_row_bits("xor", [x, y])
    return arithmetic.add(x, y)


def all_of(party: Party, operands: Sequence[Shared]) -> Shared:
    """Return the AND of 1 to 9 bits, element by element.

    Rounds: 1 online, 2 in total. Bits sent: those of logic.and_bits and `exchange_bits`.
    """
    _check_row_bits("all_of", operands)
    if len(operands) == 1:
        return operands[0]
    return exchange_bits(party, logic.and_bits(party, [to_masked(x) for x in operands]))


def any_of(party: Party, operands: Sequence[Shared]) -> Shared:
    """Return the OR of 1 to 9 bits; rounds and bits as `all_of`."""
    return invert(all_of(party, [invert(x) for x in operands]))


def to_number(party: Party, x: Shared, width: int = 64) -> Shared:
    """Convert bits to ring elements 0 and 1 of Z_2^width.

    Rounds: 1 online, 2 in total. Bits sent: D, E1, E2 width per bit each.
    """
    return convert.b2a(party, to_masked(x), width=width)


def multiply_by_bit(party: Party, bit: Shared, x: Shared) -> Shared:
    """Return x of Z_2^k where the bit is 1, else 0; for bits x their AND.

    Rounds: 1 online, 2 in total. Bits sent: D 2 k, E1, E2 k per element each.
    """
    if x.ring_bits == 1:
        return all_of(party, [bit, x])
    if x.ring_bits < 64:
        return small_ring.select(party, to_masked(bit), x, x.map(tensor_ops.zeros_like))
    return convert.inject(party, to_masked(bit), x)


def extend_column_values(party: Party, x: Shared) -> Shared:
    """Extend values of `Column.narrow_parts`, or their product with a bit, to Z_2^64.

    Rounds: 1 online, 2 in total, or none. Bits sent: those of small_ring.extend_nonnegative.
    """
    return small_ring.extend_nonnegative(party, x) if 1 < x.ring_bits < 64 else x


def share_public_row_bits(like: Shared, values: Any) -> Shared:
    """Share public bits 0 and 1 with the dealer of another value. Local."""
    return replace(arithmetic.share_public(like, np.asarray(values, np.int64)), bits=1)


def _unpack_words(packed_words: Any, n: int) -> Any:
    return tensor_ops.reshape(ops.module().tfe_bench_unpack_bits(words=packed_words, n=n), [n])


def _check_row_bits(name: str, operands: Sequence[Shared]) -> None:
    for x in operands:
        if not isinstance(x, Shared) or x.ring_bits != 1 or x.limbs != 1:
            raise UsageError(
                f"{name} expects bits of Z_2. Received: {x!r}.",
                code="unsupported-type",
                operation=name,
                received=repr(x),
            )
    if not operands or len({x.dealer for x in operands}) > 1:
        raise UsageError(
            f"{name} expects bits of one dealer. Received: {list(operands)!r}.",
            code="dealer-mismatch",
            operation=name,
            received=repr(list(operands)),
        )
