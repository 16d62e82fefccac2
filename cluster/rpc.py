"""Single queries of a worker, and the reason of a missing answer."""

from __future__ import annotations

import socket
import time
from typing import Any

import grpc

from tfe_bench.cluster import probe, wire
from tfe_bench.cluster.config import PartyConfig
from tfe_bench.cluster.worker_calls import WorkerCall
from tfe_bench.errors import ClusterError


def ask_worker(
    channel: grpc.Channel,
    party: PartyConfig,
    tls_probe: probe.TlsProbe,
    method: str,
    timeout: float,
    **fields: Any,
) -> dict[str, Any]:
    """Query one worker and return its answer; see `Client.ask`."""
    started = time.time()
    try:
        question = iter([wire.event(method.lower(), **fields)])
        with (
            WorkerCall(channel, method, question, timeout=timeout, wait_for_ready=True) as call,
            tls_probe.watch_call(call.cancel_call),
        ):
            answer = wire.JobStreamReader(call, allow_nan=True).next_event(wire.MOST_ANSWER_BYTES)
    except grpc.RpcError as error:
        code, details = wire.get_grpc_call_status(error)
        unreached = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
        if tls_probe.mismatch or code in unreached:
            raise worker_no_answer_error(party, timeout, tls_probe.mismatch) from None
        raise ClusterError(
            f"Party {party.index} does not answer. Received: {details[:120] or code}. Use one "
            "version of tfe_bench everywhere.",
            code="worker-not-reachable",
            party=party.index,
        ) from None
    if answer is None:
        raise ClusterError(
            f"Party {party.index} gave no answer. Its log says why.",
            code="worker-not-reachable",
            party=party.index,
        )
    if answer["event"] == "error":
        raise wire.decode_error_event(answer)
    return {**answer, "asked": started, "answered": time.time()}


def send_worker_hello(channel: grpc.Channel, timeout: float) -> WorkerCall:
    """Send a query that waits up to `timeout` seconds until the worker can be reached.

    grpcio's own channel_ready_future leaves a thread that polls the channel for another 0.2 s
    and logs an error if it is closed meanwhile.
    """
    hello = iter([wire.event("hello")])
    return WorkerCall(channel, wire.HELLO, hello, timeout=timeout, wait_for_ready=True)


def has_worker_answered(call: WorkerCall) -> bool:
    """End a call; return whether any answer arrives: the next call repeats a refusal's text."""
    try:
        with call:
            for _ in call:
                pass
    except grpc.RpcError as error:
        return wire.get_grpc_call_status(error)[0] is not grpc.StatusCode.DEADLINE_EXCEEDED
    return True


def worker_no_answer_error(
    party: PartyConfig, timeout: float, mismatch: str | None = None
) -> ClusterError:
    """Return the error of a worker that does not answer: nothing listens, or TLS fails."""
    problem = f"Party {party.index} does not answer. Received:"
    if not mismatch:
        try:
            with probe.open_worker_connection(party) as connection:
                closed = _is_connection_closed_at_once(connection)
        except OSError:
            return ClusterError(
                f"{problem} nothing from {party.address} in {timeout:.0f} s. Start its worker "
                f"(`python -m tfe_bench worker --party {party.index} ...`), or correct its address "
                "in cluster.toml.",
                code="worker-not-reachable",
                party=party.index,
            )
        if closed:
            return ClusterError(
                f"{problem} {party.address} closes new connections at once: its worker takes no "
                "more of them now. Try again later; its log lists the connections' owners.",
                code="worker-refuses-connections",
                party=party.index,
            )
        mismatch = f"no message in {timeout:.0f} s"
    return ClusterError(
        f"{problem} a connection to {party.address} but no agreement on TLS: {mismatch}. Its "
        "worker must run with a cluster.toml that holds this one's certificate, and this one must "
        "hold the worker's.",
        code="tls-mismatch",
        party=party.index,
    )


def _is_connection_closed_at_once(connection: socket.socket) -> bool:
    """Return whether the other side closes the connection before any message."""
    connection.settimeout(0.5)
    try:
        return not connection.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True
