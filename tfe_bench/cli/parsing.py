"""The parser of the command line: grouped help, and errors in one sentence before the usage."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from absl.flags import argparse_flags

from tfe_bench.cli import common
from tfe_bench.errors import did_you_mean

EXAMPLES = "examples:\n"


def typed_command() -> str:
    """Return the command name as typed: the installed script or the Python module."""
    name = Path(sys.argv[0]).name
    return name if name == "tfe-bench" else "python -m tfe_bench"


class _HelpFormatter(argparse.HelpFormatter):
    """Formatter that fills texts but keeps the line breaks of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if not text.startswith(EXAMPLES):
            return super()._fill_text(text, width, indent)
        return "".join(f"{indent}{line}\n" for line in text.splitlines())


class _FullHelpAction(argparse.Action):
    """Action that prints the help of a parser and of every command that it lists."""

    def __call__(self, parser: Any, *_: Any) -> None:
        """Print the help and exit with 0."""
        texts = [parser.format_help()]
        for commands in parser._actions:
            if isinstance(commands, argparse._SubParsersAction):
                listed = [name for names in parser._groups.values() for name in names]
                listed = listed or [action.dest for action in commands._choices_actions]
                texts += [commands.choices[name].format_help() for name in listed]
        print("\n".join(texts))
        parser.exit(0)


class CommandParser(argparse_flags.ArgumentParser):
    """A parser of commands and their options; every ``type=int`` takes 1e6 and 2^20.

    absl reads ``--flagfile FILE``: options in a file, one on each line.

    Args:
        groups: names of commands by heading in the help; None for a single list.
    """

    def __init__(self, groups: Mapping[str, Sequence[str]] | None = None, **options: Any) -> None:
        # (the parser of all commands reads flag files for them)
        inherited = {} if groups else {"inherited_absl_flags": None}
        super().__init__(  # type: ignore[no-untyped-call]
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
            conflict_handler="resolve",
            **inherited,
            **options,
        )
        self._groups = groups or {}
        self.register("type", int, common.parse_whole_number)
        full = "print the help of every command" if groups else argparse.SUPPRESS
        self.add_argument("--helpfull", action=_FullHelpAction, nargs=0, help=full)

    def format_usage(self) -> str:
        """Return the usage with required arguments only."""
        formatter = self._get_formatter()
        needed = [a for a in self._actions if a.required or not a.option_strings]
        formatter.add_usage(None, needed, [])
        return f"{formatter.format_help().rstrip()} [options]\n"

    def format_help(self) -> str:
        """Return the help, with commands under the headings of `groups`."""
        formatter = self._get_formatter()
        formatter.add_text(self.description)
        if not self._groups:
            for group in self._action_groups:
                formatter.start_section(group.title)
                formatter.add_text(group.description)
                formatter.add_arguments(group._group_actions)
                formatter.end_section()
        else:
            [commands] = (a for a in self._actions if isinstance(a, argparse._SubParsersAction))
            listed = {action.dest: action for action in commands._choices_actions}
            for heading, names in self._groups.items():
                formatter.start_section(heading)
                formatter.add_arguments([listed[name] for name in names])
                formatter.end_section()
            formatter.start_section("options")
            formatter.add_arguments([a for a in self._actions if a is not commands])
            formatter.end_section()
        formatter.add_text(self.epilog)
        return f"{self.format_usage()}\n{formatter.format_help()}"

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse all arguments; each command rejects unknown arguments."""
        parsed, remaining = super().parse_known_args(args, namespace)  # type: ignore[no-untyped-call]
        if remaining:
            known = [name for action in self._actions for name in action.option_strings]
            word = remaining[0].partition("=")[0]
            hint = did_you_mean(word, known) if word.startswith("-") else ""
            self.error(f"unrecognized arguments: {' '.join(remaining)}.{hint}")
        return parsed, remaining

    def error(self, message: str) -> NoReturn:
        """Exit with 2: print the error first, then the short usage."""
        sentence = message if message.endswith((".", "?")) else f"{message}."
        where = f"{self.format_usage()}See `{self.prog} --help`.\n"
        self.exit(2, f"tfe_bench: UsageError: {sentence[:1].upper()}{sentence[1:]}\n{where}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if not isinstance(action, argparse._SubParsersAction):
            super()._check_value(action, value)
            return
        names = list(map(str, action.choices))
        # (suggest a listed command rather than one of the many operations)
        listed = [name for group in self._groups.values() for name in group]
        hint = did_you_mean(str(value), listed) or did_you_mean(str(value), names)
        shown = "" if self._groups else f" Known: {', '.join(names)}."
        raise argparse.ArgumentError(None, f"Unknown command {str(value)!r}.{hint}{shown}")
