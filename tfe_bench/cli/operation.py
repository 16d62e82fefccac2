"""Commands of single operations, generated from the entries of the catalogue."""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfe_bench.cli import common, job_record, listing
from tfe_bench.errors import UsageError, check_range

if TYPE_CHECKING:
    import numpy as np

    from tfe_bench.benchmarks.operations import EncodedInputs, Operation, Verdict
    from tfe_bench.cluster.requests import JobResult

    Array = np.ndarray[Any, Any]
    Draw = Callable[[tuple[int, ...], np.random.Generator], dict[str, Array]]

_COUNTS = {2: "two", 3: "three"}


def add_operation_parsers(commands: Any) -> list[str]:
    """Add a command for every operation without a separate command.

    Returns:
        The names of the operations that the list of commands omits.
    """
    from tfe_bench.benchmarks import operations

    entries = [each for each in operations.OPERATIONS.values() if each.name not in commands.choices]
    for entry in entries:
        _add_operation_parser(commands, entry)
    return [entry.name for entry in entries if not entry.help]


def _add_operation_parser(commands: Any, entry: Operation) -> None:
    p: argparse.ArgumentParser = commands.add_parser(
        entry.name,
        description=f"Computes {entry.name} ({entry.about}) of values that are shared among three "
        "workers, checks the result and prints the cost. No worker sees a value.",
        epilog=listing.format_command_examples(entry.name, _operation_examples(entry)),
        **({"help": entry.help} if entry.help else {}),
    )
    if entry.is_row_wise:
        p.add_argument(
            "--axis",
            choices=("row", "column"),
            help="axis of the file along which to compute (default: row)",
        )
    for name, default in entry.options.items():
        if name == "profile":
            common.add_plan_option(p, entry.helps[name])
        else:
            shown = "K" if isinstance(default, int) else "NAME"
            p.add_argument(
                f"--{name}",
                type=type(default),
                default=default,
                metavar=shown,
                help=entry.helps[name],
            )
    if entry.is_row_wise:
        size_help = f"number of generated rows of {entry.size[1]} values"
    else:
        size_help = (
            "number of generated values" if len(entry.size) == 1 else "size of the first axis"
        )
    add_operation_options(p, entry, size_help)
    p.set_defaults(run=functools.partial(run_operation, entry))


def _operation_examples(entry: Operation) -> list[str]:
    lines = [f"{entry.name} --repeat 1", f"{entry.name} --profile lan"]
    return [*lines, f"{entry.name} --input a.npy --output r.npy"] if entry.takes_files else lines


def add_operation_options(p: argparse.ArgumentParser, entry: Operation, n: str) -> None:
    """Add the options of every command of one operation.

    Args:
        n: the help text of --n, without its default.
    """
    common.add_option(p, "--n N", n, type=int)
    common.add_option(
        p, "--shape AxB", f"shape of the generated values (default: {entry.default_size_text()})"
    )
    p.add_argument("--seed", type=int, default=1, help="seed of the generated values (default: 1)")
    p.set_defaults(input=None, column=None, output=None)
    if entry.takes_files:
        common.add_option(p, "--input FILE", "read the values from a .csv or .npy file instead")
        common.add_option(
            p, "--column C[,C]", "columns of the file: names or 0-based indices (default: all)"
        )
        common.add_output_option(p)
    common.add_run_options(p, takes_files=entry.takes_files)


def run_operation(entry: Operation, arguments: argparse.Namespace) -> int:
    """Run the command of an operation."""
    options = {name: getattr(arguments, name) for name in entry.options if name != "profile"}
    shown = dict(options)
    if "profile" in entry.options:
        options["profile"] = arguments.plan_for = common.planned_network_profile(arguments)
        if arguments.plan_for != "local":
            shown["plan_for"] = arguments.plan_for
    work = prepare_operation_work(arguments, entry, options, shown=shown)
    return perform_operation_work(entry.name, arguments, work)


@dataclass(frozen=True)
class OperationWork:
    """Inputs and options of one operation.

    Attributes:
        options: public parameters of the operation.
        inputs: the inputs as ring elements.
        source: the origin of the inputs, for the record.
        shown: further parameters for the record.
        place: converts the computed result into the layout of the output file.
    """

    operation: Operation
    options: Mapping[str, Any]
    inputs: EncodedInputs
    source: str
    shown: Mapping[str, Any]
    place: Callable[[Array], Array] = lambda values: values


