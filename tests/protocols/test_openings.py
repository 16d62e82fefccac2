"""What a session opens is counted alike at the three parties, and refused if not permitted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.refusals import raises
from tfe_bench.cluster.simulate import simulate
from tfe_bench.errors import PolicyError, ProtocolError
from tfe_bench.protocols.order import lookup, sort
from tfe_bench.protocols.ring import compare, small_ring
from tfe_bench.protocols.session import io
from tfe_bench.protocols.session.counting import Private, count_cost
from tfe_bench.protocols.session.openings import (
    SHUFFLED_COMPARISONS,
    SHUFFLED_POSITIONS,
    VALUES,
    Opening,
)
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

ROWS = np.arange(12).reshape(3, 4)


@pytest.mark.parametrize("to", [None, 0, 1, 2])
@pytest.mark.parametrize("dynamic", [False, True])
def test_every_call_of_a_graph_tells_what_it_opens(to: int | None, dynamic: bool) -> None:
    def program(party: Party, x: Shared) -> Any:
        def open_all(x: Shared) -> Any:
            small = small_ring.reduce_ring(x, 20)
            return (
                io.reveal(party, x, to),
                io.reveal(party, small, to, "small numbers"),
                io.reveal(party, x, to, "small numbers"),
            )

        graph = party.function(open_all, dynamic=dynamic)
        return [graph(x.map(lambda a, n=n: a[:n])) for n in (1, 3, 0, 3)]

    opened = simulate(program, ROWS, permitted=[VALUES, "small numbers"]).openings
    count = 4 * (1 + 3 + 3)
    assert opened == (
        Opening(VALUES, count, 64 * count, to),
        Opening("small numbers", 2 * count, (20 + 64) * count, to),
    )


@pytest.mark.parametrize("n", [1, 63, 64, 65])
def test_opened_bits_are_counted_without_padding(n: int) -> None:
    def reveal_signs(party: Party, x: Shared) -> Any:
        return io.reveal_bits(party, compare.msb(party, x), "signs")

    def program(party: Party, x: Shared) -> Any:
        return party.function(lambda x: reveal_signs(party, x))(x)

    expected = (Opening("signs", n, n),)
    assert simulate(program, np.arange(n)).openings == expected
    assert count_cost(reveal_signs, Private((n,))).openings == expected


def test_wide_values_count_once() -> None:
    def program(party: Party, x: Shared) -> Any:
        return party.function(lambda x: io.reveal(party, x))(x)

    words = np.arange(6).reshape(3, 2)
    assert simulate(program, words, limbs=2).openings == (Opening(VALUES, 3, 384),)
    assert count_cost(io.reveal, Private((3,), limbs=2)).openings == (Opening(VALUES, 3, 384),)


@pytest.mark.parametrize("algorithm", ["all-pairs", "quick", "network"])
def test_a_sort_opens_comparisons_of_shuffled_keys_alone(algorithm: str) -> None:
    n = 4000 if algorithm == "quick" else 100
    keys = np.arange(n)[::-1].copy()

    def sort_keys(party: Party, x: Shared) -> Shared:
        return sort.sort(party, x, algorithm=algorithm).keys

    opened = simulate(sort_keys, keys).openings
    if algorithm == "network":
        assert opened == ()
        simulate(sort_keys, keys, permitted=())
        return
    assert [opening.what for opening in opened] == [SHUFFLED_COMPARISONS]
    with raises(PolicyError, "opening-not-permitted", operation=SHUFFLED_COMPARISONS):
        simulate(sort_keys, keys, permitted=[SHUFFLED_POSITIONS])
    counted = count_cost(sort_keys, Private((n,), 0), graphs=True, expected=True).openings
    if algorithm == "all-pairs":
        assert opened == counted == (Opening(SHUFFLED_COMPARISONS, 4950, 4950),)
    else:
        assert 0.5 < counted[0].bits / opened[0].bits < 2


def test_a_shuffled_lookup_opens_what_is_counted() -> None:
    def look_up(party: Party, table: Shared, positions: Shared) -> Shared:
        return lookup.lookup_shuffled(party, table, positions)

    opened = simulate(look_up, np.arange(20).reshape(10, 2), np.array([3, 1, 9])).openings
    counted = count_cost(look_up, Private((10, 2)), Private((3,), 0), graphs=True, expected=True)
    assert {o.what for o in opened} == {SHUFFLED_COMPARISONS, SHUFFLED_POSITIONS}
    assert [o for o in opened if o.what == SHUFFLED_POSITIONS] == [
        o for o in counted.openings if o.what == SHUFFLED_POSITIONS
    ]


@pytest.mark.parametrize("kept", [False, True])
def test_a_sealed_session_sends_nothing_of_a_graph_that_opens(kept: bool) -> None:
    """Check a graph that is traced, and one that an earlier session kept."""
    name = f"openings {kept} {np.random.default_rng().integers(1 << 60)}"
    sent: list[int] = []

    def program(party: Party, x: Shared) -> Any:
        with party.kept_graphs(name):
            graph = party.function(lambda x: io.reveal(party, x))
        try:
            return graph(x)
        finally:
            sent.append(party.sent_bytes)

    if kept:
        simulate(program, ROWS)
        assert sum(sent) > 0
        sent.clear()
    with raises(PolicyError, "opening-not-permitted", operation=VALUES):
        simulate(program, ROWS, permitted=())
    assert sent == [0, 0, 0]


def test_nothing_is_opened_in_a_numbered_loop() -> None:
    def program(party: Party, x: Shared) -> Any:
        def open_in_loop(x: Shared) -> Any:
            with party.iteration(tf.constant(0)):
                return io.reveal(party, x)

        return party.function(open_in_loop)(x)

    with raises(ProtocolError, "opening-in-loop"):
        simulate(program, ROWS)
