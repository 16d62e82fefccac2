"""Objects stored at three workers (models, rows, tables): common options and lists."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfe_bench.cli import common
from tfe_bench.errors import UsageError

if TYPE_CHECKING:
    from tfe_bench.models.datasets.alignment import Alignment
    from tfe_bench.queries.client import Query


def add_service_options(p: argparse.ArgumentParser, noun: str) -> None:
    """Add the options that choose the hosts, or the folder of three local workers.

    Args:
        noun: the stored objects, in the plural.
    """
    common.add_cluster_options(p, "cluster.toml of three hosts")
    common.add_option(
        p,
        "--models FOLDER",
        f"folder of the {noun} of three local workers (default: ~/.local/share/tfe_bench/models)",
    )
    common.add_sealed_option(p)
    common.add_option(p, "--json", "print only JSON")


@contextmanager
def open_stored_object_service(arguments: argparse.Namespace, bar: Any) -> Iterator[Any]:
    """Open the hosts of --cluster, or three local workers that store their data in a folder.

    Raises:
        UsageError: --models is given with --cluster.
    """
    from tfe_bench.cluster.launch import Cluster, LocalCluster

    if arguments.cluster is None:
        common.check_dependent_options(arguments, "cluster", "client")
        bar.show_text("starting the workers")
        with LocalCluster(models=arguments.models or local_workers_folder()) as local:
            common.set_opening_rules(local, arguments)
            yield local
        return
    if arguments.models is not None:
        raise UsageError(
            "--models is for three local workers. Received: --cluster, whose operators choose "
            "their folders (models = ... in worker.toml). Remove --models.",
            code="conflicting-options",
            operation="--models",
            received="--cluster",
        )
    bar.show_text("connecting to the workers")
    with Cluster(arguments.cluster, arguments.client) as cluster:
        common.set_opening_rules(cluster, arguments)
        yield cluster


def local_workers_folder() -> Path:
    """Return the folder where three local workers store persistent data."""
    data = os.environ.get("XDG_DATA_HOME")
    base = Path(data) if data else Path.home() / ".local" / "share"
    return base / "tfe_bench" / "models"


def describe_permitted_clients(clients: Sequence[str]) -> str:
    """Describe the clients that may use a stored object."""
    return "every client" if "*" in clients else ", ".join(["its owner", *clients])


def add_client_option(p: argparse.ArgumentParser, usage: str) -> None:
    """Add the option that names clients.

    Args:
        usage: the permitted use, as a verb phrase.
    """
    common.add_option(
        p,
        "--for CLIENT",
        f"client that may {usage}, * for all; may be repeated",
        dest="allow",
        action="append",
        default=[],
    )


def add_confirm_options(p: argparse.ArgumentParser) -> None:
    """Add --explain and --yes, for commands that describe their work before they run it."""
    common.add_option(p, "--explain", "print the plan and its disclosures, without running it")
    common.add_option(p, "--yes", "run without asking for confirmation")


def is_job_confirmed(
    arguments: argparse.Namespace, bar: Any, job: Query | Alignment, header: Any
) -> bool:
    """Return True if the job may run: ask on a terminal; --explain only describes the job."""
    description = job.explain()
    if arguments.explain and arguments.json:
        opens = common.encode_opened_values(job.price().openings)
        print(json.dumps({"plan": header, "opens": opens, "text": description}))
    elif arguments.explain:
        print(description)
    if arguments.explain:
        return False
    unseen = arguments.yes or arguments.json or not (sys.stdin.isatty() and sys.stderr.isatty())
    return unseen or bool(bar.ask_question(description, "Run it? [y/N] "))


def unconfirmed_exit_code(arguments: argparse.Namespace) -> int:
    """Return the exit code of a job that was not run, by --explain or by the user's answer."""
    return 0 if arguments.explain else 130


def report_removed_object(arguments: argparse.Namespace) -> int:
    """Report the removal of the object of --remove; return the exit code."""
    summary = {"removed": arguments.remove}
    print(json.dumps(summary) if arguments.json else f"{arguments.remove} is removed")
    return 0


def common_stored_facts(stored: Any) -> dict[str, Any]:
    """Return the facts that lists of stored objects have in common."""
    return {
        "name": stored.name,
        "owner": stored.owner,
        "clients": None if stored.clients is None else list(stored.clients),
        "complete": stored.complete,
    }


def print_stored_objects(
    arguments: argparse.Namespace,
    facts: Sequence[Mapping[str, Any]],
    noun: str,
    columns: Mapping[str, Callable[[Mapping[str, Any]], str]],
) -> int:
    """Print the stored objects as a table or as JSON; return the exit code.

    Args:
        facts: `common_stored_facts` and further facts of each object.
        noun: the kind of the objects, in the singular.
        columns: the cells between owner and clients, by heading.
    """
    if arguments.json:
        print(json.dumps(facts))
        return 0
    if not facts:
        print(f"no {noun} that this client may use")
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "owner", *columns, "used by")
    for row in facts:
        name = row["name"] if row["complete"] else f"{row['name']} (not at all three workers)"
        clients = (
            "(its owner sees)"
            if row["clients"] is None
            else ", ".join(row["clients"]) or "its owner alone"
        )
        table.add_row(name, row["owner"], *(cell(row) for cell in columns.values()), clients)
    Console().print(table)
    return 0
