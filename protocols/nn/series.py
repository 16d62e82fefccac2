"""Smooth activations by a short Fourier series: few rounds and bytes, error below 2^-10.

Between two knots a function is (x / 2 and) a series of x (functions/harmonics.py); beyond them it
is x, or a constant. Two comparisons with the knots select the piece. They use values truncated to
quarters: near a knot both pieces are right.

The weights are integers in this source file, and are part of the graph that the three parties agree
on: a difference of one unit would leave a multiple of a uniform share. A test recomputes their
error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions import harmonics
from tfe_bench.protocols.functions.harmonics import Series
from tfe_bench.protocols.nn import linear
from tfe_bench.protocols.ring import arithmetic, compare, convert, shapes, small_ring
from tfe_bench.protocols.ring.checks import (
    check_fractional_bits_range,
    check_known_shape,
    check_private_word_tensor,
)
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

MIN_BITS: Final = 8
MAX_BITS: Final = 16
# Comparisons use quarters.
_STEP_BITS: Final = 2


@dataclass(frozen=True)
class SeriesActivation:
    """A function in three pieces.

    Attributes:
        low, high: knots, in quarters.
        series: between them.
        ends: its values below and above; None: 0 and x, and x / 2 is added between.
        room: where |x| < 2^(room-1), |f(x)| < 2^(room-1); beyond it, and for room 0, |f(x)| <= |x|.
    """

    low: int
    high: int
    series: Series
    ends: tuple[int, int] | None = None
    room: int = 0

    def evaluate_plain(self, v: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Evaluate the protocol's function at v, apart from rounding: float64, of any shape."""
        half, lower, upper = v / 2, np.zeros(()), v
        if self.ends is not None:
            half, (lower, upper) = np.zeros(()), np.asarray(self.ends, np.float64)
        between = np.where(v < self.high / 4, self.series.evaluate_plain(v) + half, upper)
        return np.where(v < self.low / 4, lower, between)


def _make_even_fourier_series(turn: int, odd: int, *cosines: int) -> Series:
    first, *rest = cosines
    return Series(turn, odd, (first, *(w for a in rest for w in (a, 0))))


def _make_odd_fourier_series(turn: int, odd: int, *sines: int) -> Series:
    first, *rest = sines
    return Series(turn, odd, (first, *(w for b in rest for w in (0, b))))


# Minimax fits on [low - 1, high + 1] quarters by linear programming, rounded.
ACTIVATIONS: Final[Mapping[str, SeriesActivation]] = MappingProxyType(
    {
        "gelu": SeriesActivation(
            -15, 15, _make_even_fourier_series(8, 23, 87050, -76196, -4007, -6016, -363, -461)
        ),
        "gelu_tanh": SeriesActivation(
            -15, 15, _make_even_fourier_series(8, 23, 87088, -76263, -3968, -6050, -329, -468)
        ),
        "silu": SeriesActivation(
            *(-40, 40),
            _make_even_fourier_series(
                9, 21, 194430, -167182, -5119, -16944, -652, -3676, 133, -860, 76, -179
            ),
        ),
        "softplus": SeriesActivation(
            *(-31, 31),
            _make_even_fourier_series(9, 23, 184269, -133262, 1841, -6838, 70, -481, -142),
            room=5,
        ),
        "mish": SeriesActivation(
            *(-40, 20),
            Series(
                *(9, 25),
                (
                    *(173678, -156658, 12801, 3495, -12351, -12868, 15053, -6417, -6262, 2056),
                    *(2320, -2937, 911, -36, -892, 1, 363, -236, 8, -58, -54),
                ),
            ),
        ),
        "sigmoid": SeriesActivation(
            *(-31, 31),
            _make_odd_fourier_series(9, 23, 32768, 38286, -2203, 7152, -1337, 1624, -330, 249),
            (0, 1),
        ),
        "tanh": SeriesActivation(
            *(-17, 17),
            _make_odd_fourier_series(
                8, 21, 0, 77819, -4271, 16191, -3290, 4574, -1302, 1128, -274, 172
            ),
            (-1, 1),
        ),
        "erf": SeriesActivation(
            -10,
            10,
            _make_odd_fourier_series(7, 15, 0, 75058, -3116, 10834, -1508, 1144, -118),
            (-1, 1),
        ),
    }
)

