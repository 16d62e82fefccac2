"""Authentication of a worker's callers, and their first message."""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

import grpc

from tfe_bench.cluster import json_limits, tls, wire
from tfe_bench.cluster.config import ClientConfig, PartyConfig
from tfe_bench.cluster.worker.connection_guard import ConnectionGuard
from tfe_bench.cluster.worker.host import MEET_SECONDS, WorkerState
from tfe_bench.errors import PolicyError, ProtocolError, SecurityError

# One stream of a caller.
Call: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


class CallerAuthenticator:
    """Identifies callers by their certificates.

    Args:
        guard: receives the member of each connection.
    """

    def __init__(self, host: WorkerState, guard: ConnectionGuard) -> None:
        self._host, self._guard = host, guard

    def authenticate_member(self, context: Call) -> PartyConfig | ClientConfig:
        """Return the calling member, and mark its connection as authenticated.

        Raises:
            SecurityError: the caller is no member of this cluster.
        """
        caller = self.look_up_caller(context)
        self._guard.mark_authenticated(context.peer(), caller.name)
        return caller

    def look_up_caller(self, context: Call) -> PartyConfig | ClientConfig:
        """Return the calling member by this worker's current cluster file.

        Raises:
            SecurityError: the caller is no member of this cluster.
        """
        config = self._host.config
        if config.tls:
            return config.identify(get_caller_fingerprint(context))
        claimed = dict(context.invocation_metadata() or ()).get("tfe-party", "")
        if claimed in ("0", "1", "2"):
            return config.parties[int(claimed)]
        return ClientConfig("local")

    def get_fingerprint(self, context: Call) -> str:
        """Return the fingerprint of the caller's certificate; "" without TLS."""
        return get_caller_fingerprint(context) if self._host.config.tls else ""

    def authenticate_client(self, context: Call) -> str:
        """Return the name of the calling client.

        Raises:
            SecurityError: the caller is no client.
        """
        caller = self.authenticate_member(context)
        if not isinstance(caller, ClientConfig):
            raise SecurityError(
                "Only clients submit jobs. Received: a worker's certificate.",
                code="client-required",
            )
        return caller.name

    def disconnect_caller(self, context: Call, reason: str) -> None:
        """Close a caller's connection with all its calls."""
        self._guard.disconnect_peer(context.peer(), reason)

    async def read_first_message(
        self, context: Call, max_bytes: int = json_limits.MOST_QUESTION
    ) -> bytes:
        """Read a client's first message, of at most `max_bytes`.

        Raises:
            ProtocolError: no message arrives.
            PolicyError: the message is longer.
        """
        try:
            async with asyncio.timeout(MEET_SECONDS):
                blob = await context.read()
        except TimeoutError:
            blob = None
        if not isinstance(blob, bytes):
            raise ProtocolError(
                "A job starts with its submission. Received: no message.", code="submission-missing"
            )
        if len(blob) > max_bytes:
            raise PolicyError(
                f"Party {self._host.party} accepts no first message of more than {max_bytes} "
                f"bytes here. Received: {len(blob)}.",
                code="message-too-long",
                received=len(blob),
                expected=max_bytes,
                party=self._host.party,
            )
        return blob

    async def read_client_query(self, context: Call) -> dict[str, Any]:
        """Read a client's query from one small message."""
        first = await self.read_first_message(context)
        return wire.JobStreamReader(iter([first])).next_event() or {}


def get_caller_fingerprint(context: grpc.ServicerContext | Call) -> str:
    """Return the fingerprint of the certificate whose key the caller has proved to own.

    Raises:
        SecurityError: the caller presented none (a channel without TLS).
    """
    presented: Any = context.auth_context().get("x509_pem_cert", ())
    if len(presented) != 1:
        raise SecurityError(
            "A caller must present one certificate. Received: "
            f"{len(presented)}. Connect with TLS and the certificate listed in cluster.toml.",
            code="certificate-missing",
            received=len(presented),
            expected=1,
        )
    return tls.compute_certificate_fingerprint(presented[0])
