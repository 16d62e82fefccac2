"""Traced graphs let TensorFlow run ahead, and hold nothing private."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.graphs import keep_python_graphs
from tfe_bench.cluster.simulate import simulate
from tfe_bench.protocols.nn import relu
from tfe_bench.protocols.order import extremes, shuffle
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic, rss, truncation
from tfe_bench.protocols.session import io, ops, tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

pytestmark = pytest.mark.usefixtures("rewritten")
N = 64
PARTS = ("m", "l1", "l2")
SEND, RECV = "TfeBench>Send", "TfeBench>Recv"
ONE_THREAD = """
import numpy as np
from tfe_bench.cli import worker
worker._import_tensorflow()  # without Keras
import tensorflow as tf
tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.threading.set_intra_op_parallelism_threads(1)
from tfe_bench.cluster.simulate import simulate
from tfe_bench.protocols.order import sort
from tfe_bench.protocols.ring import arithmetic, compare, convert

def program(party, x):
    def function(x):
        products = [arithmetic.mul(party, x, x) for _ in range(20)]
        positive = convert.inject(party, convert.mask_bits(party, compare.msb(party, x)), x)
        return products[-1], positive
    return party.function(function)(x), sort.sort(party, x, algorithm="quick").keys

x = np.array([5, -3, 0, 7])
out = simulate(program, x)
assert list(out.value(lambda o: o[0][0])) == [25, 9, 0, 49]
assert list(out.value(lambda o: o[0][1])) == [0, -3, 0, 0]
assert list(out.value(lambda o: o[1])) == [-3, 0, 5, 7]
print("done")
"""


def as_rows(x: Shared) -> Shared:
    import tensorflow as tf

    return x.map(lambda a: tf.reshape(a, [8, 8]))


def sign_bits(party: Party, x: Shared) -> Any:
    return convert.mask_bits(party, compare.msb(party, x))


def share_of(owner: int) -> Callable[..., Any]:
    return lambda p, x, y: io.share_input(p, owner, y.any if p.index == owner else None, (N,))


# None of these waits for another's result.
INVOCATIONS: dict[str, Callable[..., Any]] = {
    "mul": lambda p, x, y: arithmetic.mul(p, x, y),
    "matmul": lambda p, x, y: arithmetic.matmul(p, as_rows(x), as_rows(y)),
    "rss_mul": lambda p, x, y: rss.mul_replicated(p, x, y),
    "truncate_safe": lambda p, x, y: truncation.truncate(p, x, 16),
    "truncate_probable": lambda p, x, y: truncation.truncate(p, x, 16, "probable"),
    "truncate_reduce": lambda p, x, y: truncation.truncate_reduce(p, x, 8, 40),
    "msb": lambda p, x, y: compare.msb(p, x),
    "b2a": lambda p, x, y: convert.b2a(p, sign_bits(p, x)),
    "inject": lambda p, x, y: convert.inject(p, sign_bits(p, x), y),
    "inject_extending": lambda p, x, y: convert.inject(
        p, sign_bits(p, x), truncation.truncate_reduce(p, y, 8, 31), extend_ring=True
    ),
    "all_of": lambda p, x, y: logic.and_bits(p, [sign_bits(p, x), sign_bits(p, y)]),
    "truncated_product": lambda p, x, y: relu.truncated_product(p, as_rows(x), as_rows(y), 16),
    "all_pairs": lambda p, x, y: extremes.argmax(p, as_rows(x), 0, method="all-pairs"),
    "tree": lambda p, x, y: extremes.reduce_max(p, as_rows(y), 1, method="tree"),
    "extend": lambda p, x, y: convert.extend_to_wide(p, x, 3),
    "shuffle": lambda p, x, y: shuffle.shuffle(p, [as_rows(x), as_rows(y)]),
    "reveal": lambda p, x, y: io.reveal(p, x),
    "reveal_to_1": lambda p, x, y: io.reveal(p, y, to=1),
    "reveal_bits": lambda p, x, y: io.reveal_bits(p, compare.msb(p, y)),
    "input_by_0": share_of(0),
    "input_by_1": share_of(1),
    "input_by_2": share_of(2),
}


@dataclass(frozen=True)
class Traced:
    """One party's graph: the function's, its shares, and the invocation behind each site."""

    concrete: Any
    shares: tuple[Any, ...]
    names: dict[int, str]

    def ops(self, *types: str) -> list[Any]:
        return [op for op in self.concrete.graph.get_operations() if op.type in types]


def ops_before(op: Any, control: bool = True) -> list[Any]:
    """Return all ops that an op waits for, by data and (by default) by control edges."""
    visited: dict[int, Any] = {}
    stack = [op]
    while stack:
        top = stack.pop()
        for b in [t.op for t in top.inputs] + (list(top.control_inputs) if control else []):
            if id(b) not in visited:
                visited[id(b)] = b
                stack.append(b)
    return list(visited.values())


def trace_graphs(dealer: int, names: Iterable[str] = tuple(INVOCATIONS)) -> list[Traced]:
    """Return the three parties' graphs of a function that calls each invocation once."""
    info = np.iinfo(np.int64)
    x, y = np.random.default_rng(1).integers(info.min, info.max, (2, N), np.int64)

    def program(party: Party, x: Shared, y: Shared) -> Any:
        of_site: dict[int, str] = {}

        def function(x: Shared, y: Shared) -> Any:
            results = []
            for name in names:
                first = party._next_site
                results.append(INVOCATIONS[name](party, x, y))
                of_site.update(dict.fromkeys(range(first, party._next_site), name))
            return results

        graph = party.function(function)
        graph(x, y)
        concrete = next(iter(graph._traced.values())).concrete
        shares = [t.numpy() for s in (x, y) for t in (s.m, s.l1, s.l2) if t is not None]
        return [concrete, shares, of_site]

    out = simulate(program, x, y, dealer=dealer).outputs
    return [Traced(concrete, tuple(shares), of_site) for concrete, shares, of_site in out]


