"""Private permutations move rows as specified and back, at their cost, and open one vector."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.protocols.shares import output_at
from tests.protocols.tables.relations import as_bit
from tests.protocols.views import ALPHA
from tests.refusals import raises
from tfe_bench.cluster.simulate import simulate, total_rounds
from tfe_bench.errors import ProtocolError, UsageError
from tfe_bench.protocols.order import shuffle
from tfe_bench.protocols.ring import equality, logic
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange, bits

INT64 = np.iinfo(np.int64)


@pytest.mark.parametrize("n", [1, 2, 7, pytest.param(600, marks=pytest.mark.slow)])
def test_rows_go_where_keys_and_bits_say_and_back(n: int, rng: np.random.Generator) -> None:
    small, any_key = rng.integers(0, 32, n), rng.integers(INT64.min, INT64.max, n, endpoint=True)
    chosen, v = rng.integers(0, 2, n), rng.integers(INT64.min, INT64.max, n, endpoint=True)

    def program(p: Party, small: Shared, any_key: Shared, chosen: Shared, v: Shared) -> Any:
        orders = [
            arrange.sort_by_keys(p, [(small, 5)]),
            arrange.sort_by_keys(p, [(small, 5), (any_key, 64), (small, 6)]),
            arrange.partition_by_bit(p, as_bit(chosen)),
        ]
        there = [order.apply([v, as_bit(chosen)]) for order in orders]
        every = list(zip(orders, there, strict=True))
        ends = [order.apply_inverse(c, begin) for order, c in every for begin in (n - 1, n)]
        return there, [order.apply_inverse(c) for order, c in every], ends

    sim = simulate(program, small, any_key, chosen, v, dealer=n % 3)
    expected = [
        np.argsort(small, kind="stable"),
        np.lexsort([any_key, small]),
        np.argsort(1 - chosen, kind="stable"),
    ]
    for i, order in enumerate(expected):
        assert np.array_equal(sim.value(output_at(0, i, 0)), v[order])
        assert np.array_equal(sim.value(output_at(0, i, 1)), chosen[order])
        assert np.array_equal(sim.value(output_at(1, i, 0)), v)
        assert np.array_equal(sim.value(output_at(1, i, 1)), chosen)
        for j, begin in enumerate((n - 1, n)):
            for k, column in enumerate((v, chosen)):
                assert np.array_equal(sim.value(output_at(2, 2 * i + j, k)), column[begin:])


def test_a_partition_costs_what_it_says() -> None:
    n = 70

    def program(p: Party, x: Shared) -> Any:
        p.reset_counters()
        order = arrange.partition_by_bit(p, as_bit(x))
        order.apply_inverse(order.apply([x, as_bit(x)]), 13)
        return 8 * sum(p.counters()["payload"]), p.rounds()

    def counted(p: Party, x: Shared) -> Any:
        order = arrange.partition_by_bit(p, as_bit(x))
        return order.apply_inverse(order.apply([x, as_bit(x)]), 13)

    cost = cost_of(counted, Private((n,), 0), graphs=True)
    for secret in (np.zeros(n, np.int64), np.arange(n) % 2):
        sent, rounds = zip(*simulate(program, secret, dealer=1).outputs, strict=True)
        results = (sent, total_rounds(rounds, "ahead"), total_rounds(rounds, "with_dealing"))
        assert results == (cost.by_party(1), cost.rounds, cost.with_dealing)


def test_an_order_opens_once(rng: np.random.Generator) -> None:
    def program(p: Party, x: Shared) -> Any:
        factors = p.function(lambda: shuffle.draw_permutation(p, 1, 3, x.dealer))()
        order = arrange.SecretShuffle(p, factors, 3)
        order.open_column(x)
        with raises(ProtocolError, "already-opened"):
            order.open_column(x)

    simulate(program, np.arange(3))


def test_what_a_partition_opens_takes_all_orders_alike_whatever_its_bits(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed: list[tuple[int, ...]] = []
    turns = 60

    class Recording(arrange.SecretShuffle):
        def open_column(self, column: Shared) -> Any:
            opened = super().open_column(column)
            if self._party.index == 0:
                observed.append(tuple((opened.numpy() & 3).tolist()))
            return opened

    monkeypatch.setattr(arrange, "SecretShuffle", Recording)

    def program(p: Party, *several: Shared) -> None:
        for x in several:
            for _ in range(turns):
                arrange.partition_by_bit(p, as_bit(x))

    keys = [rng.bytes(16) for _ in range(3)]
    simulate(program, np.array([0, 1, 0]), np.ones(3, np.int64), keys=keys)
    orders = sorted(set(observed))
    assert len(observed) == 2 * turns and len(orders) == 6
    for part in (observed[:turns], observed[turns:]):
        assert stats.chisquare([part.count(o) for o in orders]).pvalue > ALPHA


def test_private_tables_are_opened_in_two_places_alone() -> None:
    """Check the two openings: a vector in a separate order, and the AND of a bit per row."""
    opened = re.compile(r"\breveal(?:_bits)?\(")
    root = Path(arrange.__file__).parent
    openings = {f.name: len(opened.findall(f.read_text())) for f in root.glob("*.py")}
    assert {name: n for name, n in openings.items() if n} == {"arrange.py": 1, "results.py": 1}


def test_targets_that_are_no_permutation_are_refused() -> None:
    with raises(ProtocolError, "invalid-row-targets"):
        simulate(lambda p, x: arrange.permute_by_target(p, x).n, np.array([0, 2, 2]))


@pytest.mark.parametrize("k", [1, 3, 8, 9, 10, 33, 64])
def test_an_equality_is_exact_for_every_value_modulo_its_ring(
    k: int, rng: np.random.Generator
) -> None:
    edges = [0, 1, -1, 2 ** (k - 1) - 1, 2 ** min(k, 62), INT64.min, INT64.max]
    x = np.concatenate([np.array(edges, np.int64), rng.integers(-2, 3, 600)])
    y = rng.integers(0, 2, len(x))

    def program(p: Party, x: Shared, y: Shared) -> Any:
        def both(x: Shared, y: Shared) -> Any:
            equal_bits = equality.are_shares_all_zero(p, [(x, k)], [bits.to_masked(as_bit(y))])
            return bits.from_masked(p, equal_bits), bits.exchange_bits(
                p, logic.and_bits(p, [equal_bits])
            )

        return p.function(both)(x, y)

    sim = simulate(program, x, y, dealer=k % 3)
    expected = (x.astype(object) % 2**k == 0) & (y == 1)
    assert np.array_equal(sim.value(output_at(0)) == 1, expected)
    assert np.array_equal(sim.value(output_at(1)) == 1, expected)


def test_a_tree_of_ands_ends_with_one_and_refuses_nothing() -> None:
    for nodes in (1, 2, 9, 10, 64, 81, 500, 3000):
        left = nodes
        for sizes in equality.plan_equality_and_tree(nodes):
            assert sum(sizes) == left and max(sizes) <= 9
            left = len(sizes)
        assert left == 1


def test_columns_of_another_size_and_keys_of_no_bits_are_refused() -> None:
    def program(p: Party, x: Shared) -> None:
        for code, call in (
            ("shape-mismatch", lambda: arrange.identity_permutation(4).apply([x])),
            ("shape-mismatch", lambda: arrange.identity_permutation(4).apply_inverse([x])),
            ("empty-input", lambda: arrange.sort_by_keys(p, [])),
            ("number-out-of-range", lambda: arrange.sort_by_keys(p, [(x, 0)])),
            ("number-out-of-range", lambda: arrange.sort_by_keys(p, [(x, 65)])),
        ):
            with raises(UsageError, code):
                call()

    simulate(program, np.arange(3))
