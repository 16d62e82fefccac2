"""GELU's approximation by tanh, x (1 + tanh z(x)) / 2, and its slope.

Source: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016, section 2.
"""

from __future__ import annotations

import functools
from decimal import Decimal

from tfe_bench.protocols.nn import gated, gelu
from tfe_bench.protocols.ring import compare
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

# sqrt(2 / pi)
_ROOT = Decimal("0.79788456080286535587989211986876373695171726232986931533185165934131585179861")
_CUBIC = Decimal("0.044715")


def _tanh_tail(a: Decimal) -> Decimal:
    """Compute (1 - tanh z(a)) / 2 with z(a) = sqrt(2 / pi) (a + 0.044715 a^3)."""
    return 1 / (1 + (2 * _ROOT * (a + _CUBIC * a**3)).exp())


def _residual_function(a: Decimal) -> Decimal:
    return a * _tanh_tail(a)


def _gelu_tanh_slope(x: Decimal) -> Decimal:
    rising = _tanh_tail(-x)
    return rising + x * 2 * rising * (1 - rising) * _ROOT * (1 + 3 * _CUBIC * x * x)


@functools.cache
def residual_for_scale(f: int) -> gelu.ActivationResidual:
    """Return max(x, 0) - gelu_tanh(x) as a function of |x|, for f fractional bits."""
    return gelu.fit_residual(_residual_function, f)


def gelu_tanh(
    party: Party, x: Shared, bits: int = compare.LAYER_BITS, exchanges: int | None = None
) -> Shared:
    """Compute x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, error below 3 ulp.

    Range, arguments, rounds, bits and errors: as gelu.gelu.
    """
    return gelu.minus_residual(party, "gelu_tanh", x, residual_for_scale, bits, exchanges)


slope = gated.Slope("gelu_tanh_slope", _gelu_tanh_slope, 5)
