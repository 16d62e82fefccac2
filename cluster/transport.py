"""The streams between workers: one bidirectional gRPC stream per pair, opaque blobs.

Python moves blobs of at most 1 MiB between the native session's outbox and
inbox; framing, matching and counting happen in the native code.  An empty blob is a heartbeat;
one that starts with NOTICE states why the other side ends the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import math
import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from types import ModuleType
from typing import Any

import grpc

from tfe_bench.cluster import faults, grpc_tls, wire
from tfe_bench.cluster.config import PartyConfig
from tfe_bench.errors import PeerLost, ProtocolError, TfeBenchError
from tfe_bench.protocols.session import ops

# Larger messages halve the rate of gRPC with TLS; smaller ones cost more calls.
BLOB_BYTES = 1 << 20
HEARTBEAT_SECONDS = 1.0
# A worker that is silent for this time is lost.
SILENCE_SECONDS = 7.0
_WATCH_SECONDS = 0.5
_SMALL_BYTES = 1 << 14
_SESSION_ENDED = -(2**63)
# Time that one side of a stream waits for the other to end it.
LINGER_SECONDS = 3.0
NOTICE = b"\xff" * 8
# A peer that sends this has no more messages: the end of its stream is no loss.  Its receipts of
# the session's jobs follow in the same message.
BYE = NOTICE + b"{}"

CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", wire.MOST_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 4000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
    ("grpc.enable_http_proxy", 0),
    # one session's streams must not share a connection whose window another session fills
    ("grpc.use_local_subchannel_pool", 1),
]

# The ends of a stream: a read returns a blob, or grpc.aio.EOF.
Read = Callable[[], Awaitable[object]]
Write = Callable[[bytes], Awaitable[object]]

_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype = ctypes.py_object
_new_bytes.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t]


class _WakeEvent:
    """An eventfd by which native code wakes a coroutine; a timer wakes it for heartbeats."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[bool] | None = None
        self._is_signaled = False
        self._loop.add_reader(self.fd, self._on_wake)
        # One timer for all waits: a timer for each costs more than the rest of a wait.
        self._beat = self._loop.call_later(HEARTBEAT_SECONDS, self._on_heartbeat)

    def _on_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        if self._waiting is None:
            self._is_signaled = True
        elif not self._waiting.done():
            self._waiting.set_result(True)

    def _on_timeout(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(False)

    def _on_heartbeat(self) -> None:
        self._beat = self._loop.call_later(HEARTBEAT_SECONDS, self._on_heartbeat)
        self._on_timeout()

    async def wait(self, seconds: float | None) -> bool:
        """Return True once signaled (also before the call), False after the given seconds.

        Args:
            seconds: None, or a longer time, waits until the next heartbeat is due.
        """
        if self._is_signaled:
            self._is_signaled = False
            return True
        self._waiting = self._loop.create_future()
        timer = None if seconds is None else self._loop.call_later(seconds, self._on_timeout)
        try:
            return await self._waiting
        finally:
            if timer is not None:
                timer.cancel()
            self._waiting = None

    def close(self) -> None:
        """Release the descriptor."""
        self._beat.cancel()
        self._loop.remove_reader(self.fd)
        os.close(self.fd)


class SessionLink:
    """The native session of one job at one worker, and the streams that feed it.

    Args:
        party: this worker's index.
        keys: the three 16-byte PRF keys (zeros for the one this party does not hold).

    Attributes:
        is_concealing: returns whether peers receive codes alone of this party's errors
            (faults.py).
    """

    def __init__(self, party: int, keys: bytes) -> None:
        self.party = party
        self._native = ops.native()
        self.handle: int = self._native.session_new(party, keys, 0)
        self._lock = threading.Lock()
        self._cause: TfeBenchError | None = None
        self._finished = False
        self._last_seen: dict[int, float] = {}
        self._notices: dict[int, bytes] = {}
        # receipts of the session's jobs, after BYE: this worker's, and each peer's
        self._receipts = b""
        self._peer_receipts: dict[int, bytes] = {}
        self._receive_receipts: Callable[[int, bytes], object] | None = None
        self._is_watched = False
        self._deadline = math.inf
        self._expire: Callable[[], object] = lambda: None
        self.is_concealing: Callable[[], bool] = lambda: False

    def shape_traffic(self, delay_us: int, bytes_per_second: int) -> None:
        """Emulate a network for this worker's messages: see Session::Shape."""
        for peer in range(3):
            if peer != self.party:
                self._native.shape(self.handle, peer, delay_us, bytes_per_second)

    def limit_time(self, deadline: float, expire: Callable[[], object]) -> None:
        """Call a function on the loop if the session runs at a time of the clock `monotonic`."""
        self._deadline, self._expire = deadline, expire

    # ---- ends

    @property
    def cause(self) -> TfeBenchError | None:
        """The reason why the session failed, None otherwise."""
        return self._cause

    def fail(self, cause: TfeBenchError) -> None:
        """End the session: waiting graphs fail, peers receive a notice.  The first cause counts."""
        with self._lock:
            if self._finished or self._cause is not None:
                return
            self._cause = cause
            reported = faults.reduce_to_code(cause) if self.is_concealing() else cause
            blob = NOTICE + faults.encode_notice(reported)
            self._notices = {p: blob for p in range(3) if p != self.party}
        self._native.abort(self.handle, str(cause).encode()[:500])

    def mark_finished(self) -> None:
        """Mark the program as returned on all three parties: no failure ends the session now."""
        with self._lock:
            if self._cause is None:
                self._finished = True
                self._notices = dict.fromkeys((p for p in range(3) if p != self.party), BYE)

    @property
    def is_finished(self) -> bool:
        """True if the program has returned on all three parties."""
        return self._finished

    def exchange_receipts(self, message: bytes, receive: Callable[[int, bytes], object]) -> None:
        """Send receipts with this worker's last message, and receive those of the peers.

        Args:
            message: this worker's receipts.
            receive: called with a peer and its receipts, from any thread, once for each peer.
        """
        with self._lock:
            self._receipts, self._receive_receipts = message, receive
            early = list(self._peer_receipts.items())
        for peer, receipts in early:
            receive(peer, receipts)

    def _take_receipts(self, peer: int, receipts: bytes) -> None:
        with self._lock:
            self._peer_receipts[peer] = receipts
            receive = self._receive_receipts
        if receive is not None:
            receive(peer, receipts)

    def finish(self) -> None:
        """End a session whose program has returned on all three parties."""
        self.mark_finished()
        if not self._finished:
            return
        self._native.drain(self.handle, 5000)
        self._native.abort(self.handle, b"the session has ended")

    def drop_session(self) -> None:
        """Release the native session with its keys."""
        self._native.session_drop(self.handle)

    # ---- the two directions of a stream

    async def pump_blobs(
        self,
        peer: int,
        read: Read,
        write: Write,
    ) -> bool:
        """Move blobs between the session and a stream until either has ended.

        Args:
            read: returns the next blob, grpc.aio.EOF at the end.
            write: sends one.

        Returns:
            Whether both sides have ended the session in order, so that the next message of the
            stream belongs to another one.
        """
        self.mark_alive(peer)
        if not self._is_watched:
            self._is_watched = True
            self._watch_session(asyncio.get_running_loop())
        incoming = asyncio.ensure_future(self._pump_incoming(peer, read))
        write_error: Exception | None = None
        try:
            try:
                await self._pump_outgoing(peer, write)
            except Exception as error:
                write_error = error
            # The peer's last message may still be in transit: it states why the write failed.
            await asyncio.wait({incoming}, timeout=LINGER_SECONDS)
            if write_error is not None:
                self._fail_peer_lost(peer, _stream_failure_reason(write_error))
            return self._finished and write_error is None and incoming.done() and incoming.result()
        except asyncio.CancelledError:
            self._fail_peer_lost(peer, "it closed the stream")
            raise
        finally:
            incoming.cancel()

    def _fail_peer_lost(self, peer: int, reason: str) -> None:
        if not self._finished:
            self.fail(PeerLost(peer, reason))

    async def _pump_outgoing(self, peer: int, write: Write) -> None:
        native, handle = self._native, self.handle
        small = ctypes.create_string_buffer(_SMALL_BYTES)
        view = memoryview(small)
        wake_event = _WakeEvent()
        native.set_wake(handle, peer, wake_event.fd)
        try:
            while (
                size := native.next_blob(handle, peer, small, _SMALL_BYTES, BLOB_BYTES, 0)
            ) != _SESSION_ENDED:
                if size == 0:
                    # A waiting blob may be delayed, or not be urgent.
                    microseconds = native.next_due(handle, peer)
                    if (
                        not await wake_event.wait(None if microseconds < 0 else microseconds / 1e6)
                        and microseconds < 0
                    ):
                        await write(b"")
                    continue
                if size > 0:
                    await write(bytes(view[:size]))
                    continue
                blob = _new_bytes(None, -size)
                used = native.pop(
                    handle, peer, ctypes.cast(ctypes.c_char_p(blob), ctypes.c_void_p), -size
                )
                if used < 0:
                    break
                if used:
                    await write(blob if used == -size else blob[:used])
        finally:
            native.set_wake(handle, peer, -1)
            wake_event.close()
        notice = self._notices.get(peer)
        if notice:
            await write(notice + self._receipts if notice == BYE else notice)

    def mark_alive(self, peer: int) -> None:
        """Record that a peer is alive; from now on its silence counts."""
        self._last_seen[peer] = time.monotonic()

    async def _pump_incoming(self, peer: int, read: Read) -> bool:
        """Move blobs from a stream to the session; return True after the peer's last message."""
        native, handle = self._native, self.handle
        text = ctypes.create_string_buffer(512)
        try:
            while isinstance(blob := await read(), bytes):
                self._last_seen[peer] = time.monotonic()
                if not blob:
                    continue
                if blob.startswith(BYE):
                    self._last_seen.pop(peer, None)
                    self._take_receipts(peer, blob[len(BYE) :])
                    return True
                if blob.startswith(NOTICE):
                    self.fail(faults.decode_notice(memoryview(blob)[len(NOTICE) :], peer))
                    return False
                # (a session that has ended accepts no frame, and the peer's last ones may come)
                if native.push(handle, peer, blob, len(blob), text) != 0 and not self._finished:
                    reason = text.value.decode(errors="replace")
                    self.fail(ProtocolError(reason, code="session-aborted"))
                    return False
            self._fail_peer_lost(peer, "its stream ended")
        except Exception as error:
            self._fail_peer_lost(peer, _stream_failure_reason(error))
        return False

    def _watch_session(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._cause is not None or self._finished:
            return
        now = time.monotonic()
        if now >= self._deadline:
            self._expire()
        for peer, at in list(self._last_seen.items()):
            if now - at > SILENCE_SECONDS:
                self.fail(PeerLost(peer, f"it was silent for {SILENCE_SECONDS:.0f} s"))
        loop.call_later(_WATCH_SECONDS, self._watch_session, loop)


def open_worker_channel(
    grpc_module: ModuleType,
    target: PartyConfig,
    key_pair: tuple[bytes, bytes] | None,
    options: Sequence[tuple[str, Any]] = (),
) -> Any:
    """Open a channel to one worker, which connects at its first call.

    Args:
        grpc_module: grpc or grpc.aio, whose channel is returned.
        key_pair: the caller's key and certificate (PEM); None without TLS.

    Raises:
        ConfigError, SecurityError: as `grpc_tls.channel_tls_credentials`.
    """
    options = [*CHANNEL_OPTIONS, *options]
    if key_pair is None:
        return grpc_module.insecure_channel(target.address, options=options)
    credentials = grpc_tls.channel_tls_credentials(*key_pair, target.certificates)
    options += grpc_tls.tls_channel_options(target.certificates[0])
    return grpc_module.secure_channel(target.address, credentials, options=options)


def cancel_worker_call(call: grpc.aio.StreamStreamCall) -> None:
    """End a call of this side at once."""
    call.cancel()
    # If a write fails because the other side has ended, grpc.aio regards the call as done, and its
    # cancel() has no effect.  The underlying call keeps its connection as long as one message is
    # unread.
    inner = getattr(call, "_cython_call", None)
    if inner is not None:
        inner.cancel("hung up")


def _stream_failure_reason(error: Exception) -> str:
    code, details = wire.get_grpc_call_status(error)
    if code is None:
        return f"its stream broke ({type(error).__name__})"
    detail = f": {details.splitlines()[0][:120]}" if details else ""
    return f"its stream broke ({code.name.lower()}{detail})"
