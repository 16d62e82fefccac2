"""A client's calls to one worker, each of which ends together with its threads.

gRPC serves a call by daemon threads.  The end of the interpreter stops them wherever they are; a
thread that has a lock of a call then keeps it for ever, and the deletion of the call waits for it.
Therefore a client ends its calls before it returns to its caller.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Self

import grpc

from tfe_bench.cluster import wire

# Longest wait for the threads of calls that are cancelled; usually they end in a few milliseconds.
END_SECONDS = 1.0

# Number of calls of each channel that have not ended.
_open_calls: Counter[grpc.Channel] = Counter()
_counting = threading.Lock()


def _count_call(channel: grpc.Channel, change: int) -> None:
    """Count a call of a channel that starts (1) or ends (-1)."""
    with _counting:
        _open_calls[channel] += change
        if not _open_calls[channel]:
            del _open_calls[channel]


class WorkerCall:
    """A call to a worker, which iterates over the worker's messages; `with` ends it.

    Args:
        channel: from `transport.open_worker_channel`.
        method: of the worker's service, such as wire.JOB.
        requests: the messages to the worker, consumed by a thread of gRPC.
        options: of gRPC, such as timeout in seconds.
    """

    def __init__(
        self, channel: grpc.Channel, method: str, requests: Iterator[bytes], **options: Any
    ) -> None:
        self._channel = channel
        self._request_thread: queue.SimpleQueue[threading.Thread] = queue.SimpleQueue()
        self._event_thread: queue.SimpleQueue[threading.Thread] = queue.SimpleQueue()
        self._call = wire.stub(channel, method)(self._send_requests(requests), **options)
        _count_call(channel, 1)
        # (gRPC runs the callback when the call is over, if it is not over yet)
        self._has_callback = self._call.add_callback(
            lambda: self._event_thread.put(threading.current_thread())
        )

    def _send_requests(self, requests: Iterator[bytes]) -> Iterator[bytes]:
        self._request_thread.put(threading.current_thread())
        yield from requests

    def __iter__(self) -> Self:
        """Return this object."""
        return self

    def __next__(self) -> bytes:
        """Return the worker's next message.

        Raises:
            grpc.RpcError: the call failed.
        """
        message: bytes = next(self._call)
        return message

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the call; see `end_calls`."""
        end_calls([self])

    def cancel_call(self) -> None:
        """Cancel the call, which has no effect if it is over."""
        self._call.cancel()

    def wait_ended(self, deadline: float) -> None:
        """Wait until no thread serves this call any more.

        Args:
            deadline: in seconds of `time.monotonic`.
        """
        _count_call(self._channel, -1)
        try:
            thread = self._request_thread.get(timeout=max(0.0, deadline - time.monotonic()))
            thread.join(max(0.0, deadline - time.monotonic()))
            if self._has_callback:
                thread = self._event_thread.get(timeout=max(0.0, deadline - time.monotonic()))
                # (all calls of a channel share this thread)
                while thread.is_alive() and self._channel not in _open_calls:
                    if time.monotonic() > deadline:
                        return
                    thread.join(0.01)
        except queue.Empty:
            pass


def end_calls(calls: Sequence[WorkerCall], readers: Sequence[threading.Thread] = ()) -> None:
    """Cancel calls and wait until their threads have ended, for END_SECONDS in all.

    Args:
        readers: threads of this client that read the calls' messages.
    """
    deadline = time.monotonic() + END_SECONDS
    for call in calls:
        call.cancel_call()
    for call in calls:
        call.wait_ended(deadline)
    for reader in readers:
        reader.join(max(0.0, deadline - time.monotonic()))
