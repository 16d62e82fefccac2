"""A page as self-contained HTML; texts from records are escaped here."""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
from string import Template
from typing import Final

from tfe_bench.benchmarks.report import parts
from tfe_bench.benchmarks.report.drawing import Picture
from tfe_bench.benchmarks.table import strip_control

_LONGEST: Final = 2000
_NARROW: Final = "(max-width: 40rem)"  # as page.css has it


def escape_text(words: object) -> str:
    """Return text as HTML: without control characters, of bounded length, escaped."""
    clean_text = strip_control(str(words))
    return html.escape(clean_text if len(clean_text) <= _LONGEST else clean_text[:_LONGEST] + "…")


def render_html(page: parts.Page) -> str:
    """Return the whole page; it may load nothing, and run no script but its own."""
    folder = importlib.resources.files("tfe_bench.benchmarks.report")
    frame, style, script = (
        folder.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sources = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    links = (f'<a href="#{each.key}">{escape_text(each.title)}</a>' for each in page.sections)
    lede = (
        f'<p class="lede">{escape_text(part)}</p>'
        if isinstance(part, str)
        else _render_html_part(part)
        for part in page.lede
    )
    return Template(frame).substitute(
        policy=f"{sources}; script-src 'sha256-{digest}'",
        title=escape_text(page.title),
        style=style,
        lede="\n".join(lede),
        links="".join(links),
        sections="\n".join(map(_render_section, page.sections)),
        foot=page.foot.html if isinstance(page.foot, parts.RawHtml) else escape_text(page.foot),
        script=script,
    )


def _render_section(section: parts.Section) -> str:
    body = "\n".join(map(_render_html_part, section.parts))
    return (
        f'<section id="{section.key}">\n<h2>{escape_text(section.title)}</h2>\n{body}\n</section>'
    )


def _render_html_part(part: parts.Part) -> str:
    match part:
        case str():
            return f"<p>{escape_text(part)}</p>"
        case parts.RawHtml():
            return part.html
        case parts.Table():
            return _render_table(part)
        case parts.Figure():
            return _render_figure(part)
        case parts.Items():
            return _render_html_list(part)


def _render_html_list(item_list: parts.Items) -> str:
    if not item_list.keys:
        return (
            "<ul>" + "".join(f"<li>{escape_text(line)}</li>" for line in item_list.lines) + "</ul>"
        )
    pairs = zip(item_list.keys, item_list.lines, strict=True)
    items = "".join(
        f"<li><b>{escape_text(key)}</b> {escape_text(line)}</li>" for key, line in pairs
    )
    return f'<ul class="legend">{items}</ul>'


def _render_table(table: parts.Table) -> str:
    """Return a table that the page's script makes sortable; empty columns are left out."""
    columns = [
        (head, cells)
        for head, *cells in zip(table.head, *table.rows, strict=True)
        if any(cell != parts.NOTHING for cell in cells)
    ]
    heads, lines = "", [""] * len(table.rows)
    for head, cells in columns:
        numbers = [cell for cell in cells if isinstance(cell, parts.Number)]
        heads += f'<th scope="col"{" class=n" if numbers else ""}>{escape_text(head)}</th>'
        width = max((len(number.split_at_point[1]) for number in numbers), default=0)
        lines = [line + _render_cell(cell, width) for line, cell in zip(lines, cells, strict=True)]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    # The words are outside of what scrolls, where they would be as wide as the table.
    return (
        f'<figure><div class="scroll"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n'
        f"</tbody></table></div>{_render_caption(table.caption)}</figure>"
    )


def _render_caption(words: str) -> str:
    return f"<figcaption>{escape_text(words)}</figcaption>" if words else ""


def _render_cell(cell: parts.Cell, width: int) -> str:
    if isinstance(cell, parts.RawHtml):
        return f'<td class="t">{cell.html}</td>'
    if isinstance(cell, str):
        kind = "wide" if len(cell) > 40 else "t" if len(cell) < 26 else ""
        return f'<td class="{kind}">{escape_text(cell)}</td>'
    whole, rest = cell.split_at_point
    value = "" if cell.value is None else repr(float(cell.value))
    fraction = f'<span class="f f{min(width, 8)}">{escape_text(rest)}</span>' if width else ""
    return f'<td class=n data-v="{value}">{escape_text(whole)}{fraction}</td>'


def _render_figure(figure: parts.Figure) -> str:
    """Return a picture inside the page, in the colors and at the width of the reader's choice."""

    def source_tag(media: str, of: Picture, content: bytes) -> str:
        return f'<source media="{media}" width="{of.width}" srcset="{_data_url(content)}">'

    dark, wide, small = "(prefers-color-scheme: dark)", figure.picture, figure.picture.narrow
    sources = source_tag(dark, wide, wide.dark)
    if small is not None:  # the first that fits is taken
        narrow = source_tag(f"{_NARROW} and {dark}", small, small.dark)
        sources = narrow + source_tag(_NARROW, small, small.light) + sources
    return (
        f'<figure><picture>{sources}<img alt="{escape_text(figure.words)}" width="{wide.width}" '
        f'src="{_data_url(wide.light)}"></picture>{_render_caption(figure.caption)}</figure>'
    )


def _data_url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
