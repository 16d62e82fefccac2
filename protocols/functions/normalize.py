"""Normalization: a private x > 0 becomes c in about [1/2, 1) and the power of two that is missing.

x is compared with powers of two ("cuts"), all at once. The comparisons' bits are nested, so that a
function that is linear on each segment between two cuts telescopes,

    h(x) = h_last(x) + sum_j [x < cut_j] (h_j(x) - h_{j+1}(x)),

into one sum of bit injections, exchanged once. In two stages (groups of eight binades, then
one binade) 62 binades take 8 + 7 comparisons.

A comparison need not be exact at its cut, because the polynomial that follows is fitted to a
slightly wider interval. All bits below the RESOLUTION bits after the cut's first are dropped from m
and from lam without a message (the difference of the floors is the floor of the difference, or one
more), and the remaining bits are compared in a small ring.

Nothing is revealed: every message is a dealt share or a masked exchange.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.functions.exp_one_round import to_signed_word
from tfe_bench.protocols.functions.normalize_plan import (
    RING,
    Cut,
    NormalizationPlan,
    Segment,
    Stage,
    Table,
)
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic, masked
from tfe_bench.protocols.ring.checks import check_private_64bit_tensor
from tfe_bench.protocols.session import sizes, slots, tensor_ops
from tfe_bench.protocols.session.cost import Cost, packed_bits
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.graph_ops import get_raw_op
from tfe_bench.protocols.session.party import Party, Site
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

# ---- local pieces


def shift_for_normalization(x: Shared, shift: int) -> Shared:
    """Return x * 2^shift, exactly, or x / 2^-shift in a smaller ring, off by less than 2. Local."""
    if shift >= 0:
        return x.map(lambda a: tensor_ops.left_shift(a, shift))
    ring = x.ring_bits
    shifted = x.map(lambda a: tensor_ops.logical_shift(tensor_ops.low_bits(a, ring), -shift))
    return replace(shifted, bits=ring + shift)


def _prepare_comparisons(party: Party, x: Shared, cuts: Sequence[Cut]) -> list[Any]:
    """Return (x - cut) / 2^drop, floor or one more, for each cut, as
    compare.masked_value_or_mask_words words.
    """
    part = compare.masked_value_or_mask_words(party, x)
    if not tensor_ops.is_concrete(part):
        return [part] * len(cuts)

    expanded = tensor_ops.expand_dims(tensor_ops.low_bits(part, x.ring_bits), 0)
    drops, rest = [c.drop for c in cuts], [to_signed_word((1 << (RING - c.drop)) - 1) for c in cuts]
    kept_bits = get_raw_op("RightShift")(x=expanded, y=_broadcast_cuts(drops, expanded))
    kept_bits = get_raw_op("BitwiseAnd")(x=kept_bits, y=_broadcast_cuts(rest, expanded))
    if x.m is not None:
        kept_bits = tensor_ops.sub(
            kept_bits, _broadcast_cuts([c.at >> c.drop for c in cuts], expanded)
        )
    return [tensor_ops.strided_slice(kept_bits, i) for i in range(len(cuts))]


def compare_with_cuts(party: Party, x: Shared, stage: Stage) -> MaskedBits:
    """Return [x < cut] for every cut, each padded to whole words, exchanged under masks.

    Rounds: stage.exchanges + 1 online (one more in total). Bits sent: those of compare.msb and of
        mask_bits.
    """
    parts = zip(stage.cuts, _prepare_comparisons(party, x, stage.cuts), strict=True)
    plans = [(part, compare.plan_comparison(cut.bits, stage.exchanges)) for cut, part in parts]
    signs = [compare.msb_of_words(party, part, x.dealer, r, absorb=False) for part, r in plans]
    return convert.mask_together(party, signs)


# ---- sums of injections


def _prepend_axis(cuts: int, shape: Any) -> Any:
    """Return a shape with an axis of cuts before it."""
    known = tf.get_static_value(shape)
    if known is not None:
        return tensor_ops.constant([cuts, *known])
    return tf.concat([[cuts], shape], axis=0)


class SegmentSelector:
    """Telescoped sums over the bits of one stage, as shares at the evaluators.

    Args:
        tensor, slot: number of the dealt mask and of its message, whose width is at least that of
            every sum taken.

    Attributes:
        stacked_shape: the shape with an axis of cuts before it.

    Bits sent: D width per cut and element, packed.
    """

    def __init__(
        self, s: Site, bits: MaskedBits, cuts: int, shape: Any, tensor: int, slot: int
    ) -> None:
        self._s = s
        self.stacked_shape = _prepend_axis(cuts, shape)
        flat, n = logic.unpack_bits(bits), sizes.count_elements(shape)
        all_bits = tensor_ops.reshape(
            tensor_ops.strided_slice(tensor_ops.reshape(flat, [cuts, -1]), np.s_[:, :n]),
            self.stacked_shape,
        )
        self._known = all_bits  # beta at D, the masked bit at the evaluators
        self._beta = masked.deal(s, all_bits, self.stacked_shape, tensor, slot)

    def select_constants(self, values: Sequence[int]) -> Any:
        """Return shares of the constant of x's segment. No message."""
        if self._s.is_dealer:
            return None
        steps = [to_signed_word(a - b) for a, b in itertools.pairwise(values)]
        share = tensor_ops.mul(tensor_ops.bit_signs(self._known), self._beta)
        share = tensor_ops.add(share, self._known) if self._s.is_e2 else share
        total = tensor_ops.reduce_sum(tensor_ops.mul(share, _broadcast_cuts(steps, share)), axis=0)
        last = tensor_ops.constant(to_signed_word(values[-1]))
        return tensor_ops.add(total, last) if self._s.is_e2 else total

    def select_values(self, pieces: SegmentMaps, tensor: int, slot: int) -> Any:
        """Return shares mod 2^width of the linear map of x's segment.

        With d_j = pieces[j] - pieces[j+1] it is pieces[-1] + sum_j b_j d_j (convert.inject).
        Bits sent: D width per cut and element, packed.
        """
        s, steps, last = self._s, pieces.steps, pieces.last
        if s.is_dealer:
            lam = tensor_ops.add(steps.l1, steps.l2)
            product = tensor_ops.mul(self._known, lam)
            masked.deal(s, product, self.stacked_shape, tensor, slot)
            return None
        products = masked.deal(s, None, self.stacked_shape, tensor, slot)
        crossed = tensor_ops.sub(tensor_ops.mul(steps.m, self._beta), products)
        flipped = tensor_ops.mul(tensor_ops.bit_signs(self._known), crossed)
        if s.is_e1:
            own_part, last_part = tensor_ops.neg(steps.l1), tensor_ops.neg(last.l1)
        else:
            own_part, last_part = tensor_ops.sub(steps.m, steps.l2), tensor_ops.sub(last.m, last.l2)
        terms = tensor_ops.add(flipped, tensor_ops.mul(self._known, own_part))
        return tensor_ops.add(tensor_ops.reduce_sum(terms, axis=0), last_part)


