"""The documentation's pictures: layers with their imports, and messages between hosts."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAYERS = {
    "annexes": "technologies, exp study, tf-encrypted's names",
    "tfe_bench/cli": "commands",
    "benchmarks": "measurements, comparisons, reports",
    "models": "Keras models, training, services",
    "cluster": "workers, clients, jobs, channel",
    "protocols": "api, nn, order, functions, ring, session, kernels",
}
# Folders of the annexes.
ANNEXES = (
    *("benchmarks/technologies", "benchmarks/exp_study", "benchmarks/tf_encrypted_programs"),
    "tfe_bench/tf_encrypted",
)
_IMPORT = re.compile(r"^tfe_bench\.(cli|benchmarks|models|cluster|protocols)\b")
_INK, _FILL, _TEXT = "#5c6bc0", "#e8eaf6", "#263238"

LANES = {
    "client": "client",
    "D": "dealer D",
    "E1": "evaluator E1",
    "E2": "evaluator E2",
}
# Lines are "from > to: message", or "host: local computation".
JOURNEYS = {
    "sort": """
client > D: l1, l2 as seeds
client > E1: m = x + l1 + l2, l1 as a seed
client > E2: m, l2 as a seed
D > E2: correlated randomness for all later steps, sent ahead
E1 > E2: keys made distinct: x 2^p + position (4 rounds)
D > E2: shuffle: three permutations, each known to two (2 rounds)
E1 > E2: comparisons of shuffled keys, masked bits (3 rounds)
E1 > E2: the bits are opened: a random order
E1: each party reorders its shares
D > client: l1, l2 of the result
E1 > client: m of the result
client: x = m - l1 - l2
""",
    "prediction": """
client > E1: the picture: m, and seeds of l1 and l2
D > E2: products of masks, tables of comparisons, sent ahead
E1 > E2: a convolution and its bias, masked, in Z_2^k (1 round)
E1 > E2: its sign: two or three exchanges of masked bits
E1 > E2: the bit under a mask (1 round)
E1 > E2: bit times value, back in Z_2^64 (1 round)
E1: ... the next layer
E1 > client: m of the logits; D sends l1 and l2
""",
    "training": """
client > E1: rows and labels, shared once; each step gathers its batch
D > E2: correlated randomness for the whole step, sent ahead
E1 > E2: forward: products, ReLU (its bits are kept)
E1 > E2: softmax; p - y is local
E1 > E2: backward: products with W, times the ReLU's bits
E1 > E2: gradients x d, truncated; weights - rate times them
E1: ... the next step, on shares that stay at the workers
E1 > client: at the end: the weights; or shares stay for predictions
""",
}


def imported_names(path: Path) -> Iterator[str]:
    """Yield the names that a file imports, also in functions: modules, and names in them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{a.name}" for a in node.names))
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names)


def count_imports() -> Counter[tuple[str, str]]:
    """Count the modules of a layer that import from another layer."""
    found: Counter[tuple[str, str]] = Counter()
    for folder in (*LAYERS, *ANNEXES):
        for path in (ROOT / folder).rglob("*.py"):
            is_annex = str(path.relative_to(ROOT)).startswith(ANNEXES)
            own = "annexes" if is_annex else folder.rpartition("/")[2]
            if is_annex != (folder in ANNEXES):
                continue  # counted with the annex
            names = {m.group(1) for name in imported_names(path) if (m := _IMPORT.match(name))}
            found.update((own, name) for name in names - {own})
    return found


def _svg_document(width: int, height: int, parts: Sequence[str]) -> str:
    start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="14"><defs><marker id="to" viewBox="0 0 8 8" refX="8" '
        'refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse">'
        f'<path d="M0 0 8 4 0 8z" fill="{_INK}"/></marker></defs>'
        f'<rect width="{width}" height="{height}" fill="white"/>'
    )
    return "\n".join([start, *parts, "</svg>"])


def _svg_text(x: int, y: int, what: str, *, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{_TEXT}"{weight}>{escape(what)}</text>'
    )


def _svg_line(path: str, ends: str = 'marker-end="url(#to)"') -> str:
    return f'<path d="{path}" fill="none" stroke="{_INK}" stroke-width="1.5" {ends}/>'


def draw_layers() -> str:
    """Draw the layers; a number counts the modules that import across."""
    names = [folder.rpartition("/")[2] for folder in LAYERS]
    step, width = 92, 400
    parts = []
    for i, (name, about) in enumerate(zip(names, LAYERS.values(), strict=True)):
        y = step * i + 10
        parts.append(
            f'<rect x="10" y="{y}" width="{width}" height="56" rx="8" fill="{_FILL}" '
            f'stroke="{_INK}"/>'
        )
        parts += [_svg_text(28, y + 24, name, bold=True), _svg_text(28, y + 44, about)]
    lane = width + 40
    for (upper, lower), count in sorted(count_imports().items(), key=lambda item: item[0]):
        a, b = names.index(upper), names.index(lower)
        if b == a + 1:
            x, y = width // 2, step * a + 66
            parts += [_svg_line(f"M{x} {y}V{y + step - 56}"), _svg_text(x + 8, y + 24, str(count))]
            continue
        top, end = step * a + 24 + 8 * (b - a), step * b + 20 + 8 * (b - a)
        parts.append(_svg_line(f"M{width + 10} {top}H{lane}V{end}H{width + 12}"))
        parts.append(_svg_text(lane + 5, top + 30, str(count)))
        lane += 42
    return _svg_document(lane + 20, step * len(names), parts)


def draw_journey(steps: str) -> str:
    """Draw the messages between the client and the three workers, from top to bottom."""
    apart, row, top = 330, 44, 60
    lines = steps.strip().splitlines()
    at = {name: 90 + apart * i for i, name in enumerate(LANES)}
    height = top + row * len(lines) + 20
    parts = []
    for name, x in at.items():
        parts.append(
            f'<path d="M{x} 40V{height - 10}" stroke="{_INK}" stroke-dasharray="3 4"/>'
            f'<rect x="{x - 75}" y="10" width="150" height="30" rx="6" fill="{_FILL}" '
            f'stroke="{_INK}"/>'
        )
        parts.append(_svg_text(x, 30, LANES[name], anchor="middle", bold=True))
    for i, line in enumerate(lines):
        who, _, what = line.partition(": ")
        source, _, to = who.partition(" > ")
        y = top + row * i + 24
        if not to:
            parts.append(_svg_text(at[source] + 8, y, what))
            continue
        both = {source, to} == {"E1", "E2"}
        ends = 'marker-end="url(#to)"' + (' marker-start="url(#to)"' if both else "")
        parts.append(_svg_line(f"M{at[source]} {y}H{at[to]}", ends))
        parts.append(_svg_text((at[source] + at[to]) // 2, y - 7, what, anchor="middle"))
    return _svg_document(apart * len(LANES) - 40, height, parts)


def all_of_them() -> dict[str, str]:
    """Return SVGs by name."""
    return {
        "layers": draw_layers(),
        **{name: draw_journey(steps) for name, steps in JOURNEYS.items()},
    }
