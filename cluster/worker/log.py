"""What a worker writes down, and what of an error may stand there."""

from __future__ import annotations

import logging
import traceback

log = logging.getLogger("tfe_bench.worker")


def printable_line(text: object, max_chars: int = 600) -> str:
    """A text of a peer or client on one printable line: no control character reaches a terminal."""
    joined = " ".join(str(text)[: 2 * max_chars].split())
    return "".join(c if c.isprintable() else "?" for c in joined)[:max_chars]


def error_line(error: BaseException) -> str:
    """An error of ours on one line of the log, whatever a peer has put into it."""
    return printable_line(error)


def error_location(error: BaseException) -> str:
    """A foreign error's kind and place for the log: its own text could quote a value."""
    frames = traceback.extract_tb(error.__traceback__)
    places = ", ".join(f"{f.filename}:{f.lineno} in {f.name}" for f in frames[-8:])
    return f"{type(error).__name__} at {places}"
