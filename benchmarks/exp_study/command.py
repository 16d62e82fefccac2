"""`python -m tfe_bench exp`: the private exponential; `--study` compares its protocols."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfe_bench.cli import common, job_record
from tfe_bench.cli.command import Command
from tfe_bench.errors import UsageError, check_known, check_range, did_you_mean

if TYPE_CHECKING:
    from tfe_bench.benchmarks.exp_study.forms import ExpForm
    from tfe_bench.benchmarks.exp_study.study import ExpStudy, LevelPlan
    from tfe_bench.benchmarks.report.parts import Table
    from tfe_bench.cluster.requests import JobResult

METHODS = ("one-round", "taylor", "prime", "pade")
CLAMPS = ("none", "low", "both")
_MOST = 1 << 22
_REPORT = Path("exp-report")


def _add_exp_options(p: argparse.ArgumentParser) -> None:
    common.add_option(p, "--n N", "number of values (default: 1024)", type=int)
    p.add_argument("--seed", type=int, default=1, help="seed of the generated numbers (default: 1)")
    common.add_option(p, "--method NAME", f"protocol: {', '.join(METHODS)} (default: one-round)")
    p.add_argument("--clamp", choices=CLAMPS, help="ends of the range to clamp (default: none)")
    p.add_argument("--ring", type=int, choices=(64, 128), help="ring size in bits (default: 64)")
    common.add_option(p, "--iterations K", "number of squarings of taylor (default: 8)", type=int)
    common.add_option(p, "--softmax", "use a range of x that ends at 0")
    common.add_option(
        p,
        "--fractional-bits F",
        "fractional bits of x (default: 16, or 40 with --ring 128)",
        type=int,
    )
    p.add_argument(
        "--advise",
        nargs=2,
        type=float,
        metavar=("LOW", "HIGH"),
        help="recommend protocols for x in this range, without a run",
    )
    common.add_option(p, "--study", "compare all protocols (3 runs each) and write a report")
    common.add_option(p, "--report DIR", f"new folder of the report (default: {_REPORT})")
    common.add_option(
        p, "--quick", "use small sizes and only the network levels net1 and net2 in a study"
    )
    common.add_option(
        p,
        "--levels NAMES",
        "network levels to measure in a study: all, none, or a list such as net1,net2; the "
        "other levels are modeled (default: all)",
    )
    common.add_option(
        p, "--float32", "round x to float32 first in a study, as the published study did"
    )
    common.add_run_options(p)
    p.set_defaults(repeat=None)


def run_exp(arguments: argparse.Namespace) -> int:
    """Compute the exponential of private numbers; --study compares its protocols.

    Shares fixed-point numbers among three workers, computes their exponentials, compares them with
    NumPy and prints the cost. --study measures every protocol in both rings, in six dimensions,
    and compares with published figures.
    """
    if arguments.repeat is None:
        arguments.repeat = 3 if arguments.study else 5
    common.check_dependent_options(arguments, "study", "report", "quick", "float32", "levels")
    if arguments.study:
        return _run_study_command(arguments)
    if arguments.n is not None:
        check_range("--n", arguments.n, 1, _MOST)
    if arguments.advise is not None:
        return _print_exp_advice(arguments)
    return _measure_exp(arguments)


# ---- one measurement


def _parse_exp_form(arguments: argparse.Namespace) -> ExpForm:
    from tfe_bench.benchmarks.exp_study.forms import ExpForm

    method = METHODS[0] if arguments.method is None else arguments.method
    check_known("--method", method, METHODS)
    if arguments.iterations is not None and method != "taylor":
        raise UsageError(
            f"--iterations requires --method taylor. Received: {method}.",
            code="option-not-applicable",
            operation="--iterations",
            received=method,
            expected="taylor",
        )
    form = ExpForm(
        method,
        arguments.ring or 64,
        arguments.clamp or "none",
        8 if arguments.iterations is None else arguments.iterations,
        arguments.softmax,
        arguments.fractional_bits or 0,
    )
    if arguments.fractional_bits == 0:
        raise UsageError(
            "Expected 1 or more in --fractional-bits. Received: 0.",
            code="number-out-of-range",
            operation="--fractional-bits",
            received=0,
        )
    form.cost(1)  # rejects unsupported combinations
    return form


def _measure_exp(arguments: argparse.Namespace) -> int:
    import numpy as np

    from tfe_bench.benchmarks import error_metrics
    from tfe_bench.benchmarks.exp_study.measurement import (
        decode_exp_result,
        drawing_range,
        encode_exp_inputs,
    )
    from tfe_bench.protocols.session.fixedpoint import FixedPoint

    form = _parse_exp_form(arguments)
    n = arguments.n or 1024
    check_range("--seed", arguments.seed, 0)
    low, high = drawing_range(form)
    x = np.random.default_rng(arguments.seed).uniform(low, high, n)
    point = FixedPoint(form.fxp, form.ring_bits)
    # Compare with the rounded inputs, so that the error is only the protocol's.
    meant = np.clip(point.decode(point.encode(x)), low, high)
    exact = np.exp(meant)

    def judge_result(result: JobResult) -> job_record.JobOutcome:
        errors = np.abs(decode_exp_result(form, result) - exact)
        relative = float((errors / exact)[meant >= 0].max(initial=0.0))
        sent = sum(sum(m["payload"]) for m in result.measured)
        shown = {
            "n": n,
            "form": form.name,
            "x": f"{low:.4g} .. {high:.4g}",
            "bytes_per_element": round(sent / n, 2),
            "max_relative_error": float(f"{relative:.3g}"),  # of x >= 0
            "failure_probability": float(f"{form.failure_probability():.2g}"),
        }
        worst = error_metrics.largest_result_error(error_metrics.RELATIVE, errors, exact, form.fxp)
        return job_record.JobOutcome(
            shown,
            bool(np.all(errors <= form.error_tolerance(meant))),
            float(errors.max()),
            form.fxp,
            form.ring_bits,
            error=error_metrics.error_to_json(error_metrics.RELATIVE, worst),
        )

    parameters = {**form.parameters, **common.timing_loop_parameters(arguments)}
    return job_record.run_and_report(
        arguments, "exp", ("exp", parameters, encode_exp_inputs(form, meant)), judge_result
    )


# ---- advice


def _print_exp_advice(arguments: argparse.Namespace) -> int:
    from tfe_bench.benchmarks.exp_study import advisor
    from tfe_bench.benchmarks.exp_study.levels import LEVELS
    from tfe_bench.benchmarks.report.parts import Table

    low, high = arguments.advise
    n = arguments.n or 10_000
    ranked = advisor.rank_exp_forms(low, high, n)
    if arguments.json:
        form_rows = [
            {
                "form": a.form.name,
                "ring": a.form.ring_bits,
                "range": [_finite_figure_or_none(a.low), _finite_figure_or_none(a.high)],
                "bytes_total": a.bytes_total,
                "rounds": a.rounds,
                "relative_error": a.error,
                "failure_probability": a.failure,
                "modeled_network_seconds": a.seconds,
            }
            for a in ranked
        ]
        print(json.dumps({"low": low, "high": high, "n": n, "forms": form_rows}))
        return 0
    print(advisor.advice_sentence(low, high, n))
    if ranked:
        print(f"\nAll forms that cover it, for n = {n:,} (network alone, modeled):\n")
        head = ("form / ring", "B/element", "rounds", "error", "failure", *(v.name for v in LEVELS))
        rows = [
            (
                a.form.label,
                f"{a.bytes_total / n:.0f}",
                str(a.rounds),
                f"{a.error:.0e}",
                f"{a.failure:.0e}",
                *(f"{a.seconds[v.name]:.3g} s" for v in LEVELS),
            )
            for a in ranked
        ]
        _print_exp_study_table(Table(head, rows))
    return 0


def _finite_figure_or_none(value: float) -> float | None:
    """Return a finite value, or None: JSON has neither infinity nor NaN."""
    return value if math.isfinite(value) else None


# ---- the study


def _run_study_command(arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from tfe_bench.benchmarks.exp_study import advisor, study, tables
    from tfe_bench.benchmarks.exp_study import report as folder
    from tfe_bench.benchmarks.report import drawing
    from tfe_bench.cluster.links import CHANNEL

    for option in (
        *("n", "method", "clamp", "ring", "iterations", "softmax", "fractional_bits"),
        *("advise", "record", "trace"),
    ):
        if getattr(arguments, option) not in (None, False):
            name = option.replace("_", "-")
            raise UsageError(
                f"--{name} is for a single measurement. Received: --study. Remove one of them.",
                code="conflicting-options",
                operation=f"--{name}",
                received="--study",
            )
    if arguments.profile != "local":
        raise UsageError(
            "A study measures at the network levels of --levels. Received: "
            f"--profile {arguments.profile}, which is for a single measurement.",
            code="conflicting-options",
            operation="--profile",
            received=arguments.profile,
        )
    where = arguments.report or _REPORT
    folder.check_folder(where)
    drawing.require_matplotlib()
    plan = study.QUICK if arguments.quick else study.StudyPlan()
    plan = replace(plan, float32=arguments.float32, repeat=arguments.repeat)
    plan = replace(plan, levels=_choose_study_levels(arguments, plan.levels))
    if arguments.cluster is not None:
        plan = replace(plan, fresh=False)  # these workers keep running
    with common.command_progress_bar(arguments) as bar:

        def open_level_cluster(profile: str) -> Any:
            if profile != study.LOCAL:
                bar.show_text(f"{profile}: starting the workers")
            cluster = common.open_cluster(
                argparse.Namespace(**{**vars(arguments), "profile": profile}), bar
            )
            if cluster.emulation is not None and cluster.emulation.startswith(CHANNEL):
                arguments.emulate = CHANNEL  # print the fallback message only once
            return cluster

        results = study.run_study(open_level_cluster, plan, bar.update)
        files = folder.write_report(results, where)
    if arguments.json:
        print(json.dumps(_exp_study_to_json(results, where, files), allow_nan=False))
        return 0
    print("Measured: bytes (by party), rounds, accuracy on 10,000 points\n")
    _print_exp_study_table(tables.exp_summary_table(results))
    print("\nPer element, slopes: memory, local time, and time at the network levels")
    print(f"({tables.describe_exp_table_marks(results)})\n")
    _print_exp_study_table(tables.exp_times_table(results))
    print("\nNetwork levels, as the links were found to be; the model against what was measured\n")
    _print_exp_study_table(tables.exp_links_table(results))
    for name, level in results.levels.items():
        if level.refused:
            print(f"Nothing is measured at {name}: {level.refused}")
    checked = tables.exp_model_table(results)
    if len(checked.head) > 1:
        print("\nSeconds measured / predicted over measured, at the largest n of all forms\n")
        _print_exp_study_table(checked)
    print("\nTimes better than the published figures (2 parties + dealer, offline not counted)\n")
    _print_exp_study_table(tables.comparison_table(results))
    print("\nWhich form to take (cheapest at net2 that covers the range)\n")
    for line in advisor.advice_sentences():
        print(f"- {line}")
    print(f"\nThe report is in {where}: {', '.join(files)}")
    return 0


def _choose_study_levels(
    arguments: argparse.Namespace, planned: Mapping[str, LevelPlan]
) -> dict[str, LevelPlan]:
    """Return the plans of the levels that --levels names."""
    from tfe_bench.benchmarks.exp_study.levels import LEVELS
    from tfe_bench.benchmarks.exp_study.study import LEVEL_PLANS

    known = [level.name for level in LEVELS]
    if arguments.levels is None:
        return dict(planned)
    names = [name.strip() for name in arguments.levels.split(",")]
    if names in (["all"], ["none"]):
        names = known if names == ["all"] else []
    for name in names:
        if name not in known:
            raise UsageError(
                f"Unknown network level in --levels.{did_you_mean(name, known)} Received: "
                f"{name!r}. Known: {', '.join(known)}; all; none.",
                code="unknown-name",
                operation="--levels",
                received=name,
                expected=", ".join(known),
            )
    few = next(iter(planned.values()))  # a quick study has the same plan at each level
    plans = {name: few for name in known} if arguments.quick else LEVEL_PLANS
    return {name: plans[name] for name in known if name in names}


def _exp_study_to_json(results: ExpStudy, where: Path, files: Sequence[str]) -> dict[str, Any]:
    from tfe_bench.benchmarks.exp_study import advisor, compare
    from tfe_bench.benchmarks.exp_study.notes import collect_study_notes

    def finite_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {k: (_finite_figure_or_none(v) if isinstance(v, float) else v) for k, v in row.items()}
            for row in rows
        ]

    return {
        "report": str(where),
        "files": list(files),
        "exp": finite_rows(compare.exp_rows(results)),
        "accuracy": finite_rows(compare.exp_accuracy_rows(results)),
        "fits": finite_rows(compare.exp_fit_rows(results)),
        "levels": finite_rows(compare.exp_level_rows(results)),
        "compare": finite_rows(compare.exp_comparison_rows(results)),
        "advice": advisor.advice_sentences(),
        "notes": collect_study_notes(results),
    }


def _print_exp_study_table(table: Table) -> None:
    """Print columns at their natural widths; wrap long headings over several lines."""
    from tfe_bench.benchmarks.table import align_columns

    head, rows = table.head, [[str(cell) for cell in row] for row in table.rows]
    widths = [max([8, *(len(row[i]) for row in rows)]) for i in range(len(head))]
    wrap = partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False)
    words = [wrap(title, width) for title, width in zip(head, widths, strict=True)]
    height = max(map(len, words))
    lines = [
        tuple(w[i - height] if i >= height - len(w) else "" for w in words) for i in range(height)
    ]
    limit = max(shutil.get_terminal_size((200, 24)).columns, 60)
    for line in align_columns([*lines, *rows], range(1, len(head))):
        print(line[:limit])


COMMAND = Command(
    _add_exp_options,
    run_exp,
    examples=("exp --n 1000 --method taylor", "exp --study --quick"),
    heading="benchmark",
    after="softmax",
)
