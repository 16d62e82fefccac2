"""The state that the parts of one worker share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tfe_bench.cluster import agreement, handshake, tls
from tfe_bench.cluster.config import ClusterConfig, PartyConfig
from tfe_bench.cluster.policy import WorkerPolicy
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.worker.job_queue import JobQueue
from tfe_bench.cluster.worker.outcomes import JobOutcomeLog
from tfe_bench.cluster.worker.pending import Job, JobRegistry
from tfe_bench.cluster.worker.receipts import ReceiptBook
from tfe_bench.errors import ConfigError, SecurityError, TfeBenchError

# A party that does not open its streams within this time is absent.
MEET_SECONDS = 12.0
# Dealer of clients' inputs.
DEALER = 0

T = TypeVar("T")


@dataclass(eq=False)
class WorkerState:
    """The shared state of one worker.

    Attributes:
        config: the shared cluster file.
        policy: this operator's private rules.
        store: values that are stored between jobs.
        loop: of the channel; waits for peers and clients run on it.
        key: private, PEM; empty without TLS.
        queue: of the present jobs.
        jobs: the present jobs, by name.
        outcomes: logs refusals.
        receipts: signs a line for each job.
    """

    config: ClusterConfig
    policy: WorkerPolicy
    store: ShareStore
    loop: asyncio.AbstractEventLoop
    key: bytes = field(default=b"", repr=False)
    queue: JobQueue = field(init=False)
    outcomes: JobOutcomeLog = field(init=False)
    receipts: ReceiptBook = field(init=False)
    jobs: JobRegistry = field(init=False)
    _tasks: set[asyncio.Future[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.queue = JobQueue(self.policy)
        self.jobs = JobRegistry(self.loop)
        self.outcomes = JobOutcomeLog(self._call_later)
        self.receipts = ReceiptBook(self.config, self.policy)

    def _call_later(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function on the loop after some seconds; ignored once the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.call_later, seconds, function)

    def reload_files(self, config: ClusterConfig, policy: WorkerPolicy) -> None:
        """Apply new clients and rules; end jobs that they do not admit.

        Raises:
            ConfigError: another setting differs, which requires a restart; nothing has changed.
        """
        if config.digest() != self.config.digest():
            changed = (
                agreement.describe_cluster_differences(
                    self.config, agreement.summarize_cluster_settings(config)
                )
                or "all parts"
            )
            raise ConfigError(
                f"cluster.toml has another value of {changed}, which requires a restart of the "
                "worker.",
                code="restart-required",
                operation=changed,
            )
        if fixed := policy.fixed_differences(self.policy):
            raise ConfigError(
                f"worker.toml has another value of {', '.join(fixed)}, which requires a restart of "
                "the worker.",
                code="restart-required",
                operation=", ".join(fixed),
            )
        # In this order, with `recheck_job` after a job is registered, every job is checked by the
        # new files.
        self.config, self.policy = config, policy
        self.queue.limits = policy
        for job in self.jobs.list_jobs():
            try:
                self.recheck_job(job)
            except TfeBenchError as error:
                job.fail(error)

    def recheck_job(self, job: Job) -> None:
        """Reject a job whose client or program the current files no longer admit.

        Raises:
            SecurityError: the client, or its presented certificate, was removed.
            PolicyError: the job has not started, and its program, reveal or openings are no longer
                allowed.
        """
        if self.config.tls:
            member = self.config.identify(job.certificate)
            if member.name != job.client:
                raise SecurityError(
                    f"Party {self.party} has another client with this certificate now. Submit "
                    "the job again.",
                    code="client-changed",
                    party=self.party,
                )
        if job.began is None:
            for program in job.programs:
                self.policy.permit_program(program)
                self.policy.permit_reveal(program, job.client)
            self.policy.permit_openings(job.declared_openings, job.is_sealed)

    @property
    def party(self) -> int:
        """The party of this worker."""
        return self.policy.party

    @property
    def own_party(self) -> PartyConfig:
        """This worker's entry in the cluster file."""
        return self.config.parties[self.party]

    @property
    def role(self) -> int:
        """This party's role for clients' inputs: 0 is the dealer, 1 and 2 are evaluators."""
        return (self.party - DEALER) % 3

    @property
    def certificate(self) -> bytes:
        """This worker's certificate: during a roll-over, the one of its key."""
        return tls.select_key_certificate(self.key, self.own_party.certificates)

    def get_facts(self) -> dict[str, Any]:
        """Return the facts that all members must have in common."""
        from tfe_bench.protocols.session import ops

        return {
            "version": handshake.package_version(),
            "abi": ops.abi(),
            "tensorflow": handshake.tensorflow_version(),
            "ring": self.config.ring,
            "fractional_bits": self.config.fractional_bits,
            "cluster": self.config.digest(),
            "cluster_parts": agreement.summarize_cluster_settings(self.config),
            "isa": ops.native().isa().decode(),
        }

    def on_loop(self, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """Run a coroutine on the channel's event loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(seconds)

    def start_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        """Run a coroutine on the loop as a separate task."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
