"""Fields of jobs' dataclasses that are options of commands: their range and help, declared once."""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING
from typing import Any

from tfe_bench.errors import check_range


def option_field(
    about: str, value: str, least: float | None = None, most: float | None = None, **more: Any
) -> Any:
    """Declare a field that is an option.

    Args:
        about: the help text, without the default.
        value: the name of a number in the usage, or the accepted texts: "{one,two}".
        least, most: the range of accepted numbers; None without a bound.
        more: the default.
    """
    return dataclasses.field(metadata=dict(about=about, value=value, range=(least, most)), **more)


def get_option(job: type, name: str) -> tuple[dict[str, Any], Any]:
    """Return what `option_field` declares for a field, and its default (None if it has none)."""
    [found] = (each for each in dataclasses.fields(job) if each.name == name)
    return dict(found.metadata), None if found.default is MISSING else found.default


def format_flag(name: str) -> str:
    """Return the option of a field as it is typed."""
    return f"--{name.replace('_', '-')}"


def check_job_options(job: Any) -> None:
    """Reject a job with a number outside its range.

    Raises:
        UsageError: naming the option.
    """
    for each in dataclasses.fields(job):
        (least, most), value = each.metadata.get("range", (None, None)), getattr(job, each.name)
        if least is not None and value is not None:
            check_range(format_flag(each.name), value, least, most)
