"""The report's page: what it says, section by section."""

# ruff: noqa: RUF001 (a page is typeset with the signs that belong there)

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfe_bench import __version__
from tfe_bench.benchmarks import judged, published
from tfe_bench.benchmarks.published import Figure
from tfe_bench.benchmarks.records import Record
from tfe_bench.benchmarks.report import learning, network
from tfe_bench.benchmarks.report.beside import (
    best_pair,
    extents,
    latest,
    order,
    pairs,
    profile_of,
    size_of,
)
from tfe_bench.benchmarks.report.markup import (
    NOTHING,
    Cell,
    Number,
    Raw,
    document,
    picture,
    table,
    text,
)
from tfe_bench.benchmarks.report.plots import MOST_ROWS, Picture
from tfe_bench.benchmarks.report.reading import Reading
from tfe_bench.benchmarks.table import human_bytes, human_seconds, three_digits

_TILES = 6
SECTIONS = {
    "headline": "Headline figures",
    "published": "Beside published figures",
    "time": "Time against n",
    "network": "Rounds and latency",
    "bytes": "Bytes",
    "memory": "Memory",
    "learning": "Training",
    "records": "All records",
    "notes": "How to read this",
}


def render(reading: Reading, pictures: Mapping[str, Picture]) -> str:
    """Returns the page of some records."""
    records = reading.records
    newest = latest(records)
    bodies = {
        "headline": _headline(newest),
        "published": _published(newest),
        "time": _time(pictures),
        "network": _network(newest, pictures),
        "bytes": _bytes(newest, pictures),
        "memory": _memory(newest, pictures),
        "learning": _learning(newest, pictures),
        "records": _records(records),
        "notes": _notes(reading),
    }
    links = "".join(f'<a href="#{key}">{text(title)}</a>' for key, title in SECTIONS.items())
    sections = "\n".join(
        f'<section id="{key}">\n<h2>{text(SECTIONS[key])}</h2>\n{body}\n</section>'
        for key, body in bodies.items()
    )
    title = "tfe_bench: measurements"
    head = f"<header>\n<h1>{title}</h1>\n{_lede(records)}\n<nav>{links}</nav>\n</header>"
    foot = f"<footer>Made by tfe_bench {text(__version__)} from {_files(reading)}.</footer>"
    return document(title, f"{head}\n<main>\n{sections}\n</main>\n{foot}")


def _files(reading: Reading) -> str:
    names = [path.name for path in reading.files]
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(f"<code>{text(name)}</code>" for name in names[:6]) + more


def _lede(records: Sequence[Record]) -> str:
    first, last = min(r.time for r in records)[:10], max(r.time for r in records)[:10]
    when = f"on {first}" if first == last else f"from {first} to {last}"
    machines = list(dict.fromkeys(_machine(r) for r in records))
    where = machines[0] if len(machines) == 1 else f"{len(machines)} machines"
    wrong = [r for r in records if r.correct is False]
    unchecked = sum(r.correct is None for r in records)
    words = (
        "Secure three-party computation over replicated shares, one semi-honest corruption. "
        f"{_counted(len(records), 'measurement')} {when}, on {where}."
    )
    if not wrong:
        words += " Every result that was checked agrees with the plaintext."
    if unchecked:
        words += f" {_counted(unchecked, 'result')} not checked."
    said = f'<p class="lede">{text(words)}</p>'
    if wrong:
        names = ", ".join(dict.fromkeys(f"{r.workload} {size_of(r)}" for r in wrong))
        said += (
            f'<p class="warn"><span class="bad">Wrong results:</span> {len(wrong)} of '
            f"{len(records)} ({text(names)}). They are listed below and compared with nothing.</p>"
        )
    return said


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


# ---- cells


def _size(record: Record) -> str:
    of = extents(record)
    return " × ".join(f"{n:,}" for n in of) if of else size_of(record) or "–"


def _seconds(value: float | None, after: str = "") -> Number:
    if value is None:
        return NOTHING
    return Number(value, three_digits(value) if value >= 1e-3 else f"{value:.5f}", after)


def _ratio(value: float | None) -> Cell:
    if value is None:
        return NOTHING
    return Number(value, three_digits(value), "×")


def _whole(value: int | None) -> Number:
    return NOTHING if value is None else Number(value, f"{value:,}")


def _megabytes(value: float | None) -> Number:
    return NOTHING if value is None else Number(value, three_digits(value / 1e6))


def _network_cell(record: Record) -> Raw:
    marks = [] if record.profile_emulation is None else [record.profile_emulation]
    if not record.tls:
        marks.append("no TLS")
    labels = "".join(f' <span class="mark">{text(m)}</span>' for m in marks)
    return Raw(text(record.profile) + labels)


def _machine(record: Record) -> str:
    of = record.machine
    memory = human_bytes(of.memory_bytes)
    return f"{of.cpu}, {_counted(of.cores, 'core')}, {memory}, {of.kernel}"


