"""The documentation's pictures: layers with their imports, and messages between hosts."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Packages of tfe_bench from the top down: each may import itself and those below it. No package
# imports an annex, but for the first one.
LAYERS = {
    "benchmarks.tf_encrypted_programs": "annex: programs of tf-encrypted",
    "benchmarks.technologies": "annex: other technologies",
    "benchmarks.exp_study": "annex: exponential",
    "tf_encrypted": "annex: names of tf-encrypted",
    "cli": "commands",
    "benchmarks": "measurements, comparisons, reports",
    "clusters": "LocalCluster, Cluster, Client",
    "private_tables": "tables and their alignment",
    "models.zoo": "models for measurements",
    "models.estimators": "scikit-learn",
    "models.training": "recipe, step, job, Trainable",
    "models.datasets": "files, owners, alignment",
    "models.inference": "predictions, services, text",
    "models.convert": "Keras to graphs, calibration",
    "models.layers": "one module per layer type",
    "arrays": "NumPy on private values",
    "queries": "SQL on private tables",
    "cluster": "workers, clients, jobs, channel",
    "protocols": "api, nn, order, functions, ring, session",
}
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


def find_layer(module: str) -> str | None:
    """Return the layer of a module of tfe_bench; None if it belongs to no layer."""
    name = module.removeprefix("tfe_bench.")
    return next((x for x in LAYERS if name == x or name.startswith(f"{x}.")), None)


def list_modules() -> dict[str, Path]:
    """Return the files of the product by module."""
    files = {}
    for folder in ("tfe_bench", "benchmarks", "models", "cluster", "protocols"):
        for path in (ROOT / folder).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            files[name if folder == "tfe_bench" else f"tfe_bench.{name}"] = path
    return files


def count_imports() -> Counter[tuple[str, str]]:
    """Count the modules of a layer that import from another layer."""
    counts: Counter[tuple[str, str]] = Counter()
    for module, path in list_modules().items():
        importer = find_layer(module)
        imported_layers = {find_layer(name) for name in imported_names(path)}
        for imported in imported_layers - {importer, None}:
            if importer is not None and imported is not None:
                counts[importer, imported] += 1
    return counts


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
    """Draw the layers as a matrix: a number counts the modules of a row that import a column."""
    row, cell, left, top = 34, 44, 590, 235
    counts, names = count_imports(), list(LAYERS)
    size = cell * len(names)
    parts = []
    for i, (name, about) in enumerate(LAYERS.items()):
        y = top + row * i
        parts.append(
            f'<rect x="10" y="{y + 2}" width="{left - 14}" height="{row - 4}" rx="6" '
            f'fill="{_FILL}" stroke="{_INK}"/>'
            f'<rect x="{left + cell * i + 2}" y="{y + 2}" width="{cell - 4}" height="{row - 4}" '
            f'rx="6" fill="{_INK}"/>'
        )
        parts += [_svg_text(20, y + 22, name, bold=True), _svg_text(312, y + 22, about)]
        x = left + cell * i + 26
        parts.append(f'<g transform="translate({x} {top - 8}) rotate(-55)">')
        parts += [_svg_text(0, 0, name), "</g>"]
        for j, other in enumerate(names):
            if count := counts[name, other]:
                middle = left + cell * j + cell // 2
                parts.append(_svg_text(middle, y + 22, str(count), anchor="middle"))
    return _svg_document(left + size + 70, top + row * len(names) + 10, parts)


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
