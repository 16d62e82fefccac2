"""Piecewise linear functions of a private value in three rounds; the logistic function.

All public knots are compared at once, so that with b_i = [x < knot_i] and pieces a_i x + c_i

    y = c_last + sum_i b_i ((a_i - a_(i+1)) x + c_i - c_(i+1))

is one sum of injections, exchanged once. x drops the bits that do not matter without a message,
which leaves it in a ring 2^k below 2^64, and the injection extends it again (convert.inject_shares
with extend_ring): so x may be an untruncated product, or of a small ring. Slopes are
integers in units of 2^-(RESULT_BITS - X_BITS): no bits have to be truncated. The pieces need not
meet: with separate constants, a slope's rounding counts only over half of its piece's length.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.functions import normalize
from tfe_bench.protocols.functions.exp_one_round import to_signed_word
from tfe_bench.protocols.ring import arithmetic, compare, convert, masked
from tfe_bench.protocols.ring.checks import (
    check_fractional_bits_range,
    check_known_shape,
    check_private_word_tensor,
)
from tfe_bench.protocols.session import slots, tensor_ops
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

RESULT_BITS = 20  # fractional
X_BITS = 11  # fractional bits that x keeps
COMPARED_BITS = 9  # fractional bits of compared values
KNOT_BITS = 6  # knots are multiples of 2^-KNOT_BITS
RING = 64
_SLOPE_BITS = RESULT_BITS - X_BITS
_TABLE_BITS = 40


@dataclass(frozen=True)
class Pieces:
    """A piecewise linear function, all of it public; constant above the last knot.

    Attributes:
        knots: ascending, in units of 2^-KNOT_BITS.
        slopes: slopes of the pieces, one more than knots, in units of 2^-(RESULT_BITS - X_BITS);
            the
            last one is 0.
        constants: in units of 2^-RESULT_BITS.
        error: largest distance from the function, for exact x and on a fine grid.
    """

    knots: tuple[int, ...]
    slopes: tuple[int, ...]
    constants: tuple[int, ...]
    error: float

    @property
    def integer_bits(self) -> int:
        """Bits of the largest knot before the point."""
        return (max(map(abs, self.knots)) >> KNOT_BITS).bit_length()


def fit_piecewise_linear(
    function: Callable[[Decimal], Decimal],
    low: int,
    high: int,
    below: int,
    above: int,
    tolerance: Decimal,
) -> Pieces:
    """Return pieces of a function on [low, high], each as long as the tolerance admits.

    Args:
        low, high: integers; outside of them it is the constants `below` and `above`.
        tolerance: error of a piece on a grid of 2^-KNOT_BITS.

    Integers and decimals only: the parties must compute the same pieces.
    """
    unit = 1 << KNOT_BITS
    first, last = low * unit, high * unit
    with localcontext() as context:
        context.prec = 40
        table = {
            i: int((function(Decimal(i) / unit) * (1 << _TABLE_BITS)).to_integral_value())
            for i in range(first, last + 1)
        }
        allowed = int(tolerance * (1 << _TABLE_BITS))
    down = _TABLE_BITS - RESULT_BITS
    knots, slopes, constants = [first], [0], [below << RESULT_BITS]
    worst = max(
        abs(table[first] - (below << _TABLE_BITS)), abs(table[last] - (above << _TABLE_BITS))
    )

    def fit_piece(a: int, b: int) -> tuple[int, int, int]:
        """Return slope, constant and error on [a, b]."""
        rise = (table[b] - table[a]) * unit
        slope = _divide_rounded(rise << _SLOPE_BITS, (b - a) << _TABLE_BITS)
        scaled = _TABLE_BITS - _SLOPE_BITS - KNOT_BITS
        rest = [table[i] - (slope * i << scaled) for i in range(a, b + 1)]
        constant = _divide_rounded(max(rest) + min(rest), 2 << down)
        at = constant << down
        return slope, constant, max(max(rest) - at, at - min(rest))

    start = first
    while start < last:
        end, accepted = start + 1, fit_piece(start, start + 1)
        while end < last:
            longer = fit_piece(start, end + 1)
            if longer[2] > allowed:
                break
            end, accepted = end + 1, longer
        slopes.append(accepted[0])
        constants.append(accepted[1])
        knots.append(end)
        worst = max(worst, accepted[2])
        start = end
    slopes.append(0)
    constants.append(above << RESULT_BITS)
    return Pieces(tuple(knots), tuple(slopes), tuple(constants), worst / 2**_TABLE_BITS)


def _divide_rounded(a: int, b: int) -> int:
    """Return a / b rounded to the nearest integer, b > 0."""
    return (2 * a + b) // (2 * b)


def _ring_widths(ring: int, f: int, bits: int | None) -> tuple[int, int]:
    """Return the width of the comparisons, and the ring of x with X_BITS."""
    width = ring - (f - COMPARED_BITS)
    if bits is not None:
        width = min(width, bits - (16 - COMPARED_BITS))
    return width, ring - (f - X_BITS)


def _check_piecewise_input(name: str, x: Any, pieces: Pieces, bits: int | None) -> None:
    check_fractional_bits_range(name, check_private_word_tensor(name, x), X_BITS + 1, 44)
    width, ring = _ring_widths(x.ring_bits, x.fractional_bits, bits)
    min_integer_bits = pieces.integer_bits + 3
    if width < COMPARED_BITS + min_integer_bits or ring < X_BITS + min_integer_bits:
        raise UsageError(
            f"{name} expects a ring with at least {min_integer_bits} bits before the point. "
            f"Received: {x!r}, compared with bits={bits}.",
            code="unsupported-ring",
            operation=name,
            received=f"{x!r}, bits={bits}",
        )
    check_known_shape(name, x)


def evaluate_pieces(
    party: Party, name: str, x: Shared, pieces: Pieces, bits: int | None = compare.LAYER_BITS
) -> Shared:
    """Evaluate the function at x, with RESULT_BITS fractional bits over Z_2^64.

    Args:
        x: with 12 to 44 fractional bits, over Z_2^64 or in a small ring Z_2^k, such as a result of
            relu.truncated_product. As a real it is below 2^(k-2) / 2^f and, where it is compared,
            below half of the comparison's range minus the largest knot.
        bits: bits of a comparison at 16 fractional bits, as elsewhere; None: the whole ring.

    Off by pieces.error, by the slope times 1.5 * 2^-X_BITS for the rounding of x, whose mean is 0,
    and by the error of a neighboring piece 2^-8 beyond its end.
    Rounds: 3 online (4 total), and one more where more than 49 bits are compared (bits over 56).
    Raises:
        UsageError: another scale, or too small a ring.
    """
    _check_piecewise_input(name, x, pieces, bits)
    f, shape = x.fractional_bits, x.shape.as_list()
    flat = x.map(lambda a: tensor_ops.reshape(a, [1, -1]))
    count = len(pieces.knots)
    n = int(flat.shape[1])
    width, ring = _ring_widths(x.ring_bits, f, bits)

    def repeat_knot_rows(value: Shared) -> Shared:
        return value.map(lambda a: tensor_ops.tile(a, [count, 1]))

    compared = repeat_knot_rows(normalize.shift_for_normalization(flat, COMPARED_BITS - f))
    knots = np.array([k << (COMPARED_BITS - KNOT_BITS) for k in pieces.knots], np.int64)
    compared = arithmetic.add_constant(compared, -knots[:, None])
    below = convert.mask_bits(
        party, compare.msb(party, compared, width, compare.min_comparison_exchanges(width))
    )
    # x without its lowest bits, minus half a unit for the mean, shifted to at least 0
    lift = 1 << (ring - 2)
    flat = arithmetic.add_constant(flat, -(1 << (f - X_BITS - 1)))
    lifted_x = arithmetic.add_constant(normalize.shift_for_normalization(flat, X_BITS - f), lift)
    steps = [a - b for a, b in itertools.pairwise(pieces.slopes)]
    constant_steps = [a - b for a, b in itertools.pairwise(pieces.constants)]
    if isinstance(party, CostParty):
        dealt = convert.bit_injection_dealt_bits(count * n, ring_bits=ring) + 64 * count * n
        return party.count_exchange(shape, dealt, below, lifted_x, scale=RESULT_BITS)
    s = party.site(
        name,
        pieces,
        f,
        width,
        ring,
        dealer=x.dealer,
        slots={
            **convert.list_injection_slots(ring_bits=ring),
            1: slots.declare_dealt(),
            2: slots.declare_exchanged(),
        },
    )
    products = convert.inject_shares(s, below, repeat_knot_rows(lifted_x), 0, 0, extend_ring=True)
    ones = convert.b2a_shares(s, below, tf.constant([count, n], tf.int64), 5, 1)
    share = None
    if not s.is_dealer:
        by_slope = tf.constant(steps, tf.int64)[:, None]
        by_one = [to_signed_word(c - a * lift) for a, c in zip(steps, constant_steps, strict=True)]
        terms = products * by_slope + ones * tf.constant(by_one, tf.int64)[:, None]
        share = tf.reduce_sum(terms, axis=0)
    y = masked.exchange_masked(s, share, tf.constant([n], tf.int64), 6, 2, scale=RESULT_BITS)
    y = arithmetic.add_constant(y, pieces.constants[-1])
    return y.map(lambda a: tf.reshape(a, shape))


# ---- the logistic function

EDGE = 8
_TOLERANCE = Decimal(2) ** -12


def _exact_sigmoid(x: Decimal) -> Decimal:
    return 1 / (1 + (-x).exp())


@functools.cache
def logistic_pieces() -> Pieces:
    """Return the pieces of `logistic`."""
    return fit_piecewise_linear(_exact_sigmoid, -EDGE, EDGE, 0, 1, _TOLERANCE)


def logistic(party: Party, z: Shared, *, bits: int | None = compare.LAYER_BITS) -> Shared:
    """Compute 1 / (1 + e^-z) with RESULT_BITS fractional bits, for the gradient of a logit.

    Over Z_2^64.

    0 below -EDGE and 1 from EDGE on, exactly.

    Args:
        z: over Z_2^64 or in a small ring Z_2^k, with 12 to 44 fractional bits; |z| < 2^(k-2) / 2^f
            (2^12 for 30 bits at 16) and |z| < 2^14 - 8 with the default bits.
        bits: bits of a comparison at 16 fractional bits; None: the whole ring.

    Off by less than 2^-10.5.
    Rounds: 3 online (4 total).
    Raises:
        UsageError: another scale, or too small a ring.
    """
    return evaluate_pieces(party, "logistic", z, logistic_pieces(), bits)
