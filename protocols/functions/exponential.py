"""Exponentials of private values, in four forms, over Z_2^64 and Z_2^128.

form         rounds    bits per element   error besides 1 ulp (taylor: besides 3 2^k ulp)
"one-round"  1         384 (512)          relative 2^-29 (2^-44)
"prime"      2         258 (514)          relative 2^-10 (2^-21)
"taylor"     16 (11)   2480 (4024)        relative x^2 / 2^(k+1), here k = 8
"pade"       15 (9)    3999 (6981)        relative 2^-12 (2^-13)

These are for 16 fractional bits in Z_2^64 (and 40 in Z_2^128), all three parties together, without
clamp. With a clamp, forms of 1 or 2 rounds take 4, and others one more.

The one-round form is exp_one_round.py, exponent sharing modulo a prime (Kelkar et al., USENIX
Security 2022; SPU) exp_prime.py, (1 + x / 2^k)^(2^k) exp_taylor.py, bit decomposition exp_pade.py.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import Protocol

from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions import exp_one_round, exp_pade, exp_prime, exp_taylor
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic, masked
from tfe_bench.protocols.ring import wide_arithmetic as ring
from tfe_bench.protocols.ring.checks import check_choice, check_private
from tfe_bench.protocols.session import slots, tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

METHODS = ("one-round", "taylor", "prime", "pade")
CLAMPS = ("none", "low", "both")
# A clamp's comparison takes 2 exchanges: it runs in parallel to the exponential, which may take
# one round.
EXCHANGES = 2


class ExpForm(Protocol):
    """One method to compute e^x, with its parameters.

    Attributes:
        lowest_input, highest_input: ends of the range of e^x; a clamp defines results outside.
        failure_probability: probability of an arbitrary result for one element, at the worst x in
            the range.
    """

    @property
    def lowest_input(self) -> float: ...
    @property
    def highest_input(self) -> float: ...
    @property
    def failure_probability(self) -> float: ...
    def evaluate_exp(self, party: Party, x: Shared) -> Shared: ...


def exp(
    party: Party,
    x: Shared,
    method: str = "one-round",
    clamp: str = "none",
    *,
    iterations: int = 8,
    softmax: bool = False,
) -> Shared:
    """Compute e^x elementwise, at x's scale and in its ring.

    Args:
        x: over Z_2^64 or Z_2^128. Without clamp, within its form's range, or the result is
            arbitrary.
        method: see the module.
        clamp: "low": x below the range gives e^lowest_input rounded, which is 0 where that is less
            than half an ulp; "both": also x above gives e^highest_input. The comparisons cover the
            whole ring.
        iterations: k of "taylor".
        softmax: x <= 0 is guaranteed; "one-round" and "prime" shift their range down to end at 0.

    Rounds, bits and error: see the form's module.
    Raises:
        UsageError: an unknown method or clamp, or a ring or scale that the method does not
        support.
    """
    check_private("exp", x)
    if x.ring_bits != 64 * x.limbs:
        raise UsageError(
            f"exp works over Z_2^64 and Z_2^128. Received: {x!r}.",
            code="unsupported-ring",
            operation="exp",
            received=repr(x),
        )
    exp_form = choose_exp_form(method, x.ring_bits, x.fractional_bits, clamp, softmax, iterations)
    y = exp_form.evaluate_exp(party, x)
    return y if clamp == "none" else _clamp_exp_result(party, x, y, exp_form, clamp == "both")


def _exp_clamp_limits(exp_form: ExpForm, f: int) -> tuple[int, int, int, int]:
    """Return the range's ends, rounded inwards, and e^x there; equal on every host."""
    low, high = math.ceil(exp_form.lowest_input * 2**f), math.floor(exp_form.highest_input * 2**f)
    with localcontext() as context:
        context.prec = 80
        ends = [(Decimal(x) / 2**f).exp() * 2**f for x in (low, high)]
        at_low, at_high = (int(v.to_integral_value()) for v in ends)
    return low, high, at_low, at_high


def _clamp_exp_result(
    party: Party, x: Shared, y: Shared, exp_form: ExpForm, clamp_high: bool
) -> Shared:
    """Return keep y + below e^low + above e^high, in one exchange; a constant 0 costs nothing."""
    low, high, at_low, at_high = _exp_clamp_limits(exp_form, x.fractional_bits)

    def compare_with_exp_limit(value: Shared) -> MaskedBits:
        return convert.mask_bits(party, compare.msb(party, value, value.ring_bits, EXCHANGES))

    below = compare_with_exp_limit(ring.add_constant(x, -low))
    outside, constants = below, [(below, at_low)] if at_low else []
    if clamp_high:
        above = compare_with_exp_limit(ring.add_constant(arithmetic.neg(x), high))
        outside = logic.xor_bits(below, above)  # at most one of them is 1
        constants.append((above, at_high))
    keep = logic.invert_bits(outside)
    s = party.site(
        "exp_clamp",
        low,
        high,
        clamp_high,
        dealer=x.dealer,
        slots={
            **convert.list_injection_slots(y.limbs),
            **{2 + i: slots.declare_dealt(64 * y.limbs) for i in range(len(constants))},
            4: slots.declare_exchanged(y.ring_bits),
        },
    )
    shape = tensor_ops.dynamic_shape(y.any)
    z = convert.inject_shares(s, keep, y, tensor=0, slot=0)
    for i, (bits, value) in enumerate(constants):
        share = ring.share_bits(s, bits, shape, 2 + i, 2 + i, y.limbs)
        if not s.is_dealer:
            added = ring.multiply_ring_elements(
                share, ring.encode_ring_constant(value, y.limbs), y.limbs
            )
            z = ring.add_ring_elements(z, added, y.limbs)
    return masked.exchange_masked(s, z, shape, 4, 4, scale=y.fractional_bits)


def choose_exp_form(
    method: str,
    ring_bits: int,
    fractional_bits: int,
    clamp: str = "none",
    softmax: bool = False,
    iterations: int = 8,
) -> ExpForm:
    """Return the parameters of a method.

    Raises:
        UsageError: an unknown method or clamp, or a ring or scale that the method does not
        support.
    """
    check_choice("method", method, METHODS, "exp")
    check_choice("clamp", clamp, CLAMPS, "exp")
    if ring_bits not in (64, 128):
        raise UsageError(
            f"exp works over Z_2^64 and Z_2^128. Received: 2^{ring_bits}.",
            code="unsupported-ring",
            operation="exp",
            received=ring_bits,
        )
    if method == "taylor":
        return exp_taylor.plan_taylor_exp(ring_bits, fractional_bits, iterations)
    if method == "pade":
        return exp_pade.plan_pade_exp(ring_bits, fractional_bits)
    chosen = exp_one_round.plan_one_round_exp if method == "one-round" else exp_prime.plan_prime_exp
    return chosen(ring_bits, fractional_bits, softmax)
