"""Reuse of connections to peers: a stream on which a job has ended in order serves the next."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import grpc

from tfe_bench.cluster.handshake import StreamKeys
from tfe_bench.cluster.transport import cancel_worker_call, open_worker_channel
from tfe_bench.cluster.worker.host import WorkerState

# Idle connections to one peer.  A job takes its streams when it arrives, and waits with them: so
# these serve the jobs in flight that a client has by default (limits.max_jobs_per_client).
MAX_IDLE = 8
# An idle connection is closed after the first time, and one of the second age is not reused.
IDLE_SECONDS, OLDEST_SECONDS = 60.0, 600.0


@dataclass(eq=False)
class PeerConnection:
    """A channel to a peer, for one job at a time.

    Attributes:
        call: the open stream on which the last job has ended in order; None before the first job.
        keys: of the jobs on the stream.
    """

    peer: int
    channel: grpc.aio.Channel
    created_at: float = field(default_factory=time.monotonic)
    call: grpc.aio.StreamStreamCall | None = None
    close_timer: asyncio.TimerHandle | None = None
    keys: StreamKeys = field(default_factory=StreamKeys)

    @property
    def is_usable(self) -> bool:
        """True if it is connected, as far as this side knows, and may serve another job."""
        is_ready = self.channel.get_state() is grpc.ChannelConnectivity.READY
        has_ended = self.call is not None and self.call.done()
        return is_ready and not has_ended and time.monotonic() - self.created_at < OLDEST_SECONDS


class PeerConnections:
    """Connections of one worker to higher-numbered ones; all methods run on the channel's loop."""

    def __init__(self, host: WorkerState) -> None:
        self._host = host
        self._idle: dict[int, list[PeerConnection]] = {1: [], 2: []}

    async def take_connection(self, peer: int) -> PeerConnection:
        """Return an idle connection, or a new one, which connects at its first call."""
        while self._idle[peer]:
            connection = self._idle[peer].pop()
            if connection.close_timer is not None:
                connection.close_timer.cancel()
            if connection.is_usable:
                return connection
            await self.close_connection(connection, connection.call)
        host = self._host
        key_pair = (host.key, host.certificate) if host.config.tls else None
        return PeerConnection(
            peer, open_worker_channel(grpc.aio, host.config.parties[peer], key_pair)
        )

    async def return_connection(
        self, connection: PeerConnection, call: grpc.aio.StreamStreamCall
    ) -> None:
        """Keep a connection for the next job.

        Args:
            call: its stream, on which a job has ended in order.
        """
        connection.call = call
        idle = self._idle[connection.peer]
        if len(idle) == MAX_IDLE or not connection.is_usable:
            await self.close_connection(connection, call)
            return
        idle.append(connection)
        connection.close_timer = self._host.loop.call_later(
            IDLE_SECONDS, self._close_idle, connection
        )

    async def close_connection(
        self, connection: PeerConnection, call: grpc.aio.StreamStreamCall | None
    ) -> None:
        """Close a connection.

        Args:
            call: its stream; None if it was not started.
        """
        connection.keys.erase_chain()
        if call is not None:
            cancel_worker_call(call)
        await connection.channel.close()

    def _close_idle(self, connection: PeerConnection) -> None:
        self._idle[connection.peer].remove(connection)
        self._host.start_task(self.close_connection(connection, connection.call))

    async def close(self) -> None:
        """Close all idle connections."""
        for idle in self._idle.values():
            while idle:
                connection = idle.pop()
                if connection.close_timer is not None:
                    connection.close_timer.cancel()
                await self.close_connection(connection, connection.call)
