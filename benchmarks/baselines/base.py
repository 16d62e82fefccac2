"""The interface of a baseline, and running a script in its environment."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from tfe_bench.benchmarks.table import strip_control
from tfe_bench.cluster import profiles
from tfe_bench.cluster.links import Links, NoNamespaces
from tfe_bench.errors import UsageError, check_range

WORKLOADS: Final = ("sort", "max", "relu", "matmul", "softmax", "train", "join")
# n elements; n rows of 4 for max; two n x n matrices; n rows of 10 for softmax; a step of network A
# by SGD with a batch of n; two tables of n rows for a join
SIZES: Final = {
    "sort": (1, 1 << 22),
    "max": (1, 1 << 21),
    "relu": (1, 1 << 22),
    "matmul": (1, 1 << 12),
    "softmax": (1, 1 << 18),
    "train": (1, 1 << 12),
    "join": (1, 1 << 21),
}
_LONGEST: Final = 1 << 20  # of what a baseline prints


@dataclass(frozen=True)
class BaselineRequest:
    """The workload that a baseline is to run.

    Raises:
        UsageError: an unknown workload, or a size or number of runs out of range.
    """

    workload: str
    n: int
    repeat: int
    profile: str = "local"
    timeout: float = 600.0

    def __post_init__(self) -> None:
        if self.workload not in WORKLOADS:
            raise UsageError(
                f"Expected a workload of {', '.join(WORKLOADS)}. Received: {self.workload!r}.",
                code="unknown-name",
                operation="workload",
                received=self.workload,
            )
        check_range("--n", self.n, *SIZES[self.workload])
        check_range("--repeat", self.repeat, 1, 100)
        if not 0 < self.timeout <= 86400:
            raise UsageError(
                f"--timeout is above 0 and at most 86400 s. Received: {self.timeout}.",
                code="number-out-of-range",
                operation="--timeout",
                received=self.timeout,
            )

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object that a script reads."""
        return {"workload": self.workload, "n": self.n, "repeat": self.repeat}


def write_training_images(folder: Path, n: int) -> None:
    """Write the images and labels of a baseline's training step as four IDX files."""
    import numpy as np

    from tfe_bench.benchmarks.baselines.scripts import workloads

    images, labels = workloads.make_inputs("train", n, 0)[:2]
    pixels = np.rint(255 * images).astype(np.uint8).reshape(n, 28, 28)
    for name, values in (("images-idx3", pixels), ("labels-idx1", labels.argmax(1))):
        content = bytes([0, 0, 8, values.ndim])
        content += b"".join(size.to_bytes(4, "big") for size in values.shape)
        content += values.astype(np.uint8).tobytes()
        for part in ("train", "t10k"):
            (folder / f"{part}-{name}-ubyte").write_bytes(content)


@dataclass(frozen=True)
class BaselineResult:
    """Times and traffic of a baseline.

    Attributes:
        seconds: wall-clock time of each run.
        bytes_sent: by all parties in one run, None if the baseline does not report it.
        correct: True if the result agrees with the plaintext, None if not checked.
        version: version of the baseline.
        setting: readable description of its configuration.
    """

    seconds: tuple[float, ...]
    bytes_sent: int | None
    correct: bool | None
    version: str
    setting: str


@dataclass(frozen=True)
class UnavailableBaseline:
    """The reason why a baseline has no figure."""

    reason: str


class Baseline(Protocol):
    """Another system."""

    name: str

    def find_obstacle(self) -> UnavailableBaseline | None:
        """Return None if the baseline can run, else the reason."""
        ...

    def run(self, request: BaselineRequest) -> BaselineResult | UnavailableBaseline:
        """Run the workload; never raise for a fault of the baseline."""
        ...


class VenvBaseline:
    """A system that is a Python package in a virtual environment of its own.

    Args:
        folder: the environment.

    Attributes:
        on_networks: True if its processes can be put into the hosts' network namespaces.
        scripts: scripts by workload, if they differ from the usual one.
    """

    name: str
    package: str
    option: str
    hint = ""
    on_networks = False
    scripts: Mapping[str, str] = {}

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def find_obstacle(self) -> UnavailableBaseline | None:
        """Return None if the environment has the package."""
        python = find_baseline_python(self._folder, self.option, self.hint)
        if isinstance(python, UnavailableBaseline):
            return python
        if isinstance(
            run_baseline_process([str(python), "-c", f"import {self.package}"], 120.0),
            UnavailableBaseline,
        ):
            return UnavailableBaseline(
                f"not found: {self._folder} has no package {self.name}{self.hint}"
            )
        return None

    def run(self, request: BaselineRequest) -> BaselineResult | UnavailableBaseline:
        """Run the workload in the environment."""
        python = find_baseline_python(self._folder, self.option)
        if isinstance(python, UnavailableBaseline):
            return python
        missing = None if self.on_networks else refuse_baseline_networks(self.name, request)
        missing = missing or (None if self.scripts else refuse_baseline_join(self.name, request))
        if missing is not None:
            return missing
        name = self.scripts.get(request.workload, f"{self.package}_run.py")
        script = Path(__file__).parent / "scripts" / name
        return run_baseline_script(python, script, request)


