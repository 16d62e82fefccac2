"""Normalisation: a private x > 0 becomes c in about [1/2, 1) and the power of two it lacks.

x is compared with powers of two ("cuts"), all at once; the comparisons' bits are nested, so that a
function that is linear on each segment between two cuts telescopes,

    h(x) = h_last(x) + sum_j [x < cut_j] (h_j(x) - h_{j+1}(x)),

into one sum of bit injections, opened together.  In two stages (groups of eight octaves, then one
octave) 62 octaves take 8 + 7 comparisons.

A comparison need not be exact at its cut, because the polynomial that follows is fitted to a
slightly wider interval: all but the RESOLUTION bits below the cut's first are dropped from m and
from lam without a message (the difference of the floors is the floor of the difference, or one
more), and what is left is compared in a small ring.

Nothing is revealed: every message is a dealt share or a masked opening.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions.normalize_plan import RING, Cut, Scheme, Stage, Table
from tfe_bench.protocols.functions.polynomial import opened_bits, truncation_open
from tfe_bench.protocols.ring import arithmetic, compare, convert
from tfe_bench.protocols.ring.truncation import deal_short
from tfe_bench.protocols.session import ops, sizes
from tfe_bench.protocols.session.cost import Cost, packed
from tfe_bench.protocols.session.party import Party, Site
from tfe_bench.protocols.session.sharing import EvaluatorBits, MaskedBits, Shared

# ---- local pieces


def _low(x: Any, width: int) -> Any:
    import tensorflow as tf

    return (
        x if width == RING else tf.bitwise.bitwise_and(x, tf.constant((1 << width) - 1, tf.int64))
    )


def _right(x: Any, bits: int) -> Any:
    """Logical shift of words by a public number of bits."""
    import tensorflow as tf

    if bits == 0:
        return x
    return tf.bitcast(tf.bitwise.right_shift(tf.bitcast(x, tf.uint64), bits), tf.int64)


def shifted(x: Shared, shift: int) -> Shared:
    """x * 2^shift, exactly, or x / 2^-shift in a smaller ring, off by less than 2.  Local."""
    import tensorflow as tf

    if shift >= 0:
        return x.map(lambda a: tf.bitwise.left_shift(a, tf.constant(shift, tf.int64)))
    ring = x.ring_bits
    return replace(x.map(lambda a: _right(_low(a, ring), -shift)), bits=ring + shift)


def _for_comparison(x: Shared, cut: Cut) -> Shared:
    """(x - cut) / 2^drop, floor or one more; only m and lam are there."""
    import tensorflow as tf

    ring, bits = x.ring_bits, x.ring_bits - cut.drop
    bits = 0 if bits == RING else bits
    if x.m is None:
        lam = _right(_low(x.l1 + x.l2, ring), cut.drop)
        return replace(x, l1=lam, l2=tf.zeros_like(lam), bits=bits)
    return replace(x, m=_right(_low(x.m, ring), cut.drop) - (cut.at >> cut.drop), bits=bits)


def _words_of(bits: EvaluatorBits) -> Any:
    return bits.top if bits.share is None else bits.share


def nested_bits(party: Party, x: Shared, stage: Stage) -> MaskedBits:
    """[x < cut] for every cut, each padded to whole words, opened under masks.

    Rounds and bits: `stage.cost`.
    """
    import tensorflow as tf

    found = [
        compare.msb(party, _for_comparison(x, cut), cut.bits, stage.openings, absorb=False)
        for cut in stage.cuts
    ]
    together = tf.concat([_words_of(b) for b in found], axis=0)
    n = tf.convert_to_tensor(sizes.size(together) * 64, tf.int64)
    if found[0].share is None:
        return convert.open_bits(party, EvaluatorBits(None, together, n, x.dealer))
    return convert.open_bits(party, EvaluatorBits(together, None, n, x.dealer))


# ---- sums of injections


class Chosen:
    """Telescoped sums over the bits of one stage, as unopened shares at the evaluators.

    Args:
        width: of the dealt bits: at least that of every sum taken.
        tensor, slot: number of the dealt mask and of its message.

    Bits sent: D width per cut and element, packed.
    """

    def __init__(
        self, s: Site, bits: MaskedBits, cuts: int, shape: Any, width: int, tensor: int, slot: int
    ) -> None:
        import tensorflow as tf

        self._s, self._shape, self._cuts = s, shape, cuts
        held = bits.beta if bits.opened is None else bits.opened
        flat = ops.module().tfe_bench_unpack_bits(words=held, n=bits.n)
        n = sizes.elements(shape)
        every = tf.reshape(tf.reshape(flat, [cuts, -1])[:, :n], self.stacked)
        self._known = every  # beta at D, the opened bit at the evaluators
        self._beta = deal_short(s, every, self.stacked, tensor, slot, width)

    @property
    def stacked(self) -> Any:
        """Shape with an axis of cuts before."""
        import tensorflow as tf

        return tf.concat([[self._cuts], self._shape], axis=0)

    def constants(self, values: Sequence[int]) -> Any:
        """Shares of the constant of x's segment.  No message."""
        import tensorflow as tf

        if self._s.is_dealer:
            return None
        steps = [_word(a - b) for a, b in itertools.pairwise(values)]
        total = tf.zeros(self._shape, tf.int64)
        for j, step in enumerate(steps):
            if step == 0:
                continue
            o = self._known[j]
            share = (1 - 2 * o) * self._beta[j]
            total += step * (share + o if self._s.is_e2 else share)
        return total + _word(values[-1]) if self._s.is_e2 else total

    def values(self, pieces: Sequence[Shared], width: int, tensor: int, slot: int) -> Any:
        """Shares mod 2^width of the piece of x's segment.

        With d_j = pieces[j] - pieces[j+1] it is pieces[-1] + sum_j b_j d_j (convert.inject).
        Bits sent: D width per cut and element, packed.
        """
        import tensorflow as tf

        s = self._s

        def stacked(name: str) -> Any:
            parts = [getattr(p, name) for p in pieces]
            return tf.stack([a - b for a, b in itertools.pairwise(parts)])

        if s.is_dealer:
            lam = stacked("l1") + stacked("l2")
            deal_short(s, self._known * lam, self.stacked, tensor, slot, width)
            return None
        products = deal_short(s, None, self.stacked, tensor, slot, width)
        last, m = pieces[-1], stacked("m")
        flipped = (1 - 2 * self._known) * (m * self._beta - products)
        if s.is_e1:
            return tf.reduce_sum(flipped - self._known * stacked("l1"), axis=0) - last.l1
        return tf.reduce_sum(flipped + self._known * (m - stacked("l2")), axis=0) + last.m - last.l2


