"""Compare the code of two versions up to renames, docstrings, comments and error texts.

    python -m tests.same_code BASE HEAD [--map renames/a.txt ...] [--tests] [PATH ...]

BASE and HEAD are git revisions, or `.` for the working tree.  The exit status is 1 if any file
differs.  `--tests` allows that `pytest.raises(X, match=...)` becomes `raises(X, "code")` of
tests/refusals.py.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.compare_context import CompareContext, Difference
from tests.error_texts import ErrorFacts
from tests.rename_map import RenameMap, module_of_path
from tests.tree_compare import TreeComparison

FOLDERS = ("protocols", "models", "cluster", "benchmarks", "tfe_bench", "tests", "docs")
_MOST_PER_FILE = 12


def _run_git(*arguments: str, text: bytes | None = None) -> bytes:
    return subprocess.run(["git", *arguments], input=text, capture_output=True, check=True).stdout


def read_version(revision: str) -> dict[str, str]:
    """Return the texts of all Python files of a revision by path, or of the working tree for
    ".".
    """
    if revision == ".":
        names = _run_git("ls-files", "-z", "-co", "--exclude-standard", "--", *FOLDERS)
        paths = [Path(n) for n in names.decode().split("\0") if n.endswith(".py")]
        return {str(p): p.read_text(encoding="utf-8") for p in paths if p.is_file()}
    blobs = {}
    for line in _run_git("ls-tree", "-r", "-z", revision, "--", *FOLDERS).decode().split("\0"):
        head, _, path = line.partition("\t")
        if path.endswith(".py") and head.startswith("100"):
            blobs[path] = head.split()[2]
    output = _run_git("cat-file", "--batch", text="\n".join(blobs.values()).encode())
    texts, start = {}, 0
    for path in blobs:
        end = output.index(b"\n", start)
        size = int(output[start:end].split()[2])
        texts[path] = output[end + 1 : end + 1 + size].decode()
        start = end + 2 + size
    return texts


def new_path(path: str, renames: RenameMap, files: dict[str, str]) -> str:
    """Return the path of a file after the renames of modules."""
    module = module_of_path(path)
    mapped = renames.map_module(module)
    if mapped == module:
        return path
    suffix = "/__init__.py" if path.endswith("/__init__.py") else ".py"
    candidate = mapped.replace(".", "/") + suffix
    candidate = f"tfe_bench/{candidate}" if path.startswith("tfe_bench/") else candidate
    return path if path in files and candidate not in files else candidate


def compare_versions(
    base: dict[str, str], head: dict[str, str], renames: RenameMap, is_tests: bool = False
) -> tuple[dict[str, list[Difference]], int]:
    """Return the differences by file, and the number of renames."""
    if base == head:
        return {}, 0
    errors = ast.parse(base.get("tfe_bench/errors.py", ""))
    facts = ErrorFacts.collect(map(ast.parse, base.values()), errors)
    context = CompareContext(renames, facts, is_tests)
    differences: dict[str, list[Difference]] = {}
    renamed = 0
    unmatched = dict(head)
    for path, text in base.items():
        other = new_path(path, renames, head)
        if other not in unmatched:
            differences[path] = [Difference(1, "the file is missing", path, "")]
            continue
        new_text = unmatched.pop(other)
        if new_text == text:
            continue
        modules = module_of_path(path), module_of_path(other)
        try:
            new_tree = ast.parse(new_text)
        except SyntaxError as error:
            differences[other] = [Difference(error.lineno or 1, "not Python", "", str(error))]
            continue
        result = TreeComparison(ast.parse(text), new_tree, modules, context)
        renamed += result.renamed
        if result.differences:
            differences[other] = result.differences
    for path in unmatched:
        differences[path] = [Difference(1, "the file is new", "", path)]
    return differences, renamed


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the differences; return 1 if there are any."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("base")
    parser.add_argument("head")
    parser.add_argument("paths", nargs="*", help="only files below these folders")
    parser.add_argument("--map", action="append", default=[], type=Path, metavar="FILE")
    parser.add_argument("--tests", action="store_true", help="allow raises() of tests/refusals.py")
    parser.add_argument("--new", action="append", default=[], metavar="PATH", help="a new file")
    parser.add_argument("--all", action="store_true", help="print all differences of a file")
    options = parser.parse_args(arguments)
    renames = RenameMap.read(options.map)
    base, head = read_version(options.base), read_version(options.head)
    head = {path: text for path, text in head.items() if path not in options.new}
    differences, renamed = compare_versions(base, head, renames, options.tests)
    if options.paths:
        chosen = tuple(p.rstrip("/") for p in options.paths)
        differences = {
            p: d
            for p, d in differences.items()
            if any(p == c or p.startswith(c + "/") for c in chosen)
        }
    for path, entries in differences.items():
        for difference in entries if options.all else entries[:_MOST_PER_FILE]:
            print(f"{path}: {difference}")
        if not options.all and len(entries) > _MOST_PER_FILE:
            print(f"{path}: {len(entries) - _MOST_PER_FILE} further differences (--all)")
    if differences:
        print(f"{len(base):,} files compared, {len(differences):,} differ")
        return 1
    print(f"{len(base):,} files compared, equal after {renamed:,} renames")
    return 0


if __name__ == "__main__":
    sys.exit(main())
