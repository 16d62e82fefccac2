"""The printed table of a record, drawn from the record alone.

Fits 60 columns and more.  Plain text without escape codes if the console is not a
terminal, supports only ASCII, or NO_COLOR is set.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tfe_bench.benchmarks import error_metrics
from tfe_bench.benchmarks.records import Record, RecordedOpening
from tfe_bench.benchmarks.report.comparison_columns import (
    Throughput,
    batch_throughput,
    find_nearby_figures,
    published_throughputs,
)

_ABSENT = "-"
_GAP = "  "
_WIDEST = 88
_LABELS = len("start workers")


def human_bytes(count: float) -> str:
    """Format a number of bytes with three digits and an SI unit: 999 B, 1.50 kB, 2.00 GB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 999.5 or unit == "TB":
            return f"{count:.0f} B" if unit == "B" else f"{format_three_digits(count)} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def human_seconds(seconds: float) -> str:
    """Format a time with three digits, in ms below a second: 0.0131 ms, 52.1 ms, 1.20 s."""
    if seconds == 0:
        return "0 s"
    if abs(seconds) < 0.9995:
        return f"{format_three_digits(seconds * 1000)} ms"
    return f"{format_three_digits(seconds)} s"


def is_styled(console: Console) -> bool:
    """Return True if the console may get colors and escape codes."""
    return console.is_terminal and not console.no_color and not console.options.ascii_only


def print_within(console: Console, thing: Text | Table, width: int) -> None:
    """Print within a width: styled, or plain text in the console's encoding."""
    if is_styled(console):
        console.print(thing, width=width)
        return
    for line in console.render_lines(thing, console.options.update(width=width), pad=False):
        text = "".join(segment.text for segment in line).rstrip()
        text = text.encode(console.encoding, "replace").decode(console.encoding)
        console.out(text, highlight=False)


def align_columns(rows: Sequence[Sequence[str]], right: Container[int]) -> list[str]:
    """Align rows to lines with minimal column widths; columns of `right` are right-aligned."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        _GAP.join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def print_table_rows(
    console: Console, lines: Sequence[str], wrong: Sequence[bool], width: int
) -> None:
    """Print a heading and the lines under it, wrong ones in red, then an empty line."""
    for line, bad in zip(lines, (None, *wrong), strict=True):
        style = "bold" if bad is None else "bold red" if bad else ""
        print_within(console, Text(line, style=style), width)
    print_within(console, Text(), width)


def print_faint(console: Console, sentences: Iterable[str], width: int) -> None:
    """Print secondary sentences in a faint style."""
    for sentence in sentences:
        print_within(console, Text(sentence, style="dim"), width)


def print_record(record: Record, console: Console) -> None:
    """Print the record: workload, times, and each party's traffic and memory.

    Args:
        record: one measurement.
        console: its width is used up to 88 columns and text wraps below that.
    """
    width = min(console.width, _WIDEST)
    title = Text(strip_control(record.workload), style="bold")
    if record.parameters:
        title.append(f"  {_format_parameters(record.parameters)}", style="not bold")
    figures = Table.grid(padding=(0, 2))
    figures.add_column(style="dim", min_width=_LABELS, no_wrap=True)
    figures.add_column(overflow="fold")
    for label, value in _run_time_rows(record):
        figures.add_row(label, value)
    figures.add_row("correct", _correctness_text(record))
    if record.agreement and "private" not in record.agreement:  # print_learning prints a training's
        figures.add_row("agreement", _describe_agreement(record.agreement))
    for label, words in _benchmark_circumstance_rows(record):
        figures.add_row(label, words)
    for part in (title, figures, Text(), _party_cost_table(record), Text()):
        print_within(console, part, width)
    print_faint(console, _pack_lines(_list_versions(record), width), width)


def brief_line(record: Record) -> str:
    """Return one line for a run whose figures are not the purpose."""
    sent = human_bytes(sum(record.bytes_sent or ()))
    return (
        f"{record.workload} of {record.parameters.get('n', 0):,} keys in "
        f"{human_seconds(record.seconds.median)}, {sent} sent in {record.rounds:,} rounds; the "
        f"result is {'checked' if record.correct else 'WRONG'} (--repeat R measures more)"
    )


def print_learning(record: Record, console: Console) -> None:
    """Print a training's scores by epoch, with plaintext and published figures."""
    width = min(console.width, _WIDEST)
    print_within(console, Text(), width)
    agreement = record.agreement or {}
    if rows := _score_rows(agreement):
        table = _unruled_text_table("epochs", ("private", "plaintext", "difference"), least=10)
        for row in rows:
            table.add_row(*row)
        print_within(console, table, width)
        losses = agreement.get("loss")
        if isinstance(losses, list) and all(isinstance(v, float) for v in losses):
            shown = ", ".join(f"{v:.4f}" for v in losses)
            print_faint(console, [f"loss of each epoch, revealed: {shown}"], width)
        words = "mean squared error" if agreement.get("score") == "mse" else "right answers"
        print_faint(console, [f"{words} on {agreement.get('samples')} test rows"], width)
        if isinstance(error := agreement.get("root_error"), float):
            shown = f"the label is scaled; the root of the last one is {error:.4g} in its own unit"
            print_faint(console, [shown], width)
        print_within(console, Text(), width)
    if theirs := _published_score_rows(record):
        heads = ("network", "per batch", "theirs / ours", "5 epochs")
        table = _unruled_text_table("published", heads, wrap=True)
        for line in theirs:
            table.add_row(*line)
        print_within(console, table, width)


