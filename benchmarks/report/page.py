"""The page of records, section by section."""

# ruff: noqa: RUF001 (a page is typeset with the signs that belong there)

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tfe_bench import __version__
from tfe_bench.benchmarks import published
from tfe_bench.benchmarks.fields import PerParty
from tfe_bench.benchmarks.published import PublishedFigure as Published
from tfe_bench.benchmarks.records import Record
from tfe_bench.benchmarks.report import annexes, cells, curve, learning, network, published_parts
from tfe_bench.benchmarks.report.comparison_columns import (
    best_published_pair,
    format_published_size,
    latest_records,
    plain_profile,
    record_extents,
    record_sort_key,
)
from tfe_bench.benchmarks.report.drawing import Picture
from tfe_bench.benchmarks.report.html import escape_text
from tfe_bench.benchmarks.report.network import NetworkShare
from tfe_bench.benchmarks.report.parts import (
    Cell,
    Columns,
    Figure,
    Items,
    Page,
    Part,
    RawHtml,
    Section,
    build_report_table,
    number_legend_keys,
)
from tfe_bench.benchmarks.report.plots import MOST_ROWS
from tfe_bench.benchmarks.report.reading import Entry, ReportInput
from tfe_bench.benchmarks.table import (
    describe_opened_values,
    format_three_digits,
    human_seconds,
)

_TILES = 6
Pictures = Mapping[str, Picture]


def build_report_page(reading: ReportInput, pictures: Pictures) -> Page:
    """Return the page of some records."""
    newest = latest_records(reading.records)
    others = [
        section
        for provider in annexes.load_report_sections()[0].values()
        if (records := provider.select_records(reading.others))
        for section in provider.build_sections(records, pictures)
    ]
    notes = [Section("notes", "How to read this", [Items(_report_notes(reading))])]
    sections = [
        Section("headline", "Headline figures", _headline_parts(newest)),
        Section(
            "published", "Beside published figures", published_parts.build_published_parts(newest)
        ),
        Section("time", "Time against n", _time_parts(pictures)),
        Section("network", "Rounds and latency", _report_network_parts(newest, pictures)),
        Section("bytes", "Bytes", _report_traffic_parts(newest, pictures)),
        Section("memory", "Memory", _memory_parts(newest, pictures)),
        Section("cores", "Processor cores", curve.build_curve_parts(reading.records)),
        Section("learning", "Training", _learning_parts(newest, pictures)),
        Section("records", "All records", _report_record_parts(reading.records)),
    ]
    if not reading.records:
        sections = []
    foot = RawHtml(
        f"Made by tfe_bench {escape_text(__version__)} from {_describe_record_files(reading)}."
    )
    return Page("tfe_bench: measurements", _lede_parts(reading), sections + others + notes, foot)


def _describe_record_files(reading: ReportInput) -> str:
    names = [path.name for path in reading.files]
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(f"<code>{escape_text(name)}</code>" for name in names[:6]) + more


def _lede_parts(reading: ReportInput) -> list[Part]:
    records, others = reading.records, reading.others
    entries: list[Entry] = [*records, *others]
    times = [entry.time for entry in entries]
    first, last = min(times)[:10], max(times)[:10]
    when = f"on {first}" if first == last else f"from {first} to {last}"
    machines = list(dict.fromkeys(map(cells.describe_machine, entries)))
    where = machines[0] if len(machines) == 1 else f"{len(machines)} machines"
    wrong = [r for r in records if r.correct is False]
    lost = [m for m in others if m.correct is False]
    unchecked = sum(r.correct is None for r in records)
    words = "Secure three-party computation over replicated shares, one semi-honest corruption. "
    for provider in annexes.load_report_sections()[0].values():
        if provider.introduction and provider.select_records(others):
            words += f"{provider.introduction} "
    words += f"{cells.format_count(len(times), 'measurement')} {when}, on {where}."
    if not wrong and not lost:
        words += " Every result that was checked agrees with the plaintext."
    if unchecked:
        words += f" {cells.format_count(unchecked, 'result')} not checked."
    if not wrong and not lost:
        return [words]
    names = ", ".join(
        dict.fromkeys(
            [f"{r.workload} {format_published_size(r)}" for r in wrong]
            + [m.describe_work() for m in lost]
        )
    )
    sentence = (
        f'<p class="warn"><span class="bad">Wrong results:</span> {len(wrong) + len(lost)} of '
        f"{len(times)} ({escape_text(names)}). They are listed below and compared with nothing.</p>"
    )
    return [words, RawHtml(sentence)]