def _code(record: Record) -> str:
    sha, mark, dirty = (record.commit or "").partition("+")
    commit = f" at {sha[:12]}{mark}{dirty}" if sha else ""
    others = ", ".join(
        f"{name} {version or '–'}"
        for name, version in record.versions.items()
        if name != "tfe_bench"
    )
    return f"tfe_bench {record.versions['tfe_bench']}{commit}; {others}"


# ---- sections


def _headline(newest: Sequence[Record]) -> str:
    largest: dict[tuple[str, str], Record] = {}
    for record in newest:
        key = (record.workload, profile_of(record))
        if key not in largest or (extents(record) or ()) > (extents(largest[key]) or ()):
            largest[key] = record
    ranked = sorted(largest.values(), key=lambda r: best_pair(r) is None)  # else as they come
    tiles = "\n".join(_tile(record) for record in ranked[:_TILES])
    return (
        f'<div class="tiles">\n{tiles}\n</div>\n<p class="say">Median run time of the largest size '
        "of each workload and network; building the graph and starting the workers not counted. "
        f"{text(published.CAVEAT)}</p>"
    )


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
    what = f"{text(record.workload)} {text(_size(record))}, {_network_cell(record).html}"
    return (
        f'<div class="tile"><h3>{what}</h3><div class="big">{text(number)}'
        f"<small>{text(unit)}</small></div><p>{below}</p></div>"
    )


def _published(newest: Sequence[Record]) -> str:
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
                    Number((extents(record) or (0,))[0], _size(record)),
                    _network_cell(record),
                    _seconds(record.seconds.median),
                    _seconds(theirs.seconds),
                    _ratio(pair.ratio),
                    f"{theirs.system} [{legend[_source(theirs)]}]",
                    size if pair.exact else f"{size} (near)",
                    theirs.profile.upper() if theirs.profile != "local" else "one host",
                    _seconds(record.build_seconds),
                    _seconds(theirs.build_seconds),
                ]
            )
    if not rows:
        return "<p>No record is of work that a published figure is known of.</p>"
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
    return table(head, rows, caption) + _listed(legend)


def _source(figure: Figure) -> str:
    return f"{figure.system}: {figure.setting}; {figure.source}"


def _listed(legend: Mapping[str, str]) -> str:
    items = "".join(f"<li><b>{key}</b> {text(words)}</li>" for words, key in legend.items())
    return f'<ul class="legend">{items}</ul>'


def _time(pictures: Mapping[str, Picture]) -> str:
    if "time" not in pictures:
        return "<p>No records of several sizes, or of work that is published.</p>"
    return picture(
        pictures["time"],
        "run time against n on logarithmic scales, ours and published",
        "Run time against n, both axes logarithmic. Filled circles are our medians, their bars the "
        "fastest and slowest run; open marks are published figures, measured on other hardware. "
        "A steeper line grows faster; a flat one is dominated by the network's rounds.",
    )


def _network(newest: Sequence[Record], pictures: Mapping[str, Picture]) -> str:
    rows: list[list[Cell]] = []
    for record in newest:
        of = network.share(record)
        if of is None:
            continue
        forecast = network.predicted(record)
        measured = record.seconds.median
        rows.append(
            [
                f"{record.workload} {_size(record)}",
                _network_cell(record),
                _whole(record.rounds_ahead),
                _seconds(of.latency),
                _seconds(of.transfer),
                _seconds(measured),
                _ratio(measured / of.floor if of.floor > 0 else None),
                _seconds(forecast),
                _ratio(measured / forecast if forecast else None),
            ]
        )
    if not rows:
        return (
            "<p>All records are of this machine's loopback: there is no latency that rounds could "
            "cost. Measure with <code>--profile wan</code> to see their share.</p>"
        )
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
    drawn = (
        picture(
            pictures["network"],
            "measured time against rounds times latency",
            "Measured time against rounds × latency, both axes logarithmic. On the line the "
            "network's latency is all there is; the height above it is computing and transfer.",
        )
        if "network" in pictures
        else ""
    )
    return drawn + table(head, rows, caption)


def _bytes(newest: Sequence[Record], pictures: Mapping[str, Picture]) -> str:
    rows: dict[str, list[Cell]] = {}
    for record in newest:
        if record.bytes_sent is None:
            continue
        total, of = sum(record.bytes_sent), extents(record)
        count = 1
        for n in of or (0,):
            count *= n
        framed = record.frame_bytes
        rows[f"{record.workload} {_size(record)} {record.protocol}"] = [
            f"{record.workload} {_size(record)}",
            *(_megabytes(v) for v in record.bytes_sent),
            _megabytes(total),
            _seconds(total / count if count else None),
            _seconds(100 * (sum(framed) - total) / total if framed and total else None, " %"),
            _whole(record.rounds),
            _whole(record.rounds_ahead),
        ]
    if not rows:
        return "<p>No record counts bytes.</p>"
    head = [
        *("work", "party 0, MB", "party 1, MB", "party 2, MB", "all, MB"),
        *("bytes per element", "headers", "rounds, cold", "rounds, run-ahead"),
    ]
    caption = (
        "Payload that each party sent in one run, counted at the channel; elements are those of "
        "the input. “headers” is what messages add to it. They are the same on every network."
    )
    drawn = ""
    if "bytes" in pictures:
        drawn = picture(
            pictures["bytes"],
            "bytes sent by each party",
            "Bytes that each party sent in one run, logarithmic: marks far apart mean that the "
            f"load is uneven.{_first_rows(rows)}",
        )
    return drawn + table(head, list(rows.values()), caption)


