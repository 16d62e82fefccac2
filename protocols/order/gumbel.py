"""Gumbel noise: the largest of logits with it is a sample of their softmax.

Of logits x_j and independent standard Gumbel G_j, j = argmax(x_j / T + G_j) has the probabilities
softmax(x / T) (Gumbel 1954, Yellott 1977).  The dealer draws T G_j for itself, from its own
system's randomness and from no key that an evaluator has, and adds it to what it deals: it is the
only one that knows the noise, and it sees neither logits nor the choice.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from tfe_bench.errors import UsageError

# |G| is below: of so many random bits no -log(-log(u)) is larger, and no u rounds to 1.
MAX_MAGNITUDE: Final = 38
MAX_TEMPERATURE: Final = 8.0
_BITS: Final = 52
# So many random bytes; in tests those of a seed.
RandomBytes = Callable[[int], bytes]


def check_temperature(temperature: object) -> float:
    """A temperature, 0 for none.

    Raises:
        UsageError: it is none.
    """
    real = isinstance(temperature, (int, float)) and not isinstance(temperature, bool)
    if not (real and 0 <= temperature <= MAX_TEMPERATURE):  # type: ignore[operator]
        raise UsageError(
            f"A temperature is 0 (the likeliest token) to {MAX_TEMPERATURE:g}. Received: "
            f"{str(temperature)[:40]}."
        )
    return float(temperature)  # type: ignore[arg-type]


def draw_gumbel(
    shape: tuple[int, ...],
    temperature: float,
    fractional_bits: int,
    random_bytes: RandomBytes = secrets.token_bytes,
) -> npt.NDArray[np.int64]:
    """temperature G in ring units, drawn anew.

    |noise| <= LARGEST temperature 2^fractional_bits.
    """
    count = math.prod(shape)
    words = np.frombuffer(random_bytes(8 * count), np.uint64) >> np.uint64(64 - _BITS)
    uniform = (words.astype(np.float64) + 0.5) * 2.0**-_BITS
    real = -np.log(-np.log(uniform)) * temperature * 2.0**fractional_bits
    ring_noise: npt.NDArray[np.int64] = np.rint(real).astype(np.int64).reshape(shape)
    return ring_noise
