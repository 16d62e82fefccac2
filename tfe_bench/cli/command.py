"""Commands that annexes and other packages register in the entry-point group of commands.

An annex of tfe_bench may extend a command by registering one of the same name; another package may
not.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Set
from dataclasses import dataclass
from importlib.metadata import EntryPoint

from tfe_bench import extensions
from tfe_bench.errors import ConfigError

GROUP = "tfe_bench.commands"


@dataclass(frozen=True)
class Command:
    """A command of an annex or of another package.

    Attributes:
        add_options: adds the options to the command's parser.
        run: runs the command on parsed options and returns its exit code; its docstring is the
            help.
        examples: command lines in the help, without the program's name.
        heading: the heading in the list of commands.
        after: the command after which the list has it; at the end of the heading by default.
    """

    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    examples: tuple[str, ...] = ()
    heading: str = "other packages"
    after: str = ""


def list_registered_commands(
    core: Set[str],
) -> tuple[dict[str, EntryPoint], dict[str, ConfigError]]:
    """Return the registered commands by name, and the errors of names that are used twice.

    Args:
        core: the names of the core's commands.
    """
    points: dict[str, set[EntryPoint]] = defaultdict(set)
    for point in extensions.list_packages_entry_points(GROUP):
        if not extensions.is_own(point):
            points[point.name].add(point)
    registered = extensions.list_entry_points(GROUP)
    accepted = {name: point for name, point in registered.items() if extensions.is_own(point)}
    if points:
        from tfe_bench.benchmarks import operations  # each is a command, too

        core = core | set(accepted) | set(operations.OPERATIONS)
    refused = {}
    for name, others in points.items():
        values = sorted(point.value for point in others)
        if name in core or len(values) > 1:
            owner = "tfe_bench" if name in core else values.pop(0)
            refused[name] = ConfigError(
                f"The command {name!r} of {owner} exists. Received: another one, "
                f"{', '.join(values)}. Uninstall its package.",
                code="duplicate-name",
                operation=name,
                received=", ".join(values),
            )
        else:
            [accepted[name]] = others
    return accepted, refused


def load_command(point: EntryPoint) -> Command:
    """Import a registered command.

    Raises:
        ConfigError: its package is broken, or the object is not a Command.
    """
    return extensions.load_entry_point(point, Command)
