"""`python -m tfe_bench compare`: compares two private vectors, and prints what it cost."""

from __future__ import annotations

import argparse

from tfe_bench.cli import common, operation
from tfe_bench.errors import check_known


def _options(p: argparse.ArgumentParser) -> None:
    from tfe_bench.benchmarks import operations

    known = operations.comparisons.COMPARISONS
    common.option(p, "--op NAME", ", ".join(known), default="less")
    p.add_argument(
        "--kind",
        default="int64",
        choices=("int64", "float"),
        help="which values to generate (default: int64, full range)",
    )
    operation.add_options(p, operations.find("less"), "N generated pairs")


def run(arguments: argparse.Namespace) -> int:
    """Compare two private vectors.

    Shares two vectors among three workers, compares them element by element without any worker
    seeing them or the outcome, checks the result and prints what it cost. Exact for all 64-bit
    integers and all reals in fixed point.
    """
    from tfe_bench.benchmarks import operations
    from tfe_bench.benchmarks.operations.comparisons import COMPARISONS, integer_pairs, pairs

    check_known("--op", arguments.op, COMPARISONS)
    draw = integer_pairs if arguments.kind == "int64" else pairs
    entry, shown = operations.find(arguments.op), {"op": arguments.op}
    work = operation.prepare(arguments, entry, {}, draw, shown)
    return operation.perform("compare", arguments, work)


COMMANDS = {"compare": (_options, run)}
