"""The study's page, section by section."""

from __future__ import annotations

from collections.abc import Mapping

from tfe_bench.benchmarks import provenance
from tfe_bench.benchmarks.exp_study import advisor, published, tables
from tfe_bench.benchmarks.exp_study.levels import MEASURED, MODELED
from tfe_bench.benchmarks.exp_study.notes import collect_study_notes
from tfe_bench.benchmarks.exp_study.study import ExpStudy
from tfe_bench.benchmarks.report.drawing import Picture
from tfe_bench.benchmarks.report.parts import Figure, Items, Page, Part, Section


def build_study_page(study: ExpStudy, pictures: Mapping[str, Picture]) -> Page:
    """Return the page of a study."""
    here, versions = provenance.read_machine_facts(), provenance.versions()
    lede = [
        f"Three workers, replicated sharing, {'quick' if study.plan.quick else 'full'} study. "
        f"Beside it: {published.SOURCE}.",
        f"Measured on {here.cpu}, {here.cores} cores, {here.kernel}; tfe_bench "
        f"{versions['tfe_bench']}, TensorFlow {versions['tensorflow']}, commit "
        f"{provenance.commit() or '-'}.",
    ]
    cost: list[Part] = [
        "Bytes and rounds are measured. Score: the mean of six shares of 10,000 points on "
        "[-40, 40] (APE < 5 %, 1 %, 0.05 %; AE < 5, 1, 0.05). MAPE: on [-20, 20]. Failure: "
        "declared probability that one element of the declared range comes out wrong.",
        tables.exp_summary_table(study),
        Figure(
            pictures["exp_radar"],
            "six dimensions",
            "exp in six dimensions: outside is better, rings are 10, 100 and 1000 times worse than "
            f"the best of all (time at net2: ours {_net2_source(study)}).",
        ),
        Figure(
            pictures["exp_error"],
            "error against x",
            "Error of exp on [-40, 40], largest of each 100 points (dotted: the six thresholds).",
        ),
        Figure(
            pictures["exp_range"],
            "effective range",
            "Effective range: bars where the measured relative error is below 1 %, dark marks "
            "where the declared range ends.",
        ),
    ]
    time: list[Part] = [
        "Slopes of least-squares lines over n, local ones without shaped links.",
        tables.exp_times_table(study),
        f"({tables.describe_exp_table_marks(study)}.)",
        Figure(
            pictures["exp_time"],
            "time at four network levels",
            "Time in the ring of 128 bits: filled points measured at the level, hollow ones "
            "MODELED from local runs; published measured.",
        ),
        Figure(
            pictures["exp_memory"],
            "memory",
            "Memory of the largest worker (ours with TensorFlow).",
        ),
    ]
    comparison_parts: list[Part] = [
        "How many times better ours is: fewer bytes, rounds, seconds; a higher score. "
        + published.CAVEAT
        + " Like for like are the columns of an evaluator's bytes and of rounds with the dealer's "
        "material there.",
        tables.comparison_table(study),
    ]
    advice: list[Part] = [
        Items(advisor.advice_sentences()),
        "(Cheapest by bytes and rounds at net2 for 10,000 elements, of the forms whose declared "
        "range holds x.)",
    ]
    sections = [
        Section("cost", "Cost and accuracy", cost),
        Section("time", "Time and memory", time),
        Section("levels", "Network levels", _level_parts(study)),
        Section("published", "Comparison with the published figures", comparison_parts),
        Section("advice", "Which form to take", advice),
        Section("notes", "Notes", [Items(collect_study_notes(study))]),
    ]
    foot = (
        "Files: exp.csv (every measurement), exp_accuracy.csv, exp_fits.csv (y = a n + b), "
        "exp_levels.csv (the network levels), exp_compare.csv (all metrics next to the published "
        "ones)."
    )
    title = "The private exponential: four forms, two rings, six dimensions"
    return Page(title, lede, sections, foot)


def _net2_source(study: ExpStudy) -> str:
    sources = {study.quantity_source(form, "seconds_net2") for form in study.main_forms}
    return MEASURED if sources == {MEASURED} else MODELED.upper()


def _level_parts(study: ExpStudy) -> list[Part]:
    parts: list[Part] = [
        "Delay and egress: what the links were found to hold before anything was measured. "
        "Predicted: local time + rounds x latency + bytes of the busiest party x 8 / rate.",
        tables.exp_links_table(study),
    ]
    checked = tables.exp_model_table(study)
    if len(checked.head) > 1:
        parts += [
            "Measured seconds / predicted over measured, at the largest n that all forms share:",
            checked,
        ]
    return parts
