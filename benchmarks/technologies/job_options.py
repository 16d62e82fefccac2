"""Fields of jobs' dataclasses that are options of commands: their range and help, declared once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from typing import Any

from tfe_bench.errors import check_range

_OPTION = "option"


@dataclass(frozen=True)
class JobOption:
    """An option of a command.

    Attributes:
        about: the help text, without the default.
        value: the name of the value in the usage.
        least, most: the range of accepted numbers; None without a bound.
        choices: the accepted texts; empty for a number.
    """

    about: str
    value: str = "N"
    least: float | None = None
    most: float | None = None
    choices: Sequence[str] = ()


def option_field(option: JobOption, *, default: Any = MISSING) -> Any:
    """Declare a field that is an option."""
    return dataclasses.field(default=default, metadata={_OPTION: option})


def get_job_option(job: type, name: str) -> tuple[JobOption, Any]:
    """Return the option of a field, and its default (None if it has none)."""
    [found] = (each for each in dataclasses.fields(job) if each.name == name)
    return found.metadata[_OPTION], None if found.default is MISSING else found.default


def format_flag(name: str) -> str:
    """Return the option as it is typed."""
    return f"--{name.replace('_', '-')}"


def check_job_options(job: Any) -> None:
    """Reject a job with a number outside its range.

    Raises:
        UsageError: naming the option.
    """
    for each in dataclasses.fields(job):
        option, value = each.metadata.get(_OPTION), getattr(job, each.name)
        if option is not None and option.least is not None and value is not None:
            check_range(format_flag(each.name), value, option.least, option.most)
