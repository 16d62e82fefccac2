"""The links benchmark: delay and bandwidth between the workers, and lost bytes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster.barrier import wait_at_barrier
from tfe_bench.cluster.jobs import Context, InputSpec, Program
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    from tfe_bench.cluster.store import Store

PAIRS = ((0, 1), (0, 2), (1, 2))
_KNOWN = {
    "pings": (4, 1, 1000),
    "kilobytes": (1000, 1, 4_000_000),
    "turns": (1, 1, 100),
    "ping_turns": (1, 1, 100),
    "pair_kilobytes": (0, 0, 4_000_000),
}


def check_request(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Reject unknown or invalid parameters.

    Raises:
        UsageError: a parameter or an input is invalid (the text names it).
    """
    if inputs:
        raise UsageError(
            f"links takes no inputs. Received: {len(inputs)}.",
            code="wrong-number-of-values",
            operation="links",
            received=len(inputs),
        )
    for name, value in parameters.items():
        _, least, most = _KNOWN.get(name, (0, 0, -1))
        if type(value) is not int or not least <= value <= most:
            raise UsageError(
                f"links takes integers within limits: {', '.join(_KNOWN)}. Received: "
                f"{name}={value!r}.",
                code="parameter-out-of-range",
                operation="links",
                received=name,
            )


def transfer_words(
    client: str, store: Store, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> int:
    """Return the words of the longest transfer."""
    settings = {k: int(parameters.get(k, d)) for k, (d, *_) in _KNOWN.items()}
    return max(settings["kilobytes"] * 1000 // 16, settings["pair_kilobytes"] * 125, 1000)


def measure_links(context: Context) -> dict[str, Shared]:
    """Time pings of every pair, then the transfers of each worker in turn to both others.

    With `pair_kilobytes`, also the transfer from the first of each pair to the second.

    A worker sends half of the kilobytes to each of the other two, and its time ends with their
    receipts, so that one clock measures it.  The received data is compared with the data sent.
    """
    import tensorflow as tf

    party = context.party
    settings = {k: int(context.parameters.get(k, d)) for k, (d, *_) in _KNOWN.items()}
    count, turns, ping_turns = (settings[k] for k in ("pings", "turns", "ping_turns"))

    def ping_pair(pair: tuple[int, int]) -> Any:
        def build(x: tf.Tensor) -> tf.Tensor:
            s = party.site("ping", dealer=3 - sum(pair))
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
            s = party.site("bulk", dealer=sender)
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
            s = party.site("pair bulk", dealer=3 - sum(pair))
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
    words = max(1, settings["kilobytes"] * 1000 // 16)
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
    for _ in range(ping_turns):
        for i, graph in enumerate(pings):
            wait_at_barrier(party)
            started = time.perf_counter()
            graph(one)
            # A chain in one graph, so that the call itself takes a small share of the time.
            trips[i].append((time.perf_counter() - started) / count)
    for turn in range(turns):
        for i, graph in enumerate(bulks):
            context.progress((turn + i / 3) / turns, f"worker {i} sends")
            wait_at_barrier(party)
            started = time.perf_counter()
            wrong = graph(large)
            sent[i].append(time.perf_counter() - started)
            if i != party.index:
                lost += 8 * int(wrong.numpy()[0])
    if settings["pair_kilobytes"]:
        block = tf.range(settings["pair_kilobytes"] * 125, dtype=tf.int64)
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
        wait_at_barrier(party)
        started = time.perf_counter()
        graph(block)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


PROGRAM = Program(
    "links",
    measure_links,
    check_request,
    "measures delay and bandwidth between the workers",
    size=transfer_words,
)