@pytest.fixture(scope="module", autouse=True)
def looked_at() -> Iterator[None]:
    with keep_python_graphs():
        yield


@pytest.fixture(scope="module")
def graphs() -> list[Traced]:
    """Return all invocations in one graph, by party, dealt by party 0."""
    return trace_graphs(0)


def stateful_ops(concrete: Any) -> set[str]:
    """Return the types of the stateful ops of a graph and of every function in it."""
    from tensorflow.python.framework import op_def_registry

    ops.module()
    definition = concrete.graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    known = {f.signature.name for f in definition.library.function}
    types = {node.op for node in nodes} - known
    return {t for t in types if op_def_registry.get(t).is_stateful}


def looped_cube(party: Party) -> Callable[[Shared], Shared]:
    """Compute x^3 by a numbered tf.while_loop."""
    import tensorflow as tf

    def function(x: Shared) -> Shared:
        names = [k for k in PARTS if getattr(x, k) is not None]

        def body(i: tf.Tensor, *held: tf.Tensor) -> tuple[tf.Tensor, ...]:
            with party.iteration(i):
                y = arithmetic.mul(party, replace(x, **dict(zip(names, held, strict=True))), x)
            return (i + 1, *(getattr(y, k) for k in names))

        start = (tf.constant(0, tf.int64), *(getattr(x, k) for k in names))
        _, *held = tf.while_loop(lambda i, *_: i < 2, body, start)
        return replace(x, **dict(zip(names, held, strict=True)))

    return function


@pytest.mark.parametrize("party", range(3))
def test_no_op_is_stateful(graphs: list[Traced], party: int) -> None:
    assert graphs[party].ops(SEND)
    assert stateful_ops(graphs[party].concrete) == set()


def test_only_the_ends_of_the_channel_are_stateful_in_a_numbered_loop() -> None:
    """Keep sends and receives of a loop from being pruned: its body cannot return tokens."""

    def program(party: Party, x: Shared) -> Any:
        graph = party.function(looped_cube(party))
        result = graph(x)
        concrete = next(iter(graph._traced.values())).concrete
        return [concrete, result]

    sim = simulate(program, np.array([2, -3]))
    assert list(sim.value(lambda out: out[1])) == [8, -27]
    for concrete, _ in sim.outputs:
        library = concrete.graph.as_graph_def().library.function
        assert any(n.op == "TfeBench>SendInLoop" for f in library for n in f.node_def)
        assert not any(n.op == SEND for f in library for n in f.node_def)
        ends = {"TfeBench>SendInLoop", "TfeBench>HeardInLoop"}
        # the dealer receives nothing here
        assert stateful_ops(concrete) - {"While", "StatefulPartitionedCall"} <= ends


