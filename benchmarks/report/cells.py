"""Cells of tables: figures of a record as they are written."""

# ruff: noqa: RUF001 (a page is typeset with the signs that belong there)

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from tfe_bench.benchmarks import judged
from tfe_bench.benchmarks.records import Record
from tfe_bench.benchmarks.report.beside import extents, size_of
from tfe_bench.benchmarks.report.html import text
from tfe_bench.benchmarks.report.parts import NOTHING, Number, Raw
from tfe_bench.benchmarks.table import human_bytes, three_digits
from tfe_bench.benchmarks.technologies.measurement import Measurement


def counted(count: int, noun: str) -> str:
    """A number of things."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def size(record: Record) -> str:
    """The size for people."""
    of = extents(record)
    return " × ".join(f"{n:,}" for n in of) if of else size_of(record) or "–"


def first_extent(record: Record) -> Number:
    """The size, sorted by what grows."""
    return Number((extents(record) or (0,))[0], size(record))


def number(show: Callable[[float], str], after: str, value: float | None) -> Number:
    """A number as it is shown, with a sign after it."""
    return NOTHING if value is None else Number(value, show(value), after)


def _real(value: float) -> str:
    return three_digits(value) if value >= 1e-3 else f"{value:.5f}"


seconds = partial(number, _real, "")  # or other reals
part = partial(number, _real, " %")
ratio = partial(number, three_digits, "×")
whole = partial(number, "{:,}".format, "")
percent = partial(number, "{:.2f}".format, "")
megabytes = partial(number, lambda count: three_digits(count / 1e6), "")


def network(record: Record) -> Raw:
    """The profile, and how it was made."""
    marks = [] if record.profile_emulation is None else [record.profile_emulation]
    if not record.tls:
        marks.append("no TLS")
    labels = "".join(f' <span class="mark">{text(m)}</span>' for m in marks)
    return Raw(text(record.profile) + labels)


def machine(record: Record | Measurement) -> str:
    """The machine, in one line."""
    of = record.machine
    memory = human_bytes(of.memory_bytes)
    return f"{of.cpu}, {counted(of.cores, 'core')}, {memory}, {of.kernel}"


def code(record: Record) -> str:
    """Versions and commit, in one line."""
    sha, mark, dirty = (record.commit or "").partition("+")
    commit = f" at {sha[:12]}{mark}{dirty}" if sha else ""
    own, *others = (f"{name} {version or '–'}" for name, version in record.versions.items())
    return f"{own}{commit}; {', '.join(others)}"


def correct(record: Record) -> Raw:
    """Whether the result was right, and its largest error."""
    if record.correct is None:
        return Raw("not checked")
    word = '<span class="good">yes</span>' if record.correct else '<span class="bad">NO</span>'
    error = judged.said(record, 2) if record.max_error else None
    return Raw(word + (f" ± {error}" if error else ""))


def parameters(record: Record) -> str:
    """Sizes and options, in one line."""
    return ", ".join(
        f"{k} {v if isinstance(v, str) else json.dumps(v)}" for k, v in record.parameters.items()
    )
