"""A client: shares inputs among three workers, orders a job, puts the result together.

Needs no TensorFlow.  Only clients reconstruct results.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import queue
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np

from tfe_bench.cluster import handshake, probe, seeds, tls, wire
from tfe_bench.cluster.config import ClusterConfig, PartyConfig
from tfe_bench.cluster.transport import CHANNEL_OPTIONS
from tfe_bench.errors import (
    ClusterError,
    ConfigError,
    JobCancelled,
    PeerLost,
    ProtocolError,
    SecurityError,
    TfeBenchError,
    UsageError,
)

CONNECT_SECONDS = 12.0
SILENCE_SECONDS = 9.5
_DEALER = 0
_JOB = re.compile(r"[0-9a-f]{32}", re.ASCII)
_MOST_BITS = 127

# A worker that was started again is found within a second, however long it was away; an attempt
# (TCP and TLS) may still take 5 s.
_RECONNECT = [
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
_ANSWERS = [("grpc.max_receive_message_length", wire.MOST_ANSWER_BYTES)]
# A worker that is lost during a job is lost; one that is just starting is waited for.
_RETURN_SECONDS = 2.5


@dataclass(frozen=True)
class PrivateInput:
    """A client's input: ring elements with their scale.

    Attributes:
        ring: int64 words: an array of elements of Z_2^64, or, with limbs 2, of elements of
            Z_2^128 with a last axis of 2 words, low word first (`FixedPoint(f, 128).encode`).
        fractional_bits: the scale.
        limbs: words per element, 1 or 2.

    Raises:
        UsageError: no integers, no last axis of 2 words with limbs 2, or a scale that is none.
    """

    ring: seeds.Ring
    fractional_bits: int = 0
    limbs: int = 1

    def __post_init__(self) -> None:
        if type(self.fractional_bits) is not int or not 0 <= self.fractional_bits <= _MOST_BITS:
            raise UsageError(
                f"An input has 0 to {_MOST_BITS} fractional bits. Received: "
                f"{self.fractional_bits!r}."
            )
        if type(self.limbs) is not int or self.limbs not in (1, 2):
            raise UsageError(f"An element has 1 or 2 words (limbs). Received: {self.limbs!r}.")
        if not isinstance(self.ring, np.ndarray) or self.ring.dtype.kind not in "iu":
            kind = getattr(self.ring, "dtype", type(self.ring).__name__)
            raise UsageError(
                f"An input is an array of integers. Received: {kind}. Encode reals first, with "
                "FixedPoint."
            )
        if self.limbs == 2 and (self.ring.ndim == 0 or self.ring.shape[-1] != 2):
            raise UsageError(
                "An input over Z_2^128 has a last axis of 2 words. Received: shape "
                f"{list(self.ring.shape)}."
            )
        if self.limbs == 2 and self.ring.dtype.itemsize != 8:
            raise UsageError(f"Words have 64 bits. Received: {self.ring.dtype}.")

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the elements."""
        words: tuple[int, ...] = self.ring.shape
        return words if self.limbs == 1 else words[:-1]


@dataclass(frozen=True)
class LateInput:
    """An input that is shared while the job runs already, behind all that it begins with.

    Attributes:
        shape, fractional_bits: of what it will be.
        make: called once, when it is this input's turn to leave.
    """

    shape: tuple[int, ...]
    fractional_bits: int
    make: Callable[[], PrivateInput]
    limbs: int = 1


@dataclass
class JobResult:
    """What a job gave back.

    Attributes:
        outputs: ring elements (int64) by name, reconstructed here and nowhere else; those over
            Z_2^128 have a last axis of 2 words, low word first.
        fractional_bits: their scales.
        limbs: their words per element, 1 or 2.
        measured: public figures of each worker.
        share_seconds: from submission to the moment all inputs had left this client.
    """

    outputs: dict[str, seeds.Ring] = field(default_factory=dict)
    fractional_bits: dict[str, int] = field(default_factory=dict)
    limbs: dict[str, int] = field(default_factory=dict)
    measured: list[dict[str, Any]] = field(default_factory=lambda: [{}, {}, {}])
    share_seconds: float = 0.0


