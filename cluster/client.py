"""A client: shares inputs among three workers, submits a job and reconstructs the result.

A client needs no TensorFlow.  Only clients reconstruct results.
"""

from __future__ import annotations

import math
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import grpc

from tfe_bench.cluster import agreement, handshake, probe, profiles, tls, wire
from tfe_bench.cluster.config import ClusterConfig
from tfe_bench.cluster.input_upload import (
    InputUpload,
    check_job_inputs,
    check_job_parameters,
    describe_type,
)
from tfe_bench.cluster.job_receipts import expect_job_facts
from tfe_bench.cluster.job_results import JobResultCollector
from tfe_bench.cluster.jobs import DECLARED, NOTHING
from tfe_bench.cluster.requests import (
    AnyInput,
    JobResult,
    Progress,
    SubmittedJob,
    private_input_spec,
)
from tfe_bench.cluster.rpc import (
    ask_worker,
    has_worker_answered,
    send_worker_hello,
    worker_no_answer_error,
)
from tfe_bench.cluster.stored import ANY, check_client_names, merge_listings
from tfe_bench.cluster.transport import open_worker_channel
from tfe_bench.cluster.worker_calls import WorkerCall, end_calls
from tfe_bench.errors import (
    ConfigError,
    SecurityError,
    TfeBenchError,
    UsageError,
    did_you_mean,
)
from tfe_bench.protocols.session.openings import Opening

CONNECT_SECONDS = 12.0
_JOB = re.compile(r"[0-9a-f]{32}", re.ASCII)

# The client reaches a restarted worker within a second, however long the worker was down; an
# attempt (TCP and TLS) may still take 5 s.
_RECONNECT_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
_RECEIVE_OPTIONS = [("grpc.max_receive_message_length", wire.MOST_ANSWER_BYTES)]
# The loss of a worker during a job is an error; before a job, the client waits for a starting
# worker.
_RESTART_SECONDS = 2.5
# Workers that returned a result this recently are assumed reachable: a loop of jobs skips the
# query.
_RECENT_SECONDS = 1.0
# Inputs larger than this number of bytes are sent only after all workers accept the job.
_LARGE_INPUT_BYTES = 16 << 20


