"""Messages between a client and a worker: small JSON events and chunks of data."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import grpc

from tfe_bench import errors
from tfe_bench.cluster import json_limits
from tfe_bench.errors import ClusterError, ProtocolError, TfeBenchError

SERVICE = "tfe_bench.Worker"
STREAM = "Stream"  # between workers
JOB = "Job"  # between a client and a worker
HELLO = "Hello"  # a worker's identity, versions and clock
STATUS = "Status"  # a client's own jobs
CANCEL = "Cancel"  # one of a client's own jobs
MODELS = "Models"  # the stored values that a client may use

CHUNK_BYTES = 1 << 20
# Largest message to a worker: a chunk, a blob between workers, or a job's submission.
MOST_MESSAGE_BYTES = 4 << 20
# Largest message to a client: a trace, or a list of stored values.
MOST_ANSWER_BYTES = 1 << 28
_EVENT, _DATA = b"E", b"D"
_MOST_TEXT = 4000


def pass_bytes(blob: bytes) -> bytes:
    """Return the bytes: messages are not protobufs."""
    return blob


def event(kind: str, **fields: Any) -> bytes:
    """Encode an event."""
    return _EVENT + json.dumps({"event": kind, **fields}).encode()


def chunk_stream_data(blob: bytes | memoryview) -> Iterator[bytes]:
    """Split a blob into chunks."""
    view = memoryview(blob)
    for start in range(0, len(view), CHUNK_BYTES):
        yield _DATA + bytes(view[start : start + CHUNK_BYTES])


def encode_failure_event(error: BaseException) -> bytes:
    """Encode an error as an event.

    Only our own errors carry their text: others could quote any value.
    """
    if isinstance(error, TfeBenchError):
        text = str(error)[:_MOST_TEXT]  # the text may quote a client's values
        return event("error", error=type(error).__name__, message=text, **error.to_fields())
    return event(
        "error",
        error="ClusterError",
        message=f"Internal error of the worker ({describe_foreign_error(error)}); "
        "its own log says more.",
        party=None,
    )


def describe_foreign_error(error: BaseException) -> str:
    """Return a foreign error's class; of a system error also its message, which quotes nothing."""
    name = type(error).__name__
    if isinstance(error, OSError) and error.errno:
        return f"{name}: {os.strerror(error.errno)}"
    return name


def decode_error_event(fields: dict[str, Any]) -> TfeBenchError:
    """Return the typed error of an error event."""
    kind = errors.get_error_class(fields.get("error"))
    message = str(fields.get("message"))
    error: TfeBenchError
    if kind is errors.PeerLost:
        error = errors.PeerLost(None, "")
        error.args = (message,)
    else:
        error = (kind or ClusterError)(message)
    error.read_fields(fields)
    return error


class JobStreamReader:
    """A reader of events and data from one side of a job's stream.

    Args:
        blobs: its messages.
        allow_nan: whether events may hold NaN, as a worker's measurements do.
    """

    def __init__(self, blobs: Iterator[bytes], allow_nan: bool = False) -> None:
        self._blobs = iter(blobs)
        self._allow_nan = allow_nan

    def next_event(self, max_bytes: int = json_limits.MOST_BYTES) -> dict[str, Any] | None:
        """Return the next event, None at the end of the stream.

        Args:
            max_bytes: largest size of the event.

        Raises:
            ProtocolError: data came instead of an event, or the event is malformed or too long.
        """
        blob = next(self._blobs, None)
        if blob is None:
            return None
        if not blob.startswith(_EVENT):
            raise ProtocolError(
                "Expected an event on a job's stream. Received: data.", code="unexpected-message"
            )
        fields = json_limits.parse_untrusted_json_object(
            memoryview(blob)[1:], "An event of a job's stream", max_bytes, self._allow_nan
        )
        if not isinstance(fields.get("event"), str):
            raise ProtocolError(
                "An event of a job's stream is malformed.", code="malformed-message"
            )
        return fields

    def read_bytes(self, size: int) -> bytearray:
        """Read exactly `size` bytes of data, in chunks of the sizes of `chunk_stream_data`.

        Raises:
            ProtocolError: the stream holds something else.
        """
        out = bytearray()
        for chunk in self._read_chunks(size):
            out += chunk
        return out

    def fill_buffer(self, buffer: memoryview) -> None:
        """Fill a buffer with data of the stream.

        Raises:
            ProtocolError: as `read_bytes`.
        """
        begin = 0
        for chunk in self._read_chunks(len(buffer)):
            buffer[begin : begin + len(chunk)] = chunk
            begin += len(chunk)

    def _read_chunks(self, size: int) -> Iterator[memoryview]:
        remaining = size
        while remaining:
            blob = next(self._blobs, None)
            expected = min(CHUNK_BYTES, remaining)
            # (a time limit may apply per message, so a sender must not split data into single
            # bytes)
            if blob is None or not blob.startswith(_DATA) or len(blob) - 1 != expected:
                raise ProtocolError(
                    "A tensor of a job's stream is incomplete or too long.",
                    code="malformed-message",
                )
            remaining -= expected
            yield memoryview(blob)[1:]


def get_grpc_call_status(error: Exception) -> tuple[grpc.StatusCode | None, str]:
    """Return code and details of a failed call; None and "" if it has none."""
    code, details = (getattr(error, name, lambda: None)() for name in ("code", "details"))
    return code, str(details or "")


def stub(channel: grpc.Channel | grpc.aio.Channel, method: str) -> Any:
    """Return a stream-stream call of the worker's service."""
    return channel.stream_stream(
        f"/{SERVICE}/{method}", request_serializer=pass_bytes, response_deserializer=pass_bytes
    )