class Client:
    """A client of one cluster.

    Args:
        config: the shared cluster file.
        key, certificate: this client's own (PEM); empty without TLS.

    Attributes:
        shaping: what the workers shall impose on their messages: microseconds of one-way delay,
            and bytes per second of each worker; None for nothing.
        warm_up_bytes: what the workers send each other before a program runs.
    """

    def __init__(self, config: ClusterConfig, key: bytes = b"", certificate: bytes = b"") -> None:
        self.config = config
        self.shaping: tuple[int, int] | None = None
        self.warm_up_bytes = 0
        self._own = (key, certificate)
        self._closed = False
        self._channels: list[grpc.Channel] = []
        for party in config.parties:
            options = [*CHANNEL_OPTIONS, *_RECONNECT, *_ANSWERS]
            if config.tls:
                credentials = tls.channel_credentials(key, certificate, party.certificates)
                options += tls.target_options(party.certificates[0])
                self._channels.append(
                    grpc.secure_channel(party.address, credentials, options=options)
                )
            else:
                self._channels.append(grpc.insecure_channel(party.address, options=options))

    def close(self) -> None:
        """Closes the connections."""
        self._closed = True
        for channel in self._channels:
            channel.close()

    def check_open(self) -> None:
        """Refuses to use closed connections.

        Raises:
            UsageError: `close` was called, or the end of a `with` block did.
        """
        if self._closed:
            raise UsageError(
                "This cluster's connections are closed: close() was called, or the `with` block "
                "has ended. Open another LocalCluster, Cluster or Client."
            )

    def wait_ready(
        self, timeout: float = CONNECT_SECONDS, alive: Callable[[], None] | None = None
    ) -> None:
        """Waits until all three workers answer.

        Args:
            timeout: seconds, for all three together.
            alive: called now and then; may raise to give up early.

        Raises:
            ClusterError: naming the party and host:port that does not answer.
            UsageError: this client is closed.
        """
        self.check_open()
        deadline = time.monotonic() + timeout
        for party in self.config.parties:
            watch = probe.Watch(party, *self._own)
            while True:
                if alive:
                    alive()
                left = deadline - time.monotonic()
                if _answered(self._greet(party.index, max(0.05, min(0.5, left)))):
                    break
                refused = watch.look()
                if left <= 0 or refused:
                    raise _silent(party, timeout, refused)

    def _greet(self, party: int, timeout: float) -> Iterator[bytes]:
        """A question that waits, for `timeout` seconds, until the worker can be reached.

        grpcio's own channel_ready_future leaves a thread that polls the channel for another 0.2 s
        and complains if it is closed meanwhile.
        """
        call: Iterator[bytes] = wire.stub(self._channels[party], wire.HELLO)(
            iter([wire.event("hello")]), timeout=timeout, wait_for_ready=True
        )
        return call

    def run(
        self,
        program: str,
        parameters: Mapping[str, Any],
        inputs: Mapping[str, PrivateInput | LateInput],
        progress: Callable[[float, str], None] | None = None,
        job: str | None = None,
    ) -> JobResult:
        """Runs an installed program on the three workers.

        Jobs run one at a time; while others are before this one, `progress` hears how many.
        An exception raised by it, or Ctrl-C, cancels the job on all workers.

        Args:
            job: its name, from `new_job`, for whoever wants to ask after it or cancel it.

        Raises:
            UsageError: this client is closed, or arguments of another type.
            TfeBenchError: whatever went wrong first; PeerLost when a worker was lost on the way.
        """
        self.check_open()
        job = new_job() if job is None else job
        _check_order(program, parameters, inputs, job)
        described: list[dict[str, Any]] = []
        masked: list[seeds.Ring | None] = []
        secrets: list[tuple[bytes, bytes]] = []
        late: dict[int, LateInput] = {}
        for i, (name, value) in enumerate(inputs.items()):
            if isinstance(value, LateInput):
                late[i] = value
                secrets.append(seeds.fresh())
                masked.append(None)
            else:
                seed1, seed2, m = seeds.share(value.ring, value.limbs)
                secrets.append((seed1, seed2))
                masked.append(m)
            described.append(
                {
                    "name": name,
                    "shape": list(value.shape),
                    "fractional_bits": value.fractional_bits,
                    "limbs": value.limbs,
                    **({"late": True} if i in late else {}),
                }
            )
        making = threading.Lock()

        def ready(i: int) -> seeds.Ring:
            with making:  # the first of the two evaluators' streams that gets there makes it
                m = masked[i]
                if m is None:
                    value = late[i].make()
                    if (value.shape, value.fractional_bits) != (
                        late[i].shape,
                        late[i].fractional_bits,
                    ):
                        raise UsageError("A late input has another shape than it was said to have.")
                    _, _, m = seeds.share(value.ring, value.limbs, secrets[i])
                    masked[i] = m
                return m

        header = {
            "job": job,
            "program": program,
            "parameters": dict(parameters),
            "version": handshake.version(),
            "ring": self.config.ring,
            "fractional_bits": self.config.fractional_bits,
            "cluster": self.config.digest(),
            "shaping": self.shaping,
            "warm_up_bytes": self.warm_up_bytes,
        }
        taken: list[list[int]] = [[] for _ in masked]
        self._wait_for_return()
        run = _Run(self.config, progress)
        started = time.perf_counter()

        def requests(party: int) -> Iterator[bytes]:
            role = (party - _DEALER) % 3
            wanted = {0: ("l1", "l2"), 1: ("l1",), 2: ("l2",)}[role]
            rows = []
            for fields, (seed1, seed2) in zip(described, secrets, strict=True):
                by_name = {"l1": seed1.hex(), "l2": seed2.hex()}
                rows.append({**fields, "seeds": {k: by_name[k] for k in wanted}})
            submission = wire.event("submit", inputs=rows, **header)
            if len(submission) > wire.MOST_MESSAGE_BYTES:
                error = UsageError(
                    f"A job's submission has at most {wire.MOST_MESSAGE_BYTES} bytes. Received: "
                    f"{len(submission)}, with {len(rows)} inputs. Use fewer of them, or shorter "
                    "parameters."
                )
                run.fail(party, error)
                raise error
            yield submission
            if role != 0:
                for i in range(len(masked)):
                    try:
                        m = ready(i)
                    except BaseException as error:
                        run.fail(party, error)
                        raise
                    for chunk in wire.data(m.data.cast("B")):
                        run.seen(party)  # a worker that takes a chunk on a slow line is no lost one
                        yield chunk
                    taken[i].append(party)
                    if len(taken[i]) == 2:  # both evaluators have it: large models need the room
                        masked[i] = m[:0].copy()
                    del m
            run.result.share_seconds = max(run.result.share_seconds, time.perf_counter() - started)
            # The stream stays open: its end would cancel the job.
            run.finished.wait()

        calls = [
            wire.stub(self._channels[p], wire.JOB)(requests(p), wait_for_ready=False)
            for p in range(3)
        ]
        threads = [
            threading.Thread(target=run.follow, args=(p, calls[p]), daemon=True) for p in range(3)
        ]
        for thread in threads:
            thread.start()
        try:
            return run.collect()
        finally:
            run.finished.set()
            for call in calls:
                call.cancel()

    def _wait_for_return(self) -> None:
        """Waits a little for a worker that is being started; without it the job then fails."""
        for call in [self._greet(party, _RETURN_SECONDS) for party in range(3)]:
            _answered(call)

    # ---- questions to single workers

    def ask(self, party: int, method: str, timeout: float = 5.0, **fields: Any) -> dict[str, Any]:
        """One question to one worker, and its answer.

        Args:
            method: wire.HELLO, wire.STATUS, wire.CANCEL or wire.MODELS.

        Raises:
            ClusterError: it does not answer.
            TfeBenchError: it refuses.
            UsageError: this client is closed.
        """
        self.check_open()
        target = self.config.parties[party]
        watch = probe.Watch(target, *self._own)
        return ask(self._channels[party], target, watch, method, timeout, **fields)

    def status(self) -> list[dict[str, Any] | TfeBenchError]:
        """What each worker says of this client's jobs; an error in place of one that is silent."""
        return self._ask_all(wire.STATUS)

    def cancel(self, job: str) -> None:
        """Cancels a job of this client on all workers.

        Args:
            job: its name, or the first digits of it.

        Raises:
            UsageError: no worker runs or queues such a job of this client's, or several do.
            ClusterError: a worker does not answer.
        """
        if not isinstance(job, str) or not job:
            raise UsageError(f"A job's name is a text, or its first digits. Received: {job!r}.")
        answers = self.status()
        known = {
            each["job"]
            for a in answers
            if isinstance(a, dict)
            for each in a["jobs"]
            if str(each["job"]).startswith(job)
        }
        if len(known) != 1:
            silent = [a for a in answers if isinstance(a, TfeBenchError)]
            if silent and not known:
                raise silent[0]
            raise UsageError(
                f"There is {'no' if not known else 'more than one'} job of this client that begins "
                f"with {job[:32]!r}. See `python -m tfe_bench status`; a job that has ended "
                "cannot be cancelled."
            )
        [name] = known
        told = self._ask_all(wire.CANCEL, job=name)
        if not any(isinstance(a, dict) and a["found"] for a in told):
            raise UsageError(f"Job {name[:12]} has just ended.")

    # ---- deployed models

    def deploy(
        self,
        private: Any,
        name: str,
        clients: Sequence[str] = (),
        replace: bool = False,
        preprocessing: str | None = None,
    ) -> None:
        """Has the workers keep a model: for this client and others, until it is removed.

        Args:
            private: of `tfe_bench.convert`.
            name: lower-case letters, digits, - and _.
            clients: of the cluster, who may use it besides this one; "*" for all of them.
            replace: what this client deployed under the name before.
            preprocessing: how pictures are prepared for it; see tfe_bench.models.images.WAYS.

        Raises:
            UsageError: the name is none or taken, or the model's precision is not the cluster's.
            PolicyError: an operator does not let this client deploy.
        """
        _service().deploy_model(self, private, name, clients, replace, preprocessing)

    def predict(
        self,
        name: str,
        images: Any,
        batch: int | None = None,
        profile: str = "local",
        progress: Callable[[float, str], None] | None = None,
        check_range: bool | None = None,
    ) -> Any:
        """Outputs of a deployed model for private images, known to this client alone.

        Args:
            name: of the model.
            images: [batch, ...], prepared as the model wants them.
            batch: samples that go through the model at once; None: 32.
            profile: the network for which the protocols plan.
            progress: as for `run`.
            check_range: whether values are checked to stay in the range that the model was planned
                for, which only this client learns; None: where its plan admits it.

        Raises:
            UsageError: a model that this client may not use, or images that it does not take.
            RangeError: images outside of the model's range, or values within it that left theirs.
            PolicyError: an operator does not let this client ask.
        """
        return _service().predict(self, name, images, profile, batch, progress, check_range)[0]

    def fit(self, private: Any, x: Any = None, y: Any = None, **options: Any) -> Any:
        """Trains a `tfe_bench.trainable` model on private rows; see Trainable.fit."""
        return private.fit(self, x, y, **options)

    def evaluate(self, private: Any, x: Any, y: Any, **options: Any) -> Any:
        """How right a `tfe_bench.trainable` model is on private rows; see Trainable.evaluate."""
        return private.evaluate(self, x, y, **options)

    def models(self) -> list[Any]:
        """The deployed models that this client may use (tfe_bench.models.service.Deployed)."""
        found: list[Any] = _service().listed(self)
        return found

    def undeploy(self, name: str) -> None:
        """Has the workers remove a model of this client's.

        Raises:
            UsageError: there is none; another client's is as unknown.
        """
        _service().remove_model(self, name)

    def stored(self, kind: str = "") -> list[dict[str, Any]]:
        """What the workers keep that this client may use; `tfe_bench.models.service.listed` reads
        it as models.  "complete" is False where the three workers differ.

        Args:
            kind: the infix of a store.Kind: "" for models, ".data" for data sets.

        Raises:
            ClusterError: a worker does not answer.
        """
        answers = self._ask_all(wire.MODELS, of=kind)
        found: list[dict[str, dict[str, Any]]] = []
        for answer in answers:
            if isinstance(answer, TfeBenchError):
                raise answer
            found.append({str(row["name"]): row for row in answer["models"]})
        rows = []
        for name in sorted(set().union(*found)):
            each = [models.get(name, {}) for models in found]
            first = next(row for row in each if row)
            same = all(row.get("deployment") == first["deployment"] for row in each)
            rows.append({**first, "complete": same})
        return rows

    def _ask_all(self, method: str, **fields: Any) -> list[dict[str, Any] | TfeBenchError]:
        self.check_open()

        def one(party: int) -> dict[str, Any] | TfeBenchError:
            try:
                return self.ask(party, method, **fields)
            except TfeBenchError as error:
                return error

        with ThreadPoolExecutor(3) as pool:
            return list(pool.map(one, range(3)))


