"""Graphs that a session keeps for the next one: the same protocols, other keys, no values."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.cluster.simulate import simulate
from tfe_bench.errors import ProtocolError
from tfe_bench.protocols.nn import relu
from tfe_bench.protocols.ring import arithmetic
from tfe_bench.protocols.session import graph
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


class CapturedObject:
    """An object that a function captures."""


@pytest.fixture
def kept_graphs(monkeypatch: pytest.MonkeyPatch) -> graph.KeptGraphs:
    """Start without graphs of another test."""
    own = graph.KeptGraphs()
    monkeypatch.setattr(graph, "KEPT", own)
    return own


def _two_functions(name: Any, alive: list[Any]) -> Any:
    """Call two functions of one scope; the second differs for another name."""

    def program(party: Party, x: Shared) -> Any:
        held = CapturedObject()
        alive.append(weakref.ref(held))

        def first(x: Shared) -> Shared:
            assert held is not None
            return relu.relu(party, x)

        def second(x: Shared) -> Shared:
            return arithmetic.mul_public(x, np.int64(2 if name == "two" else 3))

        with party.kept_graphs(name):
            actual = party.function(first)(x)
            result = party.function(second)(actual)
        return [result, actual.m, [*party.site_names.values()], party.build_seconds]

    return program


def test_a_second_session_traces_nothing_and_has_masks_of_its_own(
    kept_graphs: graph.KeptGraphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[Any] = []
    runs = [simulate(_two_functions("two", alive), np.array([-5, 7, 1]))]
    held = {name: g.concrete for name, g in kept_graphs._graphs.items()}
    assert len(held) == 6  # two at each party
    monkeypatch.setattr(graph.PrivateFunction, "_trace", None)
    runs += [simulate(_two_functions("two", alive), x) for x in (np.array([4, -9, 2]),) * 2]
    assert {name: g.concrete for name, g in kept_graphs._graphs.items()} == held
    for sim, due in zip(runs, ([0, 14, 2], [8, 0, 4], [8, 0, 4]), strict=True):
        assert sim.value(lambda out: out[0]).tolist() == due
        assert [out[2] for out in sim.outputs] == [out[2] for out in runs[0].outputs]
    masked = [tuple(out[1].tolist()) for sim in runs[1:] for out in sim.outputs[1:2]]
    assert len(set(masked)) == 2  # equal inputs, other masks
    gc.collect()
    # the functions and their captured objects are released
    assert not any(ref() for ref in alive)


def test_another_name_or_signature_is_another_graph(kept_graphs: graph.KeptGraphs) -> None:
    for name, x, due in (("two", [1, 2], [2, 4]), ("three", [1, 2], [3, 6]), ("two", [4], [8])):
        sim = simulate(_two_functions(name, []), np.array(x))
        assert sim.value(lambda out: out[0]).tolist() == due
    assert len(kept_graphs._graphs) == 18


def test_graphs_are_each_client_s_own(kept_graphs: graph.KeptGraphs) -> None:
    """Keep the time of a job from disclosing the jobs of other clients."""
    program = _two_functions("two", [])

    def of(client: str) -> Any:
        def run(party: Party, x: Shared) -> Any:
            party.client = client
            return program(party, x)

        return run

    for client, count in (("alice", 6), ("bob", 12), ("alice", 12)):
        simulate(of(client), np.array([1, 2]))
        assert len(kept_graphs._graphs) == count


def test_without_a_name_nothing_is_kept(kept_graphs: graph.KeptGraphs) -> None:
    simulate(_two_functions(None, []), np.array([1]))
    assert not kept_graphs._graphs


def test_a_function_that_holds_tensors_by_itself_is_refused(kept_graphs: graph.KeptGraphs) -> None:
    def program(party: Party, x: Shared) -> Any:
        with party.kept_graphs("name"):
            return [party.function(lambda: arithmetic.add(x, x))()]

    with raises(ProtocolError, "captured-tensor"):
        simulate(program, np.array([1]))
    assert not kept_graphs._graphs


def test_the_oldest_graphs_go_first() -> None:
    kept_graphs = graph.KeptGraphs(max_ops=10)
    for name, ops in (("a", 4), ("b", 5), ("whole", 11)):
        kept_graphs.keep_graph(name, graph.Graph(lambda: [], (), b"", {}, ops))
    assert kept_graphs.find_graph("a") is not None and kept_graphs.find_graph("whole") is None
    kept_graphs.keep_graph("c", graph.Graph(lambda: [], (), b"", {}, 5))
    assert (
        kept_graphs.find_graph("b") is None
        and kept_graphs.find_graph("a") is not None
        and kept_graphs.find_graph("c") is not None
    )


def test_of_a_graph_only_what_runs_is_left(
    kept_graphs: graph.KeptGraphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drop Python's graph and the call stack of each op, which take most of its memory."""
    traced: list[Any] = []
    compiled = graph._Compiled

    def watched(concrete: Any) -> Any:
        ops = concrete.graph.get_operations()
        traced.append((weakref.ref(concrete.graph), [op.traceback for op in ops]))
        return compiled(concrete)

    monkeypatch.setattr(graph, "_Compiled", watched)
    sim = simulate(_two_functions("left", []), np.array([-5, 7, 1]))
    assert sim.value(lambda out: out[0]).tolist() == [0, 21, 3]
    gc.collect()
    assert len(traced) == len(kept_graphs._graphs) == 6
    for left, stacks in traced:
        assert left() is None and stacks and not any(stacks)
