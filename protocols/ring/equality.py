"""Exact equality to 0 in a small ring: an AND over the bits of the masked value and its mask.

x = m - lam is 0 modulo 2^k where every bit of m equals that of lam. NOT (m_j ^ lam_j) is a private
bit already: masked, NOT m_j, is known to the evaluators and beta, lam_j, to the dealer. So an
equality is one AND of k bits, without a comparison: a tree of multi-input ANDs (ring/logic.py).
It is right for every value, while relational.equal needs a bit more than the values have.

Source: the one-hot tables of ABY2.0's comparisons (Patra et al., USENIX Security 2021) are
equivalent; the direct AND is this project's.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import compare, convert, logic
from tfe_bench.protocols.session import ops, tensor_ops
from tfe_bench.protocols.session.cost import words_for_bits
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import EvaluatorBits, MaskedBits, Shared

_LEVELS = 3
_SUPERBLOCK = 8  # words of one plane that are adjacent (kernels/core/lut.h)


@functools.cache
def plan_equality_and_tree(nodes: int, levels: int = _LEVELS) -> tuple[tuple[int, ...], ...]:
    """Return the group sizes of each level that AND `nodes` bits, for the fewest bits sent."""
    if nodes == 1:
        return ()
    candidates = []
    for radix in range(2, min(logic.MAX_AND_INPUTS, nodes) + 1):
        parts = -(-nodes // radix)
        if parts == 1 or levels > 1:
            small, larger_groups = divmod(nodes, parts)
            sizes = (small,) * (parts - larger_groups) + (small + 1,) * larger_groups
            candidates.append((sizes, *plan_equality_and_tree(parts, levels - 1)))
    # more nodes than this number of levels can join
    return (
        min(candidates, key=_count_tree_bits)
        if candidates
        else plan_equality_and_tree(nodes, levels + 1)
    )


def _count_tree_bits(levels: tuple[tuple[int, ...], ...]) -> int:
    return sum((1 << size) + 1 for sizes in levels for size in sizes)


def are_shares_all_zero(
    party: Party, values: Sequence[tuple[Shared, int]], bits: Sequence[MaskedBits] = ()
) -> MaskedBits:
    """Return [all of the values are 0, each modulo 2^k] AND all of the bits, element by element.

    Args:
        values: (x, k) with x of n elements, of a ring of k bits at least, one word.
        bits: n of each.

    Rounds: those of `plan_equality_and_tree`, 3 for up to 729 bits (4 total). Bits sent: for a
    group of r bits D 2^r - 1, E1, E2 1 each: 21 B for 32 bits.
    Raises:
        UsageError: no values, wide ones, other rings, dealers or sizes.
    """
    if not values:
        raise UsageError(
            "An equality expects at least one value. Received: none.",
            code="empty-input",
            operation="equality",
        )
    first, n = values[0][0], values[0][0].shape.num_elements()
    for x, k in values:
        if x.limbs != 1 or not 1 <= k <= x.ring_bits or x.dealer != first.dealer:
            raise UsageError(
                f"An equality of {k} bits expects words of one dealer. Received: {x!r}.",
                code="operand-mismatch",
                operation="equality",
                received=repr(x),
            )
        if n is None or x.shape.num_elements() != n:
            raise UsageError(
                f"An equality expects values of one known size. Received: {x!r}.",
                code="size-mismatch",
                operation="equality",
                received=repr(x),
            )
    rows = [_equality_bit_planes(party, x, k) for x, k in values]
    rows += [
        tensor_ops.reshape(b.beta if b.masked is None else b.masked, [1, words_for_bits(n)])
        for b in bits
    ]
    nodes = tensor_ops.concat(rows, 0)
    width = words_for_bits(n)
    for sizes in plan_equality_and_tree(int(nodes.shape[0])):
        nodes = _and_masked_bit_groups(party, nodes, sizes, width, first.dealer)
    result_words = tensor_ops.reshape(nodes, [width])
    if first.m is None:
        return MaskedBits(None, result_words, n, first.dealer, (n,))
    return MaskedBits(result_words, None, n, first.dealer, (n,))


def _and_masked_bit_groups(
    party: Party, nodes: Any, sizes: Sequence[int], width: int, dealer: int
) -> Any:
    """Return the ANDs of groups of rows [nodes, width], exchanged under masks: [groups, width]."""
    begin, shares = 0, []
    for size in sorted(set(sizes)):
        count = sizes.count(size)
        group = tensor_ops.strided_slice(nodes, np.s_[begin : begin + count * size])
        begin += count * size
        operands = tensor_ops.transpose(tensor_ops.reshape(group, [count, size, width]), [1, 0, 2])
        rows = tensor_ops.reshape(operands, [size, count * width])
        shares.append(
            logic.and_stacked_bit_rows(party, rows, size, 64 * count * width, dealer).share
        )
    held_share = None if shares[0] is None else tensor_ops.concat(shares, 0)
    masked_bits = convert.mask_bits(
        party, EvaluatorBits(held_share, None, 64 * len(sizes) * width, dealer)
    )
    packed_words = masked_bits.beta if masked_bits.masked is None else masked_bits.masked
    return tensor_ops.reshape(packed_words, [len(sizes), width])


def _equality_bit_planes(party: Party, x: Shared, k: int) -> Any:
    """Return bit planes [k, words]: of lam at the dealer, of NOT m at the evaluators. Local."""
    part = compare.masked_value_or_mask_words(party, x)
    n = int(part.shape[0])
    width = words_for_bits(n)
    if not tensor_ops.is_concrete(part):
        return part.like([k, width])
    blocked_planes = ops.module().tfe_bench_planes(x=part, bits=k)
    whole = width // _SUPERBLOCK * _SUPERBLOCK
    blocks = tensor_ops.reshape(
        tensor_ops.strided_slice(blocked_planes, np.s_[: whole * k]),
        [whole // _SUPERBLOCK, k, _SUPERBLOCK],
    )
    head = tensor_ops.reshape(tensor_ops.transpose(blocks, [1, 0, 2]), [k, whole])
    tail = tensor_ops.reshape(
        tensor_ops.strided_slice(blocked_planes, np.s_[whole * k :]), [k, width - whole]
    )
    planes = tensor_ops.concat([head, tail], 1)
    return planes if x.m is None else tensor_ops.invert(planes)
