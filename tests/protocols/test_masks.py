"""Every required message is sent once, and no step or iteration repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.protocols.pads import fields_of
from tests.protocols.turns import in_time, power_by_loop
from tests.refusals import raises
from tfe_bench.errors import ProtocolError
from tfe_bench.protocols.ring import (
    arithmetic,
    compare,
)
from tfe_bench.protocols.session import ops, slots
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

pytestmark = pytest.mark.usefixtures("rewritten")


def test_a_numbered_loop_sends_its_messages_in_every_turn() -> None:
    sim = in_time(
        lambda p, x: p.function(power_by_loop(p, 3))(x), np.array([-3, 4, 5]), record=True
    )
    assert list(sim.value()) == [81, 256, 625]
    assert sim.sent == (576, 576, 576)


# ---- refusals


def nested_call(kind: str, party: Party) -> Callable[[Shared], Any]:
    import tensorflow as tf

    def function(x: Shared) -> Any:
        def call(*_: Any) -> Any:
            y = arithmetic.mul(party, x, x)
            return tf.reduce_sum(y.any)

        if kind == "function":
            return tf.function(call, autograph=False)()
        if kind == "while_loop":
            return tf.while_loop(lambda i: i < 3, lambda i: i + call(), [tf.constant(0, tf.int64)])
        if kind == "map_fn":
            return tf.map_fn(call, tf.range(3, dtype=tf.int64))
        return tf.cond(tf.reduce_any(x.any > 0), call, lambda: tf.constant(0, tf.int64))

    return function


@pytest.mark.parametrize("kind", ["function", "while_loop", "map_fn", "cond"])
def test_a_private_op_in_a_nested_graph_without_a_number_is_refused(kind: str) -> None:
    with raises(ProtocolError, "unnumbered-loop"):
        in_time(lambda p, x: p.function(nested_call(kind, p))(x), np.arange(5))


def test_a_private_op_outside_of_a_graph_is_refused() -> None:
    with raises(ProtocolError, "outside-party-function"):
        in_time(lambda p, x: arithmetic.mul(p, x, x), np.arange(5))


def test_a_graph_within_a_numbered_turn_is_refused() -> None:
    def program(party: Party, x: Shared) -> Any:
        import tensorflow as tf

        def function(x: Shared) -> Any:
            with party.iteration(tf.constant(0)):
                return nested_call("function", party)(x)

        return party.function(function)(x)

    with raises(ProtocolError, "unnumbered-loop"):
        in_time(program, np.arange(5))


def test_a_turn_number_that_repeats_fails_before_the_second_message() -> None:
    with raises(ProtocolError, "graph-failed", names=("sent twice under one mask",)):
        in_time(lambda p, x: p.function(power_by_loop(p, 3, lambda i: 0 * i, 1))(x), np.arange(5))


def test_a_turn_number_that_repeats_in_parallel_turns_fails() -> None:
    with pytest.raises(ProtocolError, match=r"sent twice under one mask|two receives wait"):
        in_time(lambda p, x: p.function(power_by_loop(p, 8, lambda i: i % 2))(x), np.arange(5))


@pytest.mark.parametrize("number", [2**20 - 1, 2**31, 2**44, -2, -(2**44)])
def test_a_turn_number_out_of_range_is_refused(number: int) -> None:
    with raises(ProtocolError, "graph-failed", names=("iteration out of range",)):
        in_time(lambda p, x: p.function(power_by_loop(p, 1, lambda i: i + number))(x), np.arange(5))


def test_the_last_turn_number_works() -> None:
    sim = in_time(
        lambda p, x: p.function(power_by_loop(p, 1, lambda i: i + 2**20 - 2))(x),
        np.arange(5),
        record=True,
    )
    assert list(sim.value()) == [0, 1, 4, 9, 16]
    assert set(fields_of(sim.pads)["iteration"]) == {2**20 - 1}


def in_a_turn(body: Callable[[Party, Shared], Any]) -> Callable[[Party, Shared], Any]:
    """Return a program whose one numbered iteration is `body`."""

    def program(party: Party, x: Shared) -> Any:
        import tensorflow as tf

        def function(x: Shared) -> Any:
            with party.iteration(tf.constant(0)):
                return body(party, x)

        return party.function(function)(x)

    return program


def open_to_dealer(party: Party, x: Shared) -> Any:
    """Send a last message in a turn: the part that the dealer lacks."""
    s = party.site("to the dealer", slots={0: slots.declare_sent((slots.E2, slots.D))})
    if s.is_e2:
        s.send(x.m, s.d)
    return s.recv([5], s.e2) - x.l1 - x.l2 if s.is_dealer else None


def test_a_turn_sends_what_no_result_carries() -> None:
    def body(party: Party, x: Shared) -> Shared:
        y = arithmetic.mul(party, x, x)
        open_to_dealer(party, y)
        return y

    sim = in_time(in_a_turn(body), np.arange(5))
    assert list(sim.value()) == [0, 1, 4, 9, 16]
    assert sim.sent == (320, 320, 640)


def test_a_turn_that_carries_a_later_result_sends_everything() -> None:
    def body(party: Party, x: Shared) -> Shared:
        open_to_dealer(party, x)
        return arithmetic.mul(party, x, x)

    sim = in_time(in_a_turn(body), np.arange(5))
    assert list(sim.value()) == [0, 1, 4, 9, 16]
    assert sim.sent == (320, 320, 640)


@pytest.fixture
def session() -> Iterator[int]:
    """Return the native session of a party without peers."""
    handle = ops.native().session_new(0, bytes(48), 1)
    yield handle
    ops.native().session_drop(handle)


def begin_step(handle: int, step: int) -> str:
    """Begin a graph step without waiting for peers."""
    return ops.native().call_for_error("step_begin", handle, step, 0, 2**40)


def test_a_step_never_comes_again(session: int) -> None:
    assert begin_step(session, 7) == ""
    for step in (7, 6, 1):
        assert f"step {step} is not above 7" in begin_step(session, step)
    ops.native().step_end(session, 7)
    assert "not above" in begin_step(session, 7)
    assert begin_step(session, 8) == ""


def test_a_step_that_failed_to_begin_does_not_come_again(session: int) -> None:
    ops.native().abort(session, b"a test")
    assert begin_step(session, 3) == "a test"
    assert "not above" in begin_step(session, 3)


@pytest.mark.parametrize("step", [0, -1, 2**40, 2**62])
def test_a_step_out_of_range_is_refused(session: int, step: int) -> None:
    assert "step out of range" in begin_step(session, step)


def test_the_last_step_works(session: int) -> None:
    assert begin_step(session, 2**40 - 1) == ""


def test_sites_end_with_their_numbers() -> None:
    def program(party: Party, x: Shared) -> Any:
        party._next_site = 2**24 - 1
        square = party.function(lambda x: arithmetic.mul(party, x, x))(x)
        try:
            party.function(lambda x: arithmetic.mul(party, x, x))(x)
        except ProtocolError as error:
            return square, str(error)
        return square, ""

    sim = in_time(program, np.arange(5), record=True)
    assert list(sim.value(lambda out: out[0])) == [0, 1, 4, 9, 16]
    assert all("site numbers" in error for _, error in sim.outputs)
    assert set(fields_of(sim.pads)["site"]) == {2**24 - 1}


def test_after_a_failed_call_no_step_runs_in_the_session() -> None:
    errors: dict[int, list[str]] = {0: [], 1: [], 2: []}
    sent: dict[int, int] = {}

    def program(party: Party, x: Shared) -> Any:
        good = party.function(lambda x: arithmetic.mul(party, x, x))
        bad = party.function(power_by_loop(party, 3, lambda i: 0 * i, 1))
        good(x)
        try:
            bad(x)
        except ProtocolError as error:
            errors[party.index].append(str(error))
            before = sum(party.counters()["messages"])
            for function in (good, bad):
                with pytest.raises(ProtocolError) as again:
                    function(x)
                errors[party.index].append(str(again.value))
            sent[party.index] = sum(party.counters()["messages"]) - before
            raise

    with raises(ProtocolError, "graph-failed", names=("sent twice",)):
        in_time(program, np.arange(5))
    # (the failure of another party, which also ends the session, may be reported instead)
    failed = {f"party {party} failed" for party in range(3)}
    for first, *others in errors.values():
        assert len(others) == 2 and {first, *failed}.issuperset(others)
    assert sent == {0: 0, 1: 0, 2: 0}


def test_a_comparison_that_ends_a_turn_is_sent() -> None:
    """Send the last message although the dealer holds no part of the result."""

    def body(party: Party, x: Shared) -> Any:
        return compare.msb(party, x).share

    sim = in_time(in_a_turn(body), np.array([5, -3, 0, -7]))
    _, s1, s2 = sim.outputs
    assert (int(s1[0]) ^ int(s2[0])) & 15 == 0b1010


def test_a_send_is_kept_whose_result_is_dropped() -> None:
    def body(party: Party, x: Shared) -> Any:
        y = arithmetic.mul(party, x, x)
        published = open_to_dealer(party, y)
        arithmetic.mul(party, x, x)
        return y, published

    sim = in_time(in_a_turn(body), np.arange(5))
    assert list(sim.outputs[0][1]) == [0, 1, 4, 9, 16]


@pytest.mark.parametrize("traced_before", (True, False))
@pytest.mark.parametrize("within", ("tf.function", "party.function"))
def test_a_call_within_an_outer_function_is_refused_not_repeated(
    within: str, traced_before: bool
) -> None:
    """Refuse the call: its step would be a constant of the outer graph, the same in every run."""
    import tensorflow as tf

    def program(party: Party, x: Shared) -> Any:
        square = party.function(lambda x: arithmetic.mul(party, x, x))
        if traced_before:
            square(x)
        if within == "tf.function":
            outer = tf.function(lambda: square(x).any, autograph=False)
        else:
            outer = party.function(lambda: square(x).any)
        return [outer(), outer()]

    with raises(ProtocolError, "nested-graph-call"):
        in_time(program, np.arange(5))
