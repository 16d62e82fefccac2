"""A periodic function of a private value in one round: a short Fourier series.

    cos(w (m - lam)) = cos(w m) cos(w lam) + sin(w m) sin(w lam), and the sine alike,

so that D deals additive shares mod 2^L of the cosines and sines of lam's multiples. The
evaluators know m, and compute additive shares of the series locally. They drop bits and
exchange them under a new mask (truncation T4). The period in ring units is 2^p / odd: only
x mod 2^p matters, so that a wrap of m - lam modulo 2^64 has no effect.

All sines are integers from integer arithmetic: one unit of difference between the factors of
E1 and E2 would leave a multiple of a uniform share.

Idea: Fourier terms of masked angles, Zheng et al. (ACSAC 2023). The period that divides the ring,
and the truncation, are this project's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import masked
from tfe_bench.protocols.ring.checks import check_private_word_tensor
from tfe_bench.protocols.session import ops, sizes, slots, tensor_ops
from tfe_bench.protocols.session.cost import packed_bits
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

# Weights are multiples of 2^-16.
WEIGHT_BITS: Final = 16
# Dealt cosines are too; multiples of 2^-14 for results of few bits and weights with a small sum.
DEALT_BITS: Final = 16
_COARSE_BITS: Final = 14
_COARSE_RESULT: Final = 13
_COARSE_SUM: Final = 2
MAX_HARMONICS: Final = 16
MAX_MODULUS_BITS: Final = 62
# p: bits of the finest phase.
MAX_PHASE_BITS: Final = 32


@dataclass(frozen=True)
class Series:
    """c + sum_j a_j cos(j w v) + b_j sin(j w v) with w = 2 pi odd / 2^turn.

    Attributes:
        turn, odd: the period of v is 2^turn / odd.
        weights: c, a_1, b_1, a_2, ... with WEIGHT_BITS fractional bits.
    """

    turn: int
    odd: int
    weights: tuple[int, ...]

    @property
    def harmonic_count(self) -> int:
        """Number of harmonics."""
        return (len(self.weights) - 1) // 2

    def evaluate_plain(self, v: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Evaluate the series in float64, for an array of any shape."""
        constant, *others = (w * 2.0**-WEIGHT_BITS for w in self.weights)
        total = np.full(np.shape(v), constant)
        for j, (a, b) in enumerate(zip(others[::2], others[1::2], strict=True), 1):
            angle = 2 * np.pi * self.odd * j / 2**self.turn * v
            total += a * np.cos(angle) + b * np.sin(angle)
        return total

    def find_range(self, fractional_bits: int) -> tuple[int, int]:
        """Return (a, k): a >= 0, and 0 <= v + a < 2^(k-1) for computed values v, in ring units."""
        constant, *others = self.weights
        amplitude, one = sum(map(abs, others)), 1 << fractional_bits
        # (a computed value is off by less than the last term)
        up = (constant + amplitude << fractional_bits) // (1 << WEIGHT_BITS) + (one >> 5) + 2
        down = (amplitude - constant << fractional_bits) // (1 << WEIGHT_BITS) + (one >> 5) + 2
        below = max(down, 0)
        return below, (max(up, 0) + below).bit_length() + 1

    def dealt_bits(self, fractional_bits: int) -> int:
        """Return the fractional bits of dealt cosines, for a result of `fractional_bits`."""
        total = sum(map(abs, self.weights[1:]))
        few = fractional_bits <= _COARSE_RESULT and total <= _COARSE_SUM << WEIGHT_BITS
        return _COARSE_BITS if few else DEALT_BITS


def max_result_bits(fractional_bits: int) -> int:
    """Return the largest k of `evaluate_series` for a result of `fractional_bits`."""
    return MAX_MODULUS_BITS - WEIGHT_BITS - DEALT_BITS + fractional_bits


def evaluate_series(
    party: Party, name: str, series: Series, x: Shared, fractional_bits: int, bits: int
) -> Shared:
    """Evaluate the series at x in Z_2^bits, stochastically rounded.

    Off by less than an ulp of the result, and J 2^-16 and sum (|a_j| + |b_j|) 2^-dealt_bits for
    the rounded cosines, for every x.

    Args:
        name: name of the site.
        x: any value; its ring holds whole periods of the phase: 2^(turn + f) divides its size.
        fractional_bits: fractional bits of the result.
        bits: k; |series| < 2^(k-1) ring units of the result.

    Rounds: 1 online (2 total). Bits sent: per element D 2 J (k + 16 + dealt_bits -
        fractional_bits), E1, E2 k each.
    Raises:
        UsageError: another ring, or bits that do not fit a word.
    """
    check_private_word_tensor(name, x)
    f = x.fractional_bits
    fine = series.dealt_bits(fractional_bits)
    drop = WEIGHT_BITS + fine - fractional_bits
    modulus = drop + bits
    phase = series.turn + f
    highest = max_result_bits(fractional_bits)
    if not (drop >= 1 and 2 <= bits <= highest and 1 <= phase <= MAX_PHASE_BITS) or (
        phase > x.ring_bits
    ):
        raise UsageError(
            f"{name} expects at most {WEIGHT_BITS + fine - 1} fractional bits of its result, "
            f"{MAX_PHASE_BITS - series.turn} of x, of a ring of {phase} bits or more, and a ring "
            f"of 2 to {highest} bits. Received: {fractional_bits}, {x!r} and {bits}.",
            code="unsupported-scale",
            operation=name,
            received=f"{fractional_bits}, {x!r}, {bits}",
        )
    rows = 2 * series.harmonic_count
    if isinstance(party, CostParty):
        dealt = rows * packed_bits(x.shape.num_elements(), modulus)
        return party.count_exchange(x.shape, dealt, x, scale=fractional_bits, width=bits)
    s = party.site(
        name,
        series,
        f,
        fractional_bits,
        bits,
        dealer=x.dealer,
        slots={0: slots.declare_dealt(modulus, times=rows), 1: slots.declare_exchanged(bits)},
    )
    kernels = ops.module()
    attributes: dict[str, Any] = {
        **s.kernel_attributes(0),
        "count": series.harmonic_count,
        "odd": series.odd,
        "phase_bits": phase,
        "scale": fine,
        "modulus_bits": modulus,
    }
    share = None
    if s.is_dealer:
        message = kernels.tfe_bench_harmonics_deal(l1=x.l1, l2=x.l2, **attributes)
        s.send(message, s.e2, 0, run_ahead=True)
    else:
        share = kernels.tfe_bench_harmonics_share(
            m=x.m,
            dealt=s.receive_dealt(sizes.tensor_size(x.m)),
            weights=list(series.weights),
            drop=drop,
            **attributes,
        )
    shape = tensor_ops.dynamic_shape(x.any)
    return masked.exchange_masked(s, share, shape, 1, 1, scale=fractional_bits)
