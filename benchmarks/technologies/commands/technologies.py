"""`python -m tfe_bench technologies`: compare technologies for private computing, and advise."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tfe_bench.benchmarks.technologies.commands import options
from tfe_bench.benchmarks.technologies.measurement import Measurement, select_measurements
from tfe_bench.cli import common
from tfe_bench.cli.command import Command
from tfe_bench.cli.progress import ProgressBar
from tfe_bench.errors import UsageError, check_known

if TYPE_CHECKING:
    from tfe_bench.benchmarks.technologies.compare.tasks import ComparisonEffort

# Short headings of columns.
_HEADS = {
    "plaintext": "plain",
    "secret-sharing": "shares",
    "functional": "functional",
    "homomorphic": "homomorphic",
    "storage": "storage",
}
_MARKED = ("latency_seconds", "slowdown")


def _add_technologies_options(p: argparse.ArgumentParser) -> None:
    common.add_option(p, "--quick", "use smaller sizes and parts of trainings")
    common.add_option(p, "--job J,J", "jobs J1 to J7 (default: all)")
    common.add_option(
        p,
        "--only NAME,NAME",
        "technologies: secret-sharing, functional, homomorphic, storage; plaintext is always "
        "measured (default: all)",
    )
    common.add_option(
        p, "--data-dir FOLDER", "folder of the four IDX files of MNIST, for J3, J5 and J7"
    )
    advice = p.add_argument_group("advice for one job")
    common.add_option(
        advice, "--network NAME", "network to advise for: local, lan or wan (default: lan)"
    )
    common.add_option(
        advice,
        "--trust WHOM",
        "trust assumption to advise for: one-server, three-servers or key-authority",
    )
    common.add_option(
        advice, "--records FILE", "file with figures (default: measure the job with small sizes)"
    )
    options.add_technology_options(p)


def run_technologies(arguments: argparse.Namespace) -> int:
    """Compare technologies for private computing, and advise.

    Measures seven jobs in plaintext, on shares of three workers, by functional encryption, by
    homomorphic encryption, and projected to a storage device. Prints one table of time, bytes,
    rounds and leakage. With --trust, recommends a technology for a job, with reasons.
    """
    from tfe_bench.benchmarks.technologies.compare import advisor, cells, tasks

    _check_technology_choices(arguments)
    jobs = None if arguments.job is None else _split_technology_names(arguments.job)
    only = (
        [*cells.TECHNOLOGIES] if arguments.only is None else _split_technology_names(arguments.only)
    )
    for name in only:
        check_known("technology", name, cells.TECHNOLOGIES)
    effort = tasks.QUICK if arguments.quick or arguments.trust else tasks.WHOLE
    every = tasks.list_tasks(effort, jobs)
    if arguments.trust is not None:
        assert jobs is not None, "checked"
        check_known("trust", arguments.trust, advisor.TRUST)
        check_known("network", arguments.network or "lan", advisor.WHERE)
        return _print_technology_advice(arguments, jobs[0], only)
    effort = tasks.with_repeat(effort, arguments.repeat)
    measured: list[Measurement] = []
    code = 0
    try:
        for each in _measure_technology_cells(arguments, effort, every, only):
            measured.append(each)
            code = max(code, options.keep_technology_measurements(arguments, [each]))
    finally:  # print what was measured before a failure
        if measured and not arguments.json:
            _print_technology_comparison(measured)
            for note in ("", *_technology_comparison_notes(measured)):
                print(note)
    return code


def _check_technology_choices(arguments: argparse.Namespace) -> None:
    options.check_technology_options(arguments)
    common.check_dependent_options(arguments, "trust", "network", "records")
    if arguments.trust is not None and (arguments.job is None or "," in arguments.job):
        raise UsageError(
            "--trust goes with --job and one job, such as --job J3. Received: no job or several.",
            code="option-requires-option",
            operation="--trust",
            expected="--job",
        )


def _split_technology_names(text: str) -> list[str]:
    return [*dict.fromkeys(name.strip() for name in text.split(","))]


def _measure_technology_cells(
    arguments: argparse.Namespace,
    effort: ComparisonEffort,
    every: Sequence[Any],
    only: Sequence[str],
) -> Iterator[Measurement]:
    from tfe_bench.benchmarks.technologies.compare import makers, table, tasks

    common.quiet_tensorflow()
    inputs = tasks.ComparisonInputs(arguments.data_dir)
    with common.command_progress_bar(arguments) as bar, contextlib.ExitStack() as stack:
        if tasks.need_mnist_pictures([task.job for task in every]):
            bar.show_text("reading MNIST")
            _ = inputs.pictures  # report missing files before anything runs
        technologies = makers.all_of(
            effort, inputs, lambda: stack.enter_context(_start_workers(bar))
        )
        chosen = {
            name: technologies[name] for name in technologies if name == "plaintext" or name in only
        }
        yield from table.measure_tasks(chosen, every, bar.update)


@contextlib.contextmanager
def _start_workers(bar: ProgressBar) -> Iterator[Any]:
    """Start three workers on this machine."""
    from tfe_bench.cluster.launch import LocalCluster

    bar.show_text("starting the workers")
    with LocalCluster() as cluster:
        yield cluster


def _print_technology_comparison(measured: Sequence[Measurement]) -> None:
    """Print the table in parts that fit the terminal: rows of jobs, columns of technologies."""
    from tfe_bench.benchmarks.table import (
        align_columns,
        format_three_digits,
        human_bytes,
        human_seconds,
    )
    from tfe_bench.benchmarks.technologies.compare import table

    names = [name for name in _HEADS if any(m.technology == name for m in measured)]
    cells = {(m.job, table.technology_cell_variant(m), m.technology): m for m in measured}
    tasks = dict.fromkeys((m.job, table.technology_cell_variant(m)) for m in measured)
    parts = (
        ("Time here", "latency_seconds", human_seconds),
        ("Time on a LAN, modeled", "lan_seconds", human_seconds),
        ("Time on a WAN, modeled", "wan_seconds", human_seconds),
        ("Bytes that all send", "total_bytes", human_bytes),
        ("Messages one after the other", "rounds", "{:,.0f}".format),
        ("Times as long as in plaintext", "slowdown", format_three_digits),
    )
    for title, figure, show in parts:
        lines = [["", *(_HEADS[name] for name in names)]]
        for job, variant in tasks:
            line = [f"{job} {variant}".strip().replace("batches of", "batch").replace(" of ", " ")]
            for name in names:
                m = cells.get((job, variant, name))
                value = None if m is None else table.read_technology_figure(m, figure)
                text = "-" if value is None else show(value)
                marked = m is not None and figure in _MARKED and figure in m.modeled
                line.append(f"~{text}" if marked else text)
            lines.append(line)
        print(title)
        print("\n".join(align_columns(lines, range(1, len(names) + 1))))
        print()
    learned = ["Others learn", *(_worst_technology_leakage(measured, name) for name in names)]
    print("\n".join(align_columns([["", *(_HEADS[name] for name in names)], learned], ())))


def _worst_technology_leakage(measured: Sequence[Measurement], name: str) -> str:
    """Return a technology's leakage in the worst of its cells."""
    from tfe_bench.benchmarks.technologies.compare.cells import LEAKAGES

    leakages = {str(m.figures.get("leakage")) for m in measured if m.technology == name}
    return next((each for each in reversed(LEAKAGES) if each in leakages), "-")


