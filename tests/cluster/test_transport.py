"""Frames, links and streams of one session, without workers."""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from tfe_bench.cluster.transport import BYE, NOTICE, SessionLink
from tfe_bench.errors import JobCancelled, PeerLost, PolicyError, ProtocolError
from tfe_bench.protocols.session import ops

STEP_DONE = 2
_HEADER = struct.Struct("<QQQIIIIIHH")  # FrameHeader of protocols/kernels/core/session.cc


def _make_frame(
    payload: bytes,
    step: int = 1,
    site: int = 1,
    total: int | None = None,
    offset: int = 0,
    slot: int = 0,
    flags: int = 0,
    length: int | None = None,
) -> bytes:
    total = len(payload) if total is None else total
    length = len(payload) if length is None else length
    return _HEADER.pack(step, total, offset, site, 0, length, 0, 0, slot, flags) + payload


class _Session:
    """A native session of party 1, and the frames that are pushed into it."""

    def __init__(self) -> None:
        self.native = ops.native()
        self.handle = self.native.session_new(1, os.urandom(48), 0)

    def begin(self, step: int, run_ahead: int = 9) -> str:
        """Begin a step of control messages; return the error."""
        control = 1
        return self.native.call_for_error("step_begin", self.handle, step, control, run_ahead)

    def end(self, step: int) -> None:
        self.native.step_end(self.handle, step)

    def push(self, blob: bytes, peer: int = 0) -> str:
        return self.native.call_for_error("push", self.handle, peer, blob, len(blob))

    def receive(self, size: int, step: int = 1, peer: int = 0) -> tuple[str, bytes]:
        """Receive a control message (site 0): return the error, and the message."""
        space = ctypes.create_string_buffer(max(1, size))
        error = self.native.call_for_error("control_recv", self.handle, peer, step, space, size)
        return error, space.raw[:size]

    def send(self, payload: bytes, step: int = 1, peer: int = 0) -> str:
        return self.native.call_for_error(
            "control_send", self.handle, peer, step, payload, len(payload)
        )


@pytest.fixture
def session() -> Iterator[_Session]:
    fresh = _Session()
    yield fresh
    fresh.native.session_drop(fresh.handle)


def test_the_header_has_48_bytes() -> None:
    assert _HEADER.size == 48


def test_a_message_arrives_whole_and_in_pieces(session: _Session) -> None:
    session.begin(1)
    assert session.push(_make_frame(b"whole", site=0)) == ""
    assert session.receive(5) == ("", b"whole")
    session.end(1)
    session.push(_make_frame(b"", flags=STEP_DONE) + _make_frame(b"", flags=STEP_DONE))
    session.push(_make_frame(b"", flags=STEP_DONE), peer=2)
    session.begin(2)
    pieces = [_make_frame(b"pie", 2, 0, total=8), _make_frame(b"ces..", 2, 0, total=8, offset=3)]
    for piece in pieces:
        assert session.push(piece) == ""
    assert session.receive(8, step=2) == ("", b"pieces..")


def test_messages_of_steps_to_come_wait_for_them(session: _Session) -> None:
    assert session.push(_make_frame(b"early", step=1, site=0)) == ""
    session.begin(1)
    assert session.receive(5) == ("", b"early")


@pytest.mark.parametrize(
    "blob",
    [
        _make_frame(b"12345678")[:47],
        _make_frame(b"12345678")[:-1],
        _make_frame(b"12345678") + b"\0",
        _make_frame(b"12345678", length=2**32 - 1),
        b"\x01",
        bytes(range(47)),
    ],
    ids=["header", "payload", "rest", "length", "byte", "noise"],
)
def test_a_truncated_blob_is_refused(session: _Session, blob: bytes) -> None:
    assert "truncated" in session.push(blob)


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        (_make_frame(b"12345678", total=4), "malformed"),
        (_make_frame(b"12345678", total=16, offset=12), "malformed"),
        (_make_frame(b"12345678", total=1 << 40), "malformed"),
        (_make_frame(b"12345678", total=16, offset=8), "out of order"),
    ],
    ids=["longer-than-total", "beyond-total", "huge", "second-half-first"],
)
def test_a_frame_that_contradicts_itself_is_refused(
    session: _Session, frame: bytes, told: str
) -> None:
    assert told in session.push(frame)


def test_an_offset_that_wraps_around_is_refused(session: _Session) -> None:
    assert "malformed" in session.push(_make_frame(b"12345678", offset=2**64 - 4))


def test_pieces_out_of_order_are_refused(session: _Session) -> None:
    assert session.push(_make_frame(b"aa", total=6)) == ""
    assert "out of order" in session.push(_make_frame(b"cc", total=6, offset=4))


def test_a_piece_that_changes_the_total_is_refused(session: _Session) -> None:
    assert session.push(_make_frame(b"aa", total=6)) == ""
    assert "out of order" in session.push(_make_frame(b"bb", total=8, offset=2))


