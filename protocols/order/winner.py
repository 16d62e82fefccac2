"""One-hot position of the largest value of each row, as numbers: greedy choice.

The tree of row_maximum.py runs in a small ring: all pairs of a group are compared at once, and the
winners enter the next level. A value is the largest of its row if it wins in its group, its group's
winner wins in the next, and so on. The result is an AND of one bit for each level; the bits have no
other use. Neither a bit nor a position is opened.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.order import extremes, row_maximum
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic, small_ring
from tfe_bench.protocols.ring.checks import check_known_shape
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared


def argmax_one_hot(party: Party, x: Shared, profile: str = "local") -> Shared:
    """Return [x_j is the first largest of its row], 0 or 1 over Z_2^64, [rows, width].

    Args:
        x: [rows, width] of any ring Z_2^k; right while differences within a row are below 2^(k-1)
            ring units.
        profile: network profile.

    Rounds: 4 for each level of row_maximum.plan_maximum_radices, 1 for a level without selection
    (one more each where a comparison takes two exchanges, from 50 bits on), and 1. Bits sent: those
    of the levels, and for each element D 2^levels - 1 and 64, E1, E2 1 and 64.
    Raises:
        UsageError: the shape is not [rows, width], or there are no values.
    """
    rows, width = _check_argmax_shape(x)
    if width == 1:
        return arithmetic.share_public(x, np.ones([rows, 1], np.int64))
    level_radices = row_maximum.plan_maximum_radices(
        rows * width, width, x.ring_bits, x.ring_bits, profile
    )
    lengths = np.full(rows, width)
    x = x.map(lambda a: tensor_ops.reshape(a, [-1]))
    bits, before = [], 1
    for radix in level_radices:
        columns, lengths = row_maximum.split_rows_into_groups(lengths, radix)
        x = x.map(columns)
        hot = extremes.argmax_bits(
            party, x, x.ring_bits, compare.min_comparison_exchanges(x.ring_bits)
        )
        bits.append(_tournament_ancestor_bits(hot, radix, rows, width, before))
        before *= radix
        if before < width:
            x = small_ring.pick_one_hot(party, hot, x)
    winner_bits = convert.mask_bits(party, logic.and_bits(party, bits))
    return convert.b2a(party, winner_bits, [rows, width])


def _check_argmax_shape(x: Shared) -> tuple[int, int]:
    shape = check_known_shape("one_hot", x)
    if len(shape) != 2 or x.limbs != 1 or math.prod(shape) == 0:
        raise UsageError(
            f"one_hot expects rows of values, [rows, width]. Received: {x!r}.",
            code="shape-mismatch",
            operation="one_hot",
            received=repr(x),
            expected="[rows, width]",
        )
    return shape[0], shape[1]


def _tournament_ancestor_bits(
    hot: MaskedBits, radix: int, rows: int, width: int, before: int
) -> MaskedBits:
    """Return for each value the bit of its ancestor in the group, [rows, width]. Local.

    Args:
        before: number of values below each node of the level.
    """
    item = np.arange(width) // before
    groups = math.ceil(math.ceil(width / before) / radix)
    bit_positions = (item % radix) * groups + item // radix

    def gather_ancestor_bits(a: Any) -> Any:
        by_row = tensor_ops.transpose(tensor_ops.reshape(a, [radix, rows, groups]), [1, 0, 2])
        return tensor_ops.gather(
            tensor_ops.reshape(by_row, [rows, radix * groups]), bit_positions, axis=1
        )

    return logic.rearrange_private_bits(
        hot, (radix, rows * groups), gather_ancestor_bits, rows * width
    )
