"""Work in processes of their own.

The library holds Python's global lock, so threads gain nothing; and a process that has just begun
tells the peak memory of its own work.  They are spawned, not forked: TensorFlow and a progress
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


def peak_memory() -> int:
    """The most bytes that this process has held."""
    status = Path("/proc/self/status").read_text("ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _run_items(
    pipe: Connection, make: Callable[..., Callable[[Any], Any]], arguments: Sequence[Any]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
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
    """Handles items in up to `count` processes; yields (index, result) as they are done.

    Args:
        make: a function of a module; called once in each process with `arguments`, it gives what
            handles an item.

    Raises:
        TfeBenchError: what handling raised.
        ClusterError: a process ended by itself, as one does for which memory runs out.
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
            f"A measuring process ended by itself (exit code {process.exitcode}); -9 says that "
            "memory ran out. Take a smaller degree or batch."
        ) from error
    if isinstance(result, TfeBenchError) and index < 0:
        raise result
    if index < 0:
        raise ClusterError(f"A measuring process failed: {result}.")
    return index, result


def run_alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of a module returns, called in a process of its own."""
    ((_, result),) = run_spread(_Caller, (function,), [arguments])
    return result


class _Caller:
    """Calls a function with an item's arguments."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, arguments: Sequence[Any]) -> Any:
        return self._function(*arguments)
