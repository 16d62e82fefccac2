"""Building blocks of private tables, as test_joint_views.py examines them."""

from __future__ import annotations

from typing import Any

from tfe_bench.protocols.order import shuffle
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic, small_ring
from tfe_bench.protocols.session import io
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared
from tfe_bench.protocols.tables import bits, dense

K = 5  # comparisons that only feed other protocols


def reshape_shares(x: Shared, *shape: int) -> Shared:
    import tensorflow as tf

    return x.map(lambda a: tf.reshape(a, shape))


def sign_bits(party: Party, x: Shared) -> MaskedBits:
    return convert.mask_bits(party, compare.msb(party, x, K, 1))


def compare_shuffled(party: Party, x: Shared, y: Shared) -> Any:
    """Open one comparison of shuffled values: the secret order affects no other message.

    The opened bits affect no message.
    """
    columns = shuffle.shuffle(party, [reshape_shares(c, 1, -1) for c in (x, y)])
    first, second = (columns[0].map(lambda a, i=i: a[0, i : i + 1]) for i in (0, 1))
    return io.reveal_bits(party, compare.msb(party, arithmetic.sub(first, second), K, 1))


def permute_and_back(party: Party, x: Shared, y: Shared, begin: int = 0) -> Any:
    """Permute columns of two rings by one secret order and back, one after the other."""
    columns = [reshape_shares(x, 1, -1), small_ring.reduce_ring(reshape_shares(y, 1, -1), 13)]
    factors = shuffle.draw_permutation(party, 1, x.shape[0], x.dealer)
    there = [shuffle.apply_permutation(party, factors, [c])[0] for c in columns]
    return shuffle.apply_inverse(party, factors, there, None, begin)


def share_and_exchange(party: Party, x: Shared, y: Shared) -> Any:
    """Share the masks of bits again, and convert the AND of the bits to numbers."""
    split = bits.from_masked(party, sign_bits(party, x))
    joined = bits.exchange_bits(party, logic.and_bits(party, [bits.to_masked(split)] * 2))
    return bits.to_number(party, joined, 7)


def sum_by_codes(party: Party, x: Shared, y: Shared) -> Any:
    """Return sums of two codes, exchanged once for all rows."""
    valid = party.cached_function(
        "signs", lambda: lambda a: bits.from_masked(party, sign_bits(party, a))
    )(y)
    return dense._sum_columns_by_group_code(party, x, valid, [y], 1, 9)
