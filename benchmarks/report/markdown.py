"""A page as Markdown, with its pictures as files NAME.png in the same folder."""

from __future__ import annotations

from tfe_bench.benchmarks.report.parts import (
    Cell,
    Figure,
    Items,
    Number,
    Page,
    Part,
    RawHtml,
    Table,
)


def render_markdown(page: Page) -> str:
    """Return the whole page."""
    blocks = [f"# {page.title}", *map(_render_markdown_part, page.lede)]
    for section in page.sections:
        blocks += [f"## {section.title}", *map(_render_markdown_part, section.parts)]
    return "\n\n".join([*blocks, _render_cell(page.foot)]) + "\n"


def _render_markdown_part(part: Part) -> str:
    match part:
        case Table():
            rows = [part.head, "-" * len(part.head), *part.rows]
            lines = ["| " + " | ".join(map(_render_cell, row)) + " |" for row in rows]
            lines[1] = "|" + "---|" * len(part.head)
            return _add_markdown_caption("\n".join(lines), part.caption)
        case Figure():
            return _add_markdown_caption(f"![{part.words}]({part.picture.name}.png)", part.caption)
        case Items():
            return "\n".join(f"- {line}" for line in part.lines)
        case _:
            return _render_cell(part)


def _add_markdown_caption(block: str, caption: str) -> str:
    return f"{block}\n\n{caption}" if caption else block


def _render_cell(cell: Cell) -> str:
    match cell:
        case Number():
            return cell.shown + cell.after
        case RawHtml():
            return cell.html
        case _:
            return cell
