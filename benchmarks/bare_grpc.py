"""Bare grpcio with TLS between two processes: the reference for the workers' channel.

One bidirectional stream, bytes as messages, nothing else.  An exchange is both sides
sending 8 bytes and waiting for the other's; a hop is one direction of a ping-pong.
"Lock-step": the server writes from the thread that read.  "Duplex": it reads in one thread
and writes in another, as a channel must that sends at any time.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from tfe_bench.cluster import grpc_tls, tls, wire
from tfe_bench.cluster.files import write_public_file, write_secret_file
from tfe_bench.cluster.transport import BLOB_BYTES, CHANNEL_OPTIONS

_METHOD = "/tfe_bench.Bare/Stream"
_SMALL = b"12345678"


def _run_grpc_server(folder: Path, tls_on: bool) -> None:
    """Run the second process: echo, exchange or discard, as the first message asks."""

    def handle_stream(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        mode, kind, count = next(requests).split()
        answers = _stream_grpc_answers(kind, int(count), requests)
        if mode == b"duplex":
            replies: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            threading.Thread(target=_queue_replies, args=(answers, replies), daemon=True).start()
            answers = iter(replies.get, None)
        yield from answers

    server = grpc.server(ThreadPoolExecutor(4), options=CHANNEL_OPTIONS)
    handler = grpc.stream_stream_rpc_method_handler(
        handle_stream, request_deserializer=wire.pass_bytes, response_serializer=wire.pass_bytes
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("tfe_bench.Bare", {"Stream": handler}),)
    )
    if tls_on:
        credentials = grpc_tls.worker_tls_credentials(
            (folder / "0.key").read_bytes(),
            (folder / "0.crt").read_bytes(),
            [(folder / "1.crt").read_bytes()],
        )
        port = server.add_secure_port("127.0.0.1:0", credentials)
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    sys.stdin.read()


def _stream_grpc_answers(kind: bytes, count: int, requests: Iterator[bytes]) -> Iterator[bytes]:
    for _ in range(count):
        if kind == b"exchange":
            yield _SMALL
            next(requests)
        elif kind == b"ping":
            yield next(requests)
        else:
            next(requests)
    yield b"end"


def _queue_replies(answers: Iterator[bytes], replies: queue.SimpleQueue[bytes | None]) -> None:
    """Read a duplex stream in a separate thread and queue its replies."""
    for answer in answers:
        replies.put(answer)
    replies.put(None)


def measure_bare_grpc(
    rounds: int = 200,
    megabytes: int = 64,
    repeat: int = 5,
    mode: str = "lockstep",
    tls_on: bool = True,
) -> dict[str, list[float]]:
    """Return seconds per exchange, seconds per hop and bytes per second, one figure per repeat.

    Args:
        mode: "lockstep" or "duplex".
        tls_on: use TLS, as the channel does.
    """
    with tempfile.TemporaryDirectory(prefix="tfe_bench-") as name:
        folder = Path(name)
        pairs = [
            tls.make_self_signed_certificate(tls.party_common_name(p), days=2) for p in range(2)
        ]
        for p, (key, certificate) in enumerate(pairs):
            write_secret_file(folder / f"{p}.key", key)
            write_public_file(folder / f"{p}.crt", certificate)
        server = subprocess.Popen(
            [sys.executable, "-m", "tfe_bench.benchmarks.bare_grpc", name, str(int(tls_on))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert server.stdout is not None and server.stdin is not None
            port = int(server.stdout.readline())
            address = f"127.0.0.1:{port}"
            if tls_on:
                channel = grpc.secure_channel(
                    address,
                    grpc_tls.channel_tls_credentials(*pairs[1], pairs[0][1]),
                    options=CHANNEL_OPTIONS + grpc_tls.tls_channel_options(pairs[0][1]),
                )
            else:
                channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
            call = channel.stream_stream(
                _METHOD, request_serializer=wire.pass_bytes, response_deserializer=wire.pass_bytes
            )
            result: dict[str, list[float]] = {"exchange": [], "hop": [], "bulk": []}
            for turn in range(repeat + 1):
                exchange = _time_calls(call, mode, "exchange", rounds)
                hop = _time_calls(call, mode, "ping", rounds) / 2
                blobs = megabytes * 1_000_000 // BLOB_BYTES
                bulk = blobs * BLOB_BYTES / _time_calls(call, mode, "bulk", blobs)
                if turn:
                    result["exchange"].append(exchange / rounds)
                    result["hop"].append(hop / rounds)
                    result["bulk"].append(bulk)
            channel.close()
            return result
        finally:
            if server.stdin:
                server.stdin.close()
            server.wait(5)


def _time_calls(call: Any, mode: str, kind: str, count: int) -> float:
    to_send: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    responses = call(iter(to_send.get, None))
    to_send.put(f"{mode} {kind} {count}".encode())
    blob = _SMALL if kind != "bulk" else bytes(BLOB_BYTES)
    started = time.perf_counter()
    for _ in range(count):
        to_send.put(blob)
        if kind != "bulk":
            next(responses)
    next(responses)
    seconds = time.perf_counter() - started
    to_send.put(None)
    return seconds


if __name__ == "__main__":
    _run_grpc_server(Path(sys.argv[1]), sys.argv[2] == "1")
