"""Connections to peers: one that a job has left in order serves the next, without a handshake."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import grpc

from tfe_bench.cluster.transport import dialled, end_call
from tfe_bench.cluster.worker.host import Host

# Left to one peer at most: for the job that runs, and for the one that waits behind it.
MOST_LEFT = 2
# One that serves no job for so long is closed, and one so old serves no other.
IDLE_SECONDS, OLDEST_SECONDS = 60.0, 600.0


@dataclass(eq=False)
class Connection:
    """A channel to a peer, for one job at a time.

    Attributes:
        fresh: nothing has gone over it.
    """

    peer: int
    channel: grpc.aio.Channel
    made: float = field(default_factory=time.monotonic)
    fresh: bool = True
    closing: asyncio.TimerHandle | None = None

    @property
    def usable(self) -> bool:
        """Whether it stands, as far as this side knows, and may serve another job."""
        ready = self.channel.get_state() is grpc.ChannelConnectivity.READY
        return ready and time.monotonic() - self.made < OLDEST_SECONDS


class Connections:
    """Those of one worker to higher-numbered ones; all methods run on the channel's loop."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._left: dict[int, list[Connection]] = {1: [], 2: []}

    async def take(self, peer: int) -> Connection:
        """One that an earlier job has left, else a new one, which is made at its first call."""
        while self._left[peer]:
            connection = self._left[peer].pop()
            if connection.closing is not None:
                connection.closing.cancel()
            if connection.usable:
                return connection
            await connection.channel.close()
        host = self._host
        own = (host.key, host.certificate) if host.config.tls else None
        return Connection(peer, dialled(grpc.aio, host.config.parties[peer], own))

    async def leave(
        self,
        connection: Connection,
        call: grpc.aio.StreamStreamCall | None = None,
        linger: float = 0.0,
    ) -> None:
        """Ends a job's call; what did not end in order is closed with it.

        Args:
            call: None where it was not made yet.
            linger: seconds in which the peer may end it.
        """
        in_order = call is not None and await end_call(call, linger)
        left = self._left[connection.peer]
        if not in_order or len(left) == MOST_LEFT or not connection.usable:
            await connection.channel.close()
            return
        connection.fresh = False
        left.append(connection)
        connection.closing = self._host.loop.call_later(IDLE_SECONDS, self._close, connection)

    def _close(self, connection: Connection) -> None:
        self._left[connection.peer].remove(connection)
        self._host.keep(connection.channel.close())

    async def close(self) -> None:
        """Closes those that no job has."""
        for left in self._left.values():
            while left:
                connection = left.pop()
                if connection.closing is not None:
                    connection.closing.cancel()
                await connection.channel.close()
