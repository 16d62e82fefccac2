"""`python -m tfe_bench compare`: compare two private vectors, or run tf-encrypted's programs."""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tfe_bench.cli import common, compare
from tfe_bench.cli.command import Command
from tfe_bench.errors import UsageError

if TYPE_CHECKING:
    from tfe_bench.benchmarks.tf_encrypted_programs.checkout import TestOutcome

_SYSTEM = "tf-encrypted"


def _add_programs_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "system",
        nargs="?",
        choices=(_SYSTEM,),
        help="run the tests and example programs of this system instead; requires --source",
    )
    common.add_option(p, "--source DIR", "source checkout of tf-encrypted")
    p.add_argument(
        "--only",
        nargs="*",
        default=[],
        help="parts of the names of the tests to run (default: all tests)",
    )
    common.add_option(
        p,
        "--test-seconds S",
        "time limit of each test in seconds (default: 120)",
        type=int,
        default=120,
    )
    p.add_argument(
        "--programs",
        nargs="*",
        metavar="PART",
        help="also run the example programs: all, or those with these parts in their names",
    )
    common.add_option(
        p,
        "--tf-encrypted-env DIR",
        "virtual environment of tf-encrypted, to run the programs there too",
    )
    compare.add_compare_options(p)


def run_compare(arguments: argparse.Namespace) -> int:
    """Compare two private vectors.

    Shares two vectors among three workers and compares them element by element. No worker sees the
    vectors or the result. Checks the result and prints the cost. Exact for all 64-bit integers and
    all fixed-point numbers.

    `compare tf-encrypted --source CHECKOUT` runs tf-encrypted's tests of ABY3 and of Keras from a
    source checkout, with tfe_bench.tf_encrypted in place of tf_encrypted.
    """
    if arguments.system == _SYSTEM:
        return _run_tf_encrypted_programs(arguments)
    if arguments.source is not None:
        raise UsageError(
            "--source requires the system tf-encrypted. Received: no system. "
            "Use compare tf-encrypted --source CHECKOUT.",
            code="option-not-applicable",
            operation="--source",
        )
    return compare.run_compare(arguments)


def _run_tf_encrypted_programs(arguments: argparse.Namespace) -> int:
    """Run the tests and example programs of tf-encrypted on tfe_bench."""
    from tfe_bench.benchmarks.tf_encrypted_programs import checkout

    if arguments.source is None:
        raise UsageError(
            "compare tf-encrypted requires --source CHECKOUT, a clone of tf-encrypted. "
            "Received: no --source.",
            code="missing-argument",
            operation="--source",
        )
    source = checkout.check_source(arguments.source)
    of_keras = any("keras" in str(file) for file in checkout.list_test_files(source))
    if of_keras and importlib.util.find_spec("tf_keras") is None:
        raise UsageError(
            "The tests require Keras 2. Received: tf_keras is not installed. "
            "Run pip install '.[tf-encrypted]' in the source tree of tfe_bench.",
            code="library-not-installed",
            operation="tf_keras",
        )
    programs = (
        [] if arguments.programs is None else checkout.select_example_programs(arguments.programs)
    )
    outcomes = []
    with common.command_progress_bar(arguments) as bar:
        for outcome in checkout.run_tests(source, arguments.only, arguments.test_seconds):
            outcomes.append(outcome)
            bar.show_text(f"{len(outcomes)} tests, {outcome.test}")
        times = _time_tf_encrypted_programs(arguments, programs, bar) if programs else {}
    if arguments.json:
        print(json.dumps({"tests": [asdict(o) for o in outcomes], "programs": times}))
    else:
        _print_program_outcomes(outcomes, times)
    return 1 if any(o.outcome == "failed" for o in outcomes) else 0


def _time_tf_encrypted_programs(
    arguments: argparse.Namespace, programs: Sequence[str], bar: Any
) -> dict[str, dict[str, Any]]:
    """Return the times that example programs print, here and in tf-encrypted's environment."""
    from tfe_bench.benchmarks.baselines.base import UnavailableBaseline, find_baseline_python
    from tfe_bench.benchmarks.tf_encrypted_programs import checkout

    there = find_baseline_python(arguments.tf_encrypted_env, "--tf-encrypted-env")
    times: dict[str, dict[str, Any]] = {}
    for program in programs:
        bar.show_text(program)
        ours = checkout.run_with_tfe_bench(arguments.source, program, checkout.PROGRAM_SECONDS)
        theirs: Any = there
        if not isinstance(there, UnavailableBaseline):
            seconds = checkout.PROGRAM_SECONDS
            theirs = checkout.run_with_tf_encrypted(arguments.source, there, program, seconds)
        times[program] = {
            "here": ours.reason if isinstance(ours, UnavailableBaseline) else ours,
            "there": theirs.reason if isinstance(theirs, UnavailableBaseline) else theirs,
        }
    return times


def _print_program_outcomes(outcomes: list[TestOutcome], times: dict[str, dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.text import Text

    from tfe_bench.benchmarks.table import align_columns, human_seconds, print_within
    from tfe_bench.benchmarks.tf_encrypted_programs.checkout import OUTCOMES

    console = Console()
    counts = Counter((o.file, o.outcome) for o in outcomes)
    rows: list[tuple[str, ...]] = [("tests of", *OUTCOMES)]
    for file in sorted({o.file for o in outcomes}):
        rows.append((file, *(str(counts[file, outcome] or "-") for outcome in OUTCOMES)))
    totals = Counter(o.outcome for o in outcomes)
    rows.append(("all", *(str(totals[outcome] or "-") for outcome in OUTCOMES)))
    lines = list(align_columns(rows, tuple(range(1, len(OUTCOMES) + 1))))
    lines += [
        f"{o.outcome}: {o.test}: {o.words}"
        for o in outcomes
        if o.outcome not in ("passed", "skipped")
    ]
    if times:
        cells_of_programs: list[tuple[str, ...]] = [("program", "prints", "here", "tf-encrypted")]
        for program, by in times.items():
            tags = by["here"] if isinstance(by["here"], dict) else {}
            theirs = by["there"] if isinstance(by["there"], dict) else {}
            for tag in {**tags, **theirs} or {"-": 0}:
                cells = [human_seconds(of[tag]) if tag in of else "-" for of in (tags, theirs)]
                cells_of_programs.append((program, tag, *cells))
        lines += ["", *align_columns(cells_of_programs, (2, 3))]
        words = {str(by[k]) for by in times.values() for k in by if not isinstance(by[k], dict)}
        lines += [f"no time: {each}" for each in sorted(words)]
    for line in lines:
        print_within(console, Text(line), console.width)


COMMAND = Command(
    _add_programs_options,
    run_compare,
    examples=("compare --n 1000", "compare tf-encrypted --source CHECKOUT"),
)
