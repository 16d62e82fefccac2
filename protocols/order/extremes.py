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
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.counting import Counting, Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

METHODS = ("auto", "tree", "all-pairs")
# An AND takes up to 9 bits, so a row of all-pairs has up to 10 values.
MOST_PAIRED: int = logic.MOST + 1
# Bits, over all three parties, that take as long as one more round: measured on one host, and
# 20 ms at 352 Mbit/s per host (PROTOCOLS: 7.04 Mbit for each of three).
ROUND_BITS = {"local": 3e6, "lan": 3e6, "wan": 21e6}


def choose(
    method: str, rows: int, width: int, profile: str = "local", bits: int = compare.EXACT_BITS
) -> str:
    """What "auto" stands for: all-pairs where the rounds it saves outweigh its traffic.

    Raises:
        UsageError: an unknown method or profile, or too many values for all-pairs.
    """
    check_choice("network profile", profile, ROUND_BITS)
    check_choice("method for the extremes of a row", method, METHODS)
    if method == "all-pairs" and width > MOST_PAIRED:
        raise UsageError(
            f"all-pairs takes up to {MOST_PAIRED} values per row. Received: {width}. "
            'Use "tree" or "auto".'
        )
    if method != "auto" or width > MOST_PAIRED or width < 3:
        return "tree" if method == "auto" else method
    columns = Private((width, rows))
    tree, paired = (cost_of(_found, columns, m, bits, None, False) for m in ("tree", "all-pairs"))
    saved = (tree.rounds - paired.rounds) * ROUND_BITS[profile]
    return "all-pairs" if paired.total - tree.total <= saved else "tree"


class AlongAxis(Protocol):
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


