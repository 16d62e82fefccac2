"""Three sessions of one process, joined by links: messages arrive, with their delays."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.cluster.test_transport import Pipe
from tests.refusals import raises
from tfe_bench.cluster.transport import SessionLink
from tfe_bench.errors import ProtocolError
from tfe_bench.protocols.session import slots
from tfe_bench.protocols.session.party import Party

pytestmark = pytest.mark.usefixtures("as_in_a_worker")
PAIRS = [(p, q) for p in range(3) for q in range(3) if p != q]


class JoinedSessions:
    """Three parties whose sessions are joined by real links over in-process streams."""

    def __init__(self) -> None:
        keys = os.urandom(48)
        self.links = [SessionLink(p, keys) for p in range(3)]
        self.parties = [Party(p, link.handle, 0, client="") for p, link in enumerate(self.links)]
        for party, link in zip(self.parties, self.links, strict=True):
            party._on_abort = lambda _, link=link: link.cause
        self._join()

    def _join(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._carrying = asyncio.run_coroutine_threadsafe(self._carry(), self._loop)

    async def _carry(self) -> None:
        pipes = {pair: Pipe() for pair in PAIRS}
        await asyncio.gather(
            *(self.links[p].pump_blobs(q, pipes[q, p].read, pipes[p, q].write) for p, q in PAIRS)
        )

    def _part(self) -> None:
        self._carrying.result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def delay(self, a: int, b: int, seconds: float) -> None:
        """Delay the messages between two parties."""
        for p, q in ((a, b), (b, a)):
            self.links[p]._native.shape(self.links[p].handle, q, int(seconds * 1e6), 0)

    def run(self, work: Callable[[Party], Any]) -> list[Any]:
        """Run the same work at the three parties."""
        results = self.run_each(work, is_ended_by_failure=True)
        failures = [r for r in results if isinstance(r, Exception)]
        if failures:
            raise failures[0]
        return results

    def run_each(
        self, work: Callable[[Party], Any], is_ended_by_failure: bool = False
    ) -> list[Any]:
        """Run the same work at the three parties; return the result or the error of each.

        Args:
            is_ended_by_failure: whether an error ends the session at all parties.
        """
        results: list[Any] = [None] * 3

        def at(p: int) -> None:
            try:
                results[p] = work(self.parties[p])
            except Exception as error:
                results[p] = error
                if is_ended_by_failure:
                    self.links[p].fail(ProtocolError(str(error)))

        threads = [threading.Thread(target=at, args=(p,), daemon=True) for p in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return results

    def close(self) -> None:
        for link in self.links:
            link.fail(ProtocolError("the test is over"))
        self._part()
        for link in self.links:
            link.drop_session()


class _PumpedSessions(JoinedSessions):
    """The same, joined by threads that only move bytes from outbox to inbox."""

    def _join(self) -> None:
        self._pumps = [threading.Thread(target=self._pump, args=pair) for pair in PAIRS]
        for pump in self._pumps:
            pump.start()

    def _pump(self, source: int, target: int) -> None:
        native, limit = self.links[source]._native, 1 << 19
        space = ctypes.create_string_buffer(limit)
        text = ctypes.create_string_buffer(512)
        handle, other = self.links[source].handle, self.links[target].handle
        while (size := native.next_blob(handle, target, space, limit, limit, 1000)) >= 0:
            if size:
                native.push(other, source, space.raw[:size], size, text)

    def _part(self) -> None:
        for pump in self._pumps:
            pump.join(10)


@pytest.fixture
def joined() -> Iterator[JoinedSessions]:
    three = JoinedSessions()
    yield three
    three.close()


@pytest.fixture
def pumped() -> Iterator[_PumpedSessions]:
    three = _PumpedSessions()
    yield three
    three.close()


def _exchange_words(party: Party, x: Any) -> Any:
    s = party.site("exchange", slots={0: slots.declare_exchanged()})
    if s.is_dealer:
        return x
    s.send(x, s.other_evaluator)
    return x + s.recv([1], s.other_evaluator)


def _exchange_twice(party: Party) -> Callable[[Any], Any]:
    return lambda x: (_exchange_words(party, x), _exchange_words(party, 2 * x))


def _exchange_in_sequence(party: Party) -> Callable[[Any], Any]:
    return lambda x: _exchange_words(party, _exchange_words(party, x))


_Build = Callable[[Party], Callable[[Any], Any]]


def _measure_call(joined: JoinedSessions, build: _Build, delay: float) -> float:
    """Return the time of a second call of a graph, at the slowest party, over a slow line."""
    functions = joined.run(lambda party: party.function(build(party)))
    one = np.ones(1, np.int64)

    def call(party: Party) -> Any:
        return functions[party.index](one)

    joined.run(call)
    joined.delay(1, 2, delay)

    def timed(party: Party) -> float:
        party.exchange(b"begin")
        started = time.monotonic()
        call(party)
        return time.monotonic() - started

    seconds: list[float] = joined.run(timed)[1:]
    return max(seconds)


def test_exchanges_give_what_the_peer_sent(joined: JoinedSessions) -> None:
    functions = joined.run(lambda party: party.function(_exchange_twice(party)))
    x = [np.array([10**p], np.int64) for p in range(3)]
    results = joined.run(lambda party: functions[party.index](x[party.index]))
    assert [int(v.numpy()[0]) for v in results[1]] == [110, 220]
    assert [int(v.numpy()[0]) for v in results[2]] == [110, 220]


def test_independent_exchanges_of_one_graph_take_one_delay(pumped: _PumpedSessions) -> None:
    seconds = _measure_call(pumped, _exchange_twice, 0.3)
    print(f"two independent exchanges over a line of 0.3 s: {seconds:.3f} s")
    assert 0.29 < seconds < 0.55


def test_dependent_exchanges_take_a_delay_each(pumped: _PumpedSessions) -> None:
    seconds = _measure_call(pumped, _exchange_in_sequence, 0.3)
    print(f"two dependent exchanges over a line of 0.3 s: {seconds:.3f} s")
    assert 0.58 < seconds < 0.95


def test_a_step_lasts_until_a_message_that_nobody_uses_has_come_too(
    pumped: _PumpedSessions,
) -> None:
    # Otherwise it arrives in a later step, and ends the session as a message of a finished one.
    def build(party: Party) -> Callable[[Any], Any]:
        def send_in_vain(x: Any) -> Any:
            s = party.site("in vain", slots={0: slots.declare_exchanged()})
            if s.is_e1:
                s.send(x, s.e2)
            elif s.is_e2:
                s.recv([1], s.e1)
            return x

        return send_in_vain

    assert _measure_call(pumped, build, 0.3) > 0.29


def test_a_large_message_crosses_in_pieces(joined: JoinedSessions) -> None:
    words = 300_000  # 2.4 MB: several blobs

    def build(party: Party) -> Callable[[Any], Any]:
        def send(x: Any) -> Any:
            s = party.site("bulk", slots={0: slots.declare_exchanged()})
            if s.is_dealer:
                return x[:1]
            s.send(x, s.other_evaluator)
            return s.recv([words], s.other_evaluator)

        return send

    functions = joined.run(lambda party: party.function(build(party)))
    rng = np.random.default_rng(4)
    x = [rng.integers(-(2**63), 2**63 - 1, words, np.int64) for _ in range(3)]
    results = joined.run(lambda party: functions[party.index](x[party.index]))
    np.testing.assert_array_equal(results[1].numpy(), x[2])
    np.testing.assert_array_equal(results[2].numpy(), x[1])


def test_parties_that_trace_different_graphs_are_refused(joined: JoinedSessions) -> None:
    def build(party: Party) -> Callable[[Any], Any]:
        if party.index != 2:
            return _exchange_in_sequence(party)
        return lambda x: _exchange_words(party, x)

    def unequal(party: Party) -> Any:
        return party.function(build(party))(np.ones(1, np.int64))

    with raises(ProtocolError, "parties-disagree", "protocol-violation"):
        joined.run(unequal)
