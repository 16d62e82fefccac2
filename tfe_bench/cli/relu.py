"""`python -m tfe_bench relu`: max(x, 0) of private values, and what it cost."""

from __future__ import annotations

import argparse
from typing import Any

from tfe_bench.cli import operation


def add_parser(commands: Any) -> None:
    """Adds the command."""
    p = commands.add_parser(
        "relu",
        help="set private values below zero to zero",
        description="Shares values among three workers, computes max(x, 0) without any worker "
        "seeing them or their signs, checks the result and prints what it cost.",
    )
    p.add_argument(
        "--bits",
        type=int,
        default=31,
        metavar="K",
        help="compare K bits: |x| < 2^(K-17), of integers 2^(K-1); 64 for all (default 31)",
    )
    operation.add_options(p, "262144", "N generated values")
    p.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    work = operation.prepare(
        arguments,
        "relu",
        {"bits": arguments.bits},
        lambda values: {"x": values},
        bits=arguments.bits,
    )
    return operation.perform("relu", arguments, work, "relu")
