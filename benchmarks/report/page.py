"""The page of records: what it says, section by section."""

# ruff: noqa: RUF001 (a page is typeset with the signs that belong there)

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from tfe_bench import __version__
from tfe_bench.benchmarks import published
from tfe_bench.benchmarks.published import Figure as Published
from tfe_bench.benchmarks.records import Record
from tfe_bench.benchmarks.report import cells, learning, network
from tfe_bench.benchmarks.report.beside import (
    best_pair,
    extents,
    latest,
    order,
    pairs,
    profile_of,
    size_of,
)
from tfe_bench.benchmarks.report.drawing import Picture
from tfe_bench.benchmarks.report.html import text
from tfe_bench.benchmarks.report.parts import (
    NOTHING,
    Cell,
    Figure,
    Items,
    Number,
    Page,
    Part,
    Raw,
    Section,
    Table,
)
from tfe_bench.benchmarks.report.plots import MOST_ROWS
from tfe_bench.benchmarks.report.reading import Reading
from tfe_bench.benchmarks.table import human_seconds, three_digits

_TILES = 6
Pictures = Mapping[str, Picture]


def make(reading: Reading, pictures: Pictures) -> Page:
    """The page of some records."""
    newest = latest(reading.records)
    sections = [
        Section("headline", "Headline figures", _headline(newest)),
        Section("published", "Beside published figures", _published(newest)),
        Section("time", "Time against n", _time(pictures)),
        Section("network", "Rounds and latency", _network(newest, pictures)),
        Section("bytes", "Bytes", _bytes(newest, pictures)),
        Section("memory", "Memory", _memory(newest, pictures)),
        Section("learning", "Training", _learning(newest, pictures)),
        Section("records", "All records", _records(reading.records)),
        Section("notes", "How to read this", [Items(_notes(reading))]),
    ]
    foot = Raw(f"Made by tfe_bench {text(__version__)} from {_files(reading)}.")
    return Page("tfe_bench: measurements", _lede(reading.records), sections, foot)


def _files(reading: Reading) -> str:
    names = [path.name for path in reading.files]
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(f"<code>{text(name)}</code>" for name in names[:6]) + more


def _lede(records: Sequence[Record]) -> list[Part]:
    first, last = min(r.time for r in records)[:10], max(r.time for r in records)[:10]
    when = f"on {first}" if first == last else f"from {first} to {last}"
    machines = list(dict.fromkeys(map(cells.machine, records)))
    where = machines[0] if len(machines) == 1 else f"{len(machines)} machines"
    wrong = [r for r in records if r.correct is False]
    unchecked = sum(r.correct is None for r in records)
    words = (
        "Secure three-party computation over replicated shares, one semi-honest corruption. "
        f"{cells.counted(len(records), 'measurement')} {when}, on {where}."
    )
    if not wrong:
        words += " Every result that was checked agrees with the plaintext."
    if unchecked:
        words += f" {cells.counted(unchecked, 'result')} not checked."
    if not wrong:
        return [words]
    names = ", ".join(dict.fromkeys(f"{r.workload} {size_of(r)}" for r in wrong))
    said = (
        f'<p class="warn"><span class="bad">Wrong results:</span> {len(wrong)} of '
        f"{len(records)} ({text(names)}). They are listed below and compared with nothing.</p>"
    )
    return [words, Raw(said)]


def _headline(newest: Sequence[Record]) -> list[Part]:
    largest: dict[tuple[str, str], Record] = {}
    for record in newest:
        key = (record.workload, profile_of(record))
        if key not in largest or (extents(record) or ()) > (extents(largest[key]) or ()):
            largest[key] = record
    ranked = sorted(largest.values(), key=lambda r: best_pair(r) is None)  # else as they come
    tiles = "\n".join(_tile(record) for record in ranked[:_TILES])
    said = (
        "Median run time of the largest size of each workload and network; building the graph and "
        f"starting the workers not counted. {published.CAVEAT}"
    )
    return [
        Raw(f'<div class="tiles">\n{tiles}\n</div>'),
        Raw(f'<p class="say">{text(said)}</p>'),
    ]


