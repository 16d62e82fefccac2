"""Processes for the tests of the cluster: all are ended and awaited, also after a failure."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest

from tests.commands import Done, run_command
from tests.fork_server import start_process
from tfe_bench.cluster.launch import LocalCluster

if TYPE_CHECKING:
    from tfe_bench.cluster.client import Client

# Three workers import TensorFlow on few cores, along with other processes.
PATIENCE = 120.0


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment without variables that change a command's output."""
    plain = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    return {**plain, "TERM": "xterm", **more}


class Processes:
    """Starts processes and reads their state from /proc."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[Any]] = []
        self._watched: set[int] = set()

    def start(
        self, *command: str, out: IO[bytes] | int = subprocess.DEVNULL, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start ``python command...``, which is killed at the end of the test if necessary.

        Args:
            options: of Popen; ``inside`` is a command that runs this one.
        """
        options.setdefault("stderr", subprocess.STDOUT)
        options.setdefault("env", environment())
        whole = [*options.pop("inside", ()), sys.executable, *command]
        process = start_process(whole, stdin=subprocess.DEVNULL, stdout=out, **options)
        self._started.append(process)
        return process

    def watch(self, pids: list[int]) -> list[int]:
        """Kill these processes, too, at the end of the test."""
        self._watched.update(pids)
        return pids

    def is_alive(self, pid: int) -> bool:
        """Return whether a process runs (a zombie does not)."""
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state not in ("Z", "X")

    def wait_gone(self, pids: list[int], seconds: float) -> list[int]:
        """Return the processes that still run after this many seconds."""
        deadline = time.monotonic() + seconds
        while (left := [p for p in pids if self.is_alive(p)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def wait_for(self, condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
        """Return the first true value of a condition, within a time limit."""
        return wait_until(condition, what, seconds)

    def close(self) -> None:
        """End all started or watched processes."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
        for pid in self._watched:
            if self.is_alive(pid) and b"tfe_bench" in Path(f"/proc/{pid}/cmdline").read_bytes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


class Hosts:
    """Three workers as three organizations would start them, each on a separate address.

    Attributes:
        folder: the output of ``certs all``.
        ports: ports of party 0, 1 and 2.
    """

    def __init__(self, folder: Path, clients: tuple[str, ...] = ("analyst",)) -> None:
        self.folder = folder
        self.processes = Processes()
        self.ports = _free_ports()
        self.workers: dict[int, subprocess.Popen[Any]] = {}
        self._runs: dict[int, Path] = {}
        where = ",".join(f"127.0.0.{p + 1}:{port}" for p, port in enumerate(self.ports))
        names = [word for name in clients for word in ("--client", name)]
        process = self.command("certs", "all", "--hosts", where, "--out", str(folder), *names)
        assert process.returncode == 0, process.stderr

    @property
    def cluster(self) -> Path:
        """The shared file."""
        return self.folder / "cluster.toml"

    def log(self, party: int) -> str:
        """Return a worker's log so far."""
        return (self.folder / f"party{party}.log").read_text(errors="replace")

    def start(self, party: int, *options: str, cluster: Path | None = None) -> None:
        """Start one worker; see `wait_ready`."""
        command = ["-m", "tfe_bench", "worker", "--party", str(party)]
        command += ["--cluster", str(cluster or self.cluster), *options]
        self._runs[party] = cluster or self.cluster
        with (self.folder / f"party{party}.log").open("wb") as out:
            self.workers[party] = self.processes.start(*command, out=out)

    def wait_ready(self, *parties: int) -> None:
        """Wait until workers serve."""
        deadline = time.monotonic() + PATIENCE
        for party in parties or tuple(self.workers):
            worker = self.workers[party]
            while "ready" not in self.log(party) and worker.poll() is None:
                assert time.monotonic() < deadline, f"worker {party} is not ready"
                time.sleep(0.05)
            assert worker.poll() is None, self.log(party)

    def stop(self, party: int) -> int:
        """End a worker as its operator would; return its exit code."""
        self._runs.pop(party, None)
        worker = self.workers.pop(party)
        worker.terminate()
        return int(worker.wait(30))

    def ensure(self, *absent: int, others: dict[int, Path] | None = None) -> None:
        """Make all workers run from the shared file, with exceptions.

        Args:
            absent: parties that do not run.
            others: parties that run from another file.
        """
        expected = {p: (others or {}).get(p, self.cluster) for p in range(3) if p not in absent}
        for party in range(3):
            if party in self.workers and self._runs.get(party) != expected.get(party):
                self.stop(party)
            if party in expected and party not in self.workers:
                self.start(party, cluster=expected[party])
        self.wait_ready()

    def command(self, *arguments: str) -> Done:
        """Run ``tfe_bench arguments...`` to its end."""
        return run_command(*arguments, patience=PATIENCE, env=environment())

    def close(self) -> None:
        """End all workers."""
        self.processes.close()


class Trio:
    """Three workers in this process, whose internal state a test can read.

    They also have the programs "plain" and "batched" (programs.py).

    Args:
        folder: for keys, stored values and receipts.
        clients: names; each has a certificate.
        limits: limits of all three policies.
    """

    def __init__(self, folder: Path, clients: tuple[str, ...], **limits: Any) -> None:
        from tfe_bench.cluster import tls
        from tfe_bench.cluster.config import ClientConfig, ClusterConfig, PartyConfig
        from tfe_bench.cluster.files import write_secret_file
        from tfe_bench.cluster.policy import RevealRule, WorkerPolicy
        from tfe_bench.cluster.worker.server import Worker

        parties = [tls.make_self_signed_certificate(tls.party_common_name(p), 60) for p in range(3)]
        self._keys = {
            name: tls.make_self_signed_certificate(tls.client_common_name(name), 60)
            for name in clients
        }
        self._clients: list[Client] = []
        ports = _free_ports()
        self.config = ClusterConfig(
            name="trio",
            parties=tuple(
                PartyConfig(p, f"party{p}", "127.0.0.1", ports[p], parties[p][1]) for p in range(3)
            ),
            clients=tuple(ClientConfig(name, self._keys[name][1]) for name in clients),
            ring=64,
            fractional_bits=16,
            tls=True,
        )
        self.workers = []
        for party in range(3):
            key = folder / f"party{party}.key"
            write_secret_file(key, parties[party][0])
            policy = WorkerPolicy(
                party,
                key,
                allow_programs=("*",),
                reveal=(RevealRule("*", ("*",)),),
                models=folder / f"models{party}",
                receipts=folder / f"receipts{party}",
                **limits,
            )
            self.workers.append(Worker(self.config, policy))

    def client(self, name: str) -> Client:
        """Return a client with separate connections."""
        from tfe_bench.cluster.client import Client

        client = Client(self.config, *self._keys[name])
        self._clients.append(client)
        client.wait_ready(PATIENCE)
        return client

    def restart(self, party: int) -> None:
        """Replace a worker by a new one."""
        from tfe_bench.cluster.worker.server import Worker

        worker = self.workers[party]
        worker.stop()
        worker._host.loop.call_soon_threadsafe(worker._host.loop.stop)
        self.workers[party] = Worker(self.config, worker._host.policy)

    def tasks(self) -> list[str]:
        """Return the coroutines that run on the workers' loops."""
        import asyncio

        async def names() -> list[str]:
            here = asyncio.current_task()
            tasks = asyncio.all_tasks() - {here}
            return [getattr(t.get_coro(), "__qualname__", "") for t in tasks]

        return sorted(name for worker in self.workers for name in worker._host.on_loop(names()))

    def idle(self) -> bool:
        """Return whether no worker has a job or a slot for one."""
        return not any(
            worker._host.jobs.list_jobs() or worker._host.queue._slots for worker in self.workers
        )

    def close(self) -> None:
        """End clients and workers."""
        for client in self._clients:
            client.close()
        for worker in self.workers:
            worker.stop()
            worker._host.loop.call_soon_threadsafe(worker._host.loop.stop)


@pytest.fixture(scope="module")
def trio(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Trio]:
    """Start three workers in this process; a module's LIMITS are those of their policies."""
    from tfe_bench import extensions
    from tfe_bench.cluster import jobs

    registered = extensions.list_checkout_entry_points
    more = [
        EntryPoint("plain", "tests.cluster.programs:PROGRAM", jobs.GROUP),
        EntryPoint("batched", "tests.cluster.programs:BATCHED", jobs.GROUP),
        EntryPoint("opening", "tests.cluster.programs:OPENING", jobs.GROUP),
    ]
    extensions.list_checkout_entry_points = lambda group: (  # type: ignore[assignment]
        *registered(group),
        *(more if group == jobs.GROUP else []),
    )
    limits = getattr(request.module, "LIMITS", {})
    three = Trio(tmp_path_factory.mktemp("trio"), ("analyst", "guest"), **limits)
    try:
        yield three
    finally:
        three.close()
        extensions.list_checkout_entry_points = registered


def wait_until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Return the first true value of a condition, within a time limit."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} within {seconds:.0f} s"
        time.sleep(0.05)
    return value


def _free_ports() -> list[int]:
    from tfe_bench.cluster.launch import _free_worker_ports

    return _free_worker_ports(3)


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Provide processes of one test."""
    mine = Processes()
    yield mine
    mine.close()


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[LocalCluster]:
    """Provide a local cluster for tests that leave it unchanged."""
    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Start three workers on 127.0.0.1, 127.0.0.2 and 127.0.0.3 with two clients.

    Party 1's operator allows the sort alone, revealed to the analyst alone.
    """
    three = Hosts(tmp_path_factory.mktemp("hosts") / "trial", ("analyst", "guest"))
    try:
        (three.folder / "worker1.toml").write_text(
            'party = 1\nkey = "party1.key"\nallow_programs = ["sort"]\n'
            '[[reveal]]\nprogram = "sort"\nto = ["analyst"]\n'
            '[[reveal]]\nprogram = "channel"\nto = ["analyst"]\n'
            "[limits]\nmax_elements = 100000\n"
        )
        three.ensure()
        yield three
    finally:
        three.close()
