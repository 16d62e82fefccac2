"""The same value under a mask of its own: what a result that leaves depends on is then nothing old.

Sharings are linear, so a result that only additions and reorderings lead to has masks that are sums
of its inputs' masks. Who may see the result (m, l1 and l2 of it) need not see these: a model's
weights keep theirs from job to job. A fresh sharing of zero is added, here by exchanging the value
under a new mask.

Source: the re-randomization of Araki et al., CCS 2016, section 3, in the masked view.
"""

from __future__ import annotations

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import masked
from tfe_bench.protocols.session import tensor_ops, wide
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


def refresh(party: Party, x: Shared) -> Shared:
    """x under a fresh mask: m' = (m - l1) + (-l2) + l1' + l2', E1's and E2's shares exchanged anew.

    m' is uniform to both evaluators given what they held, as l2' is new to E1 and l1' to E2; D's
    l1' and l2' come from its keys.

    Rounds: 1.  Bits sent: E1, E2 64 * limbs per element each; of a smaller ring Z_2^k k, packed.
    Raises:
        UsageError: a value of two words and fewer bits.
    """
    if x.limbs == 2 and x.bits:
        raise UsageError(f"refresh wants a value of a word or Z_2^128. Received: {x!r}.")
    scale, width = x.fractional_bits, x.ring_bits
    if isinstance(party, CostParty):
        return party.count_exchange(x.shape, None, x, scale=scale, width=width)
    s = party.site("refresh", x.limbs, x.bits, dealer=x.dealer)
    share = None
    if s.is_e1:
        share = x.m - x.l1 if x.limbs == 1 else wide.sub(x.m, x.l1)
    elif s.is_e2:
        share = -x.l2 if x.limbs == 1 else wide.negate(x.l2)
    return masked.exchange_masked(
        s, share, tensor_ops.dynamic_shape(x.any), 0, scale=scale, width=width
    )