def _service() -> Any:
    """Models lie above this layer; it only offers their users the way there."""
    return importlib.import_module("tfe_bench.models.service")


def _check_order(program: object, parameters: object, inputs: object, job: object) -> None:
    """Refuses arguments of `Client.run` that no worker could be sent.

    Raises:
        UsageError: naming the first one.
    """
    if not isinstance(program, str) or not program:
        raise UsageError(f"A program is known by its name. Received: {_kind(program)}.")
    if not isinstance(job, str) or not _JOB.fullmatch(job):
        raise UsageError("A job's name is 32 hexadecimal digits, of new_job().")
    if not isinstance(parameters, Mapping):
        raise UsageError(f"Parameters are a dict. Received: {_kind(parameters)}.")
    for name, value in parameters.items():
        try:
            json.dumps({name: value}, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise UsageError(
                "Parameters are what JSON holds: texts, finite numbers, true or false, None, and "
                f"lists and dicts of these. Received: {_kind(value)} under {str(name)[:80]!r}."
            ) from None
    if not isinstance(inputs, Mapping):
        raise UsageError(f"Inputs are a dict of PrivateInput. Received: {_kind(inputs)}.")
    for name, value in inputs.items():
        if not isinstance(name, str) or not isinstance(value, PrivateInput | LateInput):
            raise UsageError(
                "Inputs are PrivateInput by name: PrivateInput(array) for integers, "
                "PrivateInput(FixedPoint(16).encode(array), 16) for reals. Received: "
                f"{_kind(value)} under {str(name)[:80]!r}."
            )


def _kind(value: object) -> str:
    """What a value is, and nothing of what it holds."""
    dtype = getattr(value, "dtype", None)
    return type(value).__name__ + (f" of {dtype}" if dtype is not None else "")


def new_job() -> str:
    """A name for a job."""
    return uuid.uuid4().hex


def ask(
    channel: grpc.Channel,
    party: PartyConfig,
    watch: probe.Watch,
    method: str,
    timeout: float,
    **fields: Any,
) -> dict[str, Any]:
    """One question to one worker, and its answer; see `Client.ask`."""
    started = time.time()
    try:
        call = wire.stub(channel, method)(
            iter([wire.event(method.lower(), **fields)]), timeout=timeout, wait_for_ready=True
        )
        with watch.over(call.cancel):
            answer = wire.Reader(call, nan=True).next_event(wire.MOST_ANSWER_BYTES)
    except grpc.RpcError as error:
        details = str(error.details() or "") if hasattr(error, "details") else ""
        code = error.code() if hasattr(error, "code") else None
        unreached = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
        if watch.found or code in unreached:
            raise _silent(party, timeout, watch.found) from None
        raise ClusterError(
            f"Party {party.index} does not answer. Received: {details[:120] or code}. Use one "
            "version of tfe_bench everywhere."
        ) from None
    if answer is None:
        raise ClusterError(f"Party {party.index} gave no answer. Its log says why.")
    if answer["event"] == "error":
        raise wire.error_from(answer)
    return {**answer, "asked": started, "answered": time.time()}


def _answered(call: Iterator[bytes]) -> bool:
    """Whether there was any answer at all; what a refusal says, the next call says too."""
    try:
        for _ in call:
            pass
    except grpc.RpcError as error:
        return getattr(error, "code", lambda: None)() is not grpc.StatusCode.DEADLINE_EXCEEDED
    return True


class _Described(NamedTuple):
    """What the three workers must say alike of one output."""

    shape: tuple[int, ...]
    fractional_bits: int
    limbs: int


class _Run:
    """The three streams of one job, seen from the client."""

    def __init__(
        self, config: ClusterConfig, progress: Callable[[float, str], None] | None
    ) -> None:
        self.config = config
        self.result = JobResult()
        self.finished = threading.Event()
        self._progress = progress
        self._news: queue.Queue[tuple[int, BaseException | None]] = queue.Queue()
        self._parts: dict[str, dict[str, seeds.Ring]] = {}
        self._described: dict[str, _Described] = {}
        self._digests: dict[str, str] = {}
        self._lock = threading.Lock()
        self._seen = [time.monotonic()] * 3

    def seen(self, party: int) -> None:
        """Notes that a worker is alive."""
        self._seen[party] = time.monotonic()

    def fail(self, party: int, error: BaseException) -> None:
        """Ends the job for what went wrong here."""
        self._news.put((party, error))

    def _heard(self, party: int, blobs: Iterator[bytes]) -> Iterator[bytes]:
        for blob in blobs:
            self.seen(party)
            yield blob

    def follow(self, party: int, call: Any) -> None:
        """Reads one worker's stream to its end."""
        try:
            reader = wire.Reader(self._heard(party, call), nan=True)
            while (event := reader.next_event()) is not None:
                kind = event["event"]
                if kind == "error":
                    raise wire.error_from(event)
                if kind == "queued" and party == 0 and self._progress:
                    before = int(event.get("before", 0))
                    others = "1 job" if before == 1 else f"{before} jobs"
                    self._progress(0.0, f"waiting: {others} before this one")
                elif kind == "progress" and party == 0 and self._progress:
                    self._progress(float(event["fraction"]), str(event["text"]))
                elif kind == "measured":
                    self.result.measured[party] = event
                elif kind == "result":
                    self._take(event, reader)
                elif kind == "done":
                    self._news.put((party, None))
                    return
            raise PeerLost(party, "it ended the job without a result")
        except grpc.RpcError as error:
            code = error.code() if hasattr(error, "code") else None
            details = (error.details() or "") if hasattr(error, "details") else ""
            address = self.config.parties[party].address
            name = code.name.lower() if code else "unknown"
            if code is grpc.StatusCode.UNAVAILABLE and "Handshake read failed" in details:
                reason = f"{address} closed the connection at once: it takes no more of them now"
            elif code is grpc.StatusCode.UNAVAILABLE and "handshake" in details.lower():
                reason = f"TLS with {address} failed: is this client's certificate in cluster.toml?"
            elif code is grpc.StatusCode.RESOURCE_EXHAUSTED:
                reason = f"{address} refused a message ({details[:120]})"
            else:
                reason = f"its stream to {address} broke ({name})"
            self._news.put((party, PeerLost(party, reason)))
        except BaseException as error:
            self._news.put((party, error))

    def _take(self, event: dict[str, Any], reader: wire.Reader) -> None:
        try:
            name = str(event["name"])
            described = _Described(
                tuple(int(d) for d in event["shape"]),
                int(event["fractional_bits"]),
                int(event["limbs"]),
            )
            names = [str(part) for part in event["parts"]]
            digest = str(event["digest"])
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError("A worker's result is malformed.") from error
        if described.limbs not in (1, 2) or any(d < 0 for d in described.shape):
            raise ProtocolError("A worker's result is malformed.")
        shape = described.shape if described.limbs == 1 else (*described.shape, 2)
        size = math.prod(shape) * 8
        parts = {part: np.frombuffer(reader.read(size), np.int64).reshape(shape) for part in names}
        with self._lock:
            if self._described.setdefault(name, described) != described:
                raise ProtocolError(f"The workers describe {name!r} differently.")
            self._parts.setdefault(name, {}).update(parts)
            if digest:
                self._digests[name] = digest

    def collect(self) -> JobResult:
        """Waits for all three workers; reconstructs the outputs."""
        done: set[int] = set()
        while len(done) < 3:
            try:
                party, error = self._news.get(timeout=0.5)
            except queue.Empty:
                now = time.monotonic()
                for p in range(3):
                    if p not in done and now - self._seen[p] > SILENCE_SECONDS:
                        raise PeerLost(
                            p, f"it has not been heard from for {SILENCE_SECONDS:.0f} s"
                        ) from None
                continue
            if error is not None:
                raise self._most_telling(error)
            done.add(party)
        for name, parts in self._parts.items():
            if set(parts) != {"m", "l1", "l2"}:
                raise ProtocolError(f"The workers returned incomplete shares of {name!r}.")
            if hashlib.sha256(parts["m"].tobytes()).hexdigest() != self._digests.get(name):
                raise ProtocolError(f"The two evaluators returned different shares of {name!r}.")
            described = self._described[name]
            self.result.fractional_bits[name] = described.fractional_bits
            self.result.limbs[name] = described.limbs
            self.result.outputs[name] = seeds.unmasked(
                parts["m"], parts["l1"], parts["l2"], described.limbs
            )
        return self.result

    def _most_telling(self, first: BaseException) -> BaseException:
        """The cause among the errors of three workers: one fails, the others follow."""
        errors = [first]
        deadline = time.monotonic() + 0.7
        while (left := deadline - time.monotonic()) > 0:
            try:
                _, error = self._news.get(timeout=left)
            except queue.Empty:
                break
            if error is not None:
                errors.append(error)

        def rank(error: BaseException) -> int:
            if isinstance(error, JobCancelled):
                return 3
            # of a session that did not come about, where another worker knows why
            if isinstance(error, PeerLost) or type(error) is ClusterError:
                return 1
            return 0 if isinstance(error, TfeBenchError) else 2

        return min(errors, key=rank)


def _silent(party: PartyConfig, timeout: float, refused: str | None = None) -> ClusterError:
    """A worker does not answer: nobody listens, or somebody does and TLS fails."""
    said = f"Party {party.index} does not answer. Received:"
    if not refused:
        try:
            with probe.connected(party) as connection:
                closed = _closed_at_once(connection)
        except OSError:
            return ClusterError(
                f"{said} nothing from {party.address} in {timeout:.0f} s. Start its worker "
                f"(`python -m tfe_bench worker --party {party.index} ...`), or correct its address "
                "in cluster.toml."
            )
        if closed:
            return ClusterError(
                f"{said} {party.address} closes connections as soon as they are made: its worker "
                "takes no more of them now. Try again later; its log says whose they are."
            )
        refused = f"no word in {timeout:.0f} s"
    return ClusterError(
        f"{said} a connection to {party.address} but no agreement on TLS: {refused}. Its worker "
        "must run with a cluster.toml that holds this one's certificate, and this one must hold "
        "the worker's."
    )


def _closed_at_once(connection: socket.socket) -> bool:
    """Whether the other side hangs up before anything was said."""
    connection.settimeout(0.5)
    try:
        return not connection.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True


def load_client(cluster: str | Path, key: str | Path, certificate: str | Path) -> Client:
    """A client from files.

    Raises:
        ConfigError, SecurityError: a file is missing, malformed, or the key can be read by others.
    """
    config = ClusterConfig.load(cluster)
    if not config.tls:
        return Client(config)
    own = tls.load_certificate(certificate)
    if own not in {pem for client in config.clients for pem in client.certificates}:
        raise SecurityError(
            f"This client's certificate is not in {cluster}. Received: {certificate}, SHA-256 "
            f"fingerprint {tls.fingerprint(own)}. Use the key and certificate of a [[client]] in "
            "it, or have the three parties add this one."
        )
    return Client(config, tls.load_private_key(key), own)


def open_client(
    cluster: str | Path,
    client: str | None = None,
    key: str | Path | None = None,
    certificate: str | Path | None = None,
) -> Client:
    """A client by its name: its files lie beside cluster.toml unless they are given.

    Raises:
        ConfigError, SecurityError: as `load_client`, or it is not clear which client this is.
    """
    path = Path(cluster)
    config = ClusterConfig.load(path)
    if config.tls and client is None and key is None:
        names = [c.name for c in config.clients]
        owned = [n for n in names if (path.parent / f"client-{n}.key").is_file()]
        if len(owned) != 1:
            raise ConfigError(
                f"Which client is this? Received: {len(owned)} client keys beside {path}. "
                f"Name it with --client (known: {', '.join(names) or 'none'})."
            )
        client = owned[0]
    key = key or path.parent / f"client-{client}.key"
    certificate = certificate or path.parent / f"client-{client}.crt"
    return load_client(path, key, certificate)
