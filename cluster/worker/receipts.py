"""A worker's receipts: it signs a line for each job, and exchanges it with the two other workers.

A job's line is written before its results leave the worker: a worker that cannot write it sends no
result.  The exchange follows.  A worker sends its receipts of a session's jobs with its last
message of the session, which is BYE.  Its thread for receipts then compares the two others'
receipts with its own line, and records them in a second line.  A peer's receipt that is absent or
does not fit fails no job: its line names the code, and so does the log.

A session that fails has no exchange.  Its jobs have a line with the code of the error, which the
worker's next exchanged signature covers.  A job that is refused by a rule (PolicyError) has such a
line, too: at most MOST_REFUSALS of a client in a minute, so that refusals cannot replace all lines.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster import handshake, json_limits
from tfe_bench.cluster.config import ClusterConfig
from tfe_bench.cluster.job_receipts import (
    DONE,
    build_job_body,
    build_job_facts,
    check_peer_receipt,
    encode_receipt_row,
)
from tfe_bench.cluster.policy import WorkerPolicy
from tfe_bench.cluster.receipts import (
    FORMAT,
    MALFORMED,
    MISSING,
    PEERS,
    START,
    UNVERIFIED,
    Line,
    ReceiptSigner,
    is_receipt_row,
    list_pinned_keys,
    sign_line,
)
from tfe_bench.cluster.worker.log import error_log_line, foreign_error_location, log
from tfe_bench.cluster.worker.receipt_file import ReceiptFile
from tfe_bench.errors import PolicyError, ProtocolError, TfeBenchError

if TYPE_CHECKING:
    from tfe_bench.cluster.worker.pending import Job

# Lines about refusals of one client in one window of seconds.
MOST_REFUSALS, REFUSAL_SECONDS = 20, 60.0
# Bytes of a peer's receipts of a session: those of as many jobs as a worker takes.
MOST_EXCHANGED = 1 << 17


class ReceiptExchange:
    """The receipts of one session's jobs, of this worker and its peers.

    Args:
        lines: this worker's, in the order of the session's jobs.

    Attributes:
        message: for the peers.
        received: by peer.
    """

    def __init__(self, book: ReceiptBook, lines: Sequence[Line]) -> None:
        self._book, self.lines = book, lines
        rows = {
            line.body["facts"]["job"]: encode_receipt_row(line, with_digest=True) for line in lines
        }
        self.message = json.dumps(rows, separators=(",", ":")).encode()
        self.received: dict[int, bytes] = {}
        self._lock = threading.Lock()
        self._is_over = False

    def receive_message(self, peer: int, message: bytes) -> None:
        """Keep a peer's message; after the second one, compare and record."""
        with self._lock:
            if not self._is_over:
                self.received[peer] = message
        if len(self.received) == 2:
            self.end_exchange()

    def end_exchange(self) -> None:
        """Record what has arrived; later messages count no more."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        self._book.record_exchange(self)


class ReceiptBook:
    """The chain of one worker's lines, and the thread that records its peers' receipts.

    Args:
        config: the cluster file, whose parties and settings do not change while the worker runs.
        policy: names the key, the folder and its limits.

    Raises:
        ConfigError, SecurityError: as `ReceiptFile`, or the key is unusable.
    """

    def __init__(self, config: ClusterConfig, policy: WorkerPolicy) -> None:
        self._party, self._config = policy.party, config
        self._cluster = config.digest()
        self._pinned_keys = list_pinned_keys(config)
        self._signer = ReceiptSigner(policy.load_key() if policy.key is not None else b"")
        self._file = ReceiptFile(
            policy.party, policy.receipts, policy.max_receipt_bytes, policy.max_receipt_files
        )
        self._build: Mapping[str, Any] = {}
        self._lock = threading.Lock()
        self._refusals: dict[str, tuple[float, int]] = {}
        self._exchanges: set[ReceiptExchange] = set()
        self._ended: queue.SimpleQueue[ReceiptExchange | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._record_all, name="tfe-receipts", daemon=True)

    def start_writing(self, build: Mapping[str, Any]) -> None:
        """Write the start line, and start the thread.

        Args:
            build: versions of the software, from WorkerState.get_facts.

        Raises:
            DataError: the line cannot be written.
        """
        self._build = {
            name: build[name] for name in ("version", "abi", "tensorflow", "isa") if name in build
        }
        with self._lock:
            if self._file.is_full:
                self._file.begin_file()
            self._append_start_line()
        self._thread.start()

    def close_book(self) -> None:
        """Record the exchanges so far, and release the folder."""
        for exchange in list(self._exchanges):
            exchange.end_exchange()
        self._ended.put(None)
        if self._thread.is_alive():
            self._thread.join(2.0)
        with self._lock:
            self._file.close_file()

    # ---- jobs

    def sign_result(self, job: Job, has_results: bool) -> Line:
        """Write and return the line of a job whose results are ready.

        Args:
            has_results: whether its client receives results.

        Raises:
            DataError: the line cannot be written; the results must not be sent.
        """
        line = self._append_body(
            build_job_body(self._build_facts(job, has_results), self._began_at(job), DONE)
        )
        job.receipt = line
        return line

    def record_end(self, job: Job, error: BaseException | None) -> None:
        """Write the line of a job that ended without a result, unless it has one.

        A job that has not begun has a line only if a rule refused it.
        """
        if job.receipt is not None:
            return
        if job.began is None and not self._is_recorded_refusal(job.client, error):
            return
        code = error.code if isinstance(error, TfeBenchError) else "worker-failed"
        facts = self._build_facts(job, False)
        try:
            job.receipt = self._append_body(build_job_body(facts, self._began_at(job), code))
        except Exception as failure:
            _log_failure(failure)

    def record_refusal(self, client: str, header: Mapping[str, Any], error: BaseException) -> None:
        """Write the line of a submission that a rule refused before it became a job.

        Args:
            header: the parsed submission.
        """
        if not self._is_recorded_refusal(client, error):
            return
        assert isinstance(error, TfeBenchError)
        names = {name: str(header[name])[:200] for name in ("job", "program")}
        facts = {**names, "client": client, "cluster": self._cluster}
        try:
            self._append_body(build_job_body(facts, _read_clock(), error.code))
        except Exception as failure:
            _log_failure(failure)

    def _is_recorded_refusal(self, client: str, error: BaseException | None) -> bool:
        if not isinstance(error, PolicyError):
            return False
        now = time.monotonic()
        with self._lock:
            since, count = self._refusals.get(client, (now, 0))
            if now - since > REFUSAL_SECONDS:
                since, count = now, 0
            self._refusals[client] = since, count + 1
        return count < MOST_REFUSALS

    def _build_facts(self, job: Job, has_results: bool) -> dict[str, Any]:
        use = job.use
        return build_job_facts(
            *(job.name, job.client, job.header["program"], job.digest, self._cluster),
            handshake.package_version(),
            job.inputs,
            has_results,
            use.opened(),
            use.list_stored(),
            use.charged,
        )

    @staticmethod
    def _began_at(job: Job) -> int:
        """Return when a job began, or was submitted, by the clock of the receipts."""
        seconds = time.monotonic() - (job.submitted if job.began is None else job.began)
        return max(0, _read_clock() - int(1000 * seconds))

    # ---- the chain

    def _append_body(self, body: Mapping[str, Any]) -> Line:
        with self._lock:
            if self._file.is_full:
                self._file.begin_file()
            if self._file.is_empty:
                self._append_start_line()
            return self._append_locked(body)

    def _append_start_line(self) -> None:
        self._append_locked(
            {
                "kind": START,
                "format": FORMAT,
                "party": self._party,
                "cluster": self._cluster,
                "name": self._config.name,
                "file": self._file.file_number,
                "dropped": self._file.dropped,
                "key": self._signer.public_key,
                "keys": [list(keys) for keys in self._pinned_keys],
                "build": dict(self._build),
            }
        )
        self._file.dropped = 0

    def _append_locked(self, body: Mapping[str, Any]) -> Line:
        file = self._file
        at = max(_read_clock(), file.at)
        line = sign_line(self._signer, self._party, file.number + 1, file.before, at, body)
        file.append_line(line)
        return line

    # ---- the exchange

    def start_exchange(self, jobs: Sequence[Job]) -> ReceiptExchange:
        """Return the exchange of a session whose jobs have ended."""
        lines = [
            job.receipt
            for job in jobs
            if job.receipt is not None and job.receipt.body["end"] == DONE
        ]
        exchange = ReceiptExchange(self, lines)
        self._exchanges.add(exchange)
        return exchange

    def record_exchange(self, exchange: ReceiptExchange) -> None:
        """Compare and record an exchange, in the thread for receipts."""
        self._exchanges.discard(exchange)
        self._ended.put(exchange)

    def _record_all(self) -> None:
        while (exchange := self._ended.get()) is not None:
            try:
                self._record_peers(exchange)
                if self._ended.empty():
                    self._file.sync_to_disk()
            except Exception as failure:
                _log_failure(failure)

    def _record_peers(self, exchange: ReceiptExchange) -> None:
        peers = [party for party in range(3) if party != self._party]
        messages = {peer: exchange.received.get(peer) for peer in peers}
        rows_by_peer = {peer: _parse_peer_rows(peer, blob) for peer, blob in messages.items()}
        for line in exchange.lines:
            name = line.body["facts"]["job"]
            entries: list[list[Any]] = []
            for peer in peers:
                rows = rows_by_peer[peer]
                row = [] if rows is None else rows.get(name, [])
                if row:
                    code = check_peer_receipt(line, peer, row, self._pinned_keys[peer])
                else:
                    code = MALFORMED if rows is None else MISSING
                entries.append([peer, code, *row])
                if code and code != UNVERIFIED:
                    log.warning("job %s: receipt of party %d: %s", name[:12], peer, code)
            self._append_body({"kind": PEERS, "job": name, "receipts": entries})


def _parse_peer_rows(peer: int, message: bytes | None) -> dict[str, list[Any]] | None:
    """Return a peer's rows by job, none without a message; None if the message is malformed."""
    if not message:
        return {}
    try:
        rows = json_limits.parse_untrusted_json(message, f"Party {peer}'s receipts", MOST_EXCHANGED)
    except ProtocolError:
        return None
    has_rows = isinstance(rows, dict) and all(map(is_receipt_row, rows.values()))
    return rows if has_rows else None


def _read_clock() -> int:
    return time.time_ns() // 1_000_000


def _log_failure(failure: BaseException) -> None:
    if isinstance(failure, TfeBenchError):
        log.error("receipts: %s", error_log_line(failure))
    else:
        log.error("receipts: %s", foreign_error_location(failure))
