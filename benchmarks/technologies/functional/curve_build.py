"""Compilation of the curve's library, at its first use.

Installing tfe_bench does not compile it: most users never compute on the curve.  A folder that only
its owner can read or change keeps one library for each version of the sources.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tfe_bench.errors import OpsMissing

KERNELS: Final = Path(__file__).resolve().with_name("kernels")
# The folder from which the kernels' includes start.
_ROOT: Final = KERNELS.parents[3]
_FLAGS: Final = (
    *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-DNDEBUG"),
    f"-I{_ROOT}",
)
# Files that are named for an instruction set are compiled for it and chosen at run time; all others
# run on any x86-64.
_INSTRUCTION_SETS: Final = {
    "_ifma": ("-mavx2", "-mbmi2", "-mfma", "-mavx512f", "-mavx512vl", "-mavx512ifma")
}


def find_curve_library() -> Path:
    """Return the path of the library, which is compiled if it is missing.

    Raises:
        OpsMissing: it cannot be compiled or kept.
    """
    command = shlex.split(os.environ.get("CXX", "g++"))
    digest = hashlib.sha256(repr((command, _FLAGS, _INSTRUCTION_SETS)).encode())
    for file in sorted(KERNELS.iterdir()):
        digest.update(file.read_bytes())
    library = _open_cache_folder() / f"curve-{digest.hexdigest()[:32]}.so"
    if not library.exists():
        _compile_library(command, library)
    return library


def _open_cache_folder() -> Path:
    """Return the folder of compiled libraries.

    Raises:
        OpsMissing: it cannot be created, or others can change it.
    """
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.path.expanduser(base)) / "tfe_bench"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.stat()
    except OSError as error:
        raise _build_error(
            f"The folder {str(folder)!r} cannot be used ({error.strerror}). Name another one in "
            "XDG_CACHE_HOME."
        ) from error
    if facts.st_uid != os.geteuid() or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _build_error(
            f"Others can change the folder {str(folder)!r}. Run chmod 700 on it, or name another "
            "one in XDG_CACHE_HOME."
        )
    return folder


def _compile_library(command: Sequence[str], library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as name:
        folder = Path(name)

        def compile_source(source: Path) -> str:
            target = str(folder / f"{source.stem}.o")
            isa = next((f for s, f in _INSTRUCTION_SETS.items() if source.stem.endswith(s)), ())
            _run_compiler([*command, *_FLAGS, *isa, "-c", str(source), "-o", target])
            return target

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            objects = list(pool.map(compile_source, sorted(KERNELS.glob("*.cc"))))
        unfinished = folder / library.name
        _run_compiler(
            [*command, "-shared", *objects, "-Wl,-z,defs", "-lpthread", "-o", str(unfinished)]
        )
        unfinished.replace(library)  # (another process may compile it at the same time)


def _run_compiler(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise _build_error(
            f"{command[0]!r} cannot be run ({error.strerror}). Install g++ 12 or later, or name a "
            "compiler in CXX."
        ) from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line]
        shown = f": {lines[0][:200]}" if lines else ""
        raise _build_error(
            f"{command[0]!r} ended with {done.returncode}{shown}. Install g++ 12 or later, or name "
            "a compiler in CXX."
        )


def _build_error(text: str) -> OpsMissing:
    return OpsMissing(
        f"The curve of functional encryption is compiled at its first use. {text}",
        code="curve-not-compiled",
    )
