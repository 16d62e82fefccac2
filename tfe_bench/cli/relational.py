"""`python -m tfe_bench relational`: queries on generated private tables, and their cost."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfe_bench.cli import common, job_record
from tfe_bench.errors import UsageError, check_known, check_range

if TYPE_CHECKING:
    from tfe_bench.benchmarks.relational.workload import RelationalWorkload
    from tfe_bench.private_tables import Tables

_REPEAT = 3


def _add_relational_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("name", metavar="NAME", help="name of the query, or `list`")
    common.add_option(
        p,
        "--rows N",
        "number of rows of each table, for operators (default: by query)",
        type=common.parse_whole_number,
    )
    common.add_option(
        p, "--scale F", "scale factor, for TPC-H and ORQ (default: by query)", type=float
    )
    p.add_argument("--seed", type=int, default=1, help="seed of the generated tables (default: 1)")
    common.add_option(p, "--unchecked", "skip the comparison with DuckDB")
    common.add_run_options(p, repeat=_REPEAT)


def run_relational(arguments: argparse.Namespace) -> int:
    """Run a query of a suite on generated private tables.

    Generates tables, shares them among three workers, runs an SQL query, compares the answer with
    DuckDB's and prints the cost, the predicted cost and DuckDB's time. `relational list` lists the
    queries.
    """
    from tfe_bench.benchmarks.relational import WORKLOADS, truth, workload
    from tfe_bench.cluster.requests import JobResult
    from tfe_bench.private_tables import tables

    if arguments.name == "list":
        return _print_relational_workloads(WORKLOADS)
    check_known("question", arguments.name, WORKLOADS)
    check_range("--seed", arguments.seed, 0)
    common.quiet_tensorflow()
    question = WORKLOADS[arguments.name]
    size = _choose_workload_size(arguments, question)
    generated = question.make_tables(size, arguments.seed)
    arrow_tables = {name: workload.to_arrow(table) for name, table in generated.items()}
    expected = None if arguments.unchecked else truth.query_plaintext(question.sql, arrow_tables)
    with (
        common.command_progress_bar(arguments) as bar,
        common.open_cluster(arguments, bar) as cluster,
    ):
        private_tables = tables(cluster)
        started = time.perf_counter()
        try:
            for name, table in generated.items():
                bar.show_text(f"sharing {name}")
                private_tables.put(
                    name,
                    arrow_tables[name],
                    types=table.types,
                    unique=table.unique,
                    hashed_by=table.hashed_by,
                    links=table.links,
                )
            put = time.perf_counter() - started
            query = private_tables.sql(question.sql)
            result = query.run(bar.update, common.timing_loop_parameters(arguments))
        finally:
            _remove_generated_tables(private_tables, generated)
    predicted = query.price(arguments.profile)
    shown = {
        "question": question.name,
        "scale" if question.scaled else "rows": size,
        "tables": ", ".join(f"{name} {table.rows}" for name, table in generated.items()),
        "seed": arguments.seed,
        "answer": len(result),
        "put_seconds": round(put, 3),
        "predicted_bytes": predicted.sent_bytes,
        "predicted_seconds": round(predicted.seconds(), 3),
    }
    correct = None
    if expected is not None:
        rows, seconds = expected
        shown["duckdb_seconds"] = round(seconds, 4)
        correct = truth.results_agree(question.sql, result, rows)
    outcome = job_record.JobOutcome(shown, correct, None, 0)
    job = JobResult(measured=[dict(m) for m in result.measured], opened=tuple(result.opened))
    return job_record.report_job_result("relational", arguments, cluster, job, outcome)


def _choose_workload_size(arguments: argparse.Namespace, question: RelationalWorkload) -> float:
    option, other = ("scale", "rows") if question.scaled else ("rows", "scale")
    if getattr(arguments, other) is not None:
        raise UsageError(
            f"{question.name} takes --{option}. Received: --{other}.",
            code="option-not-applicable",
            operation=f"--{other}",
            expected=f"--{option}",
        )
    size = getattr(arguments, option)
    return question.sizes[0] if size is None else size


def _remove_generated_tables(private_tables: Tables, names: Mapping[str, Any]) -> None:
    """Remove the generated tables from hosts that keep running."""
    listed = private_tables.listed()
    for name in names:
        if name in listed:
            private_tables.remove(name)


def _print_relational_workloads(known: Mapping[str, RelationalWorkload]) -> int:
    from rich.console import Console
    from rich.table import Table

    shown = Table("name", "size", "question")
    for each in known.values():
        size = f"scale {each.sizes[0]:g}" if each.scaled else f"{each.sizes[0]:,} rows"
        shown.add_row(each.name, size, each.about)
    Console().print(shown)
    return 0


COMMANDS = {"relational": (_add_relational_options, run_relational)}
