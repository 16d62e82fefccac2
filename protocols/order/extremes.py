"""Extremes along an axis, and their positions.

`tree` halves the values level by level: w - 1 comparisons per row, ceil(log2 w) levels.
`all-pairs` compares every pair at once and selects the value that loses no comparison: w(w-1)/2
comparisons, one level. Among equal values the first one wins, as in TensorFlow.
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
from tfe_bench.protocols.ring.checks import (
    check_choice,
    check_private_64bit_tensor,
    check_private_word_tensor,
)
from tfe_bench.protocols.session import slices, slots, tensor_ops
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

METHODS = ("auto", "tree", "all-pairs")
# An AND takes up to 9 bits, so a row of all-pairs has up to 10 values.
MAX_PAIRED: int = logic.MAX_AND_INPUTS + 1
# Bits sent by all three parties in the time of one round: measured on one host, and for 20 ms at
# 352 Mbit/s per host (PROTOCOLS: 7.04 Mbit for each of the three hosts).
ROUND_BITS = {"local": 3e6, "lan": 3e6, "wan": 21e6}


def choose_extreme_method(
    method: str, rows: int, width: int, profile: str = "local", bits: int = compare.EXACT_BITS
) -> str:
    """Resolve "auto": all-pairs where the saved rounds outweigh its additional traffic.

    Raises:
        UsageError: the method or profile is unknown, or all-pairs gets too many values.
    """
    check_choice("network profile", profile, ROUND_BITS)
    check_choice("method for the extremes of a row", method, METHODS)
    if method == "all-pairs" and width > MAX_PAIRED:
        raise UsageError(
            f"Expected up to {MAX_PAIRED} values per row for all-pairs. Received: "
            f'{width}. Use "tree" or "auto".',
            code="too-large",
            operation="all-pairs",
            received=width,
            expected=MAX_PAIRED,
        )
    if method != "auto" or width > MAX_PAIRED or width < 3:
        return "tree" if method == "auto" else method
    columns = Private((width, rows))
    tree, paired = (
        cost_of(_find_extreme, columns, m, bits, None, False) for m in ("tree", "all-pairs")
    )
    saved = (tree.rounds - paired.rounds) * ROUND_BITS[profile]
    return "all-pairs" if paired.total - tree.total <= saved else "tree"


class AxisExtreme(Protocol):
    """A reduction to an extreme value along an axis (None: of all values; an index: 0).

    Args:
        bits: width of the comparisons; the result is exact while differences fit it.
        method: "tree", "all-pairs" or "auto".
        profile: network profile.
        exchanges: per comparison, 1 to 3; None: the default of compare.plan_comparison.

    Rounds: for a tree those of a comparison and 2 on each of the log2 levels; for all-pairs those
    of one comparison and 3.
    Raises:
        UsageError: the axis is invalid, it has no values, or the method is unknown.
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


def _make_axis_extreme(name: str, smallest: bool, index: bool) -> AxisExtreme:
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
        shape = check_private_64bit_tensor(name, x, known=True).shape.as_list()
        if smallest:
            x = arithmetic.neg(x)
        if axis is None and index:
            axis = 0
        resolved_axis, result_shape = _resolve_extreme_axis(name, shape, axis, keepdims)
        if axis is None:
            shape = [math.prod(shape)]
            x = x.map(lambda a: tensor_ops.reshape(a, [-1]))
        width, rows = (
            shape[resolved_axis],
            math.prod(n for i, n in enumerate(shape) if i != resolved_axis),
        )
        if width == 0:
            raise UsageError(
                f"{name} expects at least one value along the axis. Received: shape {shape}.",
                code="empty-input",
                operation=name,
                received=shape,
            )
        if resolved_axis == len(shape) - 1:
            values, row_axis = x.map(lambda a: tensor_ops.reshape(a, [rows, width])), 0
        else:
            order = [resolved_axis, *(i for i in range(len(shape)) if i != resolved_axis)]
            values, row_axis = (
                x.map(lambda a: tensor_ops.reshape(tensor_ops.transpose(a, order), [width, rows])),
                1,
            )
        chosen_method = choose_extreme_method(method, rows, width, profile, bits)
        y = _find_extreme_of_rows(
            party, values, row_axis, chosen_method, bits, exchanges, index, profile
        )
        y = y.map(lambda a: tensor_ops.reshape(a, result_shape))
        return arithmetic.neg(y) if smallest and not index else y

    reduce_axis.__name__ = reduce_axis.__qualname__ = name
    return reduce_axis


