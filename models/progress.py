"""How far a training is, shown where its user looks: a terminal, a notebook, or lines of a log."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tfe_bench.errors import UsageError

Progress = Callable[[float, str], None]
VERBOSE = ("auto", 0, 1, 2)


def check_verbose(verbose: object) -> None:
    """Refuses what Keras does not take either.

    Raises:
        UsageError: it is none of VERBOSE.
    """
    if isinstance(verbose, bool) or verbose not in VERBOSE:
        raise UsageError(
            'verbose is "auto", 0 (silent), 1 (a bar) or 2 (a line for each epoch). Received: '
            f"{str(verbose)[:80]!r}."
        )


@contextmanager
def show_progress(verbose: Any) -> Iterator[Progress | None]:
    """Who hears of a job's progress; None where nobody looks."""
    if verbose not in ("auto", 1):
        yield None
        return
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_jupyter:
        yield _notebook_line()
    elif console.is_terminal:
        with _terminal_bar(console) as update:
            yield update
    else:
        yield None


@contextmanager
def _terminal_bar(console: Any) -> Iterator[Progress]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("sharing", total=None)
        yield lambda fraction, text: bar.update(
            task, description=text, total=1.0, completed=fraction
        )


def _notebook_line() -> Progress:
    """One line of a notebook, written over (rich's own bar takes ipywidgets there)."""
    display = importlib.import_module("IPython.display").display(
        {"text/plain": "sharing"}, raw=True, display_id=True
    )

    def update_line(fraction: float, text: str) -> None:
        display.update({"text/plain": f"{fraction:4.0%}  {text}"}, raw=True)

    return update_line
