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
HELLO = "Hello"  # who are you, what do you run
STATUS = "Status"  # a client's own jobs
CANCEL = "Cancel"  # one of them
MODELS = "Models"  # the deployed models that a client may use

CHUNK_BYTES = 1 << 20
# No message to a worker is larger: a chunk, a blob between workers, or a job's submission.
MOST_MESSAGE_BYTES = 4 << 20
# Nor one to a client: a trace, or a list of what is kept.
MOST_ANSWER_BYTES = 1 << 28
_EVENT, _DATA = b"E", b"D"
_MOST_TEXT = 4000


def pass_bytes(blob: bytes) -> bytes:
    """Bytes are sent as they are: no protobuf."""
    return blob


def event(kind: str, **fields: Any) -> bytes:
    """An event on the wire."""
    return _EVENT + json.dumps({"event": kind, **fields}).encode()


def chunk_data(blob: bytes | memoryview) -> Iterator[bytes]:
    """A blob in chunks."""
    view = memoryview(blob)
    for start in range(0, len(view), CHUNK_BYTES):
        yield _DATA + bytes(view[start : start + CHUNK_BYTES])


def encode_failure(error: BaseException) -> bytes:
    """An error as an event.  Only our own errors carry their text: others could quote anything."""
    if isinstance(error, TfeBenchError):
        text = str(error)[:_MOST_TEXT]  # which may quote what a client sent
        return event("error", error=type(error).__name__, message=text, **error.to_fields())
    return event(
        "error",
        error="ClusterError",
        message=f"The worker failed inside ({describe_error(error)}); its own log says more.",
        party=None,
    )


def describe_error(error: BaseException) -> str:
    """A foreign error's kind; of the system's also what it says, which quotes nothing."""
    name = type(error).__name__
    if isinstance(error, OSError) and error.errno:
        return f"{name}: {os.strerror(error.errno)}"
    return name


def decode_error(fields: dict[str, Any]) -> TfeBenchError:
    """The typed error behind an error event."""
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


class StreamReader:
    """Reads events and data from one side of a job's stream.

    Args:
        blobs: its messages.
        nan: whether events may hold NaN, as a worker's measurements do.
    """

    def __init__(self, blobs: Iterator[bytes], allow_nan: bool = False) -> None:
        self._blobs = iter(blobs)
        self._allow_nan = allow_nan

    def next_event(self, max_bytes: int = json_limits.MOST_BYTES) -> dict[str, Any] | None:
        """The next event, None at the end of the stream.

        Args:
            most: bytes that it may have.

        Raises:
            ProtocolError: data came where an event was due, or it is malformed or too long.
        """
        blob = next(self._blobs, None)
        if blob is None:
            return None
        if not blob.startswith(_EVENT):
            raise ProtocolError("A message of a job's stream came out of order.")
        fields = json_limits.parse_object(
            memoryview(blob)[1:], "An event of a job's stream", max_bytes, self._allow_nan
        )
        if not isinstance(fields.get("event"), str):
            raise ProtocolError("An event of a job's stream is malformed.")
        return fields

    def read_bytes(self, size: int) -> bytearray:
        """Exactly `size` bytes of data, in chunks as `data` makes them.

        Raises:
            ProtocolError: the stream holds something else.
        """
        out = bytearray()
        for chunk in self._read_chunks(size):
            out += chunk
        return out

    def fill_buffer(self, buffer: memoryview) -> None:
        """As many bytes of data as there is room, put where they belong.

        Raises:
            ProtocolError: as `read`.
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
            # (whoever may wait for each message must not be sent them byte by byte)
            if blob is None or not blob.startswith(_DATA) or len(blob) - 1 != expected:
                raise ProtocolError("A tensor of a job's stream is incomplete or too long.")
            remaining -= expected
            yield memoryview(blob)[1:]


def get_call_status(error: Exception) -> tuple[grpc.StatusCode | None, str]:
    """Code and details of a failed call; None and "" of one that has none."""
    code, details = (getattr(error, name, lambda: None)() for name in ("code", "details"))
    return code, str(details or "")


def stub(channel: grpc.Channel | grpc.aio.Channel, method: str) -> Any:
    """A stream-stream call of the worker's service."""
    return channel.stream_stream(
        f"/{SERVICE}/{method}", request_serializer=pass_bytes, response_deserializer=pass_bytes
    )
