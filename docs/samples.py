"""Rerun the samples of README.md and docs/ and compare their output: python -m docs.samples.

The kind of a fenced block follows its language; a test refuses a block without it.

    sh run, python run        runs in a folder of its page, in the page's order
    sh run slow, ...          the same, but --fast skips it, as every block that starts workers
    text output               output of the preceding block, without the lines LEFT_OUT
    toml file=NAME, ...       is written to that folder
    sh skip REASON, ...       cannot run here; tests/test_skipped_samples.py runs the blocks that
                              need hosts, owners or files

In Python a line that prints may end in `# -> ` and its output.  GENERATED generates the text
between `<!-- generated NAME -->` and `<!-- end -->` from the code.

Values that differ between two runs are not compared: times, sizes of messages and memory, rounds of
a sort (its shuffle is random); numbers with decimals may differ by a tenth.  --write updates the
pages with the present output.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfe_bench.benchmarks.operations import OPERATIONS

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))
SECONDS = 600
# Characters of a table's row.
MAX_ROW = 200
# Programs that operators must allow (allow_programs, [[reveal]]) for each command.
PROGRAMS: dict[str, tuple[str, ...]] = {
    "sort": ("sort",),
    **dict.fromkeys(("ops", "compare", *OPERATIONS), ("operation",)),
    "exp": ("exp",),
    "matmul": ("matmul",),
    **dict.fromkeys(("infer", "resnet50"), ("predict",)),
    "generate": ("generate",),
    "deploy": ("deploy",),
    "models --remove": ("undeploy",),
    "predict": ("serve",),
    "train": ("train",),
    "train --deploy": ("train", "deploy"),
    "provide": ("provide",),
    "provide --remove": ("withdraw",),
    "table put": ("table_put",),
    "table remove": ("table_remove",),
    "query": ("query",),
    "align": ("align",),
    "relational": ("table_put", "table_remove", "query"),
    "suite": ("sort", "operation", "train", "table_put", "table_remove", "query"),
    **dict.fromkeys(("links", "doctor"), ("links",)),
    "cluster.reveal": ("compute",),
    "cluster.forget": ("array_remove",),
}
# Files that pages assume to exist.
GIVEN = {
    "salaries.csv": "name,salary,bonus\nAnn,85000.50,244.59\nBob,72000,1000\nCy,91000,0\n",
}
# Lines of a record's table with time and versions.
LEFT_OUT = re.compile(
    r"^(commit|measured) .*\n|\n?^(tfe_bench \d|\d+ operations, )(.+\n)+", re.MULTILINE
)

_FENCE = re.compile(r"^```(?P<mark>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_PRINTS = re.compile(r"  # -> (?P<shown>.*)$", re.MULTILINE)
_SECTION = re.compile(
    r"(?P<head><!-- generated (?P<name>[\w-]+) -->\n)(?P<body>.*?)(?=<!-- end -->)", re.DOTALL
)
# Continuous integration installs the checkout; here it is installed already.
_INSTALL = re.compile(r"^pip install \S+ && ", re.MULTILINE)
_UNLIKE = (
    (re.compile(r"[\d.,]+ (ns|us|ms|s)\b"), "TIME"),
    (re.compile(r"[+-]?[\d.,]+ (B|kB|MB|GB|TB)\b"), "SIZE"),
    (re.compile(r"[\d.,]+ [KMG]?bit/s\b"), "RATE"),
    (re.compile(r"^machine .*$", re.MULTILINE), "machine"),
    (re.compile(r"\b\d\.\de-\d\d\b"), "ERROR"),  # estimated; processors round differently
    (re.compile(r"[-\u2500-\u257f]{2,}"), "--"),  # lines of a table
    (re.compile(r"[\d,]+ total / [\d,]+ online"), "COUNT"),
    (re.compile(r"^messages .*$", re.MULTILINE), "COUNT"),
)
_NUMBER = re.compile(r"-?\d+\.\d*(?:[eE][+-]?\d+)?")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: language of the block.
        kind: "run", "output", "file", "skip", or "" without a kind.
        rest: words after the kind.
        text: lines of the block.
        span: position of the text in the page.
    """

    language: str
    kind: str
    rest: str
    text: str
    span: tuple[int, int]
    line: int

    @property
    def is_slow(self) -> bool:
        """True if --fast skips the block."""
        return self.rest == "slow"


