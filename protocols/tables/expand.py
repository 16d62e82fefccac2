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
from tfe_bench.protocols.ring.checks import is_integer_between
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange, bits, keys
from tfe_bench.protocols.tables.arrange import PrivatePermutation, cached_graph

# Rows of a result whose number is private.
MAX_BOUND = 1 << 24


def expand_rows(
    party: Party,
    columns: Sequence[Shared],
    multiplicities: Shared,
    max_copies: int,
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
    if not is_integer_between(max_copies, 0, 2**61):
        raise UsageError(f"expand makes 2^61 copies at most. Received: {max_copies!r}.")
    n = int(multiplicities.shape[0])

    def place_copies(multiplicities: Shared, *columns: Shared) -> list[Shared]:
        # the last row begins behind all copies, and is none
        begin = shapes.pad(
            multiplicities.map(lambda a: tensor_ops.cumsum(a, 0, False, False)), [[1, 0]]
        )
        excess = arithmetic.add_constant(begin, np.int64(-bound - 1))
        width = max(max_copies, bound).bit_length() + 2
        beyond = bits.invert(bits.from_masked(party, relational.is_negative(party, excess, width)))
        clip_change = arithmetic.add_constant(arithmetic.neg(begin), np.int64(bound))
        key = arithmetic.add(begin, bits.multiply_by_bit(party, beyond, clip_change))
        slots = arithmetic.share_public_range(key, bound)
        padded_columns = [shapes.pad(c, [[0, 1]]) for c in columns]
        is_row = bits.public_bits(key, np.arange(n + 1) < n)
        overflow = beyond.map(lambda a: tensor_ops.strided_slice(a, np.s_[n:]))
        return [
            shapes.concat([key, slots], 0),
            overflow,
            *(difference_rows(c, bound) for c in [*padded_columns, is_row]),
        ]

    key_parts = (n, max_copies, bound)
    key, overflow, *column_steps = cached_graph(party, "placed", place_copies, *key_parts)(
        multiplicities, *columns
    )
    permutation = arrange.sort_by_keys(party, [(key, bound.bit_length())], profile=profile)
    *copies, is_copy = _copy_rows(permutation, column_steps, n + 1)
    return copies, is_copy, overflow


def gather_rows(
    party: Party, columns: Sequence[Shared], positions: Shared, *, profile: str = "local"
) -> list[Shared]:
    """Columns at private places: [m] each of [n].

    Args:
        places: [m], each from 0 to n - 1, which must be a fact: a sort relies on it.

    Rounds and bits: those of arrange.by_keys for n + m keys of log2 n bits, and two moves of
    columns.
    """
    n, m = int(columns[0].shape[0]), int(positions.shape[0])
    key = shapes.concat([arithmetic.share_public_range(positions, n), positions], 0)
    permutation = arrange.sort_by_keys(
        party, [(key, max(1, (n - 1).bit_length()))], profile=profile
    )
    return _copy_rows(permutation, [difference_rows(c, m) for c in columns], n)


def check_bound(name: str, bound: object) -> None:
    """Refuses what is no public bound of a private number of rows.

    Raises:
        UsageError: it is none.
    """
    if not is_integer_between(bound, 1, MAX_BOUND):
        raise UsageError(f"{name} makes 1 to 2^24 rows. Received: {bound!r}.")


def difference_rows(x: Shared, extra_rows: int) -> Shared:
    """What each row adds to the one before it, and zeros for `more` rows.  Local."""
    return shapes.pad(arithmetic.sub(x, keys.shift_down(x, 1)), [[0, extra_rows]])


def accumulate_rows(x: Shared) -> Shared:
    """Sums up to each row; of bits their XOR.  Local."""
    return x.map(lambda a: tensor_ops.cumsum(a, 0, False, False))


def _copy_rows(
    permutation: PrivatePermutation, column_steps: Sequence[Shared], n: int
) -> list[Shared]:
    """What the last of n rows before each other one holds, in the order of these."""
    return permutation.apply_inverse(
        [accumulate_rows(c) for c in permutation.apply(column_steps)], n
    )
