"""Polynomials of private values in one round, without failures.

A masked value that is known to be small is, as an *integer*, a difference of a number that the
evaluators know and one that the dealer knows: |x| < 2^(k-2) masked mod 2^k is x = M + N_b with M
and the bit b public to E1 and E2, and N_0, N_1 known to D. Hence

    p(x) = sum_j Q_j(M) N_b^j,   Q_j = p^(j) / j!  public to E1, E2,

and D deals additive shares mod 2^L of both N_0^j and N_1^j, of which the evaluators use the b-th.
They thus hold z1 + z2 = p(x) mod 2^L exactly, and floor(z1 / 2^t), ceil(z2 / 2^t) are shares of a
stochastic rounding of p(x) / 2^t mod 2^(L-t) (truncation T4): one exchange. Where Q_j(M) is small
D rounds the low bits of N^j away and deals a narrower field. The same works for several values:
then D deals the products of their powers.

The masked value's top bit determines which of two integers the mask is, as in the ring extension of
a ReLU's input; dealt powers of a mask generalize ABY2.0's multi-input products (Patra et al.,
USENIX Security 2021). The combination is this project's.

A party that learns a *result* learns a comparison of its dropped bits (docs/threat_model.md).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions.approximation import Approximation
from tfe_bench.protocols.ring import arithmetic, masked
from tfe_bench.protocols.session import ops, sizes, slices, slots, tensor_ops
from tfe_bench.protocols.session.counting import CostSite
from tfe_bench.protocols.session.party import K1, Party, Site
from tfe_bench.protocols.session.sharing import Shared

RING = 64
MAX_MODULUS = 256
MAX_BITS = 62  # bits of a factor's ring
# The total error of D's rounding of the dealt powers is 2^-SLACK ulp of the result at most.
SLACK = 4


@dataclass(frozen=True)
class Plan:
    """One polynomial in ring units: the public parameters of an evaluation.

    Attributes:
        bits: k of each factor, |x| < 2^(k-2).
        degrees: degree of each factor.
        coefficients: integers, the last factor's exponent fastest.
        drop: t, the bits dropped from the result.
        modulus_bits: L.
        widths: bits of the field that deals a product of powers, 0 for an unused one.
        out_bits: the result is in Z_2^out_bits.
    """

    bits: tuple[int, ...]
    degrees: tuple[int, ...]
    coefficients: tuple[int, ...]
    drop: int
    modulus_bits: int
    widths: tuple[int, ...]
    out_bits: int

    @property
    def dealt_bits(self) -> int:
        """Dealt bits per element."""
        exponents = itertools.product(*(range(d + 1) for d in self.degrees))
        return sum(
            w << sum(e > 0 for e in exponent)
            for w, exponent in zip(self.widths, exponents, strict=True)
        )

    @property
    def dealt_words(self) -> int:
        """Dealt words per element."""
        return -(-self.dealt_bits // 64)

    @property
    def dealt_slot(self) -> slots.Slot:
        """The dealer's message."""
        return slots.declare_dealt(64 * self.dealt_words, unit=slots.WORD)

    def kernel_attributes(self) -> dict[str, Any]:
        """Return the attributes that both kernels need."""
        return {
            "bits": list(self.bits),
            "degrees": list(self.degrees),
            "widths": list(self.widths),
            "modulus_bits": self.modulus_bits,
        }

    def coefficient_words(self) -> list[int]:
        """Return the coefficients mod 2^(64 limbs) as signed 64-bit words."""
        limbs = -(-self.modulus_bits // 64)
        words = [(a >> (64 * w)) & (2**64 - 1) for a in self.coefficients for w in range(limbs)]
        return [w - 2**64 if w >> 63 else w for w in words]


def plan_polynomial(
    bits: Sequence[int],
    coefficients: Mapping[Any, int],
    drop: int,
    out_bits: int = RING,
    slack: int | None = SLACK,
) -> Plan:
    """Derive the fields that the dealer sends.

    Args:
        bits: bits of each factor: |x| < 2^(bits - 1) in ring units.
        coefficients: coefficients of the integer polynomial, by tuples of exponents.
        slack: D's rounding is off by 2^-slack ulp at most; None: D rounds nothing.

    Raises:
        UsageError: the polynomial does not fit 256 bits.
    """
    # Integer arithmetic only: the parties must compute the same widths.
    rings = tuple(b + 1 for b in bits)
    modulus = drop + out_bits
    degrees = tuple(max(e[i] for e in coefficients) for i in range(len(rings)))
    if modulus > MAX_MODULUS or drop < 0 or not all(3 <= k <= MAX_BITS for k in rings):
        raise UsageError(
            f"A polynomial's values take {MAX_MODULUS} bits at most, and its factors 2 to "
            f"{MAX_BITS - 1}. Received: {modulus} bits, of factors with {tuple(bits)}. Use fewer "
            "fractional bits, a lower degree or a smaller range.",
            code="polynomial-too-large",
            received=f"{modulus} bits, factors {tuple(bits)}",
        )
    exponents = list(itertools.product(*(range(d + 1) for d in degrees)))
    bounds = {}
    for beta in exponents[1:]:
        bound = 0  # bound on |Q_beta(M)| for |M| <= 2^(k-2)
        for alpha, a in coefficients.items():
            if all(i >= j for i, j in zip(alpha, beta, strict=True)):
                ways = math.prod(math.comb(i, j) for i, j in zip(alpha, beta, strict=True))
                power_bits = sum(
                    (k - 2) * (i - j) for k, i, j in zip(rings, alpha, beta, strict=True)
                )
                bound += abs(a) * ways << power_bits
        bounds[beta] = bound
    needed_fields = sum(b > 0 for b in bounds.values())
    if not needed_fields:
        raise UsageError(
            "A polynomial depends on its argument. Received: a constant.",
            code="constant-polynomial",
        )
    widths = [0]
    for bound in bounds.values():
        rounded = 0
        if slack is not None and bound:
            # bound * 2^(rounded - 1) * needed_fields <= 2^(drop - slack)
            rounded = max(0, drop - slack - (bound * needed_fields).bit_length() + 1)
        widths.append(max(1, modulus - rounded) if bound else 0)
    flat = tuple(coefficients.get(e, 0) for e in exponents)
    return Plan(rings, degrees, flat, drop, modulus, tuple(widths), out_bits)


@dataclass(frozen=True)
class FittedPolynomial:
    """A polynomial approximation of a function, in one round.

    Attributes:
        center: subtracted from the argument first, so that it is small; in its units.
        fractional_bits: fractional bits of the result.
    """

    plan: Plan
    center: int
    fractional_bits: int

    def evaluate(self, party: Party, name: str, x: Shared) -> Shared:
        """Evaluate the function at x. Rounds and bits: as `evaluate_polynomial`."""
        centered = arithmetic.add_constant(x, -self.center)
        return evaluate_polynomial(party, name, self.plan, [centered], self.fractional_bits)


def fit_polynomial(
    approximation: Approximation,
    fractional_bits: int,
    *,
    bits: int | None = None,
    out_bits: int = RING,
    spare: int = 2,
) -> FittedPolynomial:
    """Return the plan of an approximation whose result has `fractional_bits`.

    Args:
        bits: bits of the argument; None: those of the approximation's limit.
        spare: least number of bits that the approximation has beyond those of the result.
    """
    extra_bits = max(0, fractional_bits + spare - approximation.scale)
    coefficients = {(i,): a << extra_bits for i, a in enumerate(approximation.coefficients)}
    width = approximation.limit.bit_length() + 1 if bits is None else bits
    polynomial_plan = plan_polynomial(
        (width,), coefficients, approximation.scale + extra_bits - fractional_bits, out_bits
    )
    return FittedPolynomial(polynomial_plan, approximation.center, fractional_bits)


def share_polynomial(s: Site, p: Plan, factors: Sequence[Shared], tensor: int, slot: int) -> Any:
    """Return the evaluators' additive shares of p(factors) / 2^drop; None at the dealer.

    The shares are not exchanged yet.

    Right mod 2^out_bits; the rounding is stochastic, the error below 1 + 2^-SLACK ulp.

    Args:
        factors: factors of one shape.
        tensor, slot: number of the dealt mask and of its message, `p.dealt_slot`.

    Rounds: 0 online (1 total). Bits sent: D 64 * p.dealt_words per element.
    """
    if isinstance(s, CostSite):
        first = factors[0].any
        dealt = s.find_slot(slot).count_bits(first.shape.num_elements())
        return s.count_dealt(dealt, first.shape, *factors)
    named = {**s._named(K1, tensor), **p.kernel_attributes()}
    if s.is_dealer:
        lam = [tensor_ops.add(x.l1, x.l2) for x in factors]
        message = ops.module().tfe_bench_polynomial_deal(lam=lam, **named)
        s.send(message, s.e2, slot, run_ahead=True)
        return None
    return ops.module().tfe_bench_polynomial_share(
        dealt=s.receive_dealt(sizes.tensor_size(factors[0].m), slot, in_rows=True),
        m=[x.m for x in factors],
        coefficients=p.coefficient_words(),
        drop=p.drop,
        **named,
    )


def check_polynomial_factors(name: str, p: Plan, factors: Sequence[Shared]) -> None:
    """Reject factors to which the lift does not apply.

    Raises:
        UsageError: factors of different dealers, wide ones, or in too small a ring.
    """
    for x, k in zip(factors, p.bits, strict=True):
        if x.dealer != factors[0].dealer or x.limbs != 1 or x.ring_bits < k:
            raise UsageError(
                f"{name} expects factors of one dealer in a ring of 2^{k} or more. Received: "
                f"{x!r}.",
                code="operand-mismatch",
                operation=name,
                received=repr(x),
            )


def evaluate_polynomial(
    party: Party, name: str, p: Plan, factors: Sequence[Shared], fractional_bits: int
) -> Shared:
    """Compute p(factors) / 2^drop in Z_2^out_bits, stochastically rounded.

    Rounds: 1 online (2 total). Bits sent: D 64 * p.dealt_words, E1, E2 p.out_bits per element
    each.
    """
    check_polynomial_factors(name, p, factors)
    first = factors[0]
    s = party.site(
        name,
        p,
        fractional_bits,
        dealer=first.dealer,
        slots={0: p.dealt_slot, 1: slots.declare_exchanged(p.out_bits)},
    )
    y = share_polynomial(s, p, factors, tensor=0, slot=0)
    shape = tensor_ops.dynamic_shape(first.any)
    return masked.exchange_masked(s, y, shape, 1, 1, scale=fractional_bits)


def plan_polyval(coefficients: Sequence[float], bits: int, x_bits: int, f: int) -> Plan:
    """Return the plan of `polyval`: x has x_bits fractional bits, the result f."""
    exact = [Fraction(float(c)) for c in reversed(coefficients)]
    while len(exact) > 2 and exact[-1] == 0:
        exact.pop()
    degree = len(exact) - 1
    # the error of a_i x^i is |x|^i / 2 for each unit of 2^-(scale - i x_bits): an eighth of an ulp
    # in all
    scale = f + 2 + len(exact).bit_length() + max(degree * (bits - 1), 0)
    scaled_coefficients = {
        (i,): round(a * Fraction(2) ** (scale - i * x_bits)) for i, a in enumerate(exact)
    }
    return plan_polynomial((bits,), scaled_coefficients, scale - f)


@slices.slice_elementwise
def polyval(
    party: Party,
    coefficients: Sequence[float],
    x: Shared,
    bits: int,
    fractional_bits: int | None = None,
) -> Shared:
    """Evaluate p(x) for public real coefficients, the highest power first (as tf.math.polyval).

    Args:
        x: |x| < 2^(bits - 1) in ring units, that is |v| < 2^(bits - 1 - x.fractional_bits); in a
            ring of more than 2^bits. Values outside give arbitrary results without an error.
        fractional_bits: fractional bits of the result in Z_2^64 (default: those of x).

    Returns p(x), off by less than 1.2 ulp of the result, where |p(x)| < 2^(63 - fractional_bits).
    Rounds: 1 online (2 total). Bits sent: per element D two fields for each power, of 256
    bits at most and fewer for the high powers; E1, E2 64 each.
    Raises:
        UsageError: fewer than two coefficients, one that is not finite, or a polynomial whose
        exact
            value does not fit 256 bits (64 + degree * (bits - 1) + a few).
    """
    f = x.fractional_bits if fractional_bits is None else fractional_bits
    _check_coefficients(coefficients)
    p = plan_polyval(coefficients, bits, x.fractional_bits, f)
    return evaluate_polynomial(party, "polyval", p, [x], f)


def _check_coefficients(coefficients: Sequence[float]) -> None:
    if not 2 <= len(coefficients) <= 25 or not all(math.isfinite(c) for c in coefficients):
        raise UsageError(
            "polyval expects 2 to 25 finite coefficients, the highest power first. "
            f"Received: {list(coefficients)!r}.",
            code="invalid-coefficients",
            operation="polyval",
            received=list(coefficients),
        )
