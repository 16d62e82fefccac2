"""How a row's statistic is summed in fixed point: of which bits, and modulo what.

With n elements in a row, S their sum and Q that of their squares, all is exact modulo 2^64 if no
element is rounded before:

    by variance:     u = n x - S,  n^2 s = n Q - S^2
    by mean square:  u = n x,      n^2 s = n Q
    by sum:          u = x,        s = Q

Where samples say how large s is, u and s are right modulo what these take, and x needs no 64 bits.
A watch is then told of a second statistic too, of x / 2^coarse (functions/normalize.py `shifted`,
off by less than two units), which takes 2 coarse bits less: where it is small the first one cannot
have left its modulus.

Where samples do not, and n^2 s could leave the ring, n s is the sum of squares of what is rounded:
x less its mean, or x.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from tfe_bench.models.kinds.layer import Layer, Shape
from tfe_bench.models.kinds.planning import FEWEST_BITS, PRODUCT_BITS
from tfe_bench.protocols.functions.normalize_plan import ONE_STAGE
from tfe_bench.protocols.ring.products import RING

# Of the reciprocal root, of which its largest values leave less; of values of few fractional bits,
# so many more than these.
PRECISION, _SPARE_PRECISION = 20, 5
# Of the largest reciprocal root, and of a public number that it may be multiplied by.
_ROOT_BITS, RATIO_BITS = 42, 18
# Bits sent for a second statistic of a row, which is compared.
_SECOND = 900


@dataclass(frozen=True)
class Scheme:
    """How one layer computes.

    X is what is summed of v^2, and epsilon; v is x or u, rounded if `own` says so.

    Attributes:
        count: n.
        by: the statistic.
        epsilon: added to it.
        given: fractional bits of x.
        own: fractional bits of v; 0 where x enters as it is.
        bits: X < 2^bits.
        low: X >= 2^low, from samples; 0 where only epsilon says how small X may be.
        read: bits of x that are right.
        coarse: bits that x loses for a second statistic, which is watched; 0 for none.
        precision: of the reciprocal root.
    """

    count: int
    by: str
    epsilon: float
    given: int
    own: int
    bits: int = 0
    low: int = 0
    read: int = RING
    coarse: int = 0
    precision: int = PRECISION

    @property
    def times(self) -> int:
        """u over what is divided by the root."""
        return self.count if self.by != "sum" else 1

    @property
    def lost(self) -> int:
        """Bits that v loses of u, or of x where no mean is taken off."""
        if not self.own:
            return 0
        return self.given - self.own + (self._log if self.by == "variance" else 0)

    @property
    def _log(self) -> int:
        return self.count.bit_length() - 1

    @property
    def spread(self) -> Fraction:
        """X = spread (s + epsilon) 2^scale."""
        if not self.own or self.by == "sum":
            return Fraction(self.times**2)
        kept = Fraction(self.count, 1 << self._log) if self.by == "variance" else 1
        return self.count * Fraction(kept) ** 2

    @property
    def scale(self) -> int:
        """Fractional bits of X."""
        return 2 * (self.own or self.given)

    def ring(self, s: Fraction) -> int:
        """A statistic, or epsilon, in X."""
        return round(s * self.spread * (1 << self.scale))

    @property
    def exact(self) -> bool:
        """Whether v is x, and samples say how large X is."""
        return bool(self.low) and not self.own

    @property
    def lowest(self) -> int:
        """X >= 2^lowest; 0 where X may be 0."""
        return max(self.low, self.ring(Fraction(self.epsilon)).bit_length() - 1)

    @property
    def ratio(self) -> tuple[int, int]:
        """(c, j) with sqrt(spread) / times = c 2^-(RATIO_BITS + j), c of as many bits."""
        square = self.spread / self.times**2
        j = 0
        while square * 4 ** (j + 1) <= 1:
            j += 1
        return math.isqrt(int(square * 4 ** (RATIO_BITS + j))), j

    @property
    def root(self) -> int:
        """Of the reciprocal root 2^root / sqrt(X)."""
        most = min(_ROOT_BITS + self.lowest // 2, self._room - self._shift)
        # (the largest X leaves its root the precision and two bits)
        return min(most, self.precision + 2 + (self.bits + 1) // 2) if self.low else most

    @property
    def product(self) -> int:
        """Fractional bits of u times the reciprocal root (and the ratio)."""
        return self.root + self._shift

    @property
    def _room(self) -> int:
        return PRODUCT_BITS - (self.count.bit_length() + 1) // 2

    @property
    def _shift(self) -> int:
        return self.given - self.scale // 2 + self.ratio[1]

    def as_precise(self, fraction: int) -> Scheme:
        """For results of so many fractional bits."""
        return replace(self, precision=min(PRECISION, fraction + _SPARE_PRECISION))

    def most(self, magnitude: int) -> int:
        """Bits of X for |x| < 2^magnitude."""
        s = Fraction(4) ** magnitude * (self.count if self.by == "sum" else 1)
        return max(self.ring(s + Fraction(self.epsilon)).bit_length(), self.lowest + 2)

    def reached(self, limit: int, coarse: int = 0) -> int:
        """A bound on the statistic of |x| <= limit ring units; of x / 2^coarse, if that is cut."""
        largest = (limit >> coarse) + 3 if coarse else limit
        return (self.count * self.times * largest**2) + self.ring(Fraction(self.epsilon))

    @property
    def most_coarse(self) -> int:
        """A bound on the second statistic where X < 2^bits."""
        # ||v|| is ||x|| / 2^coarse and ||v - x / 2^coarse|| at most
        return ((1 << (self.bits + 1) // 2 >> self.coarse) + self._lost + 1) ** 2

    @property
    def _lost(self) -> int:
        return 2 * (math.isqrt(self.count * self.times) + 1)

    def in_fewest(self, limit: int | None, least: int = 0) -> Scheme | None:
        """As few bits of x as do, where v is x and X from 2^low to 2^bits; None if none do.

        Args:
            limit: |x| <= limit ring units, of which no X may be taken for one in between; None:
                nothing is watched, and X is right in between alone.
            least: so many bits are read of x anyway.
        """
        enough = max(self.bits + 2, least)
        if limit is not None:
            enough = max(enough, self.reached(limit).bit_length())
        several: list[Scheme] = [replace(self, read=enough)]
        if limit is not None:
            several += self._with_second(limit, max(self.bits + 2, least))
        fitting = [one for one in several if one.read <= RING]
        return min(fitting, key=Scheme._sent, default=None)

    def of_any(self, least: int = 0) -> Scheme:
        """`in_fewest` for the largest limit that there is, where none is known."""
        each = (self.in_fewest(1 << bits, least) for bits in range(RING - 2, 0, -1))
        return next((found for found in each if found is not None), self)

    def _with_second(self, limit: int, enough: int) -> Iterator[Scheme]:
        """With a second statistic, of all that it may lose."""
        for coarse in range(1, self.given + self.bits):
            # (an X of 2^(bits+2) has to have a larger second statistic than one of 2^bits)
            if (1 << self.bits // 2 >> coarse) <= 8 * self._lost:
                break
            one = replace(self, coarse=coarse)
            bits = max(self.reached(limit, coarse).bit_length(), one.most_coarse.bit_length() + 2)
            yield replace(one, read=max(enough, bits + coarse))

    def _sent(self) -> int:
        """For a row, about, by what depends on the bits that are read."""
        return 4 * self.count * self.read + (_SECOND if self.coarse else 0)


def _plain(x: Layer, given: Shape, fraction: int) -> Scheme:
    """A layer whose x enters as it is."""
    count = math.prod(given[axis - 1] for axis in x.options["axes"])
    return Scheme(count, x.options["by"], float(x.options["epsilon"]), fraction, 0)


def unrounded(
    x: Layer, given: Shape, fraction: int, magnitude: int, root: float | None, inverse: float | None
) -> Scheme | None:
    """How a layer computes of x as it is, where samples say how large X is.

    None if they do not, or if an |x| < 2^magnitude could have an X that is taken for another.
    """
    plain = _plain(x, given, fraction)
    found = narrowed(replace(plain, bits=plain.most(magnitude)), root, inverse)
    if not found.low or found.bits > PRODUCT_BITS:
        return None
    return found if found.in_fewest(1 << max(fraction + magnitude, 0)) else None


def planned(x: Layer, given: Shape, fraction: int, magnitude: int) -> Scheme | None:
    """How a layer computes for |x| < 2^magnitude; None if nothing holds that."""
    for own in (0, *range(fraction, FEWEST_BITS - 1, -1)):
        found = replace(_plain(x, given, fraction), own=own)
        bits = found.most(magnitude)
        if bits <= PRODUCT_BITS:
            return replace(found, bits=bits)
    return None


def narrowed(found: Scheme, root: float | None, inverse: float | None) -> Scheme:
    """With the ends that samples give X, where fewer rounds do for what is between them."""
    if root is None or inverse is None:
        return found
    bits = min(found.bits, found.ring(Fraction(root) ** 2).bit_length())
    low = found.ring(1 / Fraction(inverse) ** 2).bit_length() - 1
    if low <= found.lowest or not 2 <= bits - low <= ONE_STAGE:
        return found
    return replace(found, bits=bits, low=low)
