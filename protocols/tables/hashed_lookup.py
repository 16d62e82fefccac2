"""Hashed lookup: one owner placed rows in hash bins, another owner knows the bins to look up.

A row with a key is in one of three bins that the key hashes to (cuckoo hashing). The owner of the
requesting rows knows their bins. That owner shares a private permutation in which each bin is
followed by its requests. Bin columns move to that order as differences, with zeros for requests,
are accumulated, and move back: no key is sorted.
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

# Bins that each row looks up.
REQUESTS_PER_ROW = 3
# Keys of fewer bits have room for a value that marks empty bins.
_MAX_SHIFTED_BITS = 62


def permute_by_bins(party: Party, target: Shared) -> PrivatePermutation:
    """Return the permutation of bins and their requests.

    Rounds and bits: those of arrange.permute_by_target, for numbers of log2 n bits.
    Raises:
        ProtocolError: target is not a permutation, which the caller must have checked.
    """
    width = max(2, sort.sort_index_bits(max(2, int(target.shape[0]))))
    return arrange.permute_by_target(party, small_ring.reduce_ring(target, width))


def lookup_hashed(
    party: Party,
    left: Relation,
    right: Relation,
    on: tuple[int, int],
    target: Shared,
    kind: str = "inner",
) -> Relation:
    """Run `joins.lookup_join` on one key without a sort.

    Each row finds at most one match, whatever the bins hold and whichever are looked up.

    Args:
        left: n rows.
        right: with unique keys, one row for each of b bins; rows of empty bins are not valid.
        on: the column of left, and of right.
        target: [b + 3 n] of Z_2^64: the target of each bin, then the target of the first request of
            each left row, of the second, and of the third. It must be a permutation.

    Rounds: about 17. Bits sent: for each of b + 3 n rows those of arrange.permute_by_target for
    log2 of these, and two moves of right's columns; for each left row three equalities, and three
    injections of each word of right's other columns.
    Raises:
        UsageError: another size of the permutation, columns of different types, an unknown kind.
    """
    check_choice("kind of join", kind, joins.KINDS, "lookup")
    n, bins = left.rows, right.rows
    if list(target.shape) != [bins + REQUESTS_PER_ROW * n] or target.ring_bits != 64:
        raise UsageError(
            f"Expected {bins + REQUESTS_PER_ROW * n} targets for {n} rows and {bins} "
            f"bins. Received: {target!r}.",
            code="shape-mismatch",
            operation="lookup",
            received=repr(target),
            expected=bins + REQUESTS_PER_ROW * n,
        )
    (left_key,), (right_key,) = joins.pair_join_keys([left, right], [on])
    width = max(left_key.bits, right_key.bits)
    valid = keys.exclude_nulls(party, left.valid, [left_key])
    bin_valid = keys.exclude_nulls(party, right.valid, [right_key])
    payload = joins.list_join_payload(right, [on], kind)
    key, bin_key = (replace(c.values, fractional_bits=0) for c in (left_key, right_key))
    has_empty_key = width < _MAX_SHIFTED_BITS and key.ring_bits == 64
    if has_empty_key:
        # Keys begin at 1, and 0 marks an empty bin: one column less to move.
        key, bin_key = (arithmetic.add_constant(c, np.int64(1)) for c in (key, bin_key))
        width += 1
    key, bin_key = keys.narrow_key_parts([(key, width), (bin_key, width)])
    if has_empty_key:
        bin_key = cached_graph(
            party, "marked bins", lambda u, c: bits.multiply_by_bit(party, u, c)
        )(bin_valid, bin_key)
    bin_columns = [bin_key, *([] if has_empty_key else [bin_valid]), *payload]
    permutation = permute_by_bins(party, target)

    def place_hash_bins(*bin_columns: Shared) -> list[Shared]:
        return [expand.subtract_previous_rows(c, REQUESTS_PER_ROW * n) for c in bin_columns]

    def copy_hash_bins(*permuted_columns: Shared) -> list[Shared]:
        return [expand.accumulate_rows(c) for c in permuted_columns]

    copied_columns = permutation.apply(
        cached_graph(party, "placed in bins", place_hash_bins, n)(*bin_columns)
    )
    answered_columns = permutation.apply_inverse(
        cached_graph(party, "copied in bins", copy_hash_bins)(*copied_columns), bins
    )

    def match_hash_requests(
        key: Shared, valid: Shared, requested_key: Shared, *requested_columns: Shared
    ) -> list[Shared]:
        payload_columns = list(requested_columns)
        conditions = [
            _repeat_hash_requests(valid),
            *([] if has_empty_key else [payload_columns.pop(0)]),
        ]
        is_match = keys.compare_keys(
            party, [_repeat_hash_requests(key)], [requested_key], [width], conditions
        )
        first, second, third = _split_hash_requests(is_match, n)
        # At most one of them matches, even if an owner stored a key twice or looked up a bin twice.
        second = bits.all_of(party, [second, bits.invert(first)])
        third = bits.all_of(party, [third, bits.invert(first), bits.invert(second)])
        unique_match = shapes.concat([first, second, third], 0)
        summed_columns = [
            _sum_hash_request_answers(bits.multiply_by_bit(party, unique_match, c), n)
            for c in payload_columns
        ]
        return [_sum_hash_request_answers(unique_match, n), *summed_columns]

    answers = cached_graph(party, "matched in bins", match_hash_requests, n, has_empty_key, width)(
        key, valid, *answered_columns
    )
    return joins.build_join(party, left, right, [on], answers, kind)


def _repeat_hash_requests(x: Shared) -> Shared:
    return x.map(lambda a: tensor_ops.tile(a, [REQUESTS_PER_ROW]))


def _split_hash_requests(x: Shared, n: int) -> Sequence[Shared]:
    return [
        x.map(lambda a, i=i: tensor_ops.strided_slice(a, np.s_[i * n : (i + 1) * n]))
        for i in range(REQUESTS_PER_ROW)
    ]


def _sum_hash_request_answers(x: Shared, n: int) -> Shared:
    first, *remaining = _split_hash_requests(x, n)
    for other in remaining:
        first = arithmetic.add(first, other)
    return first
