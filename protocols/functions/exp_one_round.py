"""The exponential in one round: exponents modulo N = 2^256 + 1, where 2 has order 512.

With x = m - lam, e^x is one factor known to D times one known to both evaluators, so that additive
shares of D's factor become shares of e^x by a local product: no multiplication protocol. As
the order of 2 is a power of two, the top 9 bits of the ring share of x log2(e) are the exponent
modulo 512 directly: no conversion of the exponent, and no assumption about its sign.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import masked
from tfe_bench.protocols.session import ops, sizes, slots, tensor_ops
from tfe_bench.protocols.session.counting import CostSite
from tfe_bench.protocols.session.party import K1, Party, Site
from tfe_bench.protocols.session.sharing import Shared

MODULUS_BITS = 256
EXPONENT_BITS = 9  # 2 has order 2^9 modulo 2^256 + 1
FAILURE_BITS = 40  # the probability of failure stays below 2^-40
# Margin inside the range's ends, for the rounding of log2(e) and of the mantissas.
MARGIN = 2.0**-20
LN2 = math.log(2)
WORD = 1 << 64


@functools.cache
def encode_log2e(fractional_bits: int) -> int:
    """Return round(log2(e) 2^fractional_bits), the same on every host."""
    with localcontext() as context:
        context.prec = 80
        return int((Decimal(2) ** fractional_bits / Decimal(2).ln()).to_integral_value())


def to_signed_word(value: int) -> int:
    """Return the low 64 bits of an integer as a signed word."""
    low = value % WORD
    return low - WORD if low >> 63 else low


@dataclass(frozen=True)
class ExponentForm:
    """Parameters of a form that shares the exponent; all public.

    Attributes:
        mantissa: bits q of each factor's mantissa.
        offset: added to the exponent so that it is never negative.
    """

    ring_bits: int
    fractional_bits: int
    mantissa: int
    offset: int

    @property
    def drop(self) -> int:
        """T: bits of the product below the result's last bit."""
        return self.offset + 2 * self.mantissa - self.fractional_bits

    @property
    def lowest_input(self) -> float:
        """Least x: a lower exponent would be negative."""
        return (1 - self.offset) * LN2 + MARGIN


@dataclass(frozen=True)
class OneRound(ExponentForm):
    """Parameters of the one-round form.

    Attributes:
        softmax: the range ends at 0.
    """

    softmax: bool

    @property
    def factor(self) -> int:
        """log2(e) at a scale at which the exponent of x * factor is in the ring's top 9 bits."""
        return encode_log2e(self.ring_bits - EXPONENT_BITS - self.fractional_bits)

    @property
    def highest_input(self) -> float:
        """Greatest x: failures below 2^-40, the result in the ring, at most 0 for softmax."""
        room = MODULUS_BITS - FAILURE_BITS - self.offset - 2 * self.mantissa
        fits = self.ring_bits - 1 - self.fractional_bits
        return 0.0 if self.softmax else min(room, fits) * LN2 - MARGIN

    @property
    def failure_probability(self) -> float:
        """Probability of a wrong result at the greatest x; at x it is e^(x - highest_input) times
        this.
        """
        power = self.highest_input / LN2 + self.offset + 2 * self.mantissa - MODULUS_BITS
        return float(2.0**power)

    def evaluate_exp(self, party: Party, x: Shared) -> Shared:
        """Compute e^x; see the module, and `tfe_bench.protocols.functions.exponential.exp`.

        D:  A = 2^offset 2^(-lam log2 e) mod N, A = A1 + A2 with A1 = PRF(K1); A2 to E2
        E*: B = 2^(m log2 e) mod N, the same at both, bit for bit;  h_i = A_i B mod N
        E1: y1 = floor(h1 / 2^T);   E2: y2 = -floor((N - h2) / 2^T);   exchange(y1 + y2)

        h1 + h2 = h + N unless h1 <= h, which has the probability h / N: 2^-40 at the greatest x.
        A1 has 256 bits, so that A2 is uniform except for one of N values. That value, 2^256, is
        sent as 0 and gives a wrong result, with probability 2^-256.

        Rounds: 1 online (2 total). Bits sent: D 256, E1, E2 64 per element each (128 over
            Z_2^128).
        Source: exponent sharing of Kelkar et al. (USENIX Security 2022) and SPU's exp_prime; the
        modulus with an order of 2^9 and the omission of the wrap bit are this project's.
        """
        scale = self.fractional_bits
        s = party.site(
            "exp_one_round",
            self,
            dealer=x.dealer,
            slots={
                0: slots.declare_dealt(MODULUS_BITS, unit=slots.WORD),
                1: slots.declare_exchanged(self.ring_bits),
            },
        )
        y = None
        if s.is_dealer:
            deal_factor(s, self, x, "one-round", 0)
        else:
            y, _ = share_exp_product(s, self, x, "one-round")
        return masked.exchange_masked(s, y, tensor_ops.dynamic_shape(x.any), 1, 1, scale=scale)