def parse_operation_size(arguments: argparse.Namespace, operation: Operation) -> tuple[int, ...]:
    """Return the size of --n or --shape, or the default.

    Raises:
        UsageError: both options are given, or the text is not a shape.
    """
    if arguments.n is not None and arguments.shape is not None:
        raise UsageError(
            "--n and --shape exclude each other. Received: both. Remove one of them.",
            code="conflicting-options",
            operation="--shape",
            received="--n",
        )
    if arguments.n is not None:
        check_range("--n", arguments.n, 1)
        return operation.size_for_length(arguments.n)
    if arguments.shape is None:
        return operation.size
    try:
        return tuple(common.parse_whole_number(n) for n in arguments.shape.split("x"))
    except argparse.ArgumentTypeError:
        raise UsageError(
            f"Expected numbers with x between them in --shape, such as "
            f"{operation.default_size_text()}. Received: {arguments.shape!r}.",
            code="malformed-option",
            operation="--shape",
            received=arguments.shape,
        ) from None


def check_element_count(operation: Operation, size: tuple[int, ...], local: bool) -> None:
    """Reject inputs above the limit of three local workers, before they are generated.

    Raises:
        UsageError: an input has too many elements.
    """
    from tfe_bench.cluster.policy import DEFAULT_MAX_ELEMENTS

    largest = max(math.prod(shape) for shape in operation.shapes(size).values())
    if local and largest > DEFAULT_MAX_ELEMENTS:
        raise UsageError(
            f"Expected at most {DEFAULT_MAX_ELEMENTS} values of an input on three local workers. "
            f"Received: {largest}.",
            code="too-large",
            received=largest,
            expected=DEFAULT_MAX_ELEMENTS,
        )


def prepare_operation_work(
    arguments: argparse.Namespace,
    operation: Operation,
    options: Mapping[str, Any],
    draw: Draw | None = None,
    shown: Mapping[str, Any] | None = None,
) -> OperationWork:
    """Read or generate the inputs and reject invalid ones, before a job starts.

    Args:
        draw: generates the inputs; None for the generator of the operation.
        shown: further parameters for the record.

    Raises:
        UsageError: an option is invalid.
        DataError: a file is invalid.
        RangeError: an input is outside the range of the operation.
    """
    from tfe_bench.benchmarks import operations
    from tfe_bench.cli.data import results

    if arguments.output:
        results.check_result_path(arguments.output)
    options = {**operation.options, **options}
    if arguments.input is not None:
        return _operation_work_from_file(arguments, operation, options, shown or {})
    common.check_dependent_options(arguments, "input", "column", "axis")
    size, _ = operations.settle_options(
        operation, parse_operation_size(arguments, operation), options
    )
    if arguments.output and len(size) > 2:
        raise UsageError(
            f"Expected one or two axes of the result for --output. Received: {len(size)} axes.",
            code="rank-mismatch",
            operation="--output",
            received=len(size),
            expected="1 or 2",
        )
    check_element_count(operation, size, arguments.cluster is None)
    inputs = operations.generate_inputs(operation, size, arguments.seed, draw)
    operation.domain(inputs.rings, options)
    return OperationWork(operation, options, inputs, f"seed {arguments.seed}", shown or {})


def _operation_work_from_file(
    arguments: argparse.Namespace,
    operation: Operation,
    options: Mapping[str, Any],
    shown: Mapping[str, Any],
) -> OperationWork:
    """Return the work on the numbers of --input.

    Raises:
        UsageError: options exclude each other.
    """
    from tfe_bench.benchmarks import operations
    from tfe_bench.cli.data import columns

    for option in ("n", "shape"):
        if getattr(arguments, option) is not None:
            raise UsageError(
                f"--{option} and --input exclude each other. Received: both. Remove one of them.",
                code="conflicting-options",
                operation=f"--{option}",
                received="--input",
            )
    numbers, names = _read_operation_input(arguments)
    # In the layout of the file, so that an error names the position in the file.
    with columns.name_csv_positions(arguments.input, names):
        operation.domain(operations.encode_inputs(operation, {"x": numbers}).rings, options)
    axis = getattr(arguments, "axis", None)
    values = _arrange_operation_inputs(arguments.command, operation, numbers, axis)
    size = operation.size_of([v.shape for v in values.values()])
    operations.settle_options(operation, size, options)
    check_element_count(operation, size, arguments.cluster is None)
    inputs = operations.encode_inputs(operation, values)

    def place_rows(result: Array) -> Array:
        """Arrange the rows along the axis of the file."""
        if not operation.is_row_wise or result.ndim != 2:
            return result
        return result.reshape(-1) if numbers.ndim == 1 else result.T if axis == "column" else result

    return OperationWork(operation, options, inputs, arguments.input.name, shown, place_rows)