def _headline_parts(newest: Sequence[Record]) -> list[Part]:
    largest: dict[tuple[str, str], Record] = {}
    for record in newest:
        key = (record.workload, plain_profile(record))
        if key not in largest or (record_extents(record) or ()) > (
            record_extents(largest[key]) or ()
        ):
            largest[key] = record
    ranked = sorted(
        largest.values(), key=lambda r: best_published_pair(r) is None
    )  # otherwise in their order
    tiles = "\n".join(_headline_tile(record) for record in ranked[:_TILES])
    sentence = (
        "Median run time of the largest size of each workload and network; building the graph and "
        f"starting the workers not counted. {published.CAVEAT}"
    )
    return [
        RawHtml(f'<div class="tiles">\n{tiles}\n</div>'),
        RawHtml(f'<p class="say">{escape_text(sentence)}</p>'),
    ]


def _headline_tile(record: Record) -> str:
    number, _, unit = human_seconds(record.seconds.median).partition(" ")
    pair = best_published_pair(record)
    below = ""
    if record.rounds_ahead is not None:
        below = f"{record.rounds_ahead:,} round{'' if record.rounds_ahead == 1 else 's'}"
    if pair is not None and (ratio := pair.ratio) is not None:
        times = format_three_digits(ratio if ratio >= 1 else 1 / ratio)
        words = f"{times}× {'as fast as' if ratio >= 1 else 'slower than'}"
        theirs = f"{human_seconds(pair.figure.seconds)}, {pair.figure.profile.upper()}"
        if not pair.exact:
            theirs += f", n = {(pair.figure.elements or (0,))[0]:,}"
        below = (
            f"<b>{escape_text(words)}</b> {escape_text(pair.figure.system)} published "
            f"({escape_text(theirs)})"
        )
    heading = (
        f"{escape_text(record.workload)} {escape_text(cells.readable_size(record))}, "
        f"{cells.network_cell(record).html}"
    )
    return (
        f'<div class="tile"><h3>{heading}</h3><div class="big">{escape_text(number)}'
        f"<small>{escape_text(unit)}</small></div><p>{below}</p></div>"
    )


def _time_parts(pictures: Pictures) -> list[Part]:
    if "time" not in pictures:
        return ["No records of several sizes, or of work that is published."]
    return _picture_parts(
        pictures,
        "time",
        "run time against n on logarithmic scales, ours and published",
        "Run time against n, both axes logarithmic. Filled circles are our medians, their bars the "
        "fastest and slowest run; open marks are published figures, measured on other hardware. "
        "A steeper line grows faster; a flat one is dominated by the network's rounds.",
    )


def _picture_parts(pictures: Pictures, name: str, words: str, caption: str) -> list[Part]:
    """Return the picture of a name, if there is one."""
    return [Figure(pictures[name], words, caption)] if name in pictures else []


def _report_network_parts(newest: Sequence[Record], pictures: Pictures) -> list[Part]:
    shares = [
        (record, of) for record in newest if (of := network.network_share(record)) is not None
    ]
    if not shares:
        return [
            RawHtml(
                "<p>All records are of this machine's loopback: there is no latency that rounds "
                "could cost. Measure with <code>--profile wan</code> to see their share.</p>"
            )
        ]

    def of_predicted(r: Record, _: NetworkShare) -> Cell:
        forecast = network.predicted_seconds(r)
        return cells.ratio(r.seconds.median / forecast if forecast else None)

    columns: Columns[Record, NetworkShare] = {
        "work": lambda r, _: _describe_record_work(r),
        "network": lambda r, _: cells.network_cell(r),
        "rounds": lambda r, _: cells.whole(r.rounds_ahead),
        "rounds × latency, s": lambda _, of: cells.seconds(of.latency),
        "bytes / rate, s": lambda _, of: cells.seconds(of.transfer),
        "measured, s": lambda r, _: cells.seconds(r.seconds.median),
        "measured / floor": lambda r, of: cells.ratio(
            r.seconds.median / of.floor if of.floor > 0 else None
        ),
        "predicted, s": lambda r, _: cells.seconds(network.predicted_seconds(r)),
        "measured / predicted": of_predicted,
    }
    caption = (
        "What the network alone must take, and what was measured. Latency and transfer overlap: "
        "the floor is the larger of the two. Rounds are those with the "
        "dealer's material already there; the latency is the one measured on the links where the "
        "record has it, else the profile's; bytes are those of the party that sends most."
    )
    drawn = _picture_parts(
        pictures,
        "network",
        "measured time against rounds times latency",
        "Measured time against rounds × latency, both axes logarithmic. On the line the "
        "network's latency is all there is; the height above it is computing and transfer.",
    )
    return [*drawn, build_report_table(columns, shares, caption)]


