"""Reuse of connections to peers: after a clean end of one job, a connection serves the next."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import grpc

from tfe_bench.cluster.transport import end_worker_call, open_worker_channel
from tfe_bench.cluster.worker.host import WorkerState

# Idle connections to one peer: for the running job, and for the one that waits behind it.
MAX_IDLE = 2
# An idle connection is closed after the first time, and one of the second age is not reused.
IDLE_SECONDS, OLDEST_SECONDS = 60.0, 600.0


@dataclass(eq=False)
class PeerConnection:
    """A channel to a peer, for one job at a time.

    Attributes:
        is_unused: no job has used it.
    """

    peer: int
    channel: grpc.aio.Channel
    created_at: float = field(default_factory=time.monotonic)
    is_unused: bool = True
    close_timer: asyncio.TimerHandle | None = None

    @property
    def is_usable(self) -> bool:
        """True if it is connected, as far as this side knows, and may serve another job."""
        ready = self.channel.get_state() is grpc.ChannelConnectivity.READY
        return ready and time.monotonic() - self.created_at < OLDEST_SECONDS


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
            await connection.channel.close()
        host = self._host
        key_pair = (host.key, host.certificate) if host.config.tls else None
        return PeerConnection(
            peer, open_worker_channel(grpc.aio, host.config.parties[peer], key_pair)
        )

    async def return_connection(
        self,
        connection: PeerConnection,
        call: grpc.aio.StreamStreamCall | None = None,
        linger: float = 0.0,
    ) -> None:
        """End a job's call; close the connection unless the call has ended cleanly.

        Args:
            call: None if it was not started.
            linger: seconds in which the peer may end it.
        """
        ended_cleanly = call is not None and await end_worker_call(call, linger)
        idle = self._idle[connection.peer]
        if not ended_cleanly or len(idle) == MAX_IDLE or not connection.is_usable:
            await connection.channel.close()
            return
        connection.is_unused = False
        idle.append(connection)
        connection.close_timer = self._host.loop.call_later(
            IDLE_SECONDS, self._close_idle, connection
        )

    def _close_idle(self, connection: PeerConnection) -> None:
        self._idle[connection.peer].remove(connection)
        self._host.start_task(connection.channel.close())

    async def close(self) -> None:
        """Close all idle connections."""
        for idle in self._idle.values():
            while idle:
                connection = idle.pop()
                if connection.close_timer is not None:
                    connection.close_timer.cancel()
                await connection.channel.close()