def test_a_message_that_comes_twice_is_refused(session: _Session) -> None:
    session.begin(1)
    frame = _make_frame(b"12345678", site=0)
    assert session.push(frame) == ""
    assert "twice" in session.push(frame)
    assert session.push(frame, peer=2) == ""  # another peer's message is distinct


def test_a_message_of_a_finished_step_is_refused(session: _Session) -> None:
    for step in (1, 2):
        session.begin(step)
        session.end(step)
    assert "finished step" in session.push(_make_frame(b"12345678", step=1))


def test_a_message_of_another_size_than_due_is_refused(session: _Session) -> None:
    session.begin(1)
    assert session.push(_make_frame(b"12345678", site=0)) == ""
    error, _ = session.receive(4)
    assert "8 bytes where 4 were due" in error


def _start_receiver(session: _Session) -> tuple[list[str], threading.Thread]:
    """Start a thread that waits for 4 bytes in step 1; return its errors and the thread."""
    session.begin(1)
    got: list[str] = []
    waiting = threading.Thread(target=lambda: got.append(session.receive(4)[0]))
    waiting.start()
    time.sleep(0.2)
    return got, waiting


def test_a_message_of_another_size_than_waited_for_is_refused(session: _Session) -> None:
    got, waiting = _start_receiver(session)
    assert "8 bytes where 4 were due" in session.push(_make_frame(b"12345678", site=0))
    waiting.join(10)
    assert "8 bytes where 4 were due" in got[0]


def test_after_an_abort_nothing_is_received_sent_or_begun(session: _Session) -> None:
    waited, waiting = _start_receiver(session)
    session.native.abort(session.handle, b"party 2 is gone")
    waiting.join(10)
    assert waited == ["party 2 is gone"]
    assert session.receive(4)[0] == "party 2 is gone"
    assert session.send(b"late") == "party 2 is gone"
    assert session.push(_make_frame(b"1234")) == "party 2 is gone"
    assert session.begin(2) == "party 2 is gone"
    session.native.abort(session.handle, b"another reason")
    assert session.receive(4)[0] == "party 2 is gone"


def test_no_step_begins_twice_or_falls_back(session: _Session) -> None:
    assert session.begin(3) == ""
    session.end(3)
    for step in (3, 2, 1):
        assert "masks may have been used" in session.begin(step)
    for step in (0, -1, 1 << 40):
        assert "out of range" in session.begin(step)
    assert session.begin(4) == ""


def test_a_step_waits_for_peers_that_are_too_far_behind(session: _Session) -> None:
    begun: list[str] = []
    assert session.begin(1) == ""
    session.end(1)
    waiting = threading.Thread(target=lambda: begun.append(session.begin(2, run_ahead=1)))
    waiting.start()
    session.push(_make_frame(b"", flags=STEP_DONE), peer=0)
    time.sleep(0.2)
    assert not begun
    session.push(_make_frame(b"", flags=STEP_DONE), peer=2)
    waiting.join(10)
    assert begun == [""]


def test_a_message_of_a_graph_is_refused_in_a_step_of_bookkeeping(session: _Session) -> None:
    assert session.begin(1) == ""
    assert session.push(_make_frame(b"12345678", site=3)) != ""


def test_a_step_does_not_begin_on_early_messages_of_another_kind(session: _Session) -> None:
    assert session.push(_make_frame(b"12345678", site=3)) == ""
    assert session.begin(1) != ""


def test_outside_a_step_nothing_is_sent_or_received(session: _Session) -> None:
    assert "not running" in session.send(b"early")
    assert "not running" in session.receive(4)[0]
    session.begin(1)
    session.end(1)
    assert "not running" in session.send(b"late")


def test_a_message_is_not_sent_twice_under_one_tag(session: _Session) -> None:
    session.begin(1)
    assert session.send(b"once") == ""
    assert "twice under one mask" in session.send(b"more")


# ---- links: streams that carry frames


class Pipe:
    """One direction of a stream within this process."""

    def __init__(self) -> None:
        self._blobs: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def write(self, blob: bytes) -> None:
        await self._blobs.put(blob)

    async def read(self) -> bytes | None:
        return await self._blobs.get()


async def _feed_link(link: SessionLink, *blobs: bytes | None) -> list[bytes]:
    """Run a link of party 1 to party 0 on a stream of blobs; return its output."""
    pipe, written = Pipe(), []
    for blob in blobs:
        await pipe.write(blob)  # type: ignore[arg-type]

    async def write(blob: bytes) -> None:
        written.append(blob)

    await asyncio.wait_for(link.pump_blobs(0, pipe.read, write), 20)
    return written


@pytest.fixture
def link() -> Iterator[SessionLink]:
    fresh = SessionLink(1, os.urandom(48))
    yield fresh
    fresh.fail(ProtocolError("the test is over"))
    fresh.drop_session()


