"""Gumbel noise: the argmax of logits with added noise is a sample from their softmax.

For logits x_j and independent standard Gumbel variables G_j, j = argmax(x_j / T + G_j) has the
probabilities softmax(x / T) (Gumbel 1954, Yellott 1977). The dealer draws T G_j from its own
system's randomness, not from a key that an evaluator holds, and adds it to its dealt values. Only
the dealer knows the noise, and it sees neither the logits nor the choice.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from tfe_bench.errors import UsageError

# Bound of |G|: for u of _BITS random bits no -log(-log(u)) is larger, and no u rounds to 1.
MAX_MAGNITUDE: Final = 38
MAX_TEMPERATURE: Final = 8.0
_BITS: Final = 52
# A source of random bytes of a given length; tests use a seeded one.
RandomBytes = Callable[[int], bytes]


def check_gumbel_temperature(temperature: object) -> float:
    """Return a valid temperature as a float; 0 means no noise.

    Raises:
        UsageError: the value is not a number in the accepted interval.
    """
    real = isinstance(temperature, (int, float)) and not isinstance(temperature, bool)
    if not (real and 0 <= temperature <= MAX_TEMPERATURE):  # type: ignore[operator]
        raise UsageError(
            "Expected a temperature from 0 (the likeliest token) to "
            f"{MAX_TEMPERATURE:g}. Received: {str(temperature)[:40]}.",
            code="number-out-of-range",
            operation="temperature",
            received=str(temperature)[:40],
            expected=f"0 to {MAX_TEMPERATURE:g}",
        )
    return float(temperature)  # type: ignore[arg-type]


def draw_gumbel(
    shape: tuple[int, ...],
    temperature: float,
    fractional_bits: int,
    random_bytes: RandomBytes = secrets.token_bytes,
) -> npt.NDArray[np.int64]:
    """Draw fresh noise temperature G in ring units.

    |noise| <= MAX_MAGNITUDE temperature 2^fractional_bits.
    """
    count = math.prod(shape)
    words = np.frombuffer(random_bytes(8 * count), np.uint64) >> np.uint64(64 - _BITS)
    uniform = (words.astype(np.float64) + 0.5) * 2.0**-_BITS
    real = -np.log(-np.log(uniform)) * temperature * 2.0**fractional_bits
    ring_noise: npt.NDArray[np.int64] = np.rint(real).astype(np.int64).reshape(shape)
    return ring_noise
