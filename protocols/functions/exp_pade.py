"""The exponential by bit decomposition: 2^(integer part) bit by bit, 2^(fraction) by a polynomial.

The form that SPU calls pade and MP-SPDZ exp2: X = x log2(e), its six integer bits by comparisons,
a polynomial of degree 5 (Hart's 1045 as SPU has it) for the fraction, and their product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.functions import exp_one_round
from tfe_bench.protocols.functions.exp_one_round import LN2, MARGIN
from tfe_bench.protocols.ring import arithmetic, compare, convert, masked
from tfe_bench.protocols.ring import wide_arithmetic as ring
from tfe_bench.protocols.session import slots, tensor_ops
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import Party, Site
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

BITS = 5  # bits of |integer part|: |x log2(e)| < 32
EXCHANGES = 2
COEFFICIENTS = (  # coefficients of 2^z on [0, 1), lowest first, in units of 10^-15
    1_000_000_077_443_020,
    693_147_180_426_163,
    240_226_510_710_170,
    55_504_068_620_466,
    9_618_341_225_880,
    1_332_730_359_281,
)
UNIT = 10**15
# Deals of the site that computes factors from bits: six bits, then two products of bits.
PRODUCTS = ((0, 1), (2, 3))


@dataclass(frozen=True)
class Pade:
    """Parameters of the bit-decomposition form; all public."""

    ring_bits: int
    fractional_bits: int

    @property
    def limbs(self) -> int:
        """Words of a ring element."""
        return self.ring_bits // 64

    @property
    def truncation_method(self) -> str:
        """Truncation: one without failures over Z_2^64, one with a round less over Z_2^128."""
        return "safe" if self.ring_bits == 64 else "probable"

    @property
    def lowest_input(self) -> float:
        """Least x: x log2(e) >= -32."""
        return -(1 << BITS) * LN2 + 4 * 2.0**-self.fractional_bits + MARGIN

    @property
    def highest_input(self) -> float:
        """Greatest x: x log2(e) < 32, with a unit to spare for rounding."""
        return -self.lowest_input

    @property
    def failure_probability(self) -> float:
        """Sum of |value| / 2^l over the "probable" truncations."""
        if self.truncation_method == "safe":
            return 0.0
        f = self.fractional_bits
        bits = [BITS + 2 * f, *[2 * f] * 4, 2 * f + 1, f + 32]
        return float(sum(2.0 ** (b - self.ring_bits) for b in bits))

    def evaluate_exp(self, party: Party, x: Shared) -> Shared:
        """Compute e^x; see the module, and `tfe_bench.protocols.functions.exponential.exp`.

        X = x log2 e = -32 b5 + sum over j < 5 of 2^j b_j + z;  e^x = 2^z prod (1 + b_j (2^2^j - 1))
        / 2^(32 b5). Bit j of the integer part is the top bit of X modulo 2^(f + j + 1): one
        comparison. Two factors 1 + b (u - 1) and 1 + b' (u' - 1) multiply without a round, because
        D deals the product of the masks of b and b'.

        Error: relative 2^-13.4 (the polynomial's) + (|x| / 2 + 6) 2^-f, and 2 ulp.
        Rounds: 9 over Z_2^128, 15 over Z_2^64 (safe truncations).
        """
        f, limbs = self.fractional_bits, x.limbs
        scaled = ring.truncate(
            party, ring.mul_constant(x, exp_one_round.encode_log2e(f), f), f, self.truncation_method
        )
        bits = [
            convert.mask_bits(party, compare.msb(party, scaled, f + 1 + j, EXCHANGES))
            for j in range(BITS + 1)
        ]
        z, *factors = self._extract_factors(party, scaled, bits)
        polynomial = self._evaluate_polynomial(party, z)
        whole = ring.mul(party, ring.mul(party, factors[0], factors[1]), factors[2])
        large = ring.mul(party, polynomial, whole)
        small = replace(ring.truncate(party, large, 32, self.truncation_method), fractional_bits=f)
        # Not convert.select: the bit states which of the two is the smaller one.
        y = convert.inject(party, bits[BITS], arithmetic.sub(small, large))
        y = arithmetic.add(large, y)
        return Shared(y.m, y.l1, y.l2, x.dealer, f, limbs)

    def _extract_factors(self, party: Party, x: Shared, bits: list[MaskedBits]) -> list[Shared]:
        """Return the fraction z of X, and the powers of two of the bits 0 and 1, of 2 and 3, and of
        4.
        """
        f, limbs = self.fractional_bits, x.limbs
        if isinstance(party, CostParty):
            w = self.ring_bits * x.shape.num_elements()
            m = party.count_messages(
                Cost(8 * w, 4 * w, 4 * w, rounds=1, with_dealing=2), x.any.shape, x, *bits
            )
            return [Shared(m, None, None, x.dealer, f if i == 0 else 0, limbs) for i in range(4)]
        s = party.site(
            "pade_factors",
            f,
            dealer=x.dealer,
            slots={
                i: (slots.declare_dealt if i < 8 else slots.declare_exchanged)(self.ring_bits)
                for i in range(12)
            },
        )
        shape = tensor_ops.dynamic_shape(x.any)
        masked_bits = [
            convert.unpack_bits_to_ring_elements(b, shape, limbs) for b in bits
        ]  # at the dealer: beta
        # (the evaluators' products of masked bits are not used)
        both = [tf.bitwise.bitwise_and(masked_bits[j], masked_bits[k]) for j, k in PRODUCTS]
        masks = [masked.deal(s, b, shape, i, i) for i, b in enumerate([*masked_bits, *both])]
        shares: list[Any] = [None] * 4
        if not s.is_dealer:
            b = [
                ring.unmask_bit_share(s, o, mask, limbs)
                for o, mask in zip(masked_bits, masks, strict=False)
            ]
            z = ring.subtract_ring_elements(x.m, x.l2, limbs) if s.is_e2 else -x.l1
            if limbs == 2 and s.is_e1:
                z = arithmetic.neg(x).l1
            for j in range(BITS + 1):
                weight = -(1 << (f + j)) if j < BITS else 1 << (f + BITS)
                z = ring.add_ring_elements(z, _scale_power_share(b[j], weight, limbs), limbs)
            shares = [z]
            for i, (j, k) in enumerate(PRODUCTS):
                product = self._multiply_bits(
                    s, masked_bits[j], masked_bits[k], masks[j], masks[k], masks[6 + i]
                )
                shares.append(_share_powers_of_two(s, [(b[j], j), (b[k], k)], product, limbs))
            shares.append(_share_powers_of_two(s, [(b[4], 4)], None, limbs))
        return [
            masked.exchange_masked(s, y, shape, 8 + i, 8 + i, scale=0 if i else f)
            for i, y in enumerate(shares)
        ]

    def _multiply_bits(self, s: Site, o1: Any, o2: Any, b1: Any, b2: Any, b12: Any) -> Any:
        """Return shares of (o1 ^ b1)(o2 ^ b2) from shares of b1, b2 and b1 b2."""
        limbs = self.limbs
        mixed = ring.add_ring_elements(
            ring.apply_sign_to_share(o1, ring.multiply_ring_elements(b1, o2, limbs), limbs),
            ring.apply_sign_to_share(o2, ring.multiply_ring_elements(b2, o1, limbs), limbs),
            limbs,
        )
        y = ring.add_ring_elements(
            mixed,
            ring.apply_sign_to_share(o1, ring.apply_sign_to_share(o2, b12, limbs), limbs),
            limbs,
        )
        return (
            ring.add_ring_elements(y, ring.multiply_ring_elements(o1, o2, limbs), limbs)
            if s.is_e2
            else y
        )

    def _evaluate_polynomial(self, party: Party, z: Shared) -> Shared:
        """Compute 2^z for 0 <= z < 1."""
        f = self.fractional_bits

        def multiply_and_truncate(a: Shared, b: Shared) -> Shared:
            return ring.truncate(party, ring.mul(party, a, b), f, self.truncation_method)

        z2 = multiply_and_truncate(z, z)
        z3, z4 = multiply_and_truncate(z, z2), multiply_and_truncate(z2, z2)
        z5 = multiply_and_truncate(z, z4)
        c = [(v * 2 ** (f + 1) + UNIT) // (2 * UNIT) for v in COEFFICIENTS]
        total = ring.mul_constant(z, c[1], f)
        for power, coefficient in zip((z2, z3, z4, z5), c[2:], strict=True):
            total = arithmetic.add(total, ring.mul_constant(power, coefficient, f))
        return ring.add_constant(ring.truncate(party, total, f, self.truncation_method), c[0])


def _scale_power_share(share: Any, weight: int, limbs: int) -> Any:
    return ring.multiply_ring_elements(share, ring.encode_ring_constant(weight, limbs), limbs)


def _share_powers_of_two(s: Site, bits: list[tuple[Any, int]], bit_product: Any, limbs: int) -> Any:
    """Return shares of prod 1 + b_j (2^(2^j) - 1) over one bit, or two with their product."""
    weights = [(1 << (1 << j)) - 1 for _, j in bits]
    y = tf.zeros_like(bits[0][0])
    for (b, _), weight in zip(bits, weights, strict=True):
        y = ring.add_ring_elements(y, _scale_power_share(b, weight, limbs), limbs)
    if bit_product is not None:
        y = ring.add_ring_elements(
            y, _scale_power_share(bit_product, weights[0] * weights[1], limbs), limbs
        )
    return ring.add_ring_elements(y, ring.encode_ring_constant(1, limbs), limbs) if s.is_e2 else y


def plan_pade_exp(ring_bits: int, fractional_bits: int) -> Pade:
    """Return the parameters for a ring and a scale.

    Raises:
        UsageError: too few or too many fractional bits for 2^32 in the ring.
    """
    highest = 24 if ring_bits == 64 else 48
    exp_one_round.check_exp_scale("pade", ring_bits, fractional_bits, 2, highest)
    return Pade(ring_bits, fractional_bits)
