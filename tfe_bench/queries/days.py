"""Dates of private timestamps by an exact division, for use inside graphs."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from tfe_bench.protocols.ring import arithmetic, relational, shapes
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import bits
from tfe_bench.queries.division import drop_column_element_bits
from tfe_bench.queries.types import ColumnType, units_per_day

# Leading bits of a day's length that the estimate uses.
_KEPT = 6


def timestamps_to_days(party: Party, x: Shared, kind: ColumnType) -> Shared:
    """Compute floor(x / units of a day): days from 1970.

    A product with a public reciprocal estimates the day from the leading bits of x, with an error
    of at most one. The sign of the remainder then corrects the estimate by one day. Cost: two
    truncations, and two simultaneous comparisons of the bits of a day and 2.

    Args:
        x: [n], from `kind.low` to `kind.high`.
        kind: type of the timestamps.
    """
    day = units_per_day(kind.unit)
    first = kind.low // day
    within = arithmetic.add_constant(x, np.int64(-first * day))
    drop = day.bit_length() - _KEPT
    # (2^-5 of a day from the dropped bits, 2^-4 from the reciprocal, and less than 1 from
    # rounding)
    scale = ((kind.high // day - first + 1) * day >> drop).bit_length() + 3
    reciprocal = round(Fraction(1 << (scale + drop), day))
    product = arithmetic.mul_public(
        drop_column_element_bits(party, within, drop), np.int64(reciprocal)
    )
    halved = arithmetic.add_constant(product, np.int64(-(1 << (scale - 1))))
    guess = drop_column_element_bits(party, halved, scale)
    remainder = arithmetic.sub(within, arithmetic.mul_public(guess, np.int64(day)))
    both = shapes.concat([remainder, arithmetic.add_constant(remainder, np.int64(-day))], 0)
    below = relational.is_negative(party, both, (2 * day).bit_length() + 1)
    late, on_time = shapes.split(bits.to_number(party, bits.from_masked(party, below)), 2)
    # guess - late + (1 - on_time)
    days = arithmetic.sub(arithmetic.sub(guess, late), on_time)
    return arithmetic.add_constant(days, np.int64(first + 1))
