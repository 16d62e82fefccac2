"""The study's printed tables."""

from __future__ import annotations

from collections.abc import Sequence

from tfe_bench.benchmarks.exp_study import compare, published
from tfe_bench.benchmarks.exp_study.fits import Fit
from tfe_bench.benchmarks.exp_study.levels import LEVELS, MEASURED, MODELED
from tfe_bench.benchmarks.exp_study.study import LOCAL, ExpStudy
from tfe_bench.benchmarks.report.parts import Table
from tfe_bench.cluster.profiles import NetworkProfile


def exp_summary_table(study: ExpStudy) -> Table:
    """Return one line per form, then the published ones: bytes, rounds, accuracy."""
    head = (
        *("form / ring", "B/element P0/P1/P2", "rounds total/online", "declared range"),
        *("score", "MAPE", "failure"),
    )
    rows: list[tuple[str, ...]] = []
    for form in study.measurements:
        sent, largest, a = (
            study.bytes_per_element(form),
            study.largest_measurement(form),
            study.accuracy[form],
        )
        bytes_text = "/".join(f"{b:.0f}" for b in sent)
        rounds = f"{largest.rounds}/{largest.rounds_ahead}"
        declared = "{:.4g} .. {:.4g}".format(*form.valid_range())
        failure = f"{form.failure_probability():.1g}"
        score = f"{a.mean6:.3f}", f"{a.mape:.2g}"
        rows.append((form.label, bytes_text, rounds, declared, *score, failure))
    for method, column in published.published_columns().items():
        bytes_text = f"{column.bytes_per_element:.0f}"
        score = f"{column.mean6:.3f}", f"{column.mape:.2g}"
        name = f"published {method} / 128"
        rows.append((name, f"{bytes_text}/{bytes_text}", str(column.rounds), "-", *score, "-"))
    return Table(head, rows)


def exp_links_table(study: ExpStudy) -> Table:
    """Return each level's nominal and measured figures, and the accuracy of the model."""
    head = ("level", "one-way delay", "egress per host", "links", "times", "predicted / measured")
    rows: list[tuple[str, ...]] = []
    for level in LEVELS:
        at, ratios = study.levels.get(level.name), compare.level_ratios(study, level.name)
        delay, egress, how = "-", "-", "-"
        if at is not None and at.realized is not None:
            delay = _format_range([1e3 * d for d in at.realized.delays], "ms")
            egress = _format_range([r / 1e6 for r in at.realized.rates], "Mbit/s")
            how = at.emulation
        times = f"{len(ratios)} measured" if ratios else MODELED
        held = f"{min(ratios):.2f} .. {max(ratios):.2f}" if ratios else "-"
        rows.append((f"{level.name}: {level.text}", delay, egress, how, times, held))
    return Table(head, rows)


def _format_range(values: Sequence[float], unit: str) -> str:
    low, high = (f"{v:.3g}" if v < 1000 else f"{v:.0f}" for v in (min(values), max(values)))
    return f"{low} {unit}" if low == high else f"{low} .. {high} {unit}"


def exp_model_table(study: ExpStudy) -> Table:
    """Return measured seconds and predicted / measured, at the largest n that all forms share."""
    columns: list[tuple[NetworkProfile, int]] = []
    for level in LEVELS:
        sizes = [
            {t.n for t in study.times_at_level(form, level) if t.source == MEASURED}
            for form in study.main_forms
        ]
        shared = set.intersection(*sizes) if sizes else set()
        if shared:
            columns.append((level, max(shared)))
    rows = [
        (
            form.label,
            *(
                f"{t.seconds:.3g} s / {t.ratio:.2f}"
                for level, n in columns
                for t in study.times_at_level(form, level)
                if t.n == n
            ),
        )
        for form in study.main_forms
    ]
    return Table(("form / ring", *(f"{level.name} n = {n:,}" for level, n in columns)), rows)


def exp_times_table(study: ExpStudy) -> Table:
    """Return time and memory per element of the main forms and the published ones.

    Times are measured; "~" marks modeled ones, "*" published ones.
    """
    head = (
        *("form / ring", "kB/element", "fixed MB", "local us"),
        *(f"{level.name} us" for level in LEVELS),
    )
    quantities = [f"seconds_{name}" for name in (LOCAL, *(v.name for v in LEVELS))]
    rows: list[tuple[str, ...]] = []
    for form in study.main_forms:
        marks = ("~" if study.quantity_source(form, q) == MODELED else "" for q in quantities)
        slopes = (f"{study.fit_quantity(form, q).a * 1e6:.3g}" for q in quantities)
        times = (mark + slope for mark, slope in zip(marks, slopes, strict=True))
        rows.append((form.label, *_memory_cells(study.fit_memory(form)), *times))
    for method, column in published.published_columns().items():
        times = (f"{column.times[level.name].a * 1e6:.3g}*" for level in LEVELS)
        rows.append((f"published {method} / 128", *_memory_cells(column.memory), "-", *times))
    return Table(head, rows)


def _memory_cells(fit: Fit) -> tuple[str, str]:
    return f"{fit.a:.3f}", f"{fit.b / 1024:.0f}"


def describe_exp_table_marks(study: ExpStudy) -> str:
    """Describe the marks of `exp_times_table`."""
    marks = "* published, measured on shaped links"
    quantities = [f"seconds_{level.name}" for level in LEVELS]
    if any(study.quantity_source(f, q) == MODELED for f in study.main_forms for q in quantities):
        marks = "~ MODELED from local runs, not measured; " + marks
    return marks


_COMPARED = {
    "bytes per element, evaluator": "B/element, evaluator",
    "bytes per element, busiest party": "busiest party",
    "bytes per element, all parties": "all parties",
    "rounds, dealer ahead": "rounds, dealer ahead",
    "rounds": "rounds, total",
    "range score (mean of six)": "score",
    "mape on [-20, 20]": "MAPE",
    "memory slope, kB per element": "memory slope",
    "seconds per element at net2": "net2 slope",
}


def comparison_table(study: ExpStudy) -> Table:
    """Return the factor by which ours is better than the published figure, one line per pair."""
    pairs: dict[tuple[str, str], dict[str, str]] = {}
    for row in compare.exp_comparison_rows(study):
        pair = (f"{row['ours_form']} / {row['ring_bits']}", row["published_method"])
        mark = "~" if row["ours_source"] == MODELED else ""
        pairs.setdefault(pair, {})[row["metric"]] = f"{mark}{row['times_better']:.2g}x"
    rows = [
        (*pair, *(values.get(metric, "-") for metric in _COMPARED))
        for pair, values in pairs.items()
    ]
    return Table(("ours", "published", *_COMPARED.values()), rows)