def _report_traffic_parts(newest: Sequence[Record], pictures: Pictures) -> list[Part]:
    by_work = {
        f"{_describe_record_work(r)} {r.protocol}": (r, r.bytes_sent)
        for r in newest
        if r.bytes_sent
    }
    if not by_work:
        return ["No record counts bytes."]

    def per_element(r: Record, sent: PerParty) -> Cell:
        count = math.prod(record_extents(r) or (0,))
        return cells.seconds(sum(sent) / count if count else None)

    def headers(r: Record, sent: PerParty) -> Cell:
        total = sum(sent)
        framed = sum(r.frame_bytes) if r.frame_bytes and total else None
        return cells.part(None if framed is None else 100 * (framed - total) / total)

    columns: Columns[Record, PerParty] = {
        "work": lambda r, _: _describe_record_work(r),
        "party 0, MB": lambda _, sent: cells.megabytes(sent[0]),
        "party 1, MB": lambda _, sent: cells.megabytes(sent[1]),
        "party 2, MB": lambda _, sent: cells.megabytes(sent[2]),
        "all, MB": lambda _, sent: cells.megabytes(sum(sent)),
        "bytes per element": per_element,
        "headers": headers,
        "rounds, total": lambda r, _: cells.whole(r.rounds),
        "rounds, online": lambda r, _: cells.whole(r.rounds_ahead),
    }
    caption = (
        "Payload that each party sent in one run, counted at the channel; elements are those of "
        "the input. “headers” is what messages add to it. They are the same on every network."
    )
    drawn = _picture_parts(
        pictures,
        "bytes",
        "bytes sent by each party",
        "Bytes that each party sent in one run, logarithmic: marks far apart mean that the "
        f"load is uneven.{_first_rows_sentence(len(by_work))}",
    )
    return [*drawn, build_report_table(columns, by_work.values(), caption)]


def _describe_record_work(record: Record) -> str:
    return f"{record.workload} {cells.readable_size(record)}"


def _first_rows_sentence(count: int) -> str:
    return f" The first {MOST_ROWS} of the table below." if count > MOST_ROWS else ""


def _memory_parts(newest: Sequence[Record], pictures: Pictures) -> list[Part]:
    grown = [(record, record.peak_memory) for record in newest if record.peak_memory is not None]
    if not grown:
        return ["No record has memory."]
    columns: Columns[Record, PerParty] = {
        "work": lambda r, _: _describe_record_work(r),
        "network": lambda r, _: cells.network_cell(r),
        "party 0, MB": lambda _, peak: cells.megabytes(peak[0]),
        "party 1, MB": lambda _, peak: cells.megabytes(peak[1]),
        "party 2, MB": lambda _, peak: cells.megabytes(peak[2]),
        "idle worker, MB": lambda r, _: cells.megabytes(
            max(r.idle_memory) if r.idle_memory else None
        ),
    }
    caption = (
        "The most that each worker held during the runs, above what an idle worker holds (last "
        "column, mostly TensorFlow itself)."
    )
    drawn = _picture_parts(
        pictures,
        "memory",
        "growth of each worker's memory",
        "Growth of each worker's memory above an idle one, logarithmic."
        + _first_rows_sentence(len({_describe_record_work(record) for record, _ in grown})),
    )
    return [*drawn, build_report_table(columns, grown, caption)]


