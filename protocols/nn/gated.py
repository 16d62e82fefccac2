"""Common parts of GELU and SiLU: x times a function of x between 0 and 1.

f(x) = max(x, 0) - h(|x|), where h is below half an ulp beyond some |x|.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, TypeAlias

from tfe_bench.protocols.functions import piecewise, polynomial
from tfe_bench.protocols.ring import compare, convert, masked
from tfe_bench.protocols.session import slots, tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

# Accepted fractional bits of the values.
MIN_BITS: Final = 8
MAX_BITS: Final = 16

Term: TypeAlias = "tuple[polynomial.Plan, Sequence[Shared]]"


def relu_minus_terms(
    party: Party, name: str, negative: MaskedBits, x: Shared, terms: Sequence[Term]
) -> Shared:
    """Compute max(x, 0) minus polynomials, each of its own masked values of x's shape [n].

    Args:
        name: of the site.
        negative: [x < 0].

    Rounds: 1 online, 2 in total. Bits sent: D 128 and those of the plans, E1, E2 64 per element
    each.
    """
    f = x.fractional_bits
    plans = tuple(plan for plan, _ in terms)
    term_slots = {1 + i: plan.dealt_slot for i, plan in enumerate(plans)}
    s = party.site(
        name,
        plans,
        f,
        dealer=x.dealer,
        slots={
            **convert.list_injection_slots(),
            **term_slots,
            1 + len(plans): slots.declare_exchanged(),
        },
    )
    share = convert.inject_shares(s, negative, x, 0, 0, negated=True)
    for i, (plan, values) in enumerate(terms):
        term = polynomial.share_polynomial(s, plan, values, 2 + i, 1 + i)
        share = None if s.is_dealer else share - term
    return masked.exchange_masked(
        s, share, tensor_ops.dynamic_shape(x.any), 2 + len(terms), 1 + len(terms), scale=f
    )


# Largest error of a piece of a slope.
_TOLERANCE = Decimal(2) ** -11


@dataclass(frozen=True)
class Slope:
    """The derivative of such a function, for gradients: piecewise linear, error below 2^-9.5.

    Attributes:
        name: of the site.
        derivative: in decimals.
        edge: the slope is 0 below -edge, and 1 above edge.
    """

    name: str
    derivative: Callable[[Decimal], Decimal]
    edge: int

    @functools.cached_property
    def fitted_pieces(self) -> piecewise.Pieces:
        """The fitted pieces, equal at all parties."""
        return piecewise.fit_piecewise_linear(
            self.derivative, -self.edge, self.edge, 0, 1, _TOLERANCE
        )

    def __call__(self, party: Party, x: Shared, bits: int = compare.LAYER_BITS) -> Shared:
        """Compute the slope at x, with piecewise.RESULT_BITS fractional bits.

        Args:
            bits: |x| < 2^(bits-1) ring units, of 16 fractional bits.

        Rounds: 3 online, 4 in total. Bits sent: those of piecewise.evaluate_pieces.
        Raises:
            UsageError: as piecewise.evaluate_pieces.
        """
        # One bit more, as x is compared with knots other than 0.
        return piecewise.evaluate_pieces(party, self.name, x, self.fitted_pieces, bits + 1)
