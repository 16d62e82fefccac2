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

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfe_bench.protocols.functions.exp_one_round import word
from tfe_bench.protocols.functions.normalize_plan import RING, Cut, Scheme, Segment, Stage, Table
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic, masked
from tfe_bench.protocols.ring.checks import check_ring
from tfe_bench.protocols.session import local, sizes
from tfe_bench.protocols.session.cost import Cost, packed
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.graph_ops import tensorflow
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


def _for_comparison(party: Party, x: Shared, cuts: Sequence[Cut]) -> list[Any]:
    """(x - cut) / 2^drop, floor or one more, for each cut, as compare.masked_part gives words."""
    part = compare.masked_part(party, x)
    if not local.known(part):
        return [part] * len(cuts)

    one = local.expand_dims(local.low_bits(part, x.ring_bits), 0)
    drops, rest = [c.drop for c in cuts], [word((1 << (RING - c.drop)) - 1) for c in cuts]
    kept = tensorflow("RightShift")(x=one, y=_along(drops, one))
    kept = tensorflow("BitwiseAnd")(x=kept, y=_along(rest, one))
    if x.m is not None:
        kept = local.sub(kept, _along([c.at >> c.drop for c in cuts], one))
    return [local.at(kept, i) for i in range(len(cuts))]


def nested_bits(party: Party, x: Shared, stage: Stage) -> MaskedBits:
    """[x < cut] for every cut, each padded to whole words, exchanged under masks.

    Rounds: stage.exchanges + 1 (one more with dealing).  Bits sent: those of compare.msb and of
        mask_bits.
    """
    parts = zip(stage.cuts, _for_comparison(party, x, stage.cuts), strict=True)
    recipes = [(part, compare.recipe(cut.bits, stage.exchanges)) for cut, part in parts]
    found = [compare.msb_of_words(party, part, x.dealer, r, absorb=False) for part, r in recipes]
    return convert.mask_each(party, found)


# ---- sums of injections


def _stacked(cuts: int, shape: Any) -> Any:
    """A shape with an axis of cuts before."""
    import tensorflow as tf

    known = tf.get_static_value(shape)
    if known is not None:
        return local.constant([cuts, *known])
    return tf.concat([[cuts], shape], axis=0)


class Chosen:
    """Telescoped sums over the bits of one stage, as shares at the evaluators.

    Args:
        width: of the dealt bits: at least that of every sum taken.
        tensor, slot: number of the dealt mask and of its message.

    Attributes:
        stacked: the shape with an axis of cuts before.

    Bits sent: D width per cut and element, packed.
    """

    def __init__(
        self, s: Site, bits: MaskedBits, cuts: int, shape: Any, width: int, tensor: int, slot: int
    ) -> None:
        self._s = s
        self.stacked = _stacked(cuts, shape)
        flat, n = logic.unpacked(bits), sizes.elements(shape)
        every = local.reshape(local.at(local.reshape(flat, [cuts, -1]), np.s_[:, :n]), self.stacked)
        self._known = every  # beta at D, the masked bit at the evaluators
        self._beta = masked.deal(s, every, self.stacked, tensor, slot, width)

    def constants(self, values: Sequence[int]) -> Any:
        """Shares of the constant of x's segment.  No message."""
        if self._s.is_dealer:
            return None
        steps = [word(a - b) for a, b in itertools.pairwise(values)]
        share = local.mul(local.signs(self._known), self._beta)
        share = local.add(share, self._known) if self._s.is_e2 else share
        total = local.reduce_sum(local.mul(share, _along(steps, share)), axis=0)
        last = local.constant(word(values[-1]))
        return local.add(total, last) if self._s.is_e2 else total

    def values(self, pieces: Pieces, width: int, tensor: int, slot: int) -> Any:
        """Shares mod 2^width of the piece of x's segment.

        With d_j = pieces[j] - pieces[j+1] it is pieces[-1] + sum_j b_j d_j (convert.inject).
        Bits sent: D width per cut and element, packed.
        """
        s, steps, last = self._s, pieces.steps, pieces.last
        if s.is_dealer:
            lam = local.add(steps.l1, steps.l2)
            masked.deal(s, local.mul(self._known, lam), self.stacked, tensor, slot, width)
            return None
        products = masked.deal(s, None, self.stacked, tensor, slot, width)
        crossed = local.sub(local.mul(steps.m, self._beta), products)
        flipped = local.mul(local.signs(self._known), crossed)
        if s.is_e1:
            own, rest = local.neg(steps.l1), local.neg(last.l1)
        else:
            own, rest = local.sub(steps.m, steps.l2), local.sub(last.m, last.l2)
        terms = local.add(flipped, local.mul(self._known, own))
        return local.add(local.reduce_sum(terms, axis=0), rest)


@dataclass(frozen=True, eq=False)
class Pieces:
    """A linear map of x for each segment.

    Attributes:
        steps: each less the next one, along a first axis.
        last: the last one.
    """

    steps: Shared
    last: Shared


def _along(numbers: Sequence[int], a: Any) -> Any:
    """Numbers along the first axis of a tensor of cuts."""
    return local.constant(np.reshape(numbers, [-1, *[1] * (a.shape.rank - 1)]))


def multiples(x: Shared, factors: Sequence[int]) -> Pieces:
    """x times each factor.  Local."""
    steps = [word(a - b) for a, b in itertools.pairwise(factors)]

    def stacked(a: Any) -> Any:
        one = local.expand_dims(a, 0)
        return local.mul(one, _along(steps, one))

    return Pieces(x.map(stacked), x.map(lambda a: local.mul(a, local.constant(word(factors[-1])))))


def pieces_of(x: Shared, stage: Stage) -> Pieces:
    """The linear map of each segment, mod 2^width.  Local."""
    segments = stage.segments
    if all(s.shift >= 0 for s in segments):
        found = multiples(x, [s.sign << s.shift for s in segments])
    else:
        every = x.map(functools.partial(_shifted, ring=x.ring_bits, segments=segments))
        found = Pieces(
            every.map(lambda a: local.sub(local.at(a, np.s_[:-1]), local.at(a, np.s_[1:]))),
            every.map(lambda a: local.at(a, -1)),
        )
    steps, last = found.steps, found.last
    constants = [s.constant for s in segments]
    if steps.m is not None and any(constants):
        moved = [word(a - b) for a, b in itertools.pairwise(constants)]
        steps = arithmetic.moved(steps, _along(moved, steps.m))
        last = arithmetic.moved(last, word(constants[-1]))
    return Pieces(replace(steps, bits=stage.width), replace(last, bits=stage.width))


def _shifted(a: Any, ring: int, segments: Sequence[Segment]) -> Any:
    """A field of sign * x * 2^shift for each segment: as `shifted`, along a first axis."""
    import tensorflow as tf

    one = local.expand_dims(a, 0)
    left = one * _along([word(s.sign << max(s.shift, 0)) for s in segments], one)
    right = [max(-s.shift, 0) for s in segments]
    before = [word((1 << ring) - 1 if n else -1) for n in right]
    after = [word((1 << (RING - n)) - 1) for n in right]
    left = tf.bitwise.bitwise_and(left, _along(before, one))
    kept = tf.bitwise.right_shift(left, _along(right, one))
    return tf.bitwise.bitwise_and(kept, _along(after, one))


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
            u = chosen.values(multiples(running, factor.stages[i]), factor.width, 2, 2)
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
