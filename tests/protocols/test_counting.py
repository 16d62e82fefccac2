"""Costs by counting: requirements, refusals and totals.

The tests of each protocol check the counted cost against the wire, for every
operation by test_operations_page.py and test_widths.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.pages import import_page
from tests.paths import ROOT
from tests.protocols import test_widths
from tests.refusals import raises
from tfe_bench.errors import ProtocolError, UsageError
from tfe_bench.protocols.nn import relu
from tfe_bench.protocols.order import sort
from tfe_bench.protocols.ring import (
    arithmetic,
    conv,
    conv_gradients,
    convert,
    masked,
    reductions,
    shapes,
    truncation,
)
from tfe_bench.protocols.session import sharing, slots, tensor_ops
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import CostParty, Private, cost_of, count_cost
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

operations = import_page("operations")
WITHOUT_TENSORFLOW = """
import json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tensorflow":
            raise ImportError("there is no TensorFlow here")

sys.meta_path.insert(0, Blocked())
from tests.protocols import test_counting
print(json.dumps(test_counting.count_all()))
assert "tensorflow" not in sys.modules
"""


def count_all() -> dict[str, Any]:
    """Return the counted costs of all operations and widths, and of a sort."""
    costs: dict[str, Any] = {name: list(cost) for name, cost in operations.count_costs().items()}
    for name, row in test_widths.WIDTHS.items():
        cost = test_widths.count_row(
            name, test_widths.cases_of(name, {row.least, row.most}, 1)
        ).cost
        costs[name] = [*cost.by_party(0), cost.rounds, cost.with_dealing]
    keys = Private((2, 100))
    for algorithm in ("network", "all-pairs"):
        cost = cost_of(sort.sort, keys, (keys,), graphs=True, algorithm=algorithm)
        costs[algorithm] = [*cost.by_party(0), cost.rounds, cost.with_dealing]
    return costs


@pytest.mark.skipif(sys.platform != "linux", reason="a process of its own")
def test_all_is_counted_without_tensorflow() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == json.loads(json.dumps(count_all()))


def test_what_does_not_say_its_cost_is_refused() -> None:
    with raises(ProtocolError, "undeclared-cost", operation="unpriced"):
        count_cost(lambda p, x: p.site("unpriced"), Private((3,)))


@pytest.mark.parametrize(
    "use",
    [
        lambda s, x: s.send(x.m, s.e2),
        lambda s, x: s.kernel_attributes(),
        lambda s, x: masked.deal(s, None, x.shape, 0),
        lambda s, x: masked.exchange_masked(s, None, x.shape, 0),
    ],
    ids=["a message", "a kernel", "no exchange", "no share"],
)
def test_only_dealt_shares_and_their_exchange_are_counted_by_themselves(
    use: Callable[[Any, Shared], Any],
) -> None:
    with raises(ProtocolError, "undeclared-cost", operation="unpriced"):
        declared = {0: slots.declare_exchanged()}
        count_cost(lambda p, x: use(p.site("unpriced", slots=declared), x), Private((3,)))


def test_bits_dealt_before_two_exchanges_are_counted_once() -> None:
    def program(party: CostParty, x: Shared) -> tuple[Shared, Shared]:
        s = party.site(
            "two",
            slots={
                0: slots.declare_dealt(),
                1: slots.declare_exchanged(),
                2: slots.declare_exchanged(),
            },
        )
        share = masked.deal(s, None, x.shape, 0) + x.m
        first = masked.exchange_masked(s, share, x.shape, 1, 1)
        return first, masked.exchange_masked(s, share, x.shape, 2, 2)

    assert cost_of(program, Private((3,))) == Cost(192, 384, 384, rounds=1, with_dealing=2)


def test_what_does_not_fit_is_refused_as_it_is_where_it_runs() -> None:
    with raises(UsageError, "shape-mismatch", operation="mul"):
        cost_of(arithmetic.mul, Private((3,)), Private((2,)))
    with raises(UsageError, "number-out-of-range"):
        cost_of(truncation.truncate, Private((3,)), 49)


def test_what_runs_side_by_side_shares_its_rounds() -> None:
    one = cost_of(relu.relu, Private((64,)))

    def two(party: Party, x: Shared, y: Shared) -> Shared:
        return arithmetic.add(relu.relu(party, x), relu.relu(party, y))

    both = cost_of(two, Private((64,)), Private((64,)))
    assert (both.rounds, both.with_dealing, both.total) == (
        one.rounds,
        one.with_dealing,
        2 * one.total,
    )

    def after(party: Party, x: Shared) -> Shared:
        return relu.relu(party, relu.relu(party, x))

    chain = cost_of(after, Private((64,)))
    # the dealer sends the messages of both ahead
    assert (chain.rounds, chain.with_dealing) == (2 * one.rounds, one.with_dealing + one.rounds)
    assert chain.by_party(0) == tuple(2 * bits for bits in one.by_party(0))


def test_a_late_dealer_is_waited_for() -> None:
    """Check that the first AND needs the dealer's message only; the exchange takes the round."""

    def program(party: CostParty, x: Shared) -> Shared:
        dealt = party.count_messages(Cost(64, 0, 0, rounds=0, with_dealing=1), x.shape, x)
        return Shared(
            party.count_messages(Cost(0, 64, 64, rounds=1, with_dealing=1), dealt.shape, dealt),
            None,
            None,
        )

    assert cost_of(program, Private((1,))) == Cost(64, 64, 64, rounds=1, with_dealing=2)