def _tile(record: Record) -> str:
    number, _, unit = human_seconds(record.seconds.median).partition(" ")
    pair = best_pair(record)
    below = f"{record.rounds_ahead:,} rounds" if record.rounds_ahead is not None else ""
    if pair is not None and pair.ratio is not None:
        ratio = pair.ratio
        words = (
            f"{three_digits(ratio)}× as fast as"
            if ratio >= 1
            else f"{three_digits(1 / ratio)}× slower than"
        )
        theirs = f"{human_seconds(pair.figure.seconds)}, {pair.figure.profile.upper()}"
        if not pair.exact:
            theirs += f", n = {(pair.figure.elements or (0,))[0]:,}"
        below = f"<b>{text(words)}</b> {text(pair.figure.system)} published ({text(theirs)})"
    what = f"{text(record.workload)} {text(cells.size(record))}, {cells.network(record).html}"
    return (
        f'<div class="tile"><h3>{what}</h3><div class="big">{text(number)}'
        f"<small>{text(unit)}</small></div><p>{below}</p></div>"
    )


def _published(newest: Sequence[Record]) -> list[Part]:
    rows: list[list[Cell]] = []
    found = [(record, pairs(record)) for record in newest]
    legend = _legend((_source(p.figure) for _, of in found for p in of), "S")
    for record, beside in found:
        for pair in beside:
            theirs = pair.figure
            elements = theirs.elements
            size = " × ".join(f"{n:,}" for n in elements) if elements else theirs.size
            rows.append(
                [
                    record.workload,
                    Number((extents(record) or (0,))[0], cells.size(record)),
                    cells.network(record),
                    cells.seconds(record.seconds.median),
                    cells.seconds(theirs.seconds),
                    cells.ratio(pair.ratio),
                    f"{theirs.system} [{legend[_source(theirs)]}]",
                    size if pair.exact else f"{size} (near)",
                    theirs.profile.upper() if theirs.profile != "local" else "one host",
                    cells.seconds(record.build_seconds),
                    cells.seconds(theirs.build_seconds),
                ]
            )
    if not rows:
        return ["No record is of work that a published figure is known of."]
    head = [
        *("workload", "n", "network", "ours, s", "theirs, s", "theirs / ours", "system"),
        *("their n", "their network", "graph, ours", "graph, theirs"),
    ]
    caption = (
        "Our newest record of each kind beside every published figure of the same work within 5 % "
        "of its size. “theirs / ours” above 1 means that we take less time. Our loopback "
        "stands beside published LANs. “graph” is building the graph, in seconds apart "
        "from the run. Sources:"
    )
    return [Table(head, rows, caption), Items([*legend], [*legend.values()])]


def _source(figure: Published) -> str:
    return f"{figure.system}: {figure.setting}; {figure.source}"


def _time(pictures: Pictures) -> list[Part]:
    if "time" not in pictures:
        return ["No records of several sizes, or of work that is published."]
    return _drawn(
        pictures,
        "time",
        "run time against n on logarithmic scales, ours and published",
        "Run time against n, both axes logarithmic. Filled circles are our medians, their bars the "
        "fastest and slowest run; open marks are published figures, measured on other hardware. "
        "A steeper line grows faster; a flat one is dominated by the network's rounds.",
    )


def _drawn(pictures: Pictures, name: str, words: str, caption: str) -> list[Part]:
    """The picture of a name, where there is one."""
    return [Figure(pictures[name], words, caption)] if name in pictures else []


def _network(newest: Sequence[Record], pictures: Pictures) -> list[Part]:
    rows: list[list[Cell]] = []
    for record in newest:
        of = network.share(record)
        if of is None:
            continue
        forecast = network.predicted(record)
        measured = record.seconds.median
        rows.append(
            [
                f"{record.workload} {cells.size(record)}",
                cells.network(record),
                cells.whole(record.rounds_ahead),
                cells.seconds(of.latency),
                cells.seconds(of.transfer),
                cells.seconds(measured),
                cells.ratio(measured / of.floor if of.floor > 0 else None),
                cells.seconds(forecast),
                cells.ratio(measured / forecast if forecast else None),
            ]
        )
    if not rows:
        return [
            Raw(
                "<p>All records are of this machine's loopback: there is no latency that rounds "
                "could cost. Measure with <code>--profile wan</code> to see their share.</p>"
            )
        ]
    head = [
        *("work", "network", "rounds", "rounds × latency, s", "bytes / rate, s", "measured, s"),
        *("measured / floor", "predicted, s", "measured / predicted"),
    ]
    caption = (
        "What the network alone must take, and what was measured. Latency and transfer overlap: "
        "the floor is the larger of the two. Rounds are those with the "
        "dealer's material already there; the latency is the one measured on the links where the "
        "record has it, else the profile's; bytes are those of the party that sends most."
    )
    drawn = _drawn(
        pictures,
        "network",
        "measured time against rounds times latency",
        "Measured time against rounds × latency, both axes logarithmic. On the line the "
        "network's latency is all there is; the height above it is computing and transfer.",
    )
    return [*drawn, Table(head, rows, caption)]


