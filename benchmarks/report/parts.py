"""The parts of a page, independent of its format: HTML, Markdown or a terminal's lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVarTuple

from tfe_bench.benchmarks.report.drawing import Picture


@dataclass(frozen=True)
class Number:
    """A number in a table.

    Attributes:
        value: sort key, None without a value.
        shown: its text, with "." before its decimals.
        after: a unit or sign after it.
    """

    value: float | None
    shown: str
    after: str = ""

    @property
    def split_at_point(self) -> tuple[str, str]:
        """Return the text before the decimal point, and the rest."""
        whole, point, decimals = self.shown.partition(".")
        return whole, point + decimals + self.after


NOTHING = Number(None, "–")  # noqa: RUF001 (a page is typeset)


@dataclass(frozen=True)
class RawHtml:
    """HTML that this package made."""

    html: str


Cell = str | Number | RawHtml


@dataclass(frozen=True)
class Table:
    """A table: in HTML sortable, its numbers with their points aligned."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""


@dataclass(frozen=True)
class Figure:
    """A picture, and an alternative text."""

    picture: Picture
    words: str
    caption: str = ""


@dataclass(frozen=True)
class Items:
    """A list; with keys of its lines it is the legend of a table."""

    lines: Sequence[str]
    keys: Sequence[str] = ()


# A text is a paragraph.
Part = str | RawHtml | Table | Figure | Items


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading, and the key of its address there."""

    key: str
    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Page:
    """A whole page: title, introduction, sections and footer."""

    title: str
    lede: Sequence[Part]
    sections: Sequence[Section]
    foot: str | RawHtml


Ts = TypeVarTuple("Ts")
# What is written in a table's columns of what its rows are about, by their headings.
Columns = dict[str, Callable[[*Ts], Cell]]


def build_report_table(columns: Columns[*Ts], items: Iterable[tuple[*Ts]], caption: str) -> Table:
    """Return a table with a row for each item."""
    rows = [[cell(*item) for cell in columns.values()] for item in items]
    return Table([*columns], rows, caption)


def number_legend_keys(words: Iterable[str], letter: str) -> dict[str, str]:
    """Return the key of each different text in a legend, such as "S1"."""
    return {w: f"{letter}{i}" for i, w in enumerate(dict.fromkeys(words), 1)}
