"""Progress of a training, shown in a terminal, a notebook, or as lines of a log."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tfe_bench.errors import UsageError

Progress = Callable[[float, str], None]
VERBOSE = ("auto", 0, 1, 2)


def check_training_verbosity(verbose: object) -> None:
    """Reject a value of `verbose` that Keras does not accept either.

    Raises:
        UsageError: the value is not one of VERBOSE.
    """
    if isinstance(verbose, bool) or verbose not in VERBOSE:
        raise UsageError(
            'Expected "auto", 0 (silent), 1 (a bar) or 2 (a line for each epoch) as verbose. '
            f"Received: {str(verbose)[:80]!r}.",
            code="unknown-name",
            operation="verbose",
            received=str(verbose)[:80],
        )


@contextmanager
def show_training_progress(verbose: Any) -> Iterator[Progress | None]:
    """Provide the callback for a job's progress; None if no display is available."""
    if verbose not in ("auto", 1):
        yield None
        return
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_jupyter:
        yield _training_notebook_line()
    elif console.is_terminal:
        with _training_progress_bar(console) as update:
            yield update
    else:
        yield None


@contextmanager
def _training_progress_bar(console: Any) -> Iterator[Progress]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("sharing", total=None)
        yield lambda fraction, text: bar.update(
            task, description=text, total=1.0, completed=fraction
        )


def _training_notebook_line() -> Progress:
    """Return a callback that updates one line of a notebook; rich's own bar requires ipywidgets."""
    display = importlib.import_module("IPython.display").display(
        {"text/plain": "sharing"}, raw=True, display_id=True
    )

    def update_line(fraction: float, text: str) -> None:
        display.update({"text/plain": f"{fraction:4.0%}  {text}"}, raw=True)

    return update_line
