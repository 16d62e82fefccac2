"""Polynomial approximations with integer coefficients that every host computes alike.

The evaluators must hold exactly the same coefficients, and libm differs between hosts:
hence all of this is decimal arithmetic, which Python defines exactly (no float, no LAPACK).
"""

from __future__ import annotations

import decimal
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from tfe_bench.errors import UsageError

Function = Callable[[Decimal], Decimal]
MAX_DEGREE = 20
DIGITS = decimal.Context(prec=100)


def decimal_reciprocal(x: Decimal) -> Decimal:
    """Return 1 / x."""
    return 1 / x


def decimal_rsqrt(x: Decimal) -> Decimal:
    """Return 1 / sqrt(x)."""
    return 1 / x.sqrt()


@dataclass(frozen=True)
class Approximation:
    """g(x) on [low, high] as sum_i A_i V^i / 2^scale with V = x * 2^units - center.

    Attributes:
        coefficients: A_0, A_1, ... (integers).
        scale: S.
        center: integer, about the middle of the interval in units of 2^-units.
        limit: a bound on |V|.
        error: the largest error on a fine grid, relative or absolute as requested.
    """

    coefficients: tuple[int, ...]
    scale: int
    center: int
    limit: int
    error: float

    @property
    def degree(self) -> int:
        """Degree of the polynomial."""
        return len(self.coefficients) - 1


@functools.cache
def decimal_pi() -> Decimal:
    """Compute pi = 16 atan(1/5) - 4 atan(1/239) (Machin)."""

    def decimal_atan_inverse(n: int) -> Decimal:
        total, power, k = Decimal(0), Decimal(1) / n, 1
        while abs(power) > Decimal(10) ** -105:
            total += power / k
            power, k = -power / (n * n), k + 2
        return total

    return 16 * decimal_atan_inverse(5) - 4 * decimal_atan_inverse(239)


def decimal_cosine(x: Decimal) -> Decimal:
    """Return cos(x), by its series."""
    total, term, k = Decimal(0), Decimal(1), 0
    while abs(term) > Decimal(10) ** -105:
        total += term
        k += 2
        term = -term * x * x / (k * (k - 1))
    return total


def _interpolate(values: Callable[[Decimal], Decimal], degree: int) -> list[Decimal]:
    """Return monomial coefficients of the interpolation at Chebyshev nodes of [-1, 1]."""
    count = degree + 1
    nodes = [decimal_cosine(decimal_pi() * (2 * i + 1) / (2 * count)) for i in range(count)]
    divided = [values(t) for t in nodes]
    for level in range(1, count):
        for i in range(count - 1, level - 1, -1):
            divided[i] = (divided[i] - divided[i - 1]) / (nodes[i] - nodes[i - level])
    coefficients = [Decimal(0)] * count
    for i in range(count - 1, -1, -1):  # Newton's form, expanded from the inside
        shifted = [Decimal(0), *coefficients[:-1]]
        coefficients = [a - nodes[i] * b for a, b in zip(shifted, coefficients, strict=True)]
        coefficients[0] += divided[i]
    return coefficients


def evaluate_horner(coefficients: Sequence[Decimal | int], x: Decimal) -> Decimal:
    """Return sum_i c_i x^i."""
    total = Decimal(0)
    for c in reversed(coefficients):
        total = total * x + c
    return total


def _fit_degree(
    function: Function, low: Decimal, high: Decimal, units: int, bits: int, degree: int
) -> Approximation:
    unit = Decimal(2) ** units
    center = int(((low + high) / 2 * unit).to_integral_value())
    half = max(high * unit - center, center - low * unit)

    def rescaled_function(t: Decimal) -> Decimal:
        return function(max(low, min(high, (center + t * half) / unit)))

    # A rounding e of the leading coefficient, which the lower coefficients partly compensate,
    # causes an error of e / 2^(degree - 1) at most. So this scale suffices:
    scale = max(bits, bits + 1 - degree + degree * (int(half).bit_length()))
    factor = Decimal(2) ** scale
    free = _interpolate(rescaled_function, degree)
    leading = int((free[degree] / half**degree * factor).to_integral_value())
    rest = _interpolate(
        lambda t: evaluate_horner(free, t) - leading * (t * half) ** degree / factor, degree - 1
    )
    lower = [int((a / half**i * factor).to_integral_value()) for i, a in enumerate(rest)]
    return Approximation((*lower, leading), scale, center, int(half) + 1, 0.0)


@functools.cache
def fit_approximation(
    function: Function,
    low: Decimal,
    high: Decimal,
    units: int,
    error: Decimal,
    relative: bool = True,
) -> Approximation:
    """Return the polynomial of least degree with at most this error on [low, high].

    Interpolation at Chebyshev nodes: for 1 / x it has the least possible relative error
    (1 - x p(x) vanishes at the nodes, and so is a multiple of the Chebyshev polynomial).

    Args:
        function: increasing or decreasing on the interval.
        units: x is given in units of 2^-units.
        relative: the error is relative to the function's value, else absolute.

    Raises:
        UsageError: no polynomial of degree MAX_DEGREE has so small an error.
    """
    with decimal.localcontext(DIGITS):
        bits = int(1 / error).bit_length() + 3
        for degree in range(1, MAX_DEGREE + 1):
            candidate = _fit_degree(function, low, high, units, bits, degree)
            worst, steps = Decimal(0), 16 * (degree + 1)
            for i in range(steps + 1):
                x = low + (high - low) * i / steps
                v = x * Decimal(2) ** units - candidate.center
                exact = function(x)
                deviation = abs(
                    evaluate_horner(candidate.coefficients, v) / Decimal(2) ** candidate.scale
                    - exact
                )
                worst = max(worst, deviation / abs(exact) if relative else deviation)
            if worst <= error:
                return Approximation(
                    candidate.coefficients,
                    candidate.scale,
                    candidate.center,
                    candidate.limit,
                    float(worst),
                )
    raise UsageError(
        f"No polynomial of degree {MAX_DEGREE} approximates to {float(error)} on "
        f"[{float(low)}, {float(high)}]. Ask for a larger error, or for a narrower range.",
        code="no-approximation",
        received=float(error),
    )


def polynomial_tolerance(precision: int) -> Decimal:
    """Return the polynomial's part of an error of 2^-precision."""
    return Decimal("0.55") / (1 << precision)
