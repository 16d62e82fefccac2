"""Connections that one job leaves to the next."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from tfe_bench.cluster import wire
from tfe_bench.cluster.worker import connections
from tfe_bench.cluster.worker.connections import MAX_IDLE, PeerConnection, PeerConnections

PEER = 2


async def _serve_stream(request: AsyncIterator[bytes], context: Any) -> None:
    """Answer each message, or end at once on request."""
    async for said in request:
        if said == b"break":
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")
        await context.write(said)


async def _start_peer() -> tuple[grpc.aio.Server, str]:
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(
        _serve_stream, request_deserializer=wire.pass_bytes, response_serializer=wire.pass_bytes
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(wire.SERVICE, {wire.STREAM: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"


async def _run_job(of: PeerConnections, connection: PeerConnection, message: bytes = b"go") -> None:
    """Use the stream of a connection, or its first one."""
    call = connection.call or wire.stub(connection.channel, wire.STREAM)()
    await call.write(message)
    try:
        has_ended_in_order = await call.read() == message
    except grpc.RpcError:
        has_ended_in_order = False
    if has_ended_in_order:
        await of.return_connection(connection, call)
    else:
        await of.close_connection(connection, call)


def _run_test(test: Callable[[PeerConnections, grpc.aio.Server], Awaitable[None]]) -> None:
    async def whole() -> None:
        server, address = await _start_peer()
        peers = [SimpleNamespace(address=address)] * 3
        of = PeerConnections(
            SimpleNamespace(  # type: ignore[arg-type]
                party=0,
                config=SimpleNamespace(tls=False, parties=peers),
                loop=asyncio.get_running_loop(),
                start_task=asyncio.ensure_future,
            )
        )
        try:
            await test(of, server)
        finally:
            await of.close()
            await server.stop(0)

    asyncio.run(whole())


def test_jobs_in_a_row_use_one_connection() -> None:
    async def test(of: PeerConnections, server: grpc.aio.Server) -> None:
        first = await of.take_connection(PEER)
        assert first.call is None
        calls: set[Any] = set()
        for _ in range(50):
            await _run_job(of, first)
            assert await of.take_connection(PEER) is first
            calls.add(first.call)
        assert len(calls) == 1 and None not in calls

    _run_test(test)


def test_two_hundred_jobs_leave_no_descriptor() -> None:
    async def test(of: PeerConnections, server: grpc.aio.Server) -> None:
        counts = []
        for i in range(200):
            await _run_job(of, await of.take_connection(PEER), b"break" if i % 5 == 4 else b"go")
            if i in (24, 199):  # (after equal numbers of each kind)
                gc.collect()  # a broken connection's sockets are in a reference cycle
                await asyncio.sleep(0.5)
                counts.append(len(os.listdir("/proc/self/fd")))
        assert counts[1] <= counts[0]

    _run_test(test)


def test_what_did_not_end_in_order_serves_no_other_job() -> None:
    async def test(of: PeerConnections, server: grpc.aio.Server) -> None:
        for end in (b"break", None):
            connection = await of.take_connection(PEER)
            if end is None:  # before a call
                await of.close_connection(connection, None)
            else:
                await _run_job(of, connection, end)
            assert connection.channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN
            assert (await of.take_connection(PEER)).call is None

    _run_test(test)


def test_a_connection_whose_peer_has_gone_is_not_used() -> None:
    async def test(of: PeerConnections, server: grpc.aio.Server) -> None:
        connection = await of.take_connection(PEER)
        await _run_job(of, connection)
        await server.stop(0)
        while connection.channel.get_state() is grpc.ChannelConnectivity.READY:
            await asyncio.sleep(0.01)
        assert (await of.take_connection(PEER)).call is None

    _run_test(test)


def test_a_stream_that_its_peer_has_ended_is_not_used() -> None:
    async def test(of: PeerConnections, server: grpc.aio.Server) -> None:
        connection = await of.take_connection(PEER)
        await _run_job(of, connection)
        assert connection.call is not None
        await connection.call.write(b"break")
        while not connection.call.done():
            await asyncio.sleep(0.01)
        assert connection.channel.get_state() is grpc.ChannelConnectivity.READY
        assert (await of.take_connection(PEER)).call is None
        assert connection.channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN

    _run_test(test)


def test_few_are_left_and_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.5)

    async def test(of: PeerConnections, server: grpc.aio.Server) -> None:
        some = [await of.take_connection(PEER) for _ in range(MAX_IDLE + 2)]
        for each in some:
            await _run_job(of, each)
        states = [each.channel.get_state() for each in some]
        assert states.count(grpc.ChannelConnectivity.SHUTDOWN) == 2
        await asyncio.sleep(1.0)
        assert {each.channel.get_state() for each in some} == {grpc.ChannelConnectivity.SHUTDOWN}
        monkeypatch.setattr(connections, "OLDEST_SECONDS", 0.0)
        old = await of.take_connection(PEER)
        await _run_job(of, old)
        assert old.channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN

    _run_test(test)
