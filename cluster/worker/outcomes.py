"""A worker's log of jobs: client, program, and outcome.

A line names client, program, job and the stored values that it uses.  It quotes no parameter: an
error about a client's arguments is cut before its received value.  One client causes a bounded
number of lines a minute; further ones are counted.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfe_bench.cluster import jobs
from tfe_bench.cluster.worker.log import error_log_line, log, printable_log_line
from tfe_bench.errors import ClusterError, PolicyError, SecurityError

# Lines about refusals of one client in one window; further ones are counted.
MOST_LINES = 20
WINDOW_SECONDS = 60.0
# Callers without a certificate of the cluster share one limit.
UNKNOWN = "unknown caller"
_MOST_NAMES = 4
# Errors whose text contains this worker's own settings; others may quote a client's values.
_OWN_TEXTS = (PolicyError, SecurityError, ClusterError)


def describe_job_for_log(program: str, client: str, names: Sequence[str] = ()) -> str:
    """Describe a job for a log: its program, the stored values that it uses, its client."""
    shown_names = [f'"{printable_log_line(name, 80)}"' for name in names[:_MOST_NAMES]]
    if len(names) > _MOST_NAMES:
        shown_names.append(f"{len(names) - _MOST_NAMES} more")
    of = f" of {', '.join(shown_names)}" if shown_names else ""
    return f"{printable_log_line(program, 80)}{of}, client {client}"


def describe_submission_for_log(client: str, header: Mapping[str, Any]) -> tuple[str, str]:
    """Describe a submission before its program has parsed it: its job, and
    `describe_job_for_log`.
    """
    name = header["program"]
    names = jobs.get_name_parameter(header["parameters"])
    return f"job {printable_log_line(header['job'], 12)}", describe_job_for_log(name, client, names)


def job_refusal_reason(error: BaseException) -> str:
    """Return the reason of a refusal on one line."""
    text = error_log_line(error)
    if not isinstance(error, _OWN_TEXTS):
        text = text.partition(" Received:")[0]
    return f"{type(error).__name__}: {text}"


@dataclass
class _LogWindow:
    """Lines of one client since a time, and the number of omitted ones by kind of error."""

    since: float
    lines: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


class JobOutcomeLog:
    """Logs refusals and failures, at most MOST_LINES a minute for each client.

    Args:
        later: calls a function after some seconds, from any thread.
    """

    def __init__(self, later: Callable[[float, Callable[[], None]], None]) -> None:
        self._later = later
        self._lock = threading.Lock()
        self._windows: dict[str, _LogWindow] = {}

    def log_failure(self, client: str, message: str, error: BaseException) -> None:
        """Log one refusal or failure.

        Args:
            client: whose limit of lines it uses.
            message: the subject, as "job 3f2a90c12345 is refused (sort, client analyst)".
        """
        now = time.monotonic()
        with self._lock:
            window = self._windows.get(client)
            if window is None or now - window.since >= WINDOW_SECONDS:
                self._close_window(client)
                window = self._windows[client] = _LogWindow(now)
            window.lines += 1
            if window.lines > MOST_LINES:
                if not window.left_out:
                    remaining = window.since + WINDOW_SECONDS - now
                    self._later(remaining, lambda: self._expire_window(client, window))
                window.left_out[type(error).__name__] += 1
                return
        log.warning("%s: %s", message, job_refusal_reason(error))

    def _expire_window(self, client: str, window: _LogWindow) -> None:
        with self._lock:
            if self._windows.get(client) is window:
                self._close_window(client)

    def _close_window(self, client: str) -> None:
        window = self._windows.pop(client, None)
        if window is not None and window.left_out:
            kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(window.left_out.items()))
            log.warning(
                "client %s: %d more refusals and failures in a minute are not listed (%s)",
                *(client, window.left_out.total(), kinds),
            )
