"""One-hot bits of a private position, and of the segment that contains a value.

Comparisons of a value with public ascending edges are nested, so the XOR of neighboring results,
which is free, marks the segment: one comparison for each edge, where a separate equality for each
position would take two.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic, shapes
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

METHODS = ("direct", "clamped")


def compare_edges(party: Party, x: Shared, edges: npt.NDArray[np.int64], bits: int) -> MaskedBits:
    """Return [x < edge], [edges, n], for public edges in ring units.

    Args:
        bits: right while |x - edge| < 2^(bits-1).

    Rounds and bits: those of relational.less of edges * n pairs.
    """
    count, n = len(edges), x.shape.num_elements()
    flat = x.map(lambda a: tensor_ops.tile(tensor_ops.reshape(a, [1, n]), [count, 1]))
    shifted = arithmetic.add_constant(flat, -edges.astype(np.int64)[:, None])
    return convert.mask_bits(party, compare.msb(party, shifted, bits))


def one_hot_segment_bits(bits: MaskedBits, edges: int, n: int, first: bool) -> MaskedBits:
    """Return bits of the segments that end at an edge, from nested bits [edges, n]. Local.

    Args:
        first: also the segment below the first edge.
    """
    segments = edges if first else edges - 1

    def previous_edge(a: tensor_ops.Tensor) -> tensor_ops.Tensor:
        return tensor_ops.pad(a[: edges - 1], [(1 if first else 0, 0), (0, 0)])

    return logic.xor_bits(
        logic.rearrange_private_bits(
            bits,
            (edges, n),
            lambda a: tensor_ops.strided_slice(a, np.s_[edges - segments :]),
            segments * n,
        ),
        logic.rearrange_private_bits(bits, (edges, n), previous_edge, segments * n),
    )


def choose_one_hot(method: str, n: int, depth: int, bits: int) -> str:
    """Resolve "auto": the cheaper method, each round counted as the bits sent in its time."""
    if method != "auto":
        return method
    costs = (cost_of(one_hot, Private((n,), 0), depth, bits, w) for w in METHODS)
    price = [c.total + c.rounds * extremes.ROUND_BITS["local"] for c in costs]
    return METHODS[int(np.argmin(price))]


def one_hot(
    party: Party, x: Shared, depth: int, bits: int = compare.EXACT_BITS, method: str = "auto"
) -> MaskedBits:
    """Return [x == j] for j from 0 to depth - 1, [depth, n], of n integers; all 0 for x outside.

    Args:
        depth: 1 or more.
        bits: |x| < 2^(bits-1); for 64 bits |x| < 2^63 - depth.
        method: "direct" compares `bits` bits for each position; "clamped" first tests whether x is
            inside, replaces x outside by `depth`, and then compares only the bits that `depth`
            requires.

    Rounds: those of a comparison; for "clamped" those of two comparisons, and 1. Bits sent: those
    of depth + 1 comparisons, or those of two comparisons, an injection and depth narrow
    comparisons.
    """
    n = x.shape.num_elements()
    narrow = max(2, (depth - 1).bit_length() + 1)
    width = min(compare.comparison_bits_with_constant(bits, depth), compare.EXACT_BITS)
    if narrow >= bits or choose_one_hot(method, n, depth, bits) == "direct":
        return one_hot_segment_bits(
            compare_edges(party, x, np.arange(depth + 1), width), depth + 1, n, first=False
        )
    inside = one_hot_segment_bits(
        compare_edges(party, x, np.array([0, depth]), width), 2, n, first=False
    )
    shifted = arithmetic.add_constant(shapes.reshape(x, [n]), -depth)
    clamped = arithmetic.add_constant(convert.inject(party, inside, shifted), depth)
    return one_hot_segment_bits(
        compare_edges(party, clamped, np.arange(1, depth + 1), narrow), depth, n, first=True
    )


def move_one_hot_values_first(bits: MaskedBits, edges: int, rows: int, n: int) -> MaskedBits:
    """Transpose bits [edges, rows, n] to [n, edges, rows]. Local."""
    return logic.rearrange_private_bits(
        bits, (edges, rows, n), lambda a: tensor_ops.transpose(a, [2, 0, 1]), edges * rows * n
    )
