"""A checkout of tf-encrypted: its own tests and example programs, run here and in its environment.

Here tfe_bench.tf_encrypted stands in for imports of tf_encrypted; in the environment its own
package runs, with a process for each of three servers and its clients, joined by gRPC.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfe_bench.benchmarks.baselines.base import UnavailableBaseline, run_baseline_process
from tfe_bench.errors import UsageError

_RUNNER = "tfe_bench.tf_encrypted.checkout"
_TESTS = ("tf_encrypted/protocol/aby3/aby3_test.py", "tf_encrypted/keras/**/*_test.py")
_PROFILE = "examples/benchmark/operation/op_profile.py"
_TRAINING = "examples/benchmark/training/private_training.py"
_CONVERTED = "examples/benchmark/training/private_convert_training.py"
_INFERENCE = "examples/benchmark/inference/convert.py"
_TIME = re.compile(r"^\[Time\] (?P<tag>.*?): (?P<seconds>[0-9.e-]+) s$", re.MULTILINE)
_PLAYERS = (
    *("server0", "server1", "server2"),
    *("training-client", "prediction-client", "weights-provider"),
)
# Example programs by what they do.
PROGRAMS: dict[str, tuple[str, ...]] = {
    **{
        f"operations: {name}": (_PROFILE, f"test_{name.replace(' ', '_')}")
        for name in (
            *("compare performance", "sort performance", "max performance type1"),
            *("max performance type2", "log performance", "matmul performance"),
            "cwise performance",
        )
    },
    "training: logistic regression, one epoch": (
        *(_TRAINING, "logistic_regression", "LogisticArtificial", "--epochs", "1"),
    ),
    "training: network A, one epoch": (_TRAINING, "network_a", "Mnist", "--epochs", "1"),
    "training, converted: network A, one epoch": (
        *(_CONVERTED, "network_a", "Mnist", "--epochs", "1"),
    ),
    "inference: ResNet50V2": (_INFERENCE, "resnet50"),
}
# Of one program, in seconds.
PROGRAM_SECONDS = 3600.0
# A program by its file, which finds what it imports as from its own folder.
_SCRIPT = (
    "import pathlib, runpy, sys; del sys.argv[0]; file = pathlib.Path(sys.argv[0]); "
    "sys.path[:1] = [str(file.parent), str(file.parent.parent.parent)]; "
    "runpy.run_path(str(file), run_name='__main__')"
)
OUTCOMES = ("passed", "refused", "failed", "stopped", "skipped")


@dataclass(frozen=True)
class TestOutcome:
    """The outcome of one test.

    Attributes:
        file: file of the test.
        test: name of the test.
        outcome: one of OUTCOMES; "refused" by an error class of this project, "stopped" by the
            time limit.
        seconds: run time.
        words: text of the exception.
    """

    file: str
    test: str
    outcome: str
    seconds: float
    words: str


def check_source(source: Path) -> Path:
    """Return the folder of a checkout.

    Raises:
        UsageError: the folder is not a checkout.
    """
    if not (source / _TESTS[0]).is_file():
        raise UsageError(
            f"Expected a checkout of tf-encrypted as --source. Received: {source}, which "
            f"has no {_TESTS[0]}. Create one with git clone.",
            code="file-not-found",
            operation="--source",
            received=source,
        )
    return source.resolve()


def list_test_files(source: Path) -> list[Path]:
    """Return the test files of ABY3 and of Keras."""
    return sorted(file for pattern in _TESTS for file in source.glob(pattern))


def run_tests(source: Path, only: Sequence[str], seconds: int) -> Iterator[TestOutcome]:
    """Run tests here, with a process for each file.

    Args:
        only: parts of tests' names; all unless given.
        seconds: of each test at most.
    """
    for file in list_test_files(source):
        command = [sys.executable, "-m", _RUNNER, str(source), str(file)]
        command += ["--seconds", str(seconds), "--only", *only]
        name = str(file.relative_to(source / "tf_encrypted")).removesuffix("_test.py")
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=_quiet_environment(),
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    row = json.loads(line)
                    test = str(row["test"]).rpartition(".")[2]
                    words = str(row["words"])
                    yield TestOutcome(name, test, row["outcome"], float(row["seconds"]), words)
        if process.returncode:
            yield TestOutcome(
                name, "(the file)", "failed", 0.0, f"it ended with {process.returncode}"
            )


def _quiet_environment() -> dict[str, str]:
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}


def select_example_programs(parts: Sequence[str]) -> list[str]:
    """Return the example programs whose names contain one of these parts; all without parts.

    Raises:
        UsageError: no name contains one of the parts.
    """
    for part in parts:
        if not any(part in name for name in PROGRAMS):
            raise UsageError(
                f"Expected a part of a program's name: {', '.join(PROGRAMS)}. Received: {part!r}.",
                code="unknown-name",
                operation="program",
                received=part,
            )
    return [name for name in PROGRAMS if not parts or any(part in name for part in parts)]


def run_with_tfe_bench(
    source: Path, program: str, timeout: float
) -> dict[str, float] | UnavailableBaseline:
    """Return the times that an example program prints here, by tag."""
    file, *arguments = PROGRAMS[program]
    command = [sys.executable, "-m", _RUNNER, str(source), str(source / file)]
    command += ["--script", *arguments, "--config", "local"]
    return _parse_times(run_baseline_process(command, timeout))


def run_with_tf_encrypted(
    source: Path, python: Path, program: str, timeout: float
) -> dict[str, float] | UnavailableBaseline:
    """Return the times that it prints with tf-encrypted itself, its players on this host."""
    file, *arguments = PROGRAMS[program]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        config = Path(folder) / "config.json"
        config.write_text(
            json.dumps({name: f"127.0.0.1:{_find_player_port()}" for name in _PLAYERS})
        )
        for name in _PLAYERS:
            player = [str(python), "-m", "tf_encrypted.player", name, "--config", str(config)]
            process = subprocess.Popen(
                player, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
        command = [str(python), "-c", _SCRIPT, str(source / file)]
        command += [*arguments, "--config", str(config)]
        return _parse_times(run_baseline_process(command, timeout, folder=Path(folder)))


def _find_player_port() -> int:
    with socket.socket() as probe_socket:
        probe_socket.bind(("127.0.0.1", 0))
        return int(probe_socket.getsockname()[1])


def _parse_times(printed: str | UnavailableBaseline) -> dict[str, float] | UnavailableBaseline:
    if isinstance(printed, UnavailableBaseline):
        return printed
    times = {m["tag"]: float(m["seconds"]) for m in _TIME.finditer(printed)}
    steps = re.findall(r"([0-9.]+) s a step|time: ([0-9.]+)", printed)
    if steps:
        times["a step"] = float(next(filter(None, steps[-1])))
    return times or UnavailableBaseline("failed: it printed no time")
