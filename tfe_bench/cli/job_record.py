"""Records of jobs: how commands create, print and keep them."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tfe_bench.cli.common import command_progress_bar, open_cluster

if TYPE_CHECKING:
    from tfe_bench.benchmarks.records import Record
    from tfe_bench.cluster.requests import JobResult, PrivateInput
    from tfe_bench.protocols.session.message_graph import MessageGraph

_OPS = 12


@dataclass(frozen=True)
class JobOutcome:
    """Facts of a record about a job's work and its result.

    Attributes:
        parameters: sizes and public options, no data.
        correct: whether the result agrees with the plaintext; None if it is not checked.
        max_error: the largest absolute error.
        fractional_bits: the fractional bits of the values.
        ring: bits of a ring element; None for the cluster's ring.
        agreement: agreement of a model's outputs with the plaintext outputs.
        error: the largest error, in the unit of its tolerance.
        written: the file with the result.
        figures: whether to print all figures, not one line.
    """

    parameters: Mapping[str, Any]
    correct: bool | None
    max_error: float | None
    fractional_bits: int
    ring: int | None = None
    agreement: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    written: Path | None = None
    figures: bool = True


def run_and_report(
    arguments: argparse.Namespace,
    workload: str,
    job: tuple[str, Mapping[str, Any], Mapping[str, PrivateInput]],
    judge: Callable[[JobResult], JobOutcome],
) -> int:
    """Run a job on the workers, judge its result, and report its cost.

    Args:
        workload: the name of the workload in the record.
        job: program, parameters and inputs.
        judge: compares the result with the plaintext.

    Returns:
        The exit code.
    """
    with command_progress_bar(arguments) as bar, open_cluster(arguments, bar) as cluster:
        result = cluster.run(*job, bar.update)
    return report_job_result(workload, arguments, cluster, result, judge(result))


def report_job_result(
    workload: str,
    arguments: argparse.Namespace,
    cluster: Any,
    result: JobResult,
    outcome: JobOutcome,
    messages: MessageGraph | None = None,
) -> int:
    """Create, print and append the record of a run and write its trace; return the exit code."""
    from rich.console import Console

    from tfe_bench.benchmarks import table

    record = make_record(workload, arguments, cluster, result, outcome, messages)
    write_job_trace(arguments, workload, result)
    keep_job_record(arguments, record)
    if not arguments.json:
        if outcome.written is not None:
            print(f"written to {outcome.written}")
        if outcome.figures:
            table.print_record(record, Console())
        else:
            print(table.brief_line(record))
    return 0 if outcome.correct else 1


def write_job_trace(arguments: argparse.Namespace, workload: str, result: JobResult) -> None:
    """Write the file of --trace, if the option is given."""
    if arguments.trace is not None:
        from tfe_bench.benchmarks import trace_file

        trace_file.write_trace(arguments.trace, [(workload, [m["trace"] for m in result.measured])])


def keep_job_record(arguments: argparse.Namespace, record: Record) -> None:
    """Append the record to the file of --record, and print it if --json is given."""
    from tfe_bench.benchmarks import records

    if arguments.record:
        records.append_record(arguments.record, record)
    if arguments.json:
        print(record.to_json(), flush=True)


_T = TypeVar("_T")


def _per_party_tuple(values: Iterable[_T]) -> tuple[_T, _T, _T]:
    of_0, of_1, of_2 = values
    return of_0, of_1, of_2


def make_record(
    workload: str,
    arguments: argparse.Namespace,
    cluster: Any,
    result: JobResult,
    outcome: JobOutcome,
    messages: MessageGraph | None = None,
) -> Record:
    """Return the record of a run.

    Args:
        messages: the messages of the run; None: those of the submitted job.
    """
    from tfe_bench.benchmarks import prediction, records
    from tfe_bench.cluster.counted_jobs import count_job_messages

    if messages is None and result.submitted is not None:
        messages = count_job_messages(result.submitted)

    measured = result.measured
    times = prediction.measured_run_seconds(measured)
    with_dealing, online = prediction.measured_run_rounds(measured)
    build = max(m["build_seconds"] for m in measured)
    if outcome.parameters.get("warm_up") == 0:  # the only run also built the graphs: subtract it
        times = [max(0.0, *(m["seconds"][0] - m["build_seconds"] for m in measured))]
    seconds = records.Seconds.from_times(times)
    cores = getattr(arguments, "cores", None)
    return records.Record(
        workload=workload,
        parameters={**outcome.parameters, **({} if cores is None else {"cores": cores})},
        repeats=len(times),
        seconds=seconds,
        build_seconds=build,
        start_seconds=cluster.start_seconds,
        share_seconds=result.share_seconds,
        bytes_sent=_per_party_tuple(sum(m["payload"]) for m in measured),
        frame_bytes=_per_party_tuple(sum(m["frames"]) for m in measured),
        rounds=with_dealing,
        rounds_ahead=online,
        peak_memory=tuple(m["peak_memory"] for m in measured),
        idle_memory=tuple(m["idle_memory"] for m in measured),
        correct=outcome.correct,
        max_error=outcome.max_error,
        ring=outcome.ring or cluster.client.config.ring,
        fractional_bits=outcome.fractional_bits,
        protocol=str(measured[0]["variant"]),
        profile=arguments.profile,
        profile_emulation=cluster.emulation,
        links=cluster.realized.as_json() if cluster.realized else None,
        tls=cluster.client.config.tls,
        cluster=cluster.name,
        cpu_seconds=_per_party_tuple(statistics.median(m["cpu_seconds"]) for m in measured),
        messages=_per_party_tuple(sum(m["messages"]) for m in measured),
        bytes_by_link=tuple(tuple(m["payload"]) for m in measured),
        breakdown=tuple(_job_time_breakdown(m) for m in measured),
        prediction=prediction.predict_run_times(
            measured, arguments.profile, seconds.median, messages
        ),
        agreement=outcome.agreement,
        error=outcome.error,
        instruction_sets=_per_party_tuple(m["instruction_set"] for m in measured),
        opened=tuple(records.RecordedOpening(*astuple(opening)) for opening in result.opened),
    )


def _job_time_breakdown(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return a worker's time by activity; with a trace, also the ops that took longest."""
    ops = list(measured.get("trace", {}).get("op_seconds", {}).items())[:_OPS]
    return {**measured["breakdown"], "ops": dict(ops) or None}
