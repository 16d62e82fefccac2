"""A page as HTML that needs no other file; what comes from records is escaped here."""

from __future__ import annotations

import base64
import hashlib
import html

from tfe_bench.benchmarks.report import parts
from tfe_bench.benchmarks.report.drawing import Picture
from tfe_bench.benchmarks.report.style import CSS, NARROW, SCRIPT
from tfe_bench.benchmarks.table import clean

_LONGEST = 2000


def text(words: object) -> str:
    """Text as HTML: without control characters, of bounded length, escaped."""
    given = clean(str(words))
    return html.escape(given if len(given) <= _LONGEST else given[:_LONGEST] + "…")


def render(page: parts.Page) -> str:
    """The whole page; it may load nothing, and run no script but its own."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    sources = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    policy = f"{sources}; script-src 'sha256-{digest}'"
    title = text(page.title)
    links = "".join(f'<a href="#{each.key}">{text(each.title)}</a>' for each in page.sections)
    lede = "\n".join(
        f'<p class="lede">{text(part)}</p>' if isinstance(part, str) else _part(part)
        for part in page.lede
    )
    sections = "\n".join(map(_section, page.sections))
    foot = page.foot.html if isinstance(page.foot, parts.Raw) else text(page.foot)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        f"<header>\n<h1>{title}</h1>\n{lede}\n<nav>{links}</nav>\n</header>\n"
        f"<main>\n{sections}\n</main>\n<footer>{foot}</footer>\n"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _section(given: parts.Section) -> str:
    body = "\n".join(map(_part, given.parts))
    return f'<section id="{given.key}">\n<h2>{text(given.title)}</h2>\n{body}\n</section>'


def _part(part: parts.Part) -> str:
    match part:
        case str():
            return f"<p>{text(part)}</p>"
        case parts.Raw():
            return part.html
        case parts.Table():
            return _table(part)
        case parts.Figure():
            return _figure(part)
        case parts.Items():
            return _items(part)


def _items(given: parts.Items) -> str:
    if not given.keys:
        return "<ul>" + "".join(f"<li>{text(line)}</li>" for line in given.lines) + "</ul>"
    pairs = zip(given.keys, given.lines, strict=True)
    items = "".join(f"<li><b>{text(key)}</b> {text(line)}</li>" for key, line in pairs)
    return f'<ul class="legend">{items}</ul>'


def _table(given: parts.Table) -> str:
    """A table that the page's script makes sortable; columns without any entry are left out."""
    every = range(len(given.head))
    kept = [i for i in every if any(row[i] != parts.NOTHING for row in given.rows)]
    rows = [[row[i] for i in kept] for row in given.rows]
    columns = list(zip(*rows, strict=True))
    widths = [
        max((len(cell.parts[1]) for cell in column if isinstance(cell, parts.Number)), default=0)
        for column in columns
    ]
    heads = "".join(
        f'<th scope="col"{" class=n" if any(isinstance(c, parts.Number) for c in column) else ""}>'
        f"{text(given.head[i])}</th>"
        for i, column in zip(kept, columns, strict=True)
    )
    lines = "\n".join(
        "<tr>" + "".join(_cell(c, w) for c, w in zip(row, widths, strict=True)) + "</tr>"
        for row in rows
    )
    # The words are outside of what scrolls, where they would be as wide as the table.
    return (
        f'<figure><div class="scroll"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{lines}\n'
        f"</tbody></table></div>{_caption(given.caption)}</figure>"
    )


def _caption(words: str) -> str:
    return f"<figcaption>{text(words)}</figcaption>" if words else ""


def _cell(cell: parts.Cell, width: int) -> str:
    if isinstance(cell, parts.Raw):
        return f'<td class="t">{cell.html}</td>'
    if isinstance(cell, str):
        kind = "wide" if len(cell) > 40 else "t" if len(cell) < 26 else ""
        return f'<td class="{kind}">{text(cell)}</td>'
    whole, rest = cell.parts
    value = "" if cell.value is None else repr(float(cell.value))
    fraction = f'<span class="f f{min(width, 8)}">{text(rest)}</span>' if width else ""
    return f'<td class=n data-v="{value}">{text(whole)}{fraction}</td>'


def _figure(given: parts.Figure) -> str:
    """A picture inside the page, in the colours and at the width of the reader's choice."""

    def source(media: str, of: Picture, content: bytes) -> str:
        return f'<source media="{media}" width="{of.width}" srcset="{_data(content)}">'

    dark = "(prefers-color-scheme: dark)"
    wide = given.picture
    small = wide.narrow
    sources = "" if small is None else source(f"{NARROW} and {dark}", small, small.dark)
    sources += "" if small is None else source(NARROW, small, small.light)
    return (
        f"<figure><picture>{sources}{source(dark, wide, wide.dark)}"
        f'<img alt="{text(given.words)}" width="{wide.width}" src="{_data(wide.light)}">'
        f"</picture>{_caption(given.caption)}</figure>"
    )


def _data(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
