"""The command after a worker's death or an interrupt: one screen, an exit code, no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.announcements import remove_announcement

if TYPE_CHECKING:
    from tests.cluster.conftest import Processes

_LONG = ("--n", "300000", "--repeat", "50")


@dataclass
class _RunningCommand:
    """A command during a sort on three local workers."""

    process: subprocess.Popen[Any]
    workers: list[int]
    folder: Path


def _list_children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _list_workers(pid: int) -> list[int]:
    """Return the three workers of a command, by party."""
    grown = [each for child in _list_children(pid) for each in _list_children(child)]
    names = {Path(f"/proc/{each}/comm").read_text().strip(): each for each in grown}
    return [names[name] for name in sorted(names) if name.startswith("tfe-party-")]


def _start_sorting(
    processes: Processes, folder: Path, *more: str, sorting: bool = True
) -> _RunningCommand:
    """Start the command with its temporary files in a folder; wait until it sorts."""
    folder.mkdir()
    with (folder.parent / "out").open("wb") as out, (folder.parent / "err").open("wb") as err:
        process = processes.start(
            *("-m", "tfe_bench", "sort", *_LONG, *more),
            out=out,
            stderr=err,
            env={**os.environ, "TMPDIR": str(folder)},
        )
    processes.wait_for(lambda: len(_list_workers(process.pid)) == 3, "three workers run")
    workers = processes.watch(_list_workers(process.pid))
    if sorting:
        processes.wait_for(
            lambda: any("begins" in log.read_text() for log in folder.glob("*/party0.log")),
            "the job begins",
        )
        time.sleep(1.5)
    assert process.poll() is None
    return _RunningCommand(process, workers, folder)


def _read_output(running: _RunningCommand) -> tuple[str, str]:
    out, err = ((running.folder.parent / name).read_text() for name in ("out", "err"))
    return out, err


@pytest.mark.parametrize(
    "party",
    [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)],
)
def test_a_killed_worker_ends_the_command_with_20_and_its_name(
    party: int, processes: Processes, tmp_path: Path
) -> None:
    result = tmp_path / "result.csv"
    running = _start_sorting(processes, tmp_path / "tmp", "--output", str(result))
    os.kill(running.workers[party], signal.SIGKILL)
    struck = time.monotonic()
    code = running.process.wait(60)
    print(f"the command ended {time.monotonic() - struck:.2f} s after party {party} was killed")
    out, err = _read_output(running)
    assert code == 20
    assert out == ""
    assert "PeerLost" in err and f"party {party}" in err
    assert "Traceback" not in err and len(err.splitlines()) <= 24
    assert processes.wait_gone(running.workers, 5) == []
    assert list(running.folder.iterdir()) == []
    assert not result.exists()


@pytest.mark.parametrize(
    "sorting", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["sorting", "starting"]
)
def test_an_interrupt_ends_the_command_with_130_and_leaves_nothing(
    sorting: bool, processes: Processes, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    running = _start_sorting(
        *(processes, tmp_path / "tmp"),
        *("--output", str(files / "result.csv"), "--record", str(files / "record.jsonl")),
        sorting=sorting,
    )
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(60) == 130
    out, err = _read_output(running)
    assert (out, remove_announcement(err)) == ("", "tfe_bench: interrupted\n")
    assert processes.wait_gone(running.workers, 5) == []
    assert list(running.folder.iterdir()) == []
    assert list(files.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["TERM", "KILL"])
def test_a_command_that_is_ended_from_outside_leaves_no_worker_and_no_key(
    number: signal.Signals, processes: Processes, tmp_path: Path
) -> None:
    running = _start_sorting(processes, tmp_path / "tmp")
    running.process.send_signal(number)
    running.process.wait(60)
    assert processes.wait_gone(running.workers, 15) == []
    assert list(running.folder.glob("**/*.key")) == []
    assert "Traceback" not in _read_output(running)[1]
