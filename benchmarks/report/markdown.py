"""A page as Markdown, its pictures beside it as files NAME.png."""

from __future__ import annotations

from tfe_bench.benchmarks.report.parts import Cell, Figure, Items, Number, Page, Part, Raw, Table


def render(page: Page) -> str:
    """The whole page."""
    blocks = [f"# {page.title}", *map(_part, page.lede)]
    for section in page.sections:
        blocks += [f"## {section.title}", *map(_part, section.parts)]
    return "\n\n".join([*blocks, _cell(page.foot)]) + "\n"


def _part(part: Part) -> str:
    match part:
        case Table():
            rows = [part.head, "-" * len(part.head), *part.rows]
            lines = ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
            lines[1] = "|" + "---|" * len(part.head)
            return _above("\n".join(lines), part.caption)
        case Figure():
            return _above(f"![{part.words}]({part.picture.name}.png)", part.caption)
        case Items():
            return "\n".join(f"- {line}" for line in part.lines)
        case _:
            return _cell(part)


def _above(block: str, caption: str) -> str:
    return f"{block}\n\n{caption}" if caption else block


def _cell(cell: Cell) -> str:
    match cell:
        case Number():
            return cell.shown + cell.after
        case Raw():
            return cell.html
        case _:
            return cell
