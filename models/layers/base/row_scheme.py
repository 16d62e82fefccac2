"""The fixed-point plan of a row's statistic: its bits, and the modulus of its sum.

With n elements in a row, S their sum and Q the sum of their squares, all is exact modulo 2^64 if no
element is rounded before:

    by variance:     u = n x - S,  n^2 s = n Q - S^2
    by mean square:  u = n x,      n^2 s = n Q
    by sum:          u = x,        s = Q

If samples bound s, then u and s only need to be right modulo the bits that they use, and x needs
fewer than 64 bits. A range check then also covers a second statistic, of x / 2^coarse
(functions/normalize.py `shifted`, off by less than two units), which uses 2 coarse bits less: where
it is small, the first one is within its modulus.

If samples do not bound s, and n^2 s could exceed the ring, n s is the sum of squares of rounded
values: x less its mean, or x.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from tfe_bench.models.layers.base.layer import LayerSpec, Shape
from tfe_bench.models.layers.base.planning import FEWEST_BITS, PRODUCT_BITS
from tfe_bench.protocols.functions.normalize_plan import MAX_ONE_STAGE_BINADES
from tfe_bench.protocols.ring.products import RING

# Bits of the reciprocal root, fewer for its largest values; for values of few fractional bits,
# this many more than these.
PRECISION, _SPARE_PRECISION = 20, 5
# Bits of the largest reciprocal root, and of a public number that multiplies it.
_ROOT_BITS, RATIO_BITS = 42, 18
# Bits sent for the comparison of a row's second statistic.
_SECOND = 900


@dataclass(frozen=True)
class NormalizationScheme:
    """The fixed-point plan of one layer.

    X is the sum of v^2 and epsilon; v is x or u, rounded if `rounded_scale` is positive.

    Attributes:
        count: n.
        statistic: "variance", "mean_square" or "sum".
        epsilon: added to the statistic.
        input_scale: fractional bits of x.
        rounded_scale: fractional bits of v; 0 if x is used unrounded.
        bits: X < 2^bits.
        low: X >= 2^low, from samples; 0 if only epsilon bounds X from below.
        read_bits: low bits of x that are right.
        coarse: bits that x loses for a second, range-checked statistic; 0 for none.
        precision: bits of the reciprocal root.
    """

    count: int
    statistic: str
    epsilon: float
    input_scale: int
    rounded_scale: int
    bits: int = 0
    low: int = 0
    read_bits: int = RING
    coarse: int = 0
    precision: int = PRECISION

    @property
    def numerator_factor(self) -> int:
        """The ratio of u and the value that is divided by the root."""
        return self.count if self.statistic != "sum" else 1

    @property
    def dropped_bits(self) -> int:
        """Bits that v loses of u, or of x if no mean is subtracted."""
        if not self.rounded_scale:
            return 0
        return (
            self.input_scale
            - self.rounded_scale
            + (self._log_count if self.statistic == "variance" else 0)
        )

    @property
    def _log_count(self) -> int:
        return self.count.bit_length() - 1

    @property
    def statistic_factor(self) -> Fraction:
        """The factor in X = factor (s + epsilon) 2^scale."""
        if not self.rounded_scale or self.statistic == "sum":
            return Fraction(self.numerator_factor**2)
        count_ratio = (
            Fraction(self.count, 1 << self._log_count) if self.statistic == "variance" else 1
        )
        return self.count * Fraction(count_ratio) ** 2

    @property
    def scale(self) -> int:
        """Fractional bits of X."""
        return 2 * (self.rounded_scale or self.input_scale)

    def to_ring(self, s: Fraction) -> int:
        """Convert a statistic, or epsilon, to units of X."""
        return round(s * self.statistic_factor * (1 << self.scale))

    @property
    def is_exact(self) -> bool:
        """True if v is x, and samples bound X."""
        return bool(self.low) and not self.rounded_scale

    @property
    def lower_bits(self) -> int:
        """X >= 2^lower_bits; 0 if X may be 0."""
        return max(self.low, self.to_ring(Fraction(self.epsilon)).bit_length() - 1)

    @property
    def root_ratio(self) -> tuple[int, int]:
        """(c, j) with sqrt(statistic_factor) / numerator_factor = c 2^-(RATIO_BITS + j).

        c has RATIO_BITS bits.
        """
        square = self.statistic_factor / self.numerator_factor**2
        j = 0
        while square * 4 ** (j + 1) <= 1:
            j += 1
        return math.isqrt(int(square * 4 ** (RATIO_BITS + j))), j

    @property
    def root_bits(self) -> int:
        """The exponent of the reciprocal root 2^root_bits / sqrt(X)."""
        max_bits = min(_ROOT_BITS + self.lower_bits // 2, self._room_bits - self._scale_shift)
        # (for the largest X the root keeps the precision and two bits)
        return min(max_bits, self.precision + 2 + (self.bits + 1) // 2) if self.low else max_bits

    @property
    def product_bits(self) -> int:
        """Fractional bits of u times the reciprocal root (and the ratio)."""
        return self.root_bits + self._scale_shift

    @property
    def _room_bits(self) -> int:
        return PRODUCT_BITS - (self.count.bit_length() + 1) // 2

    @property
    def _scale_shift(self) -> int:
        return self.input_scale - self.scale // 2 + self.root_ratio[1]

    def limit_precision(self, fraction: int) -> NormalizationScheme:
        """Limit the precision to that of results with this many fractional bits."""
        return replace(self, precision=min(PRECISION, fraction + _SPARE_PRECISION))

    def bound_bits(self, magnitude: int) -> int:
        """Bound the bits of X for |x| < 2^magnitude."""
        s = Fraction(4) ** magnitude * (self.count if self.statistic == "sum" else 1)
        return max(self.to_ring(s + Fraction(self.epsilon)).bit_length(), self.lower_bits + 2)

    def bound_statistic(self, limit: int, coarse: int = 0) -> int:
        """Bound the statistic of |x| <= limit ring units; with coarse, of x / 2^coarse."""
        largest = (limit >> coarse) + 3 if coarse else limit
        return (self.count * self.numerator_factor * largest**2) + self.to_ring(
            Fraction(self.epsilon)
        )

    @property
    def coarse_bound(self) -> int:
        """Bound on the second statistic where X < 2^bits."""
        # ||v|| is at most ||x|| / 2^coarse + ||v - x / 2^coarse||
        return ((1 << (self.bits + 1) // 2 >> self.coarse) + self._rounding_loss + 1) ** 2

    @property
    def _rounding_loss(self) -> int:
        return 2 * (math.isqrt(self.count * self.numerator_factor) + 1)

    def minimize_bits(self, limit: int | None, least: int = 0) -> NormalizationScheme | None:
        """Minimize the bits of x, where v is x and X lies in 2^low to 2^bits; None if nothing fits.

        Args:
            limit: |x| <= limit ring units, for which no X may be mistaken for one in the interval.
                None: ranges are not checked, and X is right in the interval alone.
            least: the low bits of x that are used in any case.
        """
        enough = max(self.bits + 2, least)
        if limit is not None:
            enough = max(enough, self.bound_statistic(limit).bit_length())
        candidates: list[NormalizationScheme] = [replace(self, read_bits=enough)]
        if limit is not None:
            candidates += self._add_second_statistic(limit, max(self.bits + 2, least))
        fitting = [one for one in candidates if one.read_bits <= RING]
        return min(fitting, key=NormalizationScheme._estimate_sent_bits, default=None)

    def minimize_for_any_limit(self, least: int = 0) -> NormalizationScheme:
        """Return `minimize_bits` for the largest limit that fits, if none is known."""
        candidates = (self.minimize_bits(1 << bits, least) for bits in range(RING - 2, 0, -1))
        return next((candidate for candidate in candidates if candidate is not None), self)

    def _add_second_statistic(self, limit: int, enough: int) -> Iterator[NormalizationScheme]:
        """Yield schemes with a second statistic, one for each possible `coarse`."""
        for coarse in range(1, self.input_scale + self.bits):
            # (an X of 2^(bits+2) must have a larger second statistic than one of 2^bits)
            if (1 << self.bits // 2 >> coarse) <= 8 * self._rounding_loss:
                break
            one = replace(self, coarse=coarse)
            bits = max(
                self.bound_statistic(limit, coarse).bit_length(), one.coarse_bound.bit_length() + 2
            )
            yield replace(one, read_bits=max(enough, bits + coarse))

    def _estimate_sent_bits(self) -> int:
        """Estimate the bits sent for a row, as far as they depend on the bits that are used."""
        return 4 * self.count * self.read_bits + (_SECOND if self.coarse else 0)


def _build_exact_norm_scheme(
    x: LayerSpec, input_shape: Shape, fraction: int
) -> NormalizationScheme:
    """Return the scheme of a layer that uses x unrounded."""
    count = math.prod(input_shape[axis - 1] for axis in x.options["axes"])
    return NormalizationScheme(count, x.options["by"], float(x.options["epsilon"]), fraction, 0)


def plan_exact_norm_scheme(
    x: LayerSpec,
    input_shape: Shape,
    fraction: int,
    magnitude: int,
    root: float | None,
    inverse: float | None,
) -> NormalizationScheme | None:
    """Plan a layer that uses x unrounded, if samples bound X.

    Returns None if they do not, or if an |x| < 2^magnitude could have an X that is mistaken for
    another.
    """
    plain = _build_exact_norm_scheme(x, input_shape, fraction)
    scheme = narrow_norm_scheme(replace(plain, bits=plain.bound_bits(magnitude)), root, inverse)
    if not scheme.low or scheme.bits > PRODUCT_BITS:
        return None
    return scheme if scheme.minimize_bits(1 << max(fraction + magnitude, 0)) else None


def plan_norm_scheme(
    x: LayerSpec, input_shape: Shape, fraction: int, magnitude: int
) -> NormalizationScheme | None:
    """Plan a layer for |x| < 2^magnitude; None if nothing fits."""
    for rounded_scale in (0, *range(fraction, FEWEST_BITS - 1, -1)):
        scheme = replace(
            _build_exact_norm_scheme(x, input_shape, fraction), rounded_scale=rounded_scale
        )
        bits = scheme.bound_bits(magnitude)
        if bits <= PRODUCT_BITS:
            return replace(scheme, bits=bits)
    return None


def narrow_norm_scheme(
    scheme: NormalizationScheme, root: float | None, inverse: float | None
) -> NormalizationScheme:
    """Narrow the scheme to the bounds of X from samples, where that saves rounds."""
    if root is None or inverse is None:
        return scheme
    bits = min(scheme.bits, scheme.to_ring(Fraction(root) ** 2).bit_length())
    low = scheme.to_ring(1 / Fraction(inverse) ** 2).bit_length() - 1
    if low <= scheme.lower_bits or not 2 <= bits - low <= MAX_ONE_STAGE_BINADES:
        return scheme
    return replace(scheme, bits=bits, low=low)