# The factor of a memory in every step: error 2^-13.7, that of the sigmoid is 2^-11.
MEMORY_GATE: Final = SeriesActivation(
    *(-38, 38),
    _make_odd_fourier_series(
        *(5, 1, 32768),
        *(-2215, 73902, -83164, 92651, -78231, 61162, -39879, 23314, -11185, 4553, -1330, 273),
    ),
    (0, 1),
)


def activation_extra_bits(name: str) -> int:
    """Return the fractional bits of a function's value beyond those of x."""
    return 1 if ACTIVATIONS[name].ends is None else 0


def max_activation_bits(name: str, fractional_bits: int) -> int:
    """Return the most bits of x in `evaluate_series`, |x| < 2^(bits-1) units, at its scale."""
    if ACTIVATIONS[name].ends is not None:
        return compare.EXACT_BITS - 2
    return harmonics.max_result_bits(fractional_bits + 1) - 2  # f + 29: room does not matter


def activation_read_bits(name: str, fractional_bits: int, below: int) -> int:
    """Return the low bits of x, |x| < below, that `evaluate_series` reads: a ring for x."""
    return min_activation_ring(ACTIVATIONS[name], fractional_bits, below)


def evaluate_series(
    party: Party,
    x: Shared,
    name: str,
    bits: int = compare.LAYER_BITS,
    exchanges: int | None = None,
    to: int = 64,
    below: int | None = None,
) -> Shared:
    """Compute a function of ACTIVATIONS, error below 2^-10.5 and 2 ulp, for |x| < 2^(bits-1) units.

    The values 0 and x, or the constants, are exact from a quarter beyond the knots on.

    Args:
        x: of any shape, over Z_2^64 or a ring of `read_bits`; 8 to 16 fractional bits.
        exchanges: of the comparisons; None: 1 for few elements, 2 for many.
        to: ring of the result, if only its low bits are read; the result may have a larger ring.
        below: a bound |x| < below tighter than that of bits, in ring units.

    Returns:
        As many fractional bits as x; one more where the ends are 0 and x.
    Rounds: exchanges + 3 online, exchanges + 4 in total. Bits sent: those of two comparisons of
    `comparison_bits`, of harmonics.evaluate_series in the ring of the series' values, of a
    selection and of two lifts.
    Raises:
        UsageError: the function is unknown, the ring or scale does not fit, or bits leaves no room
            in a word.
    """
    if name not in ACTIVATIONS:
        raise UsageError(
            f"Expected a series of {', '.join(ACTIVATIONS)}. Received: {name!r}.",
            code="unknown-name",
            operation="series",
            received=name,
            expected=", ".join(ACTIVATIONS),
        )
    check_fractional_bits_range(
        "series", check_private_word_tensor("series", x), MIN_BITS, MAX_BITS
    )
    f = x.fractional_bits
    if not 2 <= bits <= max_activation_bits(name, f):
        raise UsageError(
            f"A series of {name} expects 2 to {max_activation_bits(name, f)} bits. Received: "
            f"{bits}. Use a smaller range or fewer fractional bits.",
            code="number-out-of-range",
            operation=name,
            received=bits,
            expected=f"2 to {max_activation_bits(name, f)}",
        )
    activation, below = ACTIVATIONS[name], min(below or 1 << (bits - 1), 1 << (bits - 1))
    _check_activation_read_bits(x, activation, below)
    check_known_shape("series", x)
    n, width = x.shape.num_elements(), activation_comparison_bits(activation, f, below)
    count = compare.default_exchanges(2 * n, width, exchanges)
    y = evaluate_in_ring(party, x, activation, below, count)
    if y.ring_bits >= to:
        return y
    if activation.ends is not None:
        return small_ring.lift_signed(party, y, to)
    least = 1 << (y.fractional_bits - 1)  # all results are above -1/2
    return small_ring.extend_nonnegative(party, y, to, offset=least)


def activation_comparison_bits(
    activation: SeriesActivation, fractional_bits: int, below: int
) -> int:
    """Return the bits of the comparisons with the knots for |x| < below units."""
    quarters = max(-(-below >> (fractional_bits - _STEP_BITS)), 2)
    return (
        quarters - 1 + max(map(abs, _activation_knot_quarters(activation))) + 1
    ).bit_length() + 1


def _activation_knot_quarters(activation: SeriesActivation) -> tuple[int, int]:
    return activation.low, activation.high + 1


