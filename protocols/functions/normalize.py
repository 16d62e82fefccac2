"""Normalization: a private x > 0 becomes c in about [1/2, 1) and the power of two it lacks.

x is compared with powers of two ("cuts"), all at once; the comparisons' bits are nested, so that a
function that is linear on each segment between two cuts telescopes,

    h(x) = h_last(x) + sum_j [x < cut_j] (h_j(x) - h_{j+1}(x)),

into one sum of bit injections, exchanged together.  In two stages (groups of eight binades, then
one binade) 62 binades take 8 + 7 comparisons.

A comparison need not be exact at its cut, because the polynomial that follows is fitted to a
slightly wider interval: all but the RESOLUTION bits below the cut's first are dropped from m and
from lam without a message (the difference of the floors is the floor of the difference, or one
more), and what is left is compared in a small ring.

Nothing is revealed: every message is a dealt share or a masked exchange.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tfe_bench.protocols.functions.exp_one_round import word
from tfe_bench.protocols.functions.normalize_plan import RING, Cut, Scheme, Stage, Table
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic, masked
from tfe_bench.protocols.ring.checks import check_ring
from tfe_bench.protocols.session import local, sizes
from tfe_bench.protocols.session.cost import Cost, packed
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.party import Party, Site
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

# ---- local pieces


def shifted(x: Shared, shift: int) -> Shared:
    """x * 2^shift, exactly, or x / 2^-shift in a smaller ring, off by less than 2.  Local."""
    if shift >= 0:
        return x.map(lambda a: local.left_shift(a, shift))
    ring = x.ring_bits
    kept = x.map(lambda a: local.logical_shift(local.low_bits(a, ring), -shift))
    return replace(kept, bits=ring + shift)


def _for_comparison(x: Shared, cut: Cut) -> Shared:
    """(x - cut) / 2^drop, floor or one more; only m and lam are there."""
    ring, bits = x.ring_bits, x.ring_bits - cut.drop
    bits = 0 if bits == RING else bits
    if x.m is None:
        lam = local.logical_shift(local.low_bits(x.l1 + x.l2, ring), cut.drop)
        return replace(x, l1=lam, l2=local.zeros_like(lam), bits=bits)
    m = local.logical_shift(local.low_bits(x.m, ring), cut.drop)
    return replace(x, m=m - (cut.at >> cut.drop), bits=bits)


def nested_bits(party: Party, x: Shared, stage: Stage) -> MaskedBits:
    """[x < cut] for every cut, each padded to whole words, exchanged under masks.

    Rounds: stage.exchanges + 1 (one more with dealing).  Bits sent: those of compare.msb and of
        mask_bits.
    """
    found = [
        compare.msb(party, _for_comparison(x, cut), cut.bits, stage.exchanges, absorb=False)
        for cut in stage.cuts
    ]
    return convert.mask_each(party, found)


# ---- sums of injections


class Chosen:
    """Telescoped sums over the bits of one stage, as shares at the evaluators.

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
        flat = logic.unpacked(bits)
        n = sizes.elements(shape)
        every = tf.reshape(tf.reshape(flat, [cuts, -1])[:, :n], self.stacked)
        self._known = every  # beta at D, the masked bit at the evaluators
        self._beta = masked.deal(s, every, self.stacked, tensor, slot, width)

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
        steps = [word(a - b) for a, b in itertools.pairwise(values)]
        total = tf.zeros(self._shape, tf.int64)
        for j, step in enumerate(steps):
            if step == 0:
                continue
            o = self._known[j]
            share = (1 - 2 * o) * self._beta[j]
            total += step * (share + o if self._s.is_e2 else share)
        return total + word(values[-1]) if self._s.is_e2 else total

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
            masked.deal(s, self._known * lam, self.stacked, tensor, slot, width)
            return None
        products = masked.deal(s, None, self.stacked, tensor, slot, width)
        last, m = pieces[-1], stacked("m")
        flipped = (1 - 2 * self._known) * (m * self._beta - products)
        if s.is_e1:
            return tf.reduce_sum(flipped - self._known * stacked("l1"), axis=0) - last.l1
        return tf.reduce_sum(flipped + self._known * (m - stacked("l2")), axis=0) + last.m - last.l2


def pieces_of(x: Shared, stage: Stage) -> list[Shared]:
    """The linear map of each segment, mod 2^width.  Local."""
    found = []
    for segment in stage.segments:
        piece = x.map(lambda a: 0 * a)
        if segment.sign:
            piece = shifted(x if segment.sign > 0 else arithmetic.neg(x), segment.shift)
        if segment.constant:
            piece = arithmetic.moved(piece, segment.constant)
        found.append(replace(piece, bits=stage.width))
    return found


# ---- the whole


def normalize(
    party: Party, x: Shared, plan: Scheme, center: int, factor: Table
) -> tuple[Shared, Shared]:
    """(c * 2^units - center, factor of x's segment), both in small rings.

    x <= 0 gives c as for x = 1, and the factor of the segment of its own.

    Rounds: plan.rounds (one more with dealing).  Bits sent: those of `nested_bits` and
        `_selected_cost`.
    """
    check_ring("This function", x)
    shape = local.shape(x.any)
    x = replace(x, fractional_bits=0)
    before: MaskedBits | None = None
    running: Shared | None = None
    for i, stage in enumerate(plan.stages):
        bits = nested_bits(party, x, stage)
        final = i + 1 == len(plan.stages)
        narrowed = plan.top - plan.units if final else 0
        kept = factor.drop if final else 0
        cuts = len(stage.cuts)
        if isinstance(party, Counting):
            cost = _selected_cost(sizes.size(x.any), plan, i, factor)
            m = party.sent(cost, shape, x, bits, before, running)
            if final or not factor.additive:
                running = _counted(m, x.dealer, factor.width - kept)
            x, before = _counted(m, x.dealer, stage.width - narrowed), bits
            continue
        s = party.site("normalize", stage, center, factor, dealer=x.dealer)
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
            u = masked.truncated(s, u, kept)
            running = masked.exchanged(s, u, shape, 3, 3, width=factor.width - kept)
        y = masked.truncated(s, y, narrowed)
        x = masked.exchanged(s, y, shape, 4, 4, width=stage.width - narrowed)
        before = bits
    assert running is not None
    return arithmetic.moved(x, -center), running


def _counted(m: local.Abstract, dealer: int, width: int) -> Shared:
    return Shared(m, None, None, dealer, 0, 1, width % RING)


def _selected_cost(n: int, plan: Scheme, i: int, factor: Table) -> Cost:
    """What stage i sends besides its comparisons, for n elements."""
    stage, final, cuts = plan.stages[i], i + 1 == len(plan.stages), len(plan.stages[i].cuts)
    dealt = packed(n * cuts, max(stage.width, factor.width)) + packed(n * cuts, stage.width)
    if factor.additive and final and i:
        dealt += packed(n * len(plan.stages[0].cuts), factor.width)
    if not factor.additive and i:
        dealt += packed(n * cuts, factor.width)
    sent = packed(n, stage.width - (plan.top - plan.units if final else 0))
    if final or not factor.additive:
        sent += packed(n, factor.width - (factor.drop if final else 0))
    return Cost(dealt, sent, sent, rounds=1, with_dealing=2)
