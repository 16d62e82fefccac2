"""`python -m tfe_bench doctor`: check this machine and a cluster of three hosts."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfe_bench.cli import common
from tfe_bench.errors import TfeBenchError, UsageError, check_range

if TYPE_CHECKING:
    from tfe_bench.cluster.checks import HealthCheck


def _add_doctor_options(p: argparse.ArgumentParser) -> None:
    common.add_option(
        p, "--cluster FILE", "cluster.toml of three hosts (default: check this machine only)"
    )
    common.add_option(p, "--worker FILE", "worker.toml of this operator, to check as its party")
    common.add_option(p, "--client NAME", "name of this client in the cluster file")
    common.add_option(p, "--offline", "check files only, before the workers run")
    common.add_option(
        p,
        "--megabytes M",
        "size of the transfer over each link in MB (default: 8)",
        type=int,
        default=8,
    )
    common.add_option(p, "--json", "print only JSON")


def run_doctor(arguments: argparse.Namespace) -> int:
    """Check this machine, the files, every worker and every link.

    Without options it checks this machine only. With --cluster it also queries every worker, as
    the client of --client or as the party of --worker; a client also measures the links between
    the workers. The exit code is 0 only if no check fails.
    """
    from tfe_bench.cluster import checks

    if arguments.cluster is None and (arguments.worker or arguments.client):
        raise UsageError(
            "--worker and --client require --cluster. Received: no --cluster.",
            code="option-requires-option",
            operation="--worker",
            expected="--cluster",
        )
    check_range("--megabytes", arguments.megabytes, 1, 256)
    if arguments.json:
        results = list(_iterate_health_checks(arguments))
        print(json.dumps([check.as_dict() for check in results]))
    else:
        results = _print_health_checks(_iterate_health_checks(arguments))
    return 1 if any(check.status == checks.FAIL for check in results) else 0


def _iterate_health_checks(arguments: argparse.Namespace) -> Iterator[HealthCheck]:
    from tfe_bench.cluster import checks
    from tfe_bench.cluster.config import ClusterConfig

    yield from checks.check_machine()
    yield checks.check_disk_space()
    if arguments.cluster is None:
        return
    try:
        config = ClusterConfig.load(arguments.cluster)
    except TfeBenchError as error:
        yield checks.failed_health_check("cluster file", error)
        return
    yield from checks.check_cluster_files(config, arguments.cluster)
    policy = None
    if arguments.worker is not None:
        policy, more = checks.check_worker_files(config, arguments.worker)
        yield from more
        if policy is not None:
            yield checks.check_worker_port(config, policy)
    if arguments.offline or (arguments.worker is not None and policy is None):
        return
    who, more = checks.open_cluster_caller(config, arguments.cluster, arguments.client, policy)
    yield from more
    well = True
    try:
        for check in checks.check_workers(config, who):
            well = well and check.status != checks.FAIL
            yield check
        # Only a client can submit the job that measures links, not the operator of a party.
        if who is not None and who.client is not None and well:
            yield from checks.check_worker_links(who, arguments.megabytes)
    finally:
        if who is not None:
            who.close()


def _print_health_checks(pending_checks: Iterator[HealthCheck]) -> list[HealthCheck]:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    styles = {"ok": "green", "warn": "yellow", "FAIL": "bold red"}
    finished_checks = list(pending_checks)
    table = Table("check", "", "found", "what to do")
    for check in finished_checks:
        status = Text(check.status, styles[check.status])
        table.add_row(check.name, status, Text(check.found), Text(check.remedy))
    console = Console()
    console.print(table)
    bad = sum(check.status == "FAIL" for check in finished_checks)
    warned = sum(check.status == "warn" for check in finished_checks)
    console.print(f"{len(finished_checks) - bad - warned} ok, {warned} warnings, {bad} failures")
    return finished_checks


COMMANDS = {"doctor": (_add_doctor_options, run_doctor)}
