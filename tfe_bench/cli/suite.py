"""`python -m tfe_bench suite`: many measurements in one folder; a rerun resumes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfe_bench.cli import common
from tfe_bench.errors import (
    ConfigError,
    DataError,
    OpsMissing,
    SecurityError,
    TfeBenchError,
    UsageError,
    check_range,
)

if TYPE_CHECKING:
    from tfe_bench.benchmarks.records import Record
    from tfe_bench.benchmarks.suite import SuiteTask

RECORDS = "records.jsonl"
# The published table's networks.
_USUAL = {"paper": "lan,wan"}
# Errors that would also occur in every other row.
_FINAL = (UsageError, ConfigError, SecurityError, OpsMissing)


def _add_suite_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "suite",
        metavar="SUITE",
        help="suite: paper (the published table), ops, tables, models or cores (run time by "
        "number of processor cores)",
    )
    common.add_option(
        p,
        "--profiles P,P",
        "network profiles (default: lan,wan for paper, else local, also with --cluster)",
    )
    common.add_option(
        p, "--output DIR", "folder of the records (default: suite-SUITE)", "--out", dest="out"
    )
    common.add_option(
        p, "--only NAME,NAME", "names of the rows to run, such as sort,max (default: all)"
    )
    common.add_option(p, "--quick", "use small sizes")
    common.add_option(p, "--repeat R", "number of timed runs (default: 3)", type=int, default=3)
    common.add_option(p, "--data-dir FOLDER", "folder of the four IDX files of MNIST, for training")
    common.add_cluster_options(p, "cluster.toml of three hosts to run on")
    common.add_option(p, "--json", "print only the records as JSON, one per line")


def run_suite(arguments: argparse.Namespace) -> int:
    """Run the rows of the published table, or all operations, and store the records.

    Runs the rows of a suite one after the other and appends one record for each row and profile
    to DIR/records.jsonl. Rows with a record of the same version are not run again: after an
    interruption, the same command continues.
    """
    from tfe_bench.benchmarks import suite

    check_range("--repeat", arguments.repeat, 1, 1000)
    # Three hosts have their own network.
    usual = "local" if arguments.cluster else _USUAL.get(arguments.suite, "local")
    tasks = [
        suite.SuiteTask(row, profile)
        for profile in _parse_suite_profiles(arguments.profiles or usual)
        for row in suite.suite_rows(arguments.suite, arguments.quick, arguments.only)
        if row.profiles is None or profile in row.profiles
    ]
    runner = _SuiteRunner(arguments, arguments.out or Path(f"suite-{arguments.suite}"), tasks)
    runner.leave_out_without_data()
    try:
        with common.command_progress_bar(arguments) as bar:
            runner.run_tasks(bar)
    except KeyboardInterrupt:
        print("tfe_bench: the same command goes on where this one stopped", file=sys.stderr)
        raise
    finally:
        runner.print_results()
    return runner.exit_code


def _parse_suite_profiles(text: str) -> list[str]:
    """Return the profiles of --profiles, without repeats."""
    from tfe_bench.cluster import profiles

    names = dict.fromkeys(name.strip() for name in text.split(","))
    return [profiles.get_profile(name).name for name in names]


class _BatchProgress:
    """Share of one command in the suite's progress bar."""

    def __init__(self, bar: Any, done: int, batch: Sequence[SuiteTask], total: int) -> None:
        self._bar, self._done, self._batch, self._total = bar, done, batch, total
        self.show_text("")

    def show_text(self, text: str) -> None:
        """Show the current row."""
        self.update(0.0, text)

    def update(self, fraction: float, _: str) -> None:
        """Show the progress of the whole suite."""
        here = self._batch[min(int(fraction * len(self._batch)), len(self._batch) - 1)]
        done = self._done + fraction * len(self._batch)
        self._bar.update(done / self._total, f"{here.label} ({int(done) + 1} of {self._total})")


