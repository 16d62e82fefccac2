"""A worker's log, and the parts of an error that it may contain."""

from __future__ import annotations

import logging
import traceback

log = logging.getLogger("tfe_bench.worker")


def printable_log_line(text: object, max_chars: int = 600) -> str:
    """Return a peer's or client's text on one printable line, without control characters."""
    joined = " ".join(str(text)[: 2 * max_chars].split())
    return "".join(c if c.isprintable() else "?" for c in joined)[:max_chars]


def error_log_line(error: BaseException) -> str:
    """Return one of our errors on one line of the log, whatever a peer has put into it."""
    return printable_log_line(error)


def foreign_error_location(error: BaseException) -> str:
    """Return a foreign error's class and place for the log: its own text could quote a value."""
    frames = traceback.extract_tb(error.__traceback__)
    places = ", ".join(f"{f.filename}:{f.lineno} in {f.name}" for f in frames[-8:])
    return f"{type(error).__name__} at {places}"
