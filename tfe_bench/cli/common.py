"""Shared parts of the commands: options, their checks, cluster, progress bar."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfe_bench import atomic
from tfe_bench.cli import defaults
from tfe_bench.cli.progress import ProgressBar
from tfe_bench.cluster.config import CLIENT_VARIABLE, CLUSTER_VARIABLE
from tfe_bench.errors import UsageError, check_range

if TYPE_CHECKING:
    from tfe_bench.cluster.client import Client
    from tfe_bench.models.inference.execute import Prediction
    from tfe_bench.protocols.session.openings import Opening

_REPEAT = 5
_WHOLE = re.compile(r"([+-]?[0-9]+)(?:\.([0-9]+))?(?:[eE]([0-9]{1,2}))?", re.ASCII)
_POWER = re.compile(r"([0-9]{1,2})\^([0-9]{1,2})", re.ASCII)


def parse_whole_number(text: str) -> int:
    """Parse a whole number in common notation: 1000000, 1_000_000, 1e6, 2.5e3, 2^20.

    Raises:
        argparse.ArgumentTypeError: the text is not a whole number.
    """
    if power := _POWER.fullmatch(text):
        base, exponent = int(power[1]), int(power[2])
        return int(base**exponent)
    if match := _WHOLE.fullmatch(text.replace("_", "")):
        digits, decimals = match[1], (match[2] or "").rstrip("0")
        exponent = int(match[3] or 0)
        if len(digits) <= 100 and len(decimals) <= exponent:
            return int(digits + decimals.ljust(exponent, "0"))
    raise argparse.ArgumentTypeError(
        f"expected a whole number, such as 1000000, 1e6 or 2^20. Received: {text[:40]!r}."
    )


def add_option(
    p: argparse._ActionsContainer, typed: str, about: str, *also: str, **more: Any
) -> None:
    """Add an option from its usage: "--flag", "--name VALUE", or "--name FILE", which is a path.

    Args:
        typed: the option as in its usage.
        about: the help text.
        also: further names of the option.
        more: further arguments of `add_argument`.
    """
    name, _, value = typed.partition(" ")
    usual: dict[str, Any] = {"metavar": value} if value else {"action": "store_true"}
    if value in ("FILE", "FOLDER", "DIR"):
        usual["type"] = Path
    p.add_argument(name, *also, help=about, **usual, **more)


def add_check_range_option(p: argparse._ActionsContainer) -> None:
    """Add --check-range and --no-check-range; the default, None, means on if possible."""
    p.add_argument(
        "--check-range",
        action=argparse.BooleanOptionalAction,
        help="withhold outputs of samples with a value outside the calibrated ranges; only the "
        "client learns which (default: on if the model supports it)",
    )


def describe_range_check(
    checked: bool, predictions: Callable[[bool], Sequence[Prediction]]
) -> dict[str, str]:
    """Return the cost of the range check for a record; empty without a check.

    Args:
        checked: whether ranges are checked.
        predictions: returns the predictions with (True) or without (False) the check.
    """
    from tfe_bench.models.inference import execute

    if not checked:
        return {}
    more, rounds = execute.compare_prediction_costs(predictions(True), predictions(False))
    return {"range_check": f"{100 * more:+.1f} % bytes, {rounds:+d} rounds"}


def add_run_options(
    p: argparse.ArgumentParser, repeat: int = _REPEAT, takes_files: bool = False
) -> None:
    """Add the options of every command that runs a program.

    Args:
        repeat: the default number of timed runs.
        takes_files: whether the command has --input; a file is computed once by default.
    """
    add_option(
        p,
        "--repeat R",
        "number of timed runs (default: 5 after a warm-up; 1 without warm-up for a file)"
        if takes_files
        else f"number of timed runs (default: {repeat})",
        type=int,
        default=None if takes_files else repeat,
    )
    add_network_options(p)
    add_record_options(
        p,
        "write a trace for Perfetto or chrome://tracing (.json); takes one more run, which "
        "is not timed",
    )


def add_record_options(p: argparse.ArgumentParser, trace: str) -> None:
    """Add the options for the record and the trace; `trace` is the help of --trace."""
    add_option(p, "--json", "print only the record, as JSON")
    add_option(p, "--record FILE", "append the record to a .jsonl file")
    add_option(p, "--trace FILE", trace)


def quiet_tensorflow() -> None:
    """Configure the environment before a command imports TensorFlow.

    Models are converted on the CPU, even if the machine has accelerators. Keras uses TensorFlow as
    its backend, even if other programs use another one.
    """
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    os.environ["KERAS_BACKEND"] = "tensorflow"


def timing_loop_parameters(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters of a job's timing loop."""
    trace_option = {"trace": True} if arguments.trace is not None else {}
    if arguments.repeat is not None:
        return {"repeat": arguments.repeat, **trace_option}
    once = {"repeat": 1, "warm_up": 0}
    return {**({"repeat": _REPEAT} if arguments.input is None else once), **trace_option}


