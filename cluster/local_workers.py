"""Three workers on this machine, forked from one process that has imported TensorFlow.

The import takes seconds of processor time, and happens once instead of three times.  The process
prints the state of its children on its standard output, one line each: "PARTY pid PID" after a
fork, and "PARTY ended CODE".  It ends after all children have ended; they end with it, and with
the pipe that is its standard input.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tfe_bench.errors import ClusterError

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
# Output of the parent itself, before it has forked workers.
_LOG = "workers.log"
_PARTIES = range(3)


# ---- the client's side


class LocalWorkers:
    """The three worker processes, seen from their cluster.

    Args:
        command: forks the workers by `fork_local_workers`.
        folder: of their logs.
        environment: of the command.
        kept: descriptors that the workers inherit.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        environment: dict[str, str],
        inherited_fds: Sequence[int] = (),
    ) -> None:
        self._folder = folder
        self._pids: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        self._partial_line = b""
        with (folder / _LOG).open("wb") as out:
            self._parent = subprocess.Popen(
                command,
                # The workers end when this pipe closes, for whatever reason this process ends.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                env=environment,
                start_new_session=True,
                pass_fds=inherited_fds,
            )
        assert self._parent.stdout is not None
        os.set_blocking(self._parent.stdout.fileno(), False)

    def _read_status_lines(self) -> None:
        """Read the status lines that have arrived."""
        out = self._parent.stdout
        if out is None or out.closed:
            return
        self._partial_line += out.read() or b""
        *lines, self._partial_line = self._partial_line.split(b"\n")
        for line in lines:
            party, status, number = line.split()
            (self._pids if status == b"pid" else self._ended)[int(party)] = int(number)

    @property
    def pids(self) -> list[int]:
        """Process ids of the started workers, by party."""
        self._read_status_lines()
        return [self._pids[party] for party in sorted(self._pids)]

    def poll(self, party: int) -> int | None:
        """Return a worker's exit code, negative for a signal; None before its end."""
        parent_code = self._parent.poll()  # before reading: the last status line counts
        self._read_status_lines()
        return self._ended.get(party, parent_code)

    def log_tail(self, party: int) -> str:
        """Return the last lines of a worker's log; before it has one, those of the parent's."""
        for name in (f"party{party}.log", _LOG):
            file = self._folder / name
            if file.exists() and (text := file.read_text(errors="replace")):
                return "\n".join(text.splitlines()[-12:])
        return ""

    def close(self, seconds: float) -> None:
        """End the workers, by force after this many seconds."""
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._parent.stdin.close()
        self._parent.terminate()
        try:
            self._parent.wait(seconds)
        except subprocess.TimeoutExpired:
            self._parent.kill()
            self._parent.wait()
        self._parent.stdout.close()


# ---- the workers' side


def fork_local_workers(folder: Path, run: Callable[[int], int]) -> int:
    """Run each party's worker in its own process, until all have ended.

    Call it before any thread starts, and after slow imports.

    Args:
        folder: of their logs.
        run: party -> exit code.
    """
    parties: dict[int, int] = {}

    def forward_signal(*_: object) -> None:
        for pid in parties:
            os.kill(pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, forward_signal)
    for party in _PARTIES:
        _print_worker_status(party, "pid", _fork_local_worker(folder, party, run, parties))
    while parties:
        pid, status = os.wait()
        if pid in parties:  # (an import may have started another process)
            _print_worker_status(parties.pop(pid), "ended", os.waitstatus_to_exitcode(status))
    return 0


def _fork_local_worker(
    folder: Path, party: int, run: Callable[[int], int], parties: dict[int, int]
) -> int:
    parent = os.getpid()
    # (blocked until the new process is among those to which a signal is forwarded)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    pid = os.fork()
    if pid:
        parties[pid] = party
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        return pid
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        _set_process_option(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent has already ended
            os._exit(1)
        _set_process_option(_PR_SET_NAME, f"tfe-party-{party}".encode())
        with (folder / f"party{party}.log").open("wb") as out:
            for stream in (1, 2, sys.stderr.fileno()):  # (cli/noise.py changes it)
                os.dup2(out.fileno(), stream)
        code = run(party)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _set_process_option(option: int, value: int | bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        raise ClusterError(
            f"prctl({option}) failed. Received: {os.strerror(ctypes.get_errno())}.",
            code="system-call-failed",
            operation="prctl",
            received=os.strerror(ctypes.get_errno()),
        )


def _print_worker_status(party: int, status: str, number: int) -> None:
    print(party, status, number, flush=True)