def _bytes(newest: Sequence[Record], pictures: Pictures) -> list[Part]:
    rows: dict[str, list[Cell]] = {}
    for record in newest:
        if record.bytes_sent is None:
            continue
        total, of = sum(record.bytes_sent), extents(record)
        count = math.prod(of or (0,))
        framed = record.frame_bytes
        rows[f"{record.workload} {cells.size(record)} {record.protocol}"] = [
            f"{record.workload} {cells.size(record)}",
            *(cells.megabytes(v) for v in record.bytes_sent),
            cells.megabytes(total),
            cells.seconds(total / count if count else None),
            cells.seconds(100 * (sum(framed) - total) / total if framed and total else None, " %"),
            cells.whole(record.rounds),
            cells.whole(record.rounds_ahead),
        ]
    if not rows:
        return ["No record counts bytes."]
    head = [
        *("work", "party 0, MB", "party 1, MB", "party 2, MB", "all, MB"),
        *("bytes per element", "headers", "rounds, cold", "rounds, run-ahead"),
    ]
    caption = (
        "Payload that each party sent in one run, counted at the channel; elements are those of "
        "the input. “headers” is what messages add to it. They are the same on every network."
    )
    drawn = _drawn(
        pictures,
        "bytes",
        "bytes sent by each party",
        "Bytes that each party sent in one run, logarithmic: marks far apart mean that the "
        f"load is uneven.{_first_rows(len(rows))}",
    )
    return [*drawn, Table(head, list(rows.values()), caption)]


def _first_rows(count: int) -> str:
    return f" The first {MOST_ROWS} of the table below." if count > MOST_ROWS else ""


def _memory(newest: Sequence[Record], pictures: Pictures) -> list[Part]:
    rows: list[list[Cell]] = [
        [
            f"{r.workload} {cells.size(r)}",
            cells.network(r),
            *(cells.megabytes(v) for v in r.peak_memory),
            cells.megabytes(max(r.idle_memory) if r.idle_memory else None),
        ]
        for r in newest
        if r.peak_memory is not None
    ]
    if not rows:
        return ["No record has memory."]
    head = ["work", "network", "party 0, MB", "party 1, MB", "party 2, MB", "idle worker, MB"]
    caption = (
        "The most that each worker held during the runs, above what an idle worker holds (last "
        "column, mostly TensorFlow itself)."
    )
    drawn = _drawn(
        pictures,
        "memory",
        "growth of each worker's memory",
        "Growth of each worker's memory above an idle one, logarithmic."
        + _first_rows(len({str(row[0]) for row in rows})),
    )
    return [*drawn, Table(head, rows, caption)]


def learning_rows(newest: Sequence[Record]) -> list[list[Cell]]:
    """What trainings have learnt, a row each."""
    rows: list[list[Cell]] = []
    for curve in learning.curves(newest):
        theirs = curve.published()
        plain = None if curve.plain is None else curve.plain[-1]
        gap = None if plain is None else 100 * (curve.private[-1] - plain)
        rows.append(
            [
                curve.model,
                curve.dataset,
                curve.optimizer,
                cells.network(curve.record),
                cells.seconds(curve.record.seconds.median),
                Number(curve.epochs[-1], f"{curve.epochs[-1]:g}"),
                cells.percent(100 * curve.private[-1]),
                cells.percent(None if plain is None else 100 * plain),
                NOTHING if gap is None else Number(gap, f"{gap:+.2f}"),
                cells.percent(None if theirs is None else theirs.accuracy),
            ]
        )
    return rows


