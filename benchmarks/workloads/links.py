"""The links benchmark: delay and bandwidth between the workers, and lost bytes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster.barrier import wait_at_worker_barrier
from tfe_bench.cluster.jobs import Context, InputSpec, Program, reject_inputs
from tfe_bench.cluster.schema import Request, integer_field
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.session import slots
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    from tfe_bench.cluster.store import ShareStore

PAIRS = ((0, 1), (0, 2), (1, 2))


@dataclass(frozen=True)
class LinksRequest(Request):
    """A request for a measurement of the links between the workers.

    Attributes:
        pings: there and back in one graph.
        kilobytes: size of a worker's transfer to both others.
        turns, ping_turns: numbers of transfers and of chains of pings.
        pair_kilobytes: size of each pair's transfer; 0 for none.
    """

    pings: int = integer_field(1, 1000, default=4)
    kilobytes: int = integer_field(1, 4_000_000, default=1000)
    turns: int = integer_field(1, 100, default=1)
    ping_turns: int = integer_field(1, 100, default=1)
    pair_kilobytes: int = integer_field(0, 4_000_000, default=0)


def parse_request(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> LinksRequest:
    """Parse the request of a job.

    Raises:
        UsageError: a parameter or an input is invalid (the text names it).
    """
    reject_inputs("links", inputs)
    return LinksRequest.from_parameters(parameters, "links")


def link_transfer_words(
    client: str, store: ShareStore, request: LinksRequest, inputs: Sequence[InputSpec]
) -> int:
    """Return the words of the longest transfer."""
    return max(request.kilobytes * 1000 // 16, request.pair_kilobytes * 125, 1000)


def time_worker_links(context: Context) -> dict[str, Shared]:
    """Time pings of every pair, then the transfers of each worker in turn to both others.

    With `pair_kilobytes`, also the transfer from the first of each pair to the second.

    A worker sends half of the kilobytes to each of the other two, and its time ends with their
    receipts, so that one clock measures it.  The received data is compared with the data sent.
    """
    party = context.party
    request: LinksRequest = context.request
    count = request.pings

    def ping_pair(pair: tuple[int, int]) -> Any:
        def build(x: tf.Tensor) -> tf.Tensor:
            s = party.site(
                "ping",
                dealer=3 - sum(pair),
                slots=dict.fromkeys(range(2 * count), slots.declare_exchanged()),
            )
            if s.is_dealer:
                return x
            for i in range(0, 2 * count, 2):
                if party.index == pair[0]:
                    s.send(x, pair[1], slot=i)
                    x = s.recv([1], pair[1], slot=i + 1)
                else:
                    x = s.recv([1], pair[0], slot=i)
                    s.send(x, pair[0], slot=i + 1)
            return x

        return build

    def send_to_both(sender: int) -> Any:
        def build(x: tf.Tensor) -> tf.Tensor:
            to_peers = [(slots.D, slots.E1), (slots.D, slots.E2)]
            from_peers = [(receiver, sender) for sender, receiver in to_peers]
            s = party.site(
                "bulk",
                dealer=sender,
                slots={0: slots.declare_sent(*to_peers), 1: slots.declare_sent(*from_peers)},
            )
            if s.is_dealer:
                for peer in (s.e1, s.e2):
                    s.send(x, peer)
                receipts = [s.recv([1], peer, slot=1) for peer in (s.e1, s.e2)]
                return receipts[0] + receipts[1]
            got = s.recv(tf.shape(x, out_type=tf.int64), sender)
            s.send(got[-1:], sender, slot=1)
            return tf.math.count_nonzero(got != x, keepdims=True)

        return build

    def send_to_peer(pair: tuple[int, int]) -> Any:
        def build(x: tf.Tensor) -> tf.Tensor:
            s = party.site(
                "pair bulk",
                dealer=3 - sum(pair),
                slots={0: slots.declare_exchanged(), 1: slots.declare_exchanged()},
            )
            if party.index == pair[0]:
                s.send(x, pair[1])
                return s.recv([1], pair[1], slot=1)
            if party.index == pair[1]:
                got = s.recv(tf.shape(x, out_type=tf.int64), pair[0])
                s.send(got[-1:], pair[0], slot=1)
                return got[-1:]
            return x[:1]

        return build

    one = tf.constant([1], tf.int64)
    words = max(1, request.kilobytes * 1000 // 16)
    large, little = tf.range(words, dtype=tf.int64), tf.range(1000, dtype=tf.int64)
    pings = [party.function(ping_pair(pair)) for pair in PAIRS]
    bulks = [party.function(send_to_both(sender), dynamic=True) for sender in range(3)]
    for graph in pings:
        graph(one)
    for graph in bulks:
        graph(little)
    trips: list[list[float]] = [[], [], []]
    sent: list[list[float]] = [[], [], []]
    lost = 0
    for _ in range(request.ping_turns):
        for i, graph in enumerate(pings):
            wait_at_worker_barrier(party)
            started = time.perf_counter()
            graph(one)
            # A chain in one graph, so that the call itself takes a small share of the time.
            trips[i].append((time.perf_counter() - started) / count)
    for turn in range(request.turns):
        for i, graph in enumerate(bulks):
            context.progress((turn + i / 3) / request.turns, f"worker {i} sends")
            wait_at_worker_barrier(party)
            started = time.perf_counter()
            wrong = graph(large)
            sent[i].append(time.perf_counter() - started)
            if i != party.index:
                lost += 8 * int(wrong.numpy()[0])
    if request.pair_kilobytes:
        block = tf.range(request.pair_kilobytes * 125, dtype=tf.int64)
        context.measurements["pair_seconds"] = [
            _time_graph(party, send_to_peer(p), block) for p in PAIRS
        ]
        context.measurements["pair_bytes"] = 8 * int(block.shape[0])
    context.measurements.update(
        trip_seconds=[trips[i] if pair[0] == party.index else [] for i, pair in enumerate(PAIRS)],
        send_seconds=sent[party.index],
        sent_bytes=16 * words,
        lost_bytes=lost,
    )
    return {}


def _time_graph(party: Party, build: Any, block: Any) -> float:
    """Return the shorter of two runs, after one that opens the windows."""
    graph = party.function(build, dynamic=True)
    seconds = []
    for _ in range(3):
        wait_at_worker_barrier(party)
        started = time.perf_counter()
        graph(block)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


PROGRAM = Program(
    "links",
    time_worker_links,
    parse_request,
    "measures delay and bandwidth between the workers",
    size=link_transfer_words,
    is_sealed=True,
)
