"""The largest and smallest along an axis, and where they are.

`tree` halves the values level by level: w - 1 comparisons per row, ceil(log2 w) levels.
`all-pairs` compares every pair at once and finds the one that loses to nobody: w(w-1)/2
comparisons, one level.  Of equal values the first wins, as in TensorFlow.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic, rotation, shapes
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import Counting, Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

METHODS = ("auto", "tree", "all-pairs")
# An AND takes up to 9 bits, so a row of all-pairs has up to 10 values.
MOST_PAIRED = logic.MOST + 1
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
    if profile not in ROUND_BITS:
        raise UsageError(
            f"Unknown network profile. Received: {profile!r}."
            f"{did_you_mean(str(profile), ROUND_BITS)} Known: {', '.join(ROUND_BITS)}."
        )
    if method not in METHODS:
        raise UsageError(
            f"Unknown method for the extremes of a row. Received: {method!r}."
            f"{did_you_mean(str(method), METHODS)} Known: {', '.join(METHODS)}."
        )
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


def reduce_max(
    party: Party,
    x: Shared,
    axis: int | None = None,
    keepdims: bool = False,
    *,
    bits: int = compare.EXACT_BITS,
    method: str = "auto",
    profile: str = "local",
    openings: int | None = None,
) -> Shared:
    """The largest value along an axis (None: of all); exact while differences fit `bits` bits.

    Args:
        bits: width of the comparisons.
        openings: of each comparison, 1 to 3; None as compare.recipe takes it.

    Rounds: those of a comparison and 2, on each of the log2 levels of a tree, or and 3 once.
    Raises:
        UsageError: a wrong axis, no values along it, an unknown method.
    """
    return _extreme(party, "reduce_max", x, axis, keepdims, bits, method, profile, openings, False)[
        0
    ]


def reduce_min(
    party: Party,
    x: Shared,
    axis: int | None = None,
    keepdims: bool = False,
    *,
    bits: int = compare.EXACT_BITS,
    method: str = "auto",
    profile: str = "local",
    openings: int | None = None,
) -> Shared:
    """The smallest value along an axis; as `reduce_max`."""
    _static("reduce_min", x)
    y = _extreme(
        party,
        "reduce_min",
        arithmetic.neg(x),
        axis,
        keepdims,
        bits,
        method,
        profile,
        openings,
        False,
    )[0]
    return arithmetic.neg(y)


def argmax(
    party: Party,
    x: Shared,
    axis: int | None = None,
    *,
    bits: int = compare.EXACT_BITS,
    method: str = "auto",
    profile: str = "local",
    openings: int | None = None,
) -> Shared:
    """Index of the first largest value along an axis (None: 0), ring elements without a scale.

    Rounds: those of `reduce_max`.
    """
    return _arg(party, "argmax", x, axis, bits, method, profile, openings)


def _arg(
    party: Party,
    name: str,
    x: Shared,
    axis: int | None,
    bits: int,
    method: str,
    profile: str,
    openings: int | None,
) -> Shared:
    axis = 0 if axis is None else axis
    index = _extreme(party, name, x, axis, False, bits, method, profile, openings, True)[1]
    assert index is not None
    return index


def argmin(
    party: Party,
    x: Shared,
    axis: int | None = None,
    *,
    bits: int = compare.EXACT_BITS,
    method: str = "auto",
    profile: str = "local",
    openings: int | None = None,
) -> Shared:
    """Index of the first smallest value along an axis; as `argmax`."""
    _static("argmin", x)
    return _arg(party, "argmin", arithmetic.neg(x), axis, bits, method, profile, openings)


def _extreme(
    party: Party,
    name: str,
    x: Shared,
    axis: int | None,
    keepdims: bool,
    bits: int,
    method: str,
    profile: str,
    openings: int | None,
    index: bool,
) -> tuple[Shared, Shared | None]:
    shape = _static(name, x)
    if axis is None:
        where = 0
        rest = [1] * len(shape) if keepdims else []
        x = x.map(lambda a: local.reshape(a, [-1]))
        shape = [math.prod(shape)]
    else:
        if isinstance(axis, bool) or not isinstance(axis, int):
            raise UsageError(f"{name} wants an axis as an integer. Received: {axis!r}.")
        if not -len(shape) <= axis < len(shape):
            among = f"from {-len(shape)} to {len(shape) - 1}" if shape else "of a tensor with any"
            raise UsageError(f"{name} wants an axis {among}. Received: {axis} for shape {shape}.")
        where = axis % len(shape)
        rest = [1 if i == where else n for i, n in enumerate(shape)]
        rest = rest if keepdims else [n for i, n in enumerate(shape) if i != where]
    width = shape[where]
    if width == 0:
        raise UsageError(f"{name} wants values along the axis. Received: shape {shape}.")
    order = [where, *(i for i in range(len(shape)) if i != where)]
    rows = math.prod(n for i, n in enumerate(shape) if i != where)
    # One row per value, so that halves are contiguous.
    columns = x.map(lambda a: local.reshape(local.transpose(a, order), [width, rows]))
    chosen = choose(method, rows, width, profile, bits)
    if rows == 0 or width == 1:
        value = columns.map(lambda a: a[0])
        where_is: Shared | None = value.map(local.zeros_like)
        where_is = replace(where_is, fractional_bits=0) if where_is is not None else None
    else:

        def whole(part: Shared) -> list[Shared]:
            return _found(party, part, chosen, bits, openings, index)

        if _rotated(rows, width, chosen, bits, openings, index, profile):
            results = rotation.by_thirds(party, whole, [columns], axis=1)
        else:
            results = whole(columns)
        value, where_is = results[0], results[1] if index else None
    final = value.map(lambda a: local.reshape(a, rest))
    return final, None if where_is is None else where_is.map(lambda a: local.reshape(a, rest))


def _found(
    party: Party, columns: Shared, method: str, bits: int, openings: int | None, index: bool
) -> list[Shared]:
    """The largest along the first axis of [width, rows], and with index where it is."""
    width, rows = (int(n) for n in columns.shape)
    if method == "tree":
        found = _tree(party, columns, width, rows, bits, openings, index)
    else:
        hot = one_hot(party, columns, bits, openings)
        found = _picked(party, columns, hot, width, rows, index)
    return [each for each in found if each is not None]


def _rotated(
    rows: int,
    width: int,
    method: str,
    bits: int,
    openings: int | None,
    index: bool,
    profile: str,
) -> bool:
    """Whether each party deals for a third of the rows: where the line is what is waited for."""
    if profile != "wan" or rows < 3:
        return False
    cost = cost_of(_found, Private((width, rows)), method, bits, openings, index)
    return rotation.worthwhile(cost, ROUND_BITS[profile])


def _static(name: str, x: Shared) -> list[int]:
    if not isinstance(x, Shared):
        raise UsageError(f"{name} wants a private tensor. Received: {type(x).__name__}.")
    if x.limbs != 1 or x.ring_bits != 64:
        raise UsageError(f"{name} works over Z_2^64. Received: {x!r}.")
    if x.shape.rank is None or None in x.shape.as_list():
        raise UsageError(f"{name} wants a known shape. Received: {x.shape}.")
    return [int(n) for n in x.shape.as_list()]


def _tree(
    party: Party, x: Shared, width: int, rows: int, bits: int, openings: int | None, index: bool
) -> tuple[Shared, Shared | None]:
    at = None
    if index:
        positions = np.arange(width, dtype=np.int64)[:, None]
        at = shapes.broadcast_to(arithmetic.public(x, positions), [width, rows])
    while width > 1:
        half = width // 2
        # neighbours, so that of equal values the one with the lower index wins
        even, odd = (x.map(lambda a, o=o, h=half: a[o : 2 * h : 2]) for o in (0, 1))
        d = arithmetic.sub(odd, even)
        below = convert.open_bits(party, compare.msb(party, arithmetic.neg(d), bits, openings))
        won = arithmetic.add(even, convert.inject(party, below, d))
        x = _with_last(x, won, width)
        if at is not None:
            first, second = (at.map(lambda a, o=o, h=half: a[o : 2 * h : 2]) for o in (0, 1))
            moved = convert.inject(party, below, arithmetic.sub(second, first))
            at = _with_last(at, arithmetic.add(first, moved), width)
        width = (width + 1) // 2
    return x.map(lambda a: a[0]), None if at is None else at.map(lambda a: a[0])


def _with_last(x: Shared, won: Shared, width: int) -> Shared:
    """The winners, and the value that had no neighbour."""
    if width % 2 == 0:
        return won
    return shapes.concat([won, x.map(lambda a: a[-1:])], 0)


def one_hot(
    party: Party, x: Shared, bits: int = compare.EXACT_BITS, openings: int | None = None
) -> MaskedBits:
    """[value j of row i is its row's first largest] for x [width, rows], order [width, rows].

    Compares all pairs, ANDs what each value says of the others, opens the result under a mask.
    Rounds: openings + 2 (cold + 3).
    """
    width, rows = (int(n) for n in x.shape.as_list())
    pairs = [(i, j) for i in range(width) for j in range(i + 1, width)]
    left, right = ([p[k] for p in pairs] for k in (0, 1))
    below = convert.open_bits(  # x_i < x_j for i < j
        party,
        compare.msb(
            party,
            arithmetic.sub(
                x.map(lambda a: local.gather(a, left)), x.map(lambda a: local.gather(a, right))
            ),
            bits,
            openings,
        ),
    )
    number = {pair: k for k, pair in enumerate(pairs)}
    rivals = [[k if k < i else k + 1 for i in range(width)] for k in range(width - 1)]
    of_pair = [[number[min(i, j), max(i, j)] for i, j in enumerate(row)] for row in rivals]
    ones = local.gather(local.reshape(logic.unpacked(below), [len(pairs), rows]), of_pair)
    if below.opened is not None:
        # For j > i value i must not be smaller: NOT [x_i < x_j].  For j < i it must be larger,
        # [x_j < x_i]: the first of equal values wins.
        flips = [[[int(j > i)] for i, j in enumerate(row)] for row in rivals]
        ones = local.xor(ones, np.array(flips, np.int64))
    n = width * rows
    packed = logic.packed(local.reshape(ones, [width - 1, n]))
    won = logic.all_of_rows(party, packed, width - 1, n, x.dealer)
    return convert.open_bits(party, won)


def _picked(
    party: Party, x: Shared, hot: MaskedBits, width: int, rows: int, index: bool
) -> tuple[Shared, Shared | None]:
    """sum_j hot_j x_j, and sum_j hot_j j: each opens as one."""
    value = pick(party, hot, x)
    if not index:
        return value, None
    if isinstance(party, Counting):
        cost = Cost(64 * width * rows, 64 * rows, 64 * rows, rounds=1, cold=2)
        return value, Shared(party.sent(cost, [rows], hot), None, None, x.dealer)
    import tensorflow as tf

    s = party.site("index", width, dealer=x.dealer)
    y = convert.b2a_shares(s, hot, tf.constant([width, rows], tf.int64), 0, 0)
    shape = tf.constant([rows], tf.int64)
    m = None
    if not s.is_dealer:
        positions = tf.range(width, dtype=tf.int64)[:, None]
        m = s.open_mask(tf.reduce_sum(y * positions, axis=0), 1, 1)
    l1, l2 = s.new_mask(shape, 1)
    return value, Shared(m, l1, l2, x.dealer)


def pick(party: Party, hot: MaskedBits, x: Shared) -> Shared:
    """sum_j hot_j x_j over the first axis of x [width, ...].

    Rounds: 1 (cold 2).  Bits sent: D 128 per element of x, E1, E2 64 per element of the result.
    """
    if not isinstance(x, Shared) or x.limbs != 1:
        raise UsageError(f"pick works on private 64-bit words. Received: {x!r}.")
    convert.check_inject("pick", hot, x)
    if isinstance(party, Counting):
        rest = x.shape[1:]
        opened = 64 * rest.num_elements()
        cost = Cost(128 * x.shape.num_elements(), opened, opened, rounds=1, cold=2)
        return replace(x, m=party.sent(cost, rest, hot, x))
    import tensorflow as tf

    s = party.site("pick", dealer=x.dealer)
    y = convert.inject_shares(s, hot, x, 0, 0)
    m = None if s.is_dealer else s.open_mask(tf.reduce_sum(y, axis=0), 7, 2)
    l1, l2 = s.new_mask(tf.shape(x.any, out_type=tf.int64)[1:], 7)
    return replace(x, m=m, l1=l1, l2=l2)
