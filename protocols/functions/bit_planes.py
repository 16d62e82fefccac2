"""Single bits of private words, and words from bits.

Bit k of x is the sign of x modulo 2^(k+1): a comparison of k + 1 bits, all of them made at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tfe_bench.protocols.ring import compare, convert, logic, masked
from tfe_bench.protocols.session import slots, tensor_ops
from tfe_bench.protocols.session.cost import words_for_bits
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import EvaluatorBits, MaskedBits, Shared


def extract_bit(party: Party, x: Shared, position: int) -> EvaluatorBits:
    """Return one bit of every element, 0 being the lowest.

    Rounds and bits: those of compare.msb of position + 1 bits, 2 at least.
    """
    if position == 0:  # the second lowest of 2 x
        return compare.msb(party, x.map(lambda a: tensor_ops.left_shift(a, 1)), 2, absorb=False)
    return compare.msb(party, x, position + 1, absorb=False)


def extract_planes(party: Party, x: Shared, bits: int) -> MaskedBits:
    """Return the lowest bits of every element, [bits, n], the lowest first.

    Rounds: those of the widest comparison, and 1. Bits sent: those of compare.msb of 2, 2, 3, ..,
    `bits` bits, and of convert.mask_bits.
    """
    n = x.shape.num_elements()
    all_bits = convert.mask_together(party, [extract_bit(party, x, k) for k in range(bits)])
    padded = (bits, 64 * words_for_bits(n))
    return logic.rearrange_private_bits(
        all_bits, padded, lambda a: tensor_ops.strided_slice(a, np.s_[:, :n]), bits * n
    )


def sum_weighted_planes(
    party: Party, bits: MaskedBits, weights: npt.NDArray[np.int64], shape: Sequence[int]
) -> Shared:
    """Return the sum over k of weights[k] times bit plane k: integers of a shape.

    The bits become numbers as in convert.b2a; only their sum is exchanged.

    Args:
        bits: [planes, n].
        weights: public words [planes].

    Rounds: 1 online (2 total). Bits sent: D 64 per bit, E1, E2 64 per element.
    """
    n = math.prod(shape)
    s = party.site(
        "weighed",
        dealer=bits.dealer,
        slots={0: slots.declare_dealt(), 1: slots.declare_exchanged()},
    )
    share = convert.b2a_shares(s, bits, [len(weights), n], 0, 0)
    if not s.is_dealer:
        share = tensor_ops.reshape(
            tensor_ops.reduce_sum(share * weights[:, None], axis=0), list(shape)
        )
    return masked.exchange_masked(s, share, list(shape), 1, 1)
