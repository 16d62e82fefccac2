"""Messages between a client and a worker: small JSON events and chunks of data."""

from __future__ import annotations

import json
import os
import struct
from collections import deque
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
_EVENT, _DATA, _BUNDLE = b"E", b"D", b"B"
# Messages of together at most this size are sent as one.
BUNDLE_BYTES = 1 << 16
_LENGTH = struct.Struct("<I")
# (a message has one byte or more)
_LONGEST_BUNDLE = len(_BUNDLE) + BUNDLE_BYTES * (1 + _LENGTH.size)
_MOST_TEXT = 4000
# For each role (dealer, E1, E2) the part of a result that it sends, and the part whose digest it
# sends.  So no worker alone can change a part: another one sends that part's digest.
RESULT_PARTS = (("l1", "l2"), ("m", "l1"), ("l2", "m"))


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


def take_bundle(messages: deque[bytes]) -> bytes:
    """Remove the first message with the small ones that follow; return them as one message.

    `split_bundle` separates them.
    """
    first = messages.popleft()
    size, parts = len(first), [first]
    while messages and (size := size + len(messages[0])) <= BUNDLE_BYTES:
        parts.append(messages.popleft())
    if len(parts) == 1:
        return first
    return _BUNDLE + b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def split_bundle(blob: bytes) -> list[bytes]:
    """Return the messages that the other side has joined by `take_bundle`.

    Raises:
        ProtocolError: a length is wrong, or the bundle is longer than any of `take_bundle`.
    """
    if not blob.startswith(_BUNDLE):
        return [blob]
    if len(blob) > _LONGEST_BUNDLE:  # (many empty messages would take many times its memory)
        raise ProtocolError(
            f"Expected at most {_LONGEST_BUNDLE} bytes of small messages of a job's stream. "
            f"Received: {len(blob)}.",
            code="malformed-message",
        )
    messages: list[bytes] = []
    begin = len(_BUNDLE)
    while begin < len(blob) or not messages:
        end = begin + _LENGTH.size
        if end <= len(blob):
            end += _LENGTH.unpack_from(blob, begin)[0]
        if end > len(blob):
            raise ProtocolError(
                "A message of a job's stream is truncated.", code="malformed-message"
            )
        messages.append(blob[begin + _LENGTH.size : end])
        begin = end
    return messages


def read_data_chunk(blob: bytes | None, size: int) -> memoryview:
    """Return a chunk's data.

    Args:
        blob: a message; None at the end of the stream.
        size: bytes of data of the expected chunk.

    Raises:
        ProtocolError: it is another message.
    """
    # (a time limit may apply per message, so a sender must not split data into single bytes)
    if blob is None or not blob.startswith(_DATA) or len(blob) - 1 != size:
        raise ProtocolError(
            "A tensor of a job's stream is incomplete or too long.", code="malformed-message"
        )
    return memoryview(blob)[1:]


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
        self._blobs = (message for blob in blobs for message in split_bundle(blob))
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
        while len(out) < size:
            expected = min(CHUNK_BYTES, size - len(out))
            out += read_data_chunk(next(self._blobs, None), expected)
        return out


def get_grpc_call_status(error: Exception) -> tuple[grpc.StatusCode | None, str]:
    """Return code and details of a failed call; None and "" if it has none."""
    code, details = (getattr(error, name, lambda: None)() for name in ("code", "details"))
    return code, str(details or "")


def stub(channel: grpc.Channel | grpc.aio.Channel, method: str) -> Any:
    """Return a stream-stream call of the worker's service."""
    return channel.stream_stream(
        f"/{SERVICE}/{method}", request_serializer=pass_bytes, response_deserializer=pass_bytes
    )
