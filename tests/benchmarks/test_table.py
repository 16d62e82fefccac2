"""The table shows the record's values, fits its console and is plain where required."""

from __future__ import annotations

import io
import itertools
from typing import Any

import pytest
from rich.console import Console

from tests.benchmarks.conftest import USUAL
from tfe_bench.benchmarks.provenance import Machine
from tfe_bench.benchmarks.records import Record, RecordedOpening, Seconds
from tfe_bench.benchmarks.table import human_bytes, human_seconds, print_learning, print_record

VERSIONS = {
    "tfe_bench": "0.1.0",
    "tensorflow": "2.21.0",
    "numpy": "2.4.6",
    "grpcio": "1.85.1",
    "python": "3.11.7",
}


def a_record(**changes: Any) -> Record:
    every: dict[str, Any] = {
        "parameters": {"n": 65536, "kind": "int64"},
        "repeats": 5,
        "seconds": Seconds.from_times([1.04, 1.02, 1.3, 1.1, 1.0]),
        "build_seconds": 3.2111,
        "start_seconds": 2.34,
        "share_seconds": 0.0123,
        "bytes_sent": (123456789, 98765432, 1),
        "frame_bytes": (123556789, 98865432, 1001),
        "rounds": 1143,
        "rounds_ahead": 96,
        "peak_memory": (812_000_000, 40_000_000, 0),
        "idle_memory": (512_345_678,) * 3,
        "max_error": 0.00012345,
        "protocol": "exact",
        "profile": "lan",
        "profile_emulation": "host-limited",
        "versions": VERSIONS,
        "machine": Machine("EPYC", 2, 25_276_510_208, "Linux 6.1"),
        "commit": "0123456789abcdef0123456789abcdef01234567+dirty",
        "time": "2025-01-02T03:04:05+00:00",
    }
    return Record(**{**USUAL, **every, **changes})


def render_record(record: Record, width: int = 80, **options: Any) -> str:
    stream = io.StringIO()
    options = {"force_terminal": False} | options  # for any FORCE_COLOR
    print_record(record, Console(file=stream, width=width, **options))
    return stream.getvalue()


EXPECTED = """\
sort  n=65536 kind=int64
run time       1.04 s  (1.00 s .. 1.30 s, 5 runs)
build graph    3.21 s
start workers  2.34 s
share inputs   12.3 ms
rounds         1,143 total / 96 online
correct        yes, max error 0.000123
protocol       exact, ring 2^64, 16 fractional bits
network        lan (host-limited), TLS on
cluster        local
machine        EPYC, 2 cores, 25.3 GB, Linux 6.1
commit         0123456789ab+dirty
measured       2025-01-02T03:04:05+00:00

per party             0         1         2
sent             123 MB   98.8 MB       1 B
sent framed      124 MB   98.9 MB   1.00 kB
peak memory     +812 MB  +40.0 MB      +0 B
idle memory      512 MB    512 MB    512 MB

"""
FOOTER = "tfe_bench 0.1.0, tensorflow 2.21.0, numpy 2.4.6, grpcio 1.85.1, python 3.11.7\n"
NARROW = FOOTER.replace("numpy 2.4.6, ", "numpy 2.4.6,\n")


