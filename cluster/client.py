"""A client: shares inputs among three workers, orders a job, puts the result together.

Needs no TensorFlow.  Only clients reconstruct results.
"""

from __future__ import annotations

import math
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import grpc

from tfe_bench.cluster import agreement, handshake, probe, profiles, tls, wire
from tfe_bench.cluster.answers import Answers
from tfe_bench.cluster.config import ClusterConfig
from tfe_bench.cluster.questions import answered, ask, greet, silent
from tfe_bench.cluster.requests import AnyInput, JobResult, Progress
from tfe_bench.cluster.sending import Sending, check_inputs, check_parameters, kind_of
from tfe_bench.cluster.stored import ANY, check_clients
from tfe_bench.cluster.transport import dialled
from tfe_bench.errors import (
    ConfigError,
    SecurityError,
    TfeBenchError,
    UsageError,
    did_you_mean,
)

CONNECT_SECONDS = 12.0
_JOB = re.compile(r"[0-9a-f]{32}", re.ASCII)

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
# Workers that ended a job so lately are there: a loop need not ask them before each turn.
_JUST_HEARD = 1.0
# Bytes of inputs that leave only once all workers have taken the job.
_LARGE = 16 << 20


class Client:
    """A client of one cluster.

    Args:
        config: the shared cluster file.
        key, certificate: this client's own (PEM); empty without TLS.

    Attributes:
        profile: the network that protocols plan for, unless a job says otherwise.
        shaping: what the workers shall impose on their messages: microseconds of one-way delay,
            and bytes per second of each worker; None for nothing.
        warm_up_bytes: what the workers send each other before a program runs.
    """

    profile = profiles.get("local")

    def __init__(self, config: ClusterConfig, key: bytes = b"", certificate: bytes = b"") -> None:
        self._config = config
        self.shaping: tuple[int, int] | None = None
        self.warm_up_bytes = 0
        self._own = (key, certificate)
        self._closed = False
        self._heard = -math.inf
        options = [*_RECONNECT, *_ANSWERS]
        self._channels: list[grpc.Channel] = [
            dialled(grpc, party, self._own if config.tls else None, options)
            for party in config.parties
        ]

    def __repr__(self) -> str:
        """Which workers, by which name, and whether it is open; no key."""
        where = ", ".join(party.address for party in self._config.parties)
        state = ", closed" if self._closed else ""
        return f"<{type(self).__name__} of {where} as client {self.identity!r}{state}>"

    def __deepcopy__(self, memo: object) -> Self:
        """Itself: a copy of what holds a connection, such as an estimator, uses the same one."""
        return self

    @classmethod
    def load(cls, cluster: str | Path, key: str | Path, certificate: str | Path) -> Self:
        """A client from files.

        Raises:
            ConfigError, SecurityError: a file is missing, malformed, or the key can be read by
                others.
        """
        config = ClusterConfig.load(cluster)
        return cls(config, *_credentials(config, cluster, key, certificate))

    @classmethod
    def open(
        cls,
        cluster: str | Path,
        client: str | None = None,
        key: str | Path | None = None,
        certificate: str | Path | None = None,
    ) -> Self:
        """A client by its name: its files lie beside cluster.toml unless they are given.

        Raises:
            ConfigError, SecurityError: as `load`, or it is not clear which client this is.
        """
        return cls(*opened(cluster, client, key, certificate))

    @property
    def config(self) -> ClusterConfig:
        """The shared cluster file."""
        return self._config

    @property
    def identity(self) -> str:
        """By which name the workers know this client."""
        own = self._own[1]
        named = (c.name for c in self.config.clients if own and own in c.certificates)
        return next(named, "local")

    def check_members(self, clients: Sequence[str]) -> None:
        """Refuse names that no client of this cluster has; a local cluster has none to look up.

        Raises:
            UsageError: naming the first one, and the nearest name.
        """
        check_clients(list(clients))
        known = [client.name for client in self.config.clients]
        if known == [self.identity]:  # (three workers on this host, for trying out)
            return
        for name in clients:
            if name != ANY and name not in known:
                raise UsageError(
                    f"The cluster has no client {name[:80]!r}.{did_you_mean(name[:80], known)} "
                    f"Clients: {', '.join(known[:20])}; {ANY} is all of them."
                )

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
                if answered(greet(self._channels[party.index], max(0.05, min(0.5, left)))):
                    break
                refused = watch.look()
                if left <= 0 or refused:
                    raise silent(party, timeout, refused)

    def run(
        self,
        program: str,
        parameters: Mapping[str, Any],
        inputs: Mapping[str, AnyInput],
        progress: Progress | None = None,
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
        if not isinstance(program, str) or not program:
            raise UsageError(f"A program is known by its name. Received: {kind_of(program)}.")
        if not isinstance(job, str) or not _JOB.fullmatch(job):
            raise UsageError("A job's name is 32 hexadecimal digits, of new_job().")
        check_parameters(parameters)
        check_inputs(inputs)
        header = {
            "job": job,
            "program": program,
            "parameters": dict(parameters),
            "version": handshake.version(),
            "ring": self.config.ring,
            "fractional_bits": self.config.fractional_bits,
            "cluster": self.config.digest(),
            "cluster_parts": agreement.shown(self.config),
            "shaping": self.shaping,
            "warm_up_bytes": self.warm_up_bytes,
        }
        sending = Sending(inputs)
        self._wait_for_return()
        answers = Answers(self.config, progress)
        started = time.perf_counter()

        def requests(party: int) -> Iterator[bytes]:
            try:
                stream = sending.messages(party, header, answers.seen)
                yield next(stream)
                # (small ones need not wait for a message to and fro)
                if sending.size > _LARGE and not answers.admitted():
                    return
                yield from stream
            except Exception as error:
                answers.fail(party, error)
                raise
            result = answers.result
            result.share_seconds = max(result.share_seconds, time.perf_counter() - started)
            # The stream stays open: its end would cancel the job.
            answers.finished.wait()

        calls = [
            wire.stub(self._channels[p], wire.JOB)(requests(p), wait_for_ready=False)
            for p in range(3)
        ]
        threads = [
            threading.Thread(target=answers.follow, args=(p, calls[p]), daemon=True)
            for p in range(3)
        ]
        for thread in threads:
            thread.start()
        try:
            result = answers.collect()
            self._heard = time.monotonic()
            return result
        except TfeBenchError as error:
            self.explain(error)
            raise
        finally:
            answers.close()
            for call in calls:
                call.cancel()

    def explain(self, error: TfeBenchError) -> None:
        """Raises what tells more than an error of a job, if anything is known."""

    def _wait_for_return(self) -> None:
        """Waits a little for a worker that is being started; without it the job then fails."""
        if time.monotonic() - self._heard < _JUST_HEARD:
            return
        for call in [greet(channel, _RETURN_SECONDS) for channel in self._channels]:
            answered(call)

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
            unheard = [a for a in answers if isinstance(a, TfeBenchError)]
            if unheard and not known:
                raise unheard[0]
            raise UsageError(
                f"There is {'no' if not known else 'more than one'} job of this client that begins "
                f"with {job[:32]!r}. See `python -m tfe_bench status`; a job that has ended "
                "cannot be cancelled."
            )
        [name] = known
        told = self._ask_all(wire.CANCEL, job=name)
        if not any(isinstance(a, dict) and a["found"] for a in told):
            raise UsageError(f"Job {name[:12]} has just ended.")

    # ---- what they keep

    def stored(self, kind: str = "") -> list[dict[str, Any]]:
        """What the workers keep that this client may use.

        "complete" is False where the three workers differ; "spent" is the most that one of them
        knows to be spent of a table's privacy budget.

        Args:
            kind: the infix of a stored.Kind: "" for models, ".data" for data sets.

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
            spent = [row["spent"] for row in each if type(row.get("spent")) is int]
            rows.append({**first, "complete": same, "spent": max(spent, default=0)})
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


def _credentials(
    config: ClusterConfig, cluster: str | Path, key: str | Path, certificate: str | Path
) -> tuple[bytes, bytes]:
    """A client's key and certificate, of files; empty without TLS."""
    if not config.tls:
        return b"", b""
    own = tls.load_certificate(certificate)
    if own not in {pem for client in config.clients for pem in client.certificates}:
        raise SecurityError(
            f"This client's certificate is not in {cluster}. Received: {certificate}, SHA-256 "
            f"fingerprint {tls.spoken(tls.fingerprint(own))}. Use the key and certificate of a "
            "[[client]] in it, or have the three parties add this one."
        )
    return tls.load_private_key(key), own


def opened(
    cluster: str | Path,
    client: str | None,
    key: str | Path | None,
    certificate: str | Path | None,
) -> tuple[ClusterConfig, bytes, bytes]:
    """What a client is made of, from its files; see Client.open."""
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
    known = [c.name for c in config.clients]
    if config.tls and client is not None and client not in known:
        listed = f"Known: {', '.join(known)}." if known else "It has none."
        raise UsageError(
            f"There is no client {client!r} in {path.name}.{did_you_mean(client, known)} {listed}"
        )
    key = key or path.parent / f"client-{client}.key"
    certificate = certificate or path.parent / f"client-{client}.crt"
    return config, *_credentials(config, path, key, certificate)


def new_job() -> str:
    """A name for a job."""
    return uuid.uuid4().hex
