"""ELU, SELU and CELU: max(x, 0), and an exponential minus 1 below 0.

Sources: Clevert, Unterthiner and Hochreiter, Fast and accurate deep network learning by exponential
linear units, 2016; Klambauer et al., Self-normalizing neural networks, 2017; Barron, Continuously
differentiable exponential linear units, 2017. The protocol is this project's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.nn import activations, linear
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic
from tfe_bench.protocols.ring.checks import check_fractional_bits_range, check_private_64bit_tensor
from tfe_bench.protocols.ring.truncation import MAX_DROPPED_BITS, truncate
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

MAX_FACTOR = 64  # largest factor, and largest 1 / decay
INNER = activations.INNER_BITS
_SLOPE_BITS = 20
# Fractional bits of public factors: of factors of values below 2^6 with INNER fractional bits, and
# of 1 / decay.
_FACTOR_BITS, _DECAY_BITS = 24, 30
_PRODUCT_BITS = 61
_LN2 = Fraction(7, 10)  # rounded up


@dataclass(frozen=True)
class EluForm:
    """The function positive max(x, 0) + negative (e^(min(x, 0) / decay) - 1).

    Raises:
        UsageError: factors or the decay are out of range.
    """

    positive: float = 1.0
    negative: float = 1.0
    decay: float = 1.0

    def __post_init__(self) -> None:
        is_valid = max(abs(self.positive), abs(self.negative)) <= MAX_FACTOR
        if not (is_valid and Fraction(1, MAX_FACTOR) <= self.decay <= MAX_FACTOR):
            raise UsageError(
                f"Expected factors up to {MAX_FACTOR} and a decay from 1/{MAX_FACTOR} to "
                f"{MAX_FACTOR} for an exponential linear unit. Received: {self}.",
                code="number-out-of-range",
                operation="elu",
                received=self,
                expected=f"factors up to {MAX_FACTOR}",
            )

    def cutoff_units(self, f: int) -> int:
        """Return the ring units of -x from which the exponential counts as 0."""
        exponent_bits = f + 3 + int(abs(self.negative)).bit_length()
        return math.ceil(exponent_bits * _LN2 * Fraction(self.decay) * (1 << f))


def elu(
    party: Party,
    x: Shared,
    form: EluForm = EluForm(),
    bits: int = compare.LAYER_BITS,
    exchanges: int | None = None,
) -> Shared:
    """Compute an exponential linear unit of x for |x| < 2^(bits-1) ring units.

    The value is positive max(x, 0) + negative (e^(min(x, 0) / decay) - 1).

    Error: below 2 ulp; unless positive is 1, additionally 1 ulp and 2^(bits-62) of the value.

    Args:
        exchanges: of the comparisons; None: 1 for few elements, 2 for many.

    Rounds: exchanges + 4 online, exchanges + 5 in total; one more unless decay is 1. Bits sent:
    those of two ReLUs, an exponential and up to three truncations.
    Raises:
        UsageError: another ring, fewer than 8 or more than 16 fractional bits, or too many bits for
            the multiplication by a factor.
    """
    return _compute_elu_parts(party, x, form, bits, exchanges)[0]


def elu_with_slope(
    party: Party,
    x: Shared,
    form: EluForm = EluForm(),
    bits: int = compare.LAYER_BITS,
    exchanges: int | None = None,
) -> tuple[Shared, Shared]:
    """Return the value, and its derivative with 20 fractional bits: `positive` at 0.

    Rounds: as `elu`.
    """
    y, t, negative = _compute_elu_parts(party, x, form, bits, exchanges)
    slope_factor = Fraction(form.negative) / Fraction(form.decay)
    negative_slope = (
        _scale_elu_by_public_factor(t, slope_factor, _FACTOR_BITS) if slope_factor != 1 else t
    )
    slope = truncate(party, negative_slope, negative_slope.fractional_bits - _SLOPE_BITS)
    jump = round((Fraction(form.positive) - slope_factor) * (1 << _SLOPE_BITS))
    if jump:
        is_nonnegative = convert.b2a(
            party, logic.invert_bits(negative), tensor_ops.dynamic_shape(x.any)
        )
        slope = arithmetic.add(
            slope, arithmetic.mul_public(is_nonnegative, np.int64(jump), _SLOPE_BITS)
        )
    return y, slope


def _compute_elu_parts(
    party: Party, x: Shared, form: EluForm, bits: int, exchanges: int | None
) -> tuple[Shared, Shared, MaskedBits]:
    """Return the value, e^(min(x, 0) / decay) with INNER bits, and bits of x < 0."""
    check_fractional_bits_range("elu", check_private_64bit_tensor("elu", x, known=True), 8, 16)
    f, edge, n = x.fractional_bits, form.cutoff_units(x.fractional_bits), x.shape.num_elements()
    knot_values, below_knots = linear.relu_at_knots(party, x, (-edge, 0), bits, exchanges)
    low, y = (knot_values.map(lambda a, i=i: tensor_ops.strided_slice(a, i)) for i in range(2))
    u = arithmetic.add_constant(arithmetic.sub(low, y), -edge)  # min(x, 0), above the cutoff
    if form.decay != 1:
        u = _scale_elu_by_public_factor(u, 1 / Fraction(form.decay), _DECAY_BITS)
        u = truncate(party, u, u.fractional_bits - INNER)
        u = arithmetic.add_constant(u, -2)  # no value that is rounded up is above 0
    t = activations.exp_nonpositive(party, u)
    tail = arithmetic.add_constant(t, -(1 << INNER))
    if form.negative != 1:
        tail = _scale_elu_by_public_factor(tail, Fraction(form.negative), _FACTOR_BITS)
    if form.positive != 1:
        extra_bits = min(
            MAX_DROPPED_BITS, _PRODUCT_BITS - bits - int(abs(form.positive)).bit_length()
        )
        if extra_bits < 8:
            raise UsageError(
                f"A factor of this size permits at most {bits - 8 + extra_bits} bits. "
                f"Received: {bits}.",
                code="too-large",
                operation="elu",
                received=bits,
                expected=bits - 8 + extra_bits,
            )
        y = truncate(
            party, _scale_elu_by_public_factor(y, Fraction(form.positive), extra_bits), extra_bits
        )
    y = arithmetic.add(y, truncate(party, tail, tail.fractional_bits - f))
    return (
        y,
        t,
        logic.rearrange_private_bits(
            below_knots, (2, n), lambda a: tensor_ops.strided_slice(a, 1), n
        ),
    )


def _scale_elu_by_public_factor(x: Shared, factor: Fraction, extra_bits: int) -> Shared:
    """Multiply x by a public factor, which adds `extra_bits` fractional bits. Local."""
    return arithmetic.mul_public(x, np.int64(round(factor * (1 << extra_bits))), extra_bits)
