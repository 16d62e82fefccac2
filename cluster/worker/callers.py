"""Who calls a worker, and what they say first."""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

import grpc

from tfe_bench.cluster import json_limits, tls, wire
from tfe_bench.cluster.config import ClientConfig, PartyConfig
from tfe_bench.cluster.worker.connection_guard import ConnectionGuard
from tfe_bench.cluster.worker.host import MEET_SECONDS, Host
from tfe_bench.errors import PolicyError, ProtocolError, SecurityError

# One stream of a caller.
Call: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


class Callers:
    """Names those who call, by their certificates.

    Args:
        door: told whose a connection is.
    """

    def __init__(self, host: Host, guard: ConnectionGuard) -> None:
        self._host, self._guard = host, guard

    def authenticate_member(self, context: Call) -> PartyConfig | ClientConfig:
        """Who calls.

        Raises:
            SecurityError: nobody of this cluster.
        """
        caller = self.look_up_caller(context)
        self._guard.mark_authenticated(context.peer(), caller.name)
        return caller

    def look_up_caller(self, context: Call) -> PartyConfig | ClientConfig:
        """Who calls, by this worker's own cluster file as it is now.

        Raises:
            SecurityError: nobody of this cluster.
        """
        config = self._host.config
        if config.tls:
            return config.identify(get_peer_fingerprint(context))
        claimed = dict(context.invocation_metadata() or ()).get("tfe-party", "")
        if claimed in ("0", "1", "2"):
            return config.parties[int(claimed)]
        return ClientConfig("local")

    def get_fingerprint(self, context: Call) -> str:
        """The fingerprint of the caller's certificate; "" without TLS."""
        return get_peer_fingerprint(context) if self._host.config.tls else ""

    def authenticate_client(self, context: Call) -> str:
        """The name of the client that calls.

        Raises:
            SecurityError: it is none.
        """
        caller = self.authenticate_member(context)
        if not isinstance(caller, ClientConfig):
            raise SecurityError("Jobs come from clients. Received: a worker's certificate.")
        return caller.name

    def disconnect_caller(self, context: Call, reason: str) -> None:
        """Ends a caller's connection, with all that goes over it."""
        self._guard.disconnect_peer(context.peer(), reason)

    async def first(self, context: Call, max_bytes: int = json_limits.MOST_QUESTION) -> bytes:
        """A client's first message, of so many bytes at most.

        Raises:
            ProtocolError: there is none.
            PolicyError: it is longer.
        """
        try:
            blob = await asyncio.wait_for(context.read(), MEET_SECONDS)
        except TimeoutError:
            blob = None
        if not isinstance(blob, bytes):
            raise ProtocolError("A job begins with its submission.")
        if len(blob) > max_bytes:
            raise PolicyError(
                f"Party {self._host.party} takes no first message of more than {max_bytes} bytes here. "
                f"Received: {len(blob)}."
            )
        return blob

    async def read_question(self, context: Call) -> dict[str, Any]:
        """What a client asks in one small message."""
        first = await self.first(context)
        return wire.StreamReader(iter([first])).next_event() or {}


def get_peer_fingerprint(context: grpc.ServicerContext | Call) -> str:
    """The fingerprint of the certificate that the caller has proved to own.

    Raises:
        SecurityError: the caller presented none (a channel without TLS).
    """
    presented: Any = context.auth_context().get("x509_pem_cert", ())
    if len(presented) != 1:
        raise SecurityError(
            "A caller must present one certificate. Received: "
            f"{len(presented)}. Connect with TLS and the certificate listed in cluster.toml."
        )
    return tls.compute_fingerprint(presented[0])
