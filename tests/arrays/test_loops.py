"""Loops in one job: results, costs, masks, and restrictions of bodies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.arrays.simulated import Client, Workers, tfb, traced_from_now
from tests.protocols.pads import repeated_words, words_under_one_pad
from tests.refusals import raises
from tfe_bench.arrays import explaining, plan
from tfe_bench.arrays.building import build
from tfe_bench.arrays.operations import loops
from tfe_bench.arrays.programs import compute
from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.cluster.simulate import simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

TURNS, ROWS, FEATURES = 5, 8, 3


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    workers = Workers(tmp_path)
    yield Client(workers, "ann")
    workers.close()


def gradient_step(rate: Any) -> Any:
    """Compute a step of logistic regression, on private arrays or NumPy's."""

    def step(w: Any, batch: Any) -> Any:
        x, y = batch
        if isinstance(x, np.ndarray):
            return w - x.T @ (1 / (1 + np.exp(-x @ w)) - y) * rate
        return w - tfb.transpose(x) @ (tfb.sigmoid(x @ w) - y) * rate

    return step


def draw_batches(rng: np.random.Generator) -> tuple[Any, Any]:
    xs = rng.normal(size=(TURNS, ROWS, FEATURES))
    return xs, (xs.sum(-1, keepdims=True) > 0) * 1.0


def test_a_loop_is_what_its_turns_are_one_after_the_other(
    client: Client, rng: np.random.Generator
) -> None:
    xs, ys = draw_batches(rng)
    w, rate = np.zeros((FEATURES, 1)), 0.5
    private = tuple(client.private(each) for each in (xs, ys))
    # (the rate is computed once: it is equal in all iterations)
    weights = tfb.foldl(gradient_step(client.private(rate) * 0.25), private, w)
    assert weights.shape == w.shape and "5) of matmul, sigmoid" in weights.explain("wan")
    for batch in zip(xs, ys, strict=True):
        w = gradient_step(rate * 0.25)(w, batch)
    np.testing.assert_allclose(weights.reveal(), w, atol=1e-3)
    _, price = explaining.price_array_reveal(weights._node)
    last = client.workers.last
    assert last is not None and last.sent == price.cost.by_party(0)
    assert (last.rounds, last.with_dealing) == (price.cost.rounds, price.cost.with_dealing)
    np.testing.assert_allclose((weights * 2).compute()[0].reveal(), 2 * w[0], atol=2e-3)


@pytest.mark.parametrize("times", [1, 2, 7])
def test_several_are_carried_on_bits_and_integers_among_them(client: Client, times: int) -> None:
    a, b = np.arange(4), np.array([True, False, True, True])
    held = client.private(b)

    def turn(state: Any) -> Any:
        now, before, flag = state
        return [now + before, now, flag ^ held]

    start = [client.private(a), client.private(a), client.private(b)]
    results = tfb.foldl(turn, times, start)
    now, before, flag = a, a, b
    for _ in range(times):
        now, before, flag = now + before, now, flag ^ b
    for got, expected in zip(results, (now, before, flag), strict=True):
        np.testing.assert_array_equal(got.reveal(), expected)


def test_elements_may_be_bits_and_one_may_be_alone(client: Client) -> None:
    flags = np.array([[True, False], [True, True], [False, True]])
    count = tfb.foldl(lambda n, b: n + tfb.cast(b), client.private(flags), np.zeros(2, int))
    np.testing.assert_array_equal(count.reveal(), flags.sum(0))
    total = tfb.foldl(lambda s, x: s + x, client.private(np.array([1.5, 2.0])), 0.25)
    assert total.shape == () and total.reveal() == 3.75
    held = client.private(1.5)
    assert tfb.foldl(lambda s: held, 3, held).reveal() == 1.5


def test_loops_follow_one_another_and_what_sorts_stands_between(client: Client) -> None:
    x = client.private(np.array([3.0, 1.0, 2.0]))
    doubled = tfb.foldl(lambda v: v * 2, 3, tfb.sort(x))
    again = tfb.foldl(lambda v: v + doubled, 2, tfb.sort(doubled * -1))
    np.testing.assert_allclose(again.reveal(), [-8.0, 16, 40], atol=1e-3)


