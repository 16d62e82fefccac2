"""Rows of bits of which one is 1: of a private position, and of the segment that a value is in.

Against public ascending edges the comparisons of a value are nested, so that the XOR of neighbors,
which is free, says which segment it is in: one comparison for each edge, where an equality of its
own for each position takes two.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic, shapes
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

WAYS = ("direct", "clamped")


def below(party: Party, x: Shared, edges: npt.NDArray[np.int64], bits: int) -> MaskedBits:
    """[x < edge], [edges, n], for public edges in ring units.

    Args:
        bits: right while |x - edge| < 2^(bits-1).

    Rounds and bits: those of relational.less of so many pairs.
    """
    count, n = len(edges), x.shape.num_elements()
    flat = x.map(lambda a: local.tile(local.reshape(a, [1, n]), [count, 1]))
    moved = arithmetic.moved(flat, -edges.astype(np.int64)[:, None])
    return convert.mask_bits(party, compare.msb(party, moved, bits))


def steps(bits: MaskedBits, edges: int, n: int, first: bool) -> MaskedBits:
    """Of nested bits [edges, n] the segments that end at an edge.  Local.

    Args:
        first: also the segment below the first edge.
    """
    kept = edges if first else edges - 1

    def lower(a: local.Tensor) -> local.Tensor:
        return local.pad(a[: edges - 1], [(1 if first else 0, 0), (0, 0)])

    return logic.xor(
        logic.rearrange(bits, (edges, n), lambda a: local.at(a, np.s_[edges - kept :]), kept * n),
        logic.rearrange(bits, (edges, n), lower, kept * n),
    )


def choose(way: str, n: int, depth: int, bits: int) -> str:
    """What "auto" stands for: the way that sends less, a round for as many bits as it is worth."""
    if way != "auto":
        return way
    made = (cost_of(one_hot, Private((n,), 0), depth, bits, w) for w in WAYS)
    price = [c.total + c.rounds * extremes.ROUND_BITS["local"] for c in made]
    return WAYS[int(np.argmin(price))]


def one_hot(
    party: Party, x: Shared, depth: int, bits: int = compare.EXACT_BITS, way: str = "auto"
) -> MaskedBits:
    """[x == j] for j from 0 to depth - 1, [depth, n], of n integers; none for what is outside.

    Args:
        depth: 1 or more.
        bits: |x| < 2^(bits-1); of 64 bits |x| < 2^63 - depth.
        way: "direct" compares `bits` bits for each position; "clamped" asks first whether x is
            inside, takes `depth` for it where it is not, and compares what `depth` needs.

    Rounds: those of a comparison; "clamped" those of two, and 1.  Bits sent: those of depth + 1
    comparisons, or of two, an injection and depth narrow ones.
    """
    n = x.shape.num_elements()
    narrow = max(2, (depth - 1).bit_length() + 1)
    width = min(compare.moved(bits, depth), compare.EXACT_BITS)
    if narrow >= bits or choose(way, n, depth, bits) == "direct":
        return steps(below(party, x, np.arange(depth + 1), width), depth + 1, n, first=False)
    inside = steps(below(party, x, np.array([0, depth]), width), 2, n, first=False)
    moved = arithmetic.moved(shapes.reshape(x, [n]), -depth)
    clamped = arithmetic.moved(convert.inject(party, inside, moved), depth)
    return steps(below(party, clamped, np.arange(1, depth + 1), narrow), depth, n, first=True)


def values_first(bits: MaskedBits, edges: int, rows: int, n: int) -> MaskedBits:
    """Bits [edges, rows, n] as [n, edges, rows].  Local."""
    return logic.rearrange(
        bits, (edges, rows, n), lambda a: local.transpose(a, [2, 0, 1]), edges * rows * n
    )