reduce_max = _make_axis_extreme("reduce_max", smallest=False, index=False)
reduce_min = _make_axis_extreme("reduce_min", smallest=True, index=False)
# Positions of the first extreme value: ring elements without a scale.
argmax = _make_axis_extreme("argmax", smallest=False, index=True)
argmin = _make_axis_extreme("argmin", smallest=True, index=True)


def _resolve_extreme_axis(
    name: str, shape: list[int], axis: int | None, keepdims: bool
) -> tuple[int, list[int]]:
    """Return the axis and the shape of the result."""
    if axis is None:
        return 0, [1] * len(shape) if keepdims else []
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise UsageError(
            f"{name} expects an integer as axis. Received: {axis!r}.",
            code="not-an-integer",
            operation=name,
            received=axis,
        )
    if not -len(shape) <= axis < len(shape):
        allowed = f"from {-len(shape)} to {len(shape) - 1}" if shape else "of a tensor with any"
        raise UsageError(
            f"{name} expects an axis {allowed}. Received: {axis} for shape {shape}.",
            code="axis-out-of-range",
            operation=name,
            received=axis,
            expected=allowed,
        )
    axis %= len(shape)
    kept_shape = [1 if i == axis else n for i, n in enumerate(shape)]
    return axis, kept_shape if keepdims else shape[:axis] + shape[axis + 1 :]


def _find_extreme_of_rows(
    party: Party,
    values: Shared,
    row_axis: int,
    method: str,
    bits: int,
    exchanges: int | None,
    index: bool,
    profile: str,
) -> Shared:
    """Return the largest value of each row, or its position.

    If bandwidth-bound, each party deals for a third of the rows.

    Args:
        values: [rows, width], in slices of rows, or [width, rows].
        row_axis: the axis of the rows.
    """
    rows, width = (int(values.shape[i]) for i in (row_axis, 1 - row_axis))
    if rows == 0 or width == 1:
        value = values.map(lambda a: tensor_ops.reshape(a, [rows]))
        return replace(value.map(tensor_ops.zeros_like), fractional_bits=0) if index else value

    def find_in_columns(party: Party, columns: Shared) -> Shared:
        return _find_extreme(party, columns, method, bits, exchanges, index)[int(index)]

    def find_in_rows(party: Party, part: Shared) -> Shared:
        # One row per value, so that halves are contiguous.
        return find_in_columns(party, part.map(lambda a: tensor_ops.transpose(a, [1, 0])))

    def find_in_part(part: Shared) -> Shared:
        if row_axis == 1:
            return find_in_columns(party, part)
        return slices.map_slices(party, find_in_rows, [part], row_axes=1)

    if profile == "wan" and rows >= 3:
        cost = cost_of(_find_extreme, Private((width, rows)), method, bits, exchanges, index)
        if rotation.is_worthwhile(cost, ROUND_BITS[profile]):
            (extreme,) = rotation.compute_by_thirds(
                party, lambda part: [find_in_part(part)], [values], row_axis
            )
            return extreme
    return find_in_part(values)


def _find_extreme(
    party: Party, columns: Shared, method: str, bits: int, exchanges: int | None, index: bool
) -> list[Shared]:
    """Return the largest along the first axis of [width, rows], with index also its position."""
    width, rows = (int(n) for n in columns.shape)
    if method == "tree":
        labels = (
            shapes.expand_dims(arithmetic.share_public_range(columns, width), 1) if index else None
        )
        extreme_and_index = reduce_labeled(party, columns, labels, bits, exchanges)
    else:
        hot = argmax_bits(party, columns, bits, exchanges)
        extreme_and_index = _select_extreme_with_index(party, columns, hot, width, rows, index)
    return [value for value in extreme_and_index if value is not None]


def reduce_labeled(
    party: Party,
    x: Shared,
    labels: Shared | None,
    bits: int = compare.EXACT_BITS,
    exchanges: int | None = None,
) -> tuple[Shared, Shared | None]:
    """Return the first largest value along the first axis of [width, rows], and its label.

    Args:
        labels: public values held as shares: [width, rows], or a shape that broadcasts to it.

    Rounds and bits: those of a "tree".
    """
    width, rows = (int(n) for n in x.shape)
    label = None
    if labels is not None:
        label = shapes.broadcast_to(labels, [width, rows])
    while width > 1:
        half = width // 2
        # Neighbors are compared, so that the lower index wins among equal values.
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
    """Append the value that had no neighbor to the winners."""
    if width % 2 == 0:
        return winners
    return shapes.concat([winners, x.map(lambda a: tensor_ops.strided_slice(a, np.s_[-1:]))], 0)


