"""Plan of the normalization of a private value: cuts, segments and their constants, all public."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from tfe_bench.errors import UsageError

RING = 64
MAX_MAGNITUDE = 62
# A value within 2^-RESOLUTION below a cut may be treated as above it.
RESOLUTION = 5
GROUP = 8  # binades
# Up to this number of binades one stage is cheaper than two.
MAX_ONE_STAGE_BINADES = 12
PRECISIONS = range(6, 23)


@dataclass(frozen=True)
class Cut:
    """One comparison [x < at].

    Attributes:
        drop: bits that both sides drop first.
        bits: bits of the remaining comparison.
    """

    at: int
    drop: int
    bits: int


@dataclass(frozen=True)
class Segment:
    """The map of x between two cuts: sign * x * 2^shift (rounded if negative) + constant."""

    sign: int
    shift: int
    constant: int = 0


@dataclass(frozen=True)
class Stage:
    """One set of cuts (ascending), and a segment below, between and above them.

    Attributes:
        exchanges: exchanges of the comparisons.
        width: the result is exchanged mod 2^width.
    """

    cuts: tuple[Cut, ...]
    segments: tuple[Segment, ...]
    exchanges: int
    width: int


@dataclass(frozen=True)
class NormalizationPlan:
    """Stages and formats of a normalization.

    Attributes:
        stages: one or two; the last one's segments are single binades.
        top: c = 1 is 2^top in the last stage's result.
        units: fractional bits of the exchanged c.
        low, high: bounds on c.
        max_shift: the largest shift that takes an x to c.
    """

    stages: tuple[Stage, ...]
    top: int
    units: int
    low: Decimal
    high: Decimal
    max_shift: int

    @property
    def rounds(self) -> int:
        """Rounds until c is exchanged."""
        return sum(stage.exchanges + 2 for stage in self.stages)


def _plan_binades(top: int, count: int, to_power: int, clamp: bool) -> Stage:
    """Return single binades up to 2^top, which becomes 2^to_power; x < 1 separately if clamp."""
    cuts = [_plan_binade_cut(top - count + i, top, clamp) for i in range(1, count)]
    segments = [Segment(1, to_power - (top - count + i)) for i in range(1, count + 1)]
    if clamp:
        cuts.insert(0, Cut(1, 0, top + 1))
        segments.insert(0, Segment(0, segments[0].shift, 1 << segments[0].shift))
    return Stage(tuple(cuts), tuple(segments), 1, to_power + 2)


def _plan_binade_cut(power: int, top: int, negative: bool) -> Cut:
    """Return [x < 2^power] for x < 2^top and, if negative, x > -2^top; else x >= 0."""
    drop = max(0, power - RESOLUTION)
    return Cut(1 << power, drop, top - drop + 1 + negative)


def plan_normalization(
    bits: int, precision: int, signed: bool = False, lowest: int = 0
) -> NormalizationPlan:
    """Return the plan for 0 < x < 2^bits, or 0 < |x| < 2^bits if signed.

    Args:
        precision: c is off by a factor of 1 +- 0.35 * 2^-precision at most.
        lowest: x >= 2^lowest is known (then x is not compared with 1).

    Raises:
        UsageError: bits outside 2..62, precision outside 6..22.
    """
    if not 2 <= bits <= MAX_MAGNITUDE or precision not in PRECISIONS:
        raise UsageError(
            f"Magnitudes have 2 to {MAX_MAGNITUDE} bits and precisions {PRECISIONS.start} to "
            f"{PRECISIONS.stop - 1}. Received: bits={bits}, precision={precision}.",
            code="number-out-of-range",
            operation="normalize",
            received=f"bits={bits}, precision={precision}",
        )
    units = precision + 3
    fuzz = Decimal(2) ** -(precision + 2)
    low = (1 - Decimal(2) ** -RESOLUTION) / 2 - fuzz
    count = bits - lowest
    if count <= MAX_ONE_STAGE_BINADES and not signed:
        top = max(bits, units)
        stage = _plan_binades(bits, count, top, lowest == 0)
        return NormalizationPlan((stage,), top, units, low, 1 + fuzz, top - lowest - 1)
    top = precision + GROUP + 6
    groups = -(-count // GROUP)
    tops = [bits - GROUP * (groups - 1 - g) for g in range(groups)]
    cuts = [_plan_binade_cut(t, bits, lowest == 0) for t in tops[:-1]]
    segments = [Segment(1, top - t) for t in tops]
    if lowest == 0:
        cuts.insert(0, Cut(1, 0, bits + 1 + signed))
        segments.insert(0, Segment(0, segments[0].shift, 1 << segments[0].shift))
    if signed:
        # -x > cut - 2^drop, so that here too the larger magnitudes may be treated as beyond the
        # cut
        mirrored = [Cut((1 << c.drop) - c.at, c.drop, c.bits) for c in cuts[::-1]]
        cuts = [*mirrored, *cuts]
        segments = [*(replace(s, sign=-s.sign) for s in segments[:0:-1]), *segments]
    coarse = Stage(tuple(cuts), tuple(segments), 2, top + 2)
    fine = _plan_binades(top, GROUP, top, False)
    # The lowest group may have fewer binades. Where its x is rounded it may fall into a lower one.
    max_shift = top - lowest - 1 + (tops[0] > top)
    return NormalizationPlan((coarse, fine), top, units, low, 1 + fuzz, max_shift)


@dataclass(frozen=True)
class Table:
    """Constants by segment whose product (or sum) over the stages accompanies c.

    Attributes:
        stages: for each stage a constant for each segment.
        additive: sum them, instead of multiplying.
        drop: bits dropped when the result is exchanged.
        bits: the result is below 2^bits in magnitude, and exchanged mod 2^(bits + 2).
    """

    stages: tuple[tuple[int, ...], ...]
    additive: bool
    drop: int
    bits: int

    @property
    def width(self) -> int:
        """Bits modulo which the sums are right."""
        return self.bits + 2 + self.drop


def build_segment_table(
    stages: Sequence[Sequence[int]],
    drop: int = 0,
    additive: bool = False,
    largest: int | None = None,
) -> Table:
    """Return a table with the bits that it takes.

    Args:
        largest: largest product that occurs, if known.

    Raises:
        UsageError: the products do not fit 63 bits.
    """
    stage_maxima = [max(abs(v) for v in values) for values in stages]
    if largest is None:
        largest = (
            sum(stage_maxima)
            if additive
            else stage_maxima[0] * (stage_maxima[1] if len(stage_maxima) > 1 else 1)
        )
    candidate = Table(
        tuple(tuple(v) for v in stages), additive, drop, (largest >> drop).bit_length()
    )
    # the rounding may add a unit to a largest value that is all ones
    if (largest + (1 << drop) - 1) >> drop >= 1 << candidate.bits:
        candidate = replace(candidate, bits=candidate.bits + 1)
    if candidate.width >= RING:
        raise UsageError(
            "A scale factor fits 63 bits. Received: parameters for which it takes "
            f"{candidate.width}. "
            "Use fewer fractional bits, a lower precision or a smaller range.",
            code="unsupported-scale",
            received=candidate.width,
            expected=63,
        )
    return candidate