def _learning_parts(newest: Sequence[Record], pictures: Pictures) -> list[Part]:
    curves = [(curve, curve.published_figure()) for curve in learning.collect_curves(newest)]
    if not curves:
        return [
            RawHtml(
                "<p>No record is of a training of an epoch or more. "
                "<code>python -m tfe_bench train logistic --discard</code> makes one.</p>"
            )
        ]

    def gap_cell(c: learning.Curve, _: Published | None) -> Cell:
        return cells.report_number_cell(
            "{:+.2f}".format, "", 100 * (c.private[-1] - c.plain[-1]) if c.plain else None
        )

    columns: Columns[learning.Curve, Published | None] = {
        "model": lambda c, _: c.model,
        "data": lambda c, _: c.dataset,
        "optimizer": lambda c, _: c.optimizer,
        "network": lambda c, _: cells.network_cell(c.record),
        "per batch, s": lambda c, _: cells.seconds(c.record.seconds.median),
        "epochs": lambda c, _: cells.report_number_cell("{:g}".format, "", c.epochs[-1]),
        "private, %": lambda c, _: cells.percent(100 * c.private[-1]),
        "plaintext, %": lambda c, _: cells.percent(100 * c.plain[-1] if c.plain else None),
        "difference": gap_cell,
        "tf-encrypted, %": lambda _, theirs: cells.percent(theirs.accuracy if theirs else None),
    }
    caption = (
        "Right answers on the test rows after the last epoch: of the private training, of the same "
        "training in plaintext (same weights to begin with, same batches in the same order), and "
        "as TF Encrypted published it after 5 epochs. Some of the published figures lie slightly "
        "above what plaintext reaches with these settings."
    )
    drawn = _picture_parts(
        pictures,
        "learning",
        "right answers by epochs, private and in plaintext",
        "Right answers by epochs. Lines with circles are private, dashed ones with crosses the "
        "same training in plaintext; diamonds are TF Encrypted's published figures.",
    )
    return [*drawn, build_report_table(columns, curves, caption)]


def _report_record_parts(records: Sequence[Record]) -> list[Part]:
    machines = number_legend_keys(map(cells.describe_machine, records), "M")
    codes = number_legend_keys(map(cells.describe_record_versions, records), "C")
    columns: Columns[Record] = {
        "workload": lambda r: r.workload,
        "n": cells.record_size_cell,
        "network": cells.network_cell,
        "median, s": lambda r: cells.seconds(r.seconds.median),
        "min, s": lambda r: cells.seconds(r.seconds.min),
        "max, s": lambda r: cells.seconds(r.seconds.max),
        "runs": lambda r: cells.whole(r.repeats),
        "graph, s": lambda r: cells.seconds(r.build_seconds),
        "CPU, s": lambda r: cells.seconds(sum(r.cpu_seconds) if r.cpu_seconds else None),
        "right": cells.correctness_cell,
        "protocol": lambda r: f"{r.protocol}, 2^{r.ring}, {r.fractional_bits} bits",
        "on": lambda r: (
            f"{machines[cells.describe_machine(r)]} {codes[cells.describe_record_versions(r)]}"
        ),
        "cluster": lambda r: r.cluster,
        "opened": lambda r: "–" if r.opened is None else describe_opened_values(r.opened),
        "UTC": lambda r: r.time[:16].replace("T", " "),
        "parameters": cells.describe_record_parameters,
    }
    caption = (
        "Every record that was read, also older ones and those with wrong results. “network” "
        "names the profile, and how it was made; “CPU” is all three workers' together; “on” names "
        "machine and code; "
        "“opened” is what the whole job made public to the workers. The keys of “on”:"
    )
    legend = Items([*machines, *codes], [*machines.values(), *codes.values()])
    rows = ((record,) for record in sorted(records, key=record_sort_key))
    return [build_report_table(columns, rows, caption), legend]


def _report_notes(reading: ReportInput) -> list[str]:
    records = reading.records
    notes = [
        published.CAVEAT,
        f"TF Encrypted's figures: {published.TF_ENCRYPTED}",
        "A time is the median of its runs after a warm-up, from a barrier of the three workers to "
        "the end of the last of them. Sharing inputs, building graphs and starting workers are "
        "measured apart.",
        "“near” sizes: published tables have n = 1000 and 1,000,000 where ours have 2^10 and 2^20, "
        "2.4 % and 4.9 % more. No figure is scaled.",
    ]
    profiles = {plain_profile(r) for r in records}
    if "local" in profiles:
        notes.append(
            "Profile local: all three parties share one machine and its cores, over its loopback. "
            "The comparison with published LANs of three hosts is neither fair to us (a third "
            "of the cores each) nor to them (no wire at all)."
        )
    emulations = sorted({r.profile_emulation for r in records if r.profile_emulation})
    if emulations:
        notes.append(f"Networks were emulated, as each record says: {'; '.join(emulations)}.")
    if any("host-limited" in f"{r.profile} {r.profile_emulation}" for r in records):
        notes.append(
            "“host-limited”: this machine cannot hold the profile's figures; such a record is one "
            "of the machine, not of the named network."
        )
    if not all(r.tls for r in records):
        notes.append("Some records are without TLS; they are marked.")
    if any((r.commit or "").endswith("+dirty") for r in records):
        notes.append("Commits with “+dirty” had changes that were not committed.")
    return [*notes, *reading.notes]
