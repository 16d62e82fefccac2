"""Output of native libraries while they load stays off the terminal, unless it is important."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tfe_bench.cluster.config import ClusterConfig, PartyConfig
from tfe_bench.cluster.launch import _free_worker_ports

_NOISE = "I0000 port.cc:153] oneDNN custom operations are on."
# A TensorFlow that loads instantly.
_FAKE = f"""
import os, sys
os.write(2, {(_NOISE + chr(10)).encode()!r})
print("our own line", file=sys.stderr)
os.write(2, b"x" * 300_000)
{{ending}}
"""
_COMMAND = """
import sys
from tfe_bench.cli import quiet_imports
print("before", file=sys.stderr)
quiet_imports.install_quiet_import()
import os
import tensorflow
os.write(2, b"later words\\n")
print("after", tensorflow.__name__, file=sys.stderr)
"""


def _run_command(tmp_path: Path, ending: str) -> subprocess.CompletedProcess[str]:
    folder = tmp_path / "tensorflow"
    folder.mkdir()
    (folder / "__init__.py").write_text(_FAKE.format(ending=ending))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    return subprocess.run(
        [sys.executable, "-c", _COMMAND],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    )


def test_what_is_said_while_tensorflow_loads_is_dropped_and_all_else_is_shown(
    tmp_path: Path,
) -> None:
    done = _run_command(tmp_path, "")
    assert done.returncode == 0
    assert done.stderr == "before\nour own line\nlater words\nafter tensorflow\n"


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ('os.write(2, b"F0000 needs AVX\\n"); os.abort()', -signal.SIGABRT),
        ('os.write(2, b"F0000 needs AVX\\n"); os.kill(os.getpid(), 9)', -signal.SIGKILL),
        ('os.write(2, b"F0000 needs AVX\\n"); os._exit(7)', 7),
        ('os.write(2, b"F0000 needs AVX\\n"); raise ImportError("no")', 1),
    ],
    ids=["abort", "kill", "exit", "error"],
)
def test_last_words_are_shown(tmp_path: Path, ending: str, code: int) -> None:
    done = _run_command(tmp_path, ending)
    assert done.returncode == code
    # (the watcher of a dead process may write last)
    assert _NOISE in done.stderr and "F0000 needs AVX" in done.stderr
    assert "later words" not in done.stderr


def test_an_interrupted_import_says_nothing_of_it(tmp_path: Path) -> None:
    done = _run_command(tmp_path, "raise KeyboardInterrupt")
    assert _NOISE not in done.stderr and "KeyboardInterrupt" in done.stderr


def _on_a_terminal(*command: str, until: bytes = b"") -> tuple[int, str]:
    """Return the exit code and terminal output of a command that is stopped at `until`."""
    ours, theirs = pty.openpty()
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("TF_CPP", "GRPC_VERB"))}
    process = subprocess.Popen(
        [sys.executable, "-m", "tfe_bench", *command],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**plain, "TERM": "xterm", "COLUMNS": "200"},
    )
    os.close(theirs)
    output = b""
    try:
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            output += piece
            if until and until in output:
                process.terminate()
        return process.wait(60), output.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_a_worker_says_only_its_own_lines_and_that_tls_is_off(tmp_path: Path) -> None:
    parties = (PartyConfig(p, f"p{p}", "127.0.0.1", n) for p, n in enumerate(_free_worker_ports(3)))
    ClusterConfig("open", tuple(parties), tls=False).save(tmp_path / "cluster.toml")
    (tmp_path / "worker1.toml").write_text("party = 1\n")
    cluster = str(tmp_path / "cluster.toml")
    code, output = _on_a_terminal("worker", "--party", "1", "--cluster", cluster, until=b"ready on")
    lines = output.splitlines()
    assert code == 0 and "party 1 ready on" in output
    assert any("TLS IS OFF: every user of this machine" in line for line in lines)
    ours = re.compile(r"\d{4}-\d\d-\d\d [\d:,]+ \[party 1\] .+|party 1 ready on 127\.0\.0\.1:\d+")
    assert [line for line in lines if not ours.fullmatch(line)] == []