def _word(a: int) -> int:
    """As a signed 64-bit word."""
    a &= 2**64 - 1
    return a - 2**64 if a >> 63 else a


def open_truncated(
    s: Site, share: Any, shape: Any, width: int, drop: int, tensor: int, slot: int, f: int = 0
) -> Shared:
    """Opens y / 2^drop, stochastically rounded, mod 2^(width - drop) (truncation T4).

    Bits sent: E1, E2 width - drop per element each, packed.
    """
    bits = width - drop
    m = None
    if not s.is_dealer:
        # floor at E1, ceil at E2
        rounded = share if s.is_e1 else share + ((1 << drop) - 1)
        m = truncation_open(s, _right(_low(rounded, width), drop), tensor, slot, bits)
    l1, l2 = s.new_mask(shape, tensor)
    return Shared(m, l1, l2, s.dealer, f, 1, 0 if bits == RING else bits)


def pieces_of(x: Shared, stage: Stage) -> list[Shared]:
    """The linear map of each segment, mod 2^width.  Local."""
    import tensorflow as tf

    found = []
    for segment in stage.segments:
        piece = x.map(lambda a: 0 * a)
        if segment.sign:
            piece = shifted(x if segment.sign > 0 else arithmetic.neg(x), segment.shift)
        if segment.constant:
            c = tf.constant(segment.constant, tf.int64)
            piece = replace(piece, m=None if piece.m is None else piece.m + c)
        found.append(replace(piece, bits=stage.width))
    return found


# ---- the whole


def normalize(
    party: Party, x: Shared, plan: Scheme, center: int, factor: Table
) -> tuple[Shared, Shared]:
    """(c * 2^units - center, factor of x's segment), both in small rings.

    x <= 0 gives c as for x = 1, and the factor of the segment of its own.

    Rounds: plan.rounds (cold one more).  Bits sent: `normalize_cost`.
    """
    import tensorflow as tf

    if x.limbs != 1 or x.ring_bits != RING:
        raise UsageError(f"This function works over Z_2^64. Received: {x!r}.")
    shape = tf.shape(x.any, out_type=tf.int64)
    x = replace(x, fractional_bits=0)
    before: MaskedBits | None = None
    running: Shared | None = None
    for i, stage in enumerate(plan.stages):
        bits = nested_bits(party, x, stage)
        final = i + 1 == len(plan.stages)
        s = party.site("normalize", stage, center, factor, dealer=x.dealer)
        cuts = len(stage.cuts)
        chosen = Chosen(s, bits, cuts, shape, max(stage.width, factor.width), 0, 0)
        y = chosen.values(pieces_of(x, stage), stage.width, 1, 1)
        u = None
        if factor.additive and final:
            u = chosen.constants(factor.stages[i])
            if before is not None:
                coarse = Chosen(s, before, len(plan.stages[0].cuts), shape, factor.width, 2, 2)
                more = coarse.constants(factor.stages[0])
                u = None if u is None else u + more
        elif not factor.additive and i == 0:
            u = chosen.constants(factor.stages[0])
        elif not factor.additive:
            assert running is not None
            scaled = [running.map(lambda a, c=c: a * c) for c in factor.stages[i]]
            u = chosen.values(scaled, factor.width, 2, 2)
        if final or not factor.additive:
            drop = factor.drop if final else 0
            running = open_truncated(s, u, shape, factor.width, drop, 3, 3)
        drop = plan.top - plan.units if final else 0
        x = open_truncated(s, y, shape, stage.width, drop, 4, 4)
        before = bits
    assert running is not None
    return replace(x, m=None if x.m is None else x.m - center), running


def normalize_cost(n: int, plan: Scheme, factor: Table) -> Cost:
    """Cost of `normalize` for n elements."""
    total = Cost(0, 0, 0, 0, 0)
    for i, stage in enumerate(plan.stages):
        final = i + 1 == len(plan.stages)
        cuts = len(stage.cuts)
        dealt = packed(n * cuts, max(stage.width, factor.width)) + packed(n * cuts, stage.width)
        if factor.additive and final and i:
            dealt += packed(n * len(plan.stages[0].cuts), factor.width)
        if not factor.additive and i:
            dealt += packed(n * cuts, factor.width)
        sent = opened_bits(n, stage.width - (plan.top - plan.units if final else 0))
        if final or not factor.additive:
            sent += opened_bits(n, factor.width - (factor.drop if final else 0))
        total = total.then(stage.cost(n)).then(Cost(dealt, sent, sent, 1, 2))
    return total