def test_graph_calls_follow_each_other() -> None:
    def program(party: Party, x: Shared) -> Shared:
        graph = party.function(lambda x: arithmetic.mul(party, x, x))
        result: Shared = graph(graph(x))
        return result

    once = cost_of(arithmetic.mul, Private((4,)), Private((4,)))
    twice = cost_of(program, Private((4,)), graphs=True)
    assert twice == Cost(
        *(2 * getattr(once, k) for k in ("dealer", "e1", "e2", "rounds", "with_dealing"))
    )


def test_the_largest_array_is_known() -> None:
    def program(party: Party, x: Shared) -> Shared:
        return reductions.reduce_sum(shapes.tile(arithmetic.mul(party, x, x), [10]), 0)

    assert count_cost(program, Private((1000,))).largest == 1000
    wide = count_cost(
        lambda p, x: arithmetic.mul(p, x, shapes.reshape(x, [-1, 1])), Private((100,))
    )
    assert wide.largest == 10_000
    assert count_cost(lambda p, x: convert.extend_to_wide(p, x, 9), Private((640,))).largest > 1280


@pytest.mark.parametrize(
    ("made", "shape"),
    [
        (lambda a: tensor_ops.reshape(a, [-1, 4]), (6, 4)),
        (lambda a: tensor_ops.transpose(a), (4, 3, 2)),
        (lambda a: tensor_ops.concat([a, a], -1), (2, 3, 8)),
        (lambda a: tensor_ops.stack([a, a], -1), (2, 3, 4, 2)),
        (lambda a: tensor_ops.gather(a, [[0, 1], [1, 1]], 1), (2, 2, 2, 4)),
        (lambda a: tensor_ops.slice(a, [0, 1, 0], [2, -1, 3]), (2, 2, 3)),
        (lambda a: tensor_ops.pad(a, [(0, 0), (1, 2), (0, 0)]), (2, 6, 4)),
        (lambda a: tensor_ops.reduce_sum(a, [0, -1], True), (1, 3, 1)),
        (lambda a: tensor_ops.reduce_sum(a), ()),
        (lambda a: a[..., None, 1:], (2, 3, 1, 3)),
        (lambda a: a[:, 0] + a[0, 0], (2, 4)),
    ],
)
def test_shapes_follow_tensorflows_rules(made: Any, shape: tuple[int, ...]) -> None:
    import tensorflow as tf

    abstract = made(tensor_ops.SymbolicTensor(tensor_ops.Shape((2, 3, 4)), 2, 3))
    assert abstract.shape == shape and (abstract.rounds, abstract.with_dealing) == (2, 3)
    assert tuple(made(tf.zeros([2, 3, 4], tf.int64)).shape) == shape