@dataclass(frozen=True, eq=False)
class SegmentMaps:
    """A linear map of x for each segment.

    Attributes:
        steps: each map minus the next one, along a first axis.
        last: the last map.
    """

    steps: Shared
    last: Shared


def _broadcast_cuts(numbers: Sequence[int], a: Any) -> Any:
    """Return numbers along the first axis of a tensor of cuts."""
    return tensor_ops.constant(np.reshape(numbers, [-1, *[1] * (a.shape.rank - 1)]))


def multiply_by_segment_factors(x: Shared, factors: Sequence[int]) -> SegmentMaps:
    """Return x times each factor. Local."""
    steps = [to_signed_word(a - b) for a, b in itertools.pairwise(factors)]

    def multiply_segments(a: Any) -> Any:
        expanded = tensor_ops.expand_dims(a, 0)
        return tensor_ops.mul(expanded, _broadcast_cuts(steps, expanded))

    return SegmentMaps(
        x.map(multiply_segments),
        x.map(lambda a: tensor_ops.mul(a, tensor_ops.constant(to_signed_word(factors[-1])))),
    )


def map_normalization_segments(x: Shared, stage: Stage) -> SegmentMaps:
    """Return the linear map of each segment, mod 2^width. Local."""
    segments = stage.segments
    if all(s.shift >= 0 for s in segments):
        maps = multiply_by_segment_factors(x, [s.sign << s.shift for s in segments])
    else:
        all_segments = x.map(
            functools.partial(_shift_by_segment, ring=x.ring_bits, segments=segments)
        )
        maps = SegmentMaps(
            all_segments.map(
                lambda a: tensor_ops.sub(
                    tensor_ops.strided_slice(a, np.s_[:-1]), tensor_ops.strided_slice(a, np.s_[1:])
                )
            ),
            all_segments.map(lambda a: tensor_ops.strided_slice(a, -1)),
        )
    steps, last = maps.steps, maps.last
    constants = [s.constant for s in segments]
    if steps.m is not None and any(constants):
        constant_steps = [to_signed_word(a - b) for a, b in itertools.pairwise(constants)]
        steps = arithmetic.add_constant(steps, _broadcast_cuts(constant_steps, steps.m))
        last = arithmetic.add_constant(last, to_signed_word(constants[-1]))
    return SegmentMaps(replace(steps, bits=stage.width), replace(last, bits=stage.width))


