"""C++ of tests, compiled once for its content: objects and programs stay in build/.

A file with the suffix ``.key`` next to each states what it was made of, as for setup.py's objects.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.paths import ROOT

_FOLDER = ROOT / "build" / "tests"
_INCLUDE = re.compile(rb'^#include "([^"]+)"', re.MULTILINE)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Let one test process at a time write into a folder, which is made if necessary."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(target: Path, command: Sequence[str], content: bytes) -> Path:
    """Run a compiler unless the target was made by this command from this content.

    Raises:
        subprocess.CalledProcessError: the compiler failed; `stderr` has its messages.
    """
    made_of = repr([_compiler_version(), *command]).encode() + content
    key, note = hashlib.sha256(made_of).hexdigest(), target.with_name(f"{target.name}.key")
    if not (target.exists() and note.exists() and note.read_text() == key):
        note.unlink(missing_ok=True)
        target.unlink(missing_ok=True)  # (a running program may have it mapped)
        command = ["g++", *command, "-o", str(target)]
        subprocess.run(command, capture_output=True, text=True, check=True)
        note.write_text(key)
    return target


@functools.cache
def _compiler_version() -> str:
    return subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout


def _read_sources(source: Path) -> bytes:
    """Return a file and all files of the repository that it includes, each once."""
    files, queue = {source: b""}, [source]
    while queue:
        file = queue.pop()
        files[file] = file.read_bytes()
        for name in _INCLUDE.findall(files[file]):
            for folder in (ROOT, file.parent):
                included = folder / name.decode()
                if included.exists() and included not in files:
                    files[included] = b""
                    queue.append(included)
    return b"".join(files[file] for file in sorted(files))


def compile_sources(
    folder: str, sources: Sequence[Path], list_flags: Callable[[Path], list[str]]
) -> list[Path]:
    """Return the objects of C++ files.

    Args:
        folder: of the objects, in build/tests; other flags have another.
        list_flags: file -> the compiler's flags.

    Raises:
        subprocess.CalledProcessError: the compiler failed; `stderr` has its messages.
    """

    def compile_source(source: Path) -> Path:
        command = [*list_flags(source), "-c", str(source)]
        return _make(_FOLDER / folder / f"{source.stem}.o", command, _read_sources(source))

    with lock_folder(_FOLDER / folder), ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(compile_source, sources))


def link_objects(name: str, objects: Sequence[Path], flags: Sequence[str]) -> Path:
    """Return the program or library of compiled objects, in their folder."""
    folder = objects[0].parent
    with lock_folder(folder):
        content = b"".join(hashlib.sha256(file.read_bytes()).digest() for file in objects)
        return _make(folder / name, [*map(str, objects), *flags], content)
