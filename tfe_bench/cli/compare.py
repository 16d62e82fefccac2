"""`python -m tfe_bench compare`: compares two private vectors, and prints what it cost."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tfe_bench.cli import operation
from tfe_bench.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    import numpy as np

OPERATIONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")


def add_parser(commands: Any) -> None:
    """Adds the command."""
    p = commands.add_parser(
        "compare",
        help="compare two private vectors",
        description="Shares two vectors among three workers, compares them element by element "
        "without any worker seeing them or the outcome, checks the result and prints what it "
        "cost. Exact for all 64-bit integers and all reals in fixed point.",
    )
    p.add_argument("--op", default="less", metavar="NAME", help=", ".join(OPERATIONS))
    p.add_argument(
        "--kind",
        default="int64",
        choices=("int64", "float"),
        help="which values to generate (default: int64, full range)",
    )
    operation.add_options(p, "262144", "N generated pairs")
    p.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    from tfe_bench.benchmarks.operations import comparisons

    if arguments.op not in OPERATIONS:
        raise UsageError(
            f"Unknown --op {arguments.op!r}.{did_you_mean(arguments.op, OPERATIONS)} "
            f"Known: {', '.join(OPERATIONS)}."
        )
    integers = arguments.kind == "int64"
    work = operation.prepare(
        arguments,
        arguments.op,
        {},
        _pair,
        comparisons.integer_pairs if integers else comparisons.pairs,
        op=arguments.op,
    )
    return operation.perform("compare", arguments, work, arguments.op)


def _pair(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    import numpy as np

    columns = 1 if values.ndim == 1 else values.shape[1]
    if columns != 2:
        raise UsageError(
            f"compare wants two columns. Received: {columns}. Choose them with --column A,B."
        )
    return {name: np.ascontiguousarray(values[:, i]) for i, name in enumerate("xy")}
