"""Three local workers that run until Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Command, plain_environment
from tests.commands import check_failure
from tfe_bench.__main__ import main


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_three_workers_serve_until_they_are_told_to_stop_and_leave_their_folder(
    command: Command, tmp_path: Path, number: int
) -> None:
    folder = tmp_path / "tfe_bench-mine"
    words = ["-m", "tfe_bench", "cluster", "up", "--out", str(folder), "--port", "0"]
    words[-1] = str(20000 + (hash(tmp_path) + number) % 20000)
    process = subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=plain_environment(),
        cwd=tmp_path,
        text=True,
    )
    try:
        assert process.stdout is not None
        output = ""
        deadline = time.monotonic() + 120
        while "Ctrl-C ends them" not in output:
            output += process.stdout.readline()
            assert process.poll() is None and time.monotonic() < deadline, output
        assert "--client analyst" in output and "FOR TRIALS ONLY" in output
        done = command("sort", "--n", "9", "--cluster", str(folder / "cluster.toml"), "--json")
        assert done.returncode == 0, done.stderr
        again = command("cluster", "up", "--out", str(folder))
        assert again.returncode == 10 and "in use" in again.stderr
        process.send_signal(number)
        assert process.wait(30) == 0
        assert "have ended" in process.stdout.read()
    finally:
        process.kill()
        process.wait()
    assert (folder / "party0.key").exists() and (folder / "models" / "party1").exists()
    done = command("status", "--cluster", str(folder / "cluster.toml"))
    assert done.returncode == 20


def test_another_clusters_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = "10.0.0.1:7,10.0.0.2:7,10.0.0.3:7"
    assert main(["certs", "all", "--hosts", hosts, "--out", str(tmp_path / "c")]) == 0
    capsys.readouterr()
    check_failure(capsys, 10, "cluster-not-local", "cluster", "up", "--out", str(tmp_path / "c"))
