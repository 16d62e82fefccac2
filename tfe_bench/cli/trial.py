"""`python -m tfe_bench cluster up`: three persistent local workers, for evaluation."""

from __future__ import annotations

import argparse
import os
import queue
import signal
import sys
from pathlib import Path

from tfe_bench.cli import certs, common, listing, parsing
from tfe_bench.cli.signals import Signals, catch_signals, wait_signal
from tfe_bench.errors import ClusterError, ConfigError

_HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
_PORT = 7700
_DAYS = 365
_END_SECONDS = 5.0


def _add_trial_options(p: argparse.ArgumentParser) -> None:
    words = p.add_subparsers(dest="word", required=True, metavar="up")
    up = words.add_parser(
        "up",
        help="start three workers on this machine and run them until Ctrl-C",
        description="Starts three workers on this machine and runs them until Ctrl-C, with keys, "
        "certificates and cluster.toml in a folder. For evaluation only: one user has all three "
        "keys. Stored data stays in the folder, and the same command starts the workers again.",
        epilog=listing.format_command_examples("cluster up"),
    )
    common.add_option(up, "--out DIR", "folder of the cluster, created if missing (default: trial)")
    up.add_argument(
        "--port", type=int, default=_PORT, help=f"port on 127.0.0.1, .2 and .3 (default: {_PORT})"
    )
    common.add_option(
        up, "--client NAME", "name of a client; may be repeated (default: analyst)", action="append"
    )
    common.add_option(
        up, "--threads N", "number of threads of each worker (default: one for each core)", type=int
    )


def run_trial(arguments: argparse.Namespace) -> int:
    """Start three local workers and keep them running.

    Commands then take `--cluster DIR/cluster.toml` and start in a fraction of a second. Ctrl-C
    stops the workers.

    Raises:
        ConfigError: the folder belongs to another cluster, or an address is in use.
        ClusterError: a worker ended.
    """
    from tfe_bench.cluster.addresses import check_worker_port_free, is_loopback
    from tfe_bench.cluster.client import Client
    from tfe_bench.cluster.config import ClusterConfig
    from tfe_bench.cluster.launch import START_SECONDS
    from tfe_bench.cluster.local_workers import LocalWorkers

    folder = (arguments.out or Path("trial")).absolute()
    path = folder / "cluster.toml"
    if not path.exists():
        hosts = ",".join(f"{host}:{arguments.port}" for host in _HOSTS)
        certs.make_trial_cluster(folder, hosts, arguments.client or ["analyst"], _DAYS)
    config = ClusterConfig.load(path)
    for party in config.parties:
        if not is_loopback(party.host):
            raise ConfigError(
                f"Expected a cluster on this machine in {path}. Received: {party.address}. Choose "
                "another --out.",
                code="cluster-not-local",
                operation="--out",
                received=party.address,
            )
        check_worker_port_free(party.index, party.host, party.port)
    command = [sys.executable, "-m", "tfe_bench", "worker", "--local"]
    command += ["--cluster", str(path), "--models", str(folder / "models")]
    if arguments.threads:
        command += ["--threads", str(arguments.threads)]
    before = signal.getsignal(signal.SIGTERM)
    caught: Signals = queue.SimpleQueue()
    catch_signals(caught, signal.SIGTERM)
    workers = LocalWorkers(command, folder, {**os.environ, "PYTHONUNBUFFERED": "1"})

    def check_running() -> None:
        for party in range(3):
            if (code := workers.poll(party)) is not None:
                raise ClusterError(
                    f"Worker {party} has ended. Received: exit code {code}. Its log is "
                    f"{folder / f'party{party}.log'}:\n{workers.log_tail(party)}",
                    code="worker-not-started",
                    received=code,
                    party=party,
                )

    try:
        client = Client.open(path, config.clients[0].name)
        try:
            client.wait_ready(START_SECONDS, check_running)
        finally:
            client.close()
        print(f"three workers are ready: --cluster {_relative_path(path)}", flush=True)
        for each in config.clients:
            example = f"sort --n 1000 --cluster {_relative_path(path)} --client {each.name}"
            print(f"  {parsing.typed_command()} {example}")
        print("Ctrl-C ends them; their logs are party0.log to party2.log there", flush=True)
        while wait_signal(caught) is None:
            check_running()
    except KeyboardInterrupt:
        pass
    finally:
        workers.close(_END_SECONDS)
        signal.signal(signal.SIGTERM, before)
    print("the three workers have ended")
    return 0


def _relative_path(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


COMMANDS = {"cluster": (_add_trial_options, run_trial)}
