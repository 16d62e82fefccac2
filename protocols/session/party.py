"""One party's view of a session: it numbers protocol invocations and steps, and makes graphs."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import threading
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from tfe_bench.errors import ProtocolError, TfeBenchError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.session import ops
from tfe_bench.protocols.session.graph import PrivateFunction
from tfe_bench.protocols.session.material import AheadFunction
from tfe_bench.protocols.session.numbering import (
    K1,
    K2,
    K3,
    MATERIAL,
    Site,
    Trace,
    TracedOpening,
)
from tfe_bench.protocols.session.openings import OpeningLog
from tfe_bench.protocols.session.slots import NO_SLOTS, Slots, declare_sent

__all__ = ["K1", "K2", "K3", "Party", "Site", "StepCost", "current_party"]

# Number of graph calls that the dealer may be ahead of the slowest peer: it bounds memory.
RUN_AHEAD_STEPS = 4

_active = threading.local()


def current_party() -> Party:
    """Return the party whose program this thread runs, used by operators such as x < y.

    Raises:
        ProtocolError: the thread runs no program.
    """
    party: Party | None = getattr(_active, "party", None)
    if party is None:
        raise ProtocolError(
            "Private tensors are computed on inside a program (or inside `with party.active():`). "
            "Received: an operation outside of both.",
            code="no-active-party",
        )
    return party


@dataclass(frozen=True)
class StepCost:
    """Rounds of one graph call as measured at this party's channel."""

    with_dealing: int
    ahead: int


