"""Lookups in a table whose owner has placed its rows in bins, by an owner who knows which to ask.

A row with a key stands in one of three bins that the key hashes to (cuckoo hashing).  Who owns the
asking rows knows their bins: the order in which each bin is followed by those that ask for it is
its owner's to share, as a private permutation.  Columns of the bins move there as differences,
with zeros for who asks, are added up, and move back: no key is sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.order import sort
from tfe_bench.protocols.ring import arithmetic, shapes, small_ring
from tfe_bench.protocols.ring.checks import check_choice
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange, bits, expand, joins, keys
from tfe_bench.protocols.tables.arrange import PrivatePermutation, cached_graph
from tfe_bench.protocols.tables.relation import Relation

# Bins that each row asks.
REQUESTS_PER_ROW = 3
# Keys of fewer bits have room for one that is none.
_MAX_SHIFTED_BITS = 62


def permute_by_bins(party: Party, target: Shared) -> PrivatePermutation:
    """The order of bins and of who asks them.

    Rounds and bits: those of arrange.by_target, for numbers of log2 n bits.
    Raises:
        ProtocolError: target is no permutation, which must have been made sure of.
    """
    width = max(2, sort.index_bits(max(2, int(target.shape[0]))))
    return arrange.permute_by_target(party, small_ring.reduce_ring(target, width))


def lookup_hashed(
    party: Party,
    left: Relation,
    right: Relation,
    on: tuple[int, int],
    target: Shared,
    kind: str = "inner",
) -> Relation:
    """`joins.lookup` of one key, without a sort.

    Each row finds one match at most, whatever the bins hold and whichever are asked.

    Args:
        left: n rows.
        right: of unique keys, a row for each of b bins; those of empty ones are not valid.
        on: the column of left, and of right.
        target: [b + 3 n] of Z_2^64: where each bin stands, then where the first request of each
            of left's rows does, the second, and the third; a permutation, which must be a fact.

    Rounds: about 17.  Bits sent: for each of b + 3 n rows those of arrange.by_target for log2 of
    these, and two moves of right's columns; for each of left's rows three equalities, and three
    injections of each word of right's other columns.
    Raises:
        UsageError: another size of the permutation, columns of different kinds, an unknown kind.
    """
    check_choice("kind of join", kind, joins.KINDS, "lookup")
    n, bins = left.rows, right.rows
    if list(target.shape) != [bins + REQUESTS_PER_ROW * n] or target.ring_bits != 64:
        raise UsageError(
            f"A link of {n} rows and {bins} bins has {bins + REQUESTS_PER_ROW * n} places. "
            f"Received: {target!r}."
        )
    (left_key,), (right_key,) = joins.pair_keys([left, right], [on])
    width = max(left_key.bits, right_key.bits)
    valid = keys.exclude_nulls(party, left.valid, [left_key])
    bin_valid = keys.exclude_nulls(party, right.valid, [right_key])
    payload = joins.list_payload(right, [on], kind)
    key, bin_key = (replace(c.values, fractional_bits=0) for c in (left_key, right_key))
    has_empty_key = width < _MAX_SHIFTED_BITS and key.ring_bits == 64
    if has_empty_key:
        # keys from 1, and 0 in empty bins: a column less to move
        key, bin_key = (arithmetic.add_constant(c, np.int64(1)) for c in (key, bin_key))
        width += 1
    key, bin_key = keys.narrow_parts([(key, width), (bin_key, width)])
    if has_empty_key:
        bin_key = cached_graph(
            party, "marked bins", lambda u, c: bits.multiply_by_bit(party, u, c)
        )(bin_valid, bin_key)
    bin_columns = [bin_key, *([] if has_empty_key else [bin_valid]), *payload]
    permutation = permute_by_bins(party, target)

    def place_bins(*bin_columns: Shared) -> list[Shared]:
        return [expand.difference_rows(c, REQUESTS_PER_ROW * n) for c in bin_columns]

    def copy_bins(*permuted_columns: Shared) -> list[Shared]:
        return [expand.accumulate_rows(c) for c in permuted_columns]

    copied_columns = permutation.apply(
        cached_graph(party, "placed in bins", place_bins, n)(*bin_columns)
    )
    answered_columns = permutation.apply_inverse(
        cached_graph(party, "copied in bins", copy_bins)(*copied_columns), bins
    )

    def match_requests(
        key: Shared, valid: Shared, requested_key: Shared, *requested_columns: Shared
    ) -> list[Shared]:
        payload_columns = list(requested_columns)
        conditions = [_repeat_requests(valid), *([] if has_empty_key else [payload_columns.pop(0)])]
        is_match = keys.compare_keys(
            party, [_repeat_requests(key)], [requested_key], [width], conditions
        )
        first, second, third = _split_requests(is_match, n)
        # one of them at most, though an owner may have stored a key twice, or asked a bin twice
        second = bits.all_of(party, [second, bits.invert(first)])
        third = bits.all_of(party, [third, bits.invert(first), bits.invert(second)])
        unique_match = shapes.concat([first, second, third], 0)
        summed_columns = [
            _sum_requests(bits.multiply_by_bit(party, unique_match, c), n) for c in payload_columns
        ]
        return [_sum_requests(unique_match, n), *summed_columns]

    answers = cached_graph(party, "matched in bins", match_requests, n, has_empty_key, width)(
        key, valid, *answered_columns
    )
    return joins.build_join(party, left, right, [on], answers, kind)


def _repeat_requests(x: Shared) -> Shared:
    return x.map(lambda a: tensor_ops.tile(a, [REQUESTS_PER_ROW]))


def _split_requests(x: Shared, n: int) -> Sequence[Shared]:
    return [
        x.map(lambda a, i=i: tensor_ops.strided_slice(a, np.s_[i * n : (i + 1) * n]))
        for i in range(REQUESTS_PER_ROW)
    ]


def _sum_requests(x: Shared, n: int) -> Shared:
    first, *remaining = _split_requests(x, n)
    for other in remaining:
        first = arithmetic.add(first, other)
    return first
