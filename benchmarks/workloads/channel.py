"""The channel benchmark: rounds between two workers, and bytes from one to the other."""

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
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    from tfe_bench.cluster.store import ShareStore


@dataclass(frozen=True)
class ChannelRequest(Request):
    """A request for a measurement of the channel between parties 1 and 2.

    Attributes:
        rounds: exchanges in one graph.
        megabytes: size of the bulk transfer.
        repeat: number of timed runs.
    """

    rounds: int = integer_field(1, 4096, default=100)
    megabytes: int = integer_field(1, 4096, default=64)
    repeat: int = integer_field(1, 4096, default=5)


def parse_request(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> ChannelRequest:
    """Parse the request of a job.

    Raises:
        UsageError: a parameter or an input is invalid (the text names it).
    """
    reject_inputs("channel", inputs)
    return ChannelRequest.from_parameters(parameters, "channel")


def channel_transfer_words(
    client: str, store: ShareStore, request: ChannelRequest, inputs: Sequence[InputSpec]
) -> int:
    """Return the words of the bulk transfer."""
    return request.megabytes * 125_000


def measure_channel(context: Context) -> dict[str, Shared]:
    """Time chains of exchanges between parties 1 and 2 in one graph, and a bulk transfer."""
    party = context.party
    request: ChannelRequest = context.request
    count, words = request.rounds, request.megabytes * 1_000_000 // 8

    def exchange_chain(kind: str) -> Any:
        def build(x: tf.Tensor) -> tf.Tensor:
            for _ in range(count):
                s = party.site(
                    kind, slots={0: slots.declare_exchanged(), 1: slots.declare_exchanged()}
                )
                if s.is_dealer:
                    continue
                if kind == "exchange":
                    s.send(x, s.other_evaluator)
                    x = x + s.recv([1], s.other_evaluator)
                elif s.is_e1:  # there and back: two hops
                    s.send(x, s.e2, slot=0)
                    x = s.recv([1], s.e2, slot=1)
                else:
                    x = s.recv([1], s.e1, slot=0)
                    s.send(x + 1, s.e1, slot=1)
            return x

        return build

    def send_bulk(x: tf.Tensor) -> tf.Tensor:
        s = party.site("bulk", slots={0: slots.declare_exchanged(), 1: slots.declare_exchanged()})
        if s.is_e1:
            s.send(x, s.e2)
            return s.recv([1], s.e2, slot=1)
        if s.is_e2:
            got = s.recv([words], s.e1)
            s.send(got[:1], s.e1, slot=1)
        return x[:1]

    one = tf.constant([1], tf.int64)
    large = tf.zeros([words if party.index == 1 else 1], tf.int64)
    times: dict[str, list[float]] = {"exchange": [], "ping": [], "bulk": []}
    graphs = [
        ("exchange", party.function(exchange_chain("exchange")), one),
        ("ping", party.function(exchange_chain("ping")), one),
        ("bulk", party.function(send_bulk), large),
    ]
    for turn in range(1 + request.repeat):
        for name, graph, argument in graphs:
            wait_at_worker_barrier(party)
            started = time.perf_counter()
            graph(argument)
            if turn:
                times[name].append(time.perf_counter() - started)
    context.measurements.update(
        exchange_seconds=[t / count for t in times["exchange"]],
        hop_seconds=[t / count / 2 for t in times["ping"]],
        bytes_per_second=[words * 8 / t for t in times["bulk"]],
    )
    return {}


PROGRAM = Program(
    "channel",
    measure_channel,
    parse_request,
    "measures rounds and bandwidth between workers 1 and 2",
    size=channel_transfer_words,
    is_sealed=True,
)
