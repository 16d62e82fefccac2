"""Functions as polynomials on a range, evaluated on encrypted values.

Chebyshev interpolation gives the coefficients, and splitting at powers of two (Paterson and
Stockmeyer, SIAM J. Comput. 1973) an evaluation of least depth.  Outside of its range a polynomial
is far from its function, and no one sees it: the client refuses such inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial

from tfe_bench.benchmarks.technologies.homomorphic.parameters import Parameters
from tfe_bench.benchmarks.technologies.homomorphic.parties import (
    Encrypted,
    Server,
    Values,
)
from tfe_bench.errors import UsageError, check_known

DEGREE: Final = 7


def _compute_sigmoid(x: Values) -> Values:
    value: Values = 0.5 * (1 + np.tanh(x / 2))
    return value


# by name: the function, its range, what is known of it
FUNCTIONS: Final[Mapping[str, tuple[Callable[[Values], Values], float, float]]] = {
    "sigmoid": (_compute_sigmoid, -6.0, 6.0),
    "exp": (np.exp, -2.0, 2.0),
}
PARAMETERS: Final = Parameters("CKKS", 8192, (46, 36, 36, 36, 60), 36)


@dataclass(frozen=True)
class Approximation:
    """A polynomial of degree 7 for a function on [low, high].

    Attributes:
        coefficients: of the powers of t = (2 x - low - high) / (high - low), in [-1, 1].
        error: the largest on the range, found on a grid.
    """

    low: float
    high: float
    coefficients: tuple[float, ...]
    error: float

    @classmethod
    def fit_function(cls, name: str) -> Approximation:
        """Of one of `FUNCTIONS`.

        Raises:
            UsageError: there is none of that name.
        """
        check_known("function", name, FUNCTIONS)
        function, low, high = FUNCTIONS[name]
        series = Chebyshev.interpolate(lambda t: function(_scale_range(t, low, high)), DEGREE)
        power: Polynomial = series.convert(kind=Polynomial)
        grid = np.linspace(-1, 1, 100_001)
        error = float(np.abs(power(grid) - function(_scale_range(grid, low, high))).max())
        return cls(low, high, tuple(float(c) for c in power.coef), error)

    def normalize_values(self, x: Values) -> Values:
        """Values of the range as values of [-1, 1], which a client encrypts."""
        t: Values = (2 * x - self.low - self.high) / (self.high - self.low)
        return t

    def __call__(self, x: Values) -> Values:
        """In plaintext."""
        value: Values = np.asarray(Polynomial(self.coefficients)(self.normalize_values(x)))
        return value


def _scale_range(t: Values, low: float, high: float) -> Values:
    value: Values = (t * (high - low) + low + high) / 2
    return value


def evaluate_polynomial(server: Server, x: Encrypted, coefficients: Sequence[float]) -> Encrypted:
    """The sum of coefficients[k] x^k, three levels below x.

    Args:
        x: of magnitude at most 1.
        coefficients: eight, those of odd powers not zero.

    Raises:
        UsageError: other coefficients, or parameters that are not as deep.
    """
    if len(coefficients) != DEGREE + 1:
        raise UsageError(f"Eight coefficients are due. Received: {len(coefficients)}.")
    x2 = server.multiply(x, x)
    x4 = server.multiply(x2, x2)
    high = _evaluate_cubic(server, x, x2, coefficients[4:], server.setting.scale)
    product = server.multiply(high, x4)
    low = _evaluate_cubic(server, x, x2, coefficients[:4], float(product.handle.scale()))
    return server.add(product, server.lower_level(low, server.setting.count_levels(product.handle)))


def _evaluate_cubic(
    server: Server, x: Encrypted, x2: Encrypted, c: Sequence[float], scale: float
) -> Encrypted:
    """(c[0] + c[1] x) + (c[2] + c[3] x) x^2 of a scale, one level below x^2.

    Every plaintext has the scale that makes both sides of a sum agree.
    """
    prime, level = server.setting.prime_at, server.setting.count_levels
    first, second = level(x.handle), level(x2.handle)
    before = scale * prime(second)
    factor = before / x2.handle.scale()
    inner = _multiply_plain(server, x, c[3], factor * prime(first) / x.handle.scale())
    inner = _add_term(server, server.rescale(inner), c[2])
    product = server.multiply_unscaled(inner, x2)
    lowered = server.lower_level(x, second)
    linear = _multiply_plain(server, lowered, c[1], product.handle.scale() / x.handle.scale())
    return server.rescale(_add_term(server, server.add(product, linear), c[0]))


def _multiply_plain(server: Server, x: Encrypted, factor: float, scale: float) -> Encrypted:
    plain = server.setting.encode_values(factor, scale, server.setting.count_levels(x.handle))
    result = server.inner_product([x], [None if plain.is_zero() else plain], abs(factor) * x.bound)
    if result is None:
        raise UsageError("A polynomial's coefficients of odd powers are not zero.")
    return result


def _add_term(server: Server, x: Encrypted, term: float) -> Encrypted:
    level = server.setting.count_levels(x.handle)
    return server.add_plain(
        x, server.setting.encode_values(term, float(x.handle.scale()), level), abs(term)
    )