def _score_rows(agreement: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return lines of a training's scores; a record from elsewhere may hold malformed ones."""
    try:
        squared = agreement["score"] == "mse"
        plain = agreement["plain"] or [None] * len(agreement["private"])
        rows = []
        for epoch, private_score, other in zip(
            agreement["epochs"], agreement["private"], plain, strict=True
        ):
            shown = [
                _ABSENT if v is None else _format_score(v, squared) for v in (private_score, other)
            ]
            gap = _ABSENT
            if other is not None:
                gap = (
                    f"{private_score - other:+.4f}"
                    if squared
                    else f"{100 * (private_score - other):+.2f}"
                )
            rows.append((f"{epoch:.3g}", shown[0], shown[1], gap))
        return rows
    except (KeyError, TypeError, ValueError):
        return []


def _format_score(value: float, squared: bool) -> str:
    return f"{value:.4f}" if squared else f"{100 * value:.2f} %"


def _published_score_rows(record: Record) -> list[tuple[str, str, str, str, str]]:
    """Return published figures for this model and optimizer, at batches of 128."""
    parameters = record.parameters
    if parameters.get("batch") != 128 or parameters.get("dataset") not in ("mnist", None):
        return []
    rows = []
    ours = record.seconds.median
    for figure in find_nearby_figures(record):
        here = figure.profile == {"local": "lan"}.get(record.profile, record.profile)
        ratio = f"{format_three_digits(figure.seconds / ours)}x" if here and ours else ""
        accuracy = "" if figure.accuracy is None else f"{figure.accuracy:.1f} %"
        rows.append((figure.system, figure.profile, human_seconds(figure.seconds), ratio, accuracy))
    return rows


def _run_time_rows(record: Record) -> list[tuple[str, str]]:
    seconds = record.seconds
    spread = f"{human_seconds(seconds.min)} .. {human_seconds(seconds.max)}"
    run = human_seconds(seconds.median)
    trains = record.workload == "train"
    count, noun = record.repeats, "runs"
    if trains:  # a record of thousands of times holds quantiles
        batches = (record.agreement or {}).get("batches")
        count, noun = batches if isinstance(batches, int) else count, "batches"
    if count > 1:
        run += f"  ({spread}, {count} {noun})"
    return [
        ("per batch" if trains else "run time", run),
        ("build graph", _format_seconds(record.build_seconds)),
        ("start workers", _format_seconds(record.start_seconds)),
        ("share inputs", _format_seconds(record.share_seconds)),
        (
            "rounds",
            f"{_format_count(record.rounds)} total / {_format_count(record.rounds_ahead)} online",
        ),
        *_throughput_rows(record),
        *_predicted_time_rows(record),
    ]


def _throughput_rows(record: Record) -> list[tuple[str, str]]:
    """Return the throughput of a batch, and published ones of the same network."""
    ours = batch_throughput(record)
    if ours is None:
        return []
    rows = [("throughput", _format_throughput(ours))]
    for figure, theirs in published_throughputs(record.workload):
        words = f"{_format_throughput(theirs)}, batch {theirs.batch}, {figure.profile}"
        rows.append((figure.system, words))
    return rows


def _format_throughput(throughput: Throughput) -> str:
    words = f"{format_three_digits(throughput.per_second)}/s"
    if throughput.per_core_second is not None:
        words += f", {format_three_digits(throughput.per_core_second)} per core-second"
    return words


# Parts of the critical path, by their name in the table.
_PATH_PARTS = {"rounds": "delay", "lines": "line", "computing": "computing"}


def _predicted_time_rows(record: Record) -> list[tuple[str, str]]:
    """Return predicted times on other networks, and the prediction for this one."""
    prediction = record.prediction or {}
    seconds = prediction.get("seconds")
    if not isinstance(seconds, Mapping):
        return []
    lines = []
    if isinstance(predicted_seconds := seconds.get(record.profile), float | int):
        ratio = record.seconds.median / predicted_seconds if predicted_seconds else math.inf
        lines.append(
            ("predicted", f"{human_seconds(predicted_seconds)}  (measured / predicted {ratio:.2f})")
        )
        lines += _critical_path_rows(prediction, record.profile)
    lines += [
        (f"predicted {strip_control(str(name))}", human_seconds(value))
        for name, value in seconds.items()
        if name != record.profile and isinstance(value, float | int)
    ]
    return lines


def _critical_path_rows(prediction: Mapping[str, Any], profile: str) -> list[tuple[str, str]]:
    """Return what takes the predicted time, and how long each party's line is busy."""
    try:
        path = prediction["path"][profile]
        parts = [(name, path[part]) for name, part in _PATH_PARTS.items()]
        lines = prediction["line_seconds"][profile]
        return [
            ("critical path", ", ".join(f"{name} {human_seconds(s)}" for name, s in parts)),
            ("lines busy", ", ".join(map(human_seconds, lines))),
        ]
    except (KeyError, TypeError, ValueError, AttributeError):  # (an older or a damaged record)
        return []


def _benchmark_circumstance_rows(record: Record) -> list[tuple[str, str]]:
    emulated = f" ({strip_control(record.profile_emulation)})" if record.profile_emulation else ""
    sha, mark, dirty = (record.commit or "").partition("+")
    commit = strip_control(sha[:12] + mark + dirty) if sha else _ABSENT
    here = record.machine
    cpu, cores, memory, kernel = here.cpu, here.cores, here.memory_bytes, here.kernel
    encoding = f"ring 2^{record.ring}, {record.fractional_bits} fractional bits"
    rows = [
        ("protocol", f"{strip_control(record.protocol)}, {encoding}"),
        (
            "network",
            f"{strip_control(record.profile)}{emulated}, TLS {'on' if record.tls else 'OFF'}",
        ),
        ("cluster", strip_control(record.cluster)),
        (
            "machine",
            f"{strip_control(cpu)}, {cores} cores, {human_bytes(memory)}, {strip_control(kernel)}",
        ),
        ("commit", commit),
        ("measured", strip_control(record.time)),
    ]
    if record.links:
        rows.insert(2, ("links", _describe_links(record.links)))
    if record.opened is not None:
        rows.insert(1, ("opened", describe_opened_values(record.opened)))
    return rows


def describe_opened_values(opened: Sequence[RecordedOpening]) -> str:
    """Describe what a record's job opened to the workers."""
    rows = (
        f"{strip_control(each.what)}, {each.bits:,} bits"
        + ("" if each.to is None else f", to party {each.to}")
        for each in opened
    )
    return "; ".join(rows) or "nothing"


def _describe_links(links: Mapping[str, Any]) -> str:
    """Describe the measured links; a record from elsewhere may hold malformed figures."""
    try:
        delays = [float(v) for v in links["one_way_ms"].values()]
        rates = [float(v) for v in links["egress_mbit"]]
        return (
            f"{format_three_digits(min(delays))} .. {format_three_digits(max(delays))} ms one way, "
            f"{format_three_digits(min(rates))} .. {format_three_digits(max(rates))} Mbit/s "
            "per host"
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return _ABSENT


def _correctness_text(record: Record) -> Text:
    words = {True: ("yes", "green"), False: ("NO", "bold red"), None: ("not checked", "yellow")}
    text = Text(*words[record.correct])
    if (error := error_metrics.format_error(record)) is not None:
        text.append(f", max error {strip_control(error)}", style="default")
    return text


def _describe_agreement(agreement: Mapping[str, Any]) -> str:
    """Describe the agreement with plaintext; a record from elsewhere may hold malformed figures."""
    try:
        if "top5" not in agreement:  # agreement of a generated text
            same = f"{100 * agreement['top1']:.1f} % of {agreement['samples']:d} tokens"
            return f"{same} are those of plaintext behind the same text"
        text = (
            f"top-1 {100 * agreement['top1']:.1f} %, top-5 {100 * agreement['top5']:.1f} %, "
            f"largest error {agreement['relative_error']:.2g} of the range "
            f"({agreement['samples']:d} samples)"
        )
        if "accuracy" in agreement:
            text += (
                f"; accuracy {100 * agreement['accuracy']:.2f} % private, "
                f"{100 * agreement['plain_accuracy']:.2f} % plaintext"
            )
        return text
    except (KeyError, TypeError, ValueError):
        return _ABSENT


def _party_cost_table(record: Record) -> Table:
    table = _unruled_text_table("per party", ("0", "1", "2"), least=8)
    for label, sign, values in (
        ("sent", "", record.bytes_sent),
        ("sent framed", "", record.frame_bytes),
        ("peak memory", "+", record.peak_memory),  # growth above idle
        ("idle memory", "", record.idle_memory),
    ):
        cells = [_ABSENT] * 3 if values is None else [sign + human_bytes(v) for v in values]
        table.add_row(label, *cells)
    if record.messages is not None:
        table.add_row("messages", *map(_format_count, record.messages))
    if record.cpu_seconds is not None:
        table.add_row("processor", *map(human_seconds, record.cpu_seconds))
    if record.instruction_sets is not None:
        table.add_row("instructions", *map(strip_control, record.instruction_sets))
    for label, times in _party_wait_rows(record):
        table.add_row(label, *times)
    return table


def _party_wait_rows(record: Record) -> list[tuple[str, list[str]]]:
    """Return each party's busy time in the last run, and its waits for messages of the others."""
    try:
        parts = [
            (float(b["run"]), [float(w) for w in b["waiting"]]) for b in record.breakdown or ()
        ]
        busy = [human_seconds(max(0.0, run - sum(waits))) for run, waits in parts]
        rows = [
            [
                _ABSENT if p == peer else human_seconds(waits[peer])
                for p, (_, waits) in enumerate(parts)
            ]
            for peer in range(len(parts))
        ]
    except (KeyError, TypeError, ValueError, IndexError):  # a malformed record from elsewhere
        return []
    named = [(f"waits for {peer}", row) for peer, row in enumerate(rows)]
    return [("busy", busy), *named] if parts else []


def _list_versions(record: Record) -> list[str]:
    return [
        f"{name} {strip_control(version or _ABSENT)}" for name, version in record.versions.items()
    ]


def _pack_lines(parts: list[str], width: int) -> list[str]:
    """Join the parts in one line, or in as few lines as hold them unbroken."""
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 3 > width:
            lines[-1] += ","
            lines.append(part)
        else:
            lines[-1] += f", {part}"
    return lines


def _unruled_text_table(
    label: str, heads: Sequence[str], least: int | None = None, wrap: bool = False
) -> Table:
    """Return a table without rules: labels, and figures under their heads."""
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(label, style="dim", min_width=_LABELS, no_wrap=not wrap)
    for head in heads:
        table.add_column(head, justify="right", min_width=least, no_wrap=True)
    return table


def _format_parameters(parameters: Mapping[str, Any]) -> str:
    return " ".join(
        f"{strip_control(name)}={_format_record_parameter(value)}"
        for name, value in parameters.items()
    )


def _format_record_parameter(value: Any) -> str:
    return strip_control(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def strip_control(text: str) -> str:
    """Remove control characters: a record may come from an untrusted file."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _format_seconds(seconds: float | None) -> str:
    return _ABSENT if seconds is None else human_seconds(seconds)


def _format_count(count: int | None) -> str:
    return _ABSENT if count is None else f"{count:,}"


def format_three_digits(value: float) -> str:
    """Format with three significant digits, no exponent, and all digits of large integers."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded = float(f"{value:.2e}")  # 9.999 becomes 10.0 before the digits are counted
    digits = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return f"{value:.{digits}f}"
