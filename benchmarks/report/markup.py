"""Pieces of the page: cells, tables, pictures; what comes from records is escaped here."""

# ruff: noqa: RUF001 (a page is typeset with the signs that belong there)

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from dataclasses import dataclass

from tfe_bench.benchmarks.report.plots import Picture
from tfe_bench.benchmarks.report.style import CSS, NARROW, SCRIPT
from tfe_bench.benchmarks.table import clean

_LONGEST = 400


def text(words: object) -> str:
    """Text as HTML: without control characters, of bounded length, escaped."""
    given = clean(str(words))
    return html.escape(given if len(given) <= _LONGEST else given[:_LONGEST] + "…")


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
    def parts(self) -> tuple[str, str]:
        """Before the decimal point, and the rest."""
        whole, point, decimals = self.shown.partition(".")
        return whole, point + decimals + self.after


NOTHING = Number(None, "–")


@dataclass(frozen=True)
class Raw:
    """HTML that was made here."""

    html: str


Cell = str | Number | Raw


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str) -> str:
    """A table that the page's script makes sortable; numbers stand with their points aligned.

    Columns without any entry are left out.
    """
    kept = [i for i in range(len(head)) if any(row[i] != NOTHING for row in rows)]
    head = [head[i] for i in kept]
    rows = [[row[i] for i in kept] for row in rows]
    numeric = [any(isinstance(row[i], Number) for row in rows) for i in range(len(head))]
    widths = [
        max((len(c.parts[1]) for row in rows if isinstance(c := row[i], Number)), default=0)
        for i in range(len(head))
    ]
    heads = "".join(
        f'<th scope="col"{" class=n" if n else ""}>{text(title)}</th>'
        for title, n in zip(head, numeric, strict=True)
    )
    lines = "\n".join(
        "<tr>" + "".join(_cell(c, w) for c, w in zip(row, widths, strict=True)) + "</tr>"
        for row in rows
    )
    # The words are outside of what scrolls, where they would be as wide as the table.
    return (
        f'<figure><div class="scroll"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{lines}\n'
        f"</tbody></table></div><figcaption>{text(caption)}</figcaption></figure>"
    )


def _cell(cell: Cell, width: int) -> str:
    if isinstance(cell, Raw):
        return f'<td class="t">{cell.html}</td>'
    if isinstance(cell, str):
        kind = "wide" if len(cell) > 40 else "t" if len(cell) < 26 else ""
        return f'<td class="{kind}">{text(cell)}</td>'
    whole, rest = cell.parts
    value = "" if cell.value is None else repr(float(cell.value))
    fraction = f'<span class="f f{min(width, 8)}">{text(rest)}</span>' if width else ""
    return f'<td class=n data-v="{value}">{text(whole)}{fraction}</td>'


def picture(given: Picture, words: str, caption: str) -> str:
    """A picture inside the page, in the colours and at the width of the reader's choice."""

    def source(media: str, of: Picture, content: bytes) -> str:
        return f'<source media="{media}" width="{of.width}" srcset="{_data(content)}">'

    dark = "(prefers-color-scheme: dark)"
    small = given.narrow
    sources = "" if small is None else source(f"{NARROW} and {dark}", small, small.dark)
    sources += "" if small is None else source(NARROW, small, small.light)
    return (
        f"<figure><picture>{sources}{source(dark, given, given.dark)}"
        f'<img alt="{text(words)}" width="{given.width}" src="{_data(given.light)}">'
        f"</picture><figcaption>{text(caption)}</figcaption></figure>"
    )


def _data(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def document(title: str, body: str) -> str:
    """The whole page; it may load nothing, and run no script but its own."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    sources = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    policy = f"{sources}; script-src 'sha256-{digest}'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n{body}\n"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )
