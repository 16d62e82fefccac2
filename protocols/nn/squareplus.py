"""Squareplus, (x + sqrt(x^2 + b)) / 2.

Source: Barron, Squareplus: a softplus-like algebraic rectifier, 2021; how it is computed is this
project's.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions import reciprocal, roots
from tfe_bench.protocols.nn import relu
from tfe_bench.protocols.ring import arithmetic, compare
from tfe_bench.protocols.ring.checks import check_ring, check_scale
from tfe_bench.protocols.ring.truncation import truncate
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

LARGEST = 64
_INNER = 20


def most_bits(f: int) -> int:
    """How wide a value with f fractional bits may be: its square fits."""
    return min(31, _INNER + f)


def squareplus(
    party: Party,
    x: Shared,
    b: float = 4.0,
    bits: int = compare.LAYER_BITS,
    exchanges: int | None = None,
) -> Shared:
    """(x + sqrt(x^2 + b)) / 2, off by less than 3 ulp, for every |x| < 2^(bits-1) ring units.

    It is max(x, 0) + b / (2 |x| + 2 sqrt(x^2 + b)), and so keeps its digits where x is far from 0.

    Args:
        b: from 2^-8 to 64.
        bits: up to `most_bits`.
        exchanges: of the comparison; None takes 1 for few elements, 2 for many.

    Rounds: those of relu.relu, a square, roots.sqrt, reciprocal.reciprocal and three truncations.
    Raises:
        UsageError: another ring or b, too many bits, or fewer than 8 or more than 16 fractional
            bits.
    """
    check_scale("squareplus", check_ring("squareplus", x, known=True), 8, 16)
    f, more = x.fractional_bits, _INNER - x.fractional_bits
    if not 2.0**-8 <= b <= LARGEST or not 2 <= bits <= most_bits(f):
        raise UsageError(
            f"squareplus wants b from 2^-8 to {LARGEST}, and values of 2 to {most_bits(f)} bits. "
            f"Received: b={b!r}, bits={bits!r}."
        )
    count = compare.few_openings(x.shape.num_elements(), bits, exchanges)
    positive = relu.relu(party, x, bits, count)
    size = arithmetic.sub(arithmetic.add(positive, positive), x)
    square = arithmetic.mul(party, size, size)
    if 2 * f > _INNER:
        square = truncate(party, square, 2 * f - _INNER)
    else:
        square = _shifted(square, _INNER - 2 * f)
    offset = round(Fraction(b) * (1 << _INNER))
    wide = 2 * (bits - 1) + _INNER - 2 * f
    inside = arithmetic.moved(square, offset)
    root = roots.sqrt(party, inside, max(wide, offset.bit_length()) + 1)
    total = arithmetic.add(_shifted(size, more), root)
    rest = reciprocal.reciprocal(party, total, max(bits + more, (8 << _INNER).bit_length()) + 2)
    half = np.int64(round(Fraction(b) * (1 << 15)))  # of 16 fractional bits
    tail = truncate(party, arithmetic.mul_public(rest, half, 16), 16 + more)
    return arithmetic.add(positive, tail)


def _shifted(x: Shared, more: int) -> Shared:
    """x with more fractional bits.  Local."""
    y = x.map(lambda a: local.left_shift(a, more))
    return Shared(y.m, y.l1, y.l2, y.dealer, x.fractional_bits + more)