@pytest.mark.parametrize("party", range(3))
@pytest.mark.parametrize(
    ("kind", "others"), [(SEND, {RECV}), (RECV, {SEND, RECV})], ids=["sends", "receives"]
)
def test_no_invocation_sends_or_receives_only_after_another_has(
    graphs: list[Traced], party: int, kind: str, others: set[str]
) -> None:
    """Check that no send waits for another's receive, and no receive for another's message."""
    traced = graphs[party]
    for end in traced.ops(kind):
        own = traced.names[end.get_attr("site")]
        for op in ops_before(end):
            if op.type in others:
                assert traced.names[op.get_attr("site")] == own


@pytest.mark.parametrize("party", range(3))
def test_both_directions_of_a_round_are_on_the_way_at_once(
    graphs: list[Traced], party: int
) -> None:
    """Check that an evaluator's Send does not wait for its peer's of the same site and slot."""
    traced = graphs[party]

    def name(op: Any) -> tuple[int, int, int]:
        return op.get_attr("site"), op.get_attr("slot"), op.get_attr("peer")

    exchanged = {name(op) for op in traced.ops(SEND)} & {name(op) for op in traced.ops(RECV)}
    for send in traced.ops(SEND):
        assert name(send) not in {name(op) for op in ops_before(send) if op.type == RECV}
    assert (len(exchanged) >= 10) == (party != 0)  # exchanges are between the evaluators


def test_the_dealer_never_waits(graphs: list[Traced]) -> None:
    for send in graphs[0].ops(SEND):
        assert not [op for op in ops_before(send) if op.type == RECV]


@pytest.mark.parametrize("party", range(3))
def test_every_send_reaches_the_outputs_by_data(graphs: list[Traced], party: int) -> None:
    concrete = graphs[party].concrete
    reached = {id(op) for out in concrete.outputs for op in [out.op, *ops_before(out.op, False)]}
    sends = graphs[party].ops(SEND)
    assert len(sends) >= 10
    assert all(id(send) in reached for send in sends)


@pytest.mark.parametrize("party", range(3))
def test_all_that_the_graph_declares_to_depend_on_is_what_it_depends_on(
    graphs: list[Traced], party: int
) -> None:
    """Check the declared receives of each send: a channel measures rounds with them."""
    for send in graphs[party].ops(SEND):
        declared = int.from_bytes(send.get_attr("deps"), "little")
        real = {op.get_attr("index") for op in ops_before(send) if op.type == RECV}
        assert declared == sum(1 << index for index in real)


@pytest.mark.parametrize("party", range(3))
def test_shares_and_the_call_are_inputs_and_never_constants(
    graphs: list[Traced], party: int
) -> None:
    import tensorflow as tf

    traced = graphs[party]
    concrete = traced.concrete
    assert not concrete.captured_inputs
    assert len(concrete.inputs) == 1 + len(traced.shares) and len(traced.shares) == 4
    call = concrete.inputs[0].op
    assert call.type == "Placeholder"
    for op in concrete.graph.get_operations():
        if op.type.startswith("TfeBench>") and op.inputs[0].shape == [3]:
            source = op.inputs[0].op
            while source.type == "TfeBench>Gate":  # passes it on
                source = source.inputs[0].op
            assert source is call
    private = {int(word) for share in traced.shares for word in share.reshape(-1)}
    for op in traced.ops("Const"):
        value = tf.make_ndarray(op.get_attr("value"))
        assert value.size <= 64
        assert not private & {int(v) for v in value.reshape(-1) if v.dtype.kind == "i"}


@pytest.mark.parametrize("party", range(3))
def test_one_tag_belongs_to_one_send_and_one_receive(graphs: list[Traced], party: int) -> None:
    for kind in (SEND, RECV):
        tags = [
            (op.get_attr("site"), op.get_attr("slot"), op.get_attr("peer"))
            for op in graphs[party].ops(kind)
        ]
        assert len(set(tags)) == len(tags)