Rows: TypeAlias = "tuple[tuple[int, ...], ...]"


@dataclass(frozen=True)
class AllPairsTable:
    """The pairs of values that all-pairs compares, and the pairs that decide about each value.

    Attributes:
        pairs: (i, j) with i < j, compared as [x_i < x_j].
        rivals: [values - 1][values], the other values for each value.
        pair_indices, flips: of the same shape, the pair of a value and its rival, and 1 where its
            bit is inverted. Value i must not be smaller than a rival j > i and must be larger than
            a rival j < i: the first of equal values wins.
    """

    pairs: Rows
    rivals: Rows
    pair_indices: Rows
    flips: Rows


@functools.cache
def build_all_pairs_table(values: int) -> AllPairsTable:
    """Build the table for a number of values."""
    pairs = tuple((i, j) for i in range(values) for j in range(i + 1, values))
    number = {pair: k for k, pair in enumerate(pairs)}
    rivals = tuple(tuple(k if k < i else k + 1 for i in range(values)) for k in range(values - 1))
    pair_indices = tuple(
        tuple(number[min(i, j), max(i, j)] for i, j in enumerate(row)) for row in rivals
    )
    flips = tuple(tuple(int(j > i) for i, j in enumerate(row)) for row in rivals)
    return AllPairsTable(pairs, rivals, pair_indices, flips)


def argmax_bits(
    party: Party, x: Shared, bits: int = compare.EXACT_BITS, exchanges: int | None = None
) -> MaskedBits:
    """Return [value j of row i is its row's first largest], [width, rows], for x [width, rows].

    Compares all pairs, ANDs the results for each value, exchanges the AND under a mask.
    Rounds: exchanges + 2 online, exchanges + 3 in total.
    """
    width, rows = (int(n) for n in x.shape.as_list())
    table = build_all_pairs_table(width)
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
    winner_bits = logic.and_stacked_bit_rows(party, packed, width - 1, n, x.dealer)
    return convert.mask_bits(party, winner_bits)


def _select_extreme_with_index(
    party: Party, x: Shared, hot: MaskedBits, width: int, rows: int, index: bool
) -> tuple[Shared, Shared | None]:
    """Return sum_j hot_j x_j and sum_j hot_j j; each sum is exchanged as one element per row."""
    value = sum_one_hot_selected(party, hot, x)
    if not index:
        return value, None
    s = party.site(
        "index",
        width,
        dealer=x.dealer,
        slots={0: slots.declare_dealt(), 1: slots.declare_exchanged()},
    )
    y = convert.b2a_shares(s, hot, [width, rows], 0, 0)
    if not s.is_dealer:
        y = tensor_ops.reduce_sum(y * np.arange(width, dtype=np.int64)[:, None], axis=0)
    return value, masked.exchange_masked(s, y, [rows], 1, 1)


def sum_one_hot_selected(party: Party, hot: MaskedBits, x: Shared) -> Shared:
    """Return sum_j hot_j x_j over the first axis of x [width, ...].

    Rounds: 1 online, 2 in total. Bits sent: D 128 per element of x, E1, E2 64 per element of the
    result.
    """
    check_private_word_tensor("pick", x)
    convert.check_inject("pick", hot, x)
    s = party.site(
        "pick",
        dealer=x.dealer,
        slots={**convert.list_injection_slots(), 2: slots.declare_exchanged()},
    )
    y = convert.inject_shares(s, hot, x, 0, 0)
    if not s.is_dealer:
        y = tensor_ops.reduce_sum(y, axis=0)
    masked_bits = masked.exchange_masked(
        s, y, tensor_ops.dynamic_shape(x.any)[1:], 7, 2, scale=x.fractional_bits
    )
    return replace(masked_bits, bits=x.bits)


def find_full_range_extreme(party: Party, x: Shared, largest: bool) -> Shared:
    """Return the largest or smallest of [n] integers of the whole 64-bit range, as [1].

    Rounds: those of full_range.maximum on each of the log2 levels of a tree.
    """
    choose_of_two = full_range.maximum if largest else full_range.minimum
    while (n := int(x.shape[0])) > 1:
        a, b, rest = shapes.split(x, [n // 2, n // 2, n % 2], 0)
        winners = choose_of_two(party, a, b)
        x = shapes.concat([winners, rest], 0) if n % 2 else winners
    return x