class Client:
    """A client of one cluster.

    Args:
        config: the shared cluster file.
        key, certificate: this client's own (PEM); empty without TLS.

    Attributes:
        profile: the network for which protocols are planned, unless a job overrides it.
        shaping: the emulated network of the workers' messages: one-way delay in microseconds, and
            bytes per second of each worker; None for no emulation.
        warm_up_bytes: bytes that the workers exchange before a program runs.
        sealed: whether the workers refuse jobs that open values to them.
        on_openings: called before a job that opens values to workers, with them; None: unknown.
    """

    profile = profiles.get_profile("local")
    sealed = False
    on_openings: Callable[[Sequence[Opening] | None], None] | None = None

    def __init__(self, config: ClusterConfig, key: bytes = b"", certificate: bytes = b"") -> None:
        self._config = config
        self.shaping: tuple[int, int] | None = None
        self.warm_up_bytes = 0
        self._key_pair = (key, certificate)
        self._closed = False
        self._last_result = -math.inf
        options = [*_RECONNECT_OPTIONS, *_RECEIVE_OPTIONS]
        self._channels: list[grpc.Channel] = [
            open_worker_channel(grpc, party, self._key_pair if config.tls else None, options)
            for party in config.parties
        ]

    def __repr__(self) -> str:
        """Return the workers' addresses, this client's name and whether it is open; no key."""
        addresses = ", ".join(party.address for party in self._config.parties)
        state = ", closed" if self._closed else ""
        return f"<{type(self).__name__} of {addresses} as client {self.identity!r}{state}>"

    def __deepcopy__(self, memo: object) -> Self:
        """Return this object, so that a copy of its owner, such as an estimator, shares it."""
        return self

    @classmethod
    def load(cls, cluster: str | Path, key: str | Path, certificate: str | Path) -> Self:
        """Open a client from files.

        Raises:
            ConfigError, SecurityError: a file is missing or malformed, or others can read the key.
        """
        config = ClusterConfig.load(cluster)
        return cls(config, *_load_client_credentials(config, cluster, key, certificate))

    @classmethod
    def open(
        cls,
        cluster: str | Path,
        client: str | None = None,
        key: str | Path | None = None,
        certificate: str | Path | None = None,
    ) -> Self:
        """Open a client by its name; its files are in the folder of cluster.toml unless given.

        Raises:
            ConfigError, SecurityError: as `load`, or the client's name is ambiguous.
        """
        return cls(*load_client_files(cluster, client, key, certificate))

    @property
    def config(self) -> ClusterConfig:
        """The shared cluster file."""
        return self._config

    @property
    def identity(self) -> str:
        """The name of this client at the workers."""
        certificate = self._key_pair[1]
        matching_names = (
            c.name for c in self.config.clients if certificate and certificate in c.certificates
        )
        return next(matching_names, "local")

    def check_members(self, clients: Sequence[str]) -> None:
        """Reject names that no client of this cluster has; a local cluster accepts all names.

        Raises:
            UsageError: naming the first unknown one and the nearest name.
        """
        check_client_names(list(clients))
        known_names = [client.name for client in self.config.clients]
        if known_names == [self.identity]:  # (three workers on this host, for evaluation)
            return
        for name in clients:
            if name != ANY and name not in known_names:
                raise UsageError(
                    "The cluster has no client "
                    f"{name[:80]!r}.{did_you_mean(name[:80], known_names)} "
                    f"Clients: {', '.join(known_names[:20])}; {ANY} is all of them.",
                    code="unknown-client",
                    received=name[:80],
                    expected=", ".join(known_names[:20]),
                )

    def close(self) -> None:
        """Close the connections."""
        self._closed = True
        for channel in self._channels:
            channel.close()

    def check_open(self) -> None:
        """Reject the use of closed connections.

        Raises:
            UsageError: `close` was called, or the `with` block has ended.
        """
        if self._closed:
            raise UsageError(
                "This cluster's connections are closed: close() was called, or the `with` block "
                "has ended. Open another LocalCluster, Cluster or Client.",
                code="connection-closed",
            )

    def wait_ready(
        self, timeout: float = CONNECT_SECONDS, alive: Callable[[], None] | None = None
    ) -> None:
        """Wait until all three workers answer.

        Args:
            timeout: seconds, for all three together.
            alive: called repeatedly; may raise to stop waiting.

        Raises:
            ClusterError: naming the party and host:port that does not answer.
            UsageError: this client is closed.
        """
        self.check_open()
        deadline = time.monotonic() + timeout
        for party in self.config.parties:
            tls_probe = probe.TlsProbe(party, *self._key_pair)
            while True:
                if alive:
                    alive()
                remaining = deadline - time.monotonic()
                if has_worker_answered(
                    send_worker_hello(self._channels[party.index], max(0.05, min(0.5, remaining)))
                ):
                    break
                refusal = tls_probe.check_once()
                if remaining <= 0 or refusal:
                    raise worker_no_answer_error(party, timeout, refusal)

    def run(
        self,
        program: str,
        parameters: Mapping[str, Any],
        inputs: Mapping[str, AnyInput],
        progress: Progress | None = None,
        job: str | None = None,
    ) -> JobResult:
        """Run an installed program on the three workers.

        Jobs run one at a time; while others precede this one, `progress` receives their number.
        An exception raised by it, or Ctrl-C, cancels the job on all workers.

        Args:
            job: the job's name, from `new_job`, to query or cancel it.

        Raises:
            UsageError: this client is closed, or an argument has another type.
            TfeBenchError: the first error of the job; PeerLost if a worker is lost.
        """
        self.check_open()
        job = new_job() if job is None else job
        if not isinstance(program, str) or not program:
            raise UsageError(
                f"program is the name of an installed program. Received: {describe_type(program)}.",
                code="wrong-type",
                operation="program",
                received=describe_type(program),
            )
        if not isinstance(job, str) or not _JOB.fullmatch(job):
            raise UsageError(
                "job is 32 hexadecimal digits, from new_job(). Received: another value.",
                code="invalid-name",
                operation="job",
            )
        check_job_parameters(parameters)
        check_job_inputs(inputs)
        header = {
            "job": job,
            "program": program,
            "parameters": dict(parameters),
            "version": handshake.package_version(),
            "ring": self.config.ring,
            "fractional_bits": self.config.fractional_bits,
            "cluster": self.config.digest(),
            "cluster_parts": agreement.summarize_cluster_settings(self.config),
            "shaping": self.shaping,
            "warm_up_bytes": self.warm_up_bytes,
            "opens": NOTHING if self.sealed else DECLARED,
        }
        upload = InputUpload(inputs)
        self._wait_for_restart()
        on_openings = None if self.sealed else self.on_openings
        specs = tuple(private_input_spec(name, value) for name, value in inputs.items())
        facts = expect_job_facts(self.config, header, self.identity, self._key_pair[1], specs)
        collector = JobResultCollector(self.config, progress, on_openings, facts)
        started = time.perf_counter()

        def send_requests(party: int) -> Iterator[bytes]:
            try:
                stream = upload.worker_messages(party, header, collector.mark_alive)
                if upload.is_small:
                    messages = deque(stream)
                    stream = iter([wire.take_bundle(messages), *messages])
                yield next(stream)
                # (small inputs do not wait for a round trip)
                if upload.size > _LARGE_INPUT_BYTES and not collector.wait_admitted():
                    return
                yield from stream
            except Exception as error:
                collector.report_failure(error)
                raise
            result = collector.result
            result.share_seconds = max(result.share_seconds, time.perf_counter() - started)
            # The stream stays open, because its end cancels the job.
            collector.finished.wait()

        calls = [
            WorkerCall(self._channels[p], wire.JOB, send_requests(p), wait_for_ready=False)
            for p in range(3)
        ]
        threads = [
            threading.Thread(target=collector.read_stream, args=(p, calls[p]), daemon=True)
            for p in range(3)
        ]
        for thread in threads:
            thread.start()
        try:
            result = collector.collect_result()
            result.submitted = SubmittedJob(program, dict(parameters), specs)
            self._last_result = time.monotonic()
            return result
        except TfeBenchError as error:
            self.explain(error)
            raise
        finally:
            collector.close()
            end_calls(calls, threads)

    def explain(self, error: TfeBenchError) -> None:
        """Raise a more informative error than that of a job, if one is known."""

    def _wait_for_restart(self) -> None:
        """Wait briefly for starting workers; if one stays unreachable, the job fails."""
        if time.monotonic() - self._last_result < _RECENT_SECONDS:
            return
        for call in [send_worker_hello(channel, _RESTART_SECONDS) for channel in self._channels]:
            has_worker_answered(call)

    # ---- queries of single workers

    def ask(self, party: int, method: str, timeout: float = 5.0, **fields: Any) -> dict[str, Any]:
        """Query one worker and return its answer.

        Args:
            method: wire.HELLO, wire.STATUS, wire.CANCEL or wire.MODELS.

        Raises:
            ClusterError: the worker does not answer.
            TfeBenchError: the worker refuses.
            UsageError: this client is closed.
        """
        self.check_open()
        target = self.config.parties[party]
        tls_probe = probe.TlsProbe(target, *self._key_pair)
        return ask_worker(self._channels[party], target, tls_probe, method, timeout, **fields)

    def status(self) -> list[dict[str, Any] | TfeBenchError]:
        """Return each worker's status of this client's jobs, or its error."""
        return self._ask_all_workers(wire.STATUS)

    def cancel(self, job: str) -> None:
        """Cancel a job of this client on all workers.

        Args:
            job: its name, or the first digits of it.

        Raises:
            UsageError: no worker runs or queues such a job of this client, or several match.
            ClusterError: a worker does not answer.
        """
        if not isinstance(job, str) or not job:
            raise UsageError(
                f"job is the name of a job, or its first digits. Received: {job!r}.",
                code="wrong-type",
                operation="job",
                received=type(job).__name__,
            )
        answers = self.status()
        matching_jobs = {
            row["job"]
            for a in answers
            if isinstance(a, dict)
            for row in a["jobs"]
            if str(row["job"]).startswith(job)
        }
        if len(matching_jobs) != 1:
            failures = [a for a in answers if isinstance(a, TfeBenchError)]
            if failures and not matching_jobs:
                raise failures[0]
            raise UsageError(
                f"There is {'no' if not matching_jobs else 'more than one'} job of this client "
                f"that begins with {job[:32]!r}. See `python -m tfe_bench status`; a job that has "
                "ended cannot be cancelled.",
                code="job-not-found",
                operation="job",
                received=job[:32],
            )
        [name] = matching_jobs
        replies = self._ask_all_workers(wire.CANCEL, job=name)
        if not any(isinstance(a, dict) and a["found"] for a in replies):
            raise UsageError(
                f"Job {name[:12]} has just ended.",
                code="job-not-found",
                operation="job",
                received=name[:12],
            )

    # ---- stored values

    def stored(self, kind: str = "") -> list[dict[str, Any]]:
        """List the stored values that this client may use.

        "complete" is False if the three workers differ; "spent" is the largest amount of a table's
        privacy budget that any of them has recorded as spent; "ready" is the least number of
        predictions of a model for which one of them has material.

        Args:
            kind: the infix of a stored.StoredKind: "" for models, ".data" for data sets.

        Raises:
            ClusterError: a worker does not answer.
        """
        answers = self._ask_all_workers(wire.MODELS, of=kind)
        listings: list[dict[str, dict[str, Any]]] = []
        for answer in answers:
            if isinstance(answer, TfeBenchError):
                raise answer
            listings.append({str(row["name"]): row for row in answer["models"]})
        return merge_listings(listings)

    def _ask_all_workers(self, method: str, **fields: Any) -> list[dict[str, Any] | TfeBenchError]:
        self.check_open()

        def ask_one(party: int) -> dict[str, Any] | TfeBenchError:
            try:
                return self.ask(party, method, **fields)
            except TfeBenchError as error:
                return error

        with ThreadPoolExecutor(3) as pool:
            return list(pool.map(ask_one, range(3)))