def _shift_by_segment(a: Any, ring: int, segments: Sequence[Segment]) -> Any:
    """Return a field of sign * x * 2^shift for each segment along a first axis, as
    `shift_for_normalization`.
    """
    expanded = tensor_ops.expand_dims(a, 0)
    left = expanded * _broadcast_cuts(
        [to_signed_word(s.sign << max(s.shift, 0)) for s in segments], expanded
    )
    right = [max(-s.shift, 0) for s in segments]
    masks_before = [to_signed_word((1 << ring) - 1 if n else -1) for n in right]
    masks_after = [to_signed_word((1 << (RING - n)) - 1) for n in right]
    left = tf.bitwise.bitwise_and(left, _broadcast_cuts(masks_before, expanded))
    segment_bits = tf.bitwise.right_shift(left, _broadcast_cuts(right, expanded))
    return tf.bitwise.bitwise_and(segment_bits, _broadcast_cuts(masks_after, expanded))


# ---- the whole


def normalize_to_mantissa(
    party: Party, x: Shared, plan: NormalizationPlan, center: int, factor: Table
) -> tuple[Shared, Shared]:
    """Return (c * 2^units - center, factor of x's segment), both in small rings.

    x <= 0 gives c as for x = 1, and the factor of its own segment.

    Rounds: plan.rounds online (one more in total). Bits sent: those of `compare_with_cuts` and
        `_segment_selection_cost`.
    """
    check_private_64bit_tensor("This function", x)
    shape = tensor_ops.dynamic_shape(x.any)
    x = replace(x, fractional_bits=0)
    previous_bits: MaskedBits | None = None
    running: Shared | None = None
    for i, stage in enumerate(plan.stages):
        bits = compare_with_cuts(party, x, stage)
        final = i + 1 == len(plan.stages)
        narrowed = plan.top - plan.units if final else 0
        dropped_bits = factor.drop if final else 0
        cuts = len(stage.cuts)
        if isinstance(party, CostParty):
            cost = _segment_selection_cost(sizes.tensor_size(x.any), plan, i, factor)
            m = party.count_messages(cost, shape, x, bits, previous_bits, running)
            if final or not factor.additive:
                running = _make_symbolic_mantissa(m, x.dealer, factor.width - dropped_bits)
            x, previous_bits = _make_symbolic_mantissa(m, x.dealer, stage.width - narrowed), bits
            continue
        stage_slots = {
            0: slots.declare_dealt(max(stage.width, factor.width)),
            1: slots.declare_dealt(stage.width),
            4: slots.declare_exchanged(stage.width - narrowed),
        }
        if i and (final or not factor.additive):
            stage_slots[2] = slots.declare_dealt(factor.width)
        if final or not factor.additive:
            stage_slots[3] = slots.declare_exchanged(factor.width - dropped_bits)
        s = party.site("normalize", stage, center, factor, dealer=x.dealer, slots=stage_slots)
        selector = SegmentSelector(s, bits, cuts, shape, 0, 0)
        y = selector.select_values(map_normalization_segments(x, stage), 1, 1)
        u = None
        if factor.additive and final:
            u = selector.select_constants(factor.stages[i])
            if previous_bits is not None:
                coarse = SegmentSelector(s, previous_bits, len(plan.stages[0].cuts), shape, 2, 2)
                coarse_constants = coarse.select_constants(factor.stages[0])
                u = None if u is None else u + coarse_constants
        elif not factor.additive and i == 0:
            u = selector.select_constants(factor.stages[0])
        elif not factor.additive:
            assert running is not None
            u = selector.select_values(multiply_by_segment_factors(running, factor.stages[i]), 2, 2)
        if final or not factor.additive:
            u = masked.truncate_shares(s, u, dropped_bits)
            running = masked.exchange_masked(s, u, shape, 3, 3)
        y = masked.truncate_shares(s, y, narrowed)
        x = masked.exchange_masked(s, y, shape, 4, 4)
        previous_bits = bits
    assert running is not None
    return arithmetic.add_constant(x, -center), running


def _make_symbolic_mantissa(m: tensor_ops.SymbolicTensor, dealer: int, width: int) -> Shared:
    return Shared(m, None, None, dealer, 0, 1, width % RING)


def _segment_selection_cost(n: int, plan: NormalizationPlan, i: int, factor: Table) -> Cost:
    """Return the cost of stage i without its comparisons, for n elements."""
    stage, final, cuts = plan.stages[i], i + 1 == len(plan.stages), len(plan.stages[i].cuts)
    dealt = packed_bits(n * cuts, max(stage.width, factor.width)) + packed_bits(
        n * cuts, stage.width
    )
    if factor.additive and final and i:
        dealt += packed_bits(n * len(plan.stages[0].cuts), factor.width)
    if not factor.additive and i:
        dealt += packed_bits(n * cuts, factor.width)
    sent = packed_bits(n, stage.width - (plan.top - plan.units if final else 0))
    if final or not factor.additive:
        sent += packed_bits(n, factor.width - (factor.drop if final else 0))
    return Cost(dealt, sent, sent, rounds=1, with_dealing=2)
