"""`python -m tfe_bench compare`: compare two private vectors."""

from __future__ import annotations

import argparse

from tfe_bench.cli import common, operation
from tfe_bench.errors import check_known


def add_compare_options(p: argparse.ArgumentParser) -> None:
    """Add the options of a comparison."""
    from tfe_bench.benchmarks import operations

    known = operations.comparisons.COMPARISONS
    common.add_option(
        p, "--op NAME", f"comparison: {', '.join(known)} (default: less)", default="less"
    )
    p.add_argument(
        "--kind",
        default="int64",
        choices=("int64", "float"),
        help="type of the generated values (default: int64, full range)",
    )
    operation.add_operation_options(
        p, operations.find_operation("less"), "number of generated pairs"
    )


def run_compare(arguments: argparse.Namespace) -> int:
    """Compare two private vectors.

    Shares two vectors among three workers and compares them element by element. No worker sees the
    vectors or the result. Checks the result and prints the cost. Exact for all 64-bit integers and
    all fixed-point numbers.
    """
    from tfe_bench.benchmarks import operations
    from tfe_bench.benchmarks.operations.comparisons import (
        COMPARISONS,
        draw_compared_integers,
        draw_compared_reals,
    )

    check_known("--op", arguments.op, COMPARISONS)
    draw = draw_compared_integers if arguments.kind == "int64" else draw_compared_reals
    entry, shown = operations.find_operation(arguments.op), {"op": arguments.op}
    work = operation.prepare_operation_work(arguments, entry, {}, draw, shown)
    return operation.perform_operation_work("compare", arguments, work)


COMMANDS = {"compare": (add_compare_options, run_compare)}
