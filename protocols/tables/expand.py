"""Copies of rows: as many of each as a private number says, and rows at private places.

What is copied goes as differences to the places where copies begin, with zeros between them; a
running sum makes copies of it.  Where copies begin is found by sorting rows and the public places
of the result together: both are in their order already, and equal keys keep theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic, relational, shapes
from tfe_bench.protocols.ring.checks import is_from
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange, bits, keys
from tfe_bench.protocols.tables.arrange import Arrangement, graph

# Rows of a result whose number is private.
MOST_BOUND = 1 << 24


def expand(
    party: Party,
    columns: Sequence[Shared],
    times: Shared,
    most: int,
    bound: int,
    *,
    profile: str = "local",
) -> tuple[list[Shared], Shared, Shared]:
    """Row i `times[i]` times, in their order, as `bound` rows.

    Args:
        columns: [n] each.
        times: [n], from 0.
        most: public, what all times add up to at most.
        bound: of the result, 1 to 2^24.

    Returns:
        Columns [bound]; which rows are copies, [bound] of Z_2; and [1] of Z_2, whether there are
        more copies than that, of which the first ones are here.
    Rounds: about 10, and those of arrange.by_keys.  Bits sent: a comparison of `most` and an
    injection for each row; a sort of n + 1 + bound keys of log2 bound bits; two moves of columns.
    Raises:
        UsageError: other bounds.
    """
    check_bound("expand", bound)
    if not is_from(most, 0, 2**61):
        raise UsageError(f"expand makes 2^61 copies at most. Received: {most!r}.")
    n = int(times.shape[0])

    def placed(times: Shared, *columns: Shared) -> list[Shared]:
        # the last row begins behind all copies, and is none
        begin = shapes.pad(times.map(lambda a: local.cumsum(a, 0, False, False)), [[1, 0]])
        below = arithmetic.moved(begin, np.int64(-bound - 1))
        width = max(most, bound).bit_length() + 2
        beyond = bits.invert(bits.of(party, relational.negative(party, below, width)))
        rest = arithmetic.moved(arithmetic.neg(begin), np.int64(bound))
        key = arithmetic.add(begin, bits.times(party, beyond, rest))
        slots = arithmetic.public_range(key, bound)
        ends = [shapes.pad(c, [[0, 1]]) for c in columns]
        alive = bits.public(key, np.arange(n + 1) < n)
        over = beyond.map(lambda a: local.at(a, np.s_[n:]))
        return [shapes.concat([key, slots], 0), over, *(steps(c, bound) for c in [*ends, alive])]

    about = (n, most, bound)
    key, over, *given = graph(party, "placed", placed, *about)(times, *columns)
    order = arrange.by_keys(party, [(key, bound.bit_length())], profile=profile)
    *found, alive = _copied(order, given, n + 1)
    return found, alive, over


def gather(
    party: Party, columns: Sequence[Shared], places: Shared, *, profile: str = "local"
) -> list[Shared]:
    """Columns at private places: [m] each of [n].

    Args:
        places: [m], each from 0 to n - 1, which must be a fact: a sort relies on it.

    Rounds and bits: those of arrange.by_keys for n + m keys of log2 n bits, and two moves of
    columns.
    """
    n, m = int(columns[0].shape[0]), int(places.shape[0])
    key = shapes.concat([arithmetic.public_range(places, n), places], 0)
    order = arrange.by_keys(party, [(key, max(1, (n - 1).bit_length()))], profile=profile)
    return _copied(order, [steps(c, m) for c in columns], n)


def check_bound(name: str, bound: object) -> None:
    """Refuses what is no public bound of a private number of rows.

    Raises:
        UsageError: it is none.
    """
    if not is_from(bound, 1, MOST_BOUND):
        raise UsageError(f"{name} makes 1 to 2^24 rows. Received: {bound!r}.")


def steps(x: Shared, more: int) -> Shared:
    """What each row adds to the one before it, and zeros for `more` rows.  Local."""
    return shapes.pad(arithmetic.sub(x, keys.shifted(x, 1)), [[0, more]])


def sums(x: Shared) -> Shared:
    """Sums up to each row; of bits their XOR.  Local."""
    return x.map(lambda a: local.cumsum(a, 0, False, False))


def _copied(order: Arrangement, given: Sequence[Shared], n: int) -> list[Shared]:
    """What the last of n rows before each other one holds, in the order of these."""
    return order.back([sums(c) for c in order.forward(given)], n)
