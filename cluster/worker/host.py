"""What the parts of one worker share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tfe_bench.cluster import agreement, handshake, tls
from tfe_bench.cluster.config import ClusterConfig, PartyConfig
from tfe_bench.cluster.policy import WorkerPolicy
from tfe_bench.cluster.store import Store
from tfe_bench.cluster.worker.job_queue import JobQueue
from tfe_bench.cluster.worker.outcomes import OutcomeLog
from tfe_bench.cluster.worker.pending import Job, JobRegistry
from tfe_bench.errors import ConfigError, SecurityError, TfeBenchError

# A party that does not open its streams in this time is absent.
MEET_SECONDS = 12.0
# Of clients' inputs.
DEALER = 0

T = TypeVar("T")


@dataclass(eq=False)
class Host:
    """One worker, as its parts see it.

    Attributes:
        config: the shared cluster file.
        policy: this operator's private rules.
        store: what is kept between jobs.
        loop: of the channel: what waits for a peer or a client does so there.
        key: private, PEM; empty without TLS.
        queue: of the jobs that are here.
        jobs: these, by name.
        outcomes: logs what is refused.
    """

    config: ClusterConfig
    policy: WorkerPolicy
    store: Store
    loop: asyncio.AbstractEventLoop
    key: bytes = field(default=b"", repr=False)
    queue: JobQueue = field(init=False)
    outcomes: OutcomeLog = field(init=False)
    jobs: JobRegistry = field(default_factory=JobRegistry)
    _tasks: set[asyncio.Future[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.queue = JobQueue(self.policy)
        self.outcomes = OutcomeLog(self._call_later)

    def _call_later(self, seconds: float, function: Callable[[], None]) -> None:
        """Calls a function on the loop after some seconds; nothing once the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.call_later, seconds, function)

    def reload_files(self, config: ClusterConfig, policy: WorkerPolicy) -> None:
        """Takes other clients and rules from now on; jobs that they do not admit end.

        Raises:
            ConfigError: something else differs, which takes a restart; nothing has changed.
        """
        if config.digest() != self.config.digest():
            changed = (
                agreement.describe_differences(self.config, agreement.summarize_settings(config))
                or "all parts"
            )
            raise ConfigError(
                f"cluster.toml has another value of {changed}, which takes a restart of the worker."
            )
        if fixed := policy.fixed_differences(self.policy):
            raise ConfigError(
                f"worker.toml has another value of {', '.join(fixed)}, which takes a restart of "
                "the worker."
            )
        # In this order, with `recheck` after a job is in the book: no job slips between the two.
        self.config, self.policy = config, policy
        self.queue.limits = policy
        for job in self.jobs.list_jobs():
            try:
                self.recheck_job(job)
            except TfeBenchError as error:
                job.fail(error)

    def recheck_job(self, job: Job) -> None:
        """Refuses a job whose client, or what it may order, these files no longer admit.

        Raises:
            SecurityError: the client, or the certificate that it presented, is gone.
            PolicyError: the job has not begun, and its program or reveal is no longer allowed.
        """
        if self.config.tls:
            member = self.config.identify(job.certificate)
            if member.name != job.client:
                raise SecurityError(
                    f"Party {self.party} no longer knows this client by this name. Order the job "
                    "again."
                )
        if job.began is None:
            for program in job.programs:
                self.policy.permit_program(program)
                self.policy.permit_reveal(program, job.client)

    @property
    def party(self) -> int:
        """Which one it is."""
        return self.policy.party

    @property
    def own_party(self) -> PartyConfig:
        """Its entry in the cluster file."""
        return self.config.parties[self.party]

    @property
    def role(self) -> int:
        """Of this party toward clients' inputs: 0 deals, 1 and 2 evaluate."""
        return (self.party - DEALER) % 3

    @property
    def certificate(self) -> bytes:
        """This worker's certificate: of the two during a roll-over, the one of its key."""
        return tls.select_certificate(self.key, self.own_party.certificates)

    def get_facts(self) -> dict[str, Any]:
        """What all members must have alike."""
        from tfe_bench.protocols.session import ops

        return {
            "version": handshake.package_version(),
            "abi": ops.abi(),
            "tensorflow": handshake.tensorflow_version(),
            "ring": self.config.ring,
            "fractional_bits": self.config.fractional_bits,
            "cluster": self.config.digest(),
            "cluster_parts": agreement.summarize_settings(self.config),
            "isa": ops.native().isa().decode(),
        }

    def on_loop(self, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """Runs a coroutine on the channel's event loop and waits for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(seconds)

    def start_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        """Runs a coroutine on the loop by itself."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
