"""`python -m tfe_bench ops`: all operations of the catalogue in one table."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tfe_bench.cli import common, job_record, operation
from tfe_bench.errors import UsageError, check_range

if TYPE_CHECKING:
    from tfe_bench.benchmarks.operations import Operation
    from tfe_bench.benchmarks.overview import OperationLine

_QUICK = 0.02
_LARGEST_SCALE = 16


def _add_ops_options(p: argparse.ArgumentParser) -> None:
    common.add_option(p, "--only NAME,NAME", "names of the operations to run (default: all)")
    size = p.add_mutually_exclusive_group()
    common.add_option(
        size,
        "--scale S",
        "factor of the number of elements, up to 16 (default: 1)",
        type=float,
        default=1.0,
    )
    common.add_option(size, "--quick", f"use small sizes, as with --scale {_QUICK}")
    p.add_argument("--seed", type=int, default=1, help="seed of the generated values (default: 1)")
    common.add_run_options(p, repeat=3)


def run_ops(arguments: argparse.Namespace) -> int:
    """Run every operation once and print one table.

    Runs the operations of the catalogue one after the other on the same three workers, compares
    each result with float64 and prints time, bytes, rounds and error.
    """
    from rich.console import Console

    from tfe_bench.benchmarks import overview, trace_file

    chosen = _choose_operations(arguments.only)
    scale = _QUICK if arguments.quick else arguments.scale
    if not 0 < scale <= _LARGEST_SCALE:  # also rejects NaN
        raise UsageError(
            f"Expected more than 0 and at most {_LARGEST_SCALE} in --scale. Received: {scale}.",
            code="number-out-of-range",
            operation="--scale",
            received=scale,
        )
    check_range("--seed", arguments.seed, 0)
    lines: list[OperationLine] = []
    traces: list[tuple[str, list[dict[str, Any]]]] = []
    try:
        with (
            common.command_progress_bar(arguments) as bar,
            common.open_cluster(arguments, bar) as cluster,
        ):
            for i, entry in enumerate(chosen):

                def update_progress(
                    fraction: float, _: str, i: int = i, name: str = entry.name
                ) -> None:
                    bar.update((i + fraction) / len(chosen), f"{name} ({i + 1} of {len(chosen)})")

                update_progress(0.0, "")
                lines.append(
                    _measure_operation(arguments, cluster, entry, scale, update_progress, traces)
                )
                job_record.keep_job_record(arguments, lines[-1].record)
        if arguments.trace is not None:
            trace_file.write_trace(arguments.trace, traces)
    finally:  # print what was measured before a failure
        if not arguments.json:
            overview.print_overview(lines, Console())
    return 0 if all(line.record.correct for line in lines) else 1


def _choose_operations(only: str | None) -> list[Operation]:
    """Return the operations of --only in this order, without repeats; or all operations."""
    from tfe_bench.benchmarks import operations

    if only is None:
        return operations.listed_operations()
    names = [name.strip() for name in only.split(",")]
    return [operations.find_operation(name) for name in dict.fromkeys(names)]


def _measure_operation(
    arguments: argparse.Namespace,
    cluster: Any,
    entry: Operation,
    scale: float,
    progress: Any,
    traces: list[tuple[str, list[dict[str, Any]]]],
) -> OperationLine:
    from tfe_bench.benchmarks import operations
    from tfe_bench.benchmarks.overview import OperationLine
    from tfe_bench.cluster import profiles

    size = entry.scaled_size(scale)
    requested_options = {"k": min(entry.options["k"], size[-1])} if "k" in entry.options else {}
    if "profile" in entry.options:
        requested_options["profile"] = profiles.get_profile(arguments.profile).plan
    size, options = operations.settle_options(entry, size, requested_options)
    inputs = operations.generate_inputs(entry, size, arguments.seed)
    work = operation.OperationWork(entry, options, inputs, f"seed {arguments.seed}", options)
    harness = common.timing_loop_parameters(arguments)
    result, verdict = operation.run_work(cluster, work, harness, progress)
    if arguments.trace is not None:
        traces.append((entry.name, [m["trace"] for m in result.measured]))
    outcome = operation.operation_work_outcome(work, verdict)
    record = job_record.make_record(entry.name, arguments, cluster, result, outcome)
    first = next(iter(inputs.rings.values()))
    counted = first if entry.per_input else result.outputs["result"]
    return OperationLine(record, counted.size, verdict.ulps)


COMMANDS = {"ops": (_add_ops_options, run_ops)}