@pytest.mark.parametrize(("width", "footer"), [(60, NARROW), (80, FOOTER), (120, FOOTER)])
def test_the_plain_table_is_exactly_this(width: int, footer: str) -> None:
    assert render_record(a_record(), width) == EXPECTED + footer


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("terminal", [False, True])
def test_long_texts_wrap_within_the_width(
    width: int, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    long = "a long explanation " * 20 + "x" * 200
    record = a_record(
        parameters={"file": "y" * 150, "n": 1},
        protocol=long,
        profile_emulation=long,
        bytes_sent=(10**15,) * 3,
        machine=Machine(long, 2, 1, long),
    )
    text = _without_escapes(render_record(record, width, force_terminal=terminal))
    assert max(map(len, text.splitlines())) <= width
    assert text.count("x") >= 600, "nothing is cut off"
    assert text.count("1000 TB") == 3


def _without_escapes(text: str) -> str:
    parts = text.split("\x1b[")
    return parts[0] + "".join(part.partition("m")[2] for part in parts[1:])


def test_what_a_job_opened_is_shown() -> None:
    rows = (RecordedOpening("comparisons", 780, 780, None), RecordedOpening("losses", 1, 64, 2))
    text = render_record(a_record(opened=rows))
    assert "\nopened         comparisons, 780 bits; losses, 64 bits, to party 2\n" in text
    assert "\nopened         nothing\n" in render_record(a_record(opened=()))


def test_the_breakdown_and_the_prediction_are_shown_where_they_were_measured() -> None:
    parts = [{"run": 0.5, "waiting": [0, 0.1, 0.15]} for _ in range(3)]
    seconds = {"lan": 0.26, "wan": 0.4}
    more = {
        "breakdown": parts,
        "cpu_seconds": (0.2, 0.1, 0.1),
        "messages": (1, 2000, 3),
        "instruction_sets": ("amx", "ifma", "avx2"),
    }
    times = Seconds.from_times([0.5])
    text = render_record(
        a_record(**more, profile="wan", prediction={"seconds": seconds}, seconds=times, repeats=1)
    )
    assert "predicted      400 ms  (measured / predicted 1.25)" in text
    assert "predicted lan  260 ms" in text
    assert "critical path" not in text
    forecast = {
        "seconds": seconds,
        "path": {"wan": {"line": 0.1, "delay": 0.2, "computing": 0.1}},
        "line_seconds": {"wan": [0.3, 0.1, 0.05]},
    }
    bounded = render_record(
        a_record(**more, profile="wan", prediction=forecast, seconds=times, repeats=1)
    )
    assert "critical path  rounds 200 ms, lines 100 ms, computing 100 ms" in bounded
    assert "lines busy     300 ms, 100 ms, 50.0 ms" in bounded
    assert any(line.split() == ["messages", "1", "2,000", "3"] for line in text.splitlines())
    assert any(
        line.split() == ["instructions", "amx", "ifma", "avx2"] for line in text.splitlines()
    )
    assert any(line.split()[:3] == ["busy", "250", "ms"] for line in text.splitlines())
    assert any(
        line.split() == ["waits", "for", "1", "100", "ms", "-", "100", "ms"]
        for line in text.splitlines()
    )
    # records of other people may contain anything
    odd = render_record(a_record(breakdown=[{}, {}, {}], prediction={"seconds": {"wan": "soon"}}))
    assert "waits" not in odd and "predicted" not in odd


def test_no_terminal_means_no_escape_codes_and_ascii_only() -> None:
    text = render_record(a_record(), force_terminal=False)
    assert text.isascii()
    assert "\x1b" not in text
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_no_color_means_no_escape_codes_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b" in render_record(a_record(), force_terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert render_record(a_record(), force_terminal=True) == render_record(
        a_record(), force_terminal=False
    )


def test_style_changes_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    styled = _without_escapes(render_record(a_record(), force_terminal=True))
    assert [line.rstrip() for line in styled.splitlines()] == render_record(a_record()).splitlines()


def test_an_ascii_stream_gets_question_marks_and_no_error() -> None:
    for terminal in (False, True):
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, encoding="ascii")
        console = Console(file=stream, width=80, force_terminal=terminal)
        print_record(a_record(parameters={"file": "größe"}), console)
        stream.flush()
        assert b"file=gr??e" in raw.getvalue()


