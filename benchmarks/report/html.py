"""A page as HTML that needs no other file; what comes from records is escaped here."""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
from string import Template
from typing import Final

from tfe_bench.benchmarks.report import parts
from tfe_bench.benchmarks.report.drawing import Picture
from tfe_bench.benchmarks.table import clean

_LONGEST: Final = 2000
_NARROW: Final = "(max-width: 40rem)"  # as page.css has it


def text(words: object) -> str:
    """Text as HTML: without control characters, of bounded length, escaped."""
    given = clean(str(words))
    return html.escape(given if len(given) <= _LONGEST else given[:_LONGEST] + "…")


def render(page: parts.Page) -> str:
    """The whole page; it may load nothing, and run no script but its own."""
    folder = importlib.resources.files("tfe_bench.benchmarks.report")
    frame, style, script = (
        folder.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sources = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    links = (f'<a href="#{each.key}">{text(each.title)}</a>' for each in page.sections)
    lede = (
        f'<p class="lede">{text(part)}</p>' if isinstance(part, str) else _part(part)
        for part in page.lede
    )
    return Template(frame).substitute(
        policy=f"{sources}; script-src 'sha256-{digest}'",
        title=text(page.title),
        style=style,
        lede="\n".join(lede),
        links="".join(links),
        sections="\n".join(map(_section, page.sections)),
        foot=page.foot.html if isinstance(page.foot, parts.Raw) else text(page.foot),
        script=script,
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
    columns = [
        (head, cells)
        for head, *cells in zip(given.head, *given.rows, strict=True)
        if any(cell != parts.NOTHING for cell in cells)
    ]
    heads, lines = "", [""] * len(given.rows)
    for head, cells in columns:
        numbers = [cell for cell in cells if isinstance(cell, parts.Number)]
        heads += f'<th scope="col"{" class=n" if numbers else ""}>{text(head)}</th>'
        width = max((len(number.parts[1]) for number in numbers), default=0)
        lines = [line + _cell(cell, width) for line, cell in zip(lines, cells, strict=True)]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    # The words are outside of what scrolls, where they would be as wide as the table.
    return (
        f'<figure><div class="scroll"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n'
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
    """A picture inside the page, in the colors and at the width of the reader's choice."""

    def source(media: str, of: Picture, content: bytes) -> str:
        return f'<source media="{media}" width="{of.width}" srcset="{_data(content)}">'

    dark, wide, small = "(prefers-color-scheme: dark)", given.picture, given.picture.narrow
    sources = source(dark, wide, wide.dark)
    if small is not None:  # the first that fits is taken
        narrow = source(f"{_NARROW} and {dark}", small, small.dark)
        sources = narrow + source(_NARROW, small, small.light) + sources
    return (
        f'<figure><picture>{sources}<img alt="{text(given.words)}" width="{wide.width}" '
        f'src="{_data(wide.light)}"></picture>{_caption(given.caption)}</figure>'
    )


def _data(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