def _load_client_credentials(
    config: ClusterConfig, cluster: str | Path, key: str | Path, certificate: str | Path
) -> tuple[bytes, bytes]:
    """Load a client's key and certificate from files; both are empty without TLS."""
    if not config.tls:
        return b"", b""
    own_certificate = tls.load_certificate(certificate)
    if own_certificate not in {pem for client in config.clients for pem in client.certificates}:
        fingerprint = tls.compute_certificate_fingerprint(own_certificate)
        raise SecurityError(
            f"This client's certificate is not in {cluster}. Received: {certificate}, SHA-256 "
            f"fingerprint {tls.format_certificate_fingerprint(fingerprint)}. Use the key and "
            "certificate of a [[client]] in it, or have the three parties add this one.",
            code="certificate-not-pinned",
            received=str(certificate),
        )
    return tls.load_private_key(key), own_certificate


def load_client_files(
    cluster: str | Path, client: str | None, key: str | Path | None, certificate: str | Path | None
) -> tuple[ClusterConfig, bytes, bytes]:
    """Load the arguments of `Client` from files; see Client.open."""
    path = Path(cluster)
    config = ClusterConfig.load(path)
    if config.tls and client is None and key is None:
        names = [c.name for c in config.clients]
        available = [n for n in names if (path.parent / f"client-{n}.key").is_file()]
        if len(available) != 1:
            raise ConfigError(
                f"Which client is this? Received: {len(available)} client keys in the folder of "
                f"{path}. Name it with --client (known: {', '.join(names) or 'none'}).",
                code="ambiguous-client",
                operation="client",
                received=len(available),
                expected=", ".join(names),
            )
        client = available[0]
    known_names = [c.name for c in config.clients]
    if config.tls and client is not None and client not in known_names:
        listed = f"Known: {', '.join(known_names)}." if known_names else "It has none."
        raise UsageError(
            f"There is no client {client!r} in {path.name}.{did_you_mean(client, known_names)} "
            f"{listed}",
            code="unknown-client",
            operation="client",
            received=client,
            expected=", ".join(known_names),
        )
    key = key or path.parent / f"client-{client}.key"
    certificate = certificate or path.parent / f"client-{client}.crt"
    return config, *_load_client_credentials(config, path, key, certificate)


def new_job() -> str:
    """Return a new random name of a job."""
    return uuid.uuid4().hex
