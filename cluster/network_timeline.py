"""Predicted times of a counted computation: its messages on the lines of a network.

A simulation of the three parties. Each has one processor, which computes in the order in which
operands arrive, and one line, its host's sending side. On a line, messages that a peer awaits
precede a dealer's material, also in the middle of it. A dealer deals in the order of the protocol
invocations, at most `MAX_AHEAD_BYTES` ahead of an evaluator's use. No party begins a graph call
more than `RUN_AHEAD_STEPS` ahead of a peer.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tfe_bench.cluster.profiles import NetworkProfile
from tfe_bench.protocols.session.message_graph import Exchange, MessageGraph
from tfe_bench.protocols.session.party import RUN_AHEAD_STEPS

# Bytes of material that may be ahead of an evaluator's use (Session::kMaxAhead).
MAX_AHEAD_BYTES = 32 << 20
# Material of this size is sent before a message that becomes ready in the meantime.
CHUNK_BYTES = 256 << 10

# Counted work of each party in seconds, measured with three workers on two cores: products of
# words, bytes through comparisons and the channel, and words that local maps move. These are
# estimates. A measured run replaces their sum, and they only distribute it.
_PRODUCTS_PER_SECOND = 6e9
_BYTES_PER_SECOND = 600e6
_WORDS_PER_SECOND = 350e6
# Each evaluator multiplies twice for each product of the plaintext model, the dealer once.
_PRODUCTS = {True: 1, False: 2}

AWAITED, AHEAD = 0, 1


class Moment(NamedTuple):
    """A time in seconds, and the parts of the critical path that leads to it."""

    time: float = 0.0
    line: float = 0.0
    delay: float = 0.0
    computing: float = 0.0

    def add_seconds(self, line: float = 0.0, delay: float = 0.0, computing: float = 0.0) -> Moment:
        """Return the moment some seconds later."""
        return Moment(
            self.time + line + delay + computing,
            self.line + line,
            self.delay + delay,
            self.computing + computing,
        )


@dataclass(frozen=True)
class Timeline:
    """Predicted times of a computation on a network, in seconds.

    Attributes:
        seconds: until the last party ends.
        parties: until each party ends.
        lines: time that each host's line is busy.
        computing: time that each party computes.
        path: parts of the critical path: "line", "delay" (of rounds) and "computing".
    """

    seconds: float
    parties: tuple[float, ...]
    lines: tuple[float, ...]
    computing: tuple[float, ...]
    path: dict[str, float]

    @property
    def largest_part(self) -> str:
        """The largest part of the critical path."""
        return max(self.path, key=self.path.__getitem__)


def count_computing_seconds(exchange: Exchange) -> tuple[float, float, float]:
    """Estimate the computing time of parties 0, 1 and 2 for an exchange, from its counted work."""
    dealt, *exchanged = (
        bits / 8 for bits in (exchange.cost.dealer, exchange.cost.e1, exchange.cost.e2)
    )
    seconds = [0.0, 0.0, 0.0]
    for role, sent in enumerate((dealt, *exchanged)):
        seconds[(exchange.dealer + role) % 3] = (
            _PRODUCTS[role == 0] * exchange.work / _PRODUCTS_PER_SECOND
            + sent / _BYTES_PER_SECOND
            + exchange.moved_words / _WORDS_PER_SECOND
        )
    return seconds[0], seconds[1], seconds[2]


def simulate_network(
    graph: MessageGraph,
    network: NetworkProfile,
    computing: Sequence[float] | None = None,
    overhead: float = 1.0,
) -> Timeline:
    """Simulate a computation on a network.

    Args:
        computing: seconds that parties 0, 1 and 2 compute, as measured; None: as counted.
        overhead: bytes on a line for a byte of payload.
    """
    return _Simulation(graph, network, computing, overhead).run()


class _Server:
    """A line or a processor: it serves one piece of work at a time, awaited ones first."""

    def __init__(self, simulation: _Simulation, part: str) -> None:
        self._simulation, self._part = simulation, part
        self._queues: tuple[deque[_Work], deque[_Work]] = (deque(), deque())
        self._is_busy = False
        self.busy_seconds = 0.0

    def submit_work(
        self,
        now: Moment,
        seconds: float,
        done: Callable[[Moment], None],
        priority: int = AWAITED,
        chunk: float = float("inf"),
    ) -> None:
        self._queues[priority].append(_Work(seconds, chunk, done))
        if not self._is_busy:
            self._serve_next(now)

    def _serve_next(self, now: Moment) -> None:
        queue = self._queues[AWAITED] or self._queues[AHEAD]
        self._is_busy = bool(queue)
        if not queue:
            return
        work = queue.popleft()
        seconds = min(work.remaining, work.chunk)
        work.remaining -= seconds
        self.busy_seconds += seconds
        if work.remaining > 0:
            queue.appendleft(work)
        end = now.add_seconds(**{self._part: seconds})

        def finish_work(now: Moment) -> None:
            if work.remaining <= 0:
                work.done(now)
            self._serve_next(now)

        self._simulation.schedule_event(end, finish_work)


@dataclass
class _Work:
    remaining: float
    chunk: float
    done: Callable[[Moment], None]


@dataclass
class _Task:
    """A party's part of an exchange, which waits for events before it starts."""

    start: Callable[[Moment], None]
    missing: int = 0
    ready: Moment = field(default_factory=Moment)

    def resolve_event(self, now: Moment) -> None:
        """Note that one awaited event took place; start after the last one."""
        self.ready = max(self.ready, now)
        self.missing -= 1
        if self.missing == 0:
            self.start(self.ready)


