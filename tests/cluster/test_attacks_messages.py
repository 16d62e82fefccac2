"""A worker that deviates on its streams: the others end in time with a code, or as if nothing was.

The deviating worker is one of three real ones; its messages to both peers are changed as they
leave.  The job is sealed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.cluster.conftest import wait_until
from tests.cluster.test_joined_sessions import JoinedSessions
from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.client import Client
from tfe_bench.cluster.faults import FAULT_KINDS
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import DATA, StoredFacts, StoredTensor
from tfe_bench.cluster.transport import BYE, NOTICE, SessionLink
from tfe_bench.errors import PolicyError, ProtocolError, TfeBenchError
from tfe_bench.protocols.ring import arithmetic
from tfe_bench.protocols.session.openings import OpeningLog
from tfe_bench.protocols.session.party import Party, current_party

if TYPE_CHECKING:
    from tests.cluster.conftest import Trio

JOB_SECONDS = 12.0
LIMITS: dict[str, Any] = {"job_seconds": JOB_SECONDS, "stall_seconds": 3.0}
_HEADER = struct.Struct("<QQQIIIIIHH")  # FrameHeader of protocols/kernels/core/session.cc
_RUN_AHEAD = 1  # the flag of a dealer's messages (kRunAhead)
_X = {"x": PrivateInput(np.arange(3))}
_CALLS = 3


@dataclasses.dataclass(frozen=True)
class _Frame:
    """A frame of a message between workers."""

    step: int
    total: int
    offset: int
    site: int
    iteration: int
    length: int
    more: tuple[int, int]
    slot: int
    flags: int
    payload: bytes

    @property
    def is_of_graph(self) -> bool:
        """True for a message of a protocol: its payload depends on private values."""
        return self.site != 0 and not self.flags & ~_RUN_AHEAD

    def encode(self) -> bytes:
        """Return the frame's bytes."""
        numbers = (self.step, self.total, self.offset, self.site, self.iteration, self.length)
        return _HEADER.pack(*numbers, *self.more, self.slot, self.flags) + self.payload

    def resize(self, payload: bytes) -> _Frame:
        """Return the frame with a payload of another size."""
        return dataclasses.replace(self, payload=payload, total=len(payload), length=len(payload))


def _split_frames(blob: bytes) -> Iterator[_Frame]:
    begin = 0
    while begin < len(blob):
        step, total, offset, site, iteration, length, *more, slot, flags = _HEADER.unpack_from(
            blob, begin
        )
        begin += _HEADER.size
        payload = blob[begin : begin + length]
        begin += length
        shown = (more[0], more[1])
        yield _Frame(step, total, offset, site, iteration, length, shown, slot, flags, payload)


Write = Callable[[bytes], Awaitable[object]]
# Writes a frame of a deviating worker: its number among those of graphs (from 0), and what to do.
Deviation = Callable[["_Sender", _Frame], Awaitable[None]]


class _Sender:
    """The messages of one worker to one peer."""

    def __init__(self, write: Write, deviate: Deviation) -> None:
        self.write, self._deviate = write, deviate
        self.first: _Frame | None = None
        self.is_done = False

    async def send(self, blob: bytes) -> None:
        """Send a blob, with graphs' frames as the deviation writes them."""
        if not blob or blob.startswith(NOTICE):
            await self.write(blob)
            return
        for frame in _split_frames(blob):
            if not frame.is_of_graph:
                await self.write(frame.encode())
                continue
            await self._deviate(self, frame)
            self.first = self.first or frame

    async def send_frames(self, *frames: _Frame) -> None:
        """Write frames."""
        for frame in frames:
            await self.write(frame.encode())


def _deviate_once(change: Callable[[_Frame], tuple[_Frame, ...]]) -> Deviation:
    async def deviate(sender: _Sender, frame: _Frame) -> None:
        is_first, sender.is_done = not sender.is_done, True
        await sender.send_frames(*(change(frame) if is_first else (frame,)))

    return deviate


async def _send_late(sender: _Sender, frame: _Frame) -> None:
    if sender.first is None:
        await asyncio.sleep(1.0)
    await sender.send_frames(frame)


async def _say_goodbye(sender: _Sender, frame: _Frame) -> None:
    if not sender.is_done:
        sender.is_done = True
        await sender.write(BYE)


async def _send_broken_notice(sender: _Sender, frame: _Frame) -> None:
    await sender.write(NOTICE + b'{"error": ')


def _repeat_after(steps: int) -> Deviation:
    async def deviate(sender: _Sender, frame: _Frame) -> None:
        await sender.send_frames(frame)
        first = sender.first
        if first is not None and frame.step == first.step + steps and not sender.is_done:
            sender.is_done = True
            await sender.send_frames(first)

    return deviate


