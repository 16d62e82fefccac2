"""Softplus, log(1 + e^x), and related functions: max(x, 0) and a function of e^-|x|."""

from __future__ import annotations

import functools
from decimal import Decimal

from tfe_bench.protocols.functions import approximation, piecewise, polynomial
from tfe_bench.protocols.nn import activations, linear
from tfe_bench.protocols.ring import arithmetic, compare
from tfe_bench.protocols.ring.checks import check_fractional_bits_range, check_private_64bit_tensor
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

MIN_BITS = 8
MAX_BITS = 16


def split_sides(
    party: Party, x: Shared, edge: int, bits: int, exchanges: int | None
) -> tuple[Shared, Shared, Shared]:
    """Return max(x, 0), and the distances of x above and below 0: at most edge, in ring units.

    Rounds and bits: those of linear.relu_at_knots with three knots.
    """
    high, _ = linear.relu_at_knots(party, x, (-edge, 0, edge), bits, exchanges)
    low, positive, far = (high.map(lambda a, i=i: tensor_ops.strided_slice(a, i)) for i in range(3))
    below = arithmetic.add_constant(arithmetic.sub(positive, low), edge)
    return positive, arithmetic.sub(positive, far), below


def _softplus_tail(t: Decimal) -> Decimal:
    return (1 + t).ln()


@functools.cache
def _fit_softplus_tail(f: int) -> polynomial.FittedPolynomial:
    """Fit log(1 + t) on [0, 1] for t with INNER_BITS."""
    polynomial_fit = approximation.fit_approximation(
        _softplus_tail,
        Decimal(0),
        Decimal(1),
        activations.INNER_BITS,
        Decimal(2) ** -(f + 3),
        False,
    )
    return polynomial.fit_polynomial(polynomial_fit, f, bits=polynomial_fit.limit.bit_length() + 2)


def softplus(
    party: Party, x: Shared, bits: int = compare.LAYER_BITS, exchanges: int | None = None
) -> Shared:
    """Compute log(1 + e^x), error below 2 ulp, for every |x| < 2^(bits-1) ring units.

    It is max(x, 0) + log(1 + e^-|x|): a polynomial of the exponential, which counts as 0 where it
    is below half an ulp.

    Args:
        exchanges: of the comparisons; None: 1 for few elements, 2 for many.

    Rounds: exchanges + 4 online, exchanges + 5 in total. Bits sent: those of three ReLUs, an
    exponential and a polynomial.
    Raises:
        UsageError: another ring, fewer than 8 or more than 16 fractional bits.
    """
    check_fractional_bits_range(
        "softplus", check_private_64bit_tensor("softplus", x, known=True), MIN_BITS, MAX_BITS
    )
    f = x.fractional_bits
    positive, above, below = split_sides(party, x, activations.saturation_units(f), bits, exchanges)
    t = activations.exp_nonpositive(party, arithmetic.neg(arithmetic.add(above, below)))
    return arithmetic.add(positive, _fit_softplus_tail(f).evaluate(party, "polyval", t))


def slope(party: Party, x: Shared, bits: int = compare.LAYER_BITS) -> Shared:
    """Compute 1 / (1 + e^-x), error below 2^-10.5.

    Rounds, bits and errors: those of piecewise.logistic.
    """
    # One bit more, as x is compared with knots other than 0.
    return piecewise.logistic(party, x, bits=bits + 1)


def log_sigmoid_slope(party: Party, x: Shared, bits: int = compare.LAYER_BITS) -> Shared:
    """Compute 1 / (1 + e^x): the derivative of log_sigmoid.

    Error, rounds, bits and errors: those of piecewise.logistic.
    """
    return slope(party, arithmetic.neg(x), bits)


def log_sigmoid(
    party: Party, x: Shared, bits: int = compare.LAYER_BITS, exchanges: int | None = None
) -> Shared:
    """Compute log(1 / (1 + e^-x)) = -softplus(-x).

    Error, rounds, bits and errors: as `softplus`.
    """
    return arithmetic.neg(softplus(party, arithmetic.neg(x), bits, exchanges))