def test_a_process_that_only_counts_knows_the_operators() -> None:
    code = (
        "from tfe_bench.protocols.session.counting import Private, cost_of\n"
        "print(cost_of(lambda p, x: x * x, Private((3,))).rounds)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "2", done.stderr


def test_an_operator_that_nothing_has_bound_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sharing, "_operations", {})
    with raises(ProtocolError, "operators-not-registered"):
        count_cost(lambda party, x: x * x, Private((3,)))


@pytest.mark.parametrize(
    ("protocol", "shapes", "work"),
    [
        (conv.conv2d, [(2, 5, 5, 3), (3, 3, 3, 4)], 2 * 9 * 4 * 27),
        (partial(conv.conv2d, depthwise=True), [(2, 5, 5, 3), (3, 3, 3, 2)], 2 * 9 * 6 * 9),
        (arithmetic.matmul, [(7, 2, 3), (3, 4)], 7 * 2 * 3 * 4),
        (arithmetic.mul, [(7,), (7,)], 0),
    ],
)
def test_multiplications_of_products_are_counted(
    protocol: Any, shapes: list[tuple[int, ...]], work: int
) -> None:
    assert count_cost(protocol, *map(Private, shapes)).work == work


def test_gradients_of_convolutions_take_as_many_multiplications() -> None:
    windows = conv.Windows.from_arguments("conv2d", 1, "VALID", 1)
    image, kernel, value = (2, 5, 5, 3), (3, 3, 3, 4), (2, 3, 3, 4)
    maps = [
        (conv_gradients.input_gradient(windows, image), value, kernel),
        (conv_gradients.kernel_gradient(windows, kernel), image, value),
    ]
    for two, a, b in maps:
        counted = two(
            [tensor_ops.SymbolicTensor(tensor_ops.Shape(a))],
            [tensor_ops.SymbolicTensor(tensor_ops.Shape(b))],
        )
        assert counted.work == 2 * 9 * 4 * 27


def test_a_graph_begins_its_messages_anew_whatever_its_arguments_are_in() -> None:
    def twice(party: Any, x: Any) -> Any:
        first = party.function(lambda x: x * x)(x)
        return party.function(lambda inputs: inputs["x"][0] * inputs["x"][0])({"x": [first]})

    one = cost_of(lambda party, x: x * x, Private((3,)))
    both = count_cost(twice, Private((3,)), graphs=True).cost
    assert (both.rounds, both.with_dealing) == (2 * one.rounds, 2 * one.with_dealing)


def test_words_that_local_maps_move_are_counted() -> None:
    n = 70

    def mapped(p: Party, x: Shared) -> Shared:
        y = shapes.transpose(shapes.reshape(x, [7, 10]), [1, 0])  # n; a view moves nothing
        y = arithmetic.add(shapes.reshape(y, [n]), x)  # n
        y = shapes.concat([y, y], 0)  # 2 n
        return reductions.reduce_sum(y, 0)  # reads 2 n

    assert count_cost(mapped, Private((n,))).moved_words == 6 * n
    party = CostParty()
    x = Private((n,)).to_symbolic()
    mapped(party, x)  # counted only while the party is active
    assert party.moved_words == 0
    with party.active():
        mark = party.take_snapshot()
        mapped(party, x)
        party.repeat(mark, 3)
    assert party.moved_words == 4 * 6 * n
    mapped(party, x)
    assert party.moved_words == 4 * 6 * n