_REFUSED = {"graph-failed", "session-aborted"}
_DEVIATIONS: dict[str, tuple[Deviation, set[str]]] = {
    # what is sent, and the codes with which the client's job ends ("": with its result)
    "withheld": (_deviate_once(lambda frame: ()), {"job-timeout"}),
    "short": (_deviate_once(lambda f: (f.resize(f.payload[:-8]),)), _REFUSED),
    "long": (_deviate_once(lambda f: (f.resize(f.payload + bytes(8)),)), _REFUSED),
    "empty": (_deviate_once(lambda frame: (frame.resize(b""),)), _REFUSED),
    "doubled": (_deviate_once(lambda frame: (frame, frame)), {"", *_REFUSED}),
    "late": (_send_late, {""}),
    "step-before": (_repeat_after(1), {"", *_REFUSED}),
    "step-long-ago": (_repeat_after(2), _REFUSED),
    "of-another-step": (
        _deviate_once(lambda frame: (dataclasses.replace(frame, step=frame.step + 2),)),
        {"job-timeout", *_REFUSED},
    ),
    "of-bookkeeping": (
        _deviate_once(lambda frame: (dataclasses.replace(frame, site=0),)),
        _REFUSED,
    ),
    "goodbye": (_say_goodbye, {"job-timeout", "peer-lost"}),
    "broken-notice": (_send_broken_notice, {"session-ended"}),
}


@pytest.fixture
def deviating(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Deviation], None]:
    """Provide a function that makes a worker deviate."""
    pump = SessionLink._pump_outgoing

    def start(party: int, deviate: Deviation) -> None:
        async def pump_outgoing(self: SessionLink, peer: int, write: Write) -> None:
            sender = _Sender(write, deviate)
            await pump(self, peer, sender.send if self.party == party else write)

        monkeypatch.setattr(SessionLink, "_pump_outgoing", pump_outgoing)

    return start


@pytest.fixture
def causes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, TfeBenchError]]:
    """Provide the first causes of failed sessions, with their parties."""
    first: list[tuple[int, TfeBenchError]] = []
    fail = SessionLink.fail

    def record(self: SessionLink, cause: TfeBenchError) -> None:
        if self.cause is None and not self._finished:
            first.append((self.party, cause))
        fail(self, cause)

    monkeypatch.setattr(SessionLink, "fail", record)
    return first


def _make_sealed_client(trio: Trio) -> Client:
    client = trio.client("analyst")
    client.sealed = True
    client.run("plain", {"relu": _CALLS}, _X)  # (its graph is traced now)
    return client


@pytest.mark.parametrize("party", range(3))
@pytest.mark.parametrize("name", _DEVIATIONS)
def test_the_others_end_in_time_with_a_code_of_the_list(
    trio: Trio,
    monkeypatch: pytest.MonkeyPatch,
    deviating: Callable[[int, Deviation], None],
    causes: list[tuple[int, TfeBenchError]],
    name: str,
    party: int,
) -> None:
    deviate, codes = _DEVIATIONS[name]
    client = _make_sealed_client(trio)
    deviating(party, deviate)
    begun, code = time.monotonic(), ""
    try:
        result = client.run("plain", {"relu": _CALLS}, _X)
    except TfeBenchError as error:
        code = error.code
        assert (code in FAULT_KINDS and "code alone" in str(error)) or code == "peer-lost"
    else:
        np.testing.assert_array_equal(result.outputs["x"], np.arange(3))
    assert code in codes, code
    wait_until(trio.idle, "all workers have ended it", JOB_SECONDS)
    assert time.monotonic() - begun < 3 * JOB_SECONDS
    honest = {p: cause for p, cause in causes if p != party}
    assert set(honest) == (set() if code == "" else set(range(3)) - {party})
    assert {cause.code for cause in honest.values()} <= set(FAULT_KINDS)
    monkeypatch.undo()
    _check_job_runs(trio)


def _check_job_runs(trio: Trio) -> None:
    """Check that the workers serve another client's job."""
    result = trio.client("guest").run("plain", {"square": 1}, _X)
    np.testing.assert_array_equal(result.outputs["x"], [0, 1, 4])


# ---- a sealed job whose program opens


