"""Functions that are 0 up to a knot, x beyond another, and a parabola between: hard SiLU.

Source: Howard et al., Searching for MobileNetV3, ICCV 2019; the protocol is this project's.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from tfe_bench.protocols.functions import polynomial
from tfe_bench.protocols.nn import linear
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic
from tfe_bench.protocols.ring.checks import check_fractional_bits_range, check_private_64bit_tensor
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

# Fractional bits of a slope beyond those of x.
SLOPE_BITS = 12


@dataclass(frozen=True)
class Ramp:
    """A function: 0 below -reach, x above reach, and a v^2 + b v between, with v = x + reach.

    Attributes:
        reach: a small integer.
    """

    reach: int
    square: Fraction
    linear: Fraction

    def slope_at(self, v: int) -> Fraction:
        """Return the slope of the parabola."""
        return 2 * self.square * v + self.linear


HARD_SILU = Ramp(3, Fraction(1, 6), Fraction(-1, 2))
SPARSE_PLUS = Ramp(1, Fraction(1, 4), Fraction(0))


def ramp_with_slope(
    party: Party,
    x: Shared,
    ramp: Ramp = HARD_SILU,
    bits: int = compare.LAYER_BITS,
    exchanges: int | None = None,
) -> tuple[Shared, Shared]:
    """Return the ramp's value, and its derivative with SLOPE_BITS fractional bits more.

    Error: below 1.2 ulp, for every |x| < 2^(bits-1) ring units.

    Args:
        exchanges: of the comparisons; None: 1 for few elements, 2 for many.

    Rounds: exchanges + 3 online, exchanges + 4 in total. Bits sent: those of two ReLUs and a
    polynomial.
    Raises:
        UsageError: another ring, fewer than 8 or more than 20 fractional bits.
    """
    check_fractional_bits_range(
        "ramped", check_private_64bit_tensor("ramped", x, known=True), 8, 20
    )
    f, shape = x.fractional_bits, x.shape.as_list()
    n, edge = x.shape.num_elements(), ramp.reach << f
    high, below = linear.relu_at_knots(party, x, (-edge, edge), bits, exchanges)
    low, beyond = (high.map(lambda a, i=i: tensor_ops.strided_slice(a, i)) for i in range(2))
    v = arithmetic.sub(low, beyond)
    coefficients = [float(ramp.square), float(ramp.linear), 0.0]
    width = (2 * edge).bit_length() + 1
    y = arithmetic.add(beyond, polynomial.polyval(party, coefficients, v, width))
    scaled_slope = arithmetic.mul_public(
        v, np.int64(round(2 * ramp.square * (1 << SLOPE_BITS))), SLOPE_BITS
    )
    slope = arithmetic.add_constant(scaled_slope, round(ramp.linear * (1 << (f + SLOPE_BITS))))
    first, last = ramp.slope_at(0), ramp.slope_at(2 * ramp.reach)
    # Outside the parabola v is 0 or 2 reach.
    for i, jump in enumerate((-first, last - 1)):
        if jump:
            knot_bits = logic.rearrange_private_bits(below, (2, n), operator.itemgetter(i), n)
            ones = convert.b2a(party, knot_bits, shape)
            factor = np.int64(round(jump * (1 << (f + SLOPE_BITS))))
            slope = arithmetic.add(slope, arithmetic.mul_public(ones, factor, f + SLOPE_BITS))
    return y, arithmetic.add_constant(slope, round((1 - last) * (1 << (f + SLOPE_BITS))))