def parse_blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page's text."""
    found = []
    for match in _FENCE.finditer(page):
        mark = re.fullmatch(r"(\S*) ?(run|output|file=|skip)?\s*(.*)", match["mark"])
        assert mark is not None
        language, kind, rest = mark.groups()
        line = page.count("\n", 0, match.start()) + 1
        span = match.span("body")
        found.append(Block(language, (kind or "").rstrip("="), rest, match["body"], span, line))
    return found


def parse_commands(block: Block) -> Iterator[list[str]]:
    """Yield the words of every `python -m tfe_bench ...` of a shell block."""
    import shlex

    for line in block.text.replace("\\\n", " ").splitlines():
        _, found, words = line.partition("python -m tfe_bench ")
        if found:
            yield shlex.split(words, comments=True)


def is_alike(shown: str, printed: str) -> bool:
    """Compare two outputs, without the values that differ between two runs."""
    for pattern, word in _UNLIKE:
        shown, printed = pattern.sub(word, shown), pattern.sub(word, printed)
    ours, theirs = ([float(n) for n in _NUMBER.findall(t)] for t in (shown, printed))
    words = [_NUMBER.sub("#", t).split() for t in (shown, printed)]
    close = all(abs(a - b) <= 0.1 * max(abs(a), abs(b)) for a, b in zip(ours, theirs, strict=False))
    return words[0] == words[1] and len(ours) == len(theirs) and close


