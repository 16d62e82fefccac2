"""The answers of three workers to one job: followed, compared and put together."""

from __future__ import annotations

import hashlib
import math
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import grpc
import numpy as np

from tfe_bench.cluster import seeds, wire
from tfe_bench.cluster.config import ClusterConfig
from tfe_bench.cluster.requests import JobResult, Progress
from tfe_bench.errors import ClusterError, JobCancelled, PeerLost, ProtocolError, TfeBenchError

SILENCE_SECONDS = 9.5


class _Described(NamedTuple):
    """What the three workers must say alike of one output."""

    shape: tuple[int, ...]
    fractional_bits: int
    limbs: int


class Answers:
    """What the three workers say of one job, on their streams to its client.

    Args:
        config: of the cluster.
        progress: hears of the job's place and its fraction, as party 0 says them.

    Attributes:
        result: what has come so far; whole once `collect` has returned it.
        finished: set when nothing more is waited for.
    """

    def __init__(self, config: ClusterConfig, progress: Progress | None) -> None:
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
        self._accepted: set[int] = set()
        self._admitted = threading.Event()

    def seen(self, party: int) -> None:
        """Notes that a worker is alive."""
        self._seen[party] = time.monotonic()

    def close(self) -> None:
        """Has everybody who waits give up."""
        self.finished.set()
        self._admitted.set()

    def admitted(self) -> bool:
        """Waits until all three workers have taken the job; False if it has ended before."""
        self._admitted.wait()
        return not self.finished.is_set()

    def fail(self, party: int, error: BaseException) -> None:
        """Ends the job for what went wrong here."""
        self._news.put((party, error))

    def _heard(self, party: int, blobs: Iterator[bytes]) -> Iterator[bytes]:
        for blob in blobs:
            self.seen(party)
            yield blob

    def follow(self, party: int, call: Iterator[bytes]) -> None:
        """Reads one worker's stream to its end."""
        try:
            reader = wire.Reader(self._heard(party, call), nan=True)
            while (event := reader.next_event()) is not None:
                kind = event["event"]
                if kind == "error":
                    raise wire.error_from(event)
                if kind == "accepted":
                    self._accepted.add(party)
                    if len(self._accepted) == 3:
                        self._admitted.set()
                elif kind == "queued" and party == 0 and self._progress:
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
            code, details = wire.status_of(error)
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
            part = str(event["part"])
            digest = str(event["digest"])
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError("A worker's result is malformed.") from error
        if described.limbs not in (1, 2) or any(d < 0 for d in described.shape):
            raise ProtocolError("A worker's result is malformed.")
        shape = described.shape if described.limbs == 1 else (*described.shape, 2)
        size = math.prod(shape) * 8
        words = np.frombuffer(reader.read(size), np.int64).reshape(shape) if part else None
        with self._lock:
            if self._described.setdefault(name, described) != described:
                raise ProtocolError(f"The workers describe {name!r} differently.")
            parts = self._parts.setdefault(name, {})
            if words is not None:
                parts[part] = words
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
            if set(parts) != {"m", "lam"}:
                raise ProtocolError(f"The workers returned incomplete shares of {name!r}.")
            if hashlib.sha256(parts["m"].tobytes()).hexdigest() != self._digests.get(name):
                raise ProtocolError(f"The two evaluators returned different shares of {name!r}.")
            described = self._described[name]
            self.result.fractional_bits[name] = described.fractional_bits
            self.result.limbs[name] = described.limbs
            self.result.outputs[name] = seeds.unmasked(parts["m"], parts["lam"], described.limbs)
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