class _Simulation:
    """Events in the order of time; see the module."""

    def __init__(
        self,
        graph: MessageGraph,
        network: NetworkProfile,
        computing: Sequence[float] | None,
        overhead: float,
    ) -> None:
        self._graph, self._delay = graph, network.delay
        self._byte_seconds = overhead / network.bytes_per_second if network.shaped else 0.0
        self._counted = [count_computing_seconds(e) for e in graph.exchanges]
        totals = [sum(column) for column in zip(*self._counted, strict=True)] or [0.0] * 3
        self._scales = [
            1.0 if computing is None else computing[p] / totals[p] if totals[p] else 0.0
            for p in range(3)
        ]
        self._events: list[tuple[float, int, Callable[[Moment], None], Moment]] = []
        self._numbers = itertools.count()
        self._lines = [_Server(self, "line") for _ in range(3)]
        self._processors = [_Server(self, "computing") for _ in range(3)]
        # Tasks that wait for the results of an exchange at a party, by (exchange, party).
        self._waiting: dict[tuple[int, int], list[_Task]] = {}
        steps = max(graph.step_count, 1)
        # Unfinished tasks, and tasks that wait for the beginning, by graph call and party.
        self._unfinished = [[0, 0, 0] for _ in range(steps)]
        self._first_tasks: list[list[list[_Task]]] = [[[], [], []] for _ in range(steps)]
        self._begins = [
            [_Task(self._make_call_beginning(s, p)) for p in range(3)] for s in range(steps)
        ]
        self._ends = [Moment()] * 3
        # By dealer: exchanges to deal in their order, whether one is being dealt, and bytes of
        # material ahead of their use.
        self._to_deal: list[deque[_Evaluation]] = [deque(), deque(), deque()]
        self._is_dealing = [False] * 3
        self._ahead = [0.0] * 3

    def schedule_event(self, moment: Moment, action: Callable[[Moment], None]) -> None:
        """Run an action at a moment."""
        heapq.heappush(self._events, (moment.time, next(self._numbers), action, moment))

    def run(self) -> Timeline:
        for number, exchange in enumerate(self._graph.exchanges):
            self._add_exchange(number, exchange)
        for step, begins in enumerate(self._begins):
            for begin in begins:
                before = step - RUN_AHEAD_STEPS
                begin.missing = 1 + (2 if before >= 0 else 0)
                if step == 0:
                    self.schedule_event(Moment(), begin.resolve_event)
        while self._events:
            _, _, action, moment = heapq.heappop(self._events)
            action(moment)
        assert not any(map(any, self._unfinished)), "an exchange waits for another forever"
        last = max(self._ends)
        return Timeline(
            last.time,
            tuple(end.time for end in self._ends),
            tuple(line.busy_seconds for line in self._lines),
            tuple(processor.busy_seconds for processor in self._processors),
            {"line": last.line, "delay": last.delay, "computing": last.computing},
        )

    # ---- graph calls

    def _make_call_beginning(self, step: int, p: int) -> Callable[[Moment], None]:
        def begin_call(now: Moment) -> None:
            tasks, self._first_tasks[step][p] = self._first_tasks[step][p], []
            self._unfinished[step][p] += 1
            for task in tasks:
                task.resolve_event(now)
            self.finish_task(step, p, now)

        return begin_call

    def finish_task(self, step: int, p: int, now: Moment) -> None:
        """Note that a party has finished one part of a graph call; end the call after the last."""
        self._unfinished[step][p] -= 1
        if self._unfinished[step][p]:
            return
        self._ends[p] = now
        if step + 1 < len(self._begins):
            self._begins[step + 1][p].resolve_event(now)
        later = step + RUN_AHEAD_STEPS
        if later < len(self._begins):
            for q in range(3):
                if q != p:
                    self.schedule_event(
                        now.add_seconds(delay=self._delay), self._begins[later][q].resolve_event
                    )

    # ---- exchanges

    def _add_exchange(self, number: int, exchange: Exchange) -> None:
        d = exchange.dealer
        evaluation = _Evaluation(self, number, exchange)
        for p in ((d + 1) % 3, (d + 2) % 3):
            self._add_task(
                exchange, p, exchange.sources, functools.partial(evaluation.begin_evaluation, p)
            )
        if evaluation.dealer_task is not None:
            self._unfinished[exchange.step][d] += 1
        if exchange.cost.dealer:
            begin_dealing = functools.partial(self._begin_dealing, evaluation)
            self._add_task(exchange, d, exchange.mask_sources, begin_dealing)

    def _add_task(
        self,
        exchange: Exchange,
        p: int,
        sources: frozenset[int],
        start: Callable[[Moment], None],
    ) -> None:
        awaited = [s for s in sources if self._graph.exchanges[s].dealer != p]
        task = _Task(start, 1 + len(awaited))
        self._unfinished[exchange.step][p] += 1
        self._first_tasks[exchange.step][p].append(task)
        for source in awaited:
            self._waiting.setdefault((source, p), []).append(task)

    def set_result(self, number: int, p: int, now: Moment) -> None:
        """Set the moment at which an evaluator knows the result of an exchange."""
        for task in self._waiting.pop((number, p), ()):
            task.resolve_event(now)
        self.finish_task(self._graph.exchanges[number].step, p, now)

    def compute_part(
        self, number: int, p: int, now: Moment, done: Callable[[Moment], None]
    ) -> None:
        """Compute a party's part of an exchange."""
        seconds = self._counted[number][p] * self._scales[p]
        self._processors[p].submit_work(now, seconds, done)

    def send_message(
        self, p: int, size: float, now: Moment, arrive: Callable[[Moment], None], priority: int
    ) -> None:
        """Send bytes over a party's line."""
        self._lines[p].submit_work(
            now,
            size * self._byte_seconds,
            lambda sent: self.schedule_event(sent.add_seconds(delay=self._delay), arrive),
            priority,
            CHUNK_BYTES * self._byte_seconds,
        )

    # ---- dealing

    def _begin_dealing(self, evaluation: _Evaluation, now: Moment) -> None:
        """Deal in the order of the exchanges; under masks of others, when the masks are known.

        `numbering.Site` orders the material that waits for no message. Other material passes the
        gate in this order too, before it waits for the masks.
        """
        d = evaluation.exchange.dealer
        if evaluation.exchange.mask_sources:
            self._deal_exchange(evaluation, now, lambda _: None)
            return
        self._to_deal[d].append(evaluation)
        self._deal_next(d, now)

    def _deal_next(self, d: int, now: Moment) -> None:
        if self._is_dealing[d] or not self._to_deal[d] or self._ahead[d] > MAX_AHEAD_BYTES:
            return
        self._is_dealing[d] = True

        def continue_dealing(now: Moment) -> None:
            self._is_dealing[d] = False
            self._deal_next(d, now)

        self._deal_exchange(self._to_deal[d].popleft(), now, continue_dealing)

    def _deal_exchange(
        self, evaluation: _Evaluation, now: Moment, then: Callable[[Moment], None]
    ) -> None:
        exchange, d = evaluation.exchange, evaluation.exchange.dealer
        size = exchange.cost.dealer / 8

        def send_material(now: Moment) -> None:
            self._ahead[d] += size
            self.send_message(d, size, now, evaluation.receive_material, AHEAD)
            self.finish_task(exchange.step, d, now)
            then(now)

        self.compute_part(evaluation.number, d, now, send_material)

    def release_material(self, exchange: Exchange, now: Moment) -> None:
        """Report to the dealer that an evaluator has used its material."""
        d = exchange.dealer

        def free_material(now: Moment) -> None:
            self._ahead[d] -= exchange.cost.dealer / 8
            self._deal_next(d, now)

        self.schedule_event(now.add_seconds(delay=self._delay), free_material)


