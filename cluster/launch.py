"""Clusters to run on: three temporary workers on this host, or three hosts."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from tfe_bench.cluster import links, profiles, tls
from tfe_bench.cluster.client import Client, load_client_files
from tfe_bench.cluster.config import ClientConfig, ClusterConfig, PartyConfig
from tfe_bench.cluster.files import write_secret_file
from tfe_bench.cluster.local_workers import LocalWorkers
from tfe_bench.errors import ClusterError, ConfigError, PeerLost, TfeBenchError, UsageError

START_SECONDS = 60.0
_END_SECONDS = 3.0
_CLIENT = "local"
# port of a worker in its own network namespace
_LINK_PORT = 7700
# of the output of a worker that ended
_MAX_OUTPUT_CHARS = 600


class BaseCluster(Client):
    """A client with its cluster: the common part of both kinds of cluster.

    Attributes:
        name: for records.
        emulation: the method that emulates the profile; None without emulation.
        fallback: the reason why another emulation was not used; None if none was requested.
        realized: the links as a benchmark measured them.
        start_seconds: seconds from the start of the processes until all three answered.
    """

    name: str
    emulation: str | None = None
    fallback: str | None = None
    realized: Any = None
    start_seconds = 0.0

    def _init_client(self, config: ClusterConfig, key: bytes, certificate: bytes) -> None:
        """Initialize the client, which requests the profile from the workers in every job."""
        super().__init__(config, key, certificate)
        if self.profile.shaped:
            self.warm_up_bytes = self.profile.warm_up_bytes
        if self.emulation == links.CHANNEL:
            self.shaping = (self.profile.delay_us, self.profile.bytes_per_second)

    @property
    def client(self) -> Self:
        """The client of its jobs: this object."""
        return self

    def __enter__(self) -> Self:
        self.check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LocalCluster(BaseCluster):
    """Three worker processes on loopback: real gRPC, TLS with temporary certificates.

    Use as a context manager; the workers end with it (and with this process).

    Args:
        threads: per worker; None lets each use half of the cores.
        tls_on: False measures the cost of TLS; all traffic stays on this machine.
        profile: of the network between them; see docs/networks.md.
        emulate: "netns" (hosts in network namespaces, requires root), "channel" (delays in the
            workers' channels), or "auto": the first if it is available, else the second.
        models: a folder where the workers keep deployed models, owners' data and checkpoints
            (0700); by default these end with the cluster. (One user then owns all three parties'
            shares: for evaluation only.)

    Attributes:
        profile: the network profile.
        emulation: "netns+tun", "netns+netem", "channel", or None without emulation.
        fallback: the reason why "auto" did not use namespaces, else None.

    Raises:
        UsageError: unknown profile or emulation.
        NoNamespaces: "netns" was requested and is not available.
    """

    def __init__(
        self,
        threads: int | None = None,
        *,
        tls_on: bool = True,
        profile: str = "local",
        emulate: str = "auto",
        models: str | Path | None = None,
    ) -> None:
        self.name = "local"
        self._models = models
        self._tls = tls_on
        self.profile = profiles.get_profile(profile)
        self._emulate = links.check_link_emulation(emulate)
        self._links: links.Links | None = None
        if threads is not None and (type(threads) is not int or threads < 1):
            raise UsageError(
                f"A worker has 1 thread or more. Received: threads={threads!r}.",
                code="number-out-of-range",
                operation="threads",
                received=threads,
                expected="1 or more",
            )
        if models is not None:
            _make_models_folder(_check_path(models))
        self._folder = Path(tempfile.mkdtemp(prefix="tfe_bench-"))
        self._workers: LocalWorkers | None = None
        self._threads = threads
        try:
            self._start_workers()
        except BaseException:
            self.close()
            raise

    def _start_workers(self) -> None:
        started = time.perf_counter()
        self._start_emulated_links()
        keys, certificates = zip(
            *(tls.make_self_signed_certificate(tls.party_common_name(p), days=2) for p in range(3)),
            strict=True,
        )
        key, certificate = tls.make_self_signed_certificate(tls.client_common_name(_CLIENT), days=2)
        hosts = self._links.hosts[:3] if self._links else ["127.0.0.1"] * 3
        ports = [_LINK_PORT] * 3 if self._links else _free_worker_ports(3)
        parties = tuple(
            PartyConfig(p, f"party{p}", hosts[p], ports[p], certificates[p]) for p in range(3)
        )
        config = ClusterConfig(
            name="local",
            parties=parties,
            clients=(ClientConfig(_CLIENT, certificate),),
            tls=self._tls,
        )
        config.save(self._folder / "cluster.toml")
        for p in range(3):
            write_secret_file(self._folder / f"party{p}.key", keys[p])
        command = [sys.executable, "-m", "tfe_bench", "worker", "--local", "--temporary"]
        command += ["--cluster", str(self._folder / "cluster.toml")]
        command += ["--models", str(Path(self._models or self._folder / "models").absolute())]
        if self._threads:
            command += ["--threads", str(self._threads)]
        namespaces = self._links.namespaces[:3] if self._links else []
        if namespaces:
            command += ["--namespaces", *map(str, namespaces)]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self._workers = LocalWorkers(command, self._folder, environment, namespaces)
        self._init_client(config, key, certificate)
        self.wait_ready(START_SECONDS, self._check_workers_alive)
        self.start_seconds = time.perf_counter() - started

    def _start_emulated_links(self) -> None:
        if not self.profile.shaped:
            return
        self.emulation = links.CHANNEL
        if self._emulate == links.CHANNEL:
            return
        try:
            self._links = links.Links(self.profile)
            self.emulation = self._links.kind
        except links.NoNamespaces as error:
            if self._emulate != "auto":
                raise
            self.fallback = str(error)

    @property
    def pids(self) -> list[int]:
        """Process ids of the three workers."""
        return [] if self._workers is None else self._workers.pids

    def _check_workers_alive(self) -> None:
        for p, code, tail in self._ended_workers():
            raise ClusterError(
                f"Worker {p} did not start. Received: exit code {code}.\n{tail}",
                code="worker-not-started",
                received=code,
                party=p,
            )

    def _ended_workers(self) -> Iterator[tuple[int, int, str]]:
        """Yield (party, exit code, last lines) of the workers that have ended."""
        for p in range(3):
            if self._workers is not None and (code := self._workers.poll(p)) is not None:
                yield p, code, self._workers.log_tail(p)

    def explain(self, error: TfeBenchError) -> None:
        """Name a worker that ended.

        Raises:
            PeerLost: a worker has ended.
        """
        for p, code, tail in self._ended_workers():
            if not (isinstance(error, PeerLost) and error.party == p):
                # output other than its log, such as that of a failed check
                lines = [line for line in tail.splitlines() if f"[party {p}]" not in line]
                output = " ".join(lines)[:_MAX_OUTPUT_CHARS]
                reason = f"its process ended with code {code}"
                raise PeerLost(
                    p, f"{reason}, with the output: {output}" if output else reason
                ) from error

    def close(self) -> None:
        """End the workers and remove their keys."""
        if hasattr(self, "_channels"):
            super().close()
        if self._workers is not None:
            self._workers.close(_END_SECONDS)
            self._workers = None
        if self._links is not None:
            self._links.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class Cluster(BaseCluster):
    """Three hosts that each run `python -m tfe_bench worker`.

    Args:
        path: the shared cluster file.
        client: this client's name in it; the key and certificate are `client-NAME.key` and
            `client-NAME.crt` in the same folder, unless given.
        profile: emulated by the workers' channels, if all three operators allow it.
    """

    def __init__(
        self,
        path: str | Path,
        client: str | None = None,
        key: str | Path | None = None,
        certificate: str | Path | None = None,
        *,
        profile: str = "local",
    ) -> None:
        self.name = _check_path(path).name
        self.profile = profiles.get_profile(profile)
        if self.profile.shaped:
            self.emulation = links.CHANNEL
        self._init_client(*load_client_files(path, client, key, certificate))
        self.wait_ready()


def _check_path(path: object) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise UsageError(
            f"A path is a str or a Path. Received: {type(path).__name__}.",
            code="wrong-type",
            received=type(path).__name__,
        )
    return Path(path)


def _make_models_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"The folder for models cannot be created: {folder}. Received: {error.strerror}. "
            "Choose another.",
            code="file-not-writable",
            operation="models",
            received=error.strerror,
        ) from None


def _free_worker_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()
