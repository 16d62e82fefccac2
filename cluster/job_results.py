"""The results of one job: read from three workers, compared and reconstructed."""

from __future__ import annotations

import hashlib
import itertools
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import grpc
import numpy as np

from tfe_bench.cluster import seeds, wire
from tfe_bench.cluster.config import ClusterConfig
from tfe_bench.cluster.job_receipts import check_client_receipts, complete_job_facts
from tfe_bench.cluster.receipts import list_pinned_keys
from tfe_bench.cluster.requests import JobResult, Progress
from tfe_bench.errors import ClusterError, JobCancelled, PeerLost, ProtocolError, TfeBenchError
from tfe_bench.protocols.session.openings import Opening, decode_openings, describe_openings

SILENCE_SECONDS = 9.5


class _OutputSpec(NamedTuple):
    """Public facts of one output, on which the three workers must agree."""

    shape: tuple[int, ...]
    fractional_bits: int
    limbs: int


class _ResultShare(NamedTuple):
    """One worker's share of an output, as received: a part, and the digest of another one."""

    spec: _OutputSpec
    part: str
    words: seeds.Ring
    digest: str


class JobResultCollector:
    """Events of the three workers about one job, read from their streams to the client.

    Args:
        config: the cluster file.
        progress: callback for the job's position and fraction, as party 0 reports them.
        on_openings: called with what the job opens to workers, once all three accept it; None if
            its program does not state it. Not called for a job that opens nothing.
        facts: what this client knows of the job, from `expect_job_facts`; None checks no receipts.

    Attributes:
        result: the outputs received so far; complete when `collect_result` returns.
        finished: set when no further event is expected.
    """

    def __init__(
        self,
        config: ClusterConfig,
        progress: Progress | None,
        on_openings: Callable[[Sequence[Opening] | None], None] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.config = config
        self._facts = facts
        self.result = JobResult()
        self.finished = threading.Event()
        self._progress, self._on_openings = progress, on_openings
        self._lock = threading.Lock()
        # (party, error); the party is None for an error at this client
        self._outcomes: queue.Queue[tuple[int | None, BaseException | None]] = queue.Queue()
        # by party and name; each stream's thread writes its party's
        self._shares: tuple[dict[str, _ResultShare], ...] = ({}, {}, {})
        self._last_alive = [time.monotonic()] * 3
        # by party: what the job opens, as each worker states before it runs, and afterwards
        self._declared: dict[int, Sequence[Opening] | None] = {}
        self._opened: dict[int, Sequence[Opening] | None] = {}
        # by party: its receipt's fields
        self._receipts: dict[int, Mapping[str, Any]] = {}
        self._admitted = threading.Event()

    def mark_alive(self, party: int) -> None:
        """Record that a worker is alive."""
        self._last_alive[party] = time.monotonic()

    def close(self) -> None:
        """Wake all waiting threads; they stop waiting."""
        self.finished.set()
        self._admitted.set()

    def wait_admitted(self) -> bool:
        """Wait until all three workers accept the job; return False if the job ends before."""
        self._admitted.wait()
        return not self.finished.is_set()

    def report_failure(self, error: BaseException) -> None:
        """End the job because of an error at this client."""
        self._outcomes.put((None, error))

    def _track_liveness(self, party: int, blobs: Iterator[bytes]) -> Iterator[bytes]:
        for blob in blobs:
            self.mark_alive(party)
            yield blob

    def read_stream(self, party: int, call: Iterator[bytes]) -> None:
        """Read one worker's stream to its end."""
        try:
            reader = wire.JobStreamReader(self._track_liveness(party, call), allow_nan=True)
            while (event := reader.next_event()) is not None:
                kind = event["event"]
                if kind == "error":
                    raise wire.decode_error_event(event)
                if kind == "accepted":
                    self._accept(party, decode_openings(event.get("opens")))
                elif kind == "queued" and party == 0 and self._progress:
                    before = int(event.get("before", 0))
                    others = "1 job" if before == 1 else f"{before} jobs"
                    self._progress(0.0, f"waiting: {others} before this one")
                elif kind == "progress" and party == 0 and self._progress:
                    self._progress(float(event["fraction"]), str(event["text"]))
                elif kind == "measured":
                    self._opened[party] = decode_openings(event.pop("opened", None))
                    self.result.measured[party] = event
                elif kind == "result":
                    self._read_result(party, event, reader)
                elif kind == "done":
                    self._receipts[party] = event
                    self._outcomes.put((party, None))
                    return
            raise PeerLost(
                party,
                "it ended the job without a result",
            )
        except grpc.RpcError as error:
            code, details = wire.get_grpc_call_status(error)
            address = self.config.parties[party].address
            name = code.name.lower() if code else "unknown"
            if code is grpc.StatusCode.UNAVAILABLE and "Handshake read failed" in details:
                reason = (
                    f"{address} closed the connection at once: it takes no more connections now"
                )
            elif code is grpc.StatusCode.UNAVAILABLE and "handshake" in details.lower():
                reason = f"TLS with {address} failed: is this client's certificate in cluster.toml?"
            elif code is grpc.StatusCode.RESOURCE_EXHAUSTED:
                reason = f"{address} refused a message ({details[:120]})"
            else:
                reason = f"its stream to {address} broke ({name})"
            self._outcomes.put((party, PeerLost(party, reason)))
        except BaseException as error:
            self._outcomes.put((party, error))

    def _accept(self, party: int, declared: Sequence[Opening] | None) -> None:
        """Record that a worker accepts the job; once all three do, report what the job opens."""
        with self._lock:
            self._declared[party] = declared
            if len(self._declared) < 3:
                return
        # Averages, which floating-point numbers give, may differ in the last place.
        _check_same_openings(self._declared, with_sizes=False)
        largest = max(self._declared.values(), key=lambda each: sum(o.bits for o in each or ()))
        if largest != () and self._on_openings is not None:
            self._on_openings(largest)
        self._admitted.set()

    def _read_result(self, party: int, event: dict[str, Any], reader: wire.JobStreamReader) -> None:
        try:
            name = str(event["name"])
            spec = _OutputSpec(
                tuple(int(d) for d in event["shape"]),
                int(event["fractional_bits"]),
                int(event["limbs"]),
            )
            part, digest = str(event["part"]), str(event["digest"])
            if spec.limbs not in (1, 2) or min(spec.shape, default=0) < 0:
                raise ValueError("a shape of no result")
            if name in self._shares[party]:
                raise ValueError("a second result of one name")
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(
                "A worker's result is malformed.", code="malformed-message"
            ) from error
        shape = spec.shape if spec.limbs == 1 else (*spec.shape, 2)
        words = np.frombuffer(reader.read_bytes(math.prod(shape) * 8), np.int64).reshape(shape)
        self._shares[party][name] = _ResultShare(spec, part, words, digest)

    def collect_result(self) -> JobResult:
        """Wait for all three workers and reconstruct the outputs.

        Raises:
            ProtocolError: the workers' shares of an output, their openings or their receipts
                disagree; no output is returned.
            TfeBenchError: a worker failed.
        """
        done: set[int | None] = set()
        while len(done) < 3:
            try:
                party, error = self._outcomes.get(timeout=0.5)
            except queue.Empty:
                now = time.monotonic()
                for p in range(3):
                    if p not in done and now - self._last_alive[p] > SILENCE_SECONDS:
                        raise PeerLost(p, f"it was silent for {SILENCE_SECONDS:.0f} s") from None
                continue
            if error is not None:
                raise self._find_root_cause(error, {*done, party})
            done.add(party)
        outputs: dict[str, seeds.Ring] = {}
        for name in dict.fromkeys(itertools.chain(*self._shares)):
            shares = [received.get(name) for received in self._shares]
            spec, parts = _check_result_shares(name, shares)
            self.result.fractional_bits[name] = spec.fractional_bits
            self.result.limbs[name] = spec.limbs
            mask = seeds.add_ring_words(parts["l1"], parts["l2"], spec.limbs)
            outputs[name] = seeds.unmask_values(parts["m"], mask, spec.limbs)
        _check_same_openings(self._opened)
        opened = self.result.opened = tuple(self._opened.get(0) or ())
        if self._facts is not None:
            events = [self._receipts[party] for party in range(3)]
            facts = complete_job_facts(self._facts, bool(outputs), opened)
            self.result.receipt = check_client_receipts(
                events, facts, list_pinned_keys(self.config)
            )
        self.result.outputs.update(outputs)
        return self.result

    def _find_root_cause(self, first: BaseException, ended: set[int | None]) -> BaseException:
        """Return the cause among the errors of three workers: one fails, the others follow.

        Args:
            ended: the parties whose streams have ended.
        """
        errors = [first]
        deadline = time.monotonic() + 0.7
        while not ended.issuperset(range(3)) and (remaining := deadline - time.monotonic()) > 0:
            try:
                party, error = self._outcomes.get(timeout=remaining)
            except queue.Empty:
                break
            ended.add(party)
            if error is not None:
                errors.append(error)

        def rank_worker_error(error: BaseException) -> int:
            if isinstance(error, JobCancelled):
                return 4
            # a session that was not established; another worker reports the reason
            if isinstance(error, PeerLost) or type(error) is ClusterError:
                return 2
            if not isinstance(error, TfeBenchError):
                return 3
            return 0 if error.reporter is None else 1  # (an observation precedes a quotation)

        return min(errors, key=rank_worker_error)


def _check_same_openings(
    by_party: Mapping[int, Sequence[Opening] | None], with_sizes: bool = True
) -> None:
    """Check that the three workers state the same openings.

    Args:
        with_sizes: whether their sizes are compared, or the kinds and receivers alone.

    Raises:
        ProtocolError: they differ.
    """
    stated_lists = [by_party.get(party) for party in range(3)]
    compared = [
        None if each is None else {o if with_sizes else (o.what, o.to) for o in each}
        for each in stated_lists
    ]
    if compared.count(compared[0]) < 3:
        stated = " | ".join(map(describe_openings, stated_lists))
        raise ProtocolError(
            f"The workers disagree about what this job opens. Received: this job {stated}.",
            code="inconsistent-results",
            operation="openings",
        )


def _check_result_shares(
    name: str, shares: Sequence[_ResultShare | None]
) -> tuple[_OutputSpec, dict[str, seeds.Ring]]:
    """Return an output's description and its parts m, l1 and l2, on which two workers each agree.

    Args:
        shares: by party.

    Raises:
        ProtocolError: a share is absent, or two workers disagree.
    """
    received = [share for share in shares if share is not None]
    parts = [share.part for share in received]
    # the dealer sends l1, the next party m, the one after it l2
    dealer = parts.index("l1") if "l1" in parts else 0
    if parts != [wire.RESULT_PARTS[(party - dealer) % 3][0] for party in range(3)]:
        raise ProtocolError(
            f"Expected the parts l1, m and l2 of {name!r} from three workers. Received: "
            f"{', '.join(share.part[:8] if share else 'nothing' for share in shares)}.",
            code="inconsistent-results",
            received=name,
        )
    for spec in (share.spec for share in received if share.spec != received[0].spec):
        raise ProtocolError(
            f"The workers describe {name!r} differently. Received: {received[0].spec} and {spec}.",
            code="inconsistent-results",
            received=name,
        )
    for party, share in enumerate(received):
        compared_part = wire.RESULT_PARTS[(party - dealer) % 3][1]
        sender = parts.index(compared_part)
        if hashlib.sha256(received[sender].words.reshape(-1).data).hexdigest() != share.digest:
            raise ProtocolError(
                f"Parties {sender} and {party} returned different shares of {name!r} (part "
                f"{compared_part}). No value of this job was returned. One of the two workers "
                "departs from the protocol or is defective: compare their logs and versions.",
                code="inconsistent-shares",
                received=name,
            )
    return received[0].spec, {share.part: share.words for share in received}
