"""The largest and smallest along an axis, and where they are.

`tree` halves the values level by level: w - 1 comparisons per row, ceil(log2 w) levels.
`all-pairs` compares every pair at once and finds the one that loses to nobody: w(w-1)/2
comparisons, one level.  Of equal values the first wins, as in TensorFlow.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import (
    arithmetic,
    compare,
    convert,
    full_range,
    logic,
    masked,
    rotation,
    shapes,
)
from tfe_bench.protocols.ring.checks import check_choice, check_ring, check_word
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.counting import CostParty, Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

METHODS = ("auto", "tree", "all-pairs")
# An AND takes up to 9 bits, so a row of all-pairs has up to 10 values.
MAX_PAIRED: int = logic.MAX_AND_INPUTS + 1
# Bits, over all three parties, that take as long as one more round: measured on one host, and
# 20 ms at 352 Mbit/s per host (PROTOCOLS: 7.04 Mbit for each of three).
ROUND_BITS = {"local": 3e6, "lan": 3e6, "wan": 21e6}


def choose_method(
    method: str, rows: int, width: int, profile: str = "local", bits: int = compare.EXACT_BITS
) -> str:
    """What "auto" stands for: all-pairs where the rounds it saves outweigh its traffic.

    Raises:
        UsageError: an unknown method or profile, or too many values for all-pairs.
    """
    check_choice("network profile", profile, ROUND_BITS)
    check_choice("method for the extremes of a row", method, METHODS)
    if method == "all-pairs" and width > MAX_PAIRED:
        raise UsageError(
            f"all-pairs takes up to {MAX_PAIRED} values per row. Received: {width}. "
            'Use "tree" or "auto".'
        )
    if method != "auto" or width > MAX_PAIRED or width < 3:
        return "tree" if method == "auto" else method
    columns = Private((width, rows))
    tree, paired = (
        cost_of(_find_extreme, columns, m, bits, None, False) for m in ("tree", "all-pairs")
    )
    saved = (tree.rounds - paired.rounds) * ROUND_BITS[profile]
    return "all-pairs" if paired.total - tree.total <= saved else "tree"


class AxisReduction(Protocol):
    """What is largest or smallest along an axis (None: of all; an index: 0).

    Args:
        bits: width of the comparisons: exact while differences fit it.
        method: "tree", "all-pairs" or "auto".
        profile: of the network.
        exchanges: of each comparison, 1 to 3; None as compare.recipe takes it.

    Rounds: those of a comparison and 2, on each of the log2 levels of a tree, or and 3 once.
    Raises:
        UsageError: a wrong axis, no values along it, an unknown method.
    """

    __name__: str

    def __call__(
        self,
        party: Party,
        x: Shared,
        axis: int | None = None,
        keepdims: bool = False,
        *,
        bits: int = ...,
        method: str = ...,
        profile: str = ...,
        exchanges: int | None = None,
    ) -> Shared: ...


def _make_reduction(name: str, smallest: bool, index: bool) -> AxisReduction:
    def reduce_axis(
        party: Party,
        x: Shared,
        axis: int | None = None,
        keepdims: bool = False,
        *,
        bits: int = compare.EXACT_BITS,
        method: str = "auto",
        profile: str = "local",
        exchanges: int | None = None,
    ) -> Shared:
        shape = check_ring(name, x, known=True).shape.as_list()
        if smallest:
            x = arithmetic.neg(x)
        if axis is None and index:
            axis = 0
        resolved_axis, result_shape = _resolve_axis(name, shape, axis, keepdims)
        if axis is None:
            shape = [math.prod(shape)]
            x = x.map(lambda a: tensor_ops.reshape(a, [-1]))
        width, rows = (
            shape[resolved_axis],
            math.prod(n for i, n in enumerate(shape) if i != resolved_axis),
        )
        if width == 0:
            raise UsageError(f"{name} wants values along the axis. Received: shape {shape}.")
        order = [resolved_axis, *(i for i in range(len(shape)) if i != resolved_axis)]
        # One row per value, so that halves are contiguous.
        columns = x.map(lambda a: tensor_ops.reshape(tensor_ops.transpose(a, order), [width, rows]))
        chosen_method = choose_method(method, rows, width, profile, bits)
        reduced = _reduce_columns(party, columns, chosen_method, bits, exchanges, index, profile)
        y = reduced[1] if index else reduced[0]
        y = y.map(lambda a: tensor_ops.reshape(a, result_shape))
        return arithmetic.neg(y) if smallest and not index else y

    reduce_axis.__name__ = reduce_axis.__qualname__ = name
    return reduce_axis


reduce_max = _make_reduction("reduce_max", smallest=False, index=False)
reduce_min = _make_reduction("reduce_min", smallest=True, index=False)
# Of the first one: ring elements without a scale.
argmax = _make_reduction("argmax", smallest=False, index=True)
argmin = _make_reduction("argmin", smallest=True, index=True)


def _resolve_axis(
    name: str, shape: list[int], axis: int | None, keepdims: bool
) -> tuple[int, list[int]]:
    """(the axis, the shape of the result)"""
    if axis is None:
        return 0, [1] * len(shape) if keepdims else []
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise UsageError(f"{name} wants an axis as an integer. Received: {axis!r}.")
    if not -len(shape) <= axis < len(shape):
        allowed = f"from {-len(shape)} to {len(shape) - 1}" if shape else "of a tensor with any"
        raise UsageError(f"{name} wants an axis {allowed}. Received: {axis} for shape {shape}.")
    axis %= len(shape)
    kept_shape = [1 if i == axis else n for i, n in enumerate(shape)]
    return axis, kept_shape if keepdims else shape[:axis] + shape[axis + 1 :]


def _reduce_columns(
    party: Party,
    columns: Shared,
    method: str,
    bits: int,
    exchanges: int | None,
    index: bool,
    profile: str,
) -> list[Shared]:
    """`_found`; each party deals for a third of the rows where the line is what is waited for."""
    width, rows = (int(n) for n in columns.shape)
    if rows == 0 or width == 1:
        value = columns.map(lambda a: tensor_ops.strided_slice(a, 0))
        return [value, replace(value.map(tensor_ops.zeros_like), fractional_bits=0)]
    if profile == "wan" and rows >= 3:
        cost = cost_of(_find_extreme, Private((width, rows)), method, bits, exchanges, index)
        if rotation.is_worthwhile(cost, ROUND_BITS[profile]):
            return rotation.compute_by_thirds(
                party,
                lambda part: _find_extreme(party, part, method, bits, exchanges, index),
                [columns],
                1,
            )
    return _find_extreme(party, columns, method, bits, exchanges, index)


def _find_extreme(
    party: Party, columns: Shared, method: str, bits: int, exchanges: int | None, index: bool
) -> list[Shared]:
    """The largest along the first axis of [width, rows], and with index where it is."""
    width, rows = (int(n) for n in columns.shape)
    if method == "tree":
        labels = (
            shapes.expand_dims(arithmetic.share_public_range(columns, width), 1) if index else None
        )
        extreme_and_index = reduce_labeled(party, columns, labels, bits, exchanges)
    else:
        hot = argmax_bits(party, columns, bits, exchanges)
        extreme_and_index = _select_with_index(party, columns, hot, width, rows, index)
    return [value for value in extreme_and_index if value is not None]


def reduce_labeled(
    party: Party,
    x: Shared,
    labels: Shared | None,
    bits: int = compare.EXACT_BITS,
    exchanges: int | None = None,
) -> tuple[Shared, Shared | None]:
    """The first largest along the first axis of [width, rows], and the label it has.

    Args:
        labels: public, as shares: [width, rows] or what broadcasts to it.

    Rounds and bits: those of a "tree".
    """
    width, rows = (int(n) for n in x.shape)
    label = None
    if labels is not None:
        label = shapes.broadcast_to(labels, [width, rows])
    while width > 1:
        half = width // 2
        # neighbors, so that of equal values the one with the lower index wins
        even, odd = (
            x.map(lambda a, o=o, h=half: tensor_ops.strided_slice(a, np.s_[o : 2 * h : 2]))
            for o in (0, 1)
        )
        d = arithmetic.sub(odd, even)
        below = convert.mask_bits(party, compare.msb(party, arithmetic.neg(d), bits, exchanges))
        winners = arithmetic.add(even, convert.inject(party, below, d))
        x = _append_unpaired(x, winners, width)
        if label is not None:
            first, second = (
                label.map(lambda a, o=o, h=half: tensor_ops.strided_slice(a, np.s_[o : 2 * h : 2]))
                for o in (0, 1)
            )
            label_change = convert.inject(party, below, arithmetic.sub(second, first))
            label = _append_unpaired(label, arithmetic.add(first, label_change), width)
        width = (width + 1) // 2
    return x.map(lambda a: tensor_ops.strided_slice(a, 0)), None if label is None else label.map(
        lambda a: tensor_ops.strided_slice(a, 0)
    )


def _append_unpaired(x: Shared, winners: Shared, width: int) -> Shared:
    """The winners, and the value that had no neighbor."""
    if width % 2 == 0:
        return winners
    return shapes.concat([winners, x.map(lambda a: tensor_ops.strided_slice(a, np.s_[-1:]))], 0)


Rows: TypeAlias = "tuple[tuple[int, ...], ...]"


@dataclass(frozen=True)
class PairTable:
    """Which pairs of values are compared to find the largest, and which of them each value asks.

    Attributes:
        pairs: (i, j) with i < j, compared as [x_i < x_j].
        rivals: [values - 1][values], the others of each value.
        asked, flips: of the same shape, the pair of a value and its rival, and 1 where its bit is
            to be inverted.  For a rival j > i value i must not be smaller, for j < i it must be
            larger: the first of equal values wins.
    """

    pairs: Rows
    rivals: Rows
    pair_indices: Rows
    flips: Rows


@functools.cache
def build_pair_table(values: int) -> PairTable:
    """The table of so many values."""
    pairs = tuple((i, j) for i in range(values) for j in range(i + 1, values))
    number = {pair: k for k, pair in enumerate(pairs)}
    rivals = tuple(tuple(k if k < i else k + 1 for i in range(values)) for k in range(values - 1))
    pair_indices = tuple(
        tuple(number[min(i, j), max(i, j)] for i, j in enumerate(row)) for row in rivals
    )
    flips = tuple(tuple(int(j > i) for i, j in enumerate(row)) for row in rivals)
    return PairTable(pairs, rivals, pair_indices, flips)


def argmax_bits(
    party: Party, x: Shared, bits: int = compare.EXACT_BITS, exchanges: int | None = None
) -> MaskedBits:
    """[value j of row i is its row's first largest] for x [width, rows], order [width, rows].

    Compares all pairs, ANDs what each value says of the others, exchanges the result under a mask.
    Rounds: exchanges + 2 (+ 3 with dealing).
    """
    width, rows = (int(n) for n in x.shape.as_list())
    table = build_pair_table(width)
    left, right = ([p[k] for p in table.pairs] for k in (0, 1))
    d = arithmetic.sub(
        x.map(lambda a: tensor_ops.gather(a, left)), x.map(lambda a: tensor_ops.gather(a, right))
    )
    below = convert.mask_bits(party, compare.msb(party, d, bits, exchanges))
    ones = tensor_ops.reshape(logic.unpack_bits(below), [len(table.pairs), rows])
    ones = tensor_ops.gather(ones, table.pair_indices)
    if below.masked is not None:
        ones = tensor_ops.xor(ones, np.array(table.flips, np.int64)[..., None])
    n = width * rows
    packed = logic.pack_bits(tensor_ops.reshape(ones, [width - 1, n]))
    winner_bits = logic.and_rows(party, packed, width - 1, n, x.dealer)
    return convert.mask_bits(party, winner_bits)


def _select_with_index(
    party: Party, x: Shared, hot: MaskedBits, width: int, rows: int, index: bool
) -> tuple[Shared, Shared | None]:
    """sum_j hot_j x_j, and sum_j hot_j j: each is exchanged as one."""
    value = sum_selected(party, hot, x)
    if not index:
        return value, None
    if isinstance(party, CostParty):
        return value, party.count_exchange([rows], 64 * width * rows, hot)
    import tensorflow as tf

    s = party.site("index", width, dealer=x.dealer)
    y = convert.b2a_shares(s, hot, tf.constant([width, rows], tf.int64), 0, 0)
    if not s.is_dealer:
        y = tf.reduce_sum(y * tf.range(width, dtype=tf.int64)[:, None], axis=0)
    return value, masked.exchange_masked(s, y, tf.constant([rows], tf.int64), 1, 1)


def sum_selected(party: Party, hot: MaskedBits, x: Shared) -> Shared:
    """sum_j hot_j x_j over the first axis of x [width, ...].

    Rounds: 1 (2 with dealing).  Bits sent: D 128 per element of x, E1, E2 64 per element of the
        result.
    """
    check_word("pick", x)
    convert.check_inject("pick", hot, x)
    if isinstance(party, CostParty):
        dealt, scale = 128 * x.shape.num_elements(), x.fractional_bits
        return replace(party.count_exchange(x.shape[1:], dealt, hot, x, scale=scale), bits=x.bits)
    s = party.site("pick", dealer=x.dealer)
    y = convert.inject_shares(s, hot, x, 0, 0)
    if not s.is_dealer:
        y = tensor_ops.reduce_sum(y, axis=0)
    masked_bits = masked.exchange_masked(
        s, y, tensor_ops.dynamic_shape(x.any)[1:], 7, 2, scale=x.fractional_bits
    )
    return replace(masked_bits, bits=x.bits)


def reduce_full_range(party: Party, x: Shared, largest: bool) -> Shared:
    """The largest or the smallest of [n] integers of the whole 64-bit range, [1].

    Rounds: those of full_range.maximum, on each of the log2 levels of a tree.
    """
    choose_of_two = full_range.maximum if largest else full_range.minimum
    while (n := int(x.shape[0])) > 1:
        a, b, rest = shapes.split(x, [n // 2, n // 2, n % 2], 0)
        winners = choose_of_two(party, a, b)
        x = shapes.concat([winners, rest], 0) if n % 2 else winners
    return x