def _learning(newest: Sequence[Record], pictures: Pictures) -> list[Part]:
    rows = learning_rows(newest)
    if not rows:
        return [
            Raw(
                "<p>No record is of a training of an epoch or more. "
                "<code>python -m tfe_bench train logistic --discard</code> makes one.</p>"
            )
        ]
    head = [
        *("model", "data", "optimizer", "network", "per batch, s", "epochs", "private, %"),
        *("plaintext, %", "difference", "tf-encrypted, %"),
    ]
    caption = (
        "Right answers on the test rows after the last epoch: of the private training, of the same "
        "training in plaintext (same weights to begin with, same batches in the same order), and "
        "as TF Encrypted published it after 5 epochs. Some of the published figures lie slightly "
        "above what plaintext reaches with these settings."
    )
    drawn = _drawn(
        pictures,
        "learning",
        "right answers by epochs, private and in plaintext",
        "Right answers by epochs. Lines with circles are private, dashed ones with crosses the "
        "same training in plaintext; diamonds are TF Encrypted's published figures.",
    )
    return [*drawn, Table(head, rows, caption)]


def _records(records: Sequence[Record]) -> list[Part]:
    machines, codes = (
        _legend(map(cells.machine, records), "M"),
        _legend(map(cells.code, records), "C"),
    )
    rows: list[list[Cell]] = [
        [
            record.workload,
            Number((extents(record) or (0,))[0], cells.size(record)),
            cells.network(record),
            cells.seconds(record.seconds.median),
            cells.seconds(record.seconds.min),
            cells.seconds(record.seconds.max),
            cells.whole(record.repeats),
            cells.seconds(record.build_seconds),
            cells.seconds(sum(record.cpu_seconds) if record.cpu_seconds else None),
            cells.correct(record),
            f"{record.protocol}, 2^{record.ring}, {record.fractional_bits} bits",
            f"{machines[cells.machine(record)]} {codes[cells.code(record)]}",
            record.cluster,
            record.time[:16].replace("T", " "),
            cells.parameters(record),
        ]
        for record in sorted(records, key=order)
    ]
    head = [
        *(
            "workload",
            "n",
            "network",
            "median, s",
            "min, s",
            "max, s",
            "runs",
            "graph, s",
            "CPU, s",
        ),
        *("right", "protocol", "on", "cluster", "UTC", "parameters"),
    ]
    caption = (
        "Every record that was read, also older ones and those with wrong results. “network” "
        "names the profile, and how it was made; “CPU” is all three workers' together; “on” names "
        "machine and code:"
    )
    legend = Items([*machines, *codes], [*machines.values(), *codes.values()])
    return [Table(head, rows, caption), legend]


def _legend(words: Iterable[str], letter: str) -> dict[str, str]:
    return {w: f"{letter}{i}" for i, w in enumerate(dict.fromkeys(words), 1)}


def _notes(reading: Reading) -> list[str]:
    records = reading.records
    said = [
        published.CAVEAT,
        f"TF Encrypted's figures: {published.TF_ENCRYPTED}",
        "A time is the median of its runs after a warm-up, from a barrier of the three workers to "
        "the end of the last of them. Sharing inputs, building graphs and starting workers are "
        "measured apart.",
        "“near” sizes: published tables have n = 1000 and 1,000,000 where ours have 2^10 and 2^20, "
        "2.4 % and 4.9 % more. No figure is scaled.",
    ]
    profiles = {profile_of(r) for r in records}
    if "local" in profiles:
        said.append(
            "Profile local: all three parties share one machine and its cores, over its loopback. "
            "It stands beside published LANs of three hosts, which is neither fair to us (a third "
            "of the cores each) nor to them (no wire at all)."
        )
    emulations = sorted({r.profile_emulation for r in records if r.profile_emulation})
    if emulations:
        said.append(f"Networks were emulated, as each record says: {'; '.join(emulations)}.")
    if any("host-limited" in f"{r.profile} {r.profile_emulation}" for r in records):
        said.append(
            "“host-limited”: this machine cannot hold the profile's figures; such a record is one "
            "of the machine, not of the named network."
        )
    if not all(r.tls for r in records):
        said.append("Some records are without TLS; they are marked.")
    if any((r.commit or "").endswith("+dirty") for r in records):
        said.append("Commits with “+dirty” had changes that were not committed.")
    return [*said, *reading.notes]
