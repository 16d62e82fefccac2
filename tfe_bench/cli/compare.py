"""`python -m tfe_bench compare`: compares two private vectors, or another system's programs."""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tfe_bench.cli import common, operation
from tfe_bench.errors import UsageError, check_known

if TYPE_CHECKING:
    from tfe_bench.benchmarks.baselines.checkout import Outcome

_SYSTEM = "tf-encrypted"


def _options(p: argparse.ArgumentParser) -> None:
    from tfe_bench.benchmarks import operations

    known = operations.comparisons.COMPARISONS
    p.add_argument(
        "system",
        nargs="?",
        choices=(_SYSTEM,),
        help="run this system's own tests and example programs here instead; wants --source",
    )
    common.option(p, "--source DIR", "a checkout of tf-encrypted")
    p.add_argument("--only", nargs="*", default=[], help="parts of the names of its tests to run")
    common.option(
        p, "--test-seconds S", "each of its tests at most (default 120)", type=int, default=120
    )
    p.add_argument(
        "--programs",
        nargs="*",
        metavar="PART",
        help="run its example programs as well, all or those with these parts in their names",
    )
    common.option(p, "--tf-encrypted-env DIR", "run them in this environment of tf-encrypted too")
    common.option(p, "--op NAME", ", ".join(known), default="less")
    p.add_argument(
        "--kind",
        default="int64",
        choices=("int64", "float"),
        help="which values to generate (default: int64, full range)",
    )
    operation.add_options(p, operations.find("less"), "N generated pairs")


def run(arguments: argparse.Namespace) -> int:
    """Compare two private vectors.

    Shares two vectors among three workers, compares them element by element without any worker
    seeing them or the outcome, checks the result and prints what it cost. Exact for all 64-bit
    integers and all reals in fixed point.

    `compare tf-encrypted --source CHECKOUT` runs tf-encrypted's tests of ABY3 and of Keras from a
    checkout of yours, with tfe_bench.tf_encrypted in place of tf_encrypted.
    """
    if arguments.system == _SYSTEM:
        return _programs(arguments)
    if arguments.source is not None:
        raise UsageError("--source goes with: compare tf-encrypted --source CHECKOUT.")
    from tfe_bench.benchmarks import operations
    from tfe_bench.benchmarks.operations.comparisons import COMPARISONS, integer_pairs, pairs

    check_known("--op", arguments.op, COMPARISONS)
    draw = integer_pairs if arguments.kind == "int64" else pairs
    entry, shown = operations.find(arguments.op), {"op": arguments.op}
    work = operation.prepare(arguments, entry, {}, draw, shown)
    return operation.perform("compare", arguments, work)


def _programs(arguments: argparse.Namespace) -> int:
    """Another system's tests and example programs, run here."""
    from tfe_bench.benchmarks.baselines import checkout

    if arguments.source is None:
        raise UsageError("compare tf-encrypted wants --source CHECKOUT, a clone of tf-encrypted.")
    source = checkout.check_source(arguments.source)
    of_keras = any("keras" in str(file) for file in checkout.files(source))
    if of_keras and importlib.util.find_spec("tf_keras") is None:
        raise UsageError("Its tests are of Keras 2: pip install '.[tf-encrypted]' in the checkout.")
    programs = [] if arguments.programs is None else checkout.programs(arguments.programs)
    found = []
    with common.progress_bar(arguments) as bar:
        for outcome in checkout.run_tests(source, arguments.only, arguments.test_seconds):
            found.append(outcome)
            bar.say(f"{len(found)} tests, {outcome.test}")
        times = _times(arguments, programs, bar) if programs else {}
    if arguments.json:
        print(json.dumps({"tests": [asdict(o) for o in found], "programs": times}))
    else:
        _show(found, times)
    return 1 if any(o.outcome == "failed" for o in found) else 0


def _times(
    arguments: argparse.Namespace, programs: Sequence[str], bar: Any
) -> dict[str, dict[str, Any]]:
    """What example programs print, here and in tf-encrypted's environment."""
    from tfe_bench.benchmarks.baselines import checkout
    from tfe_bench.benchmarks.baselines.base import Missing, python_of

    there = python_of(arguments.tf_encrypted_env, "--tf-encrypted-env")
    found: dict[str, dict[str, Any]] = {}
    for program in programs:
        bar.say(program)
        ours = checkout.run_here(arguments.source, program, checkout.PROGRAM_SECONDS)
        theirs: Any = there
        if not isinstance(there, Missing):
            seconds = checkout.PROGRAM_SECONDS
            theirs = checkout.run_there(arguments.source, there, program, seconds)
        found[program] = {
            "here": ours.reason if isinstance(ours, Missing) else ours,
            "there": theirs.reason if isinstance(theirs, Missing) else theirs,
        }
    return found


def _show(found: list[Outcome], times: dict[str, dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.text import Text

    from tfe_bench.benchmarks.baselines.checkout import OUTCOMES
    from tfe_bench.benchmarks.table import columns, human_seconds, put

    console = Console()
    counts = Counter((o.file, o.outcome) for o in found)
    rows: list[tuple[str, ...]] = [("tests of", *OUTCOMES)]
    for file in sorted({o.file for o in found}):
        rows.append((file, *(str(counts[file, outcome] or "-") for outcome in OUTCOMES)))
    totals = Counter(o.outcome for o in found)
    rows.append(("all", *(str(totals[outcome] or "-") for outcome in OUTCOMES)))
    lines = list(columns(rows, tuple(range(1, len(OUTCOMES) + 1))))
    lines += [
        f"{o.outcome}: {o.test}: {o.words}" for o in found if o.outcome not in ("passed", "skipped")
    ]
    if times:
        told: list[tuple[str, ...]] = [("program", "prints", "here", "tf-encrypted")]
        for program, by in times.items():
            tags = by["here"] if isinstance(by["here"], dict) else {}
            theirs = by["there"] if isinstance(by["there"], dict) else {}
            for tag in {**tags, **theirs} or {"-": 0}:
                cells = [human_seconds(of[tag]) if tag in of else "-" for of in (tags, theirs)]
                told.append((program, tag, *cells))
        lines += ["", *columns(told, (2, 3))]
        words = {str(by[k]) for by in times.values() for k in by if not isinstance(by[k], dict)}
        lines += [f"no time: {each}" for each in sorted(words)]
    for line in lines:
        put(console, Text(line), console.width)


COMMANDS = {"compare": (_options, run)}
