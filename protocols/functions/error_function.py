"""erf(x), the integral of 2 / sqrt(pi) e^(-t^2) from 0 to x, by two polynomials of |x|.

From 2 S on it is 1 to half an ulp; below, p(min(|x|, S)) + q(min(|x|, 2 S) - min(|x|, S)).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from tfe_bench.protocols.functions import approximation, polynomial
from tfe_bench.protocols.ring import arithmetic, compare, convert, shapes
from tfe_bench.protocols.session import slices, tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

MIN_FRACTIONAL_BITS, MAX_FRACTIONAL_BITS = 8, 16  # fractional


def _exact_erf(x: Decimal) -> Decimal:
    """Compute erf by its series, the sum of (-1)^n x^(2n+1) / (n! (2n+1)), times 2 / sqrt(pi)."""
    total, power, n = Decimal(0), x, 0
    while abs(power) > Decimal(10) ** -90:
        total += power / (2 * n + 1)
        n += 1
        power = -power * x * x / n
    return 2 * total / approximation.decimal_pi().sqrt()


@dataclass(frozen=True, eq=False)
class ErfPolynomials:
    """The function in two steps.

    Attributes:
        step: S, in ring units.
        first, second: p and q.
    """

    step: int
    first: polynomial.FittedPolynomial
    second: polynomial.FittedPolynomial


@functools.cache
def fit_erf(f: int) -> ErfPolynomials:
    """Return the polynomials for f fractional bits."""
    ulp = Decimal(2) ** -f
    eighths = 8
    while 1 - _exact_erf(Decimal(2 * eighths) / 8) > ulp / 4:
        eighths += 1
    step = Decimal(eighths) / 8
    at_step = _exact_erf(step)
    polynomials = [
        polynomial.fit_polynomial(
            approximation.fit_approximation(part, Decimal(0), step, f, ulp / 16, False), f
        )
        for part in (_exact_erf, lambda a: _exact_erf(step + a) - at_step)
    ]
    # (q's end differs from 1 - erf(S) by no more than the errors elsewhere)
    return ErfPolynomials(eighths << (f - 3), *polynomials)


@slices.slice_elementwise
def erf(party: Party, x: Shared, bits: int = compare.LAYER_BITS) -> Shared:
    """Compute erf(x) for every |x| < 2^(bits-1) ring units, off by less than 3 ulp.

    Rounds: 10 online (11 total). Bits sent: those of three comparisons, four selections and both
    polynomials.
    """
    polynomials = fit_erf(x.fractional_bits)
    shape = x.shape.as_list()
    x = x.map(lambda a: tensor_ops.reshape(a, [-1]))
    negative = convert.mask_bits(party, compare.msb(party, x, bits))
    size = convert.negate_where(party, negative, x)
    ends = np.array([[polynomials.step], [2 * polynomials.step]], np.int64)
    beyond = arithmetic.add_constant(shapes.stack([size, size]), -ends)  # |x| - S, |x| - 2 S
    width = compare.comparison_bits_with_constant(bits, 2 * polynomials.step)
    inside = convert.mask_bits(party, compare.msb(party, beyond, width))
    capped = arithmetic.add_constant(convert.inject(party, inside, beyond), ends)
    low, high = shapes.unstack(capped)
    y = arithmetic.add(
        polynomials.first.evaluate(party, "erf", low),
        polynomials.second.evaluate(party, "erf", arithmetic.sub(high, low)),
    )
    return convert.negate_where(party, negative, y).map(lambda a: tensor_ops.reshape(a, shape))
