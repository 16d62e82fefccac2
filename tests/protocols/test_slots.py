"""Messages that a site does not declare are refused while a graph is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.cluster.simulate import simulate
from tfe_bench.errors import ProtocolError
from tfe_bench.protocols.ring import masked
from tfe_bench.protocols.session import slots
from tfe_bench.protocols.session.cost import packed_bits, words_for_bits
from tfe_bench.protocols.session.counting import Private, count_cost
from tfe_bench.protocols.session.party import Party, Site
from tfe_bench.protocols.session.sharing import Shared

DECLARED = {0: slots.declare_dealt(), 2: slots.declare_sent((slots.E1, slots.D))}


def exchange_undeclared(s: Site, x: Shared) -> Any:
    return None if s.is_dealer else s.swap(x.m, 1)


def exchange_where_one_sends(s: Site, x: Shared) -> Any:
    return None if s.is_dealer else s.swap(x.m, 2)


def deal_to_e1(s: Site, x: Shared) -> Any:
    return s.send(x.l1, s.e1) if s.is_dealer else None


def receive_from_e2(s: Site, x: Shared) -> Any:
    return s.recv([3], s.e2, 2) if s.is_dealer else None


def exchange_under_a_mask(s: Site, x: Shared) -> Any:
    return masked.exchange_masked(s, x.m, [3], 1, 1)


@pytest.mark.parametrize(
    "use",
    [
        exchange_undeclared,
        exchange_where_one_sends,
        deal_to_e1,
        receive_from_e2,
        exchange_under_a_mask,
    ],
)
@pytest.mark.parametrize("dealer", range(3))
def test_a_message_that_is_not_declared_is_refused(
    use: Callable[[Site, Shared], Any], dealer: int
) -> None:
    def program(party: Party, x: Shared) -> Any:
        def use_site(x: Shared) -> Any:
            s = party.site("declared", dealer=x.dealer, slots=DECLARED)
            use(s, x)
            return x

        return party.function(use_site)(x)

    with raises(ProtocolError, "undeclared-slot", operation="declared"):
        simulate(program, np.zeros(3, np.int64), dealer=dealer, timeout=60)


def test_a_party_that_counts_refuses_it_too() -> None:
    def program(party: Any, x: Shared) -> Any:
        return masked.deal(party.site("declared", slots=DECLARED), None, x.shape, 0, 1)

    with raises(ProtocolError, "undeclared-slot", operation="declared", received=1):
        count_cost(program, Private((3,)))


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65])
def test_the_bits_of_a_message_are_those_of_its_packed_fields(n: int) -> None:
    assert slots.declare_dealt().count_bits(n) == 64 * n
    assert slots.declare_exchanged(13).count_bits(n) == packed_bits(n, 13)
    several = slots.declare_dealt(64, 5, 64, 5)
    assert several.count_bits(n) == 2 * (64 * n + packed_bits(n, 5))
    assert slots.declare_dealt(3, 7, times=4).count_bits(n) == 4 * (
        packed_bits(n, 3) + packed_bits(n, 7)
    )
    assert slots.declare_exchanged(1, times=5, unit=64).count_bits(n) == 5 * 64 * words_for_bits(n)
    assert slots.declare_dealt(256, unit=64).count_bits(n) == 256 * n
