"""A bit times an exponential in one round: b e^x, for any x where b = 0.

With b = o ^ beta and e^x = A B as in exp_one_round.py (A = exp(-lam) known to D, B = exp(m) to the
evaluators), b e^x = A[o] B with A[0] = beta A and A[1] = (1 - beta) A. D deals both, and each
evaluator uses the one that o selects. A comparison's bit costs no round after the exponential, and
the argument need not be reduced to the exponential's range first.
"""

from __future__ import annotations

from tfe_bench.protocols.functions import exp_one_round
from tfe_bench.protocols.ring import convert, masked
from tfe_bench.protocols.ring.checks import check_private_64bit_tensor
from tfe_bench.protocols.session import ops, sizes, slots, tensor_ops
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

WORDS = 8  # dealt words per element


def select_exp(party: Party, bits: MaskedBits, x: Shared) -> Shared:
    """Compute b e^x for bits in the row-major order of x's elements, at x's scale over Z_2^64.

    Args:
        x: where b = 1, from the one-round form's `lowest_input` (about -107) to 0 (slightly larger
            values are harmless); else any value.

    Off by a factor of 1 +- 2^-29 and 1 ulp; 0 exactly where b = 0. Wrong with a probability of
    2^-40 per element at most, as the one-round exponential.
    Rounds: 1 online (2 total). Bits sent: D 512, E1, E2 64 per element each.
    Raises:
        UsageError: bits and x of different dealers or numbers, another ring, 31 or more fractional
            bits.
    """
    convert.check_inject("select_exp", bits, x)
    check_private_64bit_tensor("select_exp", x)
    form = exp_one_round.plan_one_round_exp(64, x.fractional_bits, softmax=True)
    if isinstance(party, CostParty):
        dealt = 64 * WORDS * x.shape.num_elements()
        return party.count_exchange(x.shape, dealt, bits, x, scale=x.fractional_bits)
    s = party.site(
        "select_exp",
        form,
        dealer=x.dealer,
        slots={0: slots.declare_dealt(64 * WORDS, unit=slots.WORD), 1: slots.declare_exchanged()},
    )
    attributes = exp_one_round.exp_attributes(s, form, "one-round", x.limbs)
    y = None
    if s.is_dealer:
        message = ops.module().tfe_bench_exp_select_deal(
            beta=bits.beta, l1=x.l1, l2=x.l2, **attributes
        )
        s.send(message, s.e2, 0, run_ahead=True)
    else:
        dealt = s.receive_dealt(sizes.tensor_size(x.m))
        y = ops.module().tfe_bench_exp_select_share(
            masked_bits=bits.masked, m=x.m, dealt=dealt, **attributes
        )
    return masked.exchange_masked(
        s, y, tensor_ops.dynamic_shape(x.any), 1, 1, scale=x.fractional_bits
    )
