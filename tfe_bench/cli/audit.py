"""`python -m tfe_bench audit verify|show`: the signed receipts that workers keep."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfe_bench.cli import common, listing
from tfe_bench.errors import UsageError

if TYPE_CHECKING:
    from tfe_bench.cluster.receipt_files import Chain
    from tfe_bench.cluster.receipts import Line


def _add_audit_options(parser: argparse.ArgumentParser) -> None:
    modes = parser.add_subparsers(dest="mode", required=True, metavar="verify|show")
    verify = modes.add_parser(
        "verify",
        help="find the first receipt that was removed, altered, reordered or backdated",
        description="Verifies signatures and order of receipts, of one worker alone or of two or "
        "three together. Only other workers' files show that lines at the end are absent. The "
        "exit code is 0 only if nothing is found.",
    )
    show = modes.add_parser(
        "show",
        help="list the jobs of receipts files",
        description="Lists the jobs of receipts files, without verifying them.",
    )
    for name, mode in modes.choices.items():
        mode.add_argument(
            "files",
            metavar="FILE",
            nargs="+",
            type=Path,
            help="receipts file, or a worker's folder of them",
        )
        mode.epilog = listing.format_command_examples(f"audit {name}")
    common.add_option(
        verify,
        "--cluster FILE",
        "cluster.toml whose certificates the last keys must fit (default: the files' own keys)",
    )
    common.add_option(show, "--client NAME", "only jobs of this client")
    common.add_option(show, "--table NAME", "only jobs that used this table, model or other item")
    common.add_option(show, "--day DAY", "only jobs that ended on this day in UTC: YYYY-MM-DD")
    for mode in (verify, show):
        common.add_option(mode, "--json", "print only JSON")


def run_audit(arguments: argparse.Namespace) -> int:
    """Verify or list the signed receipts of jobs.

    Each worker signs a line for each job and keeps it with the signatures of the two others, in
    the folder `receipts` of its worker.toml.

    Raises:
        SecurityError: naming the first line that was removed, altered, reordered or backdated.
        DataError: a file cannot be read.
        UsageError: an option is malformed.
    """
    files = _list_files(arguments.files)
    if arguments.mode == "verify":
        return _verify_files(arguments, files)
    return _show_jobs(arguments, files)


def _list_files(paths: list[Path]) -> list[Path]:
    """Return the files of a command line, with a folder's files in its place."""
    from tfe_bench.cluster.worker.receipt_file import list_receipt_files

    files: list[Path] = []
    for path in paths:
        found = list_receipt_files(path) if path.is_dir() else [path]
        if not found:
            raise UsageError(
                f"Expected a receipts file, or a folder of them, in FILE. Received: {path}, a "
                "folder without one.",
                code="file-not-found",
                operation="FILE",
                received=str(path),
            )
        files += found
    if len({file.resolve() for file in files}) != len(files):
        raise UsageError(
            "Expected different files in FILE. Received: one of them twice.",
            code="duplicate-name",
            operation="FILE",
        )
    return files


def _verify_files(arguments: argparse.Namespace, files: list[Path]) -> int:
    from tfe_bench.cluster.config import ClusterConfig
    from tfe_bench.cluster.receipt_files import verify_receipt_files

    config = None if arguments.cluster is None else ClusterConfig.load(arguments.cluster)
    chains = verify_receipt_files(files, config)
    if arguments.json:
        print(json.dumps([_describe_chain(chain) for chain in chains]))
        return 0
    for chain in chains:
        _print_chain(chain)
    if len(chains) < 3:
        print(
            "note: lines that were removed at the end are found only with the files of all three "
            "workers"
        )
    return 0


def _describe_chain(chain: Chain) -> dict[str, Any]:
    return {
        "party": chain.party,
        "lines": len(chain.places),
        "jobs": dict(sorted(chain.ends.items())),
        "from": chain.first_at,
        "to": chain.last_at,
        "recorded": dict(sorted(chain.codes.items())),
        "notes": chain.notes,
    }


def _print_chain(chain: Chain) -> None:
    from tfe_bench.cluster.receipt_files import format_receipt_time

    ends = ", ".join(f"{count} {end}" for end, count in sorted(chain.ends.items()))
    span = f"{format_receipt_time(chain.first_at)} to {format_receipt_time(chain.last_at)}"
    print(f"party {chain.party}: {len(chain.places)} lines are intact, {span}")
    print(f"  jobs: {ends or 'none'}")
    for note in chain.notes:
        print(f"  note: {note}")
    for code, count in sorted(chain.codes.items()):
        print(f"  recorded of the other workers: {count} {code}")


def _show_jobs(arguments: argparse.Namespace, files: list[Path]) -> int:
    from tfe_bench.cluster.receipt_files import select_receipts

    day = arguments.day
    if day is not None:
        try:
            day = datetime.date.fromisoformat(day).isoformat()
        except ValueError:
            raise UsageError(
                f"Expected a day as YYYY-MM-DD in --day. Received: {day!r}.",
                code="malformed-option",
                operation="--day",
                received=day,
                expected="YYYY-MM-DD",
            ) from None
    count = 0
    for line in select_receipts(files, arguments.client, arguments.table, day):
        count += 1
        if arguments.json:
            print(json.dumps({"party": line.seal.party, "at": line.seal.at, **line.body}))
        else:
            _print_job(line)
    if not count and not arguments.json:
        print("no job", file=sys.stderr)
    return 0


def _print_job(line: Line) -> None:
    from tfe_bench.cluster.receipt_files import format_receipt_time

    facts, end = line.body["facts"], line.body["end"]
    seconds = (line.seal.at - line.body["began"]) / 1000
    _print_text(
        f"{format_receipt_time(line.seal.at)}  party {line.seal.party}  job {facts['job'][:12]}  "
        f"{facts['program']}, client {facts['client']}: {end}, {seconds:.1f} s"
    )
    for row in facts.get("stored", ()):
        _print_text(f"    used {' '.join(row[:2])}{_format_rights(row[2:])}")
    for name, rho in facts.get("charged", {}).items():
        _print_text(f"    charged rho {rho} of {name}")
    for row in facts.get("opened", ()):
        _print_text(f"    opened {row[0]} ({row[1]:,} of them, {row[2]:,} bits)")


def _print_text(text: str) -> None:
    """Print a text of an unverified file without control characters."""
    print("".join(c if c.isprintable() else "?" for c in text))


def _format_rights(row: list[str]) -> str:
    if len(row) < 3:
        return ""
    owner, deployment, right, *columns = row
    return f" of {owner} ({', '.join(filter(None, [deployment, right, *columns]))})"


COMMANDS = {"audit": (_add_audit_options, run_audit)}
