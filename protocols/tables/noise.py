"""Noise that no worker knows: discrete Gaussians of all three workers, added to shared values.

Each worker draws noise of variance sigma^2/2 and shares it. The noise of any two honest workers has
variance sigma^2 whatever the third does, and that of all three 1.5 sigma^2. A sum of two discrete
Gaussians is not an exact one, but at sigma >= 4 (in ring units; less is refused below) its distance
from one is about 5e-34 per coordinate (Kairouz, Liu, Steinke 2021).

The sampler is that of Canonne, Kamath and Steinke (2020), algorithms 1 to 3. It uses integers
alone, as floating point would round where its tails distinguish values. Its time depends on the
drawn values, so all noise is drawn before the first message of a session.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.ring import arithmetic
from tfe_bench.protocols.session import io
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

MIN_SIGMA, MAX_SIGMA = 4, 1 << 48
MAX_DENOMINATOR = 1 << 64
MAX_DRAWN = 1 << 20
# A uniform number of 0 to n - 1: secrets.randbelow; tests use a seeded one.
RandomBelow = Callable[[int], int]


def draw_noise(
    variance: Fraction, count: int, random_below: RandomBelow = secrets.randbelow
) -> list[int]:
    """Draw one worker's noise: discrete Gaussians of half a variance, in ring units.

    Args:
        variance: sigma^2, of the sum of two workers' noise.

    Raises:
        UsageError: sigma is not in 4 to 2^48 (larger noise could leave the ring), sigma^2 has a
            denominator above 2^64, or more than 2^20 values are requested.
    """
    if not MIN_SIGMA**2 <= variance <= MAX_SIGMA**2:
        raise UsageError(
            f"Expected noise with a standard deviation of {MIN_SIGMA} to 2^48 ring "
            f"units. Received: a variance of about 2^{_estimate_noise_variance_log2(variance)}. "
            "Give "
            "values more fractional bits, or spend less of the budget.",
            code="number-out-of-range",
            operation="noise",
            received=f"about 2^{_estimate_noise_variance_log2(variance)}",
            expected=f"a standard deviation of {MIN_SIGMA} to 2^48",
        )
    if variance.denominator > MAX_DENOMINATOR:
        raise UsageError(
            "Expected a variance whose denominator is at most 2^64.",
            code="number-out-of-range",
            operation="variance denominator",
            expected="at most 2^64",
        )
    if not 0 <= count <= MAX_DRAWN:
        raise UsageError(
            f"Expected noise for at most {MAX_DRAWN} values. Received: {count}.",
            code="too-large",
            operation="noise",
            received=count,
            expected=MAX_DRAWN,
        )
    return [draw_discrete_gaussian(variance / 2, random_below) for _ in range(count)]


def draw_discrete_gaussian(variance: Fraction, random_below: RandomBelow) -> int:
    """Draw an integer x with probability proportional to exp(-x^2 / (2 variance)), exactly."""
    p, q = variance.numerator, variance.denominator
    scale = math.isqrt(p // q) + 1
    while True:
        x = _draw_discrete_laplace(scale, random_below)
        # (|x| - variance / scale)^2 / (2 variance)
        if _bernoulli_exp(
            Fraction((abs(x) * q * scale - p) ** 2, 2 * p * q * scale**2), random_below
        ):
            return x


def add_noise(party: Party, x: Shared, drawn_noise: tf.Tensor | None) -> Shared:
    """Add the noise of all three workers to a shared value.

    Args:
        drawn_noise: int64 of the shape of x, drawn by this worker; None where only costs are
            counted.

    Rounds: 1. Bits sent: each worker, 64 per element.
    Raises:
        UsageError: x is in a small or a wide ring, in which noise would wrap.
    """
    if x.ring_bits != 64 or x.limbs != 1:
        raise UsageError(
            f"Expected values of the ring of 64 bits. Received: {x!r}.",
            code="unsupported-ring",
            operation="noise",
            received=repr(x),
        )
    is_counting = isinstance(party, CostParty)
    for owner in range(3):
        value = drawn_noise if not is_counting and party.index == owner else None
        part = io.share_input(party, owner, value, x.any.shape, x.fractional_bits, x.dealer)
        x = arithmetic.add(x, replace(part, fractional_bits=x.fractional_bits))
    return x


def _draw_discrete_laplace(scale: int, random_below: RandomBelow) -> int:
    """Draw an integer x with probability proportional to exp(-|x| / scale)."""
    while True:
        remainder = random_below(scale)
        if not _bernoulli_exp(Fraction(remainder, scale), random_below):
            continue
        whole = 0
        while _bernoulli_exp(Fraction(1), random_below):
            whole += 1
        size, negative = remainder + scale * whole, random_below(2)
        if size or not negative:  # Otherwise 0 would count twice.
            return -size if negative else size


def _bernoulli_exp(exponent: Fraction, random_below: RandomBelow) -> bool:
    """Return True with probability exp(-exponent)."""
    whole, remainder = divmod(exponent.numerator, exponent.denominator)
    return all(
        _bernoulli_exp_unit(1, 1, random_below) for _ in range(whole)
    ) and _bernoulli_exp_unit(remainder, exponent.denominator, random_below)


def _bernoulli_exp_unit(p: int, q: int, random_below: RandomBelow) -> bool:
    """Return True with probability exp(-p / q), p <= q: the parity of a product's last step."""
    k = 1
    while random_below(q * k) < p:
        k += 1
    return k % 2 == 1


def _estimate_noise_variance_log2(variance: Fraction) -> int:
    return variance.numerator.bit_length() - variance.denominator.bit_length()
