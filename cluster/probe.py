"""A short TLS handshake with a worker that accepts connections but does not answer.

gRPC retries connections, and reports only that the time is up.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

from tfe_bench.cluster import tls
from tfe_bench.cluster.config import PartyConfig

# A handshake takes two round trips; a longer one is slow, but no refusal.
SECONDS = 2.0
# Seconds between two probes of a waiting caller.
PAUSE = 0.5


class TlsProbe:
    """Repeated TLS handshakes while a caller waits; a mismatch counts if two in a row report it.

    (A busy or stopping worker closes connections, too.)
    """

    def __init__(self, party: PartyConfig, key: bytes, certificate: bytes) -> None:
        self._arguments = (party, key, certificate)
        self._last: str | None = None
        self.mismatch: str | None = None

    def check_once(self) -> str | None:
        """Return the reason of a TLS mismatch, or None while it is uncertain."""
        before, self._last = (
            self._last,
            find_tls_mismatch(*self._arguments) if self._arguments[1] else None,
        )
        return self._last if self._last == before else None

    @contextlib.contextmanager
    def watch_call(self, cancel: Callable[[], object]) -> Iterator[None]:
        """Probe in a separate thread during a call; record a `mismatch` and cancel the call."""
        done = threading.Event()

        def poll_until_done() -> None:
            while not done.wait(PAUSE):
                if (mismatch := self.check_once()) is not None:
                    self.mismatch = mismatch
                    cancel()
                    return

        threading.Thread(target=poll_until_done, name="tfe-probe", daemon=True).start()
        try:
            yield
        finally:
            done.set()


def find_tls_mismatch(party: PartyConfig, key: bytes, certificate: bytes) -> str | None:
    """Return why a worker and this caller do not agree on TLS; None if they do or nothing answers.

    Args:
        party: the worker.
        key, certificate: the caller's own (PEM).
    """
    pinned = [tls.compute_certificate_fingerprint(pem) for pem in party.certificates]
    try:
        with (
            open_worker_connection(party) as plain,
            _tls_probe_context(key, certificate).wrap_socket(plain) as wrapped,
        ):
            fingerprint = hashlib.sha256(wrapped.getpeercert(binary_form=True) or b"").hexdigest()
            if fingerprint not in pinned:
                return (
                    "it presents a certificate that this cluster.toml does not pin (SHA-256 "
                    f"{tls.format_certificate_fingerprint(fingerprint)})"
                )
            return _read_tls_verdict(wrapped)
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
        # closed before it presented a certificate: busy, or stopping (the latter before 3.11.3)
        return None
    except ssl.SSLError as error:
        return f"the address does not use a worker's TLS ({error.reason})"
    except OSError:  # no process listens, or the answer takes longer
        return None


def fetch_worker_fingerprint(party: PartyConfig) -> str | None:
    """Return the SHA-256 of the certificate that a worker presents; None without an answer."""
    try:
        with (
            open_worker_connection(party) as plain,
            _tls_probe_context().wrap_socket(plain) as wrapped,
        ):
            der = wrapped.getpeercert(binary_form=True)
    except OSError:
        return None
    return hashlib.sha256(der).hexdigest() if der else None


def _read_tls_verdict(wrapped: ssl.SSLSocket) -> str | None:
    """Return the worker's reaction to this caller's certificate, which it receives last."""
    try:
        if wrapped.recv(1):  # its settings
            return None
    except TimeoutError:
        return None
    except OSError:  # an alert, or a closed connection
        pass
    return (
        "it closes the connection on receipt of this one's certificate: it does not accept it, or "
        "takes no more connections now"
    )


def open_worker_connection(party: PartyConfig) -> socket.socket:
    """Open a TCP connection to a worker.

    Raises:
        OSError: no process listens.
    """
    host = "127.0.0.1" if party.host == "localhost" else party.host
    return socket.create_connection((host, party.port), SECONDS)


def _tls_probe_context(key: bytes = b"", certificate: bytes = b"") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent, only compared
    context.set_alpn_protocols(["h2"])
    if key:
        # (ssl reads files only; this one is in memory, and no other process can open it)
        descriptor = os.memfd_create("tfe_bench")
        try:
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(key + b"\n" + certificate)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
    return context