def test_markup_and_escape_codes_in_a_record_are_only_text() -> None:
    record = a_record(parameters={"a": "[bold]x[/]", "b": ":smile:", "c": "\x1b[31mred\r\n"})
    for terminal in (True, False):
        text = render_record(record, force_terminal=terminal, width=120)
        assert "[bold]x[/]" in text
        assert ":smile:" in text
        assert "\x1b[31m" not in text
        assert "?[31mred??" in text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"correct": False, "max_error": float("inf")}, "NO, max error inf\n"),
        ({"correct": None, "max_error": None}, "not checked\n"),
        ({"correct": True, "max_error": 0.0}, "yes, max error 0\n"),
        # (correct to nine digits, yet off by 34,800)
        (
            {"max_error": 34800.0, "error": {"unit": "relative", "value": 5.3e-10}},
            "yes, max error 5.3e-10 (relative above 1)\n",
        ),
        ({"error": {"unit": "ulp", "value": 0.93456}}, "yes, max error 0.935 ulp\n"),
        ({"error": {"unit": "range", "value": 0.0027}}, "yes, max error 0.0027 of the range\n"),
        ({"error": {"unit": "\x1b", "value": "?"}}, "yes, max error 0.000123\n"),
        ({"tls": False}, "TLS OFF\n"),
        ({"profile_emulation": None, "profile": "local"}, "local, TLS on\n"),
        ({"repeats": 1, "seconds": Seconds.from_times([0.05])}, "run time       50.0 ms\n"),
        ({"rounds": None, "rounds_ahead": None}, "- total / - online\n"),
        ({"bytes_sent": None}, "sent                  -         -         -\n"),
        ({"build_seconds": None}, "build graph    -\n"),
        ({"commit": None}, "commit         -\n"),
        ({"versions": VERSIONS | {"tensorflow": None}}, "tensorflow -,"),
        ({"parameters": {}}, "sort\nrun time"),
        ({"parameters": {"f": 1e-05, "t": True, "l": [1, 2]}}, "f=1e-05 t=true l=[1, 2]\n"),
    ],
)
def test_the_table_says_what_the_record_says(changes: dict[str, Any], expected: str) -> None:
    assert expected in render_record(a_record(**changes))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (1001, "1.00 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (9_999_999, "10.0 MB"),
        (123_456_789, "123 MB"),
        (2 * 10**9, "2.00 GB"),
        (10**12, "1.00 TB"),
        (10**15, "1000 TB"),
        (-1500, "-1.50 kB"),
    ],
)
def test_bytes_have_three_digits_and_si_units(count: int, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0000131, "0.0131 ms"),
        (0.00999999, "10.0 ms"),
        (0.0521, "52.1 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (1, "1.00 s"),
        (9.999, "10.0 s"),
        (59.95, "60.0 s"),
        (12345.6, "12346 s"),
    ],
)
def test_seconds_have_three_digits_and_si_units(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


def test_larger_numbers_never_read_smaller() -> None:
    units = {"B": 0, "kB": 3, "MB": 6, "GB": 9, "TB": 12}

    def shown(count: int) -> float:
        number, unit = human_bytes(count).split()
        return float(number) * 10.0 ** units[unit]

    counts = sorted({10**k * m + d for k in range(13) for m in (1, 5, 9) for d in (-1, 0, 1)})
    assert all(shown(a) <= shown(b) for a, b in itertools.pairwise(counts) if a >= 0)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_training_is_shown_beside_plaintext_and_published_figures(width: int) -> None:
    learning: dict[str, Any] = {
        "score": "accuracy",
        "epochs": [1.0, 2.0],
        "private": [0.93, 0.9641],
        "plain": [0.93, 0.9639],
        "samples": 10000,
        "loss": [0.31, 0.14],
        "batches": 2339,
    }
    fields = {"model": "network-a", "optimizer": "sgd", "batch": 128, "dataset": "mnist"}
    record = a_record(workload="train", parameters=fields, agreement=learning, profile="wan")
    output = render_record(record, width)
    assert "per batch" in output and "2339 batches" in output and "agreement" not in output

    def learned(record: Record) -> str:
        stream = io.StringIO()
        print_learning(record, Console(file=stream, width=width, force_terminal=False))
        text = stream.getvalue()
        assert all(len(line) <= min(width, 88) for line in text.splitlines())
        return text

    output = learned(record)
    for word in ("96.41 %", "96.39 %", "+0.02", "10000 test rows", "0.1400", "96.8 %"):
        assert word in output, word
    assert "5.08 s" in output and "4.88x" in output  # of the WAN; the local time is 1.04 s
    without = learned(a_record(workload="train", agreement={**learning, "plain": None}))
    assert "96.41 %" in without and "published" not in without
    error = {**learning, "score": "mse", "loss": None}
    assert "0.9641" in learned(a_record(workload="train", agreement=error))
    for odd in ({"private": "x"}, {"score": "accuracy", "private": [1.0]}, None):
        learned(a_record(workload="train", agreement=odd))


def test_a_batch_shows_its_throughput_beside_published_ones() -> None:
    fields = {"model": "VGG16 for CIFAR-10", "batch": 192, "images": "192 made up"}
    seconds = {"repeats": 1, "seconds": Seconds.from_times([19.2])}
    record = a_record(
        workload="vgg16-cifar", parameters=fields, cpu_seconds=(10.0, 14.0, 14.4), **seconds
    )
    lines = render_record(record).splitlines()
    shown = {line.split("  ")[0].strip(): line for line in lines}
    assert "10.0/s, 5.00 per core-second" in shown["throughput"]
    pigeon = [line for line in lines if line.startswith("PIGEON")]
    assert "169/s, 2.35 per core-second, batch 192, lan" in pigeon[0] and len(pigeon) == 2
    assert "throughput" not in render_record(a_record(parameters={**fields, "batch": 1}))
