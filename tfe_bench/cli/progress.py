"""The progress bar of a command, and questions that interrupt it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


class ProgressBar:
    """A progress bar on stderr, which may be silent."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("starting the workers", total=None)

    def show_text(self, text: str) -> None:
        """Shows what is going on, without a fraction."""
        self._progress.update(self._task, description=text, total=None)

    def ask_question(self, text: str, question: str) -> bool:
        """Shows a text and asks; whether the answer is yes."""
        self._progress.stop()
        print(text, file=sys.stderr)
        said = input(question).strip().lower() in ("y", "yes")
        if not said:
            print("nothing was run", file=sys.stderr)
        self._progress.start()
        return said

    def update(self, fraction: float, text: str) -> None:
        """Shows how far the job is."""
        self._progress.update(self._task, description=text, total=1.0, completed=fraction)