class Party:
    """One of the three parties of a running session.

    Args:
        index: 0, 1 or 2.
        handle: handle of the native session, with keys and connections.
        dealer: the party that deals unless a value names another.
        building: lock held while a graph is traced, for parties that are threads of one process:
            they would wait for Python's lock at every op.
        client: the client that ordered the job. Graphs are kept for each client separately,
            because
            the time that tracing takes would disclose to others which jobs it ran before.

    Attributes:
        site_names: the protocols invoked so far, by their number.
        openings: the values that this session has opened to workers, and the kinds it may open.
        is_computing: a graph has begun: this party sends and receives more than public facts.
    """

    def __init__(
        self,
        index: int,
        handle: int,
        dealer: int = 0,
        building: threading.Lock | None = None,
        *,
        client: str,
    ) -> None:
        self.client = client
        self.index = index
        self.handle = handle
        self.dealer = dealer
        self.building = building or contextlib.nullcontext()
        self.build_seconds = 0.0
        self.site_names: dict[int, str] = {}
        self.openings = OpeningLog()
        self.is_computing = False
        self._native = ops.native()
        self._next_site = 1
        self._step = 0
        self._trace: Trace | None = None
        self._on_abort: Callable[[str], TfeBenchError | None] | None = None
        self._end_session: Callable[[TfeBenchError], object] | None = None
        self._functions: dict[Hashable, PrivateFunction] = {}
        self._scope: tuple[Hashable, ...] | None = None
        self._function_count = 0
        self._sent_before = 0

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make this the party of the thread's operators (x + y, x < y, tfe_bench.relu(x), ...)."""
        previous = getattr(_active, "party", None)
        _active.party = self
        try:
            yield
        finally:
            _active.party = previous

    @property
    def tracing(self) -> bool:
        """True while a graph is traced: protocols are called inside of one."""
        return self._trace is not None

    # ---- numbering

    def site(
        self, name: str, *about: object, dealer: int | None = None, slots: Slots = NO_SLOTS
    ) -> Site:
        """Start a protocol invocation; every party does so, in the same order.

        Args:
            name: name of the protocol.
            about: everything on which all three must agree (static shapes, parameters).
            slots: the messages of the invocation, by number (session/slots.py).

        Raises:
            ProtocolError: outside party.function, or inside a nested tf.function, cond or loop
                without a number of its own (its masks would repeat in every iteration).
        """
        trace = self._trace
        if trace is None:
            raise ProtocolError(
                f"{name} runs inside party.function only. Received: a call outside of it. "
                "Wrap the computation: f = party.function(lambda x: ...).",
                code="outside-party-function",
                operation=name,
            )
        graph = tf.compat.v1.get_default_graph()
        expected = trace.iteration_graph if trace.is_looping else trace.graph
        if graph is not expected:
            raise ProtocolError(
                f"{name} is called inside a nested tf.function, tf.cond or loop, where its masks "
                "would repeat. Unroll it, or number its iterations: `with party.iteration(i): "
                "...`.",
                code="unnumbered-loop",
                operation=name,
            )
        number = self._next_site
        if number >> 24:
            raise ProtocolError(
                "This session has used all of its site numbers. Start a new session.",
                code="session-exhausted",
                operation=name,
            )
        self._next_site += 1
        self.site_names[number] = name
        dealer = self.dealer if dealer is None else dealer
        trace.agreement_log.update(f"{number} {name} {dealer} {about!r}\n".encode())
        return Site(self, number, dealer, trace, slots)

    def declare_opening(
        self, what: str, count: int | tf.Tensor, width: int, to: int | None = None
    ) -> None:
        """Declare that the graph that is being traced opens values to workers.

        Args:
            what: their kind, a plural noun.
            count: the number of values.
            width: bits of each.
            to: the party that learns them; None: all three.

        Raises:
            PolicyError: the job may not open this kind of values.
            ProtocolError: inside a loop, whose number of passes is not counted.
        """
        self.openings.check_permitted(what)
        trace = self._trace
        if trace is None:
            return  # (the opening's site is refused)
        if trace.is_looping:
            raise ProtocolError(
                f"Values are opened outside of numbered loops. Received: {what} that every "
                "iteration opens. Return them from the loop, and open them after it.",
                code="opening-in-loop",
                operation=what,
            )
        is_static = isinstance(count, int)
        trace.openings.append(TracedOpening(what, width, to, count if is_static else None))
        if not is_static:
            trace.opened_counts.append(count)

    @contextlib.contextmanager
    def iteration(self, number: tf.Tensor) -> Iterator[None]:
        """Give the private ops of a loop body or nested function an iteration number.

        Args:
            number: int64 scalar in [0, 2^20 - 1), different for each iteration within one step. A
                repeated number fails the graph call before a second message is sent.
        """
        trace = self._trace
        if trace is None or trace.is_looping:
            raise ProtocolError(
                "party.iteration belongs in party.function, once per loop nest.",
                code="misplaced-iteration",
            )
        known = tf.get_static_value(number)
        if known is not None and not 0 <= int(known) < (1 << 20) - 1:
            raise ProtocolError(
                f"Expected an iteration number from 0 to 2^20 - 2. Received: {known}.",
                code="number-out-of-range",
                operation="iteration",
                received=known,
            )
        encoded_number = tf.reshape(tf.cast(number, tf.int64), [1]) + 1
        trace.iteration_graph = tf.compat.v1.get_default_graph()
        trace.iteration_ctx = tf.concat([trace.ctx[:2], encoded_number], axis=0)
        try:
            yield
        finally:
            trace.iteration_graph = None

    # ---- steps

    def _next_step(self, control: bool = False) -> int:
        self._step += 1
        self.is_computing |= not control
        error = self._native.call_for_error(
            "step_begin", self.handle, self._step, int(control), RUN_AHEAD_STEPS
        )
        self.check(error)
        return self._step

    def check(self, error: str) -> None:
        """Raise the typed error of a native error text; do nothing for ''."""
        if not error:
            return
        known = self._on_abort(error) if self._on_abort else None
        raise known or ProtocolError(error, code="session-aborted")

    def exchange_each(self, payloads: dict[int, bytes]) -> dict[int, bytes]:
        """Send each peer its payload and return theirs; both directions have the same length."""
        step = self._next_step(control=True)
        received = {}
        try:
            for p, payload in payloads.items():
                self.check(
                    self._native.call_for_error(
                        "control_send", self.handle, p, step, payload, len(payload)
                    )
                )
            for p, payload in payloads.items():
                space = ctypes.create_string_buffer(len(payload))
                self.check(
                    self._native.call_for_error(
                        "control_recv", self.handle, p, step, space, len(payload)
                    )
                )
                received[p] = space.raw
        finally:
            self._native.step_end(self.handle, step)
        return received

    def exchange(self, payload: bytes) -> tuple[bytes, bytes, bytes]:
        """Send a payload of equal length at all parties to both peers; return all three."""
        received = self.exchange_each({p: payload for p in range(3) if p != self.index})
        received[self.index] = payload
        return received[0], received[1], received[2]

    def agree(self, what: str, text: bytes) -> None:
        """Check that all three parties hold the same text.

        Raises:
            ProtocolError: naming the party that differs.
        """
        digests = self.exchange(hashlib.sha256(text).digest())
        for p in range(3):
            if digests[p] != digests[self.index]:
                raise ProtocolError(
                    f"{what} differs between party {self.index} and party {p}. Received: "
                    f"{digests[self.index].hex()[:12]} and {digests[p].hex()[:12]}.",
                    code="parties-disagree",
                    operation=what,
                    party=p,
                )

    def exchange_facts(self, subject: str, payload: bytes) -> tuple[bytes, bytes, bytes]:
        """Exchange public facts of equal length on which the parties act; return all three.

        A party may state one fact to one peer and another fact to the other.  The facts therefore
        count only after all three parties have compared what they received.  Every fact that a
        party receives from a peer comes through this method or `have_same_fact`.

        Rounds: 2.  Bits sent: the payload and 256 to each peer.

        Raises:
            ProtocolError: two parties received different facts.
        """
        facts = self.exchange(payload)
        self._confirm_facts(subject, facts)
        return facts

    def have_same_fact(self, subject: str, payload: bytes) -> bool:
        """Return whether all three parties state the same public fact, of equal length.

        Rounds: 1 if they do.  A party that sees a difference takes a second one, to compare what
        all parties received.  If another party sees none, the two are in different steps, or
        compare different texts: the next message between them ends the session at both.

        Raises:
            ProtocolError: two parties received different facts.
        """
        facts = self.exchange(payload)
        if len(set(facts)) == 1:
            return True
        self._confirm_facts(subject, facts)
        return False

    def _confirm_facts(self, subject: str, facts: tuple[bytes, bytes, bytes]) -> None:
        digests = self.exchange(hashlib.sha256(b"".join(facts)).digest())
        differing = [p for p in range(3) if digests[p] != digests[self.index]]
        if differing:
            raise ProtocolError(
                f"Parties {self.index} and {differing[0]} received different statements about "
                f"{subject}, and act on neither. One worker states different things to the two "
                "others: compare the logs and versions of all three.",
                code="statements-differ",
                operation=subject,
            )

    # ---- graphs

    def function(
        self, function: Callable[..., Any], dynamic: bool | Collection[int] = False
    ) -> PrivateFunction:
        """Wrap a Python function over shares and public tensors as one graph.

        Args:
            dynamic: trace with unknown leading dimensions, so that other sizes need no new trace:
                of all tensors, or of those in the arguments at these positions.
        """
        if self._scope is None:
            return PrivateFunction(self, function, dynamic)
        self._function_count += 1
        name = (self._scope, self._function_count, getattr(function, "__qualname__", ""))
        if name not in self._functions:
            self._functions[name] = PrivateFunction(self, function, dynamic, name)
        return self._functions[name]

    def cached_function(
        self, key: Hashable, make: Callable[[], Callable[..., Any]], dynamic: bool = False
    ) -> PrivateFunction:
        """Return the graph that a library function keeps under its own key, made at first use."""
        if key not in self._functions:
            name = None if self._scope is None else (self._scope[0], "cached", key)
            self._functions[key] = PrivateFunction(self, make(), dynamic, name)
        return self._functions[key]

    def ahead_function(
        self, function: Callable[..., Any], request: Collection[int]
    ) -> AheadFunction:
        """Wrap a function over shares whose material is made before its request.

        Args:
            request: positions of the arguments that a request brings.
        """
        qualname = getattr(function, "__qualname__", "")
        name = None if self._scope is None else (self._scope, "ahead", qualname)
        return AheadFunction(self, function, request, name)

    def end_material(self) -> None:
        """Add a graph's last material: to each peer, the number of messages before it."""
        routes = [(sender, to) for sender in range(3) for to in range(3) if sender != to]
        s = self.site("material", slots={0: declare_sent(*routes)})
        trace = s._trace
        if trace.phase != MATERIAL:
            return
        tokens, log = [*trace.tokens], trace.material_log.copy()
        for peer in range(3):
            if peer != self.index:
                with tf.control_dependencies(tokens):
                    count = tf.identity(tf.constant([trace.sent_counts[peer]], tf.int64))
                s.send(count, peer)
        trace.material_log = log  # (the other phase has no such message)

    @contextlib.contextmanager
    def kept_graphs(self, *about: Hashable) -> Iterator[None]:
        """Keep graphs of functions made within this context for the same client's next sessions.

        Args:
            about: all public values on which the functions depend besides their arguments. The
                first part belongs to the whole session, the others to a part of it in which
                functions are made in a fixed order, whatever was computed. None first: no graph is
                kept.
        """
        previous_scope, previous_count = self._scope, self._function_count
        named = ((self.client, about[0]), *about[1:])
        self._scope, self._function_count = None if about[0] is None else named, 0
        try:
            yield
        finally:
            self._scope, self._function_count = previous_scope, previous_count

    # ---- measured

    def counters(self) -> dict[str, list[int]]:
        """Return the bytes and messages that this party sent to each party since the last reset."""
        raw = (ctypes.c_uint64 * 12)()
        self._native.counters(self.handle, raw)
        return {
            "payload": list(raw[0:3]),
            "frames": list(raw[3:6]),
            "messages": list(raw[6:9]),
            "received": list(raw[9:12]),
        }

    @property
    def sent_bytes(self) -> int:
        """Payload that this party has sent in the whole session, independent of resets."""
        return self._sent_before + sum(self.counters()["payload"])

    def reset_counters(self) -> None:
        """Reset the counters and the list of rounds."""
        self._sent_before = self.sent_bytes
        self._native.reset_counters(self.handle)

    def rounds(self) -> list[StepCost]:
        """Return the rounds of each graph call since the last reset, as measured by this party."""
        count = self._native.depths(self.handle, None, 0)
        raw = (ctypes.c_uint32 * (2 * count))()
        count = min(count, self._native.depths(self.handle, raw, count))
        return [StepCost(raw[2 * i], raw[2 * i + 1]) for i in range(count)]

    def __repr__(self) -> str:
        return f"Party({self.index})"
