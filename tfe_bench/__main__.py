"""The command line: `python -m tfe_bench COMMAND ...`."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tfe_bench.cli import defaults
from tfe_bench.errors import ConfigError, DataError, TfeBenchError

if TYPE_CHECKING:
    from tfe_bench.cli.command import Command

_BROKEN_PIPE = 141
# Former names of commands, which still work but are not listed.
RENAMED = {"peers": "baselines"}


def make_parser(words: Sequence[str] | None = None) -> Any:
    """Return the parser of the command line.

    Args:
        words: the words to parse; other commands than theirs have names alone, and the catalogue
            of operations is loaded only for a command that is an operation. None for all
            commands.
    """
    from tfe_bench import __version__
    from tfe_bench.cli import (
        align,
        audit,
        baselines,
        certs,
        channel,
        compare,
        doctor,
        generate,
        jobs,
        links,
        listing,
        matmul,
        ops,
        parsing,
        predict,
        provide,
        relational,
        report,
        resnet50,
        service,
        sort,
        suite,
        table,
        train,
        trial,
        worker,
    )
    from tfe_bench.cli.command import Command, list_registered_commands, load_command

    modules = (
        *(sort, compare, matmul, resnet50, generate, service, predict, train, provide, table),
        *(align, relational, ops, suite, report, baselines, channel, links, jobs, worker, trial),
        *(certs, doctor, audit),
    )
    known = {name: Command(*parts) for module in modules for name, parts in module.COMMANDS.items()}
    points, refused = list_registered_commands(known.keys())
    name = next((word for word in words or () if not word.startswith("-")), "")
    is_complete = name not in {*known, *points} and "--version" not in (words or ())
    registered = {name: load_command(points[name])} if name in points else {}
    for other in points if is_complete else ():
        try:
            registered[other] = load_command(points[other])
        except ConfigError as error:  # of another package: all other commands work
            refused[other] = error
    for refusal in () if name else refused.values():
        _report_command_error(refusal)
    parser = parsing.CommandParser(
        groups=listing.group_commands(registered),
        prog=parsing.typed_command(),
        description="Secure three-party computation as TensorFlow graphs, and what it costs. "
        "`COMMAND --help` describes one command; `--flagfile FILE` reads options from a file, one "
        "on each line.",
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument("--version", action="version", version=f"tfe_bench {__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=parsing.CommandParser
    )
    for each, command in (known | registered).items():
        _add_command(commands, each, command, is_complete or each == name)
    if is_complete:
        from tfe_bench.cli import operation

        unlisted = operation.add_operation_parsers(commands)
        if name in refused and name not in commands.choices:
            raise refused[name]
        parser.epilog = f"Every operation that `ops` lists is a command too: {', '.join(unlisted)}."
    return parser


def _add_command(commands: Any, name: str, command: Command, is_complete: bool) -> None:
    """Add a command, and its options and function if they are needed.

    The docstring of the function is the help.
    """
    from tfe_bench.cli import listing

    words = inspect.getdoc(command.run) or ""
    summary, _, rest = words.partition("Raises:")[0].strip().partition("\n\n")
    listed = {"help": summary[:1].lower() + summary[1:].removesuffix(".")}
    p = commands.add_parser(
        name,
        description=rest or summary,
        epilog=listing.format_command_examples(name, command.examples or None),
        **({} if name in RENAMED else listed),
    )
    if is_complete:
        command.add_options(p)
        p.set_defaults(run=command.run)


def parse_command(words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; the result can parse others, for commands that run commands."""
    parsed: argparse.Namespace = make_parser(words).parse_args(words)
    defaults.apply_environment_defaults(parsed)
    parsed.parse = parse_command
    return parsed


def _expand_command_shortcuts(words: list[str]) -> list[str]:
    """Translate words to options: no words and `help` to the help, `version` to the version."""
    match words:
        case [] | ["help"]:
            return ["--help"]
        case ["help", *command]:
            return [*command, "--help"]
        case ["version"]:
            return ["--version"]
    return words


def run() -> int:
    """Run a command as a process: `main`, with only its own lines on the terminal."""
    from tfe_bench.cli import quiet_imports

    if sys.stderr is None:  # closed: errors are not read, and no file may get its number
        _redirect_output_to_null(2)
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        _redirect_output_to_null(1)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        return _report_command_error(
            DataError(
                "Standard output is closed. Redirect it: > /dev/null.", code="output-not-writable"
            )
        )
    before = sys.stdout
    sys.stdout = _CheckedOutput(
        before.buffer,
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=bool(before.line_buffering),
    )
    if "--debug" not in sys.argv:
        quiet_imports.install_quiet_import()
    try:
        return main()
    except BrokenPipeError:
        _redirect_output_to_null(1)
        return _BROKEN_PIPE
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # (the console of a table ends this way)
            return _BROKEN_PIPE
        raise


def _redirect_output_to_null(descriptor: int) -> None:
    """Discard all further output, also when Python itself flushes."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


def _report_command_error(error: TfeBenchError) -> int:
    print(f"tfe_bench: {type(error).__name__}: {error} [{error.code}]", file=sys.stderr)
    return error.exit_code


class _CheckedOutput(io.TextIOWrapper):
    """Standard output whose write errors are typed errors."""

    def write(self, text: str, /) -> int:
        with self._translate_errors():
            return super().write(text)

    def flush(self) -> None:
        with self._translate_errors():
            super().flush()

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            _redirect_output_to_null(1)
            raise DataError(
                "Standard output cannot be written to; the command may have run. Received: "
                f"{error.strerror or type(error).__name__}. Redirect it to another file or device.",
                code="output-not-writable",
                received=error.strerror or type(error).__name__,
            ) from None


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code (docs/exit_codes.md).

    Raises:
        BrokenPipeError: the reader of the output has ended.
    """
    arguments = sys.argv[1:] if argv is None else argv
    debug = "--debug" in arguments
    try:
        parsed = parse_command(_expand_command_shortcuts([a for a in arguments if a != "--debug"]))
        if (name := RENAMED.get(parsed.command)) is not None:
            warning = f"DeprecationWarning: `{parsed.command}` is called `{name}` now."
            print(f"tfe_bench: {warning}", file=sys.stderr)
        code = int(parsed.run(parsed))
        sys.stdout.flush()  # here, where an ended reader is expected
        return code
    except TfeBenchError as error:
        if debug:
            traceback.print_exc()
        return _report_command_error(error)
    except KeyboardInterrupt:
        if debug:
            traceback.print_exc()
        print("tfe_bench: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the process ends without a message
        raise
    except Exception as error:
        if debug:
            traceback.print_exc()
        # A foreign error's text could quote any value: only its class is printed.
        print(
            f"tfe_bench: internal error ({type(error).__name__}). Run it again with --debug and "
            "report what it prints.",
            file=sys.stderr,
        )
        return 1


if __name__ == "__main__":
    sys.exit(run())