def add_network_options(p: argparse.ArgumentParser) -> None:
    """Add the options that choose the hosts and the network between them."""
    add_cluster_options(p, "cluster.toml of three hosts to run on")
    add_option(
        p,
        "--profile NAME",
        "network profile: local, lan, wan, orq-wan, puma-lan, net0, net1, net2 or net3 (default: "
        "local)",
        default="local",
    )
    add_option(
        p,
        "--emulate HOW",
        "emulation of the profile: netns (network namespaces, requires root), channel (in the "
        "workers), or auto, the first that is available (default: auto)",
        default="auto",
    )

    add_option(
        p,
        "--cores N",
        "number of processor cores that the three local workers share (default: all)",
        type=int,
    )
    add_sealed_option(p)


def add_sealed_option(p: argparse.ArgumentParser) -> None:
    """Add --sealed, which refuses jobs that open values to workers."""
    add_option(p, "--sealed", "refuse to run if it makes any value public to the workers")


def set_opening_rules(client: Client, arguments: argparse.Namespace) -> None:
    """Apply --sealed to a client, and print what its jobs open to workers before they run."""
    from tfe_bench.protocols.session.openings import describe_openings

    shown: set[Sequence[Opening] | None] = set()

    def print_openings(openings: Sequence[Opening] | None) -> None:
        if openings not in shown:
            shown.add(openings)
            print(f"tfe_bench: this job {describe_openings(openings)}", file=sys.stderr)

    client.sealed, client.on_openings = arguments.sealed, print_openings


def encode_opened_values(openings: Iterable[Opening]) -> list[dict[str, Any]]:
    """Return what a job opened to workers as JSON, with the fields of a record's "opened"."""
    return [dataclasses.asdict(opening) for opening in openings]


def add_cluster_options(
    p: argparse.ArgumentParser, about: str = "cluster.toml", required: bool = False
) -> None:
    """Add the options that choose the cluster file and the client."""
    needed = required and defaults.default_cluster_file() is None
    add_option(
        p,
        "--cluster FILE",
        f"{about} (default: environment variable {CLUSTER_VARIABLE})",
        required=needed,
    )
    about = f"name of this client in the cluster file (default: {CLIENT_VARIABLE})"
    add_option(p, "--client NAME", about)
    p.set_defaults(takes_cluster=True)


def add_output_option(p: argparse.ArgumentParser) -> None:
    """Add --output, the file of the result."""
    add_option(p, "--output FILE", "write the result to a file (.csv or .npy)")


def add_plan_option(p: argparse.ArgumentParser, who: str) -> None:
    """Add --plan-for, the network for which a protocol chooses its variant.

    Args:
        who: the subject and verb of the help text.
    """
    p.add_argument(
        "--plan-for",
        choices=("local", "lan", "wan"),
        help=f"network that {who} for (default: the network of --profile)",
    )


def add_image_option(p: argparse.ArgumentParser, more: str = "") -> None:
    """Add --image, the pictures to predict."""
    add_option(
        p,
        "--image FILE",
        f"picture file (JPEG, PNG, GIF, BMP); may be repeated{more}",
        action="append",
        default=[],
    )


def planned_network_profile(arguments: argparse.Namespace) -> str:
    """Return the network of --plan-for, or of --profile if it is not given.

    Raises:
        UsageError: there is no such profile.
    """
    from tfe_bench.cluster.profiles import get_profile

    return str(arguments.plan_for or get_profile(arguments.profile).plan)


def check_network_options(arguments: argparse.Namespace) -> None:
    """Reject an unknown profile, or a profile that these hosts cannot emulate.

    Raises:
        UsageError: the profile, emulation or client is invalid.
    """
    from tfe_bench.cluster.links import check_link_emulation
    from tfe_bench.cluster.profiles import get_profile

    get_profile(arguments.profile)
    check_link_emulation(arguments.emulate)
    if arguments.cluster is not None and arguments.emulate == "netns":
        raise UsageError(
            "Network namespaces are for three local workers. Received: --emulate netns with "
            "--cluster. Use --profile local for the hosts' own network, or --emulate channel.",
            code="conflicting-options",
            operation="--emulate",
            received="netns",
        )
    check_dependent_options(arguments, "cluster", "client")
    cores = getattr(arguments, "cores", None)
    if cores is not None:
        check_range("--cores", cores, 1, len(os.sched_getaffinity(0)))
        if arguments.cluster is not None:
            raise UsageError(
                "--cores limits three local workers. Received: --cores with --cluster. Limit the "
                "workers on their hosts.",
                code="conflicting-options",
                operation="--cores",
                received=cores,
            )