def _read_operation_input(arguments: argparse.Namespace) -> tuple[Array, list[str]]:
    """Read one or several columns of --input: the numbers and the names of the columns.

    Raises:
        DataError: the file or a column is invalid.
        UsageError: a column is selected twice.
    """
    import numpy as np

    from tfe_bench.cli.data import columns

    path, column_words = arguments.input, arguments.column
    if column_words is None and path.suffix.lower() == ".npy":
        return columns.load_data_column(path).values, []
    names = None if column_words is None else [c.strip() for c in column_words.split(",")]
    table = columns.load_data_table(path, names)
    cells = list(table.values())
    return cells[0] if len(cells) == 1 else np.stack(cells, axis=1), list(table)


def _arrange_operation_inputs(
    command: str, operation: Operation, values: Array, axis: str | None
) -> dict[str, Array]:
    """Return the inputs by name, from a file's numbers [n] or [rows, columns]; a vector is one row.

    Raises:
        UsageError: the number of columns differs from the number of inputs.
    """
    import numpy as np

    names = list(operation.shapes(operation.size))
    if len(names) > 1:
        columns = 1 if values.ndim == 1 else values.shape[1]
        if columns != len(names):
            raise UsageError(
                f"{command} requires {_COUNTS[len(names)]} columns. Received: {columns}. Select "
                f"them with --column {','.join('ABC'[: len(names)])}.",
                code="column-count-mismatch",
                operation=command,
                received=columns,
                expected=len(names),
            )
        return {name: np.ascontiguousarray(values[:, i]) for i, name in enumerate(names)}
    if operation.is_row_wise and values.ndim == 1:
        return {"x": values.reshape(1, -1)}
    return {"x": np.ascontiguousarray(values.T) if axis == "column" else values}


def perform_operation_work(command: str, arguments: argparse.Namespace, work: OperationWork) -> int:
    """Run the work on the workers, check and write the result, and report its cost.

    Args:
        command: the name of the workload in the record.

    Returns:
        The exit code.
    """
    from tfe_bench.cli.data import results
    from tfe_bench.protocols.session.fixedpoint import FixedPoint

    harness = common.timing_loop_parameters(arguments)
    with (
        common.command_progress_bar(arguments) as bar,
        common.open_cluster(arguments, bar) as cluster,
    ):
        result, verdict = run_work(cluster, work, harness, bar.update)
    if arguments.output:
        bits = result.fractional_bits["result"]
        ring = result.outputs["result"]
        values = FixedPoint(bits).decode(ring) if bits else ring
        results.write_result_file(arguments.output, work.place(values), work.operation.name)
    outcome = operation_work_outcome(work, verdict, {"warm_up": 0} if "warm_up" in harness else {})
    return job_record.report_job_result(command, arguments, cluster, result, outcome)


def run_work(
    cluster: Any,
    work: OperationWork,
    harness: Mapping[str, Any],
    progress: Callable[[float, str], None],
) -> tuple[JobResult, Verdict]:
    """Run one job on a cluster, timed by the harness, and judge its result."""
    from tfe_bench.benchmarks import operations
    from tfe_bench.cluster.requests import PrivateInput

    bits = work.inputs.fractional_bits
    result = cluster.run(
        "operation",
        {"operation": work.operation.name, **harness, **work.options},
        {name: PrivateInput(ring, bits) for name, ring in work.inputs.rings.items()},
        progress,
    )
    verdict = operations.judge_result(
        work.operation,
        work.inputs,
        work.options,
        result.outputs["result"],
        result.fractional_bits["result"],
    )
    return result, verdict


def operation_work_outcome(
    work: OperationWork, verdict: Verdict, more: Mapping[str, Any] | None = None
) -> job_record.JobOutcome:
    """Return the facts of the record: sizes, public options and the verdict, without data."""
    rings = work.inputs.rings
    size = work.operation.size_of([ring.shape for ring in rings.values()])
    bits = work.inputs.fractional_bits
    parameters = {
        "shape": "x".join(map(str, size)),
        "values": "fixed point" if bits else "int64",
        "source": work.source,
        **work.shown,
        **(more or {}),
    }
    return job_record.JobOutcome(
        parameters, verdict.correct, verdict.max_error, bits, error=verdict.error
    )
