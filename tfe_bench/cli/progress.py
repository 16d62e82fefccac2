"""The progress bar of a command, and confirmation prompts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


class ProgressBar:
    """A progress bar on stderr, which may be disabled."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("starting the workers", total=None)

    def show_text(self, text: str) -> None:
        """Show the current step, without a fraction."""
        self._progress.update(self._task, description=text, total=None)

    def ask_question(self, text: str, question: str) -> bool:
        """Show a text and ask for confirmation; return True for yes."""
        self._progress.stop()
        print(text, file=sys.stderr)
        is_confirmed = input(question).strip().lower() in ("y", "yes")
        if not is_confirmed:
            print("nothing was run", file=sys.stderr)
        self._progress.start()
        return is_confirmed

    def update(self, fraction: float, text: str) -> None:
        """Show the progress of the job."""
        self._progress.update(self._task, description=text, total=1.0, completed=fraction)
