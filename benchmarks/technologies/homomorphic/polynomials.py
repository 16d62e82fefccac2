"""Functions as polynomials on a range, evaluated on encrypted values.

Chebyshev interpolation yields the coefficients, and splitting at powers of two (Paterson and
Stockmeyer, SIAM J. Comput. 1973) an evaluation of least depth.  Outside its range a polynomial
differs widely and silently from its function: the client rejects such inputs.
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


# by name: the function and the ends of its range
FUNCTIONS: Final[Mapping[str, tuple[Callable[[Values], Values], float, float]]] = {
    "sigmoid": (_compute_sigmoid, -6.0, 6.0),
    "exp": (np.exp, -2.0, 2.0),
}
PARAMETERS: Final = Parameters("CKKS", 8192, (46, 36, 36, 36, 60), 36)


@dataclass(frozen=True)
class Approximation:
    """A polynomial of degree 7 for a function on [low, high].

    Attributes:
        low, high: ends of the range.
        coefficients: coefficients of the powers of t = (2 x - low - high) / (high - low), which is
            in [-1, 1].
        error: largest error on a grid over the range.
    """

    low: float
    high: float
    coefficients: tuple[float, ...]
    error: float

    @classmethod
    def fit_function(cls, name: str) -> Approximation:
        """Approximate one of `FUNCTIONS`.

        Raises:
            UsageError: no function has this name.
        """
        check_known("function", name, FUNCTIONS)
        function, low, high = FUNCTIONS[name]
        series = Chebyshev.interpolate(lambda t: function(_scale_range(t, low, high)), DEGREE)
        power: Polynomial = series.convert(kind=Polynomial)
        grid = np.linspace(-1, 1, 100_001)
        error = float(np.abs(power(grid) - function(_scale_range(grid, low, high))).max())
        return cls(low, high, tuple(float(c) for c in power.coef), error)

    def normalize_values(self, x: Values) -> Values:
        """Map values of the range to [-1, 1]; a client encrypts the result."""
        t: Values = (2 * x - self.low - self.high) / (self.high - self.low)
        return t

    def __call__(self, x: Values) -> Values:
        """Evaluate the polynomial in plaintext."""
        value: Values = np.asarray(Polynomial(self.coefficients)(self.normalize_values(x)))
        return value


def _scale_range(t: Values, low: float, high: float) -> Values:
    value: Values = (t * (high - low) + low + high) / 2
    return value


def evaluate_polynomial(server: Server, x: Encrypted, coefficients: Sequence[float]) -> Encrypted:
    """Compute the sum of coefficients[k] x^k, three levels below x.

    Args:
        server: the server.
        x: values of magnitude at most 1.
        coefficients: eight; those of odd powers are not zero.

    Raises:
        UsageError: the coefficients are unsuitable, or the parameters are not deep enough.
    """
    if len(coefficients) != DEGREE + 1:
        raise UsageError(
            f"Expected eight coefficients. Received: {len(coefficients)}.",
            code="invalid-coefficients",
            received=len(coefficients),
            expected=DEGREE + 1,
        )
    x2 = server.multiply(x, x)
    x4 = server.multiply(x2, x2)
    high = _evaluate_encrypted_cubic(server, x, x2, coefficients[4:], server.setting.scale)
    product = server.multiply(high, x4)
    low = _evaluate_encrypted_cubic(server, x, x2, coefficients[:4], float(product.handle.scale()))
    return server.add(product, server.lower_level(low, server.setting.count_levels(product.handle)))


def _evaluate_encrypted_cubic(
    server: Server, x: Encrypted, x2: Encrypted, c: Sequence[float], scale: float
) -> Encrypted:
    """Compute (c[0] + c[1] x) + (c[2] + c[3] x) x^2 at a scale, one level below x^2.

    The scale of every plaintext is chosen so that both operands of a sum have the same scale.
    """
    prime, level = server.setting.prime_at, server.setting.count_levels
    first, second = level(x.handle), level(x2.handle)
    before = scale * prime(second)
    factor = before / x2.handle.scale()
    inner = _multiply_plain(server, x, c[3], factor * prime(first) / x.handle.scale())
    inner = _add_polynomial_term(server, server.rescale(inner), c[2])
    product = server.multiply_unscaled(inner, x2)
    lowered = server.lower_level(x, second)
    linear = _multiply_plain(server, lowered, c[1], product.handle.scale() / x.handle.scale())
    return server.rescale(_add_polynomial_term(server, server.add(product, linear), c[0]))


def _multiply_plain(server: Server, x: Encrypted, factor: float, scale: float) -> Encrypted:
    plain = server.setting.encode_values(factor, scale, server.setting.count_levels(x.handle))
    result = server.inner_product([x], [None if plain.is_zero() else plain], abs(factor) * x.bound)
    if result is None:
        raise UsageError(
            "A polynomial's coefficients of odd powers are not zero. Received: a zero.",
            code="invalid-coefficients",
            received=0,
        )
    return result


def _add_polynomial_term(server: Server, x: Encrypted, term: float) -> Encrypted:
    level = server.setting.count_levels(x.handle)
    return server.add_plain(
        x, server.setting.encode_values(term, float(x.handle.scale()), level), abs(term)
    )
