"""`python -m tfe_bench sort`: sort private keys on three workers and print the cost."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfe_bench.cli import common, job_record
from tfe_bench.errors import UsageError, check_known, check_range

if TYPE_CHECKING:
    import numpy as np

    from tfe_bench.cli.data.columns import Cells
    from tfe_bench.cluster.requests import JobResult

ALGORITHMS = ("auto", "quick", "all-pairs", "network")


def _add_sort_options(p: argparse.ArgumentParser) -> None:
    common.add_option(p, "--n N", "number of generated keys (default: 1024)", type=int)
    p.add_argument(
        "--kind",
        default="int64",
        choices=("int64", "few", "float", "sorted", "reversed"),
        help="type of the generated keys (default: int64, full range)",
    )
    p.add_argument("--seed", type=int, default=1, help="seed of the generated keys (default: 1)")
    common.add_option(
        p,
        "--input FILE",
        "sort a .csv or .npy file instead; a 2-D .npy row by row, unless --column is given",
    )
    common.add_option(p, "--column C", "key column of the file: a name or a 0-based index")
    common.add_option(p, "--payload C,C", "payload columns of any type, reordered with the keys")
    common.add_output_option(p)
    common.add_option(
        p, "--algorithm NAME", f"algorithm: {', '.join(ALGORITHMS)} (default: auto)", default="auto"
    )
    common.add_plan_option(p, "auto and quick plan")
    common.add_option(p, "--descending", "sort the largest key first")
    common.add_run_options(p, takes_files=True)


@dataclass(frozen=True)
class _SortWork:
    """Keys to sort, and the columns to reorder.

    Attributes:
        keys: int64 keys, in the order of the original values.
        kind: the type of the original values, "int64" or "float64".
        columns: the columns to reorder by name: the keys and the payload as they were read. They
            stay with the client.
        source: the origin of the keys, for the record.
    """

    keys: np.ndarray[Any, Any]
    kind: str
    columns: dict[str, Cells]
    source: str


def run_sort(arguments: argparse.Namespace) -> int:
    """Sort private keys.

    Shares keys among three workers, which sort them without seeing them. Compares the result with
    NumPy and prints the cost.
    """
    from tfe_bench.cli.data import results
    from tfe_bench.cluster.requests import PrivateInput

    check_known("--algorithm", arguments.algorithm, ALGORITHMS)
    arguments.plan_for = common.planned_network_profile(arguments)
    if arguments.output:
        results.check_result_path(arguments.output)
    work = (
        _generate_sort_work(arguments)
        if arguments.input is None
        else _sort_work_from_file(arguments)
    )
    inputs = {"keys": PrivateInput(work.keys, 0)}
    parameters = {
        "algorithm": arguments.algorithm,
        "descending": arguments.descending,
        **common.timing_loop_parameters(arguments),
        "profile": arguments.plan_for,
    }
    shown = {
        "n": int(work.keys.size),
        "keys": work.kind,
        "source": work.source,
        "algorithm": arguments.algorithm,
        "descending": arguments.descending,
    }
    if arguments.plan_for != "local":
        shown["plan_for"] = arguments.plan_for
    if work.keys.ndim == 2:
        shown["rows"] = int(work.keys.shape[0])
    if "warm_up" in parameters:
        shown["warm_up"] = 0

    def judge_result(result: JobResult) -> job_record.JobOutcome:
        correct = _is_sorted_correctly(work, arguments.descending, result)
        if arguments.output and correct:
            _write_sorted_columns(arguments.output, work, result)
        elif arguments.output:
            print(f"tfe_bench: {arguments.output} is not written: wrong order.", file=sys.stderr)
        written = arguments.output if correct else None
        prints_figures = arguments.input is None or arguments.repeat is not None or written is None
        error = 0.0 if correct else None
        return job_record.JobOutcome(
            shown, correct, error, 0, written=written, figures=prints_figures
        )

    return job_record.run_and_report(arguments, "sort", ("sort", parameters, inputs), judge_result)


def _generate_sort_work(arguments: argparse.Namespace) -> _SortWork:
    from tfe_bench.benchmarks import keys
    from tfe_bench.cluster.policy import DEFAULT_MAX_ELEMENTS

    common.check_dependent_options(arguments, "input", "column", "payload")
    n = 1024 if arguments.n is None else arguments.n
    check_range("--n", n, 1)
    if n > DEFAULT_MAX_ELEMENTS and arguments.cluster is None:
        raise UsageError(
            f"Expected at most {DEFAULT_MAX_ELEMENTS} keys on three local workers. Received: {n}.",
            code="too-large",
            operation="--n",
            received=n,
            expected=DEFAULT_MAX_ELEMENTS,
        )
    try:
        values = keys.generate_sort_keys(n, arguments.seed, arguments.kind)
    except (MemoryError, OverflowError, ValueError):
        raise UsageError(
            f"Expected keys that fit into memory in --n. Received: {n}.",
            code="out-of-memory",
            operation="--n",
            received=n,
        ) from None
    source = f"{arguments.kind}, seed {arguments.seed}"
    return _SortWork(keys.to_sortable_integers(values), values.dtype.name, {"key": values}, source)


def _sort_work_from_file(arguments: argparse.Namespace) -> _SortWork:
    from tfe_bench.benchmarks import keys
    from tfe_bench.cli.data import columns, results

    if arguments.n is not None:
        raise UsageError(
            "--n and --input exclude each other. Received: both. Remove one of them.",
            code="conflicting-options",
            operation="--n",
            received="--input",
        )
    others = [c.strip() for c in arguments.payload.split(",")] if arguments.payload else []
    numbers = arguments.output is not None and arguments.output.suffix.lower() == ".npy"
    column, payload = columns.load_column_with_others(
        arguments.input, arguments.column, others, numbers
    )
    cells = {column.name: column.cells, **payload}
    if numbers:
        results.check_one_column_type(cells)
    if column.values.ndim == 2:
        print(
            f"tfe_bench: {arguments.input} has two axes: each of its {len(column.values)} rows is "
            "sorted by itself. --column C sorts by one column.",
            file=sys.stderr,
        )
    if not column.named:
        print(
            f"tfe_bench: {arguments.input} has no line of names: its first line is sorted like the "
            "others, and its columns are 0, 1, ... Add names to a file whose first line is not "
            "data.",
            file=sys.stderr,
        )
    values = column.values
    return _SortWork(
        keys.to_sortable_integers(values), values.dtype.name, cells, arguments.input.name
    )


def _is_sorted_correctly(work: _SortWork, descending: bool, result: JobResult) -> bool:
    """Compare keys and positions with the stable sort of NumPy."""
    import numpy as np

    order = np.argsort(~work.keys if descending else work.keys, axis=-1, kind="stable")
    outputs = result.outputs
    sorted_keys = np.take_along_axis(work.keys, order, -1)
    return np.array_equal(outputs["keys"], sorted_keys) and np.array_equal(
        outputs["indices"], order
    )


def _write_sorted_columns(path: Path, work: _SortWork, result: JobResult) -> None:
    """Write the columns in the order that the workers computed."""
    import numpy as np

    from tfe_bench.cli.data import results

    order = result.outputs["indices"]

    def take_in_order(cells: Cells) -> Cells:
        if isinstance(cells, list):
            return [cells[i] for i in order]
        return np.take_along_axis(cells, order, -1)

    table = {name: take_in_order(cells) for name, cells in work.columns.items()}
    if len(table) > 1:
        results.write_result_table(path, table)
    else:
        name, keys = table.popitem()
        results.write_result_file(path, keys, name)


COMMANDS = {"sort": (_add_sort_options, run_sort)}
