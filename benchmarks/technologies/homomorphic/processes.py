"""Work in separate processes.

The library holds Python's global lock, so threads gain nothing; and the peak memory of a new
process is that of its own work.  Processes are spawned, not forked: TensorFlow and a progress
bar's thread do not survive a fork.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tfe_bench.errors import ClusterError, TfeBenchError


def peak_process_memory() -> int:
    """Return the peak memory of this process in bytes."""
    status = Path("/proc/self/status").read_text("ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _run_items(
    pipe: Connection, make: Callable[..., Callable[[Any], Any]], arguments: Sequence[Any]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this one
    try:
        handle = make(*arguments)
        while True:
            index, item = pipe.recv()
            pipe.send((index, handle(item)))
    except EOFError:
        return
    except TfeBenchError as error:
        pipe.send((-1, error))
    except Exception as error:
        pipe.send((-1, f"{type(error).__name__}: {error}"))


def run_spread(
    make: Callable[..., Callable[[Any], Any]],
    arguments: Sequence[Any],
    items: Sequence[Any],
    count: int = 1,
) -> Iterator[tuple[int, Any]]:
    """Handle items in up to `count` processes; yield (index, result) in order of completion.

    Args:
        make: a function of a module; each process calls it once with `arguments`, and its result
            handles the items.
        arguments: arguments of `make`.
        items: the items.
        count: most processes.

    Raises:
        TfeBenchError: an error of this class that a handler raised.
        ClusterError: a handler failed otherwise, or a process ended unexpectedly, for example
            for lack of memory.
    """
    context = multiprocessing.get_context("spawn")
    waiting = iter(enumerate(items))
    running: dict[Connection, Any] = {}
    try:
        for _ in range(min(count, len(items))):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_run_items, args=(theirs, make, arguments), daemon=True
            )
            process.start()
            theirs.close()
            running[ours] = process
            ours.send(next(waiting))
        left = len(items)
        while left:
            for pipe in multiprocessing.connection.wait(list(running)):
                assert isinstance(pipe, Connection)
                index, result = _receive_result(pipe, running[pipe])
                left -= 1
                if (item := next(waiting, None)) is not None:
                    pipe.send(item)
                else:
                    running.pop(pipe).join(0)
                    pipe.close()
                yield index, result
    finally:
        for pipe, process in running.items():
            process.terminate()
            process.join()
            pipe.close()


def _receive_result(pipe: Connection, process: Any) -> tuple[int, Any]:
    try:
        index, result = pipe.recv()
    except (EOFError, ConnectionResetError) as error:
        process.join(5)
        raise ClusterError(
            f"A measuring process ended unexpectedly. Received: exit code {process.exitcode}; -9 "
            "means lack of memory. Take a smaller degree or batch.",
            code="process-ended",
            received=process.exitcode,
        ) from error
    if isinstance(result, TfeBenchError) and index < 0:
        raise result
    if index < 0:
        raise ClusterError(f"A measuring process failed: {result}.", code="process-failed")
    return index, result


def run_in_separate_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a module in a separate process; return its result."""
    ((_, result),) = run_spread(_Caller, (function,), [arguments])
    return result


class _Caller:
    """Handler that calls a function with an item's arguments."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, arguments: Sequence[Any]) -> Any:
        return self._function(*arguments)