def refuse_baseline_networks(name: str, request: BaselineRequest) -> UnavailableBaseline | None:
    """Refuse networks that are not imposed on baselines."""
    if request.profile == "local":
        return None
    return UnavailableBaseline(
        f"the profile {request.profile!r} is not imposed on {name}: local only"
    )


def refuse_baseline_join(name: str, request: BaselineRequest) -> UnavailableBaseline | None:
    """Refuse joins, which few systems support."""
    return UnavailableBaseline(f"{name} brings no join") if request.workload == "join" else None


def find_baseline_python(
    folder: Path | None, option: str, hint: str = ""
) -> Path | UnavailableBaseline:
    """Return the interpreter of a virtual environment."""
    if folder is None:
        return UnavailableBaseline(f"not found: no {option} DIR was given{hint}")
    python = folder / "bin" / "python"
    if not python.is_file() or not os.access(python, os.X_OK):
        return UnavailableBaseline(f"not found: {folder} has no bin/python")
    return python


def run_baseline_script(
    python: Path, script: Path, request: BaselineRequest
) -> BaselineResult | UnavailableBaseline:
    """Run a script in a baseline's environment: the request as JSON in, one JSON object out.

    The object is the last line on stdout: seconds, bytes_sent, correct, version, setting.  On a
    network the script also receives three hosts and their network namespaces, which its
    processes enter.
    """
    profile = profiles.get_profile(request.profile)
    payload = request.as_json()
    spaces: list[int] = []
    with contextlib.ExitStack() as stack:
        if profile.shaped:
            try:
                links = stack.enter_context(contextlib.closing(Links(profile)))
            except NoNamespaces as error:
                reason = f"the profile {request.profile!r} cannot be imposed on it: {error}"
                return UnavailableBaseline(reason)
            spaces = links.namespaces
            payload |= {"hosts": links.hosts[:3], "namespaces": spaces}
        command = [str(python), str(script)]
        done = run_baseline_process(command, request.timeout, json.dumps(payload), pass_fds=spaces)
    if isinstance(done, UnavailableBaseline):
        return done
    lines = [line for line in done.splitlines() if line.strip()]
    try:
        return parse_answer(json.loads(lines[-1]), request)
    except (IndexError, ValueError, RecursionError, TypeError, KeyError):
        return UnavailableBaseline("failed: it printed no result")


def parse_answer(answer: Mapping[str, Any], request: BaselineRequest) -> BaselineResult:
    """Parse a script's answer.

    Raises:
        ValueError, TypeError, KeyError: the answer is malformed.
    """
    seconds = tuple(float(t) for t in answer["seconds"])
    if len(seconds) != request.repeat or not all(math.isfinite(t) and t >= 0 for t in seconds):
        raise ValueError("seconds")
    sent, correct = answer.get("bytes_sent"), answer.get("correct")
    if sent is not None and (isinstance(sent, bool) or not isinstance(sent, int) or sent < 0):
        raise ValueError("bytes_sent")
    if correct is not None and not isinstance(correct, bool):
        raise ValueError("correct")
    version, setting = (strip_control(str(answer[k]))[:120] for k in ("version", "setting"))
    return BaselineResult(seconds, sent, correct, version, setting)


def run_baseline_process(
    command: Sequence[str],
    timeout: float,
    standard_input: str = "",
    folder: Path | None = None,
    pass_fds: Sequence[int] = (),
) -> str | UnavailableBaseline:
    """Return a command's output; end its whole process group at the time limit or on Ctrl-C."""
    # A baseline's Python must not import packages of this project.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=folder,
            env=environment,
            start_new_session=True,
            pass_fds=pass_fds,
        )
    except OSError as error:
        return UnavailableBaseline(f"not found: {command[0]} cannot be run ({error.strerror})")
    try:
        out, err = process.communicate(standard_input, timeout)
    except subprocess.TimeoutExpired:
        _end_process(process)
        return UnavailableBaseline(f"failed: not done after {timeout:g} s")
    except BaseException:
        _end_process(process)
        raise
    if process.returncode:
        output_lines = [line.strip() for line in (err or out).splitlines() if line.strip()]
        last = strip_control(output_lines[-1])[:160] if output_lines else "nothing was said"
        return UnavailableBaseline(f"failed: exit code {process.returncode}, {last}")
    return out[-_LONGEST:]


def _end_process(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
