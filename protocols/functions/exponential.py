"""Exponentials of private values, in four forms, over Z_2^64 and Z_2^128.

form         rounds    bits per element   error besides 1 ulp (taylor: besides 3 2^k ulp)
"one-round"  1         384 (512)          relative 2^-29 (2^-44)
"prime"      2         258 (514)          relative 2^-10 (2^-21)
"taylor"     16 (11)   2480 (4024)        relative x^2 / 2^(k+1), here k = 8
"pade"       15 (9)    3999 (6981)        relative 2^-12 (2^-13)

These are for 16 fractional bits in Z_2^64 (and 40 in Z_2^128), all three parties together, without
clamp; a clamp makes 4 rounds of 1 or 2, one more of the others.

The one-round form is exp_one_round.py, exponent sharing modulo a prime (Kelkar et al., USENIX
Security 2022; SPU) exp_prime.py, (1 + x / 2^k)^(2^k) exp_taylor.py, bit decomposition exp_pade.py.
"""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal, localcontext
from typing import Protocol

from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.protocols.functions import exp_one_round, exp_pade, exp_prime, exp_taylor
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic
from tfe_bench.protocols.ring import wide_arithmetic as ring
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

METHODS = ("one-round", "taylor", "prime", "pade")
CLAMPS = ("none", "low", "both")
# A clamp's comparison in 2 openings: it runs beside the exponential, which may take one round.
OPENINGS = 2


class Form(Protocol):
    """One way of computing e^x, its parameters chosen."""

    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def failure(self) -> float: ...
    def run(self, party: Party, x: Shared) -> Shared: ...


def _form(
    method: str, ring_bits: int, fractional_bits: int, clamp: str, softmax: bool, iterations: int
) -> Form:
    if method not in METHODS:
        raise UsageError(
            f"exp knows the methods {', '.join(METHODS)}. Received: {method!r}."
            + did_you_mean(str(method), METHODS)
        )
    if clamp not in CLAMPS:
        raise UsageError(
            f"exp knows the clamps {', '.join(CLAMPS)}. Received: {clamp!r}."
            + did_you_mean(str(clamp), CLAMPS)
        )
    if ring_bits not in (64, 128):
        raise UsageError(f"exp works over Z_2^64 and Z_2^128. Received: 2^{ring_bits}.")
    if method == "taylor":
        return exp_taylor.plan(ring_bits, fractional_bits, iterations)
    if method == "pade":
        return exp_pade.plan(ring_bits, fractional_bits)
    chosen = exp_one_round.plan if method == "one-round" else exp_prime.plan
    return chosen(ring_bits, fractional_bits, softmax)


def exp(
    party: Party,
    x: Shared,
    method: str = "one-round",
    clamp: str = "none",
    *,
    iterations: int = 8,
    softmax: bool = False,
) -> Shared:
    """e^x elementwise, at x's scale and in its ring.

    Args:
        x: over Z_2^64 or Z_2^128; without clamp within `valid_range`, or the result is arbitrary.
        method: see the module.
        clamp: "low": x below the range gives e^low rounded, which is 0 where that is less than half
            an ulp; "both": also x above gives e^high.  The comparisons are of the whole ring.
        iterations: k of "taylor".
        softmax: x <= 0 is promised, and "one-round" and "prime" move their range down to end at 0.

    Rounds, bits and error: see the form's module.
    Raises:
        UsageError: an unknown method or clamp, or a ring or scale that the method does not fit.
    """
    if not isinstance(x, Shared):
        raise UsageError(f"exp wants a private tensor. Received: {type(x).__name__}.")
    if x.ring_bits != 64 * x.limbs:
        raise UsageError(f"exp works over Z_2^64 and Z_2^128. Received: {x!r}.")
    form = _form(method, x.ring_bits, x.fractional_bits, clamp, softmax, iterations)
    y = form.run(party, x)
    return y if clamp == "none" else _clamped(party, x, y, form, clamp == "both")


def _limits(form: Form, f: int) -> tuple[int, int, int, int]:
    """The range's ends as ring elements, rounded inwards, and e^x there; the same on every host."""
    low, high = math.ceil(form.low * 2**f), math.floor(form.high * 2**f)
    with localcontext() as context:
        context.prec = 80
        ends = [(Decimal(x) / 2**f).exp() * 2**f for x in (low, high)]
        at_low, at_high = (int(v.to_integral_value()) for v in ends)
    return low, high, at_low, at_high


def _clamped(party: Party, x: Shared, y: Shared, form: Form, both: bool) -> Shared:
    """keep y + below e^low + above e^high, in one opening; a constant 0 costs nothing."""
    low, high, at_low, at_high = _limits(form, x.fractional_bits)

    def negative(value: Shared) -> MaskedBits:
        return convert.open_bits(party, compare.msb(party, value, value.ring_bits, OPENINGS))

    below = negative(ring.add_constant(x, -low))
    outside, constants = below, [(below, at_low)] if at_low else []
    if both:
        above = negative(ring.add_constant(arithmetic.neg(x), high))
        outside = logic.xor(below, above)  # at most one of them is 1
        constants.append((above, at_high))
    keep = logic.invert(outside)
    if isinstance(party, Counting):
        n = x.shape.num_elements()
        chosen = convert.inject_cost(n, x.limbs)
        cost = replace(chosen, dealer=chosen.dealer + len(constants) * x.ring_bits * n)
        return replace(y, m=party.sent(cost, y.any.shape, keep, y))
    import tensorflow as tf

    s = party.site("exp_clamp", low, high, both, dealer=x.dealer)
    shape = tf.shape(y.any, out_type=tf.int64)
    z = convert.inject_shares(s, keep, y, tensor=0, slot=0)
    for i, (bits, value) in enumerate(constants):
        share = ring.bit_shares(s, bits, shape, 2 + i, 2 + i, y.limbs)
        if not s.is_dealer:
            added = ring.times(share, ring.constant(value, y.limbs), y.limbs)
            z = ring.plus(z, added, y.limbs)
    m = None if s.is_dealer else s.open_mask(z, 4, 4, y.limbs)
    l1, l2 = s.new_mask(shape, tensor=4)
    return replace(y, m=m, l1=l1, l2=l2)


def valid_range(
    method: str,
    ring_bits: int,
    fractional_bits: int,
    clamp: str = "none",
    softmax: bool = False,
    iterations: int = 8,
) -> tuple[float, float]:
    """(low, high): the x for which `exp` computes e^x; a clamp decides what comes outside of it."""
    form = _form(method, ring_bits, fractional_bits, clamp, softmax, iterations)
    return form.low, form.high


def failure_probability(
    method: str,
    ring_bits: int,
    fractional_bits: int,
    clamp: str = "none",
    softmax: bool = False,
    iterations: int = 8,
) -> float:
    """Probability of an arbitrary result for one element, at the worst x of the valid range."""
    return _form(method, ring_bits, fractional_bits, clamp, softmax, iterations).failure
