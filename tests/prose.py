"""Prose of the product and its pages, and measures of its language by folder."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.error_texts import ErrorFacts, is_help, is_log
from tests.paths import ROOT

PRODUCT = ("protocols", "models", "cluster", "benchmarks", "tfe_bench")
PAGES = ("docs", "README.md", "SECURITY.md", "CONTRIBUTING.md")

# Words that the field does not use in this sense, and words of inverted sentences.
WORDS = re.compile(
    r"\b(told|tells|hears|whoever|so many|is none|are none|nobody|anew|strangers?|lets go"
    r"|beside|likewise|stumble[sd]?|go(?:es)? astray)\b"
)
PHRASES = (
    *("that no single machine may see", "sorts sort it", "where it is still to come"),
    *("turns it around", "if they do not hold its", "shows the inputs", "whoever orders jobs"),
    *("its names are ours", "heads on features that stay", "how a value travels"),
    *("that is for trying out", "as unknown to it as", "rows that are none", "tells about it what"),
    *("drop by drop", "telling would tell", "dealer's brake", "computed in vain", "hears of"),
    *(
        "that is told of",
        "columns as they are",
    ),
    *(
        "what could not be written",
        "the same without a look",
        "goes astray",
    ),
    *("do not know python's", "has a product at least", "this is no ", "not told in part"),
    *("is a shift and a center", "that nobody noticed", "says not what it costs"),
    *("do not speak of the same", "none of the known ones", "refuses a sum that is none"),
    *("what is no question", "gives what it takes", "what who"),
    *("hears of values", "for whoever gets", "what comes of rows", "of what is none"),
    *("what is handed over", "unknown to who plans", "tensors that are not there"),
    *("nobody's business", "by themselves want to know", "ends them not", "is a stranger's"),
    *("it stumbled over", "those that say nothing", "the others are none"),
    *(
        "when it is let go",
        "comes to be",
        "lets go",
        "with dealing",
        "who converts",
        "want to know",
    ),
)
_BEGINNING = re.compile(r"(Of|What|Whether|How|Who|Whose|Where)\b")
_COMMENT = re.compile(r"(?:^|\s)# ?(.*)$")
_CPP = re.compile(r"//(.*)|/\*(.*?)\*/", re.S)
# Names of one word that the field itself uses.
FIELD_NAMES = frozenset(
    (
        *("mul", "add", "sub", "matmul", "reveal", "sort", "relu", "softmax", "reshape", "main"),
        *("truncate", "a2b", "b2a", "build", "run", "register", "check", "parse", "render"),
    )
)
MOST_FILES = 6


def folder_of(path: Path) -> str:
    """Return the folder of a file as the table names it: two levels in the product."""
    parts = path.relative_to(ROOT).parent.parts
    return "/".join(parts[:2]) if parts else path.name


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return all nodes of a file of the product."""
    return list(ast.walk(python_files()[path]))


@cache
def python_files() -> dict[Path, ast.Module]:
    """Return the syntax trees of the product's files."""
    paths = [p for top in PRODUCT for p in _walk_files(ROOT / top, ".py")]
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def _walk_files(folder: Path, *suffixes: str) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or path.name.startswith((".", "__pycache__")):
            continue
        if path.is_dir():
            yield from _walk_files(path, *suffixes)
        elif path.suffix in suffixes:
            yield path


def _yield_docstrings(path: Path) -> Iterator[str]:
    for node in nodes_of(path):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node, clean=False)
            if text:
                yield text


def _yield_texts(node: ast.AST) -> Iterator[str]:
    for n in ast.walk(node):
        if isinstance(n, ast.Constant) and isinstance(n.value, str):
            yield n.value


def _yield_messages(path: Path, facts: ErrorFacts) -> Iterator[str]:
    """Yield the texts of errors, help and logs."""
    for node in nodes_of(path):
        if isinstance(node, ast.Call):
            arguments = list(facts.text_parts(node)) if facts.is_error(node) else []
            arguments += node.args[:1] if is_log(node) else []
            arguments += [k.value for k in node.keywords if is_help(node, k.arg)]
            for argument in arguments:
                yield from _yield_texts(argument)