def check_dependent_options(arguments: argparse.Namespace, other: str, *options: str) -> None:
    """Reject options that have no effect without another one.

    Raises:
        UsageError: an option is given without the other one.
    """
    for option in options:
        is_given = getattr(arguments, option, None) not in (None, False)
        if is_given and getattr(arguments, other) in (None, False):
            raise UsageError(
                f"--{option} requires --{other}. Received: no --{other}.",
                code="option-requires-option",
                operation=f"--{option}",
                expected=f"--{other}",
            )


@contextlib.contextmanager
def command_progress_bar(arguments: argparse.Namespace) -> Iterator[Any]:
    """Yield a progress bar, silent unless stderr is a terminal and JSON output is off.

    A command that runs within another command uses the bar of the outer command, which closes it.
    """
    if (existing_bar := getattr(arguments, "bar", None)) is not None:
        yield existing_bar
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    silent = arguments.json or not sys.stderr.isatty()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=silent) as progress:
        yield ProgressBar(progress)


def run_nested_command(
    arguments: argparse.Namespace, words: Sequence[str], file: Path, bar: Any
) -> None:
    """Run a command line within this command; append its record to a file."""
    parsed = arguments.parse([*words, "--json", "--record", str(file)])
    parsed.bar = bar
    with contextlib.redirect_stdout(io.StringIO()):  # the record is in the file
        parsed.run(parsed)


def check_run_options(arguments: argparse.Namespace) -> None:
    """Reject options that a run cannot use, before it is prepared; `open_cluster` repeats this.

    Raises:
        UsageError: an option is invalid.
        DataError: a file cannot be written.
    """
    check_network_options(arguments)
    if arguments.repeat is not None:
        check_range("--repeat", arguments.repeat, 1, 1000)
    if arguments.record is not None:
        atomic.check_output_writable(arguments.record, "--record", "The record", existing=True)
    if arguments.trace is not None:
        atomic.check_output_writable(arguments.trace, "--trace", "The trace")
        if arguments.record is not None and arguments.trace.resolve() == arguments.record.resolve():
            raise UsageError(
                "Expected two different files in --trace and --record. Received: the same file.",
                code="conflicting-options",
                operation="--trace",
            )


def check_output_path(file: Path, suffixes: Sequence[str], content: str) -> None:
    """Check that the output path is writable, before a job starts.

    Raises:
        UsageError: the file has another suffix.
        DataError: the file cannot be written.
    """
    if file.suffix.lower() not in suffixes:
        raise UsageError(
            f"Expected a {' or '.join(suffixes)} file in --output. Received: {str(file)!r}.",
            code="unsupported-file-type",
            operation="--output",
            received=file.name,
            expected=" or ".join(suffixes),
        )
    atomic.check_output_writable(file, "--output", content)


def open_cluster(arguments: argparse.Namespace, bar: ProgressBar) -> Any:
    """Open the cluster of --cluster, or three local workers, and measure emulated links."""
    from tfe_bench.benchmarks import measured_links

    check_run_options(arguments)
    cluster = start_command_cluster(arguments, bar)
    try:
        if cluster.profile.shaped:
            bar.show_text("measuring the links")
        cluster.realized, cluster.emulation = measured_links.verify_links(cluster)
        bar.show_text("starting the job")
    except BaseException:
        cluster.close()
        raise
    return cluster


def start_command_cluster(arguments: argparse.Namespace, bar: ProgressBar) -> Any:
    """Start the cluster without measuring links."""
    from tfe_bench.cluster.launch import Cluster, LocalCluster

    cluster: LocalCluster | Cluster
    if arguments.cluster is None:
        with _limited_cores(getattr(arguments, "cores", None)):
            cluster = LocalCluster(
                profile=arguments.profile,
                emulate=arguments.emulate,
                models=getattr(arguments, "keep", None),
            )
        if cluster.fallback is not None:
            print(
                f"tfe_bench: {cluster.fallback} Delay and rate are emulated in the workers' "
                "channel instead (--emulate channel).",
                file=sys.stderr,
            )
    else:
        bar.show_text("connecting to the workers")
        cluster = Cluster(arguments.cluster, arguments.client, profile=arguments.profile)
    set_opening_rules(cluster, arguments)
    return cluster


@contextlib.contextmanager
def _limited_cores(cores: int | None) -> Iterator[None]:
    """Limit the processes that this thread starts to a number of cores; None: no limit."""
    if cores is None:
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
