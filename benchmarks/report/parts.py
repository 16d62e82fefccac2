"""What a page is made of, whatever it is written as: HTML, Markdown or a terminal's lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfe_bench.benchmarks.report.drawing import Picture


@dataclass(frozen=True)
class Number:
    """A number in a table.

    Attributes:
        value: to sort by, None where there is none.
        shown: as it is written, with "." before its decimals.
        after: a unit or sign after it.
    """

    value: float | None
    shown: str
    after: str = ""

    @property
    def split_at_point(self) -> tuple[str, str]:
        """Before the decimal point, and the rest."""
        whole, point, decimals = self.shown.partition(".")
        return whole, point + decimals + self.after


NOTHING = Number(None, "–")  # noqa: RUF001 (a page is typeset)


@dataclass(frozen=True)
class RawHtml:
    """HTML that was made here."""

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
    """A picture, and words for who does not see it."""

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
    """A whole page: what stands below its title, its sections, and what stands at its end."""

    title: str
    lede: Sequence[Part]
    sections: Sequence[Section]
    foot: str | RawHtml
