"""Logic on private bits that are exchanged under a mask: b = masked ^ beta.

NOT and XOR are free; the AND of up to 9 bits takes one round (multi-input AND of
ABY2.0, Patra et al., USENIX Security 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tfe_bench.errors import UsageError
from tfe_bench.protocols.session import local, ops, sizes
from tfe_bench.protocols.session.cost import Cost, words
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import EvaluatorBits, MaskedBits

if TYPE_CHECKING:
    import tensorflow as tf

MOST = 9


def invert(bits: MaskedBits) -> MaskedBits:
    """NOT of every bit.  Local."""
    _one_dealer("invert", (bits,))
    if bits.masked is None:
        return bits
    return replace(bits, masked=local.invert(bits.masked))


def xor(a: MaskedBits, b: MaskedBits) -> MaskedBits:
    """a XOR b.  Local.

    Raises:
        UsageError: different dealers or numbers of bits.
    """
    _one_dealer("xor", (a, b))
    return replace(
        a,
        masked=None if a.masked is None else local.xor(a.masked, b.masked),
        beta=None if a.beta is None else local.xor(a.beta, b.beta),
    )


def unpacked(bits: MaskedBits) -> Any:
    """masked or beta, whichever is held here, as int64 0 and 1 [n].  Local."""
    held: Any = bits.beta if bits.masked is None else bits.masked
    if not local.known(held):
        return held.like([bits.n])
    return ops.module().tfe_bench_unpack_bits(words=held, n=bits.n)


def packed(ones: Any) -> Any:
    """Rows of 0 and 1 [rows, n] as packed words [rows, words].  Local."""
    if not local.known(ones):
        return ones.like([ones.shape[0], words(ones.shape[1])])
    return ops.module().tfe_bench_pack_bits(bits=ones)


def held_as(bits: MaskedBits, part: Any, n: int) -> MaskedBits:
    """n other bits of the same dealer, of whose packed words this party holds `part`."""
    return replace(
        bits,
        masked=None if bits.masked is None else part,
        beta=None if bits.beta is None else part,
        n=n,
    )


def rearrange(
    bits: MaskedBits, shape: Sequence[int], function: Callable[[tf.Tensor], tf.Tensor], n: int
) -> MaskedBits:
    """Bits moved, dropped or repeated by a public map.  Local.

    Args:
        shape: static, of the bits given.
        function: on an int64 tensor of that shape, the same at all parties.
        n: number of bits that it leaves.
    """
    moved = function(local.reshape(unpacked(bits), list(shape)))
    return held_as(bits, local.squeeze(packed(local.reshape(moved, [1, n])), [0]), n)


def all_of(party: Party, bits: Sequence[MaskedBits]) -> EvaluatorBits:
    """AND of 1 to 9 bits, element by element, as XOR shares of the evaluators.

    Rounds: 0 with D ahead, else 1.  Bits sent: D 2^r - 1 per element.
    Raises:
        UsageError: no or too many operands, or different dealers or numbers of bits.
    """
    if not 1 <= len(bits) <= MOST:
        raise UsageError(f"all_of takes 1 to {MOST} operands. Received: {len(bits)}.")
    _one_dealer("all_of", bits)
    first = bits[0]
    rows = local.stack([b.beta if b.masked is None else b.masked for b in bits])
    return all_of_rows(party, rows, len(bits), first.n, first.dealer)


def all_of_rows(party: Party, rows: Any, count: int, n: Any, dealer: int) -> EvaluatorBits:
    """`all_of` of operands that are stacked already.

    Args:
        rows: packed words [count, words], of beta at the dealer, masked at the evaluators.
        n: number of bits of each.
    """
    if isinstance(party, Counting):
        cost = Cost(((1 << count) - 1) * 64 * words(n), 0, 0, rounds=0, with_dealing=1)
        share = party.sent_bits(cost, n, rows, dealer=dealer)
        return EvaluatorBits(share, None, n, dealer)
    import tensorflow as tf

    s = party.site("all_of", count, dealer=dealer)
    if s.is_dealer:
        message = ops.module().tfe_bench_and_deal(beta=rows, **s.attributes())
        s.send(message, s.e2, 0, run_ahead=True)
        return EvaluatorBits(None, None, n, s.dealer)
    dealt = tf.zeros([0, 0], tf.int64)
    if s.is_e2:
        width = tf.shape(rows, out_type=tf.int64)[1] if rows.shape[1] is None else rows.shape[1]
        dealt = s.recv(tf.stack([(1 << count) - 1, width]), s.d)
    share = ops.module().tfe_bench_and_share(masked_bits=rows, dealt=dealt, **s.attributes())
    return EvaluatorBits(share, None, n, s.dealer)


def _one_dealer(name: str, bits: Sequence[MaskedBits]) -> None:
    for b in bits:
        if not isinstance(b, MaskedBits):
            raise UsageError(f"{name} wants private bits. Received: {type(b).__name__}.")
        if b.dealer != bits[0].dealer:
            raise UsageError(f"{name} wants bits of one dealer. Received: {bits[0]!r} and {b!r}.")
    known = {n for n in (sizes.known(b.n) for b in bits) if isinstance(n, int)}
    if len(known) > 1:
        raise UsageError(f"{name} wants equally many bits. Received: {sorted(known)}.")
