"""Dealer schedule: stretches of another dealer keep a model's values, at one round each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.models.test_execute import (
    Case,
    make_case,
    run_all,
    shake_weights,
    simulate_cases,
    small_net,
)
from tests.protocols.dealers import by_a_dealer
from tests.protocols.shares import output_at
from tfe_bench import clusters
from tfe_bench.cluster.simulate import assert_costs, total_rounds
from tfe_bench.models.inference import dealer_schedule, execute
from tfe_bench.models.inference.private import convert

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers
ULP = 2.0**-16


def dealt_by(some: Case, *dealers: int) -> Case:
    """Return the prediction with layers of these dealers, repeatedly."""
    s, *inputs = some
    layers = len(s.plan.graph.layers)
    own = tuple(dealers[i % len(dealers)] for i in range(layers))
    return (replace(s, dealers=own), *inputs)  # type: ignore[return-value]


@by_a_dealer
def test_whoever_deals_for_a_layer_the_model_is_the_same(
    dealer: int, rng: np.random.Generator
) -> None:
    images = rng.uniform(0, 1, (2, 8, 8, 1)).astype(np.float32)
    model = shake_weights(small_net(), rng)
    private = convert(model, samples=images)
    expected = np.asarray(model(images, training=False))
    some = [
        dealt_by(make_case(private, images, "wan", watched), *dealers)
        for watched, dealers in ((True, (0, 1, 2)), (False, (0, 2, 2, 1)), (True, (2,)))
    ]
    for (s, *_), (got, calls) in zip(some, run_all(some, dealer), strict=True):
        assert np.abs(got - expected).max() < 32 * ULP
        cost = execute.model_cost(s)
        # which evaluator the first dealing waits for is not counted, so it may be one less
        rounds = total_rounds([c[1] for c in calls], "with_dealing")
        assert cost.with_dealing - 1 <= rounds <= cost.with_dealing
        assert_costs(calls, replace(cost, with_dealing=rounds), dealer)
        # each stretch costs at most one round, as its dealer runs ahead
        one = execute.model_cost(replace(s, dealers=()))
        turned = sum(a != b for a, b in zip((0, *s.dealers), s.dealers, strict=False))
        assert one.rounds <= cost.rounds <= one.rounds + turned
        assert cost.with_dealing <= one.with_dealing + turned


@pytest.mark.parametrize("wrong", range(3))
def test_a_value_out_of_its_range_is_seen_in_any_turn(wrong: int, rng: np.random.Generator) -> None:
    """Use a layer whose differences are 0 in all samples, and not in the second row."""
    stack = [L.Dense(4, activation="relu", use_bias=False) for _ in range(3)]
    model = keras.Sequential([L.Input((4,)), *stack])
    for i, layer in enumerate(stack):
        kernel = np.eye(4) if i != wrong else 1000 * (np.eye(4) - np.roll(np.eye(4), 1, axis=1))
        layer.set_weights([kernel.astype(np.float32)])
    samples = np.repeat(rng.uniform(0.5, 1, (16, 1)), 4, axis=1).astype(np.float32)
    inputs = np.concatenate([samples[:1], [[0.0, 1, 0, 1]]]).astype(np.float32)
    some = dealt_by(make_case(convert(model, samples=samples), inputs, "wan", True), 0, 1, 2)
    by_op = [layer.op for layer in some[0].plan.graph.layers]
    assert len(by_op) >= 3 and len(set(some[0].dealers)) == 3, by_op
    flags = simulate_cases([some], 0, again=False).value(output_at(0, 0, 1))
    assert flags[0] == 0 and flags[1] != 0


def test_turns_are_long_and_begin_where_little_is_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Put each wide layer before a narrow one: stretches begin only there, and once in eight."""
    x = y = keras.Input((64,))
    for _ in range(9):
        y = L.Dense(64)(L.Dense(1, activation="relu")(L.Dense(512, activation="relu")(y)))
    private = convert(keras.Model(x, y), samples=np.ones((2, 64), np.float32))
    s = execute.tune_prediction(private.plan, "wan")
    nodes, costs = s.placed_layers(), [tally.cost for tally in execute.layer_cost_reports(s)]
    assert dealer_schedule.assign_dealers(private.graph, nodes, costs, 1) == () == s.dealers
    monkeypatch.setattr(dealer_schedule, "_MIN_DEALT_BITS", min(cost.dealer for cost in costs[::3]))
    graph = private.plan.graph
    dealers = dealer_schedule.assign_dealers(graph, nodes, costs, 1)
    begins = [i for i in range(1, len(dealers)) if dealers[i] != dealers[i - 1]]
    assert [dealers[i] for i in begins] == [2, 0] and begins[1] - begins[0] == 3
    assert all(graph.shapes[name] == (1,) for i in begins for name in graph.layers[i].inputs)
    assert sum(cost.dealer for cost in costs[: begins[0]]) >= 7 * dealer_schedule._MIN_DEALT_BITS


@pytest.mark.slow
def test_workers_on_slow_lines_take_turns_and_answer_as_keras(rng: np.random.Generator) -> None:
    x = y = keras.Input((1 << 19,))
    for _ in range(40):
        y = L.Rescaling(0.9, offset=-0.1)(L.ReLU()(y))
    model = keras.Model(x, y)
    values = rng.uniform(-4, 4, (1, 1 << 19)).astype(np.float32)
    private = convert(model, samples=values)
    assert set(execute.tune_prediction(private.plan, "wan", watched=True).dealers) == {0, 2}
    with clusters.LocalCluster(profile="wan", emulate="channel") as cluster:
        for check in (True, False):
            got = cluster.predict(private, values, check_range=check)
            wrong = np.abs(got - model(values, training=False)).max()
            # each layer rounds once, and earlier errors shrink by 0.9
            assert wrong < 4 * 10 * ULP


def test_on_a_fast_network_one_deals_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealer_schedule, "assign_dealers", lambda *given: pytest.fail("asked"))
    private = convert(small_net(), samples=np.ones((1, 8, 8, 1), np.float32))
    for profile in ("local", "lan"):
        assert execute.tune_prediction(private.plan, profile).dealers == ()
