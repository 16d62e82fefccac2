"""A secret shuffle: Chida et al. 2019 (ePrint 2019/695), algorithm 9.

The permutation is the composition of three, each known to two parties, so no
party knows it.  Every row of a matrix gets permutations of its own: one for all
rows would reveal which rows have equal order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import masked
from tfe_bench.protocols.session import ops, wide
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.party import K1, K2, K3, Party
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    import tensorflow as tf

# Mask numbers of a column c: a0, a1 and the mask of the result.
_FIRST, _PER_COLUMN = 3, 3
MAX_COLUMNS = (256 - _FIRST) // _PER_COLUMN


def _permute(x: tf.Tensor, permutation: tf.Tensor) -> tf.Tensor:
    import tensorflow as tf

    shape = tf.shape(permutation, out_type=tf.int64)
    words = tf.reshape(x, tf.concat([shape, [-1]], axis=0))
    moved = ops.module().tfe_bench_permute(x=words, permutation=permutation)
    return tf.reshape(moved, tf.shape(x))


def shuffle(party: Party, columns: Sequence[Shared]) -> list[Shared]:
    """Permutes the elements of each row, all columns of a row alike.

    Args:
        columns: private tensors [rows, n] of one dealer (wide ones as [rows, n, 2] words).

    Rounds: 2.  Bits sent per 64-bit word: D 64, E1 64, E2 128.
    """
    if not columns or len(columns) > MAX_COLUMNS:
        raise UsageError(f"shuffle takes 1 to {MAX_COLUMNS} columns. Received: {len(columns)}.")
    dealer = columns[0].dealer
    if any(c.dealer != dealer for c in columns):
        raise UsageError("shuffle wants columns of one dealer.")
    if isinstance(party, Counting):
        w = sum(64 * c.any.shape.num_elements() for c in columns)
        party.sent(Cost(w, w, 2 * w, rounds=2, with_dealing=2), (), *columns)
        nothing = Cost(0, 0, 0, rounds=2, with_dealing=2)
        return [replace(c, m=party.sent(nothing, c.any.shape, *columns)) for c in columns]
    import tensorflow as tf

    s = party.site("shuffle", tuple(c.limbs for c in columns), dealer=dealer)
    rows_n = tf.shape(columns[0].any, out_type=tf.int64)[:2]
    p0 = None if s.is_e1 else s.permutation(K2, 0, rows_n)
    p1 = None if s.is_e2 else s.permutation(K1, 1, rows_n)
    p2 = None if s.is_dealer else s.permutation(K3, 2, rows_n)
    result = []
    for c, x in enumerate(columns):
        a0, a1, fresh = (_FIRST + _PER_COLUMN * c + i for i in range(3))
        plus, minus = ("add", "sub") if x.limbs == 1 else ("add128", "sub128")
        shape = tf.shape(x.any, out_type=tf.int64)
        y = None
        if s.is_dealer:
            both = x.l1 + x.l2 if x.limbs == 1 else wide.add(x.l1, x.l2)
            known = -both if x.limbs == 1 else wide.negate(both)
            inner = s.apply_mask(_permute(known, p0), K2, a0, minus, sent=False)
            s.send(s.apply_mask(_permute(inner, p1), K1, a1, minus), s.e2, 3 * c, run_ahead=True)
        elif s.is_e2:
            s.send(s.apply_mask(_permute(x.m, p0), K2, a0, plus), s.e1, 3 * c + 1)
            y = _permute(s.recv(shape, s.d, 3 * c), p2)
        else:
            gamma = s.recv(shape, s.e2, 3 * c + 1)
            y = _permute(s.apply_mask(_permute(gamma, p1), K1, a1, plus, sent=False), p2)
        scale, width = x.fractional_bits, 64 * x.limbs
        moved = masked.exchanged(s, y, shape, fresh, 3 * c + 2, scale=scale, width=width)
        result.append(replace(moved, bits=x.bits))
    return result
