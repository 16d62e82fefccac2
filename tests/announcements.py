"""The line on standard error that announces what a job opens to the workers."""

from __future__ import annotations


def remove_announcement(stderr: str) -> str:
    """Return the lines of a command besides the announcement of what its sort opens."""
    lines = stderr.splitlines(keepends=True)
    announced = "tfe_bench: this job opens to the workers: comparisons of shuffled keys ("
    return "".join(line for line in lines if not line.startswith(announced))
