"""2^t of private values in one round, and the sums of rows of them, which softmax divides by.

The one-round exponential (exp_one_round.py) without its factor log2(e): t of a ring Z_2^(f+9) has
the period 2^9 of its exponents modulo N = 2^256 + 1, so that the wrap of m - lam is none, and t
needs no 64 bits.  The window lies almost wholly below 0: what a row's largest is taken from.

The evaluators' additive shares of 2^t are right modulo any ring, so that their sums are exchanged
beside them, and no sum waits for its terms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions.exp_one_round import (
    EXPONENT_BITS,
    MODULUS_BITS,
    OneRound,
    deal_factor,
    share_product,
)
from tfe_bench.protocols.ring import masked
from tfe_bench.protocols.session import sizes, tensor_ops
from tfe_bench.protocols.session.cost import Cost, packed_bits
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

# Of each factor's mantissa: 2^t is off by a factor of 1 +- 2^-19.
_MANTISSA: Final = 20
_OFFSET: Final = 175
# 2^t is right from LOW to HIGH; at HIGH it fails with a probability of 2^-40.5, below with less.
LOW: Final = -174.0
HIGH: Final = 0.5
# t may have so many fractional bits, and 2^t.
MAX_INPUT_BITS: Final = 30
MAX_RESULT_BITS: Final = 24


class _PowerOfTwo(OneRound):
    """The one-round form for exponents that are binary already."""

    @property
    def factor(self) -> int:
        """A power of two: t's whole part comes to the word's top 9 bits, what is above is lost."""
        return 1 << (64 - self.ring_bits)

    @property
    def drop(self) -> int:
        """T: bits of the product below the result's last."""
        return self.offset + 2 * self.mantissa - self.fractional_bits


def ring_bits(fractional_bits: int) -> int:
    """Of t's ring: 2^9 = 512 units."""
    return fractional_bits + EXPONENT_BITS


def exp2(
    party: Party, t: Shared, scale: int, width: int, rows: Callable[[Any], Any]
) -> tuple[Shared, Shared]:
    """(2^t in Z_2^width, sums of rows of 2^t over Z_2^64), for LOW <= t <= HIGH.

    Args:
        t: of Z_2^(f+9), f its fractional bits.
        scale: fractional bits of the results, 1 to 24.
        rows: a linear map of tensors of t's shape; the sums are those along its last axis.

    2^t is off by less than 1 ulp and a factor of 1 +- 2^-19; the sums are those of what is opened,
    exactly (in a row of which no term failed).
    Outside of the window the results are arbitrary.
    Rounds: 1 (2 with dealing).  Bits sent: D 256 per element, E1, E2 width per element and 64 per
        row each.
    Raises:
        UsageError: another ring, or bits that do not fit.
    """
    f = t.fractional_bits
    fits = (
        1 <= f <= MAX_INPUT_BITS
        and 1 <= scale <= MAX_RESULT_BITS
        and scale + 2 <= width <= masked.RING
    )
    if t.limbs != 1 or t.ring_bits != ring_bits(f) or not fits:
        raise UsageError(
            f"exp2 wants 1 to {MAX_INPUT_BITS} fractional bits and 9 whole ones, 1 to {MAX_RESULT_BITS} of "
            f"its result, and two more in all. Received: {t!r}, {scale} and {width}."
        )
    if isinstance(party, CostParty):
        sums_shape = rows(t.any).shape[:-1]
        n = t.shape.num_elements()
        evaluator_bits = packed_bits(n, width) + 64 * sums_shape.num_elements()
        cost = Cost(MODULUS_BITS * n, evaluator_bits, evaluator_bits, rounds=1, with_dealing=2)
        m = party.count_messages(cost, t.shape, t)
        y = Shared(m, None, None, t.dealer, scale, 1, width % masked.RING)
        return y, Shared(tensor_ops.symbolic_result(sums_shape, m), None, None, t.dealer, scale)
    form = _PowerOfTwo(t.ring_bits, scale, _MANTISSA, _OFFSET, softmax=True)
    s = party.site("exp2", form, width, dealer=t.dealer)
    share = total = None
    if s.is_dealer:
        deal_factor(s, form, t, "one-round", 0)
    else:
        share, _ = share_product(s, form, t, "one-round", 4 * sizes.tensor_size(t.any))
        total = tensor_ops.reduce_sum(rows(share), -1)
    rows_shape = tensor_ops.dynamic_shape(rows(t.any))[:-1]
    return (
        masked.exchange_masked(
            s, share, tensor_ops.dynamic_shape(t.any), 1, 1, scale=scale, width=width
        ),
        masked.exchange_masked(s, total, rows_shape, 2, 2, scale=scale),
    )