def _yield_comments(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if "#" in line and (comment := _COMMENT.search(line)):
            yield comment[1]


@cache
def collect_prose() -> dict[str, list[str]]:
    """Return docstrings, comments, errors and help of code, and the text of pages, by folder."""
    texts: dict[str, list[str]] = defaultdict(list)
    facts = ErrorFacts()
    for path in python_files():
        classes = [n for n in nodes_of(path) if isinstance(n, ast.ClassDef)]
        facts.classes |= {n.name for n in classes if _is_error_class(n)}
    for path in python_files():
        own = texts[folder_of(path)]
        own += _yield_docstrings(path)
        own += _yield_messages(path, facts)
        own += _yield_comments(path.read_text(encoding="utf-8"))
    for top in PRODUCT:
        for path in _walk_files(ROOT / top, ".cc", ".h", ".cpp"):
            source = path.read_text(encoding="utf-8")
            texts[folder_of(path)] += ["".join(m.groups("")) for m in _CPP.finditer(source)]
    for name in PAGES:
        path = ROOT / name
        pages = [path] if path.is_file() else list(_walk_files(path, ".md"))
        for page in pages:
            texts[folder_of(page)].append(page.read_text(encoding="utf-8"))
    return texts


def _is_error_class(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and any(
        ast.unparse(base).endswith(("Error", "Exception")) for base in node.bases
    )


def count_words() -> Counter[str]:
    """Count the words of the dialect by folder."""
    return Counter({f: sum(len(WORDS.findall(t)) for t in ts) for f, ts in collect_prose().items()})


def count_phrases() -> Counter[str]:
    """Count the phrases of the dialect by folder."""
    counts: Counter[str] = Counter()
    for folder, texts in collect_prose().items():
        text = " ".join(" ".join(texts).lower().split())
        counts[folder] = sum(text.count(phrase) for phrase in PHRASES)
    return counts


def count_beginnings() -> Counter[str]:
    """Count the docstrings that begin with "Of", "What", "Whether", "How" or "Who" by folder."""
    counts: Counter[str] = Counter()
    for path in python_files():
        counts[folder_of(path)] += sum(
            bool(_BEGINNING.match(t.strip())) for t in _yield_docstrings(path)
        )
    return counts


def count_moods() -> Counter[str]:
    """Count the docstrings whose first line is not imperative (D401) by folder."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "D401"]
    done = subprocess.run(
        [*command, "--output-format", "json", "--exit-zero", *PRODUCT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    paths = {Path(row["filename"]) for row in json.loads(done.stdout)}
    assert all(p.is_relative_to(ROOT) for p in paths)
    return Counter(folder_of(Path(row["filename"])) for row in json.loads(done.stdout))


def _yield_functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes_of(path):
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        if is_function and not node.name.startswith("__"):  # type: ignore[attr-defined]
            yield node  # type: ignore[misc]


def count_short_names() -> Counter[str]:
    """Count the functions with a name of one word by folder, except names of the field."""
    counts: Counter[str] = Counter()
    for path in python_files():
        names = [f.name.strip("_") for f in _yield_functions(path)]
        counts[folder_of(path)] += sum("_" not in n and n not in FIELD_NAMES for n in names)
    return counts


def common_names() -> dict[str, int]:
    """Return the names of functions that more than 6 files define, with the number of files.

    Methods count unless a base class in the product declares them as part of an interface.
    """
    files: dict[str, set[Path]] = defaultdict(set)
    bases = {
        ast.unparse(base).rpartition(".")[2].partition("[")[0]
        for path in python_files()
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef)
        for base in node.bases
    }
    interface: set[str] = set()
    methods: dict[Path, set[int]] = {}
    for path in python_files():
        methods[path] = set()
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                own = [f for f in node.body if isinstance(f, ast.FunctionDef)]
                methods[path] |= {id(f) for f in own}
                interface |= {f.name for f in own} if node.name in bases else set()
    for path in python_files():
        for f in _yield_functions(path):
            if not (id(f) in methods[path] and f.name in interface):
                files[f.name].add(path)
    return {name: len(paths) for name, paths in files.items() if len(paths) > MOST_FILES}


MEASURES = {
    "words": count_words,
    "phrases": count_phrases,
    "beginnings": count_beginnings,
    "moods": count_moods,
    "short_names": count_short_names,
}
