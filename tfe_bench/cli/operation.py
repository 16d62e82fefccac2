"""What the commands of single operations share: their data, one run, the check of the result."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfe_bench.cli.common import (
    add_run_options,
    harness_parameters,
    open_cluster,
    progress_bar,
    report,
    whole_number,
)
from tfe_bench.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from tfe_bench.benchmarks.operations import Operation, Private, Verdict
    from tfe_bench.cluster.requests import JobResult

    Array = np.ndarray[Any, Any]


def add_options(p: argparse.ArgumentParser, size: str, n: str) -> None:
    """Options of every command of one operation.

    Args:
        size: the default shape.
        n: what --n stands for.
    """
    p.add_argument("--n", type=int, metavar="N", help=n)
    p.add_argument("--shape", metavar="AxB", help=f"of generated values (default {size})")
    p.add_argument("--seed", type=int, default=1, help="of the generated values (default 1)")
    p.add_argument("--input", type=Path, metavar="FILE", help="take a .csv or .npy file instead")
    p.add_argument(
        "--column", metavar="C[,C]", help="columns of it: names or 0-based indices (default: all)"
    )
    p.add_argument("--output", type=Path, metavar="FILE", help="write the result (.csv or .npy)")
    add_run_options(p, takes_files=True)


@dataclass(frozen=True)
class Work:
    """What is to be computed.

    Attributes:
        options: public parameters of the operation.
        inputs: ring elements.
        source: where they come from, for the record.
        shown: more parameters for the record.
    """

    operation: Operation
    options: Mapping[str, Any]
    inputs: Private
    source: str
    shown: Mapping[str, Any]


def size_of(arguments: argparse.Namespace, operation: Operation) -> tuple[int, ...]:
    """The size of --n or --shape, or the default.

    Raises:
        UsageError: both are given, or it is none.
    """
    if arguments.n is not None and arguments.shape is not None:
        raise UsageError("--n and --shape exclude each other. Received: both.")
    if arguments.n is not None:
        if arguments.n < 1:
            raise UsageError(f"--n is 1 or more. Received: {arguments.n}.")
        return operation.of_length(arguments.n)
    if arguments.shape is None:
        return operation.size
    try:
        return tuple(whole_number(n) for n in arguments.shape.split("x"))
    except argparse.ArgumentTypeError:
        raise UsageError(
            f"--shape is numbers with x between them, as {operation.example()}. "
            f"Received: {arguments.shape!r}."
        ) from None


def check_elements(operation: Operation, size: tuple[int, ...], local: bool) -> None:
    """Refuses what three local workers would refuse, before it is generated.

    Raises:
        UsageError: an input has too many elements.
    """
    from tfe_bench.cluster.policy import DEFAULT_MAX_ELEMENTS

    largest = max(math.prod(shape) for shape in operation.shapes(size).values())
    if local and largest > DEFAULT_MAX_ELEMENTS:
        raise UsageError(
            f"An input has at most {DEFAULT_MAX_ELEMENTS} values on three local workers. "
            f"Received: {largest}."
        )


def prepare(
    arguments: argparse.Namespace,
    name: str,
    options: Mapping[str, Any],
    arrange: Callable[[Array], dict[str, Array]],
    draw: Callable[[tuple[int, ...], np.random.Generator], dict[str, Array]] | None = None,
    **shown: Any,
) -> Work:
    """Reads or generates the inputs and refuses all that does not fit, before anything runs.

    Args:
        arrange: the inputs by name, from a file's numbers [n] or [rows, columns].
        draw: generates the inputs, instead of the operation's own way.
        shown: more parameters for the record.

    Raises:
        UsageError, DataError, RangeError: what does not fit.
    """
    from tfe_bench.benchmarks import data, operations

    operation = operations.find(name)
    if arguments.output:
        data.check_result_path(arguments.output)
    options = {**operation.options, **options}
    if arguments.input is None:
        for option in ("column", "axis"):
            if getattr(arguments, option, None) is not None:
                raise UsageError(f"--{option} goes with --input. Received: no --input.")
        size, _ = operations.settle(operation, size_of(arguments, operation), options)
        if arguments.output and len(size) > 2:
            raise UsageError(f"--output holds one or two axes. Received: {len(size)}.")
        check_elements(operation, size, arguments.cluster is None)
        inputs = operations.generate(operation, size, arguments.seed, draw)
        operation.domain(inputs.rings, options)
        source = f"seed {arguments.seed}"
    else:
        for option in ("n", "shape"):
            if getattr(arguments, option) is not None:
                raise UsageError(f"--{option} and --input exclude each other. Received: both.")
        numbers, columns = _read(arguments)
        # As the file has them, so that an error names the place in the file.
        with data.naming_lines(arguments.input, columns):
            operation.domain(operations.encode(operation, {"x": numbers}).rings, options)
        values = arrange(numbers)
        size = operation.size_of([v.shape for v in values.values()])
        operations.settle(operation, size, options)
        check_elements(operation, size, arguments.cluster is None)
        inputs = operations.encode(operation, values)
        source = arguments.input.name
    return Work(operation, options, inputs, source, shown)


def _read(arguments: argparse.Namespace) -> tuple[Array, list[str]]:
    """The numbers of --input, one column, or several or all side by side, and their names.

    Raises:
        DataError, UsageError: the file or its columns do not fit.
    """
    import numpy as np

    from tfe_bench.benchmarks import data

    path, columns = arguments.input, arguments.column
    if columns is None and path.suffix.lower() == ".npy":
        return data.load_column(path).values, []
    names = None if columns is None else [c.strip() for c in columns.split(",")]
    table = data.load_table(path, names)
    found = list(table.values())
    return found[0] if len(found) == 1 else np.stack(found, axis=1), list(table)


def add_axis(p: argparse.ArgumentParser) -> None:
    """The option --axis of operations along rows."""
    p.add_argument("--axis", choices=("row", "column"), help="of the file (default: row)")


def rows(values: Array, axis: str | None) -> dict[str, Array]:
    """The input of an operation along rows, or columns; a vector is one row."""
    import numpy as np

    if values.ndim == 1:
        return {"x": values.reshape(1, -1)}
    return {"x": np.ascontiguousarray(values.T) if axis == "column" else values}


def perform(
    command: str,
    arguments: argparse.Namespace,
    work: Work,
    name: str,
    place: Callable[[Array], Array] = lambda values: values,
) -> int:
    """Runs the work on the workers, checks and writes the result, and reports what it cost.

    Args:
        command: the record's workload.
        name: of the result's column.
        place: the result as it is written, from what the workers computed.

    Returns:
        The exit code.
    """
    from tfe_bench.benchmarks import data
    from tfe_bench.protocols.session.fixedpoint import FixedPoint

    harness = harness_parameters(arguments)
    with progress_bar(arguments) as bar, open_cluster(arguments, bar) as cluster:
        result, verdict = compute(cluster, work, harness, bar.update)
    if arguments.output:
        bits = result.fractional_bits["result"]
        ring = result.outputs["result"]
        values = FixedPoint(bits).decode(ring) if bits else ring
        data.write_result(arguments.output, place(values), name)
    report(
        command,
        arguments,
        cluster,
        result,
        {**parameters(work), **({"warm_up": 0} if "warm_up" in harness else {})},
        verdict.correct,
        verdict.max_error,
        work.inputs.fractional_bits,
        error=verdict.error,
    )
    return 0 if verdict.correct else 1


def compute(
    cluster: Any,
    work: Work,
    harness: Mapping[str, Any],
    progress: Callable[[float, str], None],
) -> tuple[JobResult, Verdict]:
    """One job on a cluster, timed as the harness is told, and whether its result is right."""
    from tfe_bench.benchmarks import operations
    from tfe_bench.cluster.requests import PrivateInput

    bits = work.inputs.fractional_bits
    result = cluster.run(
        "operation",
        {"operation": work.operation.name, **harness, **work.options},
        {name: PrivateInput(ring, bits) for name, ring in work.inputs.rings.items()},
        progress,
    )
    verdict = operations.judge(
        work.operation,
        work.inputs,
        work.options,
        result.outputs["result"],
        result.fractional_bits["result"],
    )
    return result, verdict


def parameters(work: Work) -> dict[str, Any]:
    """What the record says of the work: sizes and public options, no data."""
    rings = work.inputs.rings
    size = work.operation.size_of([ring.shape for ring in rings.values()])
    kind = "fixed point" if work.inputs.fractional_bits else "int64"
    return {"shape": "x".join(map(str, size)), "values": kind, "source": work.source, **work.shown}
