"""Start workers by forking processes that have already imported TensorFlow.

The import takes three seconds of processor time for each start of ``python -m tfe_bench worker``.
A forked worker is a process of its own: arguments, environment, streams, signals and exit code are
those of a started one.  Each party has a separate server, whose hashes and addresses differ from
those of the others, as they do on three hosts.  `real_processes` (tests/conftest.py) keeps to
started workers.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from tests.paths import ROOT

_COMMAND = [sys.executable, "-m", "tfe_bench"]
_PR_SET_CHILD_SUBREAPER = 36
_MAX_REQUEST_BYTES = 1 << 20
_ENVIRONMENT = dict(os.environ)
# Imports read these variables: a worker that has other values than its server is not forked.
_READ_BY_IMPORTS = ("LD_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON", "TFE_BENCH_", "TF_")
_READ_LATER = {"PYTHONUNBUFFERED", "TFE_BENCH_TEST_SEED", "TF_CPP_MIN_LOG_LEVEL"}
# False while a module's workers are started, not forked.
forking = True


# ---- the tests' side


class _Server:
    """A process that forks workers; it ends with this process."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = f"from tests import fork_server; fork_server.serve_forks({theirs.fileno()})"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, "tfe_bench"],
            cwd=ROOT,
            env=_ENVIRONMENT,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._lock = threading.Lock()

    def fork(self, streams: list[int], **request: Any) -> int:
        """Return the id of a new child of this process, with these three streams."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], streams)
            pid = int(self._socket.recv(_MAX_REQUEST_BYTES) or 0)
        if not pid:
            raise ChildProcessError(f"The fork server has ended with {self._process.wait()}.")
        return pid


class ForkedProcess(subprocess.Popen[Any]):
    """A process that a server forks, in place of ``python -m tfe_bench ...``."""

    def _execute_child(self, args: Any, *options: Any) -> None:
        # (the parameters of subprocess.Popen._execute_child on Linux)
        cwd, environment, pipes, session = options[4], options[5], options[9:15], options[20]
        streams = [own if fd == -1 else fd for own, fd in enumerate((pipes[0], *pipes[3::2]))]
        party = int(args[args.index("--party") + 1]) if "--party" in args else None
        servers = [_start_server(p) for p in ((0,) if party is None else range(3))]  # side by side
        self.pid = servers[party or 0].fork(
            streams,
            words=args[len(_COMMAND) :],
            cwd=os.fspath(cwd or os.getcwd()),
            environment=dict(os.environ if environment is None else environment),
            session=session,
        )
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


@functools.cache
def _start_server(party: int) -> _Server:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # forked workers are our children
    return _Server()


def _import_variables(environment: Mapping[str, str]) -> dict[str, str]:
    names = {n for n in environment if n.startswith(_READ_BY_IMPORTS)} - _READ_LATER
    return {name: environment[name] for name in names}


def start_process(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a process as subprocess.Popen does; fork it if it is a worker with usual imports."""
    can_fork = forking and [*command[:4]] == [*_COMMAND, "worker"] and not options.get("pass_fds")
    environment = _import_variables(options.get("env") or os.environ)
    if can_fork and environment == _import_variables(_ENVIRONMENT):
        return ForkedProcess(command, **options)
    return subprocess.Popen(command, **options)


# ---- the server's side


def serve_forks(descriptor: int) -> None:
    """Import what workers import, without starting threads; fork a worker for each request."""
    from tfe_bench.cli import quiet_imports, worker

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[0] = str(ROOT)
    quiet_imports.install_quiet_import()
    worker._import_tensorflow()
    import tfe_bench.cluster.worker.server  # noqa: F401

    gc.freeze()
    requests = socket.socket(fileno=descriptor)
    while True:
        data, streams, *_ = socket.recv_fds(requests, _MAX_REQUEST_BYTES, 3)
        if not data:
            return
        requests.send(str(_fork_orphan(requests, json.loads(data), streams)).encode())
        for stream in streams:
            os.close(stream)


def _fork_orphan(requests: socket.socket, request: dict[str, Any], streams: list[int]) -> int:
    """Return the id of a new process whose parent has ended: the tests' process adopts it."""
    ids, id_writer = os.pipe()
    if not (parent := os.fork()):
        if pid := os.fork():
            os.write(id_writer, str(pid).encode())
            os._exit(0)
        for descriptor in (ids, id_writer, requests.detach()):
            os.close(descriptor)
        _run_command(request, streams)
    os.waitpid(parent, 0)
    pid = int(os.read(ids, 32))
    os.close(ids)
    os.close(id_writer)
    return pid


def _run_command(request: dict[str, Any], streams: list[int]) -> None:
    """Run `python -m tfe_bench WORDS` in this process, and end it."""
    code = 1
    try:
        if request["session"]:
            os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, 1, closefd=False, errors=errors)
            for number, mode, errors in ((0, "r", None), (1, "w", None), (2, "w", "replace"))
        )
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environment"])
        tempfile.tempdir = None
        from tfe_bench import __main__

        sys.argv = [__main__.__file__, *request["words"]]
        code = __main__.run()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
