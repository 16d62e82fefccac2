"""The command line: `python -m tfe_bench COMMAND ...`."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

from tfe_bench.cli import defaults
from tfe_bench.errors import DataError, TfeBenchError

Options = Callable[[argparse.ArgumentParser], None]
Command = Callable[[argparse.Namespace], int]

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
        baselines,
        certs,
        channel,
        compare,
        doctor,
        exp,
        functional,
        generate,
        homomorphic,
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
        storage,
        suite,
        table,
        technologies,
        train,
        trial,
        worker,
    )

    parser = parsing.CommandParser(
        groups=listing.GROUPS,
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
    before = [sort, compare, exp, matmul]
    after = [
        resnet50,
        generate,
        service,
        predict,
        train,
        provide,
        table,
        align,
        relational,
        ops,
        suite,
        report,
        baselines,
        channel,
        links,
    ]
    after += [technologies, functional, homomorphic, storage]
    after += [jobs, worker, trial, certs, doctor]
    command_names = {name for module in (*before, *after) for name in module.COMMANDS}
    command = next((word for word in words or () if not word.startswith("-")), "")
    is_complete = command not in command_names and "--version" not in (words or ())
    if not is_complete:
        command_names &= {command}
    for module in before:
        _add_commands(commands, module.COMMANDS, command_names)
    if is_complete:
        from tfe_bench.cli import operation

        unlisted = operation.add_operation_parsers(commands)
        parser.epilog = f"Every operation that `ops` lists is a command too: {', '.join(unlisted)}."
    for module in after:
        _add_commands(commands, module.COMMANDS, command_names)
    return parser


def _add_commands(
    commands: Any, named: Mapping[str, tuple[Options, Command]], command_names: Set[str]
) -> None:
    """Add commands, and the options and functions of those in `command_names`.

    The docstring of a command's function is its help.
    """
    from tfe_bench.cli import listing

    for name, (add_options, command) in named.items():
        words = inspect.getdoc(command) or ""
        summary, _, rest = words.partition("Raises:")[0].strip().partition("\n\n")
        listed = {"help": summary[:1].lower() + summary[1:].removesuffix(".")}
        p = commands.add_parser(
            name,
            description=rest or summary,
            epilog=listing.format_command_examples(name),
            **({} if name in RENAMED else listed),
        )
        if name in command_names:
            add_options(p)
            p.set_defaults(run=command)


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
