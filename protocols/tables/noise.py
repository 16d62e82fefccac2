"""Noise that no worker knows: discrete Gaussians of all three, added to shared values.

Each worker draws for itself with variance sigma^2/2 and shares what it drew, so that what any two
honest workers drew has variance sigma^2 whatever the third did, and all three 1.5 sigma^2.  A sum
of two discrete Gaussians is no exact one, but at sigma >= 4 (in units of the ring, refused below)
its distance from one is about 5e-34 a coordinate (Kairouz, Liu, Steinke 2021).

The sampler is that of Canonne, Kamath and Steinke (2020), algorithms 1 to 3: integers alone, as
floating point would round where its tails tell values apart.  Its time depends on what it draws, so
all is drawn before the first message of a session.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic
from tfe_bench.protocols.session import io
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    import tensorflow as tf

LEAST_SIGMA, MOST_SIGMA = 4, 1 << 48
MOST_DENOMINATOR = 1 << 64
MOST_DRAWN = 1 << 20
# A uniform number of 0 to n - 1: secrets.randbelow, or in tests one from a seed.
Below = Callable[[int], int]


def draw(variance: Fraction, count: int, below: Below = secrets.randbelow) -> list[int]:
    """What one worker adds: discrete Gaussians of half a variance, in units of the ring.

    Args:
        variance: sigma^2, which two workers' parts have together.

    Raises:
        UsageError: sigma is not 4 to 2^48 (larger ones could leave the ring), its square has a
            denominator above 2^64, or there are more than 2^20.
    """
    if not LEAST_SIGMA**2 <= variance <= MOST_SIGMA**2:
        raise UsageError(
            f"Noise has a standard deviation of {LEAST_SIGMA} to 2^48 units of the ring. "
            f"Received: a variance of about 2^{_log2(variance)}. Give values more fractional bits, "
            "or spend less."
        )
    if variance.denominator > MOST_DENOMINATOR:
        raise UsageError("A variance is a fraction with a denominator of at most 2^64.")
    if not 0 <= count <= MOST_DRAWN:
        raise UsageError(f"Noise is for at most {MOST_DRAWN} values. Received: {count}.")
    return [discrete_gaussian(variance / 2, below) for _ in range(count)]


def discrete_gaussian(variance: Fraction, below: Below) -> int:
    """An integer x with probability proportional to exp(-x^2 / (2 variance)), exactly."""
    p, q = variance.numerator, variance.denominator
    scale = math.isqrt(p // q) + 1
    while True:
        x = _discrete_laplace(scale, below)
        # (|x| - variance / scale)^2 / (2 variance)
        if _happens(Fraction((abs(x) * q * scale - p) ** 2, 2 * p * q * scale**2), below):
            return x


def added(party: Party, x: Shared, own: tf.Tensor | None) -> Shared:
    """A shared value with the noise of all three workers.

    Args:
        own: int64 of the shape of x, what this worker drew; None where only costs are counted.

    Rounds: 1.  Bits sent: each worker, 64 per element.
    Raises:
        UsageError: x is of a small or a wide ring, which noise would wrap.
    """
    if x.ring_bits != 64 or x.limbs != 1:
        raise UsageError("Noise is added to values of the ring of 64 bits.")
    counting = isinstance(party, Counting)
    for owner in range(3):
        value = own if not counting and party.index == owner else None
        part = io.input_by(party, owner, value, x.any.shape, x.fractional_bits, x.dealer)
        x = arithmetic.add(x, replace(part, fractional_bits=x.fractional_bits))
    return x


def _discrete_laplace(scale: int, below: Below) -> int:
    """An integer x with probability proportional to exp(-|x| / scale)."""
    while True:
        rest = below(scale)
        if not _happens(Fraction(rest, scale), below):
            continue
        whole = 0
        while _happens(Fraction(1), below):
            whole += 1
        size, negative = rest + scale * whole, below(2)
        if size or not negative:  # else 0 would be there twice
            return -size if negative else size


def _happens(exponent: Fraction, below: Below) -> bool:
    """True with probability exp(-exponent)."""
    whole, rest = divmod(exponent.numerator, exponent.denominator)
    return all(_within_one(1, 1, below) for _ in range(whole)) and _within_one(
        rest, exponent.denominator, below
    )


def _within_one(p: int, q: int, below: Below) -> bool:
    """True with probability exp(-p / q), p <= q: the parity of where a falling product stops."""
    k = 1
    while below(q * k) < p:
        k += 1
    return k % 2 == 1


def _log2(variance: Fraction) -> int:
    return variance.numerator.bit_length() - variance.denominator.bit_length()
