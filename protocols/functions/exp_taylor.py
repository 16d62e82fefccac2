"""The exponential as (1 + x / 2^k)^(2^k): k squarings.

Over Z_2^64 the start is exact: 1 + x / 2^k with k more fractional bits is a shift of the point.
Over Z_2^128, where those bits would cost a round, x is truncated by k bits without one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions.exp_one_round import FAILURE_BITS, LN2, MARGIN
from tfe_bench.protocols.ring import wide_arithmetic as ring
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


@dataclass(frozen=True)
class Taylor:
    """Parameters of the Taylor form; all public.

    Attributes:
        iterations: k, the number of squarings.
    """

    ring_bits: int
    fractional_bits: int
    iterations: int

    @property
    def lowest_input(self) -> float:
        """Least x: there the approximation is 0, and below it increases again."""
        return -(2.0**self.iterations)

    @property
    def highest_input(self) -> float:
        """Greatest x: the last square, of 2 f fractional bits, stays below 2^(l - 2)."""
        return (self.ring_bits - 2 - 2 * self.fractional_bits) * LN2 - MARGIN

    @property
    def extra_bits(self) -> int:
        """Fractional bits of the start beyond f."""
        return self.iterations if self.ring_bits == 64 else 0

    def list_squares(self) -> list[tuple[int, float]]:
        """Return per squaring the dropped bits and log2 of the greatest square in its units."""
        f, k, doubled_extra = self.fractional_bits, self.iterations, 2 * self.extra_bits
        first = 2 * f + doubled_extra + 2 * math.log2(1 + max(self.highest_input, 0) / 2**k)
        rest = [2 * f + self.highest_input / LN2 / 2 ** (k - j) for j in range(2, k + 1)]
        return [(f + doubled_extra, first), *((f, bits) for bits in rest)]

    def list_truncations(self) -> list[tuple[int, str]]:
        """Return per squaring the bits to drop and the method, "probable" where failures stay below
        2^-40.

        "probable" takes one round less.
        """
        rare = self.ring_bits - FAILURE_BITS
        return [(f, "probable" if bits <= rare else "safe") for f, bits in self.list_squares()]

    @property
    def failure_probability(self) -> float:
        """Sum over the "probable" truncations of |value| / 2^l."""
        pairs = zip(self.list_squares(), self.list_truncations(), strict=True)
        bits = [b for (_, b), (_, kind) in pairs if kind != "safe"]
        if self.ring_bits == 128:
            bits.append(self.fractional_bits + self.iterations)
        return float(sum(2.0 ** (b - self.ring_bits) for b in bits))

    def evaluate_exp(self, party: Party, x: Shared) -> Shared:
        """Compute e^x; see the module, and `tfe_bench.protocols.functions.exponential.exp`.

        Error: relative x^2 / 2^(k+1) below the exact value, and 3 2^(k - f) max(1, e^x).
        Truncation: over Z_2^64 "safe", which never fails, 2 rounds a squaring. Over Z_2^128
        "probable", 1 round, except for the last squarings, where e^x 2^(2f) is close to the ring:
        with f = 40 the last three.
        Rounds: for k = 8, 16 at f = 16 and 11 at f = 40.
        """
        f, k = self.fractional_bits, self.iterations
        y = x if x.limbs == 1 else ring.truncate(party, x, k, "probable")
        y = ring.add_constant(y, 1 << (f + self.extra_bits))
        for drop, kind in self.list_truncations():
            y = ring.truncate(party, ring.mul(party, y, y), drop, kind)
        return Shared(y.m, y.l1, y.l2, x.dealer, f, x.limbs)


def plan_taylor_exp(ring_bits: int, fractional_bits: int, iterations: int = 8) -> Taylor:
    """Return the parameters for a ring, a scale and k.

    Raises:
        UsageError: the square of a number of f + k fractional bits does not fit the ring.
    """
    f, k = fractional_bits, iterations
    if k < 1 or f < 1:
        raise UsageError(
            "The Taylor exponential expects at least 1 iteration and 1 fractional bit. "
            f"Received: {k} and {f}.",
            code="number-out-of-range",
            operation="exp",
            received=f"{k}, {f}",
        )
    candidate = Taylor(ring_bits, f, k)
    highest = 48 if ring_bits == 64 else ring.MAX_DROPPED_BITS
    if k > highest or candidate.list_squares()[0][0] > highest or candidate.highest_input <= 1:
        raise _taylor_scale_error(ring_bits, f, k)
    if candidate.list_squares()[0][1] >= ring_bits - 2:
        raise _taylor_scale_error(ring_bits, f, k)
    return candidate


def _taylor_scale_error(ring_bits: int, f: int, k: int) -> UsageError:
    rule = "f + k <= 30 and f + 2 k <= 48" if ring_bits == 64 else "f <= 61 and k <= 63"
    return UsageError(
        f"The Taylor exponential over Z_2^{ring_bits} expects {rule}. "
        f"Received: f = {f} fractional bits and k = {k} iterations. Lower one of them.",
        code="unsupported-scale",
        operation="exp",
        received=f"f = {f}, k = {k}",
        expected=rule,
    )
