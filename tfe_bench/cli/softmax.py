"""`python -m tfe_bench softmax`: softmax of private rows, and what it cost."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tfe_bench.cli import common, operation

if TYPE_CHECKING:
    import numpy as np


def add_parser(commands: Any) -> None:
    """Adds the command."""
    p = commands.add_parser(
        "softmax",
        help="compute softmax of rows of private values",
        description="Shares rows of logits among three workers, computes e^x / sum(e^x) of each "
        "row without any worker seeing them, checks the result and prints what it cost.",
    )
    operation.add_axis(p)
    common.add_plan_option(p, "its maximum plans")
    operation.add_options(p, "128x10", "N rows of 10 generated values")
    p.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    arguments.plan_for = common.planned_network(arguments)
    shown = {} if arguments.plan_for == "local" else {"plan_for": arguments.plan_for}
    vector = False

    def arrange(values: np.ndarray[Any, Any]) -> dict[str, Any]:
        nonlocal vector
        vector = values.ndim == 1
        return operation.rows(values, arguments.axis)

    def place(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if vector:
            return values.reshape(-1)
        return values.T if arguments.axis == "column" else values

    options = {"profile": arguments.plan_for}
    work = operation.prepare(arguments, "softmax", options, arrange, **shown)
    return operation.perform("softmax", arguments, work, "softmax", place)