def _technology_comparison_notes(measured: Sequence[Measurement]) -> list[str]:
    """Return the notes that do not fit into the table."""
    notes = [
        "Networks are modeled: computing, a delay for each message on the critical path, bytes "
        "over the rate. ~ is an epoch of which a part was measured, or a projected device."
    ]
    reasons: dict[tuple[str, str], list[str]] = {}
    for m in measured:
        if (reason := m.figures.get("unsupported")) is not None:
            reasons.setdefault((m.technology, str(reason)), []).append(m.job)
        if m.correct is False:
            notes.append(f"{m.job} by {m.technology}: the result is WRONG.")
    from tfe_bench.benchmarks.technologies.compare.tasks import JOBS

    known = dict.fromkeys(m.job for m in measured)
    notes.append("; ".join(f"{job}: {JOBS[job]}" for job in known) + ".")
    for (name, reason), jobs in reasons.items():
        notes.append(f"{name}, {', '.join(dict.fromkeys(jobs))}: {reason}")
    return notes


def _print_technology_advice(arguments: argparse.Namespace, job: str, only: Sequence[str]) -> int:
    import json

    from tfe_bench.benchmarks.technologies.compare import advisor, tasks

    network = arguments.network or "lan"
    if arguments.records is not None:
        from tfe_bench.benchmarks.report import reading

        measured = select_measurements(reading.read_report_input([arguments.records]).others)
    else:
        measured = [
            *_measure_technology_cells(
                arguments, tasks.QUICK, tasks.list_tasks(tasks.QUICK, [job]), only
            )
        ]
    recommendations = advisor.advise_technologies(measured, job, network, arguments.trust)
    if arguments.json:
        for advice in recommendations:
            best = None if advice.best is None else advice.best.technology
            summary = {"job": job, "variant": advice.variant, "take": best, "why": advice.why}
            print(json.dumps(summary))
        return 0
    print(f"{job}, {tasks.JOBS[job]}, on {network}, trusting {advisor.TRUST[arguments.trust]}:")
    for advice in recommendations:
        choice = "nothing that was measured" if advice.best is None else advice.best.technology
        print(f"{advice.variant or job}: take {choice}.")
        for line in advice.why:
            print(f"  {line}")
    return 0


COMMAND = Command(
    _add_technologies_options,
    run_technologies,
    examples=("technologies --quick --job J1",),
    heading="other technologies",
)
