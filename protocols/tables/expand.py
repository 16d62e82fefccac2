"""Copies of rows: each row a private number of times, and rows at private positions.

Rows are written as differences at the positions where their copies begin, with zeros between; a
running sum turns these into copies. A joint sort of rows and of the public positions of the result
finds where copies begin: both are already in order, and equal keys keep their order.
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

# Most rows of a result whose valid number is private.
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
    """Repeat row i `multiplicities[i]` times, in order, in `bound` rows.

    Args:
        columns: [n] each.
        multiplicities: [n], from 0.
        max_copies: public upper bound of the sum of all multiplicities.
        bound: rows of the result, 1 to 2^24.

    Returns:
        Columns [bound]; the bits of rows that are copies, [bound] of Z_2; and [1] of Z_2: 1 if
        there are more copies than `bound`; the result has the first ones then.
    Rounds: about 10, and those of arrange.sort_by_keys. Bits sent: a comparison of `max_copies` and
    an injection for each row; a sort of n + 1 + bound keys of log2 bound bits; two moves of
    columns.
    Raises:
        UsageError: a bound is out of range.
    """
    check_row_count_bound("expand", bound)
    if not is_integer_between(max_copies, 0, 2**61):
        raise UsageError(
            f"Expected at most 2^61 copies. Received: {max_copies!r}.",
            code="number-out-of-range",
            operation="expand",
            received=max_copies,
            expected="0 to 2^61",
        )
    n = int(multiplicities.shape[0])

    def place_row_copies(multiplicities: Shared, *columns: Shared) -> list[Shared]:
        # The last entry is a dummy row that begins behind all copies.
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
        is_row = bits.share_public_row_bits(key, np.arange(n + 1) < n)
        overflow = beyond.map(lambda a: tensor_ops.strided_slice(a, np.s_[n:]))
        return [
            shapes.concat([key, slots], 0),
            overflow,
            *(subtract_previous_rows(c, bound) for c in [*padded_columns, is_row]),
        ]

    key_parts = (n, max_copies, bound)
    key, overflow, *column_steps = cached_graph(party, "placed", place_row_copies, *key_parts)(
        multiplicities, *columns
    )
    permutation = arrange.sort_by_keys(party, [(key, bound.bit_length())], profile=profile)
    *copies, is_copy = _copy_rows(permutation, column_steps, n + 1)
    return copies, is_copy, overflow


def gather_rows(
    party: Party, columns: Sequence[Shared], positions: Shared, *, profile: str = "local"
) -> list[Shared]:
    """Return columns [n] at private positions, [m] each.

    Args:
        positions: [m], each from 0 to n - 1; the sort relies on this range, so it must hold.

    Rounds and bits: those of arrange.sort_by_keys for n + m keys of log2 n bits, and two moves of
    columns.
    """
    n, m = int(columns[0].shape[0]), int(positions.shape[0])
    key = shapes.concat([arithmetic.share_public_range(positions, n), positions], 0)
    permutation = arrange.sort_by_keys(
        party, [(key, max(1, (n - 1).bit_length()))], profile=profile
    )
    return _copy_rows(permutation, [subtract_previous_rows(c, m) for c in columns], n)


def check_row_count_bound(name: str, bound: object) -> None:
    """Check a public bound of a private number of rows.

    Raises:
        UsageError: the bound is out of range.
    """
    if not is_integer_between(bound, 1, MAX_BOUND):
        raise UsageError(
            f"{name} expects a bound of 1 to 2^24 rows. Received: {bound!r}.",
            code="number-out-of-range",
            operation=name,
            received=bound,
            expected="1 to 2^24",
        )


def subtract_previous_rows(x: Shared, extra_rows: int) -> Shared:
    """Return each row minus the row before it, and zeros for `extra_rows` rows. Local."""
    return shapes.pad(arithmetic.sub(x, keys.shift_rows_down(x, 1)), [[0, extra_rows]])


def accumulate_rows(x: Shared) -> Shared:
    """Return running sums, for bits running XORs. Local."""
    return x.map(lambda a: tensor_ops.cumsum(a, 0, False, False))


def _copy_rows(
    permutation: PrivatePermutation, column_steps: Sequence[Shared], n: int
) -> list[Shared]:
    """Copy to each other row the values of the last of n rows before it; in the others' order."""
    return permutation.apply_inverse(
        [accumulate_rows(c) for c in permutation.apply(column_steps)], n
    )