class _SuiteRunner:
    """The tasks of one suite and the file of their records, its only state."""

    def __init__(self, arguments: argparse.Namespace, folder: Path, tasks: list[SuiteTask]) -> None:
        self._arguments, self._tasks = arguments, tasks
        self._cluster = "local" if arguments.cluster is None else arguments.cluster.name
        self._failures: dict[SuiteTask, TfeBenchError] = {}
        self._left_out: Mapping[SuiteTask, TfeBenchError] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(
                f"Cannot write to the folder {str(folder)!r}. Received: {error.strerror}. Choose "
                "another --output.",
                code="file-not-writable",
                operation="--output",
                received=folder,
            ) from error
        self._file = folder / RECORDS
        self._before = {r.to_json() for r in self._read_own_records()}

    def leave_out_without_data(self) -> None:
        """Skip rows whose data is missing; report them before any row runs.

        Raises:
            DataError: no row remains, or the folder of --data-dir lacks a file.
        """
        from tfe_bench.models.datasets import mnist

        done = self._find_done_tasks()
        wanting = [t for t in self._tasks if t.row.pictures and t not in done]
        if not wanting:
            return
        try:
            mnist.check_there(self._arguments.data_dir)
        except DataError as error:
            remaining_tasks = [task for task in self._tasks if task not in wanting]
            names = ",".join(dict.fromkeys(task.row.name for task in remaining_tasks))
            if not remaining_tasks or self._arguments.data_dir is not None:
                raise
            print(
                f"tfe_bench: {len(wanting)} of {len(self._tasks)} rows are left out: {error} "
                f"Without them: --only {names}.",
                file=sys.stderr,
            )
            self._tasks, self._left_out = remaining_tasks, dict.fromkeys(wanting, error)

    def _read_own_records(self) -> list[Record]:
        from tfe_bench.benchmarks.records import Record
        from tfe_bench.benchmarks.report import reading

        if not self._file.exists():
            return []
        return [r for r in reading.read_measurement_lines(self._file)[0] if isinstance(r, Record)]

    def _find_done_tasks(self) -> dict[SuiteTask, Record]:
        from tfe_bench.benchmarks import suite

        measured = self._read_own_records()
        records = {task: suite.find_record(task, self._cluster, measured) for task in self._tasks}
        return {task: record for task, record in records.items() if record is not None}

    def run_tasks(self, bar: Any) -> None:
        """Run all tasks without a record; continue after a failure that concerns one row."""
        from tfe_bench.benchmarks import suite

        attempted: set[SuiteTask] = set()
        while True:
            finished = self._find_done_tasks()
            pending = [t for t in self._tasks if t not in finished and t not in attempted]
            if not pending:
                return
            batch = suite.group_tasks(pending)[0]
            done = len(self._tasks) - len(pending)
            try:
                folder = self._arguments.data_dir
                line = suite.command_words(
                    batch, self._arguments.repeat, None if folder is None else str(folder)
                )
                self._run_command(line, _BatchProgress(bar, done, batch, len(self._tasks)))
                attempted.update(batch)  # a row with a wrong result would run forever
            except _FINAL:
                raise
            except TfeBenchError as error:
                now = self._find_done_tasks()
                failed = next((task for task in batch if task not in now), batch[-1])
                # A command runs its rows in order: the rest of the batch comes next.
                attempted.update(batch[: batch.index(failed) + 1])
                self._failures[failed] = error

    def _run_command(self, words: list[str], part: _BatchProgress) -> None:
        for option in ("cluster", "client"):
            if getattr(self._arguments, option) is not None:
                words = [*words, f"--{option}", str(getattr(self._arguments, option))]
        common.run_nested_command(self._arguments, words, self._file, part)

    @property
    def exit_code(self) -> int:
        """The exit code: 0, the code of the first failure, or 1 for a wrong or missing result."""
        if self._failures:
            return next(iter(self._failures.values())).exit_code
        if self._left_out:
            return next(iter(self._left_out.values())).exit_code
        return 0 if len(self._find_done_tasks()) == len(self._tasks) else 1

    def print_results(self) -> None:
        """Print the table or the records."""
        from rich.console import Console

        from tfe_bench.benchmarks import suite_table

        records = self._find_done_tasks()
        if self._arguments.json:
            for measured in records.values():
                print(measured.to_json())
            return
        lines = []
        for task in self._tasks:
            record, failure = records.get(task), self._failures.get(task)
            if record is None:
                state = "not run" if failure is None else "failed"
                if failure is None and any(
                    task.row.matches_record(earlier, task.profile, self._cluster)
                    for earlier in self._read_own_records()
                ):
                    state = "WRONG"
            else:
                state = "kept" if record.to_json() in self._before else "measured"
            lines.append(suite_table.SuiteLine(task.row.label, task.profile, record, state))
        lines += [
            suite_table.SuiteLine(task.row.label, task.profile, None, "no data")
            for task in self._left_out
        ]
        failures = [f"{task.label}: {error}" for task, error in self._failures.items()]
        suite_table.print_suite(lines, failures, self._file, Console())


COMMANDS = {"suite": (_add_suite_options, run_suite)}
