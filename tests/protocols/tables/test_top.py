"""The first rows in an order: those of a sort, ties included, at a lower cost for few rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.protocols.shares import output_at
from tests.protocols.tables.relations import as_bit, delivered_rows, parts_of
from tests.protocols.views import ALPHA
from tests.refusals import raises
from tfe_bench.cluster.simulate import simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.order import select, sort
from tfe_bench.protocols.session.counting import Private, count_cost
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange, relation, results
from tfe_bench.protocols.tables.keys import OrderKey
from tfe_bench.protocols.tables.relation import Column, Relation


def table_relation(key: Shared, null: Shared, index: Shared, valid: Shared) -> Relation:
    narrow, nullable = Column(key, 6), Column(key, 6, as_bit(null))
    return Relation((narrow, nullable, Column(key), Column(index, 10)), as_bit(valid))


@pytest.mark.parametrize("n", [1, pytest.param(6, marks=pytest.mark.slow), 700])
def test_the_first_rows_are_those_of_an_order_ties_included(
    n: int, rng: np.random.Generator
) -> None:
    key, valid = rng.integers(0, 40, n), (rng.integers(0, 5, n) > 0).astype(np.int64)
    null = (rng.integers(0, 9, n) == 0).astype(np.int64)
    most = sorted({1, min(n, 30), n - 1 or 1, n + 3})
    ways = [[OrderKey(0)], [OrderKey(1, True), OrderKey(0)], [OrderKey(2), OrderKey(0)]]
    assert select.is_selection_cheaper(700, 30) and not select.is_selection_cheaper(700, 699)

    def program(p: Party, *shares: Shared) -> Any:
        whole, outputs = table_relation(*shares), []
        for by in ways:
            ordered = results.order_by(p, whole, by)
            for k in most:
                outputs.append((results.top_rows(p, whole, by, k), relation.limit_rows(ordered, k)))
        return [
            [parts_of(results.deliver_rows(p, r, is_ordered=True)) for r in two] for two in outputs
        ]

    sim = simulate(program, key, null, np.arange(n), valid, dealer=n % 3)
    for i, k in enumerate(most * len(ways)):
        first, due = delivered_rows(sim, output_at(i, 0)), delivered_rows(sim, output_at(i, 1))
        assert first == due and len(first) == min(k, int(valid.sum()))


def test_the_first_rows_of_no_order_or_number_are_refused() -> None:
    def program(p: Party, x: Shared) -> None:
        rows = Relation((Column(x),), as_bit(x))
        for by, k in (([], 1), ([OrderKey(0)], 0), ([OrderKey(0)], True)):
            code = "number-out-of-range" if by else "empty-input"
            with raises(UsageError, code, operation="top", received=k):
                results.top_rows(p, rows, by, k)

    simulate(program, np.ones(3, np.int64))


@pytest.mark.parametrize("profile", ["local", "wan"])
def test_few_rows_cost_less_than_an_order_of_all(profile: str) -> None:
    n = 1 << 20

    def sent(k: int) -> Any:
        def program(p: Party, *shares: Shared) -> Any:
            rows = table_relation(*shares)
            return results.top_rows(p, rows, [OrderKey(0)], k, profile=profile).parts

        return count_cost(program, *[Private((n,), 0)] * 4, graphs=True, expected=True).cost

    few, some, every = (sent(k) for k in (10, n // 100, n))
    assert few.total < some.total < 0.5 * every.total and few.total < 0.35 * every.total
    assert few.rounds < some.rounds < every.rounds


def _select_positions(
    monkeypatch: pytest.MonkeyPatch, keys: Any, seeds: list[bytes], fault: str | None = None
) -> list[tuple[int, ...]]:
    """Return the shuffled positions of the first 2 of 32 elements for repeated selections."""
    monkeypatch.setitem(sort.ROUND_COST, "local", 1.0)
    select._plan_quickselect_cut.cache_clear()
    assert select.is_selection_cheaper(32, 2)
    turns = 40

    def program(p: Party, x: Shared) -> Any:
        return [arrange.select_first(p, x, 6, 2)[1].tolist() for _ in range(turns)]

    try:
        done = simulate(program, keys, keys=seeds, fault=fault)
    finally:
        select._plan_quickselect_cut.cache_clear()
    assert done.outputs[0] == done.outputs[1] == done.outputs[2]
    return [tuple(positions) for positions in done.outputs[0]]


def _uniform_p(positions: list[tuple[int, ...]]) -> float:
    """Return p-values of both positions, in quarters of the rows, and of their relative order."""
    quarters = Counter(place // 8 for places in positions for place in places)
    p = float(stats.chisquare([quarters[i] for i in range(4)]).pvalue)
    return min(p, float(stats.binomtest(sum(a < b for a, b in positions), len(positions)).pvalue))


def test_where_the_first_rows_are_is_alike_for_all_inputs(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [np.arange(32), np.arange(32)[::-1].copy(), np.full(32, 7)]
    positions = [
        _select_positions(monkeypatch, x, [rng.bytes(16) for _ in range(3)]) for x in inputs
    ]
    assert min(_uniform_p(each) for each in positions) * 2 * len(positions) > ALPHA


def test_a_biased_permutation_shows_in_where_the_first_rows_are(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = [rng.bytes(16) for _ in range(3)]
    positions = _select_positions(monkeypatch, np.arange(32), seeds, "biased_permutation")
    assert _uniform_p(positions) < ALPHA
