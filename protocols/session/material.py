"""Material: the messages of a graph that depend on no request, sent before the request arrives.

A graph runs in two phases, which all three parties trace from one function. In the first phase
each party sends the messages that depend on no receive and on no argument of the request: the
dealer's correlated randomness. Their receivers keep them. In the second phase, in a later session,
a party draws the masks of the first one again, takes these messages from where they are kept, and
exchanges only the others. Both phases together send each message once, under the masks that one
call would use; docs/protocols.md argues why the views are those of one call.

The masks of a material serve one step, ever: the native session takes them out of its register.
The arguments of the request must enter the function under masks of the function itself
(ring/refresh.py): masks that a client chose are unknown to the dealer before.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from tfe_bench.errors import ProtocolError, TfeBenchError
from tfe_bench.protocols.session import ops
from tfe_bench.protocols.session.graph import Graph, Nest, PrivateFunction, TracingParty
from tfe_bench.protocols.session.numbering import MATERIAL, ONLINE

# Sites of both phases are numbered from here, whatever a session has traced before.
FIRST_SITE = 1 << 23
# Bytes of a peer's material that are read before the graph has used earlier ones.
MAX_FED_BYTES = 32 << 20
_WAIT_MS = 200


class MaterialParty(TracingParty, Protocol):
    """The attributes of a party (party.Party) that making and using material needs."""

    _end_session: Callable[[TfeBenchError], object] | None

    @property
    def sent_bytes(self) -> int:
        """Payload that this party has sent in the session."""
        ...

    def check(self, error: str) -> None:
        """Raise the typed error of a native error text; do nothing for ''."""
        ...


class Place(NamedTuple):
    """Place of a message in a graph call."""

    peer: int
    site: int
    iteration: int
    slot: int


class MessageSink(Protocol):
    """A place where messages are kept."""

    def put_message(self, place: Place, data: bytes) -> None:
        """Keep a message."""
        ...


class MessageSource(Protocol):
    """A place from which kept messages are read, once."""

    def list_places(self) -> list[Place]:
        """Return the places of all messages."""
        ...

    def read_message(self, place: Place) -> bytes:
        """Return a message.

        Raises:
            TfeBenchError: it is damaged.
        """
        ...


@dataclass
class KeptMessages:
    """Messages in memory."""

    messages: dict[Place, bytes] = field(default_factory=dict)

    def put_message(self, place: Place, data: bytes) -> None:
        """Keep a message."""
        self.messages[place] = data

    def list_places(self) -> list[Place]:
        """Return the places of all messages."""
        return list(self.messages)

    def read_message(self, place: Place) -> bytes:
        """Return a message."""
        return self.messages[place]


@dataclass(eq=False)
class Material:
    """The secrets of one future call at one party, besides its messages.

    Attributes:
        masks: number of the masks in the native register, whose keys serve this call alone.
        digest: digest of the graph for which it was made.
        sent: payload bytes that this party sent for it.
    """

    masks: int
    digest: bytes
    sent: int

    def wipe_masks(self) -> None:
        """Wipe the keys; no later call can use the material."""
        ops.native().masks_drop(self.masks)


class AheadFunction:
    """A function over shares in two phases: material, then the call with it.

    Args:
        request: positions of the arguments that a request brings.
        name: as in PrivateFunction.
    """

    def __init__(
        self,
        party: MaterialParty,
        function: Callable[..., Nest],
        request: Collection[int],
        name: Hashable | None = None,
    ) -> None:
        self._party = party
        self._making, self._using = (
            PrivateFunction(
                party, function, False, name, phase=phase, request=request, first_site=FIRST_SITE
            )
            for phase in (MATERIAL, ONLINE)
        )

    def make_material(self, sink: MessageSink, *arguments: Nest) -> Material:
        """Send this party's material and keep that of the peers.

        Args:
            sink: keeps the messages of the peers.
            arguments: as of a call; of those that a request brings, only the shapes count.

        Raises:
            ProtocolError, PeerLost: as a call of a function.
            Any error of the sink, after all messages have arrived.
        """
        party, native = self._party, self._party._native
        before = party.sent_bytes
        made: list[Material] = []

        @contextlib.contextmanager
        def collect_during_step(step: int, graph: Graph) -> Iterator[None]:
            end_site = FIRST_SITE + len(graph.sites) - 1  # of Party.end_material
            made.append(Material(native.masks_keep(party.handle, step), graph.phases, 0))
            if made[0].masks == 0:
                raise ProtocolError(
                    "The session ended before its material was made.", code="session-aborted"
                )
            with _Collector(party, step, end_site, sink).run_with_graph():
                yield

        try:
            self._making.call_within(collect_during_step, *arguments)
        except BaseException:
            for material in made:
                material.wipe_masks()
            raise
        made[0].sent = party.sent_bytes - before
        return made[0]

    def use_material(self, material: Material, source: MessageSource, *arguments: Nest) -> Nest:
        """Call the function with material, which no other call can use afterwards.

        Raises:
            ProtocolError: the material was used before, or was made for another graph.
            Any error of the source.
        """
        party, native = self._party, self._party._native

        @contextlib.contextmanager
        def feed_during_step(step: int, graph: Graph) -> Iterator[None]:
            if graph.phases != material.digest:
                raise ProtocolError(
                    "Expected material that was made for this graph. Received: another one.",
                    code="material-mismatch",
                )
            party.check(native.call_for_error("masks_use", party.handle, step, material.masks))
            with _Feeder(party, step, source).run_with_graph():
                yield

        try:
            return self._using.call_within(feed_during_step, *arguments)
        finally:
            material.wipe_masks()


class _SideThread:
    """A thread during a graph call; its error ends the session.

    Args:
        errors: receives the error; the first one of several threads is the cause of the others.
    """

    def __init__(
        self, party: MaterialParty, target: Callable[[], None], errors: list[BaseException]
    ) -> None:
        self._party, self._target, self._errors = party, target, errors
        self._thread = threading.Thread(target=self._run_target, name="tfe-material", daemon=True)

    def start_thread(self) -> None:
        self._thread.start()

    def _run_target(self) -> None:
        try:
            self._target()
        except BaseException as error:
            self._errors.append(error)
            if isinstance(error, TfeBenchError) and self._party._end_session is not None:
                self._party._end_session(error)  # before a peer can give another cause
            self._party._native.abort(self._party.handle, str(error).encode()[:500])

    def join_thread(self) -> None:
        self._thread.join()


class _Collector:
    """Takes the messages of a step aside until both peers have sent all of theirs."""

    def __init__(self, party: MaterialParty, step: int, end_site: int, sink: MessageSink) -> None:
        self._party, self._step, self._end_site, self._sink = party, step, end_site, sink
        self._peers = [p for p in range(3) if p != party.index]
        self._received = dict.fromkeys(self._peers, 0)
        self._announced: dict[int, int] = {}
        self._failure: BaseException | None = None
        self._stopped = threading.Event()

    @contextlib.contextmanager
    def run_with_graph(self) -> Iterator[None]:
        """Collect while the caller's graph runs, and until everything has arrived.

        Raises:
            Any error of the sink.
        """
        errors: list[BaseException] = []
        thread = _SideThread(self._party, self._collect_messages, errors)
        thread.start_thread()
        try:
            yield
        except BaseException:
            self._stopped.set()
            raise
        finally:
            thread.join_thread()
        if errors:
            raise errors[0]
        if not self._is_complete():
            raise ProtocolError(
                "The session ended before all material had arrived.", code="session-aborted"
            )
        if self._failure is not None:
            raise self._failure

    def _collect_messages(self) -> None:
        native = self._party._native
        take = ops.CollectedMessage(self._take_message)
        while not self._stopped.is_set() and not self._is_complete():
            if native.collect(self._party.handle, self._step, _WAIT_MS, take) < 0:
                return  # the graph call reports why

    def _is_complete(self) -> bool:
        return len(self._announced) == 2 and all(
            self._received[p] >= self._announced[p] for p in self._peers
        )

    def _take_message(self, address: int, size: int, numbers: Any) -> None:
        place = Place(*numbers[:4])
        data = ctypes.string_at(address, size) if size else b""
        if place.site == self._end_site:
            self._announced[place.peer] = int.from_bytes(data, "little", signed=True)
            return
        self._received[place.peer] += 1
        if self._failure is None:
            try:
                self._sink.put_message(place, data)
            except BaseException as error:  # the peers must not wait for ever: the rest is dropped
                self._failure = error


class _Feeder:
    """Delivers kept messages to a step, in the order of their sites and with bounded memory."""

    def __init__(self, party: MaterialParty, step: int, source: MessageSource) -> None:
        self._party, self._step, self._source = party, step, source
        self._stopped = threading.Event()

    @contextlib.contextmanager
    def run_with_graph(self) -> Iterator[None]:
        """Deliver while the caller's graph runs.

        Raises:
            Any error of the source.
        """
        places = sorted(self._source.list_places())
        errors: list[BaseException] = []
        threads = [
            _SideThread(self._party, functools.partial(self._feed_peer, peer, places), errors)
            for peer in range(3)
            if peer != self._party.index
        ]
        for thread in threads:
            thread.start_thread()
        try:
            yield
        except BaseException as error:
            if errors:
                raise errors[0] from error
            raise
        finally:
            self._stopped.set()
            for thread in threads:
                thread.join_thread()

    def _feed_peer(self, peer: int, places: list[Place]) -> None:
        party, native = self._party, self._party._native
        last_site = -1
        for place in places:
            if place.peer != peer:
                continue
            # Only between sites: an evaluator can finish a site whose messages it has.
            while place.site != last_site and not self._stopped.is_set():
                if native.wait_fed(party.handle, peer, MAX_FED_BYTES, _WAIT_MS):
                    last_site = place.site
            if self._stopped.is_set():
                return
            data = self._source.read_message(place)
            numbers = (ctypes.c_int64 * 3)(place.site, place.iteration, place.slot)
            error = native.call_for_error(
                "feed", party.handle, peer, self._step, numbers, data, len(data)
            )
            if error:
                party.check(error)
