"""The report's section of published figures: of the same work, of batches, of other work."""

# ruff: noqa: RUF001 (a page is typeset with the signs that belong there)

from __future__ import annotations

from collections.abc import Sequence

from tfe_bench.benchmarks import published
from tfe_bench.benchmarks.published import PublishedFigure as Published
from tfe_bench.benchmarks.records import Record
from tfe_bench.benchmarks.report import cells
from tfe_bench.benchmarks.report.comparison_columns import (
    RecordPair,
    Throughput,
    batch_throughput,
    find_published_pairs,
    plain_profile,
    published_throughputs,
)
from tfe_bench.benchmarks.report.parts import (
    Columns,
    Items,
    Part,
    Table,
    build_report_table,
    number_legend_keys,
)


def build_published_parts(newest: Sequence[Record]) -> list[Part]:
    """Return the section of published figures for the newest records."""
    every = [(record, pair) for record in newest for pair in find_published_pairs(record)]
    matched = (
        _matched_parts(every)
        if every
        else ["No record is of work that a published figure is known of."]
    )
    return [*matched, *build_throughput_parts(newest), build_unmatched_table()]


def _matched_parts(every: Sequence[tuple[Record, RecordPair]]) -> list[Part]:
    legend = number_legend_keys((_describe_source(pair.figure) for _, pair in every), "S")

    def published_size(_: Record, pair: RecordPair) -> str:
        elements = pair.figure.elements
        size = " × ".join(f"{n:,}" for n in elements) if elements else pair.figure.size
        return size if pair.exact else f"{size} (near)"

    def published_network(_: Record, pair: RecordPair) -> str:
        return pair.figure.profile.upper() if pair.figure.profile != "local" else "one host"

    columns: Columns[Record, RecordPair] = {
        "workload": lambda r, _: r.workload,
        "n": lambda r, _: cells.record_size_cell(r),
        "network": lambda r, _: cells.network_cell(r),
        "ours, s": lambda r, _: cells.seconds(r.seconds.median),
        "theirs, s": lambda _, p: cells.seconds(p.figure.seconds),
        "theirs / ours": lambda _, p: cells.ratio(p.ratio),
        "system": lambda _, p: f"{p.figure.system} [{legend[_describe_source(p.figure)]}]",
        "their n": published_size,
        "their network": published_network,
        "graph, ours": lambda r, _: cells.seconds(r.build_seconds),
        "graph, theirs": lambda _, p: cells.seconds(p.figure.build_seconds),
    }
    caption = (
        "Our newest record of each kind next to every published figure of the same work within 5 % "
        "of its size. “theirs / ours” above 1 means that we take less time. Our loopback "
        "is compared with published LANs. “graph” is building the graph, in seconds apart "
        "from the run. Sources:"
    )
    return [build_report_table(columns, every, caption), Items([*legend], [*legend.values()])]


def build_throughput_parts(newest: Sequence[Record]) -> list[Part]:
    """Return the batches of predictions, and published batches of the same networks."""
    batches = [(r, t) for r in newest if (t := batch_throughput(r)) is not None]
    if not batches:
        return []
    lines = [
        (f"ours, {plain_profile(r)}", r.workload, t, cells.describe_machine(r)) for r, t in batches
    ]
    for network in dict.fromkeys(r.workload for r, _ in batches):
        lines += [
            (f"{f.system}, {f.profile}", network, t, _describe_source(f))
            for f, t in published_throughputs(network)
        ]
    columns: Columns[str, str, Throughput, str] = {
        "system, network": lambda system, *_: system,
        "model": lambda _, network, *__: network,
        "batch": lambda _, __, t, ___: cells.whole(t.batch),
        "per second": lambda _, __, t, ___: cells.seconds(t.per_second),
        "per core-second": lambda _, __, t, ___: cells.seconds(t.per_core_second),
        "on": lambda *line: line[3],
    }
    caption = (
        "Samples of a batch by second and by core-second of all parties. Ours are by processor "
        "time of the three workers; published ones by time and number of processes, which also "
        "counts the time in which a process waits."
    )
    return [build_report_table(columns, lines, caption)]


def build_unmatched_table() -> Table:
    """Return published figures of work that no record here can be of."""
    columns: Columns[Published] = {
        "system": lambda f: f.system,
        "work": lambda f: f"{f.workload}: {f.size}",
        "seconds": lambda f: cells.seconds(f.seconds),
        "setting and source": lambda f: f"{f.setting}; {f.source}",
    }
    figures = ((f,) for f in published.load_figures() if f.workload in published.UNMATCHED)
    caption = "Published figures of work that this benchmark does not run, for orders of magnitude."
    return build_report_table(columns, figures, caption)


def _describe_source(figure: Published) -> str:
    return f"{figure.system}: {figure.setting}; {figure.source}"