def _activation_result_ring(
    activation: SeriesActivation, fractional_bits: int, below: int, added_bits: int
) -> int:
    """Return the ring of a result of `evaluate_in_ring`."""
    if activation.ends is not None:
        return fractional_bits + added_bits + 3
    one = 1 << fractional_bits
    # Twice x, with one fractional bit more; -1/2, and the error of a series.
    return (2 * max(below, one << activation.room >> 1) + one + (one >> 6)).bit_length() + 1


def min_activation_ring(activation: SeriesActivation, fractional_bits: int, below: int) -> int:
    """Return the smallest ring of x that holds the period, the comparisons, and x / 2."""
    compared_bits = (
        fractional_bits
        - _STEP_BITS
        + activation_comparison_bits(activation, fractional_bits, below)
    )
    half = (
        _activation_result_ring(activation, fractional_bits, below, 0)
        if activation.ends is None
        else 0
    )
    return min(max(activation.series.turn + fractional_bits, compared_bits, half), 64)


def _check_activation_read_bits(x: Shared, activation: SeriesActivation, below: int) -> None:
    """Raise UsageError if x has a ring of fewer bits than `min_activation_ring`."""
    min_bits = min_activation_ring(activation, x.fractional_bits, below)
    if x.ring_bits < min_bits:
        raise UsageError(
            f"A series of values below {below} ring units reads {min_bits} bits of them. "
            f"Received: {x!r}.",
            code="unsupported-ring",
            operation="series",
            received=repr(x),
            expected=f"{min_bits} bits",
        )


def evaluate_in_ring(
    party: Party,
    x: Shared,
    activation: SeriesActivation,
    below: int,
    exchanges: int,
    added_bits: int = 0,
) -> Shared:
    """Run `evaluate_series` without the lift, in a ring Z_2^k.

    With constants at its ends |result| < 2^(k-2), else -1/2 < result, and below 2^(k-1) minus 1/2.

    Args:
        x: of any ring of `min_activation_ring` bits or more, |x| < below units.
        added_bits: fractional bits of the result beyond those of x; where the ends are constants.

    Rounds: exchanges + 2 online, exchanges + 3 in total.
    """
    _check_activation_read_bits(x, activation, below)
    f, x = x.fractional_bits, replace(x, bits=0)  # higher bits are not read
    cut, width = f - _STEP_BITS, activation_comparison_bits(activation, f, below)
    knot_differences = linear.subtract_knots(
        x, [k << cut for k in _activation_knot_quarters(activation)]
    )
    is_below = convert.mask_bits(
        party, compare.compare_coarsely(party, knot_differences, cut, width, exchanges)
    )
    scale, k = (
        f + (1 if activation.ends is None else added_bits),
        _activation_result_ring(activation, f, below, added_bits),
    )
    inner = _sum_activation_series(party, activation.series, x, scale, k)
    # upper + [x below the lower knot] (lower - inner) + [x below the upper one] (inner - upper),
    # with the values below, between and above the knots: lower, inner, upper
    if activation.ends is None:  # 0, inner + x / 2, x
        half = replace(small_ring.reduce_ring(x, k), fractional_bits=scale)
        steps = [arithmetic.neg(arithmetic.add(inner, half)), arithmetic.sub(inner, half)]
        return arithmetic.add(
            arithmetic.add(half, half),
            small_ring.pick_one_hot(party, is_below, shapes.stack(steps)),
        )
    lower, upper = (value << scale for value in activation.ends)
    steps = [
        arithmetic.add_constant(arithmetic.neg(inner), lower),
        arithmetic.add_constant(inner, -upper),
    ]
    picked = small_ring.pick_one_hot(party, is_below, shapes.stack(steps))
    return arithmetic.add_constant(picked, upper)


def _sum_activation_series(
    party: Party, series: Series, x: Shared, fractional_bits: int, k: int
) -> Shared:
    """Compute the series in Z_2^k, first in the ring of its values, which saves dealt words.

    That ring pays for itself, as 2J words are dealt. Its lift takes the second round, in parallel
    with the comparisons.
    """
    below, value_ring = series.find_range(fractional_bits)
    if value_ring >= k:
        return harmonics.evaluate_series(party, "harmonics", series, x, fractional_bits, k)
    y = harmonics.evaluate_series(party, "harmonics", series, x, fractional_bits, value_ring)
    return small_ring.extend_nonnegative(party, y, k, offset=below)
