"""Logic on private bits that are exchanged under a mask: b = masked ^ beta.

NOT and XOR are local; the AND of up to 9 bits takes one round (multi-input AND of
ABY2.0, Patra et al., USENIX Security 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.session import ops, sizes, slots, tensor_ops
from tfe_bench.protocols.session.cost import Cost, words_for_bits
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import EvaluatorBits, MaskedBits

MAX_AND_INPUTS = 9


def invert_bits(bits: MaskedBits) -> MaskedBits:
    """Return NOT of every bit. Local."""
    _check_masked_bits("invert", (bits,))
    if bits.masked is None:
        return bits
    return replace(bits, masked=tensor_ops.invert(bits.masked))


def xor_bits(a: MaskedBits, b: MaskedBits) -> MaskedBits:
    """Return a XOR b. Local.

    Raises:
        UsageError: different dealers or numbers of bits.
    """
    _check_masked_bits("xor", (a, b))
    return replace(
        a,
        masked=None if a.masked is None else tensor_ops.xor(a.masked, b.masked),
        beta=None if a.beta is None else tensor_ops.xor(a.beta, b.beta),
    )


def unpack_bits(bits: MaskedBits) -> Any:
    """Return masked or beta, whichever is held here, as int64 0 and 1 [n]. Local."""
    held_words: Any = bits.beta if bits.masked is None else bits.masked
    if not tensor_ops.is_concrete(held_words):
        return held_words.like([bits.n])
    return ops.module().tfe_bench_unpack_bits(words=held_words, n=bits.n)


def pack_bits(ones: Any) -> Any:
    """Return the lowest bits of rows of words [rows, n], packed [rows, words]. Local."""
    if not tensor_ops.is_concrete(ones):
        return ones.like([ones.shape[0], words_for_bits(ones.shape[1])])
    return ops.module().tfe_bench_pack_bits(bits=ones)


def replace_packed_bit_words(bits: MaskedBits, part: Any, n: int) -> MaskedBits:
    """Return n other bits of the same dealer, given this party's packed words `part`."""
    return replace(
        bits,
        masked=None if bits.masked is None else part,
        beta=None if bits.beta is None else part,
        n=n,
    )


def rearrange_private_bits(
    bits: MaskedBits, shape: Sequence[int], function: Callable[[tf.Tensor], tf.Tensor], n: int
) -> MaskedBits:
    """Move, drop or repeat bits by a public map. Local.

    Args:
        shape: static shape of the given bits.
        function: map of an int64 tensor of that shape, the same at all parties.
        n: number of bits of its result.
    """
    rearranged = function(tensor_ops.reshape(unpack_bits(bits), list(shape)))
    return replace_packed_bit_words(
        bits, tensor_ops.squeeze(pack_bits(tensor_ops.reshape(rearranged, [1, n])), [0]), n
    )


def and_bits(party: Party, bits: Sequence[MaskedBits]) -> EvaluatorBits:
    """Return the AND of 1 to 9 bits, element by element, as XOR shares of the evaluators.

    Rounds: 0 online (1 total). Bits sent: D 2^r - 1 per element.
    Raises:
        UsageError: no or too many operands, or different dealers or numbers of bits.
    """
    if not 1 <= len(bits) <= MAX_AND_INPUTS:
        raise UsageError(
            f"all_of takes 1 to {MAX_AND_INPUTS} operands. Received: {len(bits)}.",
            code="operand-count",
            operation="all_of",
            received=len(bits),
            expected=f"1 to {MAX_AND_INPUTS}",
        )
    _check_masked_bits("all_of", bits)
    first = bits[0]
    rows = tensor_ops.stack([b.beta if b.masked is None else b.masked for b in bits])
    return and_stacked_bit_rows(party, rows, len(bits), first.n, first.dealer)


def and_stacked_bit_rows(party: Party, rows: Any, count: int, n: Any, dealer: int) -> EvaluatorBits:
    """Return `and_bits` of operands that are stacked already.

    Args:
        rows: packed words [count, words], of beta at the dealer, masked at the evaluators.
        n: number of bits of each.
    """
    if isinstance(party, CostParty):
        cost = Cost(((1 << count) - 1) * 64 * words_for_bits(n), 0, 0, rounds=0, with_dealing=1)
        share = party.count_bit_messages(cost, n, rows, dealer=dealer)
        return EvaluatorBits(share, None, n, dealer)
    products = (1 << count) - 1
    s = party.site(
        "all_of",
        count,
        dealer=dealer,
        slots={0: slots.declare_dealt(1, times=products, unit=slots.WORD)},
    )
    if s.is_dealer:
        message = ops.module().tfe_bench_and_deal(beta=rows, **s.kernel_attributes())
        s.send(message, s.e2, 0, run_ahead=True)
        return EvaluatorBits(None, None, n, s.dealer)
    dealt = tf.zeros([0, 0], tf.int64)
    if s.is_e2:
        width = tf.shape(rows, out_type=tf.int64)[1] if rows.shape[1] is None else rows.shape[1]
        dealt = s.recv(tf.stack([products, width]), s.d)
    share = ops.module().tfe_bench_and_share(masked_bits=rows, dealt=dealt, **s.kernel_attributes())
    return EvaluatorBits(share, None, n, s.dealer)


def _check_masked_bits(name: str, bits: Sequence[MaskedBits]) -> None:
    for b in bits:
        if not isinstance(b, MaskedBits):
            raise UsageError(
                f"{name} expects private bits. Received: {type(b).__name__}.",
                code="not-private",
                operation=name,
                received=type(b).__name__,
            )
        if b.dealer != bits[0].dealer:
            raise UsageError(
                f"{name} expects bits of one dealer. Received: {bits[0]!r} and {b!r}.",
                code="dealer-mismatch",
                operation=name,
                received=f"{bits[0]!r}, {b!r}",
            )
    known = {n for n in (sizes.static_value(b.n) for b in bits) if isinstance(n, int)}
    if len(known) > 1:
        raise UsageError(
            f"{name} expects operands with equal numbers of bits. Received: {sorted(known)}.",
            code="size-mismatch",
            operation=name,
            received=sorted(known),
        )
