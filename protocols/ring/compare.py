"""Comparison by dealt one-hot tables and multi-input ANDs: LUT-msb.

One-time truth tables (Ishai et al., TCC 2013) over 3-bit chunks, combined by the
multi-input AND of ABY2.0 (Patra et al., USENIX Security 2021). The composition
is this project's; its security argument is in docs/protocols.md.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, TypeAlias

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.ring import arithmetic
from tfe_bench.protocols.session import ops, sizes, slots, tensor_ops, wide
from tfe_bench.protocols.session.cost import Cost, words_for_bits
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import EvaluatorBits, Shared

EXACT_BITS = 64
# Comparison range of machine-learning layers: |v| < 2^14 at 16 fractional bits.
LAYER_BITS = 31
# A chunk's table has 2^width entries.
MAX_CHUNK_BITS = 6
# Most bits that one exchange compares: eight chunks and the sign.
MAX_SINGLE_EXCHANGE_BITS = 8 * MAX_CHUNK_BITS + 1


def comparison_bits_with_constant(bits: int, constant_bound: int) -> int:
    """Return the bits that compare x + c with 0, |x| < 2^(bits-1) and |c| <= constant_bound.

    One more than `bits` while the constant is no larger than x may be, else as many as it needs.

    Raises:
        UsageError: fewer than 2 bits.
    """
    if bits < 2:
        raise UsageError(
            f"A comparison has 2 to 128 bits. Received: {bits}.",
            code="number-out-of-range",
            operation="compare",
            received=bits,
        )
    return ((1 << (bits - 1)) - 1 + constant_bound).bit_length() + 1


# Sizes of the groups of nodes, by level.
Groups: TypeAlias = "tuple[tuple[int, ...], ...]"


@dataclass(frozen=True)
class ComparisonPlan:
    """Division of the k-1 low bits into chunks, and the combination of their nodes.

    Attributes:
        bits: k.
        widths: widths of the chunks, most significant first.
        groups: per level the sizes of the groups, most significant first.
    """

    bits: int
    widths: tuple[int, ...]
    groups: Groups

    @property
    def exchange_count(self) -> int:
        """Exchanges between the evaluators."""
        return len(self.groups)

    def node_count(self, level: int) -> int:
        """Return the number of nodes before a level."""
        return len(self.widths) if level == 0 else len(self.groups[level - 1])

    @functools.cached_property
    def exchanged_bits(self) -> int:
        """Bits that each evaluator sends per comparison."""
        return sum(2 * self.node_count(level) - 1 for level in range(self.exchange_count))

    @functools.cached_property
    def dealt_bits(self) -> int:
        """Bits that the dealer sends per comparison (without lam's top bit)."""
        tables = sum((1 << w) - 1 for w in self.widths)
        return tables + sum(
            _count_lut_monomials(r, g == len(level) - 1)
            for level in self.groups
            for g, r in enumerate(level)
        )

    def list_slots(self, absorb: bool) -> slots.Slots:
        """Return the messages of a comparison; `absorb` as in `msb_of_planes`."""
        exchanges = {
            1 + level: slots.declare_exchanged(
                1, times=2 * self.node_count(level) - 1, unit=slots.WORD
            )
            for level in range(self.exchange_count)
        }
        return {
            0: slots.declare_dealt(1, times=self.dealt_bits + absorb, unit=slots.WORD),
            **exchanges,
        }

    @property
    def total_bits(self) -> int:
        """Bits that all three send per comparison."""
        return self.dealt_bits + 2 * self.exchanged_bits


def _count_lut_monomials(radix: int, last: bool) -> int:
    if last:  # the equality of the last node is not needed
        return 3 * (1 << (radix - 1)) - 2 * radix - 1
    return (1 << (radix + 1)) - 2 * radix - 2


def _split_bits_evenly(total: int, parts: int) -> tuple[int, ...]:
    """Return even group sizes, the larger ones last (the last node is the cheapest)."""
    small, larger_groups = divmod(total, parts)
    return (small,) * (parts - larger_groups) + (small + 1,) * larger_groups


def default_exchanges(count: int, bits: int, exchanges: int | None = None) -> int:
    """Return the exchanges for a batch of comparisons, unless they are given.

    One for small batches or when it costs no more bits, else two.
    """
    if exchanges is not None:
        return exchanges
    if bits > MAX_SINGLE_EXCHANGE_BITS:
        return 2
    return (
        1
        if count <= 4096
        or plan_comparison(bits, 1).total_bits <= plan_comparison(bits, 2).total_bits
        else 2
    )


def min_comparison_exchanges(bits: int) -> int:
    """Return the least number of exchanges for a comparison."""
    return 1 if bits <= MAX_SINGLE_EXCHANGE_BITS else 2


@functools.cache
def plan_comparison(bits: int, exchanges: int | None = None) -> ComparisonPlan:
    """Return the cheapest plan for k = bits and a number of exchanges.

    Unless `exchanges` is given: 2, or 3 where the third saves an eighth of the bits.

    Raises:
        UsageError: bits outside 2..128, or exchanges outside 1..3.
    """
    if not 2 <= bits <= 128:
        raise UsageError(
            f"A comparison has 2 to 128 bits. Received: {bits}.",
            code="number-out-of-range",
            operation="compare",
            received=bits,
        )
    if exchanges is None:
        two, three = plan_comparison(bits, 2), plan_comparison(bits, 3)
        return three if 8 * three.total_bits <= 7 * two.total_bits else two
    if exchanges not in (1, 2, 3):
        raise UsageError(
            f"A comparison takes 1, 2 or 3 exchanges. Received: {exchanges}.",
            code="unsupported-exchanges",
            operation="compare",
            received=exchanges,
        )
    best: ComparisonPlan | None = None
    low = bits - 1
    for widest in range(1, MAX_CHUNK_BITS + 1):
        widths = _split_bits_evenly(low, -(-low // widest))[::-1]
        if cheapest := _find_cheapest_groups(len(widths), exchanges):
            candidate = ComparisonPlan(bits, widths, cheapest[1])
            if best is None or candidate.total_bits < best.total_bits:
                best = candidate
    if best is None:
        raise UsageError(
            f"{exchanges} exchange(s) do not suffice to compare {bits} bits. Ask for more.",
            code="too-few-exchanges",
            operation="compare",
            received=exchanges,
        )
    return best


@functools.cache
def _find_cheapest_groups(nodes: int, levels: int) -> tuple[int, Groups] | None:
    """Find the groups that reduce a number of nodes to one in some levels with the fewest bits.

    Returns:
        The bits that all three send per comparison, and the group sizes by level; None if the
        levels do not suffice.
    """
    exchanged_bits = 2 * (2 * nodes - 1)
    if levels == 1:
        dealt_bits = _count_lut_monomials(nodes, last=True)
        return (exchanged_bits + dealt_bits, ((nodes,),)) if nodes <= 8 else None
    best: tuple[int, Groups] | None = None
    for parts in range(max(1, -(-nodes // 8)), max(1, nodes // 2) + 1):
        rest = _find_cheapest_groups(parts, levels - 1)
        if rest is None:
            continue
        *others, last = level = _split_bits_evenly(nodes, parts)
        dealt_bits = sum(_count_lut_monomials(r, last=False) for r in others)
        bits = exchanged_bits + dealt_bits + _count_lut_monomials(last, last=True) + rest[0]
        if best is None or bits < best[0]:
            best = bits, (level, *rest[1])
    return best


def msb_of_planes(
    party: Party, planes: tf.Tensor, n: Any, plan: ComparisonPlan, dealer: int, absorb: bool = True
) -> EvaluatorBits:
    """Return the most significant bits of n masked values given as bit planes.

    Args:
        planes: planes of lam = l1 + l2 at the dealer, of m at the evaluators.
        absorb: deal lam's top bit (1 bit each), so that the evaluators hold all of the result;
            else the dealer keeps it as `top`.
    """
    if isinstance(party, CostParty):
        share = party.count_bit_messages(
            _comparison_plan_cost(plan, n, absorb), n, planes, dealer=dealer
        )
        return EvaluatorBits(share, None, n, dealer)
    s = party.site(
        "msb",
        plan.bits,
        plan.widths,
        plan.groups,
        absorb,
        dealer=dealer,
        slots=plan.list_slots(absorb),
    )
    kernels = ops.module()
    attributes = {
        "call": s.ctx,
        "site": s.number,
        "dealer": dealer,
        "bits": plan.bits,
        "widths": list(plan.widths),
        "groups": [size for level in plan.groups for size in level],
        "group_counts": [len(level) for level in plan.groups],
        "absorb": absorb,
    }
    if s.is_dealer:
        message, top = kernels.tfe_bench_lut_deal(lam_planes=planes, **attributes)
        s.send(message, s.e2, slot=0, run_ahead=True)
        return EvaluatorBits(None, None if absorb else top, n, dealer)
    dealt = s.receive_dealt(sizes.static_value(n))
    node_share = kernels.tfe_bench_lut_exchange(m_planes=planes, dealt=dealt, **attributes)
    for level in range(plan.exchange_count):
        other = s.swap(node_share, slot=1 + level)
        node_share = kernels.tfe_bench_lut_node(
            m_planes=planes, own=node_share, other=other, dealt=dealt, level=level, **attributes
        )
    return EvaluatorBits(node_share, None, n, dealer)


def masked_value_or_mask_words(party: Party, x: Shared) -> Any:
    """Return words [n, limbs] of lam at the dealer, of m at the evaluators."""
    if x.m is not None:
        part = x.m
    elif x.limbs == 1:
        part = tensor_ops.add(x.l1, x.l2)
    else:
        part = wide.add(x.l1, x.l2)
    return tensor_ops.reshape(part, [-1, x.limbs])


def msb(
    party: Party,
    x: Shared,
    bits: int = EXACT_BITS,
    exchanges: int | None = None,
    absorb: bool = True,
) -> EvaluatorBits:
    """Return [x < 0] for x read as a signed value mod 2^bits, elements in row-major order.

    Args:
        bits: k; 64 is exact for any 64-bit value, a smaller k is right for |x| < 2^(k-1).
        exchanges: 1 to 3 exchanges; None takes 2, or 3 where that saves an eighth of the bits.

    Rounds: exchanges online (one more in total). Bits sent per 64 elements: `msb_cost`.
    """
    if bits > x.ring_bits:
        raise UsageError(
            f"msb of {bits} bits expects a ring of at least that size. Received: {x!r}.",
            code="unsupported-ring",
            operation="msb",
            received=repr(x),
        )
    return msb_of_words(
        party,
        masked_value_or_mask_words(party, x),
        x.dealer,
        plan_comparison(bits, exchanges),
        absorb,
    )


def msb_of_words(
    party: Party, part: Any, dealer: int, plan: ComparisonPlan, absorb: bool
) -> EvaluatorBits:
    """Return the `msb` of words from `masked_value_or_mask_words`, by a plan."""
    if isinstance(part, tensor_ops.SymbolicTensor):
        return msb_of_planes(party, part, part.shape[0], plan, dealer, absorb)
    planes = ops.module().tfe_bench_planes(x=part, bits=plan.bits)
    # Static where possible, so that a use of the bits for another shape fails while it is traced.
    known = part.shape[0]
    n = tf.shape(part, out_type=tf.int64)[0] if known is None else tensor_ops.constant(known)
    return msb_of_planes(party, planes, n, plan, dealer, absorb)


def compare_coarsely(
    party: Party, x: Shared, dropped_bits: int, bits: int, exchanges: int | None = None
) -> EvaluatorBits:
    """Return [y < 0] for y that is floor(x / 2^dropped_bits) or one more, |y| < 2^(bits-1).

    Both sides drop low bits of their parts, so that a borrow from these is not seen. Suitable for
    functions whose step may lie anywhere within 2^dropped_bits.

    Args:
        x: of a ring of dropped_bits + bits or more. A shift of x by multiples of 2^dropped_bits
            shifts y exactly.

    Rounds: exchanges online (one more in total). Bits sent: as `msb`.
    """
    part = tensor_ops.arithmetic_shift(masked_value_or_mask_words(party, x), dropped_bits)
    return msb_of_words(party, part, x.dealer, plan_comparison(bits, exchanges), absorb=True)


def compare_low_bits(
    party: Party, x: Shared, low: int, exchanges: int | None = None
) -> EvaluatorBits:
    """Return [m mod 2^low < lam mod 2^low]: the borrow of the low bits of x = m - lam.

    It is the msb of their difference with low + 1 bits, whose highest bit is 0 on both sides.

    Args:
        low: 1 to 62, of a value of Z_2^64.

    Rounds: exchanges online (one more in total). Bits sent: as `msb` of low + 1 bits.
    """
    part = tensor_ops.low_bits(masked_value_or_mask_words(party, x), low)
    return msb_of_words(party, part, x.dealer, plan_comparison(low + 1, exchanges), absorb=False)


def less_than(
    party: Party, x: Shared, y: Shared, bits: int = EXACT_BITS, exchanges: int | None = None
) -> EvaluatorBits:
    """Return [x < y], right while the signed difference x - y fits `bits` bits.

    Rounds and bits: as `msb`.
    """
    return msb(party, arithmetic.sub(x, y), bits, exchanges)


def msb_cost(
    n: int, bits: int = EXACT_BITS, exchanges: int | None = None, absorb: bool = True
) -> Cost:
    """Return the cost of `msb` and `less_than` for n elements; planes are sent in whole words."""
    return _comparison_plan_cost(plan_comparison(bits, exchanges), n, absorb)


def _comparison_plan_cost(plan: ComparisonPlan, n: int, absorb: bool) -> Cost:
    w = 64 * words_for_bits(n)
    dealt = plan.dealt_bits + (1 if absorb else 0)
    return Cost(
        dealer=dealt * w,
        e1=plan.exchanged_bits * w,
        e2=plan.exchanged_bits * w,
        rounds=plan.exchange_count,
        with_dealing=plan.exchange_count + 1,
    )