@pytest.mark.parametrize("dealer", range(3))
def test_what_one_party_sends_another_receives(dealer: int) -> None:
    three = trace_graphs(dealer)

    def messages(kind: str) -> set[tuple[int, ...]]:
        names = set()
        for party, of in enumerate(three):
            for op in of.ops(kind):
                peer = op.get_attr("peer")
                ends = (party, peer) if kind == SEND else (peer, party)
                names.add((*ends, op.get_attr("site"), op.get_attr("slot")))
        return names

    assert messages(SEND) == messages(RECV)


def test_one_inter_op_thread_is_enough() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ONE_THREAD], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "done", done.stderr[-2000:]


def test_a_graph_has_one_constant_for_all_that_want_it() -> None:
    """Check that later users of a constant do not wait for the operands of its first user."""
    import tensorflow as tf

    constants: list[Any] = []

    def program(x: Any) -> Any:
        with tf.control_dependencies([x + 1]):
            constants.append(tensor_ops.constant(7))
        constants.append(tensor_ops.constant(7))
        others = [
            tensor_ops.constant([7]),
            tensor_ops.constant(7, np.uint8),
            tensor_ops.constant(8),
        ]
        assert len({id(each) for each in (constants[0], *others)}) == 4
        assert [each.dtype for each in others] == [tf.int64, tf.uint8, tf.int64]
        return x + constants[1]

    graph = tf.function(program).get_concrete_function(tf.TensorSpec([], tf.int64))
    assert constants[0] is constants[1] and not constants[0].op.control_inputs
    assert int(graph(tf.constant(1, tf.int64))) == 8
    assert int(tensor_ops.constant(-(2**63))) == -(2**63)  # outside of a graph


def test_what_has_effects_has_them_in_every_call_and_in_its_order(tmp_path: Path) -> None:
    import tensorflow as tf

    def program(party: Party, x: Shared) -> Any:
        counter = tf.Variable(0)

        def body(x: Shared) -> Any:
            for i in range(3):
                counter.assign_add(1)
                to = f"file://{tmp_path}/{party.index}"
                tf.print(i, counter, output_stream=to)
            return arithmetic.mul(party, x, x), counter.read_value(), 7

        f = party.function(body)
        return [(int(f(x)[1]), f(x)[2]) for _ in range(2)] + [int(counter)]

    sim = simulate(program, np.arange(3), timeout=60)
    assert sim.outputs == ([(3, 7), (9, 7), 12],) * 3
    expected = [f"{i % 3} {i + 1}" for i in range(12)]
    for party in range(3):
        assert (tmp_path / str(party)).read_text().splitlines() == expected


def test_what_changes_no_shape_makes_no_op() -> None:
    import tensorflow as tf

    x = tf.zeros([2, 3], tf.int64)
    assert tensor_ops.reshape(x, [2, 3]) is x and tensor_ops.ensure_shape(x, (2, 3)) is x
    assert (
        tensor_ops.reshape(x, [3, -1]).shape
        == tensor_ops.reshape(x, tf.constant([3, 2])).shape
        == (3, 2)
    )


def test_what_a_role_does_not_use_is_received_all_the_same(rng: np.random.Generator) -> None:
    """Receive unused messages: TensorFlow prunes ops that only control edges hold.

    An unreceived message would arrive in a finished step.
    """
    import tensorflow as tf
    from tensorflow.python.grappler import tf_optimizer

    def receives(graph: Any) -> int:
        return sum(node.op == "TfeBench>Recv" for node in graph.node)

    def program(party: Party, x: Shared) -> Any:
        winner = party.function(lambda x: extremes.argmin(party, x, 0, method="tree"))
        winner(x)
        (traced,) = winner._traced.values()
        graph: Any = traced.concrete.graph  # type: ignore[attr-defined]
        whole = tf.compat.v1.train.export_meta_graph(graph=graph, graph_def=graph.as_graph_def())
        whole.collection_def["train_op"].node_list.value.extend(t.name for t in graph.outputs)
        run = tf_optimizer.OptimizeGraph(tf.compat.v1.ConfigProto(), whole)
        return receives(whole.graph_def), receives(run)

    traced, run = zip(*simulate(program, rng.integers(-9, 9, 9), dealer=1).outputs, strict=True)
    assert traced == run and traced[0] > 0