def _along_axis(name: str, smallest: bool, index: bool) -> AlongAxis:
    def extreme(
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
        where, rest = _axis(name, shape, axis, keepdims)
        if axis is None:
            shape = [math.prod(shape)]
            x = x.map(lambda a: local.reshape(a, [-1]))
        width, rows = shape[where], math.prod(n for i, n in enumerate(shape) if i != where)
        if width == 0:
            raise UsageError(f"{name} wants values along the axis. Received: shape {shape}.")
        order = [where, *(i for i in range(len(shape)) if i != where)]
        # One row per value, so that halves are contiguous.
        columns = x.map(lambda a: local.reshape(local.transpose(a, order), [width, rows]))
        chosen = choose(method, rows, width, profile, bits)
        found = _of_columns(party, columns, chosen, bits, exchanges, index, profile)
        y = found[1] if index else found[0]
        y = y.map(lambda a: local.reshape(a, rest))
        return arithmetic.neg(y) if smallest and not index else y

    extreme.__name__ = extreme.__qualname__ = name
    return extreme


reduce_max = _along_axis("reduce_max", smallest=False, index=False)
reduce_min = _along_axis("reduce_min", smallest=True, index=False)
# Of the first one: ring elements without a scale.
argmax = _along_axis("argmax", smallest=False, index=True)
argmin = _along_axis("argmin", smallest=True, index=True)


def _axis(name: str, shape: list[int], axis: int | None, keepdims: bool) -> tuple[int, list[int]]:
    """(the axis, the shape of the result)"""
    if axis is None:
        return 0, [1] * len(shape) if keepdims else []
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise UsageError(f"{name} wants an axis as an integer. Received: {axis!r}.")
    if not -len(shape) <= axis < len(shape):
        among = f"from {-len(shape)} to {len(shape) - 1}" if shape else "of a tensor with any"
        raise UsageError(f"{name} wants an axis {among}. Received: {axis} for shape {shape}.")
    axis %= len(shape)
    kept = [1 if i == axis else n for i, n in enumerate(shape)]
    return axis, kept if keepdims else shape[:axis] + shape[axis + 1 :]


def _of_columns(
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
        value = columns.map(lambda a: local.at(a, 0))
        return [value, replace(value.map(local.zeros_like), fractional_bits=0)]
    if profile == "wan" and rows >= 3:
        cost = cost_of(_found, Private((width, rows)), method, bits, exchanges, index)
        if rotation.worthwhile(cost, ROUND_BITS[profile]):
            return rotation.by_thirds(
                party,
                lambda part: _found(party, part, method, bits, exchanges, index),
                [columns],
                1,
            )
    return _found(party, columns, method, bits, exchanges, index)


def _found(
    party: Party, columns: Shared, method: str, bits: int, exchanges: int | None, index: bool
) -> list[Shared]:
    """The largest along the first axis of [width, rows], and with index where it is."""
    width, rows = (int(n) for n in columns.shape)
    if method == "tree":
        labels = shapes.expand_dims(arithmetic.public_range(columns, width), 1) if index else None
        found = labeled(party, columns, labels, bits, exchanges)
    else:
        hot = one_hot(party, columns, bits, exchanges)
        found = _picked(party, columns, hot, width, rows, index)
    return [each for each in found if each is not None]


def labeled(
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
    at = None
    if labels is not None:
        at = shapes.broadcast_to(labels, [width, rows])
    while width > 1:
        half = width // 2
        # neighbors, so that of equal values the one with the lower index wins
        even, odd = (
            x.map(lambda a, o=o, h=half: local.at(a, np.s_[o : 2 * h : 2])) for o in (0, 1)
        )
        d = arithmetic.sub(odd, even)
        below = convert.mask_bits(party, compare.msb(party, arithmetic.neg(d), bits, exchanges))
        won = arithmetic.add(even, convert.inject(party, below, d))
        x = _with_last(x, won, width)
        if at is not None:
            first, second = (
                at.map(lambda a, o=o, h=half: local.at(a, np.s_[o : 2 * h : 2])) for o in (0, 1)
            )
            moved = convert.inject(party, below, arithmetic.sub(second, first))
            at = _with_last(at, arithmetic.add(first, moved), width)
        width = (width + 1) // 2
    return x.map(lambda a: local.at(a, 0)), None if at is None else at.map(lambda a: local.at(a, 0))


def _with_last(x: Shared, won: Shared, width: int) -> Shared:
    """The winners, and the value that had no neighbor."""
    if width % 2 == 0:
        return won
    return shapes.concat([won, x.map(lambda a: local.at(a, np.s_[-1:]))], 0)


Rows: TypeAlias = "tuple[tuple[int, ...], ...]"


@dataclass(frozen=True)
class Duels:
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
    asked: Rows
    flips: Rows


@functools.cache
def duels(values: int) -> Duels:
    """The table of so many values."""
    pairs = tuple((i, j) for i in range(values) for j in range(i + 1, values))
    number = {pair: k for k, pair in enumerate(pairs)}
    rivals = tuple(tuple(k if k < i else k + 1 for i in range(values)) for k in range(values - 1))
    asked = tuple(tuple(number[min(i, j), max(i, j)] for i, j in enumerate(row)) for row in rivals)
    flips = tuple(tuple(int(j > i) for i, j in enumerate(row)) for row in rivals)
    return Duels(pairs, rivals, asked, flips)


def one_hot(
    party: Party, x: Shared, bits: int = compare.EXACT_BITS, exchanges: int | None = None
) -> MaskedBits:
    """[value j of row i is its row's first largest] for x [width, rows], order [width, rows].

    Compares all pairs, ANDs what each value says of the others, exchanges the result under a mask.
    Rounds: exchanges + 2 (+ 3 with dealing).
    """
    width, rows = (int(n) for n in x.shape.as_list())
    table = duels(width)
    left, right = ([p[k] for p in table.pairs] for k in (0, 1))
    d = arithmetic.sub(
        x.map(lambda a: local.gather(a, left)), x.map(lambda a: local.gather(a, right))
    )
    below = convert.mask_bits(party, compare.msb(party, d, bits, exchanges))
    ones = local.reshape(logic.unpacked(below), [len(table.pairs), rows])
    ones = local.gather(ones, table.asked)
    if below.masked is not None:
        ones = local.xor(ones, np.array(table.flips, np.int64)[..., None])
    n = width * rows
    packed = logic.packed(local.reshape(ones, [width - 1, n]))
    won = logic.all_of_rows(party, packed, width - 1, n, x.dealer)
    return convert.mask_bits(party, won)


def _picked(
    party: Party, x: Shared, hot: MaskedBits, width: int, rows: int, index: bool
) -> tuple[Shared, Shared | None]:
    """sum_j hot_j x_j, and sum_j hot_j j: each is exchanged as one."""
    value = pick(party, hot, x)
    if not index:
        return value, None
    if isinstance(party, Counting):
        return value, party.exchanged([rows], 64 * width * rows, hot)
    import tensorflow as tf

    s = party.site("index", width, dealer=x.dealer)
    y = convert.b2a_shares(s, hot, tf.constant([width, rows], tf.int64), 0, 0)
    if not s.is_dealer:
        y = tf.reduce_sum(y * tf.range(width, dtype=tf.int64)[:, None], axis=0)
    return value, masked.exchanged(s, y, tf.constant([rows], tf.int64), 1, 1)


def pick(party: Party, hot: MaskedBits, x: Shared) -> Shared:
    """sum_j hot_j x_j over the first axis of x [width, ...].

    Rounds: 1 (2 with dealing).  Bits sent: D 128 per element of x, E1, E2 64 per element of the
        result.
    """
    check_word("pick", x)
    convert.check_inject("pick", hot, x)
    if isinstance(party, Counting):
        dealt, scale = 128 * x.shape.num_elements(), x.fractional_bits
        return replace(party.exchanged(x.shape[1:], dealt, hot, x, scale=scale), bits=x.bits)
    s = party.site("pick", dealer=x.dealer)
    y = convert.inject_shares(s, hot, x, 0, 0)
    if not s.is_dealer:
        y = local.reduce_sum(y, axis=0)
    masked_bits = masked.exchanged(s, y, local.shape(x.any)[1:], 7, 2, scale=x.fractional_bits)
    return replace(masked_bits, bits=x.bits)


def of_full_range(party: Party, x: Shared, largest: bool) -> Shared:
    """The largest or the smallest of [n] integers of the whole 64-bit range, [1].

    Rounds: those of full_range.maximum, on each of the log2 levels of a tree.
    """
    of_two = full_range.maximum if largest else full_range.minimum
    while (n := int(x.shape[0])) > 1:
        a, b, rest = shapes.split(x, [n // 2, n // 2, n % 2], 0)
        won = of_two(party, a, b)
        x = shapes.concat([won, rest], 0) if n % 2 else won
    return x
