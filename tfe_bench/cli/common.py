"""What the benchmark's commands share: options, the cluster, the progress bar, the report."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfe_bench.errors import DataError, UsageError

if TYPE_CHECKING:
    from tfe_bench.cluster.client import JobResult


def add_run_options(p: argparse.ArgumentParser) -> None:
    """Options of every command that runs a program."""
    p.add_argument("--repeat", type=int, default=5, metavar="R", help="timed runs (default 5)")
    add_network_options(p)
    p.add_argument("--json", action="store_true", help="print the record as JSON, nothing else")
    p.add_argument("--record", type=Path, metavar="FILE", help="append the record to a .jsonl file")


def add_network_options(p: argparse.ArgumentParser) -> None:
    """Which hosts, and which network between them."""
    p.add_argument("--cluster", type=Path, metavar="FILE", help="run on these three hosts")
    p.add_argument("--client", metavar="NAME", help="which client of the cluster file this is")
    p.add_argument(
        "--profile",
        default="local",
        metavar="NAME",
        help="network between the workers: local, lan, wan, net0, net1, net2 or net3 "
        "(default local)",
    )
    p.add_argument(
        "--emulate",
        default="auto",
        metavar="HOW",
        help="the profile: netns (network namespaces, takes root), channel (in the workers), "
        "or auto (the first that can be; default)",
    )


def check_network_options(arguments: argparse.Namespace) -> None:
    """Refuses an unknown profile, or one that these hosts cannot have.

    Raises:
        UsageError: naming what does not fit.
    """
    from tfe_bench.cluster.links import check_emulation
    from tfe_bench.cluster.profiles import get

    get(arguments.profile)
    check_emulation(arguments.emulate)
    if arguments.cluster is not None and arguments.emulate == "netns":
        raise UsageError(
            "Hosts of a cluster are no network namespaces. Received: --emulate netns with "
            "--cluster. Their own network has --profile local; --emulate channel imposes another."
        )
    if arguments.cluster is None and arguments.client is not None:
        raise UsageError("--client goes with --cluster. Received: no --cluster.")


class _Bar:
    """A progress bar on stderr; silent without a terminal."""

    def __init__(self, show: bool) -> None:
        self._progress: Any = None
        if show:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )

    def __enter__(self) -> _Bar:
        if self._progress is not None:
            self._progress.start()
            self._task = self._progress.add_task("starting the workers", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def say(self, text: str) -> None:
        """Shows what is going on, without a fraction."""
        if self._progress is not None:
            self._progress.update(self._task, description=text, total=None)

    def update(self, fraction: float, text: str) -> None:
        """Shows how far the job is."""
        if self._progress is not None:
            self._progress.update(self._task, description=text, total=1.0, completed=fraction)


def progress_bar(arguments: argparse.Namespace) -> _Bar:
    """A progress bar if stderr is a terminal and no JSON is wanted."""
    return _Bar(sys.stderr.isatty() and not arguments.json)


def open_cluster(arguments: argparse.Namespace, bar: _Bar) -> Any:
    """The cluster of --cluster, or three local workers."""
    from tfe_bench.benchmarks import realised

    check_network_options(arguments)
    if not 1 <= arguments.repeat <= 1000:
        raise UsageError(f"--repeat is 1 to 1000. Received: {arguments.repeat}.")
    if arguments.record is not None:
        _check_record_path(arguments.record)
    cluster = start_cluster(arguments, bar)
    try:
        if cluster.profile.shaped:
            bar.say("measuring the links")
        cluster.realised, cluster.emulation = realised.verify(cluster)
        bar.say("starting the job")
    except BaseException:
        cluster.close()
        raise
    return cluster


def start_cluster(arguments: argparse.Namespace, bar: _Bar) -> Any:
    """The same without a look at its links."""
    from tfe_bench.cluster.launch import Cluster, LocalCluster

    if arguments.cluster is None:
        cluster = LocalCluster(profile=arguments.profile, emulate=arguments.emulate)
        if cluster.fallback is not None:
            print(
                f"tfe_bench: {cluster.fallback} Delay and rate are imposed in the workers' "
                "channel instead (--emulate channel).",
                file=sys.stderr,
            )
        return cluster
    bar.say("connecting to the workers")
    return Cluster(arguments.cluster, arguments.client, profile=arguments.profile)


def _check_record_path(path: Path) -> None:
    """Refuses before a long run a file that could not be appended to after it."""
    target = path if path.exists() else path.parent
    wanted = os.W_OK if path.exists() else os.W_OK | os.X_OK
    if path.is_dir() or not path.parent.is_dir() or not os.access(target, wanted):
        raise DataError(
            f"The record cannot be written to {str(path)!r}. Received: a folder, a missing or "
            "read-only folder, or a read-only file. Choose another --record."
        )


def total_rounds(measured: list[dict[str, Any]]) -> tuple[int, int]:
    """(cold, run-ahead) rounds of a run: each graph call lasts as long as at its slowest party."""
    steps = list(zip(*(m["rounds"] for m in measured), strict=True))
    return (
        sum(max(s[0] for s in step) for step in steps),
        sum(max(s[1] for s in step) for step in steps),
    )


def report(
    workload: str,
    arguments: argparse.Namespace,
    cluster: Any,
    result: JobResult,
    parameters: Mapping[str, Any],
    correct: bool,
    max_error: float,
    fractional_bits: int,
    ring: int | None = None,
) -> None:
    """Makes the record of a run, and prints and appends it; `ring` if not the cluster's."""
    from rich.console import Console

    from tfe_bench.benchmarks import records, table

    measured = result.measured
    # A run is over when the last of the three is.
    times = [max(turn) for turn in zip(*(m["seconds"] for m in measured), strict=True)]
    cold, ahead = total_rounds(measured)
    record = records.Record(
        workload=workload,
        parameters=dict(parameters),
        repeats=len(times),
        seconds=records.Seconds.of(times),
        build_seconds=max(m["build_seconds"] for m in measured),
        start_seconds=cluster.start_seconds,
        share_seconds=result.share_seconds,
        bytes_sent=tuple(sum(m["payload"]) for m in measured),
        frame_bytes=tuple(sum(m["frames"]) for m in measured),
        rounds=cold,
        rounds_ahead=ahead,
        peak_memory=tuple(m["peak_memory"] for m in measured),
        idle_memory=tuple(m["idle_memory"] for m in measured),
        correct=correct,
        max_error=max_error,
        ring=ring or cluster.client.config.ring,
        fractional_bits=fractional_bits,
        protocol=str(measured[0]["variant"]),
        profile=arguments.profile,
        profile_emulation=cluster.emulation,
        links=cluster.realised.as_json() if cluster.realised else None,
        tls=cluster.client.config.tls,
        cluster=cluster.name,
    )
    if arguments.record:
        records.append(arguments.record, record)
    if arguments.json:
        print(record.to_json())
    else:
        table.render(record, Console())