@pytest.mark.parametrize("deviator", range(3))
@pytest.mark.parametrize("agrees", [True, False], ids=["agrees", "sends"])
def test_an_undeclared_opening_of_a_sealed_job_is_refused_by_each_honest_worker(
    trio: Trio, monkeypatch: pytest.MonkeyPatch, deviator: int, agrees: bool
) -> None:
    """One worker does not refuse, and may even skip the agreement on the graph."""
    client = _make_sealed_client(trio)
    sent: dict[int, int] = dict.fromkeys(range(3), 0)
    refused: list[int] = []
    both = threading.Barrier(2)
    pump, check, agree = SessionLink._pump_outgoing, OpeningLog.check_permitted, Party.agree

    async def count_frames(self: SessionLink, peer: int, write: Write) -> None:
        async def write_counted(blob: bytes) -> None:
            if blob and not blob.startswith(NOTICE):
                frames = [f for f in _split_frames(blob) if f.is_of_graph]
                sent[self.party] += sum(len(frame.payload) for frame in frames)
            await write(blob)

        await pump(self, peer, write_counted)

    def check_permitted(self: OpeningLog, what: str) -> None:
        index = current_party().index
        if index == deviator:
            return
        try:
            check(self, what)
        except PolicyError:
            refused.append(index)
            both.wait(20)  # (neither refuses because the other one has)
            raise

    def skip_agreement(self: Party, what: str, text: bytes) -> None:
        if self.index != deviator or agrees:
            agree(self, what, text)

    monkeypatch.setattr(SessionLink, "_pump_outgoing", count_frames)
    monkeypatch.setattr(OpeningLog, "check_permitted", check_permitted)
    monkeypatch.setattr(Party, "agree", skip_agreement)
    with pytest.raises(TfeBenchError) as caught:
        client.run("plain", {"reveal": True}, _X)
    wait_until(trio.idle, "all workers have ended it", 2 * JOB_SECONDS)
    assert caught.value.code == "opening-not-permitted", caught.value
    honest = set(range(3)) - {deviator}
    assert set(refused) == honest
    assert {p: sent[p] for p in honest} == dict.fromkeys(honest, 0)
    if agrees:
        assert sent[deviator] == 0
    monkeypatch.undo()
    _check_job_runs(trio)


# ---- kept shares


@pytest.fixture
def joined() -> Iterator[JoinedSessions]:
    three = JoinedSessions()
    yield three
    three.close()


_FIELDS = (("l1", "l2"), ("m", "l1"), ("m", "l2"))


@pytest.mark.usefixtures("as_in_a_worker")
@pytest.mark.parametrize(
    ("altering", "field"), [(p, field) for p in range(3) for field in _FIELDS[p]]
)
@pytest.mark.parametrize("is_lying", [False, True], ids=["stated", "lying"])
def test_a_worker_that_alters_kept_shares_is_refused_or_nothing_is_opened(
    joined: JoinedSessions,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
    altering: int,
    field: str,
    is_lying: bool,
) -> None:
    """A worker alters a word and its header; lying, it states the digest of the former word."""
    rng = np.random.default_rng(7)
    words = {name: rng.integers(-(2**62), 2**62, 4, np.int64) for name in ("m", "l1", "l2")}
    stores = []
    for party in range(3):
        own = {name: words[name].copy() for name in _FIELDS[party]}
        if party == altering:
            own[field][2] ^= 1
        store = ShareStore(tmp_path / str(party), party, 64, 16, 9).for_kind(DATA)
        facts = StoredFacts("rows", "alice", (), "d" * 32, {})
        store.prepare_file(facts, {"x": StoredTensor(own, 0, 16)}).commit()
        stores.append(store)
    if is_lying:
        former = ShareStore(tmp_path / "former", altering, 64, 16, 9).for_kind(DATA)
        own = {name: words[name] for name in _FIELDS[altering]}
        facts = StoredFacts("rows", "alice", (), "d" * 32, {})
        former.prepare_file(facts, {"x": StoredTensor(own, 0, 16)}).commit()
        former_facts = former.get_facts("rows", "alice")

    both = threading.Barrier(2)

    def run(party: Party) -> Any:
        party.openings = OpeningLog(())
        facts, values = stored_shares.load_cached_shares(stores[party.index], "rows", "alice")
        stated = former_facts if is_lying and party.index == altering else facts
        try:
            stored_shares.check_same(party, stores[party.index], stated)
        except ProtocolError as error:
            if error.code == "shares-mismatch":
                both.wait(20)  # (neither refuses because the other one has)
            raise
        x: Any = values["x"]
        party.function(lambda x: arithmetic.mul(party, x, x))(x)
        return party.openings.list_openings()

    results = joined.run_each(run, is_ended_by_failure=True)
    [holder] = [p for p in range(3) if p != altering and field in _FIELDS[p]]
    if is_lying:
        assert results == [(), (), ()]
    else:
        assert all(isinstance(result, ProtocolError) for result in results)
        assert results[holder].code == "shares-mismatch"