def _first_rows(rows: Mapping[str, Any]) -> str:
    return f" The first {MOST_ROWS} of the table below." if len(rows) > MOST_ROWS else ""


def _memory(newest: Sequence[Record], pictures: Mapping[str, Picture]) -> str:
    rows: list[list[Cell]] = [
        [
            f"{r.workload} {_size(r)}",
            _network_cell(r),
            *(_megabytes(v) for v in r.peak_memory),
            _megabytes(max(r.idle_memory) if r.idle_memory else None),
        ]
        for r in newest
        if r.peak_memory is not None
    ]
    if not rows:
        return "<p>No record has memory.</p>"
    head = ["work", "network", "party 0, MB", "party 1, MB", "party 2, MB", "idle worker, MB"]
    caption = (
        "The most that each worker held during the runs, above what an idle worker holds (last "
        "column, mostly TensorFlow itself)."
    )
    drawn = ""
    if "memory" in pictures:
        drawn = picture(
            pictures["memory"],
            "growth of each worker's memory",
            "Growth of each worker's memory above an idle one, logarithmic."
            + _first_rows(dict.fromkeys(str(r[0]) for r in rows)),
        )
    return drawn + table(head, rows, caption)


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
                _network_cell(curve.record),
                _seconds(curve.record.seconds.median),
                Number(curve.epochs[-1], f"{curve.epochs[-1]:g}"),
                _percent(100 * curve.private[-1]),
                _percent(None if plain is None else 100 * plain),
                NOTHING if gap is None else Number(gap, f"{gap:+.2f}"),
                _percent(None if theirs is None else theirs.accuracy),
            ]
        )
    return rows


def _learning(newest: Sequence[Record], pictures: Mapping[str, Picture]) -> str:
    rows = learning_rows(newest)
    if not rows:
        return (
            "<p>No record is of a training of an epoch or more. "
            "<code>python -m tfe_bench train logistic --discard</code> makes one.</p>"
        )
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
    drawn = ""
    if "learning" in pictures:
        drawn = picture(
            pictures["learning"],
            "right answers by epochs, private and in plaintext",
            "Right answers by epochs. Lines with circles are private, dashed ones with crosses the "
            "same training in plaintext; diamonds are TF Encrypted's published figures.",
        )
    return drawn + table(head, rows, caption)


def _percent(value: float | None) -> Number:
    return NOTHING if value is None else Number(value, f"{value:.2f}")


def _records(records: Sequence[Record]) -> str:
    machines, codes = _legend(map(_machine, records), "M"), _legend(map(_code, records), "C")
    rows: list[list[Cell]] = [
        [
            record.workload,
            Number((extents(record) or (0,))[0], _size(record)),
            _network_cell(record),
            _seconds(record.seconds.median),
            _seconds(record.seconds.min),
            _seconds(record.seconds.max),
            _whole(record.repeats),
            _seconds(record.build_seconds),
            _seconds(_cpu(record)),
            _correct(record),
            f"{record.protocol}, 2^{record.ring}, {record.fractional_bits} bits",
            f"{machines[_machine(record)]} {codes[_code(record)]}",
            record.cluster,
            record.time[:16].replace("T", " "),
            _parameters(record),
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
    legend = "".join(
        f"<li><b>{key}</b> {text(words)}</li>" for words, key in [*machines.items(), *codes.items()]
    )
    return f"{table(head, rows, caption)}\n<ul>{legend}</ul>"


def _legend(words: Iterable[str], letter: str) -> dict[str, str]:
    return {w: f"{letter}{i}" for i, w in enumerate(dict.fromkeys(words), 1)}


def _cpu(record: Record) -> float | None:
    """CPU seconds of all workers together, where the record has them."""
    value = getattr(record, "cpu_seconds", None)
    if isinstance(value, list | tuple) and all(isinstance(v, int | float) for v in value):
        return float(sum(value))
    return float(value) if isinstance(value, int | float) else None


def _correct(record: Record) -> Raw:
    if record.correct is None:
        return Raw("not checked")
    word = '<span class="good">yes</span>' if record.correct else '<span class="bad">NO</span>'
    error = judged.said(record, 2) if record.max_error else None
    return Raw(word + (f" ± {error}" if error else ""))


def _parameters(record: Record) -> str:
    return ", ".join(
        f"{k} {v if isinstance(v, str) else json.dumps(v)}" for k, v in record.parameters.items()
    )


def _notes(reading: Reading) -> str:
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
    said += reading.notes
    return "<ul>" + "".join(f"<li>{text(words)}</li>" for words in said) + "</ul>"