def exp_attributes(s: Site, form: Any, name: str, limbs: int, point: int = 0) -> dict[str, Any]:
    """Return the attributes of the ops for exponentials."""
    return {
        **s.kernel_attributes(),
        "key": K1,
        "form": name,
        "limbs": limbs,
        "factor": [to_signed_word(form.factor), to_signed_word(form.factor >> 64)],
        "offset": form.offset,
        "mantissa": form.mantissa,
        "drop": form.drop,
        "point": point,
    }


def deal_factor(s: Site, form: Any, x: Shared, name: str, point: int) -> None:
    """Split the dealer's factor under mask 0 of the site and send E2's part in slot 0."""
    message = ops.module().tfe_bench_exp_deal(
        l1=x.l1, l2=x.l2, **exp_attributes(s, form, name, x.limbs, point)
    )
    s.send(message, s.e2, slot=0, run_ahead=True)


def share_exp_product(s: Site, form: Any, x: Shared, name: str, point: int = 0) -> tuple[Any, Any]:
    """Return an evaluator's additive share of e^x, and (prime form) whether it was below p / 2."""
    n = sizes.tensor_size(x.any) // x.limbs
    if isinstance(s, CostSite):
        return s.count_dealt(s.find_slot(0).count_bits(n), x.any.shape, x), None
    y, low = ops.module().tfe_bench_exp_share(
        m=x.m,
        dealt=s.receive_dealt(n),
        **exp_attributes(s, form, name, x.limbs, point),
    )
    return y, low


def check_exp_scale(
    method: str, ring_bits: int, fractional_bits: int, lowest: int, highest: int
) -> None:
    """Reject a scale that a form does not support."""
    if not lowest <= fractional_bits <= highest:
        raise UsageError(
            f"The {method} exponential over Z_2^{ring_bits} has {lowest} to {highest} fractional "
            "bits. "
            f"Received: {fractional_bits}.",
            code="unsupported-scale",
            operation="exp",
            received=fractional_bits,
            expected=f"{lowest} to {highest}",
        )


def plan_one_round_exp(ring_bits: int, fractional_bits: int, softmax: bool = False) -> OneRound:
    """Return the parameters for a ring and a scale.

    Over Z_2^64, q = 30 and an exponent from -109 to 46: x from -75.5 to 31.8 at f = 16.
    Over Z_2^128, q = 46 and an exponent from -65 to 58: x from -45 to 40.2.
    For softmax the whole window lies below 0: x from -107 (-85) to 0.

    Raises:
        UsageError: too many fractional bits.
    """
    check_exp_scale("one-round", ring_bits, fractional_bits, 1, 30 if ring_bits == 64 else 61)
    mantissa, offset = (30, 110) if ring_bits == 64 else (46, 66)
    if softmax:
        offset = MODULUS_BITS - FAILURE_BITS - 2 * mantissa
    return OneRound(ring_bits, fractional_bits, mantissa, offset, softmax)