class _Evaluation:
    """The rounds of one exchange between its evaluators."""

    def __init__(self, simulation: _Simulation, number: int, exchange: Exchange) -> None:
        self._simulation, self.number, self.exchange = simulation, number, exchange
        cost, d = exchange.cost, exchange.dealer
        self._e1, self._e2 = (d + 1) % 3, (d + 2) % 3
        sizes = {self._e1: cost.e1 / 8, self._e2: cost.e2 / 8}
        # An evaluator that sends nothing delays no other party.
        self._sizes = {p: n for p, n in sizes.items() if n or not any(sizes.values())}
        self._rounds = cost.rounds
        # E2 needs the material before its first message, or, if no round is added, after it.
        has_material = cost.dealer > 0
        self._is_material_first = has_material and cost.with_dealing > cost.rounds
        self._start = _Task(self._compute_e2, 1 + self._is_material_first)
        self._ends = {
            (p, i): _Task(
                functools.partial(self._end_round, p, i),
                1
                + (self._find_peer(p) in self._sizes)
                + (has_material and not self._is_material_first and (p, i) == (self._e2, 0)),
            )
            for p in (self._e1, self._e2)
            for i in range(self._rounds)
        }
        self.dealer_task = None
        if exchange.dealer_learns and self._rounds:
            finish = functools.partial(simulation.finish_task, exchange.step, d)
            self.dealer_task = _Task(finish, len(self._sizes))

    def _find_peer(self, p: int) -> int:
        return self._e1 + self._e2 - p

    def begin_evaluation(self, p: int, now: Moment) -> None:
        """Begin the part of an evaluator that has all operands."""
        if p == self._e2:
            self._start.resolve_event(now)
        else:
            self._compute_part(p, now)

    def receive_material(self, now: Moment) -> None:
        """Note that the dealer's material has arrived at E2."""
        if self._is_material_first:
            self._start.resolve_event(now)
            return
        self._simulation.release_material(self.exchange, now)
        if self._rounds:
            self._ends[self._e2, 0].resolve_event(now)

    def _compute_e2(self, now: Moment) -> None:
        self._compute_part(self._e2, now)

    def _compute_part(self, p: int, now: Moment) -> None:
        self._simulation.compute_part(
            self.number, p, now, functools.partial(self._exchange_first, p)
        )

    def _exchange_first(self, p: int, now: Moment) -> None:
        if p == self._e2 and self._is_material_first:
            self._simulation.release_material(self.exchange, now)
        if self._rounds:
            self._begin_round(p, 0, now)
        else:
            self._simulation.set_result(self.number, p, now)

    def _begin_round(self, p: int, i: int, now: Moment) -> None:
        if p in self._sizes:
            arrive = functools.partial(self._receive_message, p, i)
            size = self._sizes[p] / self._rounds
            self._simulation.send_message(p, size, now, arrive, AWAITED)
        self._ends[p, i].resolve_event(now)

    def _receive_message(self, sender: int, i: int, now: Moment) -> None:
        self._ends[self._find_peer(sender), i].resolve_event(now)
        if self.dealer_task is not None and i == self._rounds - 1:
            self.dealer_task.resolve_event(now)

    def _end_round(self, p: int, i: int, now: Moment) -> None:
        if i + 1 < self._rounds:
            self._begin_round(p, i + 1, now)
        else:
            self._simulation.set_result(self.number, p, now)
