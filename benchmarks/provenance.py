"""Provenance of a measurement: the machine, the versions, the commit."""

from __future__ import annotations

import functools
import importlib.metadata
import math
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import tfe_bench
from tfe_bench.benchmarks.fields import COUNT, TEXT, RecordPart
from tfe_bench.cluster.schema import declare_field

VERSIONED: Final = ("tfe_bench", "tensorflow", "numpy", "grpcio", "python")

_DISTRIBUTIONS: Mapping[str, tuple[str, ...]] = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tf-nightly"),
}


@dataclass(frozen=True)
class Machine(RecordPart, subject="the machine of a record"):
    """The machine that ran the client, and with "local" the workers too.

    Args:
        cpu: the model's name.
        cores: how many this process may use.
        memory_bytes: how much there is to use.
        kernel: system and release.
    """

    cpu: str = declare_field(TEXT)
    cores: int = declare_field(COUNT)
    memory_bytes: int = declare_field(COUNT)
    kernel: str = declare_field(TEXT)


def read_machine_facts() -> Machine:
    """Return this machine, within the limits that its container sets."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    quota = _first_line("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit():
        cores = min(cores or 1, max(1, math.ceil(int(quota[0]) / int(quota[1]))))
    ceiling = _first_line("/sys/fs/cgroup/memory.max")
    if ceiling.isdigit():
        memory = min(memory, int(ceiling))
    return Machine(_cpu_name(), cores or 1, memory, f"{platform.system()} {platform.release()}")


def versions() -> dict[str, str | None]:
    """Return the versions that a result depends on, None for a package that is not installed.

    Reads the installed packages' metadata and imports none of them.
    """
    package_versions: dict[str, str | None] = {}
    for name in VERSIONED:
        package_versions[name] = next(
            filter(None, map(_distribution_version, _DISTRIBUTIONS.get(name, (name,)))), None
        )
    package_versions["tfe_bench"] = (
        tfe_bench.__version__
    )  # the code that runs, also from a bare checkout
    package_versions["python"] = platform.python_version()
    return package_versions


@functools.cache
def commit(file: Path = Path(__file__)) -> str | None:
    """Return the git commit of the checkout that `file` runs from, '+dirty' if it was modified.

    None where the code was installed from a package, or git is missing or refuses. A
    checkout that merely surrounds an installed package does not count. Never raises. The
    first answer is kept: it is the nearest to what was imported.
    """
    real = file.resolve()
    if _run_git(real.parent, "ls-files", "--error-unmatch", "--", real.name) is None:
        return None
    head = _run_git(real.parent, "rev-parse", "--verify", "HEAD")
    changes = _run_git(real.parent, "status", "--porcelain", "--untracked-files=no")
    if not head or changes is None:
        return None
    return f"{head}+dirty" if changes else head


def _distribution_version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    except (OSError, ValueError):
        pass
    return platform.processor() or platform.machine() or "unknown"


def _run_git(folder: Path, *arguments: str) -> str | None:
    """Return the output of git, or None if it fails. Run no hook or monitor of the checkout."""
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
