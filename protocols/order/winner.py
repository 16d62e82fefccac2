"""Where the largest of each row is, as a row of numbers with one 1: greedy choice.

The tree of row_maximum.py in a small ring: all pairs of a group are compared at once, and the
winners go on to the next level.  A value is the largest of its row where it wins in its group, its
group's winner in the next, and so on: an AND of one bit for each level, which is all that is made
of the bits.  Neither a bit nor a place is opened.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.order import extremes, row_maximum
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic, small_ring
from tfe_bench.protocols.ring.checks import known_shape
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared


def one_hot(party: Party, x: Shared, profile: str = "local") -> Shared:
    """[x_j is the first largest of its row], 0 or 1 over Z_2^64, [rows, width].

    Args:
        x: [rows, width] of any ring Z_2^k; right while differences within a row are below 2^(k-1)
            ring units.
        profile: of the network.

    Rounds: 4 for each level of row_maximum.radices, 1 for a level without pick (one more each where
        a comparison takes two exchanges, from 50 bits on), and 1.  Bits sent: those of the levels,
        and for each element D 2^levels - 1 and 64, E1, E2 1 and 64.
    Raises:
        UsageError: another shape, or no values.
    """
    rows, width = _sizes(x)
    if width == 1:
        return arithmetic.public(x, np.ones([rows, 1], np.int64))
    chosen = row_maximum.radices(rows * width, width, x.ring_bits, x.ring_bits, profile)
    lengths = np.full(rows, width)
    x = x.map(lambda a: local.reshape(a, [-1]))
    bits, before = [], 1
    for radix in chosen:
        columns, lengths = row_maximum.cut(lengths, radix)
        x = x.map(columns)
        hot = extremes.one_hot(party, x, x.ring_bits, compare.fewest(x.ring_bits))
        bits.append(_asked(hot, radix, rows, width, before))
        before *= radix
        if before < width:
            x = small_ring.pick(party, hot, x)
    won = convert.mask_bits(party, logic.all_of(party, bits))
    return convert.b2a(party, won, [rows, width])


def _sizes(x: Shared) -> tuple[int, int]:
    shape = known_shape("one_hot", x)
    if len(shape) != 2 or x.limbs != 1 or math.prod(shape) == 0:
        raise UsageError(f"one_hot wants rows of values, [rows, width]. Received: {x!r}.")
    return shape[0], shape[1]


def _asked(hot: MaskedBits, radix: int, rows: int, width: int, before: int) -> MaskedBits:
    """Of each value the bit of the one of its group that it is below, [rows, width].  Local.

    Args:
        before: how many values are below each of the level.
    """
    item = np.arange(width) // before
    groups = math.ceil(math.ceil(width / before) / radix)
    place = (item % radix) * groups + item // radix

    def moved(a: Any) -> Any:
        by_row = local.transpose(local.reshape(a, [radix, rows, groups]), [1, 0, 2])
        return local.gather(local.reshape(by_row, [rows, radix * groups]), place, axis=1)

    return logic.rearrange(hot, (radix, rows * groups), moved, rows * width)
