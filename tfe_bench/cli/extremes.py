"""`python -m tfe_bench max`: the largest of each row of private values, and what it cost."""

from __future__ import annotations

import argparse
from typing import Any

from tfe_bench.cli import common, operation


def add_parser(commands: Any) -> None:
    """Adds the command."""
    p = commands.add_parser(
        "max",
        help="find the largest of each row of private values",
        description="Shares rows of values among three workers, finds the largest of each without "
        "any worker seeing them, checks the result and prints what it cost.",
    )
    operation.add_axis(p)
    p.add_argument("--method", default="auto", metavar="NAME", help="auto, tree, all-pairs")
    common.add_plan_option(p, "auto plans")
    operation.add_options(p, "65536x4", "N rows of 4 generated values")
    p.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    arguments.plan_for = common.planned_network(arguments)
    shown = {"method": arguments.method}
    if arguments.plan_for != "local":
        shown["plan_for"] = arguments.plan_for
    work = operation.prepare(
        arguments,
        "max",
        {"method": arguments.method, "profile": arguments.plan_for},
        lambda values: operation.rows(values, arguments.axis),
        **shown,
    )
    return operation.perform("max", arguments, work, "max")
