"""The report folder: five CSV files, the pictures and report.md; written whole or not at all."""

from __future__ import annotations

import csv
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfe_bench.benchmarks import records
from tfe_bench.benchmarks.exp_study import advisor, compare, plots, published
from tfe_bench.benchmarks.exp_study.levels import LEVELS, MEASURED, MODELLED, NetLevel
from tfe_bench.benchmarks.exp_study.notes import notes
from tfe_bench.benchmarks.exp_study.study import LOCAL, Study
from tfe_bench.errors import DataError

FILES = (
    *("exp.csv", "exp_accuracy.csv", "exp_fits.csv", "exp_levels.csv", "exp_compare.csv"),
    "report.md",
)


def check_folder(folder: Path) -> None:
    """Refuses before a long run a folder that could not be written after it.

    Raises:
        DataError: it exists and is no empty folder, or its parent cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(
            f"The report goes into a new folder. Received: {str(folder)!r}, which exists. Remove "
            "it, or choose another --report."
        )
    parent = folder.absolute().parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise DataError(
            f"The report cannot be written to {str(folder)!r}. Received: a missing or read-only "
            "parent folder. Choose another --report."
        )


def write(study: Study, folder: Path) -> list[str]:
    """Writes the report; the folder appears when all of it is there.

    Returns:
        The names of its files.

    Raises:
        DataError: the folder cannot be written.
        ConfigError: matplotlib is missing.
    """
    check_folder(folder)
    plots.require()
    unfinished = None
    try:
        parent = folder.absolute().parent
        unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=parent))
        _fill(study, unfinished)
        unfinished.chmod(0o777 & ~_umask())
        if folder.exists():
            folder.rmdir()  # empty, as checked: os.rename may not replace it everywhere
        unfinished.rename(folder)
        unfinished = None
    except OSError as error:
        raise DataError(f"Cannot write the report to {str(folder)!r}: {error.strerror}.") from error
    finally:
        if unfinished is not None:
            shutil.rmtree(unfinished, ignore_errors=True)
    return sorted(path.name for path in folder.iterdir())


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _fill(study: Study, folder: Path) -> None:
    _write_csv(folder / "exp.csv", compare.exp_rows(study))
    _write_csv(folder / "exp_accuracy.csv", compare.accuracy_rows(study))
    _write_csv(folder / "exp_fits.csv", compare.fit_rows(study))
    _write_csv(folder / "exp_levels.csv", compare.level_rows(study))
    _write_csv(folder / "exp_compare.csv", compare.compare_rows(study))
    pictures = plots.draw(study, folder)
    (folder / "report.md").write_text(markdown(study, pictures), encoding="utf-8")


def _write_csv(path: Path, rows: Sequence[compare.Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: _cell(v) for k, v in row.items()} for row in rows)


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.7g}" if isinstance(value, float) else value


# ---- tables for people

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def summary(study: Study) -> Table:
    """One line a form, then the published ones: bytes, rounds, accuracy."""
    head = (
        *("form / ring", "B/element P0/P1/P2", "rounds cold/ahead", "declared range"),
        *("score", "MAPE", "failure"),
    )
    rows: list[tuple[str, ...]] = []
    for form in study.measurements:
        sent, largest, a = study.bytes_per_element(form), study.largest(form), study.accuracy[form]
        low, high = form.valid_range()
        rows.append(
            (
                form.label,
                "/".join(f"{b:.0f}" for b in sent),
                f"{largest.rounds}/{largest.rounds_ahead}",
                f"{low:.4g} .. {high:.4g}",
                f"{a.mean6:.3f}",
                f"{a.mape:.2g}",
                f"{form.failure_probability():.1g}",
            )
        )
    for method, column in published.columns().items():
        each = f"{column.bytes_per_element:.0f}"
        rows.append(
            (
                f"published {method} / 128",
                f"{each}/{each}",
                str(column.rounds),
                "-",
                f"{column.mean6:.3f}",
                f"{column.mape:.2g}",
                "-",
            )
        )
    return head, rows


def links(study: Study) -> Table:
    """What each level is to be, what its links were found to hold, and how the model does."""
    head = ("level", "one-way delay", "egress per host", "links", "times", "predicted / measured")
    rows: list[tuple[str, ...]] = []
    for level in LEVELS:
        at, ratios = study.levels.get(level.name), compare.level_ratios(study, level.name)
        delay, egress, how = "-", "-", "-"
        if at is not None and at.realised is not None:
            delay = _between([1e3 * d for d in at.realised.delays], "ms")
            egress = _between([r / 1e6 for r in at.realised.rates], "Mbit/s")
            how = at.emulation
        rows.append(
            (
                f"{level.name}: {level.text}",
                delay,
                egress,
                how,
                f"{len(ratios)} measured" if ratios else MODELLED,
                f"{min(ratios):.2f} .. {max(ratios):.2f}" if ratios else "-",
            )
        )
    return head, rows


def _between(values: Sequence[float], unit: str) -> str:
    low, high = (f"{v:.3g}" if v < 1000 else f"{v:.0f}" for v in (min(values), max(values)))
    return f"{low} {unit}" if low == high else f"{low} .. {high} {unit}"


def model_check(study: Study) -> Table:
    """Measured seconds and predicted / measured, at the largest n that all forms share."""
    columns: list[tuple[NetLevel, int]] = []
    for level in LEVELS:
        sizes = [
            {t.n for t in study.times(form, level) if t.source == MEASURED} for form in study.main
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
                for t in study.times(form, level)
                if t.n == n
            ),
        )
        for form in study.main
    ]
    return ("form / ring", *(f"{level.name} n = {n:,}" for level, n in columns)), rows


def times(study: Study) -> Table:
    """Time and memory per element of the main forms and the published ones.

    Times are measured; "~" marks modelled ones, "*" published ones.
    """
    head = (
        *("form / ring", "kB/element", "fixed MB", "local us"),
        *(f"{level.name} us" for level in LEVELS),
    )
    rows: list[tuple[str, ...]] = []
    for form in study.main:
        memory = max((study.fit(form, f"peak_rss_kb_P{p}") for p in range(3)), key=lambda f: f.a)
        quantities = [f"seconds_{name}" for name in (LOCAL, *(v.name for v in LEVELS))]
        rows.append(
            (
                form.label,
                f"{memory.a:.3f}",
                f"{memory.b / 1024:.0f}",
                *(
                    ("~" if study.source(form, quantity) == MODELLED else "")
                    + f"{study.fit(form, quantity).a * 1e6:.3g}"
                    for quantity in quantities
                ),
            )
        )
    for method, column in published.columns().items():
        slopes = [column.times[level.name].a for level in LEVELS]
        rows.append(
            (
                f"published {method} / 128",
                f"{column.memory.a:.3f}",
                f"{column.memory.b / 1024:.0f}",
                "-",
                *(f"{s * 1e6:.3g}*" for s in slopes),
            )
        )
    return head, rows


def key(study: Study) -> str:
    """What the marks of `times` mean."""
    marks = "* published, measured on shaped links"
    quantities = [f"seconds_{level.name}" for level in LEVELS]
    if any(study.source(f, q) == MODELLED for f in study.main for q in quantities):
        marks = "~ MODELLED from local runs, not measured; " + marks
    return marks


_COMPARED = {
    "bytes per element, evaluator": "B/element, evaluator",
    "bytes per element, busiest party": "busiest party",
    "bytes per element, all parties": "all parties",
    "rounds, dealer ahead": "rounds, dealer ahead",
    "rounds": "rounds, cold",
    "range score (mean of six)": "score",
    "mape on [-20, 20]": "MAPE",
    "memory slope, kB per element": "memory slope",
    "seconds per element at net2": "net2 slope",
}


def comparison(study: Study) -> Table:
    """How many times better ours is than the published figure, one line a pair."""
    pairs: dict[tuple[str, str], dict[str, str]] = {}
    for row in compare.compare_rows(study):
        pair = (f"{row['ours_form']} / {row['ring_bits']}", row["published_method"])
        mark = "~" if row["ours_source"] == MODELLED else ""
        pairs.setdefault(pair, {})[row["metric"]] = f"{mark}{row['times_better']:.2g}x"
    rows: list[tuple[str, ...]] = [
        (
            ours,
            theirs,
            *(found.get(metric, "-") for metric in _COMPARED),
        )
        for (ours, theirs), found in pairs.items()
    ]
    return ("ours", "published", *_COMPARED.values()), rows


def advice(study: Study) -> list[str]:
    """A line for each of some ranges."""
    return [advisor.sentence(*limits) for limits in advisor.RANGES]


def _markdown_table(table: Table) -> str:
    head, rows = table
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _checked(study: Study) -> list[str]:
    table = model_check(study)
    if len(table[0]) == 1:
        return []
    return [
        "Measured seconds / predicted over measured, at the largest n that all forms share:",
        _markdown_table(table),
    ]


def markdown(study: Study, pictures: Sequence[str]) -> str:
    """report.md."""
    here, versions = records.machine(), records.versions()
    alternative = {
        "exp_radar.png": "six dimensions",
        "exp_error.png": "error against x",
        "exp_range.png": "effective range",
        "exp_time.png": "time at four network levels",
        "exp_memory.png": "memory",
    }
    parts = [
        "# The private exponential: four forms, two rings, six dimensions",
        f"Three workers, replicated sharing, {'quick' if study.plan.quick else 'full'} study. "
        f"Beside it: {published.SOURCE}.",
        f"Measured on {here.cpu}, {here.cores} cores, {here.kernel}; tfe_bench "
        f"{versions['tfe_bench']}, TensorFlow {versions['tensorflow']}, commit "
        f"{records.commit() or '-'}.",
        "## Cost and accuracy",
        "Bytes and rounds are measured. Score: the mean of six shares of 10,000 points on "
        "[-40, 40] (APE < 5 %, 1 %, 0.05 %; AE < 5, 1, 0.05). MAPE: on [-20, 20]. Failure: "
        "declared probability that one element of the declared range comes out wrong.",
        _markdown_table(summary(study)),
        "## Time and memory",
        "Slopes of least-squares lines over n, local ones without shaped links.",
        _markdown_table(times(study)),
        f"({key(study)}.)",
        "## Network levels",
        "Delay and egress: what the links were found to hold before anything was measured. "
        "Predicted: local time + rounds x latency + bytes of the busiest party x 8 / rate.",
        _markdown_table(links(study)),
        *_checked(study),
        "## Beside the published figures",
        "How many times better ours is: fewer bytes, rounds, seconds; a higher score. "
        + published.CAVEAT
        + " Like for like are the columns of an evaluator's bytes and of rounds with the dealer's "
        "material there.",
        _markdown_table(comparison(study)),
        "## Which form to take",
        "\n".join(f"- {line}" for line in advice(study)),
        "(Cheapest by bytes and rounds at net2 for 10,000 elements, of the forms whose declared "
        "range holds x.)",
        "## Pictures",
        "\n\n".join(f"![{alternative.get(name, name)}]({name})" for name in pictures),
        "## Notes",
        "\n".join(f"- {note}" for note in notes(study)),
        "Files: `exp.csv` (every measurement), `exp_accuracy.csv`, `exp_fits.csv` (y = a n + b), "
        "`exp_levels.csv` (the network levels), `exp_compare.csv` (all metrics beside the "
        "published ones).",
    ]
    return "\n\n".join(parts) + "\n"
