"""Squareplus, (x + sqrt(x^2 + b)) / 2.

Source: Barron, Squareplus: a softplus-like algebraic rectifier, 2021; the protocol is this
project's.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions import reciprocal, roots
from tfe_bench.protocols.nn import relu
from tfe_bench.protocols.ring import arithmetic, compare
from tfe_bench.protocols.ring.checks import check_fractional_bits_range, check_private_64bit_tensor
from tfe_bench.protocols.ring.truncation import truncate
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

MAX_OFFSET = 64
_INNER = 20


def max_squareplus_bits(f: int) -> int:
    """Return the largest width of a value with f fractional bits: its square fits."""
    return min(31, _INNER + f)


def squareplus(
    party: Party,
    x: Shared,
    b: float = 4.0,
    bits: int = compare.LAYER_BITS,
    exchanges: int | None = None,
) -> Shared:
    """Compute (x + sqrt(x^2 + b)) / 2, error below 3 ulp, for every |x| < 2^(bits-1) ring units.

    It is max(x, 0) + b / (2 |x| + 2 sqrt(x^2 + b)), which keeps its accuracy far from 0.

    Args:
        b: from 2^-8 to 64.
        bits: up to `max_bits`.
        exchanges: of the comparison; None: 1 for few elements, 2 for many.

    Rounds: those of relu.relu, a square, roots.sqrt, reciprocal.reciprocal and three truncations.
    Raises:
        UsageError: another ring or b, too many bits, or fewer than 8 or more than 16 fractional
            bits.
    """
    check_fractional_bits_range(
        "squareplus", check_private_64bit_tensor("squareplus", x, known=True), 8, 16
    )
    f, extra_bits = x.fractional_bits, _INNER - x.fractional_bits
    if not 2.0**-8 <= b <= MAX_OFFSET or not 2 <= bits <= max_squareplus_bits(f):
        raise UsageError(
            f"squareplus expects b from 2^-8 to {MAX_OFFSET}, and values of 2 to "
            f"{max_squareplus_bits(f)} bits. Received: b={b!r}, bits={bits!r}.",
            code="number-out-of-range",
            operation="squareplus",
            received=f"b={b!r}, bits={bits!r}",
            expected=f"2^-8 to {MAX_OFFSET}, 2 to {max_squareplus_bits(f)} bits",
        )
    count = compare.default_exchanges(x.shape.num_elements(), bits, exchanges)
    positive = relu.relu(party, x, bits, count)
    magnitude = arithmetic.sub(arithmetic.add(positive, positive), x)
    square = arithmetic.mul(party, magnitude, magnitude)
    if 2 * f > _INNER:
        square = truncate(party, square, 2 * f - _INNER)
    else:
        square = _raise_squareplus_scale(square, _INNER - 2 * f)
    offset = round(Fraction(b) * (1 << _INNER))
    square_bits = 2 * (bits - 1) + _INNER - 2 * f
    inside = arithmetic.add_constant(square, offset)
    root = roots.sqrt(party, inside, max(square_bits, offset.bit_length()) + 1)
    total = arithmetic.add(_raise_squareplus_scale(magnitude, extra_bits), root)
    inverse_sum = reciprocal.reciprocal(
        party, total, max(bits + extra_bits, (8 << _INNER).bit_length()) + 2
    )
    half = np.int64(round(Fraction(b) * (1 << 15)))  # with 16 fractional bits
    tail = truncate(party, arithmetic.mul_public(inverse_sum, half, 16), 16 + extra_bits)
    return arithmetic.add(positive, tail)


def _raise_squareplus_scale(x: Shared, extra_bits: int) -> Shared:
    """Return x with more fractional bits. Local."""
    y = x.map(lambda a: tensor_ops.left_shift(a, extra_bits))
    return Shared(y.m, y.l1, y.l2, y.dealer, x.fractional_bits + extra_bits)