def run_block(block: Block, folder: Path) -> str:
    """Run a block and return its standard output.

    Raises:
        RuntimeError: the block fails.
    """
    code = _INSTALL.sub("", block.text)
    shell = ["bash", "-euo", "pipefail", "-c", code]
    command = shell if block.language == "sh" else [sys.executable, "-c", code]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    given = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "LINES")}
    given |= {"PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "88", "NO_COLOR": "1"}
    done = subprocess.run(
        command, cwd=folder, env=given, capture_output=True, text=True, timeout=SECONDS
    )
    if done.returncode:
        raise RuntimeError(f"ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return LEFT_OUT.sub("", done.stdout)


def rerun_page(page: str, fast: bool) -> tuple[str, list[str]]:
    """Run the blocks of a page.

    Returns:
        The page with the present output, and a list of differences.
    """
    edits: list[tuple[tuple[int, int], str]] = []
    differs: list[str] = []
    all_blocks = parse_blocks(page)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in GIVEN.items():
            (folder / file).write_text(content)
        for number, block in enumerate(all_blocks):
            if block.kind == "file":
                (folder / block.rest).parent.mkdir(parents=True, exist_ok=True)
                (folder / block.rest).write_text(block.text)
            if block.kind != "run" or (fast and block.is_slow):
                continue
            after = all_blocks[number + 1] if number + 1 < len(all_blocks) else None
            try:
                printed = run_block(block, folder)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                differs.append(f"line {block.line}: {error}")
                continue
            if after is not None and after.kind == "output":
                shown, span = after.text, after.span
                renewed = printed.strip("\n") + "\n"
            elif places := list(_PRINTS.finditer(block.text)):
                shown, span = "".join(p["shown"] + "\n" for p in places), block.span
                renewed = block.text
                for place, line in reversed(list(zip(places, printed.splitlines(), strict=False))):
                    start, end = place.span("shown")
                    renewed = renewed[:start] + line + renewed[end:]
            else:
                continue
            if not is_alike(shown, printed):
                differs.append(f"line {block.line}: expected\n{shown}Received:\n{printed}")
            edits.append((span, renewed))
    for (start, end), text in reversed(edits):
        page = page[:start] + text + page[end:]
    return page, differs


# ---- text generated from the code


def keras_layers() -> str:
    """Tables of supported Keras classes: each class is tried."""
    return str(_load_docs_module("keras_page").tables())


def keras_applications() -> str:
    """Table of the families of keras.applications that predict."""
    return str(_load_docs_module("keras_page").applications_table())


def _load_docs_module(name: str) -> Any:
    """Import docs/NAME.py; tests run this file outside of any package."""
    import importlib.util

    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"docs_{name}", path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found  # dataclasses look there
    spec.loader.exec_module(found)
    return found


def layer_kinds() -> str:
    """Table of the layer types, from their classes."""
    from tfe_bench.models.layers.base import registry

    lines = ["| layer type | value | Keras classes | predicts | trains |\n|---|---|---|---|---|\n"]
    for op, kind in sorted(registry.KINDS.items()):
        gives = (type(kind).__doc__ or "").splitlines()[0].rstrip(".").replace("|", r"\|")
        names = ", ".join(f"`{name}`" for name in (*kind.keras_layers, *kind.keras_functions))
        predicts, trains = ("yes" if does else "" for does in (kind.can_predict, kind.can_train))
        lines.append(_format_row(f"`{op}`", gives, names, predicts, trains))
    return "".join(lines)


def _format_row(*cells: str) -> str:
    """Format a row of a table, with continuation rows where it would exceed MAX_ROW characters."""
    row = f"| {' | '.join(cells)} |\n"
    if len(row) <= MAX_ROW + 1:
        return row
    split = max(range(len(cells)), key=lambda i: len(_break(cells[i])) and len(cells[i]))
    room = MAX_ROW - len(row) + len(cells[split]) + 1
    lengths = itertools.accumulate(len(part) for part in _break(cells[split]))
    count = max(1, sum(length <= room for length in lengths))
    parts = _break(cells[split])
    first, more = "".join(parts[:count]).rstrip(), "".join(parts[count:])
    below = ["" if i != split else more for i in range(len(cells))]
    return _format_row(*cells[:split], first, *cells[split + 1 :]).removesuffix("\n") + (
        f"\n{_format_row(*below)}" if more else "\n"
    )


def _break(cell: str) -> list[str]:
    """Parts of a cell between which a row may break: outside of code; [] if there is only one."""
    parts = re.findall(r"(?:`[^`]*`|[^`\s])+(?:\s+|$)", cell)
    return parts if len(parts) > 1 else []


def programs() -> str:
    """Table of the programs that each command submits, by their names in worker.toml."""
    by_programs: dict[tuple[str, ...], list[str]] = {}
    for command, names in PROGRAMS.items():
        by_programs.setdefault(names, []).append(command)
    lines = ["| commands | programs |\n|---|---|\n"]
    for names, those in by_programs.items():
        listed = [", ".join(f"`{word}`" for word in words) for words in (those, names)]
        lines.append(_format_row(*listed))
    return "".join(lines)


def functions() -> str:
    """Table of the operations of tfe_bench/__init__.pyi: signatures without types, first lines."""
    import inspect

    import tfe_bench as tfe

    lines = ["| function | value |\n|---|---|\n"]
    for name in sorted(tfe.__all__):
        function = getattr(tfe, name)
        if inspect.isfunction(function) and ".protocols." in function.__module__:
            names = ", ".join(
                p.name if p.default is p.empty else f"{p.name}={p.default!r}"
                for p in inspect.signature(function).parameters.values()
            )
            first = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
            lines.append(_format_row(f"`{name}({names})`", first.replace("|", r"\|")))
    return "".join(lines)


def optimizers() -> str:
    """Table of docs/optimizers.py."""
    return str(_load_docs_module("optimizers").table())


GENERATED: dict[str, Callable[[], str]] = {
    "functions": functions,
    "keras-applications": keras_applications,
    "keras-layers": keras_layers,
    "layer-kinds": layer_kinds,
    "optimizers": optimizers,
    "programs": programs,
}


# Generated texts that --fast does not update.
SLOW = ("keras-applications",)


def regenerate(page: str, fast: bool = True) -> str:
    """Return the page with its generated sections updated from the code."""

    def renew_section(found: re.Match[str]) -> str:
        if fast and found["name"] in SLOW:
            return found[0]
        return found["head"] + "\n" + GENERATED[found["name"]]() + "\n"

    return _SECTION.sub(renew_section, page)


def main(argv: list[str] | None = None) -> int:
    """Run the samples; return 1 if a page differs from their output."""
    parser = argparse.ArgumentParser(prog="python -m docs.samples", description=__doc__)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="default: all")
    parser.add_argument("--fast", action="store_true", help="skip slow samples")
    parser.add_argument("--write", action="store_true", help="update the pages")
    given = parser.parse_args(argv)
    os.environ |= {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
    }  # quiet TensorFlow
    wrong = False
    for page in given.pages or PAGES:
        text = page.read_text()
        renewed, differs = rerun_page(text, given.fast)
        if (sections := regenerate(renewed, given.fast)) != renewed:
            differs.append("a generated section is out of date")
        if given.write:
            page.write_text(sections)
        for what in differs:
            print(f"{page.name}: {what}")
        wrong = wrong or bool(differs)
    return 1 if wrong and not given.write else 0


if __name__ == "__main__":
    sys.exit(main())
