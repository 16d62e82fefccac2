"""Rotation: each party deals for a third of the work.

A dealer sends two to three times as much as an evaluator, so with one dealer a large batch waits
for the dealer's link. Replicated shares are symmetric: the role of the dealer is only a
label, and thirds of a batch can have three different dealers. This balances the parties' traffic
and computation, at the price of a round. A dealer runs ahead where it knows masks, and
those of a relabeled value are what the others have just exchanged.

Source: Araki et al., CCS 2016, section 2 (the sharing is symmetric).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import refresh, shapes
from tfe_bench.protocols.ring.rss import from_replicated, to_replicated
from tfe_bench.protocols.session import tensor_ops, wide
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


def relabel_dealer(party: Party, x: Shared, dealer: int) -> Shared:
    """Return the same shares with another party as the dealer.

    With x = x_0 + x_1 + x_2, where party i holds x_i and x_{i+1}, a dealer d is the party to which
    m = x_{d+2} is unknown. Rounds: 0. Bits sent: none.

    Raises:
        UsageError: there is no such party.
    """
    if dealer not in (0, 1, 2):
        raise UsageError(
            f"A dealer is party 0, 1 or 2. Received: {dealer!r}.",
            code="unknown-party",
            operation="dealer",
            received=dealer,
        )
    if dealer == x.dealer:
        return x
    if isinstance(party, CostParty):
        # one of the new dealer's masks is the exchanged value
        return replace(x, m=x.m.with_exchanged_masks(), dealer=dealer)
    negate = wide.negate if x.limbs == 2 else operator.neg
    first_share, second_share = to_replicated(x, party.index, negate)
    y = from_replicated(first_share, second_share, party.index, dealer, x.fractional_bits, negate)
    return replace(y, limbs=x.limbs, bits=x.bits)


def refresh_for_dealer(party: Party, x: Shared, dealer: int) -> Shared:
    """Return the same value for another dealer, under masks that this dealer knows without waiting.

    The previous dealer becomes an evaluator, and has its share of each value for which it dealt:
    its message waits for nothing, so that the other evaluator has the value a round before it.
    Rounds: 1. Bits sent: those of refresh.refresh, none by the new dealer.

    Raises:
        UsageError: there is no such party.
    """
    if not isinstance(party, CostParty) or dealer == x.dealer:
        return refresh.refresh(party, relabel_dealer(party, x, dealer))
    first = 1 if dealer == (x.dealer + 1) % 3 else -1
    sooner = x.m.first == -first  # it was the other evaluator, and possibly the first one
    rounds, with_dealing = (n - sooner for n in (x.m.rounds, x.m.with_dealing))
    known = replace(x.m, rounds=rounds, with_dealing=with_dealing)
    y = refresh.refresh(party, relabel_dealer(party, replace(x, m=known), dealer))
    # (the message that waits for nothing takes a round too)
    return replace(y, m=replace(y.m, first=first if rounds else 0))


def compute_by_thirds(
    party: Party, function: Callable[..., Sequence[Shared]], values: Sequence[Shared], axis: int = 0
) -> list[Shared]:
    """Compute function(*values) on thirds of the values along an axis, each with another dealer.

    Args:
        function: of Shared values, to several Shared values. Its results must not depend on how
            the
            axis is cut.
        values: of the same known length along the axis, at least 3.

    Returns:
        its results, joined along their first axis, with the dealer of the first value.

    Raises:
        UsageError: fewer than 3 elements along the axis.
    """
    length = int(values[0].shape[axis])
    if length < 3:
        raise UsageError(
            f"by_thirds expects 3 or more elements along axis {axis}. Received: {length}.",
            code="number-out-of-range",
            operation="by_thirds",
            received=length,
            expected="3 or more",
        )
    first = values[0].dealer
    parts = []
    for third in range(3):
        begin, end = length * third // 3, length * (third + 1) // 3
        index = (slice(None),) * axis + (slice(begin, end),)
        cut = [
            relabel_dealer(
                party, v.map(lambda a, i=index: tensor_ops.strided_slice(a, i)), (first + third) % 3
            )
            for v in values
        ]
        parts.append([relabel_dealer(party, y, first) for y in function(*cut)])
    return [shapes.concat(list(column), 0) for column in zip(*parts, strict=True)]


def is_worthwhile(cost: Cost, round_bits: float) -> bool:
    """Return whether balancing saves more than a round.

    Args:
        round_bits: bits that all three parties together send while a message is under way.
    """
    return 3 * max(cost.dealer, cost.e1, cost.e2) - cost.total > round_bits
