"""2^t of private values in one round, and the sums of rows of them, by which softmax divides.

The one-round exponential (exp_one_round.py) without its factor log2(e): t of a ring Z_2^(f+9) has
the period 2^9 of its exponents modulo N = 2^256 + 1, so that the wrap of m - lam has no effect, and
t needs no 64 bits. The window lies almost entirely below 0: a row's largest value is subtracted
before.

The evaluators' additive shares of 2^t are right modulo any ring. Hence their sums are exchanged
at the same time, and no sum waits for its terms.
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
    share_exp_product,
)
from tfe_bench.protocols.ring import masked
from tfe_bench.protocols.session import slots, tensor_ops
from tfe_bench.protocols.session.cost import Cost, packed_bits
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

# Bits of each factor's mantissa: 2^t is off by a factor of 1 +- 2^-19.
_MANTISSA: Final = 20
_OFFSET: Final = 175
# 2^t is right from LOW to HIGH; at HIGH it fails with a probability of 2^-40.5, below with less.
LOW: Final = -174.0
HIGH: Final = 0.5
# Most fractional bits of t, and of 2^t.
MAX_INPUT_BITS: Final = 30
MAX_RESULT_BITS: Final = 24


class _PowerOfTwo(OneRound):
    """The one-round form for exponents that are binary already."""

    @property
    def factor(self) -> int:
        """Power of two that moves t's whole part to the word's top 9 bits; higher bits are lost."""
        return 1 << (64 - self.ring_bits)

    @property
    def drop(self) -> int:
        """T: bits of the product below the result's last bit."""
        return self.offset + 2 * self.mantissa - self.fractional_bits


def exponent_ring_bits(fractional_bits: int) -> int:
    """Return the bits of t's ring: 2^9 = 512 units."""
    return fractional_bits + EXPONENT_BITS


def exp2(
    party: Party, t: Shared, scale: int, width: int, rows: Callable[[Any], Any]
) -> tuple[Shared, Shared]:
    """Compute 2^t in Z_2^width and sums of rows of 2^t over Z_2^64, for LOW <= t <= HIGH.

    Args:
        t: of Z_2^(f+9), f its fractional bits.
        scale: fractional bits of the results, 1 to 24.
        rows: a linear map of tensors of t's shape; the sums are those along its last axis.

    2^t is off by less than 1 ulp and a factor of 1 +- 2^-19; the sums are those of the exchanged
    values, exactly (in a row without a failed term).
    Outside of the window the results are arbitrary.
    Rounds: 1 online (2 total). Bits sent: D 256 per element, E1, E2 width per element and 64 per
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
    if t.limbs != 1 or t.ring_bits != exponent_ring_bits(f) or not fits:
        raise UsageError(
            f"exp2 expects 1 to {MAX_INPUT_BITS} fractional bits and 9 whole ones, 1 to "
            f"{MAX_RESULT_BITS} "
            f"of its result, and two more in all. Received: {t!r}, {scale} and {width}.",
            code="unsupported-scale",
            operation="exp2",
            received=f"{t!r}, {scale}, {width}",
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
    s = party.site(
        "exp2",
        form,
        width,
        dealer=t.dealer,
        slots={
            0: slots.declare_dealt(MODULUS_BITS, unit=slots.WORD),
            1: slots.declare_exchanged(width),
            2: slots.declare_exchanged(),
        },
    )
    share = total = None
    if s.is_dealer:
        deal_factor(s, form, t, "one-round", 0)
    else:
        share, _ = share_exp_product(s, form, t, "one-round")
        total = tensor_ops.reduce_sum(rows(share), -1)
    rows_shape = tensor_ops.dynamic_shape(rows(t.any))[:-1]
    return (
        masked.exchange_masked(s, share, tensor_ops.dynamic_shape(t.any), 1, 1, scale=scale),
        masked.exchange_masked(s, total, rows_shape, 2, 2, scale=scale),
    )
