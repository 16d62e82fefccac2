"""What GELU and SiLU have in common: x times a function of x between 0 and 1.

f(x) = max(x, 0) - h(|x|) with an h that is below half an ulp from some |x| on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from tfe_bench.protocols.functions import polynomial
from tfe_bench.protocols.ring import convert, masked
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

# Fractional bits of the values.
FEWEST_BITS: Final = 8
MOST_BITS: Final = 16

Term: TypeAlias = "tuple[polynomial.Plan, Sequence[Shared]]"


def positive_less(
    party: Party, name: str, negative: MaskedBits, x: Shared, terms: Sequence[Term]
) -> Shared:
    """max(x, 0) less polynomials, each of its own masked values of x's shape [n].

    Args:
        name: of the site.
        negative: [x < 0].

    Rounds: 1 (2 with dealing).  Bits sent: D 128 and those of the plans, E1, E2 64 per element
        each.
    """
    f = x.fractional_bits
    plans = tuple(plan for plan, _ in terms)
    if isinstance(party, Counting):
        n, words = x.shape.num_elements(), sum(plan.words for plan in plans)
        given = [value for _, values in terms for value in values]
        return party.exchanged([n], (128 + 64 * words) * n, negative, x, *given, scale=f)
    s = party.site(name, plans, f, dealer=x.dealer)
    share = convert.inject_shares(s, negative, x, 0, 0, negated=True)
    for i, (plan, values) in enumerate(terms):
        term = polynomial.shares(s, plan, values, 2 + i, 1 + i)
        share = None if s.is_dealer else share - term
    return masked.exchanged(s, share, local.shape(x.any), 2 + len(terms), 1 + len(terms), scale=f)