@pytest.mark.parametrize(
    "blob",
    [b"garbage", _make_frame(b"12345678")[:-3], _make_frame(b"12345678", total=2)],
    ids=["garbage", "truncated", "malformed"],
)
def test_a_bad_blob_ends_the_session_and_the_peer_is_told_why(
    link: SessionLink, blob: bytes
) -> None:
    written = asyncio.run(_feed_link(link, _make_frame(b"fine"), blob))
    assert type(link.cause) is ProtocolError
    assert written[-1].startswith(NOTICE) and b"ProtocolError" in written[-1]


def test_a_stream_that_ends_without_goodbye_is_a_lost_peer(link: SessionLink) -> None:
    asyncio.run(_feed_link(link, None))
    assert isinstance(link.cause, PeerLost)
    assert link.cause.party == 0


def test_a_stream_that_ends_after_goodbye_is_none(link: SessionLink) -> None:
    async def run() -> None:
        feeding = asyncio.ensure_future(_feed_link(link, BYE, None))
        await asyncio.sleep(0.3)
        assert link.cause is None
        link.finish()
        written = await feeding
        assert written[-1] == BYE

    asyncio.run(run())
    assert link.cause is None


@pytest.mark.parametrize(
    ("notice", "kind", "party"),
    [
        (b'{"error": "PolicyError", "message": "no"}', PolicyError, None),
        (b'{"error": "PeerLost", "message": "no", "party": 2}', PeerLost, 2),
        (b'{"error": "SystemExit", "message": "no"}', ProtocolError, 0),
        (b'{"error": "did_you_mean", "message": "no"}', ProtocolError, 0),
        (b'{"error": "OpsMissing", "message": "no"}', ProtocolError, 0),
        (b'{"error": ["PolicyError"], "message": "no"}', ProtocolError, 0),
        (b'{"error": "PolicyError", "message": ["no"]}', ProtocolError, 0),
        (b'{"error": "PolicyError"}', ProtocolError, 0),
        (b"{", ProtocolError, 0),
        (b"[]", ProtocolError, 0),
        (b'"text"', ProtocolError, 0),
        (b'{"error": "PeerLost", "message": "no", "party": []}', PeerLost, None),
    ],
)
def test_a_peers_notice_becomes_a_typed_error_of_ours(
    link: SessionLink, notice: bytes, kind: type[Exception], party: int | None
) -> None:
    asyncio.run(_feed_link(link, NOTICE + notice))
    assert type(link.cause) is kind
    assert link.cause.party == party
    assert str(link.cause).startswith("Party 0 ")


def test_a_notice_on_its_way_says_more_than_a_stream_that_cannot_be_written_to(
    link: SessionLink,
) -> None:
    async def run() -> None:
        pipe = Pipe()

        async def broken(blob: bytes) -> None:
            raise asyncio.InvalidStateError("the call is over")

        task = asyncio.ensure_future(link.pump_blobs(0, pipe.read, broken))
        await asyncio.sleep(1.5)  # (a heartbeat has been tried)
        await pipe.write(NOTICE + b'{"error": "JobCancelled", "message": "its client left"}')
        await task

    asyncio.run(run())
    assert type(link.cause) is JobCancelled


def test_a_stream_that_cannot_be_written_to_is_a_lost_peer(link: SessionLink) -> None:
    async def run() -> None:
        async def broken(blob: bytes) -> None:
            raise asyncio.InvalidStateError("the call is over")

        await link.pump_blobs(0, Pipe().read, broken)

    asyncio.run(run())
    assert isinstance(link.cause, PeerLost) and "InvalidStateError" in str(link.cause)


def test_a_session_that_runs_longer_than_its_limit_is_ended(link: SessionLink) -> None:
    async def run() -> None:
        async def write(blob: bytes) -> None:
            pass

        link.limit_time(
            time.monotonic() + 0.1, lambda: link.fail(PolicyError("too long", code="job-timeout"))
        )
        pipe = Pipe()
        task = asyncio.ensure_future(link.pump_blobs(0, pipe.read, write))
        await asyncio.sleep(1.2)
        assert type(link.cause) is PolicyError
        await pipe.write(BYE)
        await task

    asyncio.run(run())


def test_an_idle_link_sends_heartbeats(link: SessionLink) -> None:
    written: list[bytes] = []

    async def run() -> None:
        pipe = Pipe()

        async def write(blob: bytes) -> None:
            written.append(blob)

        task = asyncio.ensure_future(link.pump_blobs(0, pipe.read, write))
        await asyncio.sleep(2.6)
        await pipe.write(BYE)
        link.fail(ProtocolError("enough"))
        await task

    asyncio.run(run())
    assert written.count(b"") >= 2
    assert written[-1].startswith(NOTICE)
