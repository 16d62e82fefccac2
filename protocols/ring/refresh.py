"""The same value under a fresh mask, so that a published result depends on no older mask.

Sharings are linear, so a result of additions and reorderings alone has masks that are sums
of its inputs' masks. A party that may see the result (its m, l1 and l2) should not see these: a
model's weights keep their masks from job to job. A fresh sharing of zero is added, here by
exchanging the value under a new mask.

Source: the re-randomization of Araki et al., CCS 2016, section 3, in the masked view.
"""

from __future__ import annotations

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import masked
from tfe_bench.protocols.session import slots, tensor_ops, wide
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


def refresh(party: Party, x: Shared) -> Shared:
    """Return x under a fresh mask.

    E1's share m - l1 and E2's share -l2 are exchanged: m' = (m - l1) + (-l2) + l1' + l2'.
    m' is uniform to both evaluators given their earlier shares, as l2' is new to E1 and l1' to E2;
    D's l1' and l2' come from its keys.

    Rounds: 1. Bits sent: E1, E2 64 * limbs per element each; in a smaller ring Z_2^k k, packed.
    Raises:
        UsageError: a value of two words and fewer bits.
    """
    if x.limbs == 2 and x.bits:
        raise UsageError(
            f"refresh expects a value of a word or of Z_2^128. Received: {x!r}.",
            code="unsupported-ring",
            operation="refresh",
            received=repr(x),
        )
    s = party.site(
        "refresh", x.limbs, x.bits, dealer=x.dealer, slots={0: slots.declare_exchanged(x.ring_bits)}
    )
    share = None
    if s.is_e1:
        share = x.m - x.l1 if x.limbs == 1 else wide.sub(x.m, x.l1)
    elif s.is_e2:
        share = -x.l2 if x.limbs == 1 else wide.negate(x.l2)
    return masked.exchange_masked(
        s, share, tensor_ops.dynamic_shape(x.any), 0, scale=x.fractional_bits
    )