def test_the_second_loop_traces_nothing(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> Any:
        held = client.private(np.ones((4, 2))).compute()
        return tfb.foldl(lambda s, x: s + tfb.relu(x), held, np.zeros(2)).compute().reveal()

    np.testing.assert_allclose(run(), [4, 4], atol=1e-3)
    traced = traced_from_now(monkeypatch)
    run()
    assert not traced


@pytest.mark.parametrize("dealer", range(3))
def test_every_turn_has_masks_of_its_own(dealer: int, rng: np.random.Generator) -> None:
    """Check with a seeded fault that sessions refuse iterations under one step number."""
    body = plan.parse_body([1, [["relu", [["ref", 0]], {}]], [["ref", 1]]])

    def program(p: Party, x: Shared) -> Any:
        with p.active():
            return loops.run_array_loop([x], [], [], 6, body)

    keys = [rng.bytes(16) for _ in range(3)]
    x = np.full(40, 7 << 16)
    simulation = simulate(program, x, dealer=dealer, keys=keys, record=True, fractional_bits=16)
    np.testing.assert_array_equal(simulation.value(lambda out: out[0]), x)
    assert words_under_one_pad(simulation.pads) == 0 and not repeated_words(simulation.pads)
    assert len(np.unique(simulation.pads["hi"])) >= 6


def make_header(body: Any, *lists: Any, times: Any = 3) -> dict[str, Any]:
    step = ["foldl", [["list", each] for each in lists], {}, body]
    step[1].append(times)
    return {
        "leaves": [["input", "fixed", [3], 16]],
        "steps": [step],
        "outputs": [[["ref", 1, 0], "reveal", {}]],
    }


ADD = ["add", [["ref", 0], 1], {}]
X = ["ref", 0]
BROKEN: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "no body": (
        {**make_header(None, [X], [], []), "steps": [["foldl", [1], {}]]},
        "loop-body-mismatch",
        "foldl",
    ),
    "body of others": (
        {**make_header(0, [X]), "steps": [[*ADD, [1, [], [X]]]]},
        "loop-body-mismatch",
        "add",
    ),
    "a text": (make_header("x", [X], [], []), "invalid-loop-body", None),
    "leaves": (make_header([1 << 20, [], [X]], [X], [], []), "loop-value-count", None),
    "other leaves": (make_header([2, [ADD], [X]], [X], [], []), "loop-value-mismatch", None),
    "later": (make_header([1, [ADD], [["ref", 2]]], [X], [], []), "invalid-reference", None),
    "turns": (
        make_header([1, [ADD], [["ref", 1]]], [X], [], [], times=1 << 17),
        "number-out-of-range",
        "foldl",
    ),
    "no turn": (
        make_header([1, [ADD], [["ref", 1]]], [X], [], [], times=0),
        "number-out-of-range",
        "foldl",
    ),
    "true": (
        make_header([1, [ADD], [["ref", 1]]], [X], [], [], times=True),
        "number-out-of-range",
        "foldl",
    ),
    "elements": (make_header([2, [ADD], [X]], [X], [X], [], times=2), "shape-mismatch", "foldl"),
    "sort": (
        make_header([1, [["sort", [X], {}]], [["ref", 1, 0]]], [X], [], []),
        "sort-in-loop",
        "sort",
    ),
    "loop": (
        make_header(
            [1, make_header([1, [], [X]], [X], [], [])["steps"], [["ref", 1]]], [X], [], []
        ),
        "sort-in-loop",
        "foldl",
    ),
    "shape": (
        make_header([1, [["reduce_sum", [X], {}]], [["ref", 1]]], [X], [], []),
        "loop-mismatch",
        "foldl",
    ),
    "place": (make_header([1, [ADD], [["ref", 1, 4]]], [X], [], []), "missing-value", None),
    "more": (make_header([1, [ADD], [["ref", 1], X]], [X], [], []), "loop-mismatch", "foldl"),
    "long": (make_header([1, [ADD] * 1001, [X]], [X], [], []), "invalid-plan", "steps"),
    "lists": (make_header([1, [], [X]], X, [], []), "no-private-operand", "foldl"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_loops_are_refused_by_every_worker(name: str) -> None:
    header, code, operation = BROKEN[name]
    with raises(UsageError, code, operation=operation):
        compute.PROGRAM.admit({"plan": header}, [InputSpec("x0", (3,), 16)])


def test_many_loops_have_no_more_steps_than_one_plan() -> None:
    long = [1, [ADD] * 600, [["ref", 1]]]
    header = make_header(long, [X], [], [])
    header["steps"] *= 2
    with raises(UsageError, "plan-too-large"):
        plan.ExpressionPlan.from_header(header)


MISTAKES: dict[str, tuple[Any, str, str]] = {
    "shape": (lambda x: tfb.foldl(lambda s, e: s.sum(), x, x[0]), "loop-mismatch", r"shape=\[4\]"),
    "kind": (lambda x: tfb.foldl(lambda s, e: s > e, x, x[0]), "loop-mismatch", "kind='bits'"),
    "scale": (
        lambda x: tfb.foldl(lambda s, e: tfb.cast(s, 8), x, x[0]),
        "loop-mismatch",
        "fractional_bits=8",
    ),
    "public": (lambda x: tfb.foldl(lambda s, e: 1.0, x, x[0]), "loop-mismatch", "float"),
    "number": (
        lambda x: tfb.foldl(lambda s, e: [s, e], x, x[0]),
        "loop-mismatch",
        "1 private arrays",
    ),
    "no turn": (lambda x: tfb.foldl(lambda s: s, 0, x), "number-out-of-range", "1 to 65536"),
    "lengths": (
        lambda x: tfb.foldl(lambda s, e: s, (x, x[:2]), x[0]),
        "shape-mismatch",
        r"\[2, 4\]",
    ),
    "no axis": (lambda x: tfb.foldl(lambda s, e: s, x.sum(), x[0]), "shape-mismatch", r"\[\[\]\]"),
    "elements": (lambda x: tfb.foldl(lambda s, e: s, np.ones(3), x[0]), "wrong-type", "elems"),
    "all public": (
        lambda x: tfb.foldl(lambda s: s, 3, np.ones(3)),
        "no-private-operand",
        "public values",
    ),
    "sorted": (lambda x: tfb.foldl(lambda s, e: tfb.sort(s), x, x[0]), "sort-in-loop", "sort"),
    "inner": (
        lambda x: tfb.foldl(lambda s, e: tfb.foldl(lambda t: t + e, 2, s), x, x[0]),
        "sort-in-loop",
        "foldl",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_before_anything_is_sent(name: str, client: Client) -> None:
    mistake, code, received = MISTAKES[name]
    with raises(UsageError, code) as caught:
        mistake(client.private(np.ones((3, 4))))
    assert re.search(received, str(caught.value))


def test_what_stood_for_a_turn_is_of_no_use_outside(client: Client) -> None:
    kept: list[Any] = []

    def turn(s: Any, e: Any) -> Any:
        kept.append(e)
        return s + e

    x = client.private(np.ones((3, 4)))
    tfb.foldl(turn, x, x[0])
    with raises(UsageError, "loop-variable-outside"):
        build([(kept[0] + 1)._node], [("reveal", {})])
